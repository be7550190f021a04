"""Records what PEFT's merge_and_unload makes of the adapters in ../fixtures.

Run with PEFT 0.21.2, Transformers 5.23.0 and PyTorch: python merged.py > ../merged.json
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

warnings.simplefilter("ignore")
FIXTURES = Path(__file__).parent.parent / "fixtures"
BASE = FIXTURES / "tiny-llama-1l"


def main():
    table = {}
    for folder in sorted(FIXTURES.glob("*/nonzero")):
        base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
        before = {k: v.clone() for k, v in base.state_dict().items()}
        try:
            merged = PeftModel.from_pretrained(base, folder).merge_and_unload(safe_merge=True)
        except Exception as error:
            table[folder.parent.name] = type(error).__name__
            continue
        changed = {}
        for name, value in merged.state_dict().items():
            if not torch.equal(value, before[name]):
                flat = value.double().flatten()
                picks = [i * (flat.numel() - 1) // 7 for i in range(8)]
                changed[name] = {"sum": flat.sum().item(), "abs_sum": flat.abs().sum().item(), "at": picks, "values": [flat[i].item() for i in picks]}
        table[folder.parent.name] = changed
    json.dump(table, sys.stdout, indent=1, sort_keys=True)
    print()


main()
