"""make_ladder.py MODEL_DIR OUT.ladder [TEXT]: rungs of a forward pass in float64 for `cambium parity layers`: embedding, attention,
the stream after attention and after each layer, final norm, logits. For each rung and position the root mean square and the
first 8 values; and how far bf16 between operations (exact weights, wide sums) is off there, which is the gate."""
import json
import sys

import tokenizers
import torch

import refmodel

VALUES, POSITIONS = 8, 6
TEXT = "The quick brown fox jumps over the lazy dog"


def distance(truth, got):
    """As parity_layers.c: the largest of |rms ratio - 1| and |value difference| / rms over positions and stored values."""
    a, b = truth.pow(2).mean(-1).sqrt(), got.pow(2).mean(-1).sqrt()
    d = ((got - truth)[:, :VALUES].abs().max(-1).values / a).max()
    return max(float(d), float((b / a - 1).abs().max()))


def main():
    path, out = sys.argv[1:3]
    text = sys.argv[3] if len(sys.argv) > 3 else TEXT
    tok = tokenizers.Tokenizer.from_file(path + "/tokenizer.json")
    ids = tok.encode(text).ids[:POSITIONS]
    cfg, w, _ = refmodel.load_mlx(path)
    truth, bf16 = [], []
    with torch.no_grad():
        refmodel.forward(cfg, w, ids, refmodel.Exact(cfg, w), ladder=truth)
        refmodel.forward(cfg, w, ids, refmodel.Bf16(cfg, w), ladder=bf16)
    stages = []
    for (kind, name, t), (_, _, b) in zip(truth, bf16):
        stages.append({"kind": kind, "name": name, "bf16": float(f"{distance(t, b):.3g}"),
                       "rms": [float(f"{v:.9g}") for v in t.pow(2).mean(-1).sqrt().tolist()],
                       "first": [[float(f"{v:.9g}") for v in row[:VALUES]] for row in t.tolist()]})
    best = truth[-1][2].argmax(-1).tolist()
    with open(out, "w") as f:
        head = json.dumps({"text": text, "tokens": ids, "values": VALUES, "best": best})
        f.write(head[:-1] + ', "stages": [\n' + ",\n".join(json.dumps(s, separators=(",", ":")) for s in stages) + "\n]}\n")


if __name__ == "__main__":
    main()
