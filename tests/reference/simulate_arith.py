"""Predicts what the defined arithmetic (docs/arithmetic.md) costs in accuracy, part by part, with tensors.

Integers, scales and the fixed-point steps are those of src/kernels/*_c.c; only the order of short float sums is left out
(relative 1e-7). Each part can be switched on alone, so the table shows which one dominates.

  python simulate_arith.py MODEL.gguf|DIR [--tokens N]"""
import argparse
import math
import os
import time

import torch

import refmodel as rm

XI = 32512.0    # largest fixed-point number
PW = 65024.0    # largest attention weight
KV_PART = 64    # dims of a head that share a scale of q and K
PARTS = ("act", "q", "k", "v", "p", "w", "f32")


def fixed(x, xi_max=XI):
    """16-bit fixed point over the last axis; m, inv and dx in f32 as the kernels have them."""
    x = x.float()
    m = x.abs().amax(-1, keepdim=True)
    zero = m < 2.0 ** -100
    inv = torch.where(zero, torch.zeros_like(m), torch.tensor(xi_max) / m)
    xi = torch.clamp(torch.round(x * inv), -xi_max, xi_max)
    dx = torch.where(zero, torch.zeros_like(m), m * torch.tensor(1.0 / xi_max, dtype=torch.float32))
    return xi.double() * dx.double()


