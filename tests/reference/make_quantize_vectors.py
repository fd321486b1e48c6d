"""Makes tests/data/quantize.safetensors: what the unmodified mx.quantize says on the CPU about a few hard rows, for every width,
group, dtype and mode.

  python make_quantize_vectors.py OUT_FILE          (tests/data/quantize.safetensors)

Tensors: in.DTYPE [rows][128]; MODE.BITS.GROUP.DTYPE.{weight,scales,biases}. Needs mlx and numpy. The seed is fixed."""
import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
COLS = 128


def rows(dtype):
    """Each row one kind of trouble, within what dtype can hold."""
    g = np.random.default_rng(20)
    n = lambda: g.standard_normal(COLS)
    big = 3e4 if dtype == mx.float16 else 1e30
    # half of the numbers subnormal; where all are, MLX's CPU lets the byte of an mx scale wrap round
    tiny = np.where(np.arange(COLS) % 2, 3e-4, 1e-7) if dtype == mx.float16 else np.where(np.arange(COLS) % 2, 1e-35, 1e-40)
    edge = np.zeros(COLS)
    edge[5], edge[40], edge[77] = 1.0, -2.0, 1e-3
    worked = ((7 * np.arange(COLS) % 32) - 13) / 16.0
    worked[5::32] = 1.40625
    out = [0.02 * n(), n(), 0 * n(), 0 * n() + 0.5, 0 * n() - 0.5, -np.abs(n()), np.abs(n()), -5 - np.abs(n()), 7 + 0.01 * n(),
           tiny * n(), big * g.uniform(-1, 1, COLS), np.round(2 * n()) / 2, edge, np.where(g.random(COLS) < 0.02, 30, 1) * n(),
           1e-4 * n(), np.tile([5, 6, 5.5, -6], COLS // 4), worked, 100 * n(), np.arange(COLS) / 8.0, -np.arange(COLS) / 16.0,
           np.tile([0.1, -0.25, 0.5, 0.75, 1, -1.5, 2, 3], COLS // 8), 2.0 ** g.integers(-6, 6, COLS) * np.sign(n())]
    return mx.array(np.array(out, dtype=np.float32)).astype(dtype)


def main():
    out = {}
    for name, dtype in (("bf16", mx.bfloat16), ("f16", mx.float16), ("f32", mx.float32)):
        x = rows(dtype)
        out["in." + name] = x
        for bits in (1, 2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                w, s, b = mx.quantize(x, group, bits)
                key = f"affine.{bits}.{group}.{name}."
                out[key + "weight"], out[key + "scales"], out[key + "biases"] = w, s, b
        for mode, bits, group in (("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)):
            w, s = mx.quantize(x, mode=mode)
            out[f"{mode}.{bits}.{group}.{name}.weight"], out[f"{mode}.{bits}.{group}.{name}.scales"] = w, s
    mx.eval(out)
    mx.save_safetensors(sys.argv[1], out, metadata={"format": "mlx"})


main()
