#!/usr/bin/env python3
"""Records models that score texts: tiny random ones, with what Transformers and PEFT give.

Usage: scores.py [OUTPUT_FOLDER]     (default: ../fixtures beside this file)
Made with torch 2.15.0, transformers 5.23.0 and peft 0.21.2, CPU, one thread, eager attention.

* `score-llama`: a LlamaForSequenceClassification with one label, in Hugging Face's format;
* `score-qwen3-lora`: an adapter of the task SEQ_CLS on the fixture `qwen3`, as PEFT saves it, with random factors
  and a random score.

Beside each, `scores.json`: rows of `input_ids` (each run alone, no padding), their `rewards`, and `coefficients`
c; and `gradients.safetensors`: the gradient of sum(c * rewards) for every parameter that trains, by its own name.
"""

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, LlamaConfig

torch.set_num_threads(1)
HERE = Path(__file__).resolve().parent
ROWS = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [7], [2, 7, 1, 8], [0, 5, 0]]
COEFFICIENTS = [0.75, -1.5, 0.5, 2.0]


def record(folder, model, name_of):
    rewards = [model(input_ids=torch.tensor([row])).logits[0, 0] for row in ROWS]
    sum(c * r for c, r in zip(COEFFICIENTS, rewards)).backward()
    gradients = {name_of(n): p.grad for n, p in model.named_parameters() if p.requires_grad}
    save_file(gradients, folder / "gradients.safetensors")
    (folder / "scores.json").write_text(json.dumps({
        "input_ids": ROWS, "rewards": [r.item() for r in rewards], "coefficients": COEFFICIENTS}) + "\n")


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "fixtures"
    torch.manual_seed(5)
    folder = out / "score-llama"
    model = AutoModelForSequenceClassification.from_config(LlamaConfig(
        vocab_size=24, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3, bos_token_id=1, eos_token_id=2,
        pad_token_id=None, num_labels=1, tie_word_embeddings=True, architectures=["LlamaForSequenceClassification"],
    ), attn_implementation="eager")
    model.save_pretrained(folder)
    record(folder, model, lambda name: name)

    folder = out / "score-qwen3-lora"
    base = AutoModelForSequenceClassification.from_pretrained(
        out / "qwen3", num_labels=1, attn_implementation="eager")
    model = get_peft_model(base, LoraConfig(
        task_type="SEQ_CLS", r=3, lora_alpha=6, target_modules="all-linear", base_model_name_or_path="qwen3"))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(
        config | {"base_model_name_or_path": "qwen3"}, indent=2, sort_keys=True))
    own = lambda name: (name.removeprefix("base_model.model.").replace(".default", "")
                        .replace(".modules_to_save", ""))
    record(folder, model, own)


main()
