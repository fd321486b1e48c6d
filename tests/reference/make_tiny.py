"""Makes the tiny checkpoints of tests/data/tiny-*: random weights, converted and quantised by the unmodified mlx-lm on the
CPU, with a small byte-level tokenizer, and truth.cbref: what a float64 evaluation of the dequantised weights says.

  python make_tiny.py OUT_DIR [NAME ...]        (tests/data; all names by default)

Needs torch, transformers, numpy, tokenizers, mlx, mlx-lm. Seeds are fixed; mlx's random numbers are not used."""
import copy
import json
import os
import shutil
import sys
import tempfile
import zlib

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import mlx.core as mx
import numpy as np
import torch

import prompts
import refdata
import refmodel as rm

mx.set_default_device(mx.cpu)

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
GEMMA = ("{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else "
         "message['role']) + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")


def spec(family="llama", hidden=64, layers=2, heads=4, kv=2, dim=16, inter=128, vocab=288, tied=True, quant=None,
         dtype="bfloat16", overrides=None, window=16, pattern=3):
    return dict(locals())


def affine(bits, group):
    return {"q_bits": bits, "q_group_size": group, "q_mode": "affine"}


def mode(name):
    return {"q_mode": name}


TINY = {
    "tiny-llama-4bit": spec(quant=affine(4, 64)),
    "tiny-llama-bf16": spec(hidden=48, heads=3, kv=1, dim=16, inter=64),
    "tiny-llama-f16": spec(hidden=48, heads=2, kv=2, dim=24, inter=48, dtype="float16"),
    "tiny-llama-f32": spec(hidden=40, heads=2, kv=1, dim=20, inter=72, layers=1, dtype="float32"),
    "tiny-llama-2bit-g32": spec(quant=affine(2, 32), hidden=96, heads=3, kv=1, dim=32, inter=160),
    "tiny-llama-2bit-g128": spec(quant=affine(2, 128), hidden=128, heads=4, kv=1, dim=32, inter=256),
    "tiny-llama-3bit": spec(quant=affine(3, 64), tied=False),
    "tiny-llama-3bit-g32-f16": spec(quant=affine(3, 32), hidden=96, heads=6, kv=3, dim=16, inter=96, dtype="float16"),
    "tiny-llama-4bit-g32-f32": spec(quant=affine(4, 32), hidden=96, heads=3, kv=3, dim=32, inter=160, layers=1, dtype="float32"),
    "tiny-llama-4bit-g128": spec(quant=affine(4, 128), hidden=128, heads=2, kv=1, dim=64, inter=128, layers=1),
    "tiny-llama-5bit": spec(quant=affine(5, 64), heads=4, kv=4),
    "tiny-llama-5bit-g32": spec(quant=affine(5, 32), hidden=96, heads=3, kv=1, dim=32, inter=96, layers=1),
    "tiny-llama-6bit": spec(quant=affine(6, 64)),
    "tiny-llama-6bit-g128": spec(quant=affine(6, 128), hidden=128, heads=2, kv=1, dim=64, inter=128, layers=1),
    "tiny-llama-8bit-g32": spec(quant=affine(8, 32), inter=96),
    "tiny-llama-8bit": spec(quant=affine(8, 64), layers=1),
    "tiny-llama-mixed": spec(quant=affine(4, 64), tied=False, layers=3,
                             overrides={"lm_head": {"bits": 8, "group_size": 64}, "v_proj": {"bits": 6, "group_size": 32},
                                        "layers.1.mlp.down_proj": {"bits": 3, "group_size": 128},
                                        "layers.2.mlp.up_proj": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
                                        "layers.0.self_attn.o_proj": False}),
    "tiny-llama-mxfp4": spec(quant=mode("mxfp4"), hidden=96, heads=3, kv=1, dim=32, inter=160, layers=1),
    "tiny-llama-mxfp8": spec(quant=mode("mxfp8"), layers=1),
    "tiny-llama-nvfp4": spec(quant=mode("nvfp4"), hidden=80, heads=5, kv=1, dim=16, inter=144),
    "tiny-gemma3-4bit": spec("gemma3_text", quant=affine(4, 64), layers=3, heads=4, kv=1, dim=32),
    "tiny-gemma3-bf16": spec("gemma3_text", hidden=48, layers=2, pattern=2, heads=2, kv=1, dim=24, inter=32, vocab=272),
    "tiny-gemma3-8bit-g32": spec("gemma3_text", quant=affine(8, 32), layers=2, pattern=2, heads=2, kv=2, dim=32, inter=64),
}


# ---- source model ----------------------------------------------------------------------------------------------------

