"""Checks that PEFT loads adapters written by burnish, and that burnish's merges compute what PEFT computes.

    cargo run -p burnish-peft --example exchange -- tests/fixtures/tiny-llama-1l /tmp/exchange
    python exchange.py tests/fixtures/tiny-llama-1l /tmp/exchange

Needs PEFT 0.21.2, Transformers 5.23.0 and PyTorch. Any warning (PEFT warns of missing and unknown keys) is an error.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

warnings.simplefilter("error")
warnings.simplefilter("ignore", FutureWarning)


def logits(model):
    ids = torch.arange(24).reshape(2, 12) * 4
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def main(base, out):
    plain = logits(load(base))
    report = {}
    for case in sorted(Path(out).iterdir()):
        adapted = logits(PeftModel.from_pretrained(load(base), case / "adapter"))
        merged = logits(load(case / "merged"))
        report[case.name] = {
            "max_abs_diff_merged_from_adapted": (merged - adapted).abs().max().item(),
            "max_abs_diff_adapted_from_base": (adapted - plain).abs().max().item(),
        }
    print(json.dumps(report, indent=1))
    for name, case in report.items():
        assert case["max_abs_diff_merged_from_adapted"] < 1e-5 < case["max_abs_diff_adapted_from_base"], name


main(*sys.argv[1:])
