"""Makes tests/parity/NAME.cbref: what truth says about some thousand teacher-forced positions of a real model.

  python make_parity.py MODEL.gguf OUT.cbref [--mlx DIR] [--full FILE] [--rows N]

Truth is a float64 evaluation of the GGUF file's dequantised weights (refmodel.py). The file also holds, as columns to
compare with, what other stacks score on the same positions:
  transformers_f32    an independent check of truth itself
  transformers_bf16   the same model with weights and activations in bf16: the reference stack
  bf16_exact_weights  bf16 activations between operations, exact weights, wide sums: the best a bf16 stack can do
  mlx_lm_f32          mlx-lm on the CPU over the checkpoint imported to --mlx, every float in f32: checks the import too
--full writes every truth row as f32 [positions][vocabulary] (hundreds of MB; not committed). Needs 8 to 16 GB of memory."""
import argparse
import hashlib
import os
import time

import numpy as np
import torch

import prompts
import refdata
import refmodel as rm

CHUNK = 64
SMOL = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


def chat(family, text):
    if family == "llama":
        return f"{SMOL}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return f"<start_of_turn>user\n{text}<end_of_turn>\n<start_of_turn>model\n"


def cases_of(tok, family):
    out = [(n, tok.encode(t)) for n, t in prompts.TEXTS]
    out += [(n, tok.encode(chat(family, t))) for n, t in prompts.CHATS]
    special = 1 if family == "llama" else 105
    assert all(special in ids for _, ids in out[-len(prompts.CHATS):])
    return out + [("long", tok.encode(prompts.LONG))]


def chunked(cfg, w, ids, arith):
    st = rm.State(cfg)
    for i in range(0, len(ids), CHUNK):
        yield rm.forward(cfg, w, ids[i:i + CHUNK], arith, st)


def split(x):
    for i in range(0, len(x), CHUNK):
        yield x[i:i + CHUNK].double()


def mlx_rows(path):
    """A function ids -> logits [T][V] f32."""
    from pathlib import Path

    import mlx.core as mx
    import mlx_lm.utils
    mx.set_default_device(mx.cpu)
    model = mlx_lm.utils.load_model(Path(path))[0]
    model.set_dtype(mx.float32)
    model = mlx_lm.utils.dequantize_model(model) # mlx's decoding, then its f32 matmul: the quantised one is very slow here

    def run(ids):
        return torch.from_numpy(np.array(model(mx.array([ids]))[0].astype(mx.float32)))
    return run


def main():
    p = argparse.ArgumentParser()
    p.add_argument("gguf")
    p.add_argument("out")
    p.add_argument("--mlx")
    p.add_argument("--mlx-max", type=int, default=10000, help="longest case that mlx runs, too: it is slow on a CPU")
    p.add_argument("--full")
    p.add_argument("--rows", type=int, default=4, help="full rows to keep in the file")
    p.add_argument("--tokens", type=int, default=64, help="length of the greedy runs")
    a = p.parse_args()
    from transformers import AutoTokenizer

    from make_tiny import hf_model, hf_propose
    t0 = time.time()
    say = lambda *x: print(f"{time.time() - t0:6.0f} s ", *x, flush=True)
    tok = AutoTokenizer.from_pretrained(os.path.dirname(a.gguf), gguf_file=os.path.basename(a.gguf))
    cfg, w, _ = rm.load_gguf(a.gguf)
    cases = cases_of(tok, cfg.family)
    n_pos = sum(len(ids) for _, ids in cases)
    say(f"{len(cases)} cases, {n_pos} positions")
    keep = [int(n_pos * (2 * i + 1) / (2 * a.rows)) if a.rows > 1 else n_pos - 20 for i in range(a.rows)]
    ref = refdata.Writer(cfg.vocab, 64, 64, 1, full_pos=keep)
    hf = hf_model(None, cfg, w)
    mlx = mlx_rows(a.mlx) if a.mlx else None
    score = {k: rm.Score() for k in ("transformers_f32", "bf16_exact_weights", "transformers_bf16") + (("mlx_lm_f32",) if mlx else ())}
    full = open(a.full, "wb") if a.full else None
    hf16 = hf_model(None, cfg, w).to(torch.bfloat16)
    for name, ids in cases:
        t1 = time.time()
        with torch.no_grad():
            rows = {"transformers_f32": split(hf(torch.tensor([ids])).logits[0]),
                    "transformers_bf16": split(hf16(torch.tensor([ids])).logits[0]),
                    "bf16_exact_weights": chunked(cfg, w, ids, rm.Bf16(cfg, w))}
        t2 = time.time()
        if mlx and len(ids) <= a.mlx_max:
            rows["mlx_lm_f32"] = split(mlx(ids))
        t3, at = time.time(), 0
        for truth in chunked(cfg, w, ids, rm.Exact(cfg, w)):
            ref.add(name, ids[at:at + len(truth)], truth)
            at += len(truth)
            if full:
                full.write(truth.numpy().astype("<f4").tobytes())
            for k in rows:
                score[k].add(truth, next(rows[k]))
        say(name, len(ids), f'{t2 - t1:.1f} {t3 - t2:.1f} {time.time() - t3:.1f} s', {k: f"{v.result()['kl_mean']:.1e} {v.result()['dmax']:.1e}" for k, v in score.items() if v.d})
    del hf16
    col = {k: v.result() for k, v in score.items()}
    for k, c in col.items():
        say(k, c)
        assert not k.endswith("f32") or (c["dmax"] < 5e-3 and c["kl_mean"] < 1e-7), "truth is doubtful"
    propose = hf_propose(hf)
    for name in prompts.GREEDY:
        tokens, margins = refdata.greedy(cfg, w, dict(cases)[name], a.tokens, propose)
        ref.add_greedy(name, tokens, margins)
        say("greedy", name, f"least margin {min(margins):.4f}", repr(tok.decode(tokens)))
    sha = hashlib.sha256(open(a.gguf, "rb").read()).hexdigest()
    ref.save(a.out, dict(model=os.path.basename(a.gguf), sha256=sha, truth="float64 over dequantised weights", **col))
    say(f"{a.out}: {os.path.getsize(a.out)} bytes")


if __name__ == "__main__":
    main()
