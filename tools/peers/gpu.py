#!/usr/bin/env python3
"""Speed of Cambium beside transformers on one GPU: the same shapes, the same token ids, one run.

  python tools/peers/gpu.py DIR [DIR ...] [--device cuda] [--prompt 8192] [--depth 512] [--batch 1] [--gen 64]
                            [--repeats 3] [--rounds 1] [--cambium build/release/cambium] [--prefill-chunk N] [--json OUT.json]

Needs torch and transformers; downloads nothing. Each DIR is a checkpoint that Cambium runs, for example one of
tools/synth.c (qwen3.5-35b-a3b, bonsai2-9b, gemma4-26b-a4b, smollm2-135m). transformers gets a model of the same shape,
made from DIR's config.json, with random weights in bfloat16 (a Bonsai 2 pack becomes the Qwen 3.5 it was made from). So
the two do not hold the same number of bytes: what is compared is each engine with the weights that it serves.

Method. Per round, each engine in a process of its own, one after the other; who goes first alternates.
  prefill  a prompt of --prompt tokens, the best id of the last row comes to the host
  decode   --batch sequences, each after --depth common tokens and 4 of its own; two steps that do not count, then --gen
           greedy steps, the best ids of each come to the host
Cambium is `cambium bench --json`; the other side does the same in Python: eager mode, the attention and expert
implementations that transformers chooses by itself (they are printed, with whether the flash-linear-attention kernels were
there). Printed: median, lowest and highest tokens per second, and the ratio of medians."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TAIL, WARMUP = 4, 2  # as src/cli/bench.h
MASK = (1 << 64) - 1


def token(stream, i, n_vocab):
    """The ids of src/cli/bench_run.c."""
    x = ((stream << 32 | i) + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return (x ^ x >> 31) % n_vocab


# ---- transformers ----------------------------------------------------------------------------------------------------

def peer_config(path):
    """The text part of a checkpoint's config, as transformers has it."""
    from transformers import AutoConfig
    whole = json.load(open(os.path.join(path, "config.json")))
    c = dict(whole.get("text_config") or whole)
    for key in ("quantization", "quantization_config", "torch_dtype", "dtype"):
        c.pop(key, None)
    kind = c.pop("model_type", whole["model_type"])
    c.setdefault("tie_word_embeddings", whole.get("tie_word_embeddings", True))
    if "full_attention_interval" in c and "layer_types" not in c:
        n = c["full_attention_interval"]
        c["layer_types"] = ["linear_attention" if (i + 1) % n else "full_attention" for i in range(c["num_hidden_layers"])]
    return AutoConfig.for_model(kind, **c)


class Peer:
    def __init__(self, a, path):
        import torch
        import transformers
        self.torch, self.device = torch, a.device
        cfg = peer_config(path)
        torch.manual_seed(1)
        t0 = time.perf_counter()
        with torch.device(a.device):
            self.model = transformers.AutoModelForCausalLM.from_config(cfg, dtype=torch.bfloat16).eval()
        self.n_vocab = cfg.vocab_size
        params = list(self.model.parameters())
        conf = self.model.config
        self.about = {
            "transformers": transformers.__version__, "torch": torch.__version__, "class": type(self.model).__name__,
            "attention": getattr(conf, "_attn_implementation", None), "experts": getattr(conf, "_experts_implementation", None) if has_experts(conf) else "none",
            "fla": has("fla"), "causal_conv1d": has("causal_conv1d"), "parameters": sum(p.numel() for p in params),
            "weight_bytes": sum(p.numel() * p.element_size() for p in params), "build_s": time.perf_counter() - t0,
            "device": torch.cuda.get_device_name() if a.device.startswith("cuda") else "cpu"}

    def ids(self, batch, common, tail=0):
        head = [token(0, i, self.n_vocab) for i in range(common)]
        rows = [head + [token(1 + s, i, self.n_vocab) for i in range(tail)] for s in range(batch)]
        return self.torch.tensor(rows, device=self.device)

    def step(self, ids, cache=None):
        """Best ids on the host, and the cache."""
        out = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        best = out.logits[:, -1].argmax(-1)
        best.tolist()
        return best, out.past_key_values

    def prefill(self, n):
        ids = self.ids(1, n)
        t = time.perf_counter()
        self.step(ids)
        return n / (time.perf_counter() - t)

    def decode(self, batch, depth, gen):
        best, cache = self.step(self.ids(batch, depth, TAIL))
        for i in range(WARMUP + gen):
            if i == WARMUP:
                t = time.perf_counter()
            best, cache = self.step(best[:, None], cache)
        return batch * gen / (time.perf_counter() - t)


def has_experts(conf):
    return bool(getattr(conf, "num_experts", None) or getattr(conf, "num_local_experts", None))


def has(module):
    import importlib.util
    return importlib.util.find_spec(module) is not None


