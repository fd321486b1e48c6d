"""Writes reference files (*.cbref): what truth says about teacher-forced positions. docs/testing.md describes the format;
src/cli/parity_ref.c reads it. Everything is little-endian and lies back to back in this order:

  char[8] "CBREF\\1\\0\\0"   u32 json_bytes  u32 n_vocab  u32 n_cases  u32 n_pos  u32 top_k  u32 n_sample  u32 n_full
  u32 full_kind (1: u16 steps, 2: f32)  u32 n_greedy  u32 0
  json[json_bytes]                      padded with spaces to a multiple of 8
  cases   n_cases x {u32 first, u32 n}  positions of a case are first .. first+n-1; each case is a sequence of its own
  tokens  i32[n_pos]                    input token of each position
  lse     f64[n_pos]                    ln sum exp of truth's logits (starts at a multiple of 8)
  top_id  u32[n_pos][top_k]  top f32[n_pos][top_k]      truth's best, descending, ties to the lower id
  sample_id u32[n_sample]    sample f32[n_pos][n_sample]  the same pseudo-random ids everywhere
                        top and sample hold logit - lse, that is ln p: f32 is finest where p is large
  full_pos u32[n_full]       full rows: kind 2 f32[n_vocab]; kind 1 {f32 base, f32 step, u16[n_vocab]}: base + step * u
  greedy  n_greedy x {u32 case, u32 n}  then per entry i32[n] tokens and f32[n] truth's margins, which continue that case"""
import json
import struct

import numpy as np
import torch

import refmodel as rm

MAGIC = b"CBREF\1\0\0"


def sample_ids(n_vocab, n, seed=20260101):
    return np.sort(np.random.default_rng(seed).choice(n_vocab, size=min(n, n_vocab), replace=False)).astype("<u4")


class Writer:
    """Feed case after case (token ids and truth's logits); then greedy runs; then save."""

    def __init__(self, n_vocab, top_k, n_sample, full_kind, full_every=0, full_pos=()):
        self.n_vocab, self.top_k, self.kind = n_vocab, min(top_k, n_vocab), full_kind
        self.ids = sample_ids(n_vocab, n_sample)
        self.every, self.want = full_every, set(full_pos)
        self.cases, self.tokens, self.lse, self.top_id, self.top, self.sample = [], [], [], [], [], []
        self.full_pos, self.full, self.greedy, self.names = [], [], [], []

    def add(self, name, ids, logits):
        """One case, or (same name again) its next positions."""
        first = len(self.tokens)
        if self.names and self.names[-1] == name:
            self.cases[-1] = (self.cases[-1][0], self.cases[-1][1] + len(ids))
        else:
            self.names.append(name)
            self.cases.append((first, len(ids)))
        self.tokens += list(ids)
        lse = torch.logsumexp(logits, -1)
        self.lse.append(lse.numpy())
        logp = logits - lse[:, None]
        v, i = logits.topk(self.top_k, -1)
        i = np.take_along_axis(i.numpy(), np.lexsort((i.numpy(), -v.numpy())), 1) # ties to the lower id
        order = torch.from_numpy(i)
        self.top_id.append(order.numpy().astype("<u4"))
        self.top.append(torch.gather(logp, 1, order).numpy().astype("<f4"))
        self.sample.append(logp.numpy()[:, self.ids].astype("<f4"))
        for i in range(len(ids)):
            p = first + i
            if p in self.want or (self.every and p % self.every == self.every - 1):
                self.full_pos.append(p)
                self.full.append(self.pack_row(logits[i].numpy()))

    def pack_row(self, row):
        if self.kind == 2:
            return row.astype("<f4").tobytes()
        base, step = np.float32(row.min()), np.float32((row.max() - row.min()) / 65535)
        u = np.clip(np.rint((row - base) / step), 0, 65535).astype("<u2")
        return struct.pack("<ff", base, step) + u.tobytes()

    def add_greedy(self, name, tokens, margins):
        self.greedy.append((self.names.index(name), tokens, margins))

    def save(self, path, meta):
        meta = dict(meta, cases=self.names)
        j = json.dumps(meta, indent=1, ensure_ascii=False).encode()
        j += b" " * (-(len(j) + 48) % 8)
        cat = lambda a, t: np.concatenate(a).astype(t).tobytes()
        out = [MAGIC, struct.pack("<10I", len(j), self.n_vocab, len(self.cases), len(self.tokens), self.top_k, len(self.ids),
                                  len(self.full), self.kind, len(self.greedy), 0), j]
        out += [struct.pack("<II", *c) for c in self.cases]
        out.append(np.asarray(self.tokens, "<i4").tobytes())
        size = sum(map(len, out))
        out.append(b"\0" * (-size % 8))
        out += [cat(self.lse, "<f8"), cat(self.top_id, "<u4"), cat(self.top, "<f4"), self.ids.tobytes(),
                cat(self.sample, "<f4"), np.asarray(self.full_pos, "<u4").tobytes(), *self.full]
        for case, tokens, margins in self.greedy:
            out.append(struct.pack("<II", case, len(tokens)))
            out.append(np.asarray(tokens, "<i4").tobytes() + np.asarray(margins, "<f4").tobytes())
        open(path, "wb").write(b"".join(out))


def greedy(cfg, w, ids, n, propose):
    """n tokens greedily from truth, and truth's margins. propose(ids, n) is a faster model's guess at the continuation;
    truth looks at the whole guess in one pass and keeps what it agrees with, plus its own choice where it does not."""
    out, margins = [], []
    while len(out) < n:
        guess = propose(list(ids) + out, n - len(out))
        feed = list(ids) + out + guess[:-1]
        rows = rm.forward(cfg, w, feed, rm.Exact(cfg, w), keep=len(guess))
        for g, row in zip(guess, rows):
            v, i = row.topk(2)
            tok = int((row == v[0]).nonzero()[0])
            out.append(tok)
            margins.append(float(v[0] - v[1]))
            if tok != g:
                break
    return out, margins