def fixed_groups(x, g):
    n = x.shape[-1]
    pad = -n % g
    y = torch.nn.functional.pad(x, (0, pad)).reshape(*x.shape[:-1], (n + pad) // g, g)
    return fixed(y).reshape(*x.shape[:-1], n + pad)[..., :n]


def rotate(x, most):
    """Hadamard in blocks of the largest power of two that divides the last axis and is at most `most`; f32 as the kernels."""
    b, n = 1, x.shape[-1]
    while b < most and n % (2 * b) == 0:
        b *= 2
    y, s = x.float(), 1
    while s < b:
        p = y.reshape(*x.shape[:-1], n // (2 * s), 2, s)
        y = torch.stack([p[..., 0, :] + p[..., 1, :], p[..., 0, :] - p[..., 1, :]], -2).reshape(x.shape)
        s *= 2
    return (y * (1 / math.sqrt(b))).double()


def needs_remainder(x, share):
    """Rows [T] of which one number holds more than `share` of the energy."""
    return x.abs().amax(-1) ** 2 > share * (x * x).sum(-1)


class Cambium(rm.Exact):
    """parts: which of PARTS are on. group(name) gives a weight's group; planes: names encoded as 16-bit float weights.
    flagged counts rows with a remainder and all rows, by kind of layer."""

    def __init__(self, cfg, w, parts, group, planes):
        super().__init__(cfg, w)
        self.parts, self.group, self.planes, self.cache, self.flagged = set(parts), group, planes, {}, {}

    def share(self, name):
        return 0 if self.cfg.family == "gemma3" and self.cfg.hidden < 1024 and "layers" in name else 0.7

    def r(self, x):
        return x.float().double() if "f32" in self.parts else x

    def weight(self, name):
        if "w" in self.parts and name in self.planes:
            if name not in self.cache:
                self.cache[name] = fixed_groups(self.w[name], 64)
            return self.cache[name]
        return self.w[name]

    def linear(self, name, x):
        if "act" in self.parts:
            more, y = needs_remainder(x, self.share(name)), fixed_groups(x, self.group(name))
            x = torch.where(more[:, None], y + fixed_groups(x - y, self.group(name)), y)
            c = self.flagged.setdefault(name.split(".")[-2], [0, 0])
            c[0], c[1] = c[0] + int(more.sum()), c[1] + len(more)
        return x @ self.weight(name).T

    def attention(self, q, k, v, mask):
        q, k = rotate(q, KV_PART), rotate(k, KV_PART)
        return rotate(self.rotated(q, k, rotate(v, 512), mask), 512)

    def rotated(self, q, k, v, mask):
        if "q" in self.parts:
            q = fixed_groups(q, KV_PART)
        if "k" in self.parts:
            k = fixed_groups(k, KV_PART)
        vs = None
        if "v" in self.parts:
            m = v.abs().amax(-1, keepdim=True).float()
            vs = (m * (1.0 / XI)).double()
            v = fixed(v)
        s = ((q @ k.transpose(1, 2)) * self.cfg.attn_scale).masked_fill(~mask, -math.inf)
        if "p" not in self.parts:
            return torch.softmax(s, -1) @ v
        # per block of 64 keys: own maximum, exp, p*dv unsigned, exact product; then the merge
        if vs is None:
            vs = torch.ones_like(v[..., :1])
        H, T, S = s.shape
        M = torch.full((H, T, 1), -math.inf, dtype=torch.float64)
        L = torch.zeros(H, T, 1, dtype=torch.float64)
        O = torch.zeros(H, T, v.shape[-1], dtype=torch.float64)
        for b in range(0, S, 64):
            sb, vb, ds = s[..., b:b + 64], v[:, b:b + 64], vs[:, b:b + 64]
            m = sb.amax(-1, keepdim=True)
            seen = m > -math.inf
            p = torch.exp(torch.where(seen, sb - m, torch.full_like(sb, -math.inf)))
            wq = fixed(p * ds.transpose(1, 2), PW)
            o = wq @ (vb / torch.where(ds > 0, ds, torch.ones_like(ds)))
            new = torch.maximum(M, m)
            a = torch.where(M > -math.inf, torch.exp(M - new), torch.zeros_like(M))
            c = torch.where(seen, torch.exp(m - new), torch.zeros_like(m))
            L, O, M = L * a + p.sum(-1, keepdim=True) * c, O * a + o * c, new
        return O / L


def formats_gguf(types):
    """What the importer makes of each type: 32-wide blocks stay integers, Q6_K and floats become planes."""
    planes = {n for n, t in types.items() if t in ("Q6_K", "F32", "F16", "BF16")}
    return (lambda n: 64 if n in planes else 32), planes


def formats_mlx(formats):
    planes = {n for n, t in formats.items() if "g" not in t}
    return (lambda n: 64 if n in planes else int(formats[n].split("g")[-1])), planes


def load(path):
    if os.path.isdir(path):
        cfg, w, t = rm.load_mlx(path)
        return (cfg, w) + formats_mlx(t) + (t,)
    cfg, w, t = rm.load_gguf(path)
    return (cfg, w) + formats_gguf(t) + (t,)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("--ids", help="file of token ids; otherwise pseudo-random ones")
    a.add_argument("--tokens", type=int, default=256)
    a.add_argument("--only", help="one row of the table: all, act, q, k, v, p, w, f32")
    a = a.parse_args()
    cfg, w, group, planes, types = load(a.model)
    kinds = {}
    for n, t in types.items():
        kinds.setdefault(t, []).append(n)
    for t, n in kinds.items():
        print(t, len(n), n[:3])
    if a.ids:
        ids = [int(x) for x in open(a.ids).read().split()][:a.tokens]
    else:
        g = torch.Generator().manual_seed(1)
        ids = torch.randint(0, cfg.vocab, (a.tokens,), generator=g).tolist()
    t0 = time.time()
    truth = rm.forward(cfg, w, ids, rm.Exact(cfg, w))
    print(f"truth: {time.time() - t0:.1f} s, {len(ids)} positions, max |logit| {truth.abs().max():.2f}")
    rows = [("f32 only", ("f32",))] + [(p + " only", (p,)) for p in PARTS[:-1]] + [("all", PARTS)]
    print(f"{'part':10} {'mean KL':>10} {'max KL':>10} {'max|d|':>9} {'mean max|d|':>11} {'top-1':>10} {'flip margin':>11}")
    for name, parts in rows:
        if a.only and name.split()[0] != a.only:
            continue
        sim = Cambium(cfg, w, parts, group, planes)
        print_row(name, rm.compare(truth, rm.forward(cfg, w, ids, sim)))
        if name == "all":
            print("rows with a remainder:", ", ".join(f"{k} {a} of {n}" for k, (a, n) in sim.flagged.items()))
    if not a.only:
        print_row("bf16", rm.compare(truth, rm.forward(cfg, w, ids, rm.Bf16(cfg, w))))


def print_row(name, c):
    print(f"{name:10} {c['kl_mean']:10.2e} {c['kl_max']:10.2e} {c['dmax']:9.2e} {c['dmax_mean']:11.2e} "
          f"{c['top1']:5}/{c['positions']} {c['flip_margin_max']:11.4f}", flush=True)


if __name__ == "__main__":
    main()
