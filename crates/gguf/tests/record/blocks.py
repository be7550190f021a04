"""Records ggml's blocks of values: `blocks.safetensors` beside this crate's tests.

Run with a folder that holds ggml's base library (libggml-base.so), built from llama.cpp's sources for a machine without
fused operations (the base library is by default):

    python crates/gguf/tests/record/blocks.py LIBRARY_FOLDER

Needs numpy, safetensors and gguf; says which version of gguf's own quantisation agrees.
"""

import ctypes
import pathlib
import sys

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).parents[1] / "golden"
TYPES = ["Q8_0", "Q4_0", "Q5_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"]


def values():
    draw = np.random.default_rng(20)
    rows = [
        draw.standard_normal(256) * 0.02,
        draw.standard_normal(256),
        draw.standard_t(2, 256),
        draw.uniform(0.5, 1.5, 256),
        -draw.uniform(0.5, 1.5, 256),
        np.zeros(256),
        np.full(256, 0.3),
        np.where(np.arange(256) < 40, 0.0, draw.standard_normal(256)),
        draw.standard_normal(256) * 1e-6,
        draw.standard_normal(256) * 1e-17,
        draw.standard_normal(256) * 1e3,
        np.round(draw.standard_normal(256) * 4) / 4,
        np.linspace(-1, 1, 256),
        np.where(np.arange(256) == 7, 100.0, draw.standard_normal(256) * 1e-3),
    ]
    rows += list(draw.standard_normal((34, 256)) * draw.lognormal(-3, 1, (34, 1)))
    return np.asarray(rows, dtype=np.float32)


def main():
    library = ctypes.CDLL(f"{sys.argv[1]}/libggml-base.so")
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_init.restype = None
    own = values()
    tensors = {"values": own}
    pointer = own.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    for name in TYPES:
        number = getattr(gguf.GGMLQuantizationType, name)
        block, size = gguf.GGML_QUANT_SIZES[number]
        out = np.zeros((own.shape[0], own.shape[1] // block * size), dtype=np.uint8)
        library.ggml_quantize_chunk(
            int(number), pointer, out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(0),
            ctypes.c_int64(own.shape[0]), ctypes.c_int64(own.shape[1]), None,
        )
        tensors[f"{name}.bytes"] = out
        if name.startswith("Q"):
            tensors[f"{name}.values"] = dequantize(out, number).astype(np.float32)
        try:
            same = np.array_equal(quantize(own, number).view(np.uint8).reshape(out.shape), out)
            print(name, "gguf's own quantisation agrees:", same)
        except NotImplementedError:
            print(name, "gguf does not quantise to it")
    ROOT.mkdir(exist_ok=True)
    save_file(tensors, ROOT / "blocks.safetensors")


main()
