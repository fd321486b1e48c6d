"""Makes tests/data/quantize-hashes.txt: what the unmodified mlx-lm makes of small float checkpoints, as one hash for each setting;
and tests/data/source-llama, the source (in bf16) that tests/data/tiny-llama-4bit was converted from.

  python make_quantize_hashes.py DATA_DIR          (tests/data)

A line: CHECKPOINT MODE BITS GROUP DTYPE SHA256, the hash over all tensors in order of name: "NAME DTYPE [SHAPE]\\n", then the
bytes. DTYPE "-" is the conversion's default. Needs what make_tiny.py needs."""
import contextlib
import glob
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile

import mlx.core as mx

import make_tiny as mt

mx.set_default_device(mx.cpu)
AFFINE = [("affine", b, g, "-") for b in (1, 2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
FP = [("mxfp4", 4, 32, "-"), ("mxfp8", 8, 32, "-"), ("nvfp4", 4, 16, "-")]
TYPED = [(m, b, g, t) for m, b, g in (("affine", 4, 32), ("affine", 3, 64), ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16))
         for t in ("float16", "float32")]
SOURCES = {"source-llama": AFFINE + FP + TYPED, "tiny-qwen35-raw": AFFINE + FP + TYPED, "tiny-gemma4-raw": AFFINE + FP,
           "tiny-gemma3-bf16": [("affine", 5, 32, "-"), ("nvfp4", 4, 16, "-")], "tiny-llama-f16": [("nvfp4", 4, 16, "-")],
           "tiny-qwen35moe-raw": [("affine", 4, 64, "-"), ("affine", 2, 32, "-"), ("mxfp4", 4, 32, "-"), ("affine", 6, 32, "float32")],
           "tiny-gemma4e-raw": [("affine", 8, 32, "-"), ("nvfp4", 4, 16, "-")]}


def digest(path):
    tensors = {}
    for f in glob.glob(os.path.join(path, "model*.safetensors")):
        raw = open(f, "rb").read()
        n = int.from_bytes(raw[:8], "little")
        for k, v in json.loads(raw[8:8 + n]).items():
            if k != "__metadata__":
                a, b = v["data_offsets"]
                tensors[k] = (v["dtype"], v["shape"], raw[8 + n + a:8 + n + b])
    h = hashlib.sha256()
    for k in sorted(tensors):
        dtype, shape, data = tensors[k]
        h.update(f"{k} {dtype} [{','.join(map(str, shape))}]\n".encode())
        h.update(data)
    return h.hexdigest()


def llama_raw(out):
    from safetensors.torch import load_file, save_file
    import torch
    name = "tiny-llama-4bit"
    shutil.rmtree(out, ignore_errors=True)
    mt.make_source(name, mt.TINY[name], out)
    f = os.path.join(out, "model.safetensors")
    save_file({k: v.to(torch.bfloat16) for k, v in load_file(f).items()}, f, metadata={"format": "pt"})
    os.chmod(f, 0o644)


def main():
    import mlx_lm
    data = sys.argv[1]
    llama_raw(os.path.join(data, "source-llama"))
    lines = []
    for name, settings in SOURCES.items():
        for mode, bits, group, dtype in settings:
            with tempfile.TemporaryDirectory() as tmp, contextlib.redirect_stdout(io.StringIO()):
                out = os.path.join(tmp, "out")
                mlx_lm.convert(os.path.join(data, name), out, quantize=True, q_mode=mode, q_bits=bits, q_group_size=group,
                               dtype=None if dtype == "-" else dtype)
                lines.append(f"{name} {mode} {bits} {group} {dtype} {digest(out)}")
            print(lines[-1], file=sys.stderr)
    open(os.path.join(data, "quantize-hashes.txt"), "w").write("\n".join(lines) + "\n")


main()
