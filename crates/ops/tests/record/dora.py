"""Records what PEFT's DoRA linear layer computes, in training with dropout and in evaluation.

Run with PEFT 0.21.2 and PyTorch: python dora.py > ../golden/dora.json
The dropout mask is burnish's (`burnish_core::random`), put in the place of PEFT's.
"""

import json
import sys

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

TOKENS, INPUTS, OUT, RANK, ALPHA, P, KEY = 5, 7, 6, 2, 3, 0.3, 0x0123456789ABCDEF
U32 = 0xFFFFFFFF


def mix(x):
    x ^= x >> 16
    x = x * 0x7FEB352D & U32
    x ^= x >> 15
    x = x * 0x846CA68B & U32
    return x ^ x >> 16


def row_key(key, row):
    high = mix((row >> 32 ^ key >> 32) & U32)
    high = (high << 16 | high >> 16) & U32
    return mix((row ^ key ^ high) & U32)


class Masked(nn.Module):
    def forward(self, x):
        threshold = int(P * 2**32)
        kept = [[mix(row_key(KEY, r) ^ (c * 0x9E3779B9 & U32)) >= threshold for c in range(INPUTS)] for r in range(TOKENS)]
        return x * torch.tensor(kept, dtype=x.dtype) / (1 - P)


def main():
    torch.manual_seed(1)
    cases = {}
    for dropout in (0.0, P):
        for bias in (False, True):
            base = nn.Sequential(nn.Linear(INPUTS, OUT, bias=bias)).double()
            config = LoraConfig(r=RANK, lora_alpha=ALPHA, use_dora=True, target_modules=["0"], lora_dropout=dropout, init_lora_weights=False)
            model = get_peft_model(base, config, autocast_adapter_dtype=False).double()
            layer = model.base_model.model[0]
            if dropout:
                layer.lora_dropout["default"] = Masked()
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            m = layer.lora_magnitude_vector["default"].weight
            with torch.no_grad():
                m.mul_(1 + 0.3 * torch.randn_like(m))
            x = torch.randn(TOKENS, INPUTS, dtype=torch.float64, requires_grad=True)
            dy = torch.randn(TOKENS, OUT, dtype=torch.float64)
            y = model.train()(x)
            (y * dy).sum().backward()
            case = {"weight": layer.base_layer.weight, "a": a, "b": b, "m": m, "x": x, "dy": dy, "y": y}
            case |= {"da": a.grad, "db": b.grad, "dm": m.grad, "dx": x.grad}
            if bias:
                case["bias"] = layer.base_layer.bias
            case["norm"] = torch.linalg.norm(layer.base_layer.weight + ALPHA / RANK * b @ a, dim=1)
            cases[f"dropout {dropout}, bias {bias}"] = {k: v.detach().flatten().tolist() for k, v in case.items()} | {"p": dropout}
    fields = {"tokens": TOKENS, "inputs": INPUTS, "out": OUT, "rank": RANK, "scale": ALPHA / RANK, "key": str(KEY), "cases": cases}
    json.dump(fields, sys.stdout, indent=1)
    print()


main()