def run_peer(a):
    """The worker: measures DIR and writes JSON to a.json."""
    import torch
    p = Peer(a, a.dirs[0])
    out = {"about": p.about, "prefill": [], "decode": {}}
    with torch.inference_mode():
        p.prefill(min(a.prompt, 512)), p.prefill(a.prompt)  # not counted
        out["prefill"] = [p.prefill(a.prompt) for _ in range(a.repeats)]
        for b in a.batch:
            out["decode"][b] = [p.decode(b, a.depth, a.gen) for _ in range(a.repeats + 1)][1:]
    if a.device.startswith("cuda"):
        out["about"]["peak_bytes"] = torch.cuda.max_memory_allocated()
    json.dump(out, open(a.json, "w"))


# ---- both ------------------------------------------------------------------------------------------------------------

def run(argv, out):
    """Runs argv, which writes JSON to out. When it fails, the end of what it says on stderr is the reason."""
    r = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        lines = [x for x in r.stderr.strip().splitlines() if x.strip()] or [f"exit {r.returncode}"]
        return {"failed": lines[-1][:300], "exit": r.returncode}
    return json.load(open(out))


def measure(a, kind, path):
    out = os.path.join(tempfile.mkdtemp(), "out.json")
    shape = ["--gen", str(a.gen), "--repeats", str(a.repeats), "--device", a.device, "--json", out]
    if kind == "transformers":
        r = run([sys.executable, os.path.abspath(__file__), path, "--peer", "--prompt", str(a.prompt), "--depth", str(a.depth), "--batch",
                 ",".join(map(str, a.batch))] + shape, out)
        if "failed" in r:
            return r
        return {"about": r["about"], "prefill": r["prefill"], "decode": {int(k): v for k, v in r["decode"].items()}}
    chunk = ["--prefill-chunk", str(a.prefill_chunk)] if a.prefill_chunk else []
    r = run([a.cambium, "bench", path, "--prompt-sizes", str(a.prompt), "--depths", str(a.depth), "--batch", ",".join(map(str, a.batch))] + chunk +
            shape, out)
    if "failed" in r:
        return r
    return {"about": {k: r[k] for k in ("cambium", "settings", "model", "probe", "load", "left_out")},
            "prefill": [a.prompt / s for c in r["prefill"] if c["tokens"] == a.prompt for s in c["seconds"]],
            "decode": {c["batch"]: [c["batch"] * a.gen / s for s in c["seconds"]] for c in r["decode"]}}


def describe(kind, r):
    if not r:
        return f"  {kind}: left out"
    if "failed" in r:
        return f"  {kind}: failed: {r['failed']}"
    b = r["about"]
    if kind == "cambium":
        return (f"  cambium {b['cambium']['version']} ({b['cambium']['commit']}), {b['settings']['device']}, {b['model']['weight_bytes'] / 1e9:.2f} GB of weights, "
                f"chunks of {b['settings']['prefill_chunk']}")
    return (f"  transformers {b['transformers']}, torch {b['torch']}, {b['device']}, {b['class']} bf16, {b['weight_bytes'] / 1e9:.2f} GB of weights, "
            f"attention {b['attention']}, experts {b['experts']}, fla {'yes' if b['fla'] else 'no'}")


def cell(v):
    return f"{statistics.median(v):10.1f} ({min(v):.1f} .. {max(v):.1f})" if v else "         -"


def show(a, path, both):
    print(f"\n{os.path.basename(os.path.normpath(path))}")
    for kind in both:
        print(describe(kind, both[kind][-1]))
    print(f"  {'tokens per second':26} {'cambium':>34} {'transformers':>34} {'ratio':>7}")
    rows = [(f"prefill {a.prompt}", lambda r: r.get("prefill", []))]
    rows += [(f"decode at {a.depth}, batch {b}", lambda r, b=b: r.get("decode", {}).get(b, [])) for b in a.batch]
    for name, get in rows:
        x, y = ([s for r in both[k] for s in get(r)] for k in ("cambium", "transformers"))
        ratio = f"{statistics.median(x) / statistics.median(y):7.2f}" if x and y else "      -"
        print(f"  {name:26} {cell(x):>34} {cell(y):>34} {ratio}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dirs", nargs="+", metavar="DIR")
    p.add_argument("--device", default="cuda")
    p.add_argument("--prompt", type=int, default=8192)
    p.add_argument("--depth", type=int, default=512)
    p.add_argument("--batch", type=lambda s: [int(x) for x in s.split(",")], default=[1])
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--cambium", default="build/release/cambium")
    p.add_argument("--prefill-chunk", type=int, default=0)
    p.add_argument("--only", choices=["cambium", "transformers"], help="leave the other one out")
    p.add_argument("--json")
    p.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if a.peer:
        return run_peer(a)
    results = []
    for path in a.dirs:
        both = {"cambium": [], "transformers": []}
        for r in range(a.rounds):
            for kind in list(both)[:: 1 if r % 2 == 0 else -1]:
                if a.only in (None, kind):
                    both[kind].append(measure(a, kind, path))
        both = {k: v for k, v in both.items() if v}
        results.append({"model": path, "prompt": a.prompt, "depth": a.depth, "gen": a.gen, "repeats": a.repeats, "rounds": both})
        show(a, path, {"cambium": [{}], "transformers": [{}], **both})
        if a.json:  # after every model, so that an interrupted run leaves what it has
            json.dump({"date": time.strftime("%Y-%m-%d"), "results": results}, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
