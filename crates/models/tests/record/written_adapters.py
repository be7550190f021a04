"""Checks that PEFT loads adapters written by burnish, with burnish's logits.

    cargo run -p burnish-models --example written_adapters -- crates/models/tests/fixtures/llama /tmp/exchange
    python written_adapters.py crates/models/tests/fixtures/llama /tmp/exchange

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


def main(base, out):
    for case in sorted(Path(out).iterdir()):
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        ids = torch.arange(12)[None] * 4
        with torch.no_grad():
            plain = model(input_ids=ids).logits
            theirs = PeftModel.from_pretrained(model, case).eval()(input_ids=ids).logits
        ours = torch.tensor(json.loads((case / "logits.json").read_text())).reshape(theirs.shape)
        differs, moved = (ours - theirs).abs().max().item(), (plain - theirs).abs().max().item()
        print(f"{case.name}: differs by {differs:.1e}, the adapter moves {moved:.1e}")
        assert differs < 2e-5 * max(1, theirs.abs().max().item()) < moved, case.name


main(*sys.argv[1:])
