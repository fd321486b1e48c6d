"""Makes the tiny checkpoints of the larger families in tests/data: random weights, layouts and conversions by the unmodified
transformers and mlx-lm on the CPU, and truth.cbref beside each.

  python make_tiny_families.py OUT_DIR [NAME ...]

tiny-*-raw: the Hugging Face layout in bf16; truth is transformers in float32 on the stored weights.
tiny-*-NNbit: mlx_lm.convert of the same model; truth is mlx-lm on the CPU with every float cast to float32 (in bf16 MLX's CPU
sums are no reference). The unquantised conversion is checked against transformers first. The bf16 column of every file is
transformers in bf16 against transformers in float32 on the raw weights: what a bf16 stack loses with exact weights."""
import json
import os
import shutil
import sys
import tempfile
import zlib

import mlx.core as mx
import numpy as np
import torch

import hf_checkpoint
import make_tiny as mt
import prompts
import refdata

mx.set_default_device(mx.cpu)
VOCAB = 288


def qwen35(moe):
    c = {"model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": VOCAB, "rms_norm_eps": 1e-6,
         "layer_types": ["linear_attention"] * 3 + ["full_attention"], "full_attention_interval": 4,
         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
         "linear_conv_kernel_dim": 4, "tie_word_embeddings": not moe, "max_position_embeddings": 4096, "attention_bias": False,
         "attn_output_gate": True, "hidden_act": "silu", "mamba_ssm_dtype": "float32", "eos_token_id": 2, "bos_token_id": 1,
         "partial_rotary_factor": 0.25,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                             "mrope_section": [2, 1, 1], "mrope_interleaved": True}}
    if moe:
        c.update(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)
    else:
        c.update(intermediate_size=128)
    return c


def qwen3():
    return {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 32, "vocab_size": VOCAB, "rms_norm_eps": 1e-6, "intermediate_size": 128, "tie_word_embeddings": False,
            "max_position_embeddings": 512, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": 1e6,
            "hidden_act": "silu", "attention_bias": False, "use_sliding_window": False, "eos_token_id": 2, "bos_token_id": 1}


def gemma4(moe=False, per_layer=0, shared=0, k_eq_v=False):
    layers = 6 if shared else 3
    types = (["sliding_attention"] * 2 + ["full_attention"]) * (layers // 3)
    return {"model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": layers, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_global_key_value_heads": 1 if k_eq_v else None, "head_dim": 32, "global_head_dim": 64,
            "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "rms_norm_eps": 1e-6, "intermediate_size": 128,
            "layer_types": types, "sliding_window": 16, "attention_k_eq_v": k_eq_v, "num_kv_shared_layers": shared,
            "use_double_wide_mlp": bool(shared), "hidden_size_per_layer_input": per_layer, "enable_moe_block": moe,
            "num_experts": 8 if moe else None, "top_k_experts": 2 if moe else None, "moe_intermediate_size": 64 if moe else None,
            "final_logit_softcapping": 30.0, "tie_word_embeddings": True, "max_position_embeddings": 512,
            "hidden_activation": "gelu_pytorch_tanh", "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
            "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0,
                                                   "partial_rotary_factor": 0.25}}}


def affine(bits, group=64):
    return {"q_bits": bits, "q_group_size": group, "q_mode": "affine"}


def mode(name):
    return {"q_mode": name}


def ends(**bits):
    """Modules whose paths end in a key (with "." for "__") get so many bits, groups of 64; 0: stay as they are."""
    def pick(path, module):
        for k, b in bits.items():
            if path.endswith(k.replace("__", ".")):
                return {"bits": b, "group_size": 64, "mode": "affine"} if b else False
        return True
    return pick


# As google's QAT conversions have it: attention and experts 4 bits, MLP and router 8.
QAT = ends(mlp__gate_proj=8, mlp__up_proj=8, mlp__down_proj=8, router__proj=8)
# Every width of a mixed recipe in one network.
MIXED = ends(layers__0__mlp__down_proj=2, layers__0__mlp__gate_proj=3, layers__1__mlp__down_proj=5, out_proj=6, in_proj_z=3, v_proj=6, o_proj=5,
             in_proj_a=0, layers__2__mlp__up_proj=2, embed_tokens=8)

