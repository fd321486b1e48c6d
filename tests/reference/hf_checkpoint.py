"""A tiny checkpoint of any layout and format as a transformers model in float32: weights decoded by refmodel.py, names, axes and
norms turned back to those of the published files. And the router's logits at every position of it.

  python hf_checkpoint.py routes DIR ...      writes DIR/routes.json beside DIR/truth.cbref, for the same sequences

routes.json: {"layers", "top_k", "experts", "ids": for each layer a string with top_k digits (base 36, ascending) a position,
"error": for each layer the largest error of a router logit in transformers' bf16 run, positions after a swap of its own left out,
"margin": for each layer, for each position: the k-th logit minus the next one, "bf16_swaps": [[layer, position], ...]}"""
import json
import os
import struct
import sys

import numpy as np
import torch

import refmodel as rm

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def read_tensors(path):
    raw = {}
    for f in sorted(os.listdir(path)):
        if f.endswith(".safetensors"):
            raw.update(rm.read_safetensors(os.path.join(path, f)))
    return raw


def decoded(path):
    """(config, {name: float64 array}) with quantised modules decoded under <module>.weight."""
    j = json.load(open(os.path.join(path, "config.json")))
    raw, q = read_tensors(path), j.get("quantization", {})
    default = {k: q[k] for k in ("bits", "group_size", "mode") if k in q}
    w = {}
    for name, x in raw.items():
        if name.endswith((".scales", ".biases")):
            continue
        mod = name[:-len(".weight")]
        if name.endswith(".weight") and mod + ".scales" in raw:
            s, b = raw[mod + ".scales"], raw.get(mod + ".biases")
            flat = lambda t: None if t is None else t.reshape(-1, t.shape[-1])
            o = q.get(mod, default)
            v = rm.dequantise(flat(x), flat(s), flat(b), default if o is True else o)
            w[name] = v.reshape(x.shape[:-1] + v.shape[-1:])
        else:
            w[name] = np.ascontiguousarray(x).astype(np.float64)
    return j, w


def published(j, w):
    """Names, axes and norms of transformers' text model."""
    qwen35 = "qwen3_5" in j["model_type"]
    mlx = any(n.endswith("conv1d.weight") and x.shape[-1] == 1 for n, x in w.items())
    out, stacks = {}, {}
    for n, x in w.items():
        for p in ("language_model.model.", "model.language_model."):
            if n.startswith(p):
                n = "model." + n[len(p):]
        n = n.removeprefix("language_model.") if n.startswith("language_model.lm_head") else n
        if qwen35 and mlx:
            if n.endswith("conv1d.weight"):
                x = x.transpose(0, 2, 1)
            elif x.ndim == 1 and n.endswith("norm.weight") and "linear_attn" not in n:
                x = x - 1
        for s in ("switch_mlp", "switch_glu"):
            if f".{s}." in n:
                head, tail = n.split(f".{s}.")
                head = head + ".experts" if s == "switch_mlp" else head
                stacks.setdefault(head, {})[tail.removesuffix(".weight")] = x
                n = None
                break
        if n:
            out[n] = x
    for head, s in stacks.items():
        out[head + ".gate_up_proj"] = np.concatenate([s["gate_proj"], s["up_proj"]], 1)
        out[head + ".down_proj"] = s["down_proj"]
    return out


def load(path, dtype=torch.float32):
    from transformers import AutoConfig, AutoModelForCausalLM
    j, w = decoded(path)
    c = dict(j.get("text_config", j))
    kind = c.pop("model_type")
    for k in ("quantization", "quantization_config", "torch_dtype", "dtype"):
        c.pop(k, None)
    conf = AutoConfig.for_model(kind, **c)
    conf._attn_implementation = "eager"
    if hasattr(conf, "_experts_implementation"):
        conf._experts_implementation = "eager"
    m = AutoModelForCausalLM.from_config(conf, dtype=torch.float32).eval()
    own, sd = m.state_dict(), {}
    for n, x in published(j, w).items():
        assert n in own and tuple(own[n].shape) == x.shape, (n, x.shape, own.get(n, torch.zeros(0)).shape)
        sd[n] = torch.from_numpy(np.ascontiguousarray(x)).float()
    missing = set(own) - set(sd)
    assert all(n == "lm_head.weight" for n in missing), missing
    m.load_state_dict(sd, strict=False)
    m.tie_weights()
    return m.to(dtype)


