#!/usr/bin/env python3
"""Writes tests/fuzz/corpus/gguf: the smallest whole models of each architecture and block type (2 to 6 KB each).

needs: pip install numpy gguf
"""
from pathlib import Path

import gguf
import numpy as np

T = gguf.GGMLQuantizationType
OUT = Path(__file__).resolve().parents[1] / "fuzz/corpus/gguf"
H, FF, D, V = 256, 2, 4, 5
rng = np.random.default_rng(1)


def blocks(kind, rows, cols):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    b = rng.integers(0, 256, (rows * cols // block, size), dtype=np.uint8)
    for at in (0, 2, size - 2, size - 4):  # any scale is finite
        b[:, at + 1] &= 0x3b
    return b.reshape(rows, -1)


def model(name, arch, kind, pre="default", bpe=False):
    w = gguf.GGUFWriter(OUT / name, arch)
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(H)
    w.add_feed_forward_length(FF)
    w.add_head_count(2)
    w.add_head_count_kv(1)
    w.add_key_length(D)
    w.add_value_length(D)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(1e4)
    w.add_sliding_window(16)
    w.add_tokenizer_model("gpt2" if bpe else "llama")
    w.add_tokenizer_pre(pre)
    w.add_token_list(["<a>", "<b>", "x", "y", "xy"])
    w.add_token_types([3, 3, 1, 1, 1])
    if bpe:
        w.add_token_merges(["x y"])
    else:
        w.add_token_scores([-1000.0, -1000.0, -1.0, -2.0, -0.5])
    w.add_bos_token_id(0)
    w.add_eos_token_id(1)
    w.add_chat_template("{{ messages }}")
    layer = [("attn_q", 2 * D, H), ("attn_k", D, H), ("attn_v", D, H), ("ffn_gate", FF, H), ("ffn_up", FF, H)]
    for n, rows, cols in [("token_embd", V, H)] + [("blk.0." + n, r, c) for n, r, c in layer]:
        w.add_tensor(n + ".weight", blocks(kind, rows, cols), raw_dtype=kind)
    for n, rows, cols in [("attn_output", H, 2 * D), ("ffn_down", H, FF)]:
        w.add_tensor(f"blk.0.{n}.weight", np.zeros((rows, cols), np.float16))
    norms = {"blk.0.attn_norm": H, "blk.0.ffn_norm": H, "output_norm": H}
    if arch == "gemma3":
        norms |= {"blk.0.post_attention_norm": H, "blk.0.post_ffw_norm": H}
    if arch in ("gemma3", "qwen3"):
        norms |= {"blk.0.attn_q_norm": D, "blk.0.attn_k_norm": D}
    for n, size in norms.items():
        w.add_tensor(n + ".weight", np.ones(size, np.float32))
    if arch == "qwen2":
        for n, size in (("q", 2 * D), ("k", D), ("v", D)):
            w.add_tensor(f"blk.0.attn_{n}.bias", np.zeros(size, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


OUT.mkdir(parents=True, exist_ok=True)
for k in (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL):
    model(f"llama-{k.name}", "llama", k, pre="smollm", bpe=True)
for a in ("llama", "gemma3", "qwen2", "qwen3"):
    model(f"{a}-sp", a, T.Q5_0)
(OUT / "not-gguf").write_bytes(b"GGML\x03\x00\x00\x00")
(OUT / "big-endian").write_bytes(b"GGUF\x00\x00\x00\x03" + bytes(16))
(OUT / "huge-counts").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 16)
