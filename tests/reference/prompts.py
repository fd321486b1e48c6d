"""The texts of the parity data. (name, text) pairs; {chat} entries are user messages put through the model's template."""

TEXTS = [
    ("prose", "The lighthouse keeper counted the ships every evening, and on the night of the storm there was one more than "
              "there should have been. He climbed down to the rocks with a lantern"),
    ("facts", "Water boils at 100 degrees Celsius at sea level. On a mountain the air pressure is lower, so water boils at"),
    ("code-c", "#include <stdio.h>\n\nint main(int argc, char **argv)\n{\n    for (int i = 0; i < argc; i++)\n        "
               "printf(\"%d: %s\\n\", i, argv[i]);\n    return 0;\n}\n"),
    ("code-py", "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    a, b = 0, 1\n    for _ in range(n):\n"
                "        a, b = b, a + b\n    return a\n\nprint([fibonacci(i) for i in range(10)])\n"),
    ("numbers", "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144. 17 * 23 = 391; 3.14159265358979; 2024-02-29; 0xdeadbeef;"),
    ("json", "{\"name\": \"Ada\", \"born\": 1815, \"fields\": [\"mathematics\", \"computing\"], \"alive\": false, \"notes\": null}"),
    ("german", "Der Fluss trat im Frühling über die Ufer, und die Bauern brachten ihre Tiere auf den höher gelegenen Hof."),
    ("french", "Où est la bibliothèque ? Elle se trouve près de l'église, à côté du marché aux fleurs."),
    ("mixed", "Tokyo は東京, Москва is Moscow, 北京 is Beijing, and مرحبا means hello. 😀🎉 naïve café"),
    ("list", "Ingredients:\n- 2 eggs\n- 200 g flour\n- a pinch of salt\n\nSteps:\n1. Whisk the eggs.\n2. Fold in the flour.\n3."),
]

CHATS = [
    ("chat-capital", "What is the capital of France, and why is it famous?"),
    ("chat-sky", "Explain to a child why the sky is blue."),
]

LONG = """The canal had been dug in the last years of the old king, when wood was still the fuel of every kitchen and the barges
came down from the forests by the hundred. It ran for ninety miles between two rivers, and along it stood forty locks, each with a
house of yellow brick, a garden, and a bell. My grandmother was born in the house at the seventeenth lock. She used to say that she
could tell a barge by the sound of its rope, and that a full boat hummed lower than an empty one, the way a full jug does.

When the railway came, the barges grew fewer. First the coal went, then the grain, and at last only stone was left, because stone is
never in a hurry. The company that owned the water sold the lock houses one by one. Some became inns and some became nothing at all.
The bells were taken down and melted during the war, except for one, which a schoolmaster had buried under his apple trees. He told
nobody where it was. After his death the trees were cut, and the bell came up with the roots of the third, green as a frog and still
in tune.

I went back there in the summer of the drought. The water stood so low that you could see the wooden sills of the gates, black and
whole after two hundred years, since oak does not rot where air cannot reach it. A man from the university was measuring them with a
steel tape. He explained that the rings of the wood tell the year in which the tree was felled, that a wet year leaves a wide ring
and a dry year a narrow one, and that by laying one pattern over another you can count backwards much further than any book. The sill
of the seventeenth lock, he said, came from a tree that had begun to grow in the year 1412. I asked him how certain he was. He
laughed and answered that he was certain of the year, but not of the tree.

In the evening I sat on the gate and did the sum that everybody does in such a place. A lock chamber holds about four hundred cubic
metres. Forty locks, eight boats a day in each direction, three hundred days a year: that makes seventy-six million cubic metres of
water let down from the hills to the sea, every year, to carry wood that burned in a night. And yet nothing was lost by it, since the
water would have gone down anyway. It only went a little more slowly, and it stopped on the way to lift something.

There is a lesson in that, and my grandmother would have refused to draw it. She disliked lessons. She liked the names of boats, the
price of onions, and the exact order in which things had happened. When I read to her from the newspaper she would interrupt me to
ask what day it had been, and whether it had rained. I have her notebook here. On the first page she wrote, in pencil, the number of
boats for each day of the year 1931; on the last page, in ink, is the single sentence: the water is high today and nobody came."""

# Prompts of the greedy runs: 64 tokens each from truth.
GREEDY = ["prose", "facts", "code-py", "list", "chat-sky"]
