#!/usr/bin/env python3
"""Records ten steps of Muon, NorMuon and AdaMuon with torch 2.15.0.

Usage: muon.py [OUTPUT_FOLDER]     (default: ../golden beside this file)

muon.json    one case per line: `variant` (muon, normuon, adamuon), `polynomials`, `scale`,
             `momentum`, `nesterov`, `weight_decay`, `beta2`, `eps`, `learning_rates` (one per step),
             `shapes`, `start` (values per tensor), and per step `gradients` and `values`;
             `momentum_buffer` and, of variants, `second_momentum_buffer` after the last step.

Cases with `source` "torch.optim.Muon" are its own steps in float32, with ONE change: its Newton-Schulz
casts to bfloat16, here it is replaced by the same lines in float32 (`newton_schulz_fp32`). The others
are `reference` below in float64: the papers' formulas (Polar Express arXiv:2505.16932 without the
floor under the norm; NorMuon arXiv:2510.05491; AdaMuon arXiv:2507.11005, signs before Newton-Schulz),
with the Frobenius norm of the orthogonalised update kept in place of the papers' own constants.

Gradients are multiples of 1/64, so that they are short and exact; values are float32 numbers with nine
digits.
"""

import json
import sys
from pathlib import Path

import torch
from torch.optim import _muon

torch.set_num_threads(1)
STEPS = 10
SHAPES = [[7, 3], [3, 8], [4, 4]]
QUINTIC = [(3.4445, -4.7750, 2.0315)] * 5
POLAR_EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]
TORCH_SCALE = {"original": "original", "match_rms_adamw": "match_rms_adamw", "spectral": "spectral_unclamped"}
DECAYING = [0.05 * (1 - k / STEPS) for k in range(STEPS)]

CASES = [
    dict(scale=scale, nesterov=nesterov, weight_decay=decay)
    for scale in ("original", "match_rms_adamw")
    for nesterov in (True, False)
    for decay in (0.0, 0.1)
]
CASES += [
    dict(scale="spectral", weight_decay=0.1),
    dict(momentum=0.0),
    dict(momentum=0.8, learning_rates=DECAYING, weight_decay=0.3),
    dict(polynomials="polar_express"),
    dict(polynomials="polar_express", scale="original", weight_decay=0.1, learning_rates=DECAYING),
    dict(variant="normuon"),
    dict(variant="normuon", polynomials="polar_express", beta2=0.9, weight_decay=0.1, scale="original"),
    dict(variant="normuon", nesterov=False, learning_rates=DECAYING, eps=1e-3),
    dict(variant="adamuon"),
    dict(variant="adamuon", nesterov=False, beta2=0.8, eps=1e-3, weight_decay=0.1, scale="spectral"),
]


def newton_schulz_fp32(grad, ns_coefficients, ns_steps, eps):
    a, b, c = ns_coefficients
    x = grad.clone()
    if grad.size(0) > grad.size(1):
        x = x.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = x @ x.T
        update = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, update, x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


_muon._zeropower_via_newtonschulz = newton_schulz_fp32


def orthogonal(u, polynomials):
    triples, margin = {"quintic": (QUINTIC, 1.0), "polar_express": (POLAR_EXPRESS, 1.02)}[polynomials]
    x = u / (u.norm() * margin)
    for a, b, c in triples:
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


def factor(scale, out, inn):
    return {"original": max(1, out / inn) ** 0.5, "match_rms_adamw": 0.2 * max(out, inn) ** 0.5,
            "spectral": (out / inn) ** 0.5}[scale]


class Reference:
    """In float64, one matrix after another."""

    def __init__(self, tensors, case):
        self.tensors, self.case = tensors, case
        self.m = [torch.zeros_like(t) for t in tensors]
        variant = case["variant"]
        self.v = [torch.zeros_like(t[:, 0] if variant == "normuon" else t) for t in tensors]

    def step(self, rate):
        case = self.case
        beta, beta2, eps = case["momentum"], case["beta2"], case["eps"]
        for i, t in enumerate(self.tensors):
            g = t.grad
            self.m[i] = beta * self.m[i] + (1 - beta) * g
            u = (1 - beta) * g + beta * self.m[i] if case["nesterov"] else self.m[i]
            if case["variant"] == "adamuon":
                u = u.sign()
            o = orthogonal(u, case["polynomials"])
            if case["variant"] != "muon":
                square = o.square().mean(dim=1) if case["variant"] == "normuon" else o.square()
                self.v[i] = beta2 * self.v[i] + (1 - beta2) * square
                root = self.v[i].sqrt() + eps
                divided = o / (root[:, None] if case["variant"] == "normuon" else root)
                o = divided * (o.norm() / divided.norm())
            with torch.no_grad():
                t.mul_(1 - rate * case["weight_decay"])
                t.sub_(rate * factor(case["scale"], *t.shape) * o)


def short(tensor):
    return [[float(f"{x:.9g}") for x in row.float().flatten().tolist()] for row in tensor]


def run(seed, **case):
    case = dict(variant="muon", polynomials="quintic", scale="match_rms_adamw", momentum=0.95, nesterov=True,
                weight_decay=0.0, beta2=0.95, eps=1e-8, learning_rates=[0.05] * STEPS) | case
    plain = case["variant"] == "muon" and case["polynomials"] == "quintic"
    kind = torch.float32 if plain else torch.float64
    generator = torch.Generator().manual_seed(seed)

    def random(shape):
        return (torch.randn(shape, generator=generator) * 64).round() / 64

    tensors = [torch.nn.Parameter(random(shape).to(kind)) for shape in SHAPES]
    record = dict(source="torch.optim.Muon" if plain else "reference", **case, shapes=SHAPES,
                  start=short([t.detach() for t in tensors]), steps=[])
    if plain:
        step = torch.optim.Muon(tensors, lr=0.0, weight_decay=case["weight_decay"], momentum=case["momentum"],
                                nesterov=case["nesterov"], adjust_lr_fn=TORCH_SCALE[case["scale"]])
    else:
        step = Reference(tensors, case)
    for rate in case["learning_rates"]:
        for t in tensors:
            t.grad = random(t.shape).to(kind)
        if plain:
            step.param_groups[0]["lr"] = rate
            step.step()
        else:
            step.step(rate)
        record["steps"].append(dict(gradients=short([t.grad for t in tensors]),
                                    values=short([t.detach() for t in tensors])))
    record["momentum_buffer"] = short([step.state[t]["momentum_buffer"] for t in tensors] if plain else step.m)
    if case["variant"] != "muon":
        record["second_momentum_buffer"] = short(step.v)
    return record


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "../golden")
    lines = ",\n".join(json.dumps(run(100 + i, **case), separators=(",", ":")) for i, case in enumerate(CASES))
    (folder / "muon.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
