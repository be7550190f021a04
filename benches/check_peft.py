#!/usr/bin/env python3
"""Checks that PEFT and Transformers read what burnish wrote, and compute the same logits.

    check_peft.py adapter BASE_FOLDER ADAPTER_FOLDER LOGITS.json [--tolerance 1e-4]
    check_peft.py model MODEL_FOLDER LOGITS.json [--tolerance 1e-4]

LOGITS.json is one object or a list of objects:

    {"input_ids": [1, 5, 9], "last_token_logits": [0.13, ...]}

`input_ids` is one row (or a list with one row), `last_token_logits` the float32 logits of its last
position as burnish computes them. The difference must be within `tolerance`, absolute or relative to
the greatest logit. A missing, unexpected or mis-shaped tensor, or one that changes on loading, fails.

Needs torch, transformers and peft (checked with 2.15.0, 5.23.0 and 0.21.2).
"""

import argparse
import json
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from peft import PeftModel, get_peft_model_state_dict  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

torch.set_num_threads(1)
logging.disable_progress_bar()


class Mismatch(Exception):
    """What burnish wrote is not what the reference reads."""


def load_model(folder):
    """The model in float32, refusing any tensor that does not fit."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(kind):
            raise Mismatch(f"{folder}: {kind.replace('_', ' ')}: {sorted(info[kind])}")
    return model.eval()


def load_adapter(base, folder):
    """The base with the adapter, refusing keys PEFT lacks or would ignore."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(base, folder)
    for warning in raised:
        if "missing" in str(warning.message).lower() or "unexpected" in str(warning.message).lower():
            raise Mismatch(f"{folder}: {warning.message}")
    written = load_file(Path(folder) / "adapter_model.safetensors")
    # Base weights of wrapped embeddings and heads may or may not be in the file.
    held = get_peft_model_state_dict(model, save_embedding_layers=any(".base_layer." in key for key in written))
    missing, unexpected = sorted(held.keys() - written.keys()), sorted(written.keys() - held.keys())
    if missing or unexpected:
        raise Mismatch(f"{folder}: missing keys {missing}, unexpected keys {unexpected}")
    for key, tensor in written.items():
        if held[key].shape != tensor.shape or not torch.equal(held[key].float(), tensor.float()):
            raise Mismatch(f"{folder}: {key} is not what the file holds")
    return model.eval()


def compare(model, cases, tolerance):
    """The greatest difference over all cases; raises beyond the tolerance."""
    worst = 0.0
    for index, case in enumerate(cases):
        ids = case["input_ids"]
        ids = ids[0] if isinstance(ids[0], list) else ids
        with torch.no_grad():
            ours = torch.tensor(case["last_token_logits"], dtype=torch.float64)
            theirs = model(input_ids=torch.tensor([ids])).logits[0, -1].double()
        if ours.shape != theirs.shape:
            raise Mismatch(f"case {index}: {ours.numel()} logits given, the model has {theirs.numel()}")
        difference = float((ours - theirs).abs().max())
        if not difference <= tolerance * max(1.0, float(theirs.abs().max())):
            raise Mismatch(f"case {index}: logits differ by {difference:.3e}, tolerance {tolerance:.0e}")
        worst = max(worst, difference)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    adapter = kinds.add_parser("adapter")
    adapter.add_argument("base")
    adapter.add_argument("folder")
    kinds.add_parser("model").add_argument("folder")
    for kind in kinds.choices.values():
        kind.add_argument("logits")
        kind.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()

    cases = json.loads(Path(options.logits).read_text())
    cases = cases if isinstance(cases, list) else [cases]
    if not cases:
        sys.exit(f"{options.logits}: no case to compare")
    try:
        if options.kind == "adapter":
            model = load_adapter(load_model(options.base), options.folder)
        else:
            model = load_model(options.folder)
        worst = compare(model, cases, options.tolerance)
    except (Mismatch, RuntimeError, ValueError, KeyError, OSError) as error:
        sys.exit(f"FAILED {options.folder}: {error}")
    print(f"ok {options.folder}: {len(cases)} case(s), greatest difference {worst:.2e}")


if __name__ == "__main__":
    main()
