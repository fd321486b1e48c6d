#!/usr/bin/env python3
"""Speed of Cambium beside llama.cpp: the same GGUF file, the same token ids, the same number of threads, one run.

  python tools/peers/peers.py --gguf MODEL.gguf --model DIR [--lib build/release/libcambium.so] [--threads 1,2]
                              [--rounds 5] [--nice N] [--json OUT.json]

Needs llama-cpp-python (built from source, so that ggml uses the machine's own instructions) and numpy; Cambium is called
through its shared library. DIR is what `cambium import` made of MODEL.gguf.

Method. Each engine lives in a process of its own, loaded once per thread count; only one measures at a time, and they take
turns in every round (A B, then B A), so that slow drift of the machine hits both. Two measurements:
  decode   128 tokens one by one, greedily, after a prompt of 128 tokens (the prompt is not timed)
  prefill  512 tokens of a prompt at once, logits of the last one only
The first round warms up and is not counted. Printed: median, lowest and highest tokens per second, and the ratio of medians.
During each measurement the CPU time that all other processes took is read from /proc/stat; a measurement during which it
exceeded what the unused cores offer by more than --foreign (a share of the threads' time, default 0.05) is repeated, up to
--tries times, and then kept with a mark."""
import argparse
import ctypes as C
import json
import multiprocessing as mp
import os
import statistics
import sys
import time

N_PROMPT, N_DECODE, N_PREFILL = 128, 128, 512


# ---- Cambium ---------------------------------------------------------------------------------------------------------

class Err(C.Structure):
    _fields_ = [("code", C.c_int), ("text", C.c_char * 512)]


class Opts(C.Structure):
    _fields_ = [("device", C.c_char_p), ("n_threads", C.c_int), ("ctx_size", C.c_int), ("max_sessions", C.c_int),
                ("max_rows", C.c_int), ("max_snapshots", C.c_int), ("plan_only", C.c_int), ("memory_limit", C.c_uint64),
                ("progress", C.c_void_p), ("progress_ctx", C.c_void_p)]


class Info(C.Structure):
    _fields_ = [("family", C.c_char_p), ("device", C.c_char_p), ("arithmetic", C.c_char_p), ("n_vocab", C.c_int),
                ("ctx_size", C.c_int), ("ctx_trained", C.c_int), ("n_threads", C.c_int), ("max_sessions", C.c_int),
                ("max_rows", C.c_int), ("max_snapshots", C.c_int), ("can_rewind", C.c_int), ("n_params", C.c_uint64),
                ("weight_bytes", C.c_uint64), ("n_skipped", C.c_int), ("skipped_bytes", C.c_uint64), ("state_bytes", C.c_uint64), ("scratch_bytes", C.c_uint64), ("note", C.c_char_p)]


class Row(C.Structure):
    _fields_ = [("session", C.c_void_p), ("token", C.c_int32), ("want_logits", C.c_int)]


class Cambium:
    name = "cambium"

    def __init__(self, a, threads):
        import numpy as np
        self.np, self.lib, self.err = np, C.CDLL(os.path.abspath(a.lib)), Err()
        self.lib.cb_version.restype = C.c_char_p
        self.engine, self.session = C.c_void_p(), C.c_void_p()
        o = Opts(device=b"cpu", n_threads=threads, ctx_size=N_PREFILL + 64, max_rows=N_PREFILL)
        self.check(self.lib.cb_engine_open(a.model.encode(), C.byref(o), C.byref(self.engine), C.byref(self.err)))
        self.check(self.lib.cb_session_open(self.engine, C.byref(self.session), C.byref(self.err)))
        i = Info()
        self.lib.cb_engine_get_info(self.engine, C.byref(i))
        self.logits = np.zeros(i.n_vocab, np.float32)
        self.out = self.logits.ctypes.data_as(C.c_void_p)
        self.rows = (Row * N_PREFILL)()
        self.about = f"cambium {self.lib.cb_version().decode()}, {i.device.decode()}, {i.arithmetic.decode()}"

    def check(self, rc):
        if rc < 0:
            raise RuntimeError(self.err.text.decode())

    def reset(self):
        self.lib.cb_session_reset(self.session)

    def feed(self, ids):
        """Runs the tokens; returns the best next one."""
        n = len(ids)
        for i, t in enumerate(ids):
            self.rows[i] = Row(self.session, t, i == n - 1)
        self.check(self.lib.cb_step(self.engine, self.rows, n, self.out, C.byref(self.err)))
        return int(self.logits.argmax())


# ---- llama.cpp -------------------------------------------------------------------------------------------------------

class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, a, threads):
        import llama_cpp as L
        import numpy as np
        self.np = np
        self.llm = L.Llama(a.gguf, n_ctx=N_PREFILL + 64, n_batch=N_PREFILL, n_ubatch=N_PREFILL, n_threads=threads,
                           n_threads_batch=threads, n_gpu_layers=0, verbose=False)
        self.L, self.ctx, self.n_vocab = L, self.llm.ctx, self.llm.n_vocab()
        self.about = f"llama-cpp-python {L.__version__}, " + L.llama_print_system_info().decode().strip()

    def tokenise(self, text):
        return self.llm.tokenize(text.encode(), add_bos=False)

    def reset(self):
        self.L.llama_memory_clear(self.L.llama_get_memory(self.ctx), True)

    def feed(self, ids):
        buf = (self.L.llama_token * len(ids))(*ids)
        if self.L.llama_decode(self.ctx, self.L.llama_batch_get_one(buf, len(ids))):
            raise RuntimeError("llama_decode failed")
        row = self.np.ctypeslib.as_array(self.L.llama_get_logits_ith(self.ctx, -1), (self.n_vocab,))
        return int(row.argmax())


