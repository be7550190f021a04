#!/usr/bin/env python3
"""Records what TRL's GRPO trainer gets from a reward model: ../fixtures/reward_folder.json.

Usage: reward_folder.py
Made with TRL 1.16.0, torch 2.15.0 and transformers 5.23.0; CPU, float32. The model is that of ../fixtures/trl-runs/reward-full.
"""

import contextlib
import json
import os
from pathlib import Path

os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: E402
from trl.trainer import grpo_trainer  # noqa: E402
from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODEL = FIXTURES / "trl-runs/reward-full/model_start"

PLAIN = [("Name a colour.\n", "Blue."), ("Name a colour.\n", "ten"), ("What comes after nine?\n", "Ten, I think."), ("", "Hello!"),
         ("Spell 'net' backwards.\n", ""), ("1 + 1 = ", "2 <|end|>"), ("Ein Gruß: ", "Schöne Grüße")]


class Accelerator:
    device = torch.device("cpu")

    @staticmethod
    def gather(values):
        return values


def scored(model, tokenizer, prompts, completions):
    """GRPOTrainer._calculate_rewards with nothing around it."""
    trainer = GRPOTrainer.__new__(GRPOTrainer)
    trainer.accelerator = Accelerator()
    trainer.reward_funcs = [model]
    trainer.reward_processing_classes = [tokenizer]
    trainer.reward_func_names = ["model"]
    trainer.chat_template_kwargs = {}
    trainer.state = trainer.environments = None
    grpo_trainer.profiling_context = lambda *_: contextlib.nullcontext()
    # All that this does without a device to move to.
    transformers.Trainer._prepare_inputs = lambda _, inputs: inputs
    inputs = [{"prompt": prompt} for prompt in prompts]
    rewards = GRPOTrainer._calculate_rewards.__wrapped__(trainer, inputs, prompts, completions, [[0]] * len(prompts))
    return rewards[:, 0].tolist()


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=1, dtype=torch.float32).eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    chats = [[{"role": "user", "content": prompt}] for prompt, _ in PLAIN]
    answers = [[{"role": "assistant", "content": answer}] for _, answer in PLAIN]
    record = {
        "plain": [
            {"prompt": prompt, "completion": completion, "score": score}
            for (prompt, completion), score in zip(PLAIN, scored(model, tokenizer, *map(list, zip(*PLAIN))), strict=True)
        ],
        "chat": [
            {"prompt": prompt, "completion": completion, "score": score}
            for prompt, (_, completion), score in zip(chats, PLAIN, scored(model, tokenizer, chats, answers), strict=True)
        ],
    }
    (FIXTURES / "reward_folder.json").write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
