#!/usr/bin/env python3
"""Makes tests/data/sampler_cases.jsonl: what a sampler must keep, with which probabilities, and what it draws.

A straightforward double-precision reading of docs/sampling.md: sort, filter, renormalise, walk. Logits are multiples of
1/8, so ties are exact in any precision. Cases where a cut or a draw lies within 1e-5 of a boundary are made again, except
those built to lie exactly on one.    usage: sampler_ref.py > tests/data/sampler_cases.jsonl
"""
import json
import math
import random
import struct

ORDERS = {
    "hf": ["penalties", "temperature", "top_k", "top_p", "min_p"],
    "vllm": ["penalties", "temperature", "min_p", "top_k", "top_p"],
    "mlx": ["penalties", "top_p", "min_p", "top_k", "temperature"],
    "llamacpp": ["penalties", "top_k", "top_p", "min_p", "temperature"],
}
DEFAULT = dict(temp=1.0, top_k=0, top_p=1.0, min_p=0.0, rep=1.0, pres=0.0, freq=0.0, last_n=-2, profile="hf",
               order=None, seed=0, choice=0, bias=[])


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def philox(key, ctr):
    c0, c1, c2, c3 = ctr
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


class Close(Exception):
    pass


def window(p, history, n_prompt, output_only):
    n = p["last_n"]
    if n == -2:
        n = {"mlx": 20, "llamacpp": 64}.get(p["profile"], -1)
    ids = history[n_prompt:] if output_only else history
    if n >= 0:
        ids = ids[len(ids) - n:] if n and len(ids) > n else ids if n else []
    return ids


def penalties(z, p, history, n_prompt):
    own = p["profile"] in ("hf", "vllm")
    for i in set(window(p, history, n_prompt, False)):
        if i in z:
            z[i] = z[i] / p["rep"] if z[i] > 0 else z[i] * p["rep"]
    w = window(p, history, n_prompt, own)
    for i in set(w):
        if i in z:
            z[i] -= p["pres"] + p["freq"] * w.count(i)


def probs(z):
    m = max(z.values())
    e = {i: math.exp(v - m) for i, v in z.items()}
    s = sum(e.values())
    return {i: v / s for i, v in e.items()}


def same(a, b):  # penalties and temperature round in f32 on the other side
    return abs(a - b) < 1e-9


def ranked(z):
    return sorted(z, key=lambda i: (-round(z[i], 9), i))


def run(p, logits, history, n_prompt, exact=False):
    z = {i: v for i, v in enumerate(logits)}
    for i, b in p["bias"]:
        z[i] = -math.inf if b == -100 else z[i] + b
    z = {i: v for i, v in z.items() if v > -math.inf}
    order = p["order"] or ORDERS[p["profile"]]
    greedy = p["temp"] < 1e-5 and "temperature" in order
    if greedy:
        if "penalties" in order:
            penalties(z, p, history, n_prompt)
        r = ranked(z)
        if len(r) > 1 and 1e-9 < z[r[0]] - z[r[1]] < 1e-5:
            raise Close
        return [], [], r[0], 0.0
    for op in order:
        if op == "penalties":
            penalties(z, p, history, n_prompt)
        elif op == "temperature":
            z = {i: v / p["temp"] for i, v in z.items()}
        elif op == "top_k" and 0 < p["top_k"] < len(z):
            r = ranked(z)
            kth = z[r[p["top_k"] - 1]]
            if any(1e-9 < abs(v - kth) < 1e-5 for v in z.values()):
                raise Close
            if p["profile"] in ("hf", "vllm"):
                z = {i: v for i, v in z.items() if v > kth or same(v, kth)}
            else:
                z = {i: z[i] for i in r[: p["top_k"]]}
        elif op == "top_p" and p["top_p"] < 1:
            q, mass, kept = probs(z), 0.0, []
            for i in ranked(z):
                kept.append(i)
                mass += q[i]
                if not exact and abs(mass - p["top_p"]) < 1e-5:
                    raise Close
                if mass >= p["top_p"]:
                    break
            z = {i: z[i] for i in kept}
        elif op == "min_p" and p["min_p"] > 0:
            q = probs(z)
            m = max(q.values())
            if not exact and any(abs(v / m - p["min_p"]) < 1e-5 for v in q.values()):
                raise Close
            z = {i: v for i, v in z.items() if q[i] >= p["min_p"] * m}
    q = probs(z)
    r = philox(p["seed"], (len(history), p["choice"], 0, 0))
    u = ((r[1] << 32) | r[0]) / 2.0**64
    cum, pick = 0.0, None
    ids = sorted(q)
    for i in ids:
        cum += q[i]
        if abs(cum - u) < 1e-5:
            raise Close
        if pick is None and cum > u:
            pick = i
    return ids, [q[i] for i in ids], pick, math.log(q[pick])


