#!/usr/bin/env python3
"""Compares the importer's block formats with gguf-py's decoders, to the bit.

A small llama file is made for each type with random blocks, imported through libcambium.so, and every matrix of the
checkpoint is decoded with numpy and compared with gguf.dequantize of the file's tensor (signed zero aside).

needs: pip install numpy gguf
usage: tests/reference/check_gguf_blocks.py [build/release/libcambium.so]
"""
import ctypes
import json
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

T = gguf.GGMLQuantizationType
TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL]
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.IQ4_NL: [0], T.Q2_K: [80, 82],
          T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
HIDDEN, FF, HEADS, KV, VOCAB = 256, 512, 4, 2, 262
MATRICES = {"token_embd": ("model.embed_tokens", VOCAB, HIDDEN),
            "blk.0.attn_q": ("model.layers.0.self_attn.q_proj", HIDDEN, HIDDEN),
            "blk.0.attn_k": ("model.layers.0.self_attn.k_proj", HIDDEN // 2, HIDDEN),
            "blk.0.attn_v": ("model.layers.0.self_attn.v_proj", HIDDEN // 2, HIDDEN),
            "blk.0.attn_output": ("model.layers.0.self_attn.o_proj", HIDDEN, HIDDEN),
            "blk.0.ffn_gate": ("model.layers.0.mlp.gate_proj", FF, HIDDEN),
            "blk.0.ffn_up": ("model.layers.0.mlp.up_proj", FF, HIDDEN),
            "blk.0.ffn_down": ("model.layers.0.mlp.down_proj", HIDDEN, FF)}


def random_blocks(rng, kind, rows, cols):
    """uint8 [rows][row bytes] with finite scales: ordinary, zero, negative, subnormal and large ones."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if kind in (T.F32, T.F16, T.BF16):
        v = rng.standard_normal((rows, cols)).astype(np.float32)
        return v if kind == T.F32 else v.astype(np.float16) if kind == T.F16 else (v.view(np.uint32) >> 16).astype(np.uint16)
    b = rng.integers(0, 256, (rows * cols // block, size), dtype=np.uint8)
    for at in HALVES[kind]:
        d = rng.choice(np.array([0.01, -0.3, 0, -0.0, 6e-8, -3e-6, 300, 65504 / 128, 1.0], np.float16), len(b))
        d = (d * rng.uniform(0.5, 1, len(b))).astype(np.float16)
        b[:, at:at + 2] = d.view(np.uint8).reshape(-1, 2)
    return b.reshape(rows, -1)


def write_model(path, kind, rng):
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FF)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    names = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{i:02X}>" for i in range(256)] + ["a", "b"]
    w.add_token_list(names)
    w.add_token_scores([-1000.0] * 260 + [-1.0, -2.0])
    w.add_token_types([3, 3, 3, 2] + [6] * 256 + [1, 1])
    w.add_bos_token_id(2)
    w.add_eos_token_id(1)
    w.add_unk_token_id(3)
    for name, (_, rows, cols) in MATRICES.items():
        w.add_tensor(name + ".weight", random_blocks(rng, kind, rows, cols),
                     raw_dtype=None if kind in (T.F32, T.F16) else kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        w.add_tensor(name + ".weight", np.ones(HIDDEN, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def read_safetensors(path):
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U32": np.uint32}[t["dtype"]]
        v = np.frombuffer(raw[8 + n + a:8 + n + b], kind).reshape(t["shape"])
        out[name] = (v.astype(np.uint32) << 16).view(np.float32) if t["dtype"] == "BF16" else v
    return out


def decode(tensors, module, cols):
    w = tensors[module + ".weight"]
    if module + ".scales" not in tensors:
        return w.astype(np.float32)
    s, b = (tensors[module + k].astype(np.float32) for k in (".scales", ".biases"))
    bits = w.shape[1] * 32 // cols
    stream = np.unpackbits(np.ascontiguousarray(w).view(np.uint8), axis=1, bitorder="little").reshape(len(w), cols, bits)
    codes = (stream * (1 << np.arange(bits))).sum(-1).astype(np.float32)
    group = cols // s.shape[1]
    # product and sum in float64 (exact, up to one rounding to f32): what one fma gives
    return (codes.astype(np.float64) * np.repeat(s, group, 1) + np.repeat(b, group, 1)).astype(np.float32)


def unpermute(v, heads):
    return v.reshape(heads, -1, 2, v.shape[1]).swapaxes(1, 2).reshape(v.shape)


def main():
    lib = ctypes.CDLL(str(Path(sys.argv[1] if len(sys.argv) > 1 else "build/release/libcambium.so").resolve()))
    rng, bad = np.random.default_rng(1), 0
    for kind in TYPES:
        with tempfile.TemporaryDirectory() as tmp:
            path, out = Path(tmp) / "t.gguf", Path(tmp) / "out"
            write_model(path, kind, rng)
            err = ctypes.create_string_buffer(600)
            if lib.cb_import_gguf(str(path).encode(), str(out).encode(), None, None, err):
                sys.exit(f"{kind.name}: {err.raw[4:].split(bytes(1))[0].decode()}")
            tensors, n = read_safetensors(out / "model.safetensors"), 0
            for t in gguf.GGUFReader(path).tensors:
                name = t.name.removesuffix(".weight")
                if name not in MATRICES:
                    continue
                module, rows, cols = MATRICES[name]
                want = gguf.dequantize(t.data, t.tensor_type).reshape(rows, cols).astype(np.float32)
                if name.endswith("attn_q"):
                    want = unpermute(want, HEADS)
                if name.endswith("attn_k"):
                    want = unpermute(want, KV)
                got = decode(tensors, module, cols)
                same = (want + 0.0).view(np.uint32) == (got + 0.0).view(np.uint32)
                n += want.size
                if not same.all():
                    bad += 1
                    i = np.argwhere(~same)[0]
                    print(f"{kind.name} {name}{list(i)}: {got[tuple(i)]!r}, gguf-py says {want[tuple(i)]!r}")
            scales = {str(v.dtype) for k, v in tensors.items() if k.endswith(".scales")} or {str(tensors["model.embed_tokens.weight"].dtype)}
            print(f"{kind.name:7} {n} values, stored as {'/'.join(scales)}{'' if not bad else '  DIFFERENT'}")
    sys.exit(bad > 0)


main()