def config_json(s):
    c = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": s["hidden"],
         "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"], "num_key_value_heads": s["kv"],
         "head_dim": s["dim"], "intermediate_size": s["inter"], "vocab_size": s["vocab"], "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "rope_scaling": None, "max_position_embeddings": 512, "tie_word_embeddings": s["tied"],
         "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
         "torch_dtype": s["dtype"]}
    if s["family"] != "llama":
        for k in ("rope_scaling", "attention_bias", "mlp_bias", "hidden_act"):
            del c[k]
        c.update(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", rms_norm_eps=1e-6, rope_theta=1000000.0,
                 rope_local_base_freq=10000.0, query_pre_attn_scalar=s["dim"], sliding_window=s["window"],
                 sliding_window_pattern=s["pattern"], hidden_activation="gelu_pytorch_tanh", bos_token_id=2, eos_token_id=[1, 5],
                 layer_types=["full_attention" if (i + 1) % s["pattern"] == 0 else "sliding_attention"
                              for i in range(s["layers"])])
    return c


def random_weights(s, rng):
    """Scaled so that logits spread over some ten units; a few outlier channels, as real models have."""
    h, d, w = s["hidden"], s["dim"], {}
    gemma = s["family"] != "llama"

    def mat(name, n, k, gain=1.0):
        w[name + ".weight"] = rng.standard_normal((n, k)) * gain / np.sqrt(k)

    def vec(name, n):
        v = 0.2 * rng.standard_normal(n)
        v[rng.integers(0, n, 2)] += 3
        w[name + ".weight"] = v if gemma else 1 + v

    mat("model.embed_tokens", s["vocab"], h, 2.0 if gemma else 4.0 if s["tied"] else 8.0)
    if not s["tied"]:
        mat("lm_head", s["vocab"], h, 4.0)
    vec("model.norm", h)
    for l in range(s["layers"]):
        p = f"model.layers.{l}."
        mat(p + "self_attn.q_proj", s["heads"] * d, h, 1.5)
        mat(p + "self_attn.k_proj", s["kv"] * d, h, 1.5)
        mat(p + "self_attn.v_proj", s["kv"] * d, h)
        mat(p + "self_attn.o_proj", h, s["heads"] * d)
        mat(p + "mlp.gate_proj", s["inter"], h)
        mat(p + "mlp.up_proj", s["inter"], h)
        mat(p + "mlp.down_proj", h, s["inter"])
        vec(p + "input_layernorm", h)
        vec(p + "post_attention_layernorm", h)
        if gemma:
            vec(p + "pre_feedforward_layernorm", h)
            vec(p + "post_feedforward_layernorm", h)
            vec(p + "self_attn.q_norm", d)
            vec(p + "self_attn.k_norm", d)
    return w