# name: (config, quantisation of the conversion; None: the raw layout[, predicate over module paths])
TINY = {
    "tiny-qwen3-4bit": (qwen3(), affine(4)),
    "tiny-qwen35-raw": (qwen35(False), None),
    "tiny-qwen35-4bit": (qwen35(False), affine(4)),
    "tiny-qwen35moe-raw": (qwen35(True), None),
    "tiny-qwen35moe-4bit": (qwen35(True), affine(4)),
    "tiny-gemma4-raw": (gemma4(k_eq_v=True), None),
    "tiny-gemma4moe-raw": (gemma4(moe=True, k_eq_v=True), None),
    "tiny-gemma4moe-4bit": (gemma4(moe=True, k_eq_v=True), affine(4)),
    "tiny-gemma4e-raw": (gemma4(per_layer=64, shared=3), None),
    "tiny-gemma4e-8bit": (gemma4(per_layer=64, shared=3), affine(8, 32)),
    "tiny-qwen3-raw": (qwen3(), None),
    "tiny-qwen35-mixed": (qwen35(False), affine(4), MIXED),
    "tiny-qwen35-8bit": (qwen35(False), affine(8)),
    "tiny-qwen35-mxfp8": (qwen35(False), mode("mxfp8")),
    "tiny-gemma4-qat": (gemma4(k_eq_v=True), affine(4), QAT),
    "tiny-gemma4-mxfp4": (gemma4(k_eq_v=True), mode("mxfp4")),
    "tiny-gemma4moe-qat": (gemma4(moe=True, k_eq_v=True), affine(4), QAT),
    "tiny-gemma4moe-aligned": (gemma4(moe=True, k_eq_v=True), affine(4, 32), ends(router__proj=0)),
    "tiny-gemma4e-qat": (gemma4(per_layer=64, shared=3), affine(4), QAT),
}


def hf_model(c, dtype=torch.float32):
    from transformers import AutoConfig, AutoModelForCausalLM
    kind = c["model_type"]
    conf = AutoConfig.for_model(kind, **{k: v for k, v in c.items() if k != "model_type"})
    conf._attn_implementation = "eager"
    if hasattr(conf, "_experts_implementation"):
        conf._experts_implementation = "eager"
    return AutoModelForCausalLM.from_config(conf, dtype=dtype).eval()


def randomise(m, c, name):
    """Scaled as trained models are: logits over some ten units, norms near their centre, a few outliers."""
    g = torch.Generator().manual_seed(zlib.crc32(name.split("-")[1].encode()))
    gemma4_ = c["model_type"].startswith("gemma4")
    with torch.no_grad():
        for n, p in sorted(m.named_parameters()):
            r = torch.randn(p.shape, generator=g)
            if n.endswith("A_log"):
                v = torch.rand(p.shape, generator=g).mul(7.5).add(0.5).log()
            elif n.endswith("dt_bias"):
                v = 1 + 0.3 * r
            elif "layer_scalar" in n:
                v = 0.7 + 0.1 * r
            elif "per_expert_scale" in n:
                v = 1 + 0.2 * r
            elif "router.scale" in n:
                v = 8 + r
            elif p.dim() == 1:
                centre = 1 if gemma4_ or "linear_attn.norm" in n or c["model_type"] == "qwen3" else 0
                v = centre + 0.2 * r
            elif "conv1d" in n:
                v = 0.5 * r
            elif "embed_tokens" in n:
                v = r * (2.0 if gemma4_ else 4.0) / p.shape[-1] ** 0.5
            else:
                gain = 1.5 if "q_proj" in n or "k_proj" in n or "gate.weight" in n or "router" in n else 1.0
                v = gain * r / p.shape[-1] ** 0.5
            p.copy_(v.to(torch.bfloat16).to(p.dtype))
        for n, b in m.named_buffers():
            if "layer_scalar" in n:
                b.copy_((0.7 + 0.1 * torch.randn(b.shape, generator=g)).to(torch.bfloat16).to(b.dtype))


def hf_logits(m, ids):
    with torch.no_grad():
        return m(torch.tensor([ids])).logits[0].double()


def nested(c):
    return c["model_type"].endswith("_text")


