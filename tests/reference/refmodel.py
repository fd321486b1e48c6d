"""The independent reference: a plain forward pass in float64 over dequantised weights.

Truth for parity data. transformers in float64 is not quite that: its norms, softmax and rotary tables go through float32.
So the pass is written out here with torch tensors, about a hundred lines, and make_parity.py and make_tiny.py check it
against transformers in float32 before they use it.

Weights come from a GGUF file (load_gguf) or from an MLX checkpoint directory (load_mlx). In both cases the result is a
dict of HF tensor names to float64 tensors with the *effective* norm weights (Gemma's 1 + w already added) and the HF row
order of q and k.

`arith` rounds at chosen places; Exact rounds nowhere. Bf16 is what a bf16 stack with exact weights does at best; Cambium
is the defined arithmetic of docs/arithmetic.md up to the order of short float sums (see simulate_arith.py)."""
import json
import math
import os
import struct

import numpy as np
import torch


class Config:
    """Shapes of one model. full[i] says whether layer i attends to everything or to the last `window` tokens."""

    def __init__(self, **kw):
        self.window, self.act, self.embed_scale, self.qk_norm, self.post_norms = 0, "silu", 1.0, False, False
        self.n_ctx = 0
        self.__dict__.update(kw)
        if not hasattr(self, "full"):
            self.full = [True] * self.layers


def bf16_round(x):
    return float(torch.tensor(x, dtype=torch.float64).to(torch.bfloat16))


def gemma3_config(hidden, layers, heads, kv_heads, head_dim, inter, eps, window, full, vocab, theta=1e6, local=1e4,
                  scalar=256):
    """embed_scale is sqrt(hidden) rounded to bf16, as the released models were trained and are run."""
    return Config(family="gemma3", hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                  inter=inter, eps=eps, window=window, full=full, vocab=vocab, theta=theta, theta_local=local,
                  act="gelu_tanh", embed_scale=bf16_round(math.sqrt(hidden)), qk_norm=True, post_norms=True,
                  attn_scale=scalar ** -0.5)


# ---- GGUF ------------------------------------------------------------------------------------------------------------

LLAMA_NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
               "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
               "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GEMMA_NAMES = dict(LLAMA_NAMES, ffn_norm="pre_feedforward_layernorm", attn_q_norm="self_attn.q_norm",
                   attn_k_norm="self_attn.k_norm", post_attention_norm="post_attention_layernorm",
                   post_ffw_norm="post_feedforward_layernorm")


def gguf_value(reader, key, default=None):
    f = reader.fields.get(key)
    if f is None:
        return default
    v = f.contents()
    return v


