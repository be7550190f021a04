#!/usr/bin/env python3
"""Records learning-rate schedules with arguments, with torch 2.15.0 and transformers 5.23.0.

Usage: schedules.py [OUTPUT_FOLDER]     (default: ../golden beside this file)

schedule_kwargs.json  `lr_scheduler_type`, `lr_scheduler_kwargs`, `learning_rate`, `warmup`, `total_steps`, and `rates`:
                      the rate each step uses, and the rate after the last step.
adaptive.json         the same without steps: `metrics` that evaluations found, and `rates` after each.
"""

import json
import math
import sys
import warnings
from pathlib import Path

import torch
from transformers import get_scheduler

warnings.simplefilter("ignore")
CASES = [
    ("cosine", {}), ("cosine", {"num_cycles": 1.5}), ("linear", {}), ("constant", {}), ("constant_with_warmup", {}),
    ("cosine_with_restarts", {}), ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {}), ("polynomial", {"lr_end": 1e-5, "power": 2.0}), ("polynomial", {"lr_end": 0.0, "power": 0.5}),
    ("inverse_sqrt", {}), ("inverse_sqrt", {"timescale": 50}),
    ("cosine_with_min_lr", {"min_lr": 1e-6}), ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 1.5}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1}),
    ("cosine_warmup_with_min_lr", {"min_lr": 1e-5, "warmup_lr_rate": 0.2}),
    ("warmup_stable_decay", {"num_decay_steps": 5}),
    ("warmup_stable_decay", {"num_decay_steps": 4, "min_lr_ratio": 0.1, "decay_type": "linear"}),
    ("warmup_stable_decay", {"num_decay_steps": 6, "decay_type": "1-sqrt", "warmup_type": "cosine"}),
    ("warmup_stable_decay", {"num_decay_steps": 3, "num_stable_steps": 4, "warmup_type": "1-sqrt", "num_cycles": 1.5}),
]
RUNS = [(1e-3, 0, 20), (2e-5 * 7, 5, 20), (3e-4, 1, 13)]
ADAPTIVE = [
    ("reduce_lr_on_plateau", {}), ("reduce_lr_on_plateau", {"patience": 1}),
    ("reduce_lr_on_plateau", {"patience": 0, "factor": 0.5, "cooldown": 2, "min_lr": 1e-4}),
    ("reduce_lr_on_plateau", {"mode": "max", "patience": 2, "threshold": 0.1, "threshold_mode": "abs"}),
    ("reduce_lr_on_plateau", {"mode": "max", "patience": 0, "threshold": 0.05}),
    ("reduce_lr_on_plateau", {"patience": 0, "threshold": 0.2, "threshold_mode": "abs", "eps": 1e-4}),
    ("greedy", {}), ("greedy", {"patience": 0, "min_lr": 1e-5, "max_lr": 1e-2}),
    ("greedy", {"patience": 1, "min_lr": 1e-4, "factor": 0.5, "cooldown": 1, "warmup": 2}),
    ("greedy", {"patience": 0, "min_lr": 5e-4, "factor": 0.5, "reset_start": 3}),
    ("greedy", {"patience": 0, "min_lr": 1e-5, "smooth": True, "window_size": 4, "mode": "max"}),
    ("greedy", {"patience": 0, "min_lr": 1e-5, "threshold_mode": "rel", "threshold": 0.05}),
]


def scheduler(kind, arguments, rate, warmup, total):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    return optimizer, get_scheduler(kind, optimizer, warmup, total, scheduler_specific_kwargs=dict(arguments))


def by_step(kind, arguments, rate, warmup, total):
    optimizer, schedule = scheduler(kind, arguments, rate, warmup, total)
    rates = []
    for _ in range(total + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return dict(lr_scheduler_type=kind, lr_scheduler_kwargs=arguments, learning_rate=rate, warmup=warmup,
                total_steps=total, rates=rates)


def by_metric(kind, arguments, rate):
    optimizer, schedule = scheduler(kind, arguments, rate, 0, 40)
    metrics = [2.0 * math.exp(-0.2 * min(k, 12)) + 0.3 * math.sin(k * 1.7) for k in range(40)]
    rates = []
    for metric in metrics:
        schedule.step(metric)
        rates.append(optimizer.param_groups[0]["lr"])
    return dict(lr_scheduler_type=kind, lr_scheduler_kwargs=arguments, learning_rate=rate, metrics=metrics, rates=rates)


def write(path, rows):
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "golden"
    write(folder / "schedule_kwargs.json", [by_step(k, a, *run) for k, a in CASES for run in RUNS])
    write(folder / "adaptive.json", [by_metric(k, a, rate) for k, a in ADAPTIVE for rate in (1e-3, 2e-3)])


if __name__ == "__main__":
    main()
