#!/usr/bin/env python3
"""Records learning-rate schedules with arguments, with torch 2.15.0, transformers 5.23.0 and deepspeed 0.19.8.

Usage: schedules.py [OUTPUT_FOLDER]     (default: ../golden beside this file)
DEEPSPEED_SCHEDULES names `deepspeed/runtime/lr_schedules.py` of DeepSpeed's source distribution, which is loaded alone;
without it deepspeed_schedules.json is left as it is.

schedule_kwargs.json  `lr_scheduler_type`, `lr_scheduler_kwargs`, `learning_rate`, `warmup`, `total_steps`, and `rates`:
                      the rate each step uses, and the rate after the last step.
deepspeed_schedules.json  the same of DeepSpeed, stepped after the optimizer as its engine does; `lr_scheduler_kwargs` has
                      no entry where Transformers fills in what DeepSpeed's file has as "auto".
adaptive.json         the same without steps: `metrics` that evaluations found, and `rates` after each.
"""

import importlib.util
import json
import logging
import math
import os
import sys
import types
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
# What is not given is "auto" in DeepSpeed's file.
DEEPSPEED = [
    ("WarmupLR", {}), ("WarmupLR", {"warmup_type": "linear"}),
    ("WarmupLR", {"warmup_min_lr": 1e-6, "warmup_max_lr": 5e-5, "warmup_num_steps": 7}),
    ("WarmupDecayLR", {}), ("WarmupDecayLR", {"warmup_type": "linear", "warmup_num_steps": 4, "warmup_max_lr": 2e-4}),
    ("WarmupDecayLR", {"warmup_num_steps": 6, "total_num_steps": 12, "warmup_min_lr": 1e-5}),
    ("WarmupDecayLR", {"warmup_num_steps": 30, "total_num_steps": 12}),
    ("WarmupCosineLR", {}), ("WarmupCosineLR", {"warmup_type": "linear", "warmup_min_ratio": 0.1, "cos_min_ratio": 0.05}),
    ("WarmupCosineLR", {"warmup_num_steps": 3, "total_num_steps": 10}),
    ("OneCycle", {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3, "cycle_first_step_size": 5, "cycle_momentum": False}),
    ("OneCycle", {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3, "cycle_first_step_size": 6, "cycle_second_step_size": 3,
                  "cycle_first_stair_count": 3, "cycle_second_stair_count": 2, "decay_lr_rate": 0.5,
                  "decay_step_size": 2, "cycle_momentum": False}),
    ("LRRangeTest", {}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-5, "lr_range_test_step_size": 4, "lr_range_test_step_rate": 5.0,
                     "lr_range_test_staircase": True}),
]


def deepspeed_module(path):
    """`lr_schedules.py` without the package around it, of which it needs a logger."""
    utils = types.ModuleType("deepspeed.utils")
    utils.logger = logging.getLogger("deepspeed")
    utils.logger.setLevel(logging.CRITICAL)
    sys.modules |= {"deepspeed": types.ModuleType("deepspeed"), "deepspeed.utils": utils}
    spec = importlib.util.spec_from_file_location("lr_schedules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_engine(module, kind, arguments, rate, warmup, total):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    filled = dict(arguments)
    if kind.startswith("Warmup"):
        # HfTrainerDeepSpeedConfig.trainer_config_process and trainer_config_finalize.
        auto = dict(warmup_num_steps=max(1, warmup))
        if kind != "WarmupCosineLR":
            auto |= dict(warmup_min_lr=0, warmup_max_lr=rate)
        if kind != "WarmupLR":
            auto |= dict(total_num_steps=total)
        filled = auto | filled
    schedule = getattr(module, kind)(optimizer, **filled)
    rates = []
    for _ in range(total + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return dict(lr_scheduler_type=kind, lr_scheduler_kwargs=arguments, learning_rate=rate, warmup=warmup,
                total_steps=total, rates=rates)


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
    if path := os.environ.get("DEEPSPEED_SCHEDULES"):
        module = deepspeed_module(path)
        rows = [by_engine(module, k, a, *run) for k, a in DEEPSPEED for run in RUNS]
        write(folder / "deepspeed_schedules.json", rows)
    write(folder / "adaptive.json", [by_metric(k, a, rate) for k, a in ADAPTIVE for rate in (1e-3, 2e-3)])


if __name__ == "__main__":
    main()