def raw_checkpoint(m, c, out):
    """The published layout: names as save_pretrained writes them, bf16, gates and A_log in F32."""
    from safetensors.torch import save_file
    os.makedirs(out, exist_ok=True)
    sd = {}
    for n, p in m.state_dict().items():
        if n == "lm_head.weight" and c["tie_word_embeddings"]:
            continue
        keep = n.endswith("A_log")
        to = n.replace("model.", "model.language_model.", 1) if nested(c) else n
        sd[to] = p.float().contiguous() if keep else p.to(torch.bfloat16).contiguous()
    save_file(sd, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    conf = {k: v for k, v in c.items() if v is not None}
    conf["dtype"] = conf["torch_dtype"] = "bfloat16"
    if nested(c): # as published: the text part inside a multimodal config
        conf = {"model_type": c["model_type"].replace("_text", ""), "text_config": conf, "vocab_size": VOCAB,
                "tie_word_embeddings": c["tie_word_embeddings"], "torch_dtype": "bfloat16", "eos_token_id": c["eos_token_id"]}
    json.dump(conf, open(os.path.join(out, "config.json"), "w"), indent=1)
    s = {"family": "gemma3_text" if c["model_type"].startswith("gemma") else "llama", "vocab": VOCAB}
    mt.make_tokenizer(s, out)
    return sd


def mlx_model(path):
    import mlx_lm
    model, _ = mlx_lm.load(path)
    model.set_dtype(mx.float32)
    return model


def mlx_logits(model, ids):
    return torch.from_numpy(np.array(model(mx.array([ids]))[0].astype(mx.float32))).double()


def kl_and_d(truth, other):
    lp, lq = torch.log_softmax(truth, -1), torch.log_softmax(other.double(), -1)
    return float((lp.exp() * (lp - lq)).sum(-1).mean()), float((truth - other).abs().max())


def make(name, out_dir):
    c, quant, pick = (*TINY[name], None)[:3]
    m = hf_model(c)
    randomise(m, c, name)
    final = os.path.join(out_dir, name)
    shutil.rmtree(final, ignore_errors=True)
    with tempfile.TemporaryDirectory() as tmp:
        raw = os.path.join(tmp, "raw")
        raw_checkpoint(m, c, raw)
        half = hf_model(c, torch.bfloat16)
        half.load_state_dict({k: v.to(half.state_dict()[k].dtype) for k, v in m.state_dict().items()})
        if quant is None:
            shutil.copytree(raw, final)
            logits, source = (lambda ids: hf_logits(m, ids)), "transformers float32"
        else:
            import mlx_lm
            plain = os.path.join(tmp, "plain")
            mlx_lm.convert(raw, plain, quantize=False, dtype="float32")
            check = mlx_model(plain)
            ids = list(range(3, 60))
            kl, d = kl_and_d(hf_logits(m, ids), mlx_logits(check, ids))
            print(f"{name}: transformers against mlx-lm, both float32: KL {kl:.1e} max|d| {d:.1e}")
            mlx_lm.convert(raw, final, quantize=True, dtype="bfloat16", **quant, **({"quant_predicate": pick} if pick else {}))
            for f in ("README.md", ".gitattributes"):
                if os.path.exists(os.path.join(final, f)):
                    os.remove(os.path.join(final, f))
            q = mlx_model(final)
            logits, source = (lambda ids: mlx_logits(q, ids)), "mlx-lm float32"
        again = hf_checkpoint.load(final)  # a second opinion: the files as they are, decoded, in transformers
        for case, ids in cases(final):
            kl, d = kl_and_d(logits(ids), hf_logits(again, ids))
            assert d < 1e-2, (name, case, d)  # MLX has another epsilon in the delta net
        write_truth(name, final, logits, source, m, half)


def cases(path):
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    rng = np.random.default_rng(11)
    long = t.encode(prompts.LONG).ids
    return [("prose", long[:120]), ("random", [int(x) for x in rng.integers(0, VOCAB, 48)]),
            ("short", t.encode(prompts.TEXTS[2][1]).ids[:5]), ("mixed", t.encode(prompts.TEXTS[8][1]).ids[:40])]


def write_truth(name, path, logits, source, m, half):
    ref = refdata.Writer(VOCAB, 8, 8, 2, full_every=29)
    kl_sum = n = 0
    d_max = 0.0
    hits = 0
    first = None
    for case, ids in cases(path):
        rows = logits(ids)
        ref.add(case, ids, rows)
        first = first or (case, ids)
        t, h = hf_logits(m, ids), hf_logits(half, ids)
        kl, d = kl_and_d(t, h)
        kl_sum += kl * len(ids)
        n += len(ids)
        d_max = max(d_max, d)
        hits += int((t.argmax(-1) == h.argmax(-1)).sum())
    out, margins, seq = [], [], list(first[1])
    for _ in range(8):
        row = logits(seq)[-1]
        v, _ = row.topk(2)
        tok = int((row == v[0]).nonzero()[0])
        out.append(tok)
        margins.append(float(v[0] - v[1]))
        seq.append(tok)
    ref.add_greedy(first[0], out, margins)
    meta = {"model": name, "truth": source,
            "bf16_exact_weights": {"kl_mean": kl_sum / n, "dmax": d_max, "top1": hits / n}}
    ref.save(os.path.join(path, "truth.cbref"), meta)
    print(f"{name}: {n} positions, bf16 stack KL {kl_sum / n:.1e} max|d| {d_max:.1e}")


# ---- Bonsai 1: Qwen 3 with 1-bit or ternary codes, groups of 128, f16 scales; YaRN --------------------------------------

BONSAI1 = {"tiny-qwen3-1bit": 1, "tiny-qwen3-2bit-g128": 2}


def sign_codes(w):
    """Codes 0 and 1 for -s and s, s f16 per 128 columns: stored as scale 2s and bias -s."""
    g = w.reshape(w.shape[0], -1, 128)
    s = g.abs().mean(-1).to(torch.float16)
    return (g > 0).reshape(w.shape).to(torch.uint8), (2 * s).to(torch.float16), -s


def make_bonsai1(name, out_dir):
    """MLX's CPU has no 1-bit codes, so the truth is transformers in float64 on the decoded matrices (hf_checkpoint.py)."""
    from safetensors.numpy import save_file
    bits = BONSAI1[name]
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128}
    c = dict(qwen3(), hidden_size=128, intermediate_size=256, head_dim=32, tie_word_embeddings=bits == 1, rope_parameters=rope)
    del c["rope_theta"]
    m = hf_model(c)
    randomise(m, c, name)
    path = os.path.join(out_dir, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    tensors = {}
    for n, w in m.state_dict().items():
        if n == "lm_head.weight" and c["tie_word_embeddings"]:
            continue
        if w.dim() == 1:
            tensors[n] = w.to(torch.float16).numpy()
            continue
        if bits == 1:
            code, scale, bias = sign_codes(w)
            tensors[n] = np.packbits(code.numpy(), axis=-1, bitorder="little").view(np.uint32)
        else:
            code, scale, _ = ternary(w.double())
            scale, bias = scale.to(torch.float16), -scale.to(torch.float16)
            tensors[n] = pack2(code)
        tensors[n[:-len("weight")] + "scales"] = scale.numpy()
        tensors[n[:-len("weight")] + "biases"] = bias.numpy()
    save_file(tensors, os.path.join(path, "model.safetensors"), metadata={"format": "mlx"})
    old = {k: v for k, v in c.items() if k != "rope_parameters"}  # as the packs write it: keys of before rope_parameters
    old.update(rope_theta=1e6, rope_scaling={k: v for k, v in rope.items() if k != "rope_theta"}, torch_dtype="float16",
               quantization={"group_size": 128, "bits": bits})
    json.dump(old, open(os.path.join(path, "config.json"), "w"), indent=1)
    mt.make_tokenizer({"family": "llama", "vocab": VOCAB}, path)
    exact, half = hf_checkpoint.load(path, torch.float64), hf_checkpoint.load(path, torch.bfloat16)
    single = hf_checkpoint.load(path)
    ids = cases(path)[0][1]
    print(f"{name}: transformers float64 against float32: max|d| {kl_and_d(hf_logits(exact, ids), hf_logits(single, ids))[1]:.1e}")
    if bits == 2:
        print(f"{name}: against mlx-lm float32: max|d| {kl_and_d(hf_logits(exact, ids), mlx_logits(mlx_model(path), ids))[1]:.1e}")
    write_truth(name, path, lambda ids: hf_logits(exact, ids), "transformers float64 on the decoded matrices", exact, half)


# ---- Bonsai 2 packs: ternary codes in a signed Hadamard basis -----------------------------------------------------------

BONSAI = {"tiny-bonsai2-tied": True, "tiny-bonsai2": False}
BLOCK = 512


def hadamard(x):
    """Rows of x times the normalised Walsh-Hadamard matrix in blocks, float64."""
    y = x.double().reshape(-1, x.shape[-1] // BLOCK, BLOCK).clone()
    s = 1
    while s < BLOCK:
        v = y.reshape(y.shape[0], y.shape[1], BLOCK // (2 * s), 2, s)
        y = torch.stack([v[..., 0, :] + v[..., 1, :], v[..., 0, :] - v[..., 1, :]], -2).reshape(y.shape)
        s *= 2
    return y.reshape(x.shape) / BLOCK ** 0.5


def ternary(w):
    """Codes 0, 1, 2 and one f16 scale per 128 columns; value scale * (code - 1)."""
    g = w.reshape(w.shape[0], -1, 128)
    scale = g.abs().mean(-1, keepdim=True).mul(1.2).to(torch.float16).double()
    code = torch.clamp(torch.round(g / scale), -1, 1)
    return (code + 1).to(torch.uint8).reshape(w.shape), scale[..., 0], (code * scale).reshape(w.shape)


def pack2(code):
    c = code.to(torch.int64).reshape(code.shape[0], -1, 16)
    word = sum(c[..., i] << 2 * i for i in range(16))
    return word.numpy().astype(np.uint32)


def make_bonsai(name, out_dir):
    from safetensors.numpy import save_file
    c = qwen35(False)
    c.update(hidden_size=512, intermediate_size=512, head_dim=128, num_hidden_layers=2, full_attention_interval=2,
             layer_types=["linear_attention", "full_attention"], linear_key_head_dim=128, linear_value_head_dim=128,
             tie_word_embeddings=BONSAI[name])
    c["rope_parameters"]["mrope_section"] = [6, 5, 5]
    m = hf_model(c)
    randomise(m, c, name)
    path = os.path.join(out_dir, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    signs = (torch.randint(0, 2, (512,), generator=torch.Generator().manual_seed(5)) * 2 - 1).double()
    tensors, modules, forward, inverse = {}, [], [], []
    sd = m.state_dict()
    for n in list(sd):
        w = sd[n]
        to = "language_model." + n
        if n == "lm_head.weight" and c["tie_word_embeddings"]:
            continue
        big = w.dim() == 2 and not any(k in n for k in ("in_proj_a", "in_proj_b"))
        if not big:
            v = w.float()
            if v.dim() == 1 and not any(k in n for k in ("A_log", "dt_bias", "linear_attn.norm")):
                v = v + 1
            tensors[to] = (v.transpose(1, 2) if "conv1d" in n else v).contiguous().numpy()
            continue
        code, scale, value = ternary(hadamard(w.double() * signs))
        sd[n].copy_((hadamard(value) * signs).float()) # what the packed matrix is in the ordinary basis
        mod = to[:-len(".weight")]
        tensors[to] = pack2(code)
        tensors[mod + ".scales"] = scale.numpy().astype(np.float16)
        tensors[mod + ".biases"] = (-scale).numpy().astype(np.float16)
        tensors[mod + ".signs"] = signs.numpy().astype(np.float32)
        embed = "embed_tokens" in n
        modules.append({"path": n[:-len(".weight")], "block": BLOCK, "embedding": embed, "dtype": "float16"})
        (inverse if embed else forward).append(to)
    m.load_state_dict(sd)
    m.tie_weights()
    save_file(tensors, os.path.join(path, "model.safetensors"), metadata={"format": "mlx"})
    conf = {"schema_version": 2, "model_type": "prism_hadamard_qwen35", "base_model_type": "qwen3_5",
            "tensor_namespace": "mlx-vlm-qwen3_5", "gdn_activation_layout": "grouped", "requires_runtime": "runtime/artifact.py",
            "hadamard_config": "hadamard.json", "components": {"text": True, "vision": False, "mtp": False},
            "quantization": {"bits": 2, "group_size": 128, "mode": "affine"}, "tie_word_embeddings": c["tie_word_embeddings"],
            "modules": modules, "text_config": c, "eos_token_id": 2}
    json.dump(conf, open(os.path.join(path, "config.json"), "w"), indent=1)
    h = {"version": 1, "block_size": BLOCK, "transform": "normalized-sylvester-walsh-hadamard", "axis": "input-last-dimension",
         "sign_mode": "explicit", "weight_names": forward, "inverse_weight_names": inverse, "sign_widths": [512],
         "sign_values": [float(x) for x in signs], "gdn_v_grouped": True}
    json.dump({"prism.hadamard." + k: v for k, v in h.items()}, open(os.path.join(path, "hadamard.json"), "w"))
    mt.make_tokenizer({"family": "llama", "vocab": VOCAB}, path)
    half = hf_model(c, torch.bfloat16)
    half.load_state_dict({k: v.to(half.state_dict()[k].dtype) for k, v in m.state_dict().items()})
    write_truth(name, path, lambda ids: hf_logits(m, ids), "transformers float32 on the unfolded weights", m, half)


if __name__ == "__main__":
    for name in sys.argv[2:] or list(TINY) + list(BONSAI) + list(BONSAI1):
        (make_bonsai if name in BONSAI else make_bonsai1 if name in BONSAI1 else make)(name, sys.argv[1])
        if "moe" in name:
            hf_checkpoint.routes(os.path.join(sys.argv[1], name))
