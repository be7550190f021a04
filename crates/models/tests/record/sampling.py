#!/usr/bin/env python3
"""Records what Transformers' logits processors make of given logits (transformers 5.23.0, float32).

Usage: sampling.py [OUTPUT_FILE]     (default: ../golden/sampling.json)

One case per line: `logits` [vocab], `previous` (the ids so far: prompt and new tokens), `settings`
(only those that differ from off: `repetition_penalty`, `temperature`, `top_k`, `top_p`, `min_p`), and the
`probabilities` the next token is drawn from; a removed token has exactly 0. The order is that of `generate`:
repetition penalty, temperature, top-k, top-p, min-p.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import (
    LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
    TopKLogitsWarper, TopPLogitsWarper)

torch.set_num_threads(1)
ORDER = [("repetition_penalty", RepetitionPenaltyLogitsProcessor), ("temperature", TemperatureLogitsWarper),
         ("top_k", TopKLogitsWarper), ("top_p", TopPLogitsWarper), ("min_p", MinPLogitsWarper)]
SETTINGS = [
    {}, {"temperature": 0.5}, {"temperature": 2.5}, {"top_k": 1}, {"top_k": 5}, {"top_k": 100},
    {"top_p": 0.3}, {"top_p": 0.9}, {"top_p": 0.01}, {"min_p": 0.1}, {"min_p": 0.9}, {"min_p": 1.0},
    {"repetition_penalty": 1.3}, {"repetition_penalty": 0.7}, {"temperature": 0.7, "top_k": 8, "top_p": 0.8},
    {"temperature": 1.6, "top_p": 0.95, "min_p": 0.05},
    {"repetition_penalty": 1.2, "temperature": 0.8, "top_k": 10, "top_p": 0.9, "min_p": 0.02},
]


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "golden/sampling.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(3)
    lines = []
    for settings in SETTINGS:
        logits = torch.randn(1, 24, generator=generator) * 2.5
        previous = torch.randint(0, 24, (1, 7), generator=generator)
        known = LogitsProcessorList(kind(settings[name]) for name, kind in ORDER if name in settings)
        probabilities = known(previous, logits.clone()).softmax(-1)
        lines.append(json.dumps(dict(settings=settings, logits=logits[0].tolist(), previous=previous[0].tolist(),
                                     probabilities=probabilities[0].tolist()), allow_nan=False))
    # Ties at the rank `top_k` cuts: all of them stay.
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0, 2.0]])
    lines.append(json.dumps(dict(settings={"top_k": 2}, logits=logits[0].tolist(), previous=[0],
                                 probabilities=TopKLogitsWarper(2)(None, logits).softmax(-1)[0].tolist())))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(len(lines), "cases", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
