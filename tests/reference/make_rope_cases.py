"""Writes tests/data/rope_cases.json: rotary frequencies and attention factors as transformers computes them.

  python make_rope_cases.py > tests/data/rope_cases.json"""
import json

from transformers import LlamaConfig, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

QWEN3_8B = dict(hidden_size=4096, num_attention_heads=32, head_dim=128)


def case(name, rope, n_ctx, config=Qwen3Config, old=None, **kw):
    """old: keys as files of before rope_parameters write them; else the object goes in as it is."""
    shape = {**QWEN3_8B, **kw}
    c = config(**shape, max_position_embeddings=n_ctx, rope_parameters=rope)
    freq, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](c, "cpu")
    dim = int(shape["head_dim"] * rope.get("partial_rotary_factor", 1))
    assert len(freq) == dim // 2
    shown = sorted(set(list(range(0, dim // 2, 5)) + [dim // 2 - 1]))
    text = old or {"rope_parameters": rope}
    return {"name": name, "config": {"model_type": "qwen3", **text}, "dim": dim, "factor": float(factor),
            "freq": {str(i): float(freq[i]) for i in shown}}


def old_style(rope, kind="rope_type"):
    r = {("type" if k == "rope_type" and kind == "type" else k): v for k, v in rope.items() if k != "rope_theta"}
    return {"rope_theta": rope["rope_theta"], "rope_scaling": r}


def main():
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    bonsai = dict(yarn, original_max_position_embeddings=16384)
    long35 = {"rope_type": "yarn", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "factor": 4.0,
              "original_max_position_embeddings": 262144, "mrope_section": [11, 11, 10], "mrope_interleaved": True}
    cases = [
        case("Qwen 3, 131072 tokens", yarn, 131072, old=old_style(yarn)),
        case("Qwen 3, as transformers 5 writes it", yarn, 131072),
        case("Bonsai 1 8B, 65536 tokens", bonsai, 65536, old=old_style(bonsai, "type")),
        case("Qwen 3.5, a million tokens", long35, 1048576, head_dim=256),
        case("given attention factor and betas", dict(yarn, attention_factor=1.25, beta_fast=16.0, beta_slow=2.0), 131072),
        case("mscale and mscale_all_dim", dict(yarn, factor=8.0, mscale=0.7, mscale_all_dim=1.3), 131072),
        case("not truncated", dict(yarn, truncate=False, factor=2.5), 81920),
        case("factor below 1", dict(yarn, factor=0.5), 32768),
        case("heads of 32, range clipped", dict(yarn, original_max_position_embeddings=64, rope_theta=1e4), 256, head_dim=32, hidden_size=64, num_attention_heads=2),
        case("linear", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, 4096, LlamaConfig,
             old=old_style({"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})),
        case("llama3", {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 8192}, 131072, LlamaConfig),
    ]
    print(json.dumps(cases, indent=1))


if __name__ == "__main__":
    main()
