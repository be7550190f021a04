#!/usr/bin/env python3
"""The TRL half of the SFT bench: runs TRL's SFT trainer from the options file `burnish sft` takes.

    trl_sft.py --config OPTIONS.yaml

Writes <output_dir>/metrics.jsonl, one line per step as soon as the step is logged, and the adapter at
the end. Checked with TRL 1.16.0.
"""

import json
import os
import time
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from datasets import load_dataset  # noqa: E402
from transformers import TrainerCallback  # noqa: E402
from trl import (  # noqa: E402
    ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser, get_peft_config, get_quantization_config)


class Metrics(TrainerCallback):
    """Appends the logged metrics of every step, with the step's own duration."""

    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")
        self.begun = self.step_time = 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self.begun = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.step_time = time.perf_counter() - self.begun

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.file.write(json.dumps({"step": state.global_step, **logs, "step_time": self.step_time}) + "\n")
            self.file.flush()


def main():
    script, training, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config()
    training.use_cpu, training.report_to, training.disable_tqdm = True, [], True
    training.model_init_kwargs = {"dtype": model.dtype}
    if (quantization := get_quantization_config(model)) is not None:
        training.model_init_kwargs |= {"quantization_config": quantization, "device_map": {"": "cpu"}}
    trainer = SFTTrainer(
        model.model_name_or_path, training,
        train_dataset=load_dataset("json", data_files=script.dataset_name, split="train"),
        peft_config=get_peft_config(model), callbacks=[Metrics(Path(training.output_dir) / "metrics.jsonl")])
    trainer.train()
    trainer.save_model(training.output_dir)


if __name__ == "__main__":
    main()