def logits(m, ids):
    with torch.no_grad():
        return m(torch.tensor([ids])).logits[0].double()


# ---- router ----------------------------------------------------------------------------------------------------------

def routers(m):
    """Modules whose output (or its first part) is the router's logits, in layer order."""
    names = [n for n, x in m.named_modules() if n.endswith("router.proj") or type(x).__name__ == "Qwen3_5MoeTopKRouter"]
    return [m.get_submodule(n) for n in sorted(names, key=lambda n: int(n.split("layers.")[1].split(".")[0]))]


def router_logits(m, ids):
    """[layers][positions][experts] float64."""
    got, hooks = [], []
    for r in routers(m):
        hooks.append(r.register_forward_hook(lambda mod, args, out: got.append((out[0] if isinstance(out, tuple) else out).double().reshape(len(ids), -1))))
    logits(m, ids)
    for h in hooks:
        h.remove()
    return torch.stack(got)


def cases(path):
    """Token lists of truth.cbref."""
    b = open(os.path.join(path, "truth.cbref"), "rb").read()
    n_json, _, n_cases, n_pos = struct.unpack_from("<4I", b, 8)
    at = 48 + n_json
    spans = [struct.unpack_from("<II", b, at + 8 * i) for i in range(n_cases)]
    tokens = np.frombuffer(b, "<i4", n_pos, at + 8 * n_cases)
    return [[int(t) for t in tokens[f:f + n]] for f, n in spans]


def top_ids(z, k):
    """Ids of the k largest, ascending; ties to the lower id. And the margin to the next."""
    order = sorted(range(len(z)), key=lambda e: (-z[e], e))
    return sorted(order[:k]), float(z[order[k - 1]] - z[order[k]]) if k < len(z) else float("inf")


def routes(path):
    m = load(path)
    half = load(path, torch.bfloat16)
    c = m.config
    k = getattr(c, "top_k_experts", None) or c.num_experts_per_tok
    layers = len(routers(m))
    ids, margins, error, swaps, first = [""] * layers, [[] for _ in range(layers)], [0.0] * layers, [], 0
    for tokens in cases(path):
        a, b = router_logits(m, tokens), router_logits(half, tokens)
        swapped = len(tokens) * [False]  # by an earlier layer, here or before
        for l in range(layers):
            now = list(swapped)
            for p in range(len(tokens)):
                best, margin = top_ids(a[l, p].tolist(), k)
                ids[l] += "".join(DIGITS[e] for e in best)
                margins[l].append(float(f"{margin:.3g}"))
                if not swapped[p]:
                    error[l] = max(error[l], float((a[l, p] - b[l, p]).abs().max()))
                if top_ids(b[l, p].tolist(), k)[0] != best:
                    swaps.append([l, first + p])
                    now[p:] = [True] * (len(tokens) - p)
            swapped = now
        first += len(tokens)
    out = {"layers": layers, "top_k": k, "experts": a.shape[-1], "error": [float(f"{e:.3g}") for e in error], "bf16_swaps": swaps, "ids": ids, "margin": margins}
    json.dump(out, open(os.path.join(path, "routes.json"), "w"), separators=(",", ":"))
    close = sorted((x, l, p) for l in range(layers) for p, x in enumerate(margins[l]) if x < error[l])
    print(f"{path}: {first} positions, {layers} layers, bf16's error {max(error):.2g}, its swaps {len(swaps)}, "
          f"margins below its error {len(close)}, smallest {min(min(x) for x in margins):.2g}", flush=True)


if __name__ == "__main__":
    assert sys.argv[1] == "routes"
    for p in sys.argv[2:]:
        routes(p)