def emit(p, logits, history, n_prompt, exact=False):
    ids, q, pick, lp = run(p, logits, history, n_prompt, exact)
    case = {k: v for k, v in p.items() if v != DEFAULT[k]}
    case.update(z=[int(v * 8) for v in logits], h=history, np=n_prompt, ids=ids, q=[float("%.7g" % x) for x in q],
                pick=pick, lp=float("%.7g" % lp))
    print(json.dumps(case, separators=(",", ":")))


def make(rng, **fix):
    while True:
        n = rng.choice([1, 2, 3, 5, 17, 64, 200])
        spread = rng.choice([2, 8, 40, 160])
        logits = [rng.randint(-spread, spread) / 8 for _ in range(n)]
        if rng.random() < 0.3:  # many ties
            logits = [rng.choice([-1.0, 0.5, 2.0]) for _ in range(n)]
        history = [rng.randrange(n) for _ in range(rng.choice([0, 1, 7, 30, 90]))]
        n_prompt = rng.randint(0, len(history))
        p = dict(DEFAULT)
        p["profile"] = rng.choice(list(ORDERS))
        p["seed"] = rng.getrandbits(63)
        p["choice"] = rng.choice([0, 0, 1, 5])
        maybe = lambda key, values, chance=0.5: p.__setitem__(key, f32(rng.choice(values))) if rng.random() < chance else None
        maybe("temp", [0.25, 0.5, 0.7, 1.5, 2.0], 0.6)
        maybe("top_p", [0.1, 0.5, 0.8, 0.9, 0.95, 0.999])
        maybe("min_p", [0.01, 0.05, 0.1, 0.5, 1.0], 0.3)
        maybe("rep", [1.05, 1.25, 2.0, 0.5], 0.3)
        maybe("pres", [0.5, 1.5, -1.0], 0.3)
        maybe("freq", [0.25, 1.0, -0.5], 0.3)
        if rng.random() < 0.5:
            p["top_k"] = rng.choice([1, 2, 4, 10, 50, 1000])
        if rng.random() < 0.3:
            p["last_n"] = rng.choice([-1, 0, 1, 5, 40])
        if rng.random() < 0.2:
            p["bias"] = [[rng.randrange(n), rng.choice([-100, 100, 1.5, -3])] for _ in range(rng.randint(1, 3))]
            if len({i for i, b in p["bias"] if b == -100}) == n:
                continue
        if rng.random() < 0.2:
            ops = list(ORDERS["hf"])
            rng.shuffle(ops)
            p["order"] = ops[: rng.randint(1, 5)]
        p.update(fix)
        try:
            return emit(p, logits, history, n_prompt)
        except Close:
            continue


def main():
    rng = random.Random(20240611)
    d = DEFAULT
    # built by hand: exact boundaries and ties
    for prof in ORDERS:
        emit({**d, "profile": prof, "top_p": 0.5, "seed": 7}, [1.0, 1.0], [], 0, exact=True)      # one of two equals
        emit({**d, "profile": prof, "top_p": 0.75, "seed": 7}, [0.0] * 4, [], 0, exact=True)      # three of four
        emit({**d, "profile": prof, "top_p": 0.0, "seed": 9}, [0.0, 2.0, 2.0], [], 0, exact=True)  # only the best
        emit({**d, "profile": prof, "top_k": 2, "seed": 3}, [1.0, 3.0, 1.0, 1.0], [], 0)          # ties at the k-th
        emit({**d, "profile": prof, "min_p": 1.0, "seed": 3}, [1.0, 3.0, 3.0], [], 0, exact=True)  # the maximum stays
        emit({**d, "profile": prof, "temp": 0.0}, [1.0, 3.0, 3.0], [], 0)                          # greedy, lowest id
        emit({**d, "profile": prof, "temp": 0.0, "rep": 2.0}, [1.0, 3.0, 2.0], [1], 1)             # penalised greedy
        emit({**d, "profile": prof, "top_k": 1, "top_p": 0.5, "seed": 1}, [0.0] * 5, [], 0, exact=True)
    for prof in ORDERS:
        for _ in range(60):
            make(rng, profile=prof)
    for _ in range(20):
        make(rng, temp=0.0)


main()