def unpermute(w, heads):
    """Undoes the converter's reordering of q and k rows: HF[h D + j D/2 + i] = GGUF[h D + 2 i + j]."""
    d = w.shape[0] // heads
    return w.reshape(heads, d // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def load_gguf(path):
    """Returns (Config, weights, types): types maps HF names to GGUF type names."""
    import gguf
    r = gguf.GGUFReader(path)
    arch = gguf_value(r, "general.architecture")
    get = lambda k, d=None: gguf_value(r, f"{arch}.{k}", d)
    heads, kv = get("attention.head_count"), get("attention.head_count_kv")
    layers, hidden = get("block_count"), get("embedding_length")
    eps = get("attention.layer_norm_rms_epsilon")
    vocab = len(r.fields["tokenizer.ggml.tokens"].data)
    if arch == "llama":
        c = Config(family="llama", hidden=hidden, layers=layers, heads=heads, kv_heads=kv, head_dim=hidden // heads,
                   inter=get("feed_forward_length"), eps=eps, vocab=vocab, theta=get("rope.freq_base", 1e4),
                   attn_scale=(hidden // heads) ** -0.5)
    else:
        c = gemma3_config(hidden, layers, heads, kv, get("attention.key_length"), get("feed_forward_length"), eps,
                          get("attention.sliding_window"), [(i + 1) % 6 == 0 for i in range(layers)], vocab,
                          theta=get("rope.freq_base", 1e6), scalar=get("attention.key_length"))
    c.n_ctx = get("context_length")
    names = LLAMA_NAMES if arch == "llama" else GEMMA_NAMES
    w, types = {}, {}
    for t in r.tensors:
        parts = t.name.split(".")
        if parts[0] == "blk":
            name = f"model.layers.{parts[1]}.{names[parts[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[parts[0]] + ".weight"
        x = gguf.quants.dequantize(t.data, t.tensor_type)
        if arch == "llama" and parts[-2] in ("attn_q", "attn_k"):
            x = unpermute(x, heads if parts[-2] == "attn_q" else kv)
        w[name] = torch.from_numpy(np.ascontiguousarray(x)).double()
        types[name] = t.tensor_type.name
    return c, w, types


# ---- MLX checkpoint --------------------------------------------------------------------------------------------------

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U32": np.uint32, "U8": np.uint8, "F64": np.float64,
          "I32": np.int32}
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def read_safetensors(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    out = {}
    for name, t in head.items():
        if name == "__metadata__":
            continue
        b, e = t["data_offsets"]
        x = np.frombuffer(raw[8 + n + b:8 + n + e], dtype=DTYPES[t["dtype"]]).reshape(t["shape"])
        if t["dtype"] == "BF16":
            x = (x.astype(np.uint32) << 16).view(np.float32)
        out[name] = x
    return out


def e4m3(b):
    b = b.astype(np.int64)
    s, e, m = b >> 7, (b >> 3) & 15, b & 7
    v = np.where(e == 0, m * 2.0 ** -9, (8 + m) * 2.0 ** (e - 10))
    return np.where(s == 1, -v, v)


def unpack(words, bits):
    """[N][W] u32 to [N][K] codes; a row is one little-endian bit stream."""
    b = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    n, nb = b.shape
    return (b.reshape(n, nb // bits, bits).astype(np.int64) << np.arange(bits)).sum(-1)


def dequantise(codes, scales, biases, q):
    bits, group, mode = q["bits"], q["group_size"], q.get("mode", "affine")
    c = unpack(codes, bits)
    if mode == "affine":
        v, s = c.astype(np.float64), scales.astype(np.float64)
    else:
        v = FP4[c] if bits == 4 else e4m3(c)
        s = e4m3(scales) if mode == "nvfp4" else 2.0 ** (scales.astype(np.int64) - 127)
    v = v.reshape(c.shape[0], -1, group) * s[..., None]
    if biases is not None:
        v = v + biases.astype(np.float64)[..., None]
    return v.reshape(c.shape)


def load_mlx(path):
    """Returns (Config, weights, formats): formats maps names to "affine 4 g64", "mxfp4", "BF16", ..."""
    j = json.load(open(os.path.join(path, "config.json")))
    raw = {}
    for f in sorted(os.listdir(path)):
        if f.endswith(".safetensors"):
            raw.update(read_safetensors(os.path.join(path, f)))
    q = j.get("quantization", {})
    default = {k: q[k] for k in ("bits", "group_size", "mode") if k in q}
    w, formats = {}, {}
    for name, x in raw.items():
        if name.endswith((".scales", ".biases")):
            continue
        mod = name[:-len(".weight")]
        if mod + ".scales" in raw:
            o = q.get(mod, default)
            o = default if o is True else o
            w[name] = torch.from_numpy(dequantise(x, raw[mod + ".scales"], raw.get(mod + ".biases"), o))
            formats[name] = f'{o.get("mode", "affine")} {o["bits"]} g{o["group_size"]}'
        else:
            w[name] = torch.from_numpy(np.ascontiguousarray(x)).double()
            formats[name] = str(x.dtype)
    hidden, layers, heads = j["hidden_size"], j["num_hidden_layers"], j["num_attention_heads"]
    kv = j.get("num_key_value_heads", heads)
    if j["model_type"] == "llama":
        hd = j.get("head_dim") or hidden // heads
        c = Config(family="llama", hidden=hidden, layers=layers, heads=heads, kv_heads=kv, head_dim=hd,
                   inter=j["intermediate_size"], eps=j["rms_norm_eps"], vocab=j["vocab_size"],
                   theta=j.get("rope_theta", 1e4), attn_scale=hd ** -0.5)
    else:
        pat = j.get("sliding_window_pattern", 6)
        full = [(i + 1) % pat == 0 for i in range(layers)]
        if "layer_types" in j:
            full = [t == "full_attention" for t in j["layer_types"]]
        c = gemma3_config(hidden, layers, heads, kv, j["head_dim"], j["intermediate_size"], j["rms_norm_eps"],
                          j["sliding_window"], full, j["vocab_size"], j["rope_theta"], j["rope_local_base_freq"],
                          j["query_pre_attn_scalar"])
        for name in w:
            if "norm" in name:
                w[name] = w[name] + 1.0
    return c, w, formats


# ---- the pass --------------------------------------------------------------------------------------------------------

class Exact:
    """No rounding anywhere but float64's own."""
    dtype = torch.float64

    def __init__(self, cfg, w):
        self.cfg, self.w = cfg, w

    def r(self, x):
        """After every operation."""
        return x

    def linear(self, name, x):
        return x @ self.w[name].T

    def attention(self, q, k, v, mask):
        """q [H][T][D], k and v [H][S][D] (KV heads already repeated), mask [T][S] true where visible."""
        s = (q @ k.transpose(1, 2)) * self.cfg.attn_scale
        p = torch.softmax(s.masked_fill(~mask, -math.inf), -1)
        return p @ v


class Bf16(Exact):
    """bf16 activations: every operation's result is rounded to bf16, sums inside it are wide, weights are exact. This is
    the best a bf16 stack can do."""

    def r(self, x):
        return x.to(torch.bfloat16).double()

    def attention(self, q, k, v, mask):
        s = self.r((q @ k.transpose(1, 2)) * self.cfg.attn_scale)
        p = self.r(torch.softmax(s.masked_fill(~mask, -math.inf), -1))
        return p @ v


def rms(x, w, eps):
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return y * w


def rope(x, pos, theta):
    d = x.shape[-1]
    f = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    a = pos.double()[:, None] * f
    c, s = torch.cos(a), torch.sin(a)
    lo, hi = x[..., :d // 2], x[..., d // 2:]
    return torch.cat([lo * c - hi * s, hi * c + lo * s], -1)


class State:
    """K and V after rotation, per layer, as the arithmetic stores them."""

    def __init__(self, cfg):
        self.k = [None] * cfg.layers
        self.v = [None] * cfg.layers
        self.n = 0


def forward(cfg, w, ids, arith, state=None, taps=None, keep=0, ladder=None):
    """Logits [T][V] float64 of the tokens `ids`, which follow what `state` holds; of the last `keep` ones if not 0. `ladder`
    (a list) gets (kind, name, tensor) at the rungs that `cambium parity layers` compares, under the plan's names."""
    st = state or State(cfg)
    T = len(ids)
    pos = torch.arange(st.n, st.n + T)
    r = arith.r
    x = r(w["model.embed_tokens.weight"][torch.as_tensor(ids)])
    if cfg.embed_scale != 1.0:
        x = r(x * cfg.embed_scale)
    rung = lambda kind, name, t: ladder.append((kind, name, t)) if ladder is not None else None
    rung("embed", "embed_tokens", x)
    H, KV, D = cfg.heads, cfg.kv_heads, cfg.head_dim
    for l in range(cfg.layers):
        p = f"model.layers.{l}."
        norm = lambda t, n: r(rms(t, w[p + n + ".weight"], cfg.eps))
        lin = lambda t, n: r(arith.linear(p + n + ".weight", t))
        a = norm(x, "input_layernorm")
        q = lin(a, "self_attn.q_proj").reshape(T, H, D).transpose(0, 1)
        k = lin(a, "self_attn.k_proj").reshape(T, KV, D).transpose(0, 1)
        v = lin(a, "self_attn.v_proj").reshape(T, KV, D).transpose(0, 1)
        if cfg.qk_norm:
            q, k = norm(q, "self_attn.q_norm"), norm(k, "self_attn.k_norm")
        theta = cfg.theta if cfg.full[l] else cfg.theta_local
        q, k = r(rope(q, pos, theta)), r(rope(k, pos, theta))
        if st.k[l] is not None:
            k, v = torch.cat([st.k[l], k], 1), torch.cat([st.v[l], v], 1)
        st.k[l], st.v[l] = k, v
        key = torch.arange(k.shape[1])
        mask = key[None, :] <= pos[:, None]
        if not cfg.full[l]:
            mask &= key[None, :] > pos[:, None] - cfg.window
        kk, vv = k.repeat_interleave(H // KV, 0), v.repeat_interleave(H // KV, 0)
        o = r(arith.attention(q, kk, vv, mask)).transpose(0, 1).reshape(T, H * D)
        rung("attention", f"layers.{l}.self_attn", o)
        o = lin(o, "self_attn.o_proj")
        if cfg.post_norms:
            x = r(x + norm(o, "post_attention_layernorm"))
            rung("add", f"layers.{l}.post_attention_layernorm.weight", x)
            m = norm(x, "pre_feedforward_layernorm")
        else:
            x = r(x + o)
            rung("linear", f"layers.{l}.self_attn.o_proj", x)
            m = norm(x, "post_attention_layernorm")
        g, u = lin(m, "mlp.gate_proj"), lin(m, "mlp.up_proj")
        g = r(torch.nn.functional.silu(g) if cfg.act == "silu" else torch.nn.functional.gelu(g, approximate="tanh"))
        m = lin(r(g * u), "mlp.down_proj")
        x = r(x + (norm(m, "post_feedforward_layernorm") if cfg.post_norms else m))
        rung(*(("add", f"layers.{l}.post_feedforward_layernorm.weight") if cfg.post_norms else ("linear", f"layers.{l}.mlp.down_proj")), x)
        if taps is not None:
            taps.append(x)
    st.n += T
    x = r(rms(x[-keep:], w["model.norm.weight"], cfg.eps))
    rung("rmsnorm", "norm.weight", x)
    head = "lm_head.weight" if "lm_head.weight" in w else "model.embed_tokens.weight"
    z = r(arith.linear(head, x))
    rung("linear", head.removeprefix("model.").removesuffix(".weight"), z)
    return z


# ---- metrics ---------------------------------------------------------------------------------------------------------

def kl(truth, got):
    """KL(truth || got) per row over the whole vocabulary, nats."""
    a, b = torch.log_softmax(truth, -1), torch.log_softmax(got, -1)
    return (a.exp() * (a - b)).sum(-1)


class Score:
    """Distance of rows from truth's, gathered over any number of calls."""

    def __init__(self):
        self.kl, self.d, self.margin, self.flip = [], [], [], []

    def add(self, truth, got):
        top = truth.topk(2, -1)
        self.kl.append(kl(truth, got))
        self.d.append((got - truth).abs().max(-1).values)
        self.margin.append(top.values[:, 0] - top.values[:, 1])
        self.flip.append(got.argmax(-1) != top.indices[:, 0])
        return self

    def result(self):
        """mean and max KL, max |delta logit|, positions whose best id agrees, the largest margin at which it does not."""
        k, d, m, f = (torch.cat(x) for x in (self.kl, self.d, self.margin, self.flip))
        return {"kl_mean": float(k.mean()), "kl_max": float(k.max()), "dmax": float(d.max()), "dmax_mean": float(d.mean()),
                "top1": int((~f).sum()), "positions": len(d), "flip_margin_max": float(m[f].max()) if f.any() else 0.0}


def compare(truth, got):
    return Score().add(truth, got).result()