def make_tokenizer(s, out):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    gemma = s["family"] != "llama"
    special = (["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"] if gemma else
               ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=s["vocab"], special_tokens=special, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    t.train_from_iterator([prompts.LONG] + [x for _, x in prompts.TEXTS], trainer)
    assert t.get_vocab_size() == s["vocab"], t.get_vocab_size()
    if gemma:
        t.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    t.save(os.path.join(out, "tokenizer.json"))
    conf = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "model_max_length": 512,
            "chat_template": GEMMA if gemma else CHATML}
    conf.update({"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"} if gemma else
                {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"})
    json.dump(conf, open(os.path.join(out, "tokenizer_config.json"), "w"), indent=2)
    json.dump({"bos_token_id": 2 if gemma else 1, "eos_token_id": [1, 5] if gemma else 2, "pad_token_id": 0 if gemma else 2},
              open(os.path.join(out, "generation_config.json"), "w"), indent=2)


def make_source(name, s, out):
    from safetensors.numpy import save_file
    os.makedirs(out, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    w = {k: v.astype(np.float32) for k, v in random_weights(s, rng).items()}
    save_file(w, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    json.dump(config_json(s), open(os.path.join(out, "config.json"), "w"), indent=2)
    make_tokenizer(s, out)


# ---- conversion ------------------------------------------------------------------------------------------------------

def predicate(overrides, fallback):
    def pick(path, module):
        for k, v in overrides.items():
            if path.endswith(k):
                return dict({"mode": "affine"}, **v) if isinstance(v, dict) else v
        return True
    return pick


def convert(name, s, src, dst):
    import mlx_lm
    kw = dict(s["quant"] or {})
    if s["overrides"]:
        kw["quant_predicate"] = predicate(s["overrides"], kw)
    mlx_lm.convert(src, dst, quantize=bool(s["quant"]), dtype=s["dtype"], **kw)
    for f in ("README.md", ".gitattributes"):
        if os.path.exists(os.path.join(dst, f)):
            os.remove(os.path.join(dst, f))


# ---- truth -----------------------------------------------------------------------------------------------------------

def hf_model(path, cfg, w):
    """transformers model holding the dequantised weights in float32."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM
    common = dict(vocab_size=cfg.vocab, hidden_size=cfg.hidden, intermediate_size=cfg.inter, num_hidden_layers=cfg.layers,
                  num_attention_heads=cfg.heads, num_key_value_heads=cfg.kv_heads, head_dim=cfg.head_dim,
                  rms_norm_eps=cfg.eps, max_position_embeddings=cfg.n_ctx or 4096, attn_implementation="eager",
                  tie_word_embeddings="lm_head.weight" not in w)
    if cfg.family == "llama":
        m = LlamaForCausalLM(LlamaConfig(rope_theta=cfg.theta, rope_parameters={"rope_type": "default", "rope_theta": cfg.theta},
                                         **common))
    else:
        types = ["full_attention" if f else "sliding_attention" for f in cfg.full]
        rope = {"full_attention": {"rope_type": "default", "rope_theta": cfg.theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": cfg.theta_local}}
        m = Gemma3ForCausalLM(Gemma3TextConfig(query_pre_attn_scalar=round(cfg.attn_scale ** -2), sliding_window=cfg.window,
                                               layer_types=types, rope_parameters=rope, **common))
    sd = {}
    for n, x in w.items():
        sd[n] = (x - 1.0 if cfg.family != "llama" and "norm" in n else x).float()
    missing, unexpected = m.load_state_dict(sd, strict=False)
    assert not unexpected and all(n == "lm_head.weight" for n in missing), (missing, unexpected)
    m.tie_weights()
    if cfg.family != "llama":
        m.model.embed_tokens.embed_scale.fill_(cfg.embed_scale) # float32 models would use sqrt(hidden) unrounded
    return m.eval()


def hf_logits(m, ids):
    with torch.no_grad():
        return m(torch.tensor([ids])).logits[0].double()


def hf_propose(m):
    """Greedy continuation by a transformers model, without regard to end tokens."""
    def run(ids, n):
        out = []
        with torch.no_grad():
            r = m(torch.tensor([ids]), use_cache=True)
            for _ in range(n):
                out.append(int(r.logits[0, -1].argmax()))
                if len(out) < n:
                    r = m(torch.tensor([[out[-1]]]), past_key_values=r.past_key_values, use_cache=True)
        return out
    return run


def mlx_logits(path, ids):
    """mlx-lm on the CPU with every float parameter cast to float32 (spec: bf16 sums on MLX's CPU are no reference)."""
    import mlx_lm
    model, _ = mlx_lm.load(path)
    model.set_dtype(mx.float32)
    return torch.from_numpy(np.array(model(mx.array([ids]))[0].astype(mx.float32))).double()


def tiny_cases(path):
    """Three sequences: text, a chat, and ids drawn from the whole vocabulary; the first passes a window of 16 many times."""
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    rng = np.random.default_rng(7)
    return [("prose", t.encode(prompts.TEXTS[0][1]).ids[:48]),
            ("random", [int(x) for x in rng.integers(0, t.get_vocab_size(), 16)]),
            ("mixed", t.encode(prompts.TEXTS[8][1]).ids[:16])]


def make_truth(name, path):
    cfg, w, _ = rm.load_mlx(path)
    ref = refdata.Writer(cfg.vocab, 8, 8, 2, full_every=13)
    hf = hf_model(path, cfg, w)
    parts = {k: [] for k in ("truth", "hf32", "hf16", "bf16", "mlx")}
    for case, ids in tiny_cases(path):
        truth = rm.forward(cfg, w, ids, rm.Exact(cfg, w))
        ref.add(case, ids, truth)
        parts["truth"].append(truth)
        parts["hf32"].append(hf_logits(hf, ids))
        parts["bf16"].append(rm.forward(cfg, w, ids, rm.Bf16(cfg, w)))
        parts["mlx"].append(mlx_logits(path, ids))
    hf32 = copy.deepcopy(hf)
    hf.to(torch.bfloat16)
    parts["hf16"] = [hf_logits(hf, ids) for _, ids in tiny_cases(path)]
    all_ = {k: torch.cat(v) for k, v in parts.items()}
    col = {k: rm.compare(all_["truth"], all_[k]) for k in ("hf32", "hf16", "bf16", "mlx")}
    for k in ("hf32", "mlx"):
        assert col[k]["dmax"] < 2e-3 and col[k]["kl_mean"] < 1e-7, (name, k, col[k])
    tokens, margins = refdata.greedy(cfg, w, tiny_cases(path)[0][1], 32, hf_propose(hf32))
    ref.add_greedy("prose", tokens, margins)
    ref.save(os.path.join(path, "truth.cbref"),
             {"model": name, "truth": "float64 over dequantised weights", "transformers_f32": col["hf32"],
              "transformers_bf16": col["hf16"], "bf16_exact_weights": col["bf16"], "mlx_lm_f32": col["mlx"]})
    return col


def main():
    out, names = sys.argv[1], sys.argv[2:] or list(TINY)
    for name in names:
        s, dst = TINY[name], os.path.join(out, name)
        with tempfile.TemporaryDirectory() as tmp:
            make_source(name, s, os.path.join(tmp, "src"))
            convert(name, s, os.path.join(tmp, "src"), os.path.join(tmp, "dst"))
            col = make_truth(name, os.path.join(tmp, "dst"))
            shutil.rmtree(dst, ignore_errors=True)
            shutil.copytree(os.path.join(tmp, "dst"), dst)
        size = sum(os.path.getsize(os.path.join(dst, f)) for f in os.listdir(dst))
        print(f"{name:26} {size / 1000:7.1f} kB  " + "  ".join(f"{k} kl {c['kl_mean']:.1e} d {c['dmax']:.1e}"
                                                              for k, c in col.items()), flush=True)


if __name__ == "__main__":
    main()
