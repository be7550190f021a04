#!/usr/bin/env python3
"""Records what torch 2.15.0's Muon makes of matrices in bfloat16.

Usage: newton_schulz_bf16.py [OUTPUT_FOLDER]     (default: ../golden beside this file)

newton_schulz_bf16.json    an array, one case per line: `name`, `rows`, `columns`, `x` (float32 values, row by row),
                           `off`, how far torch.optim.Muon's own Newton-Schulz (five steps of its default
                           coefficients, in bfloat16) ends from the same steps in float64, as a share of
                           those' Frobenius norm, and `most`, its largest element that is off.
"""

import json
import sys
from pathlib import Path

import torch
from torch.optim import _muon

torch.set_num_threads(1)
torch.manual_seed(5)
QUINTIC = (3.4445, -4.7750, 2.0315)


def exact(x):
    x = x.double()
    turned = x.size(0) > x.size(1)
    x = x.T if turned else x
    x = x / x.norm()
    a, b, c = QUINTIC
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if turned else x


def log_uniform(rows, columns):
    u, s, v = torch.linalg.svd(torch.randn(rows, columns, dtype=torch.float64), full_matrices=False)
    return ((u * 10 ** (-3 * torch.rand(len(s), dtype=torch.float64))) @ v).float()


def low_rank(rows, columns):
    return torch.randn(rows, 3) @ torch.randn(3, columns) + 0.1 * torch.randn(rows, columns)


KINDS = {"normal": torch.randn, "log-uniform": log_uniform, "low rank": low_rank}
SHAPES = [(32, 32), (24, 66), (70, 20)]


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "../golden")
    lines = []
    for name, make in KINDS.items():
        for rows, columns in SHAPES:
            x = make(rows, columns)
            got = _muon._zeropower_via_newtonschulz(x, QUINTIC, 5, 1e-7).double()
            off = got - exact(x)
            values = [float(f"{v:.9g}") for v in x.flatten().tolist()]
            case = dict(name=name, rows=rows, columns=columns, x=values)
            case |= dict(off=float(off.norm() / exact(x).norm()), most=float(off.abs().max()))
            lines.append(json.dumps(case))
    (folder / "newton_schulz_bf16.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


main()
