#!/usr/bin/env python3
"""Records optimizer, clipping and schedule fixtures with torch 2.15.0 and transformers 5.23.0.

Usage: adamw.py [OUTPUT_FOLDER]     (default: ../golden beside this file)

adamw.json   one case per line: `optimizer` (adam: weight decay added to the gradient; adamw:
             decoupled), `dtype`, `betas`, `eps`, `weight_decay` (one per tensor),
             `learning_rates` (one per step), `shapes`, `start` (values per tensor), and per step
             `gradients` and `values`; `exp_avg` and `exp_avg_sq` after the last step. Single-tensor
             implementation, amsgrad off.
clip.json    `max_norm`, `gradients` per tensor; `norm` (before clipping) and `clipped`.
schedules.json  `lr_scheduler_type`, `total_steps`, `warmup_steps` (as given: a count, or a share
             below 1), `warmup` (the count it stands for), `learning_rate`, and `rates`: the rate
             each step uses, and the rate after the last step.

Numbers are float32 values printed as doubles (float64 cases: as they are).
"""

import json
import sys
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import TrainingArguments, get_scheduler

torch.set_num_threads(1)
STEPS = 10
SHAPES = [[2, 3], [4]]

CASES = [
    dict(),
    dict(weight_decay=[0.1, 0.1]),
    dict(weight_decay=[0.3, 0.0]),
    dict(betas=[0.8, 0.95], eps=1e-4),
    dict(betas=[0.0, 0.9]),
    dict(eps=1e-2, learning_rates=[0.05 * (1 - k / STEPS) for k in range(STEPS)]),
    dict(learning_rates=[0.0, 0.001, 0.002] + [0.003] * 7, weight_decay=[0.01, 0.01]),
    dict(gradient_scale=1e-6),
    dict(gradient_scale=1e4, weight_decay=[0.1, 0.1]),
    dict(zero_steps=[2, 3, 4]),
    dict(optimizer="adam"),
    dict(optimizer="adam", weight_decay=[0.1, 0.0], betas=[0.85, 0.98], eps=1e-6),
    dict(dtype="float64", weight_decay=[0.1, 0.1]),
    dict(dtype="float64", optimizer="adam", weight_decay=[0.1, 0.1]),
]


def run(seed, optimizer="adamw", dtype="float32", betas=(0.9, 0.999), eps=1e-8, weight_decay=(0.0, 0.0),
        learning_rates=None, gradient_scale=1.0, zero_steps=()):
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    rates = learning_rates or [0.01] * STEPS

    def random(shape, scale=1.0):
        return (torch.randn(shape, generator=generator, dtype=torch.float32) * scale).to(kind)

    tensors = [torch.nn.Parameter(random(shape)) for shape in SHAPES]
    groups = [dict(params=[t], weight_decay=d) for t, d in zip(tensors, weight_decay)]
    step = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer](
        groups, lr=rates[0], betas=tuple(betas), eps=eps, foreach=False, fused=False)
    case = dict(optimizer=optimizer, dtype=dtype, betas=list(betas), eps=eps, weight_decay=list(weight_decay),
                learning_rates=rates, shapes=SHAPES, start=[t.flatten().tolist() for t in tensors], steps=[])
    for index, rate in enumerate(rates):
        for group in step.param_groups:
            group["lr"] = rate
        for tensor in tensors:
            gradient = random(tensor.shape, gradient_scale)
            tensor.grad = torch.zeros_like(gradient) if index in zero_steps else gradient
        gradients = [t.grad.flatten().tolist() for t in tensors]
        step.step()
        case["steps"].append(dict(gradients=gradients, values=[t.detach().flatten().tolist() for t in tensors]))
    for name in ("exp_avg", "exp_avg_sq"):
        case[name] = [step.state[t][name].flatten().tolist() for t in tensors]
    return case


def clip(seed, max_norm, scale):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape, generator=generator) * scale
    case = dict(max_norm=max_norm, gradients=[t.grad.flatten().tolist() for t in tensors])
    case["norm"] = float(clip_grad_norm_(tensors, max_norm, foreach=False))
    case["clipped"] = [t.grad.flatten().tolist() for t in tensors]
    return case


def schedule(kind, total, warmup_steps, rate):
    warmup = TrainingArguments(output_dir="unused", use_cpu=True, warmup_steps=warmup_steps).get_warmup_steps(total)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=total)
    rates = []
    for _ in range(total + 1):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return dict(lr_scheduler_type=kind, total_steps=total, warmup_steps=warmup_steps, warmup=warmup,
                learning_rate=rate, rates=rates)


def write(path, cases):
    lines = ",\n".join(json.dumps(case, allow_nan=False) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")
    print(path.name, len(cases), "cases", path.stat().st_size, "bytes")


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "golden"
    root.mkdir(parents=True, exist_ok=True)
    write(root / "adamw.json", [run(seed, **options) for seed, options in enumerate(CASES)])
    write(root / "clip.json", [clip(7, 1.0, 1.0), clip(8, 0.1, 3.0), clip(9, 100.0, 1.0), clip(10, 1.0, 1e-4),
                               clip(11, 1.0, 1e6), clip(12, 1.0, 0.0), clip(13, 0.5, 0.1)])
    write(root / "schedules.json", [
        schedule(kind, total, warmup, rate)
        for kind in ("linear", "cosine", "constant", "constant_with_warmup")
        for total, warmup, rate in [(10, 0, 1e-3), (10, 3, 2e-5), (7, 7, 1.0), (1, 0, 0.5), (12, 0.1, 1e-4),
                                    (25, 0.33, 3e-4), (5, 9, 1e-2)]])


if __name__ == "__main__":
    main()
