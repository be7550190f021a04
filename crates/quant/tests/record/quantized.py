"""Records what bitsandbytes' CPU kernels give, for crates/quant/tests/bitsandbytes.rs.

    python quantized.py > ../golden/bitsandbytes.json

bitsandbytes 0.50.2, torch 2.15. Tensors are the hex of their bytes.
"""

import json

import bitsandbytes.functional as bnb
import torch

torch.manual_seed(7)


def text(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes().hex()


def matrix(rows, row, kind):
    weights = torch.randn(rows, row) * 0.05
    if kind == "outlier":
        weights[0, 0] = 8.0
        weights[1, :] = 0
    return weights


def numbers(tensor):
    return [float(number) for number in tensor]


def four_bits(scheme, nested, dtype, rows, row, kind):
    weights = matrix(rows, row, kind).to(dtype)
    codes, state = bnb.quantize_4bit(weights, blocksize=64, compress_statistics=nested, quant_type=scheme)
    case = {"scheme": scheme, "nested": nested, "dtype": str(dtype)[6:], "shape": [rows, row]}
    case |= {"weights": text(weights), "codes": text(codes), "values": text(bnb.dequantize_4bit(codes, state))}
    if nested:
        return case | {"offset": float(state.offset), "scale_codes": text(state.absmax), "scales": numbers(state.state2.absmax)}
    return case | {"scales": numbers(state.absmax)}


cases = []
for scheme in ["nf4", "fp4"]:
    for nested in [False, True]:
        for dtype in [torch.float32, torch.bfloat16]:
            for shape in [(6, 128, "plain"), (5, 66, "plain"), (4, 192, "outlier")]:
                cases.append(four_bits(scheme, nested, dtype, *shape))
    cases.append(four_bits(scheme, True, torch.bfloat16, 264, 64, "plain"))
    cases.append(four_bits(scheme, False, torch.float16, 6, 128, "plain"))
for dtype in [torch.float32, torch.bfloat16]:
    # A weight is read in half precision whatever it is stored in.
    weights = matrix(5, 70, "outlier").to(dtype)
    weights[1, :] = 0.001
    codes, scales, _ = bnb.int8_vectorwise_quant(weights.to(torch.float16))
    values = bnb.int8_vectorwise_dequant(codes, scales).to(dtype)
    case = {"scheme": "int8", "nested": False, "dtype": str(dtype)[6:], "shape": [5, 70]}
    cases.append(case | {"weights": text(weights), "codes": text(codes), "scales": numbers(scales), "values": text(values)})
print(json.dumps(cases))
