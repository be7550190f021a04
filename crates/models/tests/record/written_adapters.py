"""Checks that PEFT loads adapters written by burnish, and Transformers what they were merged into, with burnish's logits.

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
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

warnings.simplefilter("error")
warnings.simplefilter("ignore", FutureWarning)
# PEFT says of every adapted layer that is tied what may come of it.
warnings.filterwarnings("ignore", message=".*tied layer is part of the adapter.*")


def load(folder):
    sees = hasattr(AutoConfig.from_pretrained(folder), "vision_config")
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    model, told = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"], told
    return model.eval()


def main(base, out):
    for case in sorted(Path(out).iterdir()):
        model = load(base)
        ids = torch.arange(12)[None] * 3
        with torch.no_grad():
            plain = model(input_ids=ids, use_cache=False).logits
            folds = (case / "merged").is_dir()
            merged = load(case / "merged")(input_ids=ids, use_cache=False).logits if folds else None
            theirs = PeftModel.from_pretrained(model, case).eval()(input_ids=ids, use_cache=False).logits
        ours = torch.tensor(json.loads((case / "logits.json").read_text())).reshape(theirs.shape)
        differs, moved = (ours - theirs).abs().max().item(), (plain - theirs).abs().max().item()
        folded = (ours - merged).abs().max().item() if folds else 0.0
        print(f"{case.name}: differs by {differs:.1e}, merged by {folded:.1e}, the adapter moves {moved:.1e}")
        limit = 2e-5 * max(1, theirs.abs().max().item())
        assert differs < limit < moved and folded < 5 * limit, case.name


main(*sys.argv[1:])
