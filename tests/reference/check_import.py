#!/usr/bin/env python3
"""Opens an imported checkpoint with the reference tools and compares it with the GGUF file it came from.

  weights    every tensor, dequantised by MLX in float32, equals what transformers makes of the GGUF file, to the bit
  mlx-lm     loads the directory (strictly) and generates from it
  logits     mlx-lm's, against transformers' float32 forward pass of the GGUF file
  config     transformers builds its model from config.json and the dequantised weights, with the same logits
  tokenizer  transformers opens it; text survives encoding and decoding; the chat template renders

needs: pip install 'mlx[cpu]' mlx-lm transformers torch accelerate gguf
usage: tests/reference/check_import.py FILE.gguf DIR
"""
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
import transformers
from mlx_lm import generate, load

TEXT = "The three largest rivers of Europe are the Volga, the Danube and the"


def dequantised(path, config):
    """name -> float32 array of every module of model.safetensors."""
    tensors, out = mx.load(str(path / "model.safetensors")), {}
    defaults = config.get("quantization", {})
    for name, t in tensors.items():
        if name.endswith((".scales", ".biases")):
            continue
        module = name.removesuffix(".weight")
        if module + ".scales" in tensors:
            q = defaults.get(module, defaults)
            f32 = [tensors[module + k].astype(mx.float32) for k in (".scales", ".biases")]
            t = mx.dequantize(t, *f32, group_size=q["group_size"], bits=q["bits"])
        out[name] = np.array(t.astype(mx.float32))
    return out


def compare(name, a, b, top):
    worst = float(np.abs(a - b).max())
    same = bool((a.argmax(-1) == b.argmax(-1)).all())
    print(f"{name}: {a.shape[0]} positions, max |difference| {worst:.3g}, top token {'equal' if same else 'DIFFERENT'}")
    return same and worst < top


def main():
    file, path = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((path / "config.json").read_text())
    ok = True

    theirs = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    ours, n = dequantised(path, config), 0
    state = {k: v.numpy() for k, v in theirs.state_dict().items()}
    if config["tie_word_embeddings"]:
        state.pop("lm_head.weight", None)
    if set(ours) != set(state):
        print("names differ:", sorted(set(ours) ^ set(state))[:6])
        ok = False
    for name in sorted(set(ours) & set(state)):
        same = ours[name].shape == state[name].shape and ((ours[name] + 0.0).view(np.uint32) == (state[name] + 0.0).view(np.uint32)).all()
        n += same
        if not same:
            print(f"{name}: values differ")
            ok = False
    print(f"weights: {n} of {len(state)} tensors equal to the bit")

    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    ids = tokenizer.encode(TEXT)
    back = tokenizer.decode(ids, skip_special_tokens=True)
    print(f"tokenizer: {type(tokenizer).__name__}, {len(ids)} ids {ids[:8]}..., {'text survives' if back == TEXT else 'TEXT CHANGED: ' + back}")
    ok &= back == TEXT
    if (path / "chat_template.jinja").exists():
        print("template:", repr(tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)))

    with torch.no_grad():
        want = theirs(torch.tensor([ids])).logits[0].numpy()
    model, mlx_tokenizer = load(str(path))
    got = np.array(model(mx.array([ids]))[0].astype(mx.float32))
    ok &= compare("mlx-lm against transformers on the GGUF file", got, want, 0.05)

    hf = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(path), dtype=torch.float32)
    missing = hf.load_state_dict({k: torch.from_numpy(v) for k, v in ours.items()}, strict=False)
    hf.tie_weights()
    hf.eval()
    if missing.unexpected_keys or set(missing.missing_keys) - {"lm_head.weight"}:
        print("transformers:", missing)
        ok = False
    with torch.no_grad():
        mine = hf(torch.tensor([ids])).logits[0].numpy()
    ok &= compare("transformers on config.json against the GGUF file", mine, want, 1e-3)

    print("mlx-lm says:", repr(generate(model, mlx_tokenizer, prompt=ids, max_tokens=12)))
    print("ok" if ok else "FAILED")
    sys.exit(not ok)


main()
