"""Qwen 3.5 (dense) in float64, token by token: a plain reading of the network's description for thousands of recurrent steps,
where chunked float32 code is no truth.

  python qwen35_f64.py DIR [TOKENS]      writes DIR/long.cbref: TOKENS (2304) ids of one sequence

Checked against transformers in float32 on the first 200 positions; the bf16 column is transformers in bf16."""
import math
import os
import sys

import numpy as np
import torch

import hf_checkpoint
import make_tiny_families as fam
import prompts
import refdata


def rms(x, w, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w


def rope(x, pos, theta, turned):
    """x [T][heads][dim]; the first `turned` dims of a head in half-split pairs."""
    f = theta ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    a = pos.double()[:, None, None] * f
    lo, hi = x[..., :turned // 2], x[..., turned // 2:turned]
    return torch.cat([lo * a.cos() - hi * a.sin(), hi * a.cos() + lo * a.sin(), x[..., turned:]], -1)


def attention(c, w, p, x):
    T, D, nq, nkv = len(x), c.head_dim, c.num_attention_heads, c.num_key_value_heads
    r = c.rope_parameters
    qg = (x @ w[p + "q_proj.weight"].T).reshape(T, nq, 2 * D)
    q, gate = qg[..., :D], qg[..., D:].reshape(T, nq * D)
    k, v = (x @ w[p + "k_proj.weight"].T).reshape(T, nkv, D), (x @ w[p + "v_proj.weight"].T).reshape(T, nkv, D)
    pos, turned = torch.arange(T), int(D * r["partial_rotary_factor"])
    q = rope(rms(q, 1 + w[p + "q_norm.weight"], c.rms_norm_eps), pos, r["rope_theta"], turned)
    k = rope(rms(k, 1 + w[p + "k_norm.weight"], c.rms_norm_eps), pos, r["rope_theta"], turned)
    k, v = k.repeat_interleave(nq // nkv, 1), v.repeat_interleave(nq // nkv, 1)
    s = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(D)
    s = s.masked_fill(pos[None, :] > pos[:, None], -math.inf)
    o = torch.einsum("hqk,khd->qhd", torch.softmax(s, -1), v).reshape(T, nq * D)
    return (o * torch.sigmoid(gate)) @ w[p + "o_proj.weight"].T


def delta_net(c, w, p, x):
    T, hk, hv, dk, dv = len(x), c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    lin = lambda n: x @ w[p + n + ".weight"].T
    taps = w[p + "conv1d.weight"][:, 0]  # [channels][taps]
    u = torch.cat([torch.zeros(taps.shape[1] - 1, taps.shape[0], dtype=torch.float64), lin("in_proj_qkv")])
    u = torch.nn.functional.silu(sum(u[j:j + T] * taps[:, j] for j in range(taps.shape[1])))
    q, k, v = u[:, :hk * dk].reshape(T, hk, dk), u[:, hk * dk:2 * hk * dk].reshape(T, hk, dk), u[:, 2 * hk * dk:].reshape(T, hv, dv)
    unit = lambda y: y / torch.sqrt((y * y).sum(-1, keepdim=True) + 1e-6)
    q, k = (unit(y).repeat_interleave(hv // hk, 1) for y in (q, k))
    q = q / math.sqrt(dk)
    beta = torch.sigmoid(lin("in_proj_b"))
    decay = torch.exp(-torch.exp(w[p + "A_log"]) * torch.nn.functional.softplus(lin("in_proj_a") + w[p + "dt_bias"]))
    S, o = torch.zeros(hv, dv, dk, dtype=torch.float64), torch.empty(T, hv, dv, dtype=torch.float64)
    for t in range(T):
        S = S * decay[t][:, None, None]
        delta = beta[t][:, None] * (v[t] - torch.einsum("hij,hj->hi", S, k[t]))
        S = S + delta[:, :, None] * k[t][:, None, :]
        o[t] = torch.einsum("hij,hj->hi", S, q[t])
    z = lin("in_proj_z").reshape(T, hv, dv)
    y = rms(o, w[p + "norm.weight"], c.rms_norm_eps) * torch.nn.functional.silu(z)
    return y.reshape(T, hv * dv) @ w[p + "out_proj.weight"].T


def forward(c, w, ids):
    x = w["model.embed_tokens.weight"][torch.tensor(ids)]
    for l, kind in enumerate(c.layer_types):
        p = f"model.layers.{l}."
        h = rms(x, 1 + w[p + "input_layernorm.weight"], c.rms_norm_eps)
        x = x + (attention(c, w, p + "self_attn.", h) if kind == "full_attention" else delta_net(c, w, p + "linear_attn.", h))
        h = rms(x, 1 + w[p + "post_attention_layernorm.weight"], c.rms_norm_eps)
        m = torch.nn.functional.silu(h @ w[p + "mlp.gate_proj.weight"].T) * (h @ w[p + "mlp.up_proj.weight"].T)
        x = x + m @ w[p + "mlp.down_proj.weight"].T
    x = rms(x, 1 + w["model.norm.weight"], c.rms_norm_eps)
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def main():
    path, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2304
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    rng = np.random.default_rng(23)
    ids = t.encode(prompts.LONG).ids
    while len(ids) < n:  # text, then pieces of random ids and of the text again
        ids += [int(x) for x in rng.integers(3, fam.VOCAB, 40)] + ids[:int(rng.integers(20, 200))]
    ids = ids[:n]
    m, half = hf_checkpoint.load(path), hf_checkpoint.load(path, torch.bfloat16)
    w = {k: x.double() for k, x in hf_checkpoint.load(path).state_dict().items()}
    truth = forward(m.config, w, ids)
    single, low = hf_checkpoint.logits(m, ids), hf_checkpoint.logits(half, ids)
    print(f"{path}: transformers float32 against float64: max|d| {float((truth - single)[:200].abs().max()):.1e} in 200 positions, {float((truth - single).abs().max()):.1e} in {n}")
    assert float((truth - single)[:200].abs().max()) < 2e-3
    kl, d = fam.kl_and_d(truth, low)
    ref = refdata.Writer(truth.shape[1], 4, 2, 2, full_every=n // 8)
    ref.add("long", ids, truth)
    tokens, margins, seq = [], [], list(ids)
    for _ in range(4):
        v, i = forward(m.config, w, seq)[-1].topk(2)
        tokens.append(int(i[0]))
        margins.append(float(v[0] - v[1]))
        seq.append(tokens[-1])
    ref.add_greedy("long", tokens, margins)
    ref.save(os.path.join(path, "long.cbref"), {"model": os.path.basename(path), "truth": "float64, token by token (qwen35_f64.py)",
             "bf16_exact_weights": {"kl_mean": kl, "dmax": d, "top1": float((truth.argmax(-1) == low.argmax(-1)).double().mean())}})
    print(f"{path}: {n} positions, bf16 stack KL {kl:.1e} max|d| {d:.1e}")


if __name__ == "__main__":
    main()