# ---- measuring -------------------------------------------------------------------------------------------------------

def measure(engine, what, ids):
    engine.reset()
    if what == "prefill":
        t = time.perf_counter()
        engine.feed(ids[:N_PREFILL])
        return N_PREFILL / (time.perf_counter() - t)
    nxt = engine.feed(ids[:N_PROMPT])
    t = time.perf_counter()
    for _ in range(N_DECODE):
        nxt = engine.feed([nxt])
    return N_DECODE / (time.perf_counter() - t)


def worker(kind, a, threads, pipe):
    try:
        os.nice(a.nice)
        engine = {"cambium": Cambium, "llama.cpp": LlamaCpp}[kind](a, threads)
        pipe.send(engine.about)
        while True:
            cmd = pipe.recv()
            if cmd is None:
                return
            if cmd[0] == "tokenise":
                pipe.send(engine.tokenise(cmd[1]))
            else:
                pipe.send(measure(engine, *cmd))
    except Exception as e: # the parent must not wait for ever
        pipe.send(e)


def busy():
    """CPU seconds of all processes so far, and of this one and its live children."""
    f = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    hz = os.sysconf("SC_CLK_TCK")
    own = 0
    for p in [os.getpid()] + [c.pid for c in mp.active_children()]:
        s = open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()
        own += int(s[11]) + int(s[12])
    return (sum(f) - f[3] - f[4]) / hz, own / hz


def one(pipe, cmd, threads, a):
    for attempt in range(a.tries):
        b0, o0, t0 = *busy(), time.perf_counter()
        pipe.send(cmd)
        v = pipe.recv()
        if isinstance(v, Exception):
            raise v
        b1, o1, dt = *busy(), time.perf_counter() - t0
        spare = max(0, os.cpu_count() - threads) * dt
        foreign = max(0.0, (b1 - b0) - (o1 - o0) - spare) / (dt * threads)
        if foreign <= a.foreign:
            break
    return v, foreign


def cpu_model():
    names = [x.split(":", 1)[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else "?"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gguf", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--lib", default="build/release/libcambium.so")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--foreign", type=float, default=0.05)
    p.add_argument("--tries", type=int, default=5)
    p.add_argument("--nice", type=int, default=0, help="priority of the measuring processes (below 0 needs privileges)")
    p.add_argument("--json")
    a = p.parse_args()
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/reference"))
    import prompts
    mp.set_start_method("spawn")
    result = {"cpu": cpu_model(), "date": time.strftime("%Y-%m-%d"), "model": os.path.basename(a.gguf), "rounds": a.rounds, "cells": []}
    kinds = ["cambium", "llama.cpp"]
    for threads in [int(x) for x in a.threads.split(",")]:
        pipes, procs = {}, []
        for k in kinds:
            pipes[k], child = mp.Pipe()
            procs.append(mp.Process(target=worker, args=(k, a, threads, child), daemon=True))
            procs[-1].start()
            about = pipes[k].recv()
            if isinstance(about, Exception):
                raise about
            result[k] = about
        pipes["llama.cpp"].send(("tokenise", prompts.LONG))
        ids = pipes["llama.cpp"].recv()
        assert len(ids) >= N_PREFILL
        for what in ("decode", "prefill"):
            seen = {k: [] for k in kinds}
            for r in range(a.rounds + 1):
                for k in kinds if r % 2 else kinds[::-1]:
                    v = one(pipes[k], (what, ids), threads, a)
                    if r:
                        seen[k].append(v)
            for k in kinds:
                v = [x for x, _ in seen[k]]
                result["cells"].append({"engine": k, "threads": threads, "what": what, "median": statistics.median(v), "min": min(v),
                                        "max": max(v), "all": v, "foreign": max(f for _, f in seen[k])})
        for k, proc in zip(kinds, procs):
            pipes[k].send(None)
            proc.join()
    show(result, kinds)
    if a.json:
        json.dump(result, open(a.json, "w"), indent=1)


def show(result, kinds):
    for k in kinds:
        print(f"{k}: {result[k]}")
    print(f"{result['model']} on {result['cpu']}, {result['date']}, tokens per second: median (lowest .. highest of {result['rounds']})")
    cells = {(c["engine"], c["threads"], c["what"]): c for c in result["cells"]}
    for threads, what in dict.fromkeys((c["threads"], c["what"]) for c in result["cells"]):
        a, b = (cells[(k, threads, what)] for k in kinds)
        text = "   ".join(f"{k} {c['median']:8.1f} ({c['min']:.1f} .. {c['max']:.1f}){'*' if c['foreign'] > 0.05 else ''}"
                          for k, c in zip(kinds, (a, b)))
        print(f"{what:8} {threads} thread{'s' if threads > 1 else ' '}  {text}   ratio {a['median'] / b['median']:.2f}")
    if any(c["foreign"] > 0.05 for c in result["cells"]):
        print("* other processes used the CPU during a measurement that counts")


if __name__ == "__main__":
    main()
