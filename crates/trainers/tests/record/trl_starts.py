#!/usr/bin/env python3
"""Records where PEFT's EVA, CorDA and LoRA-GA start from on batches of TRL's preference trainers, with the trainers' losses.

Usage: trl_starts.py     (after trl_runs.py; writes ../fixtures/trl-starts)
Made with TRL 1.16.0, torch 2.15.0, transformers 5.24.0 and peft 0.21.2; CPU, float32, dropout 0.

Each NAME.json has `trainer`, `model`, `data`, `options` and `lora`; NAME.safetensors of each module A and B. Of each data set the
first ROWS rows are read in batches of BATCH rows; CorDA reads text by text. Ranks are such that PEFT's randomised decompositions are
exact.
"""

import copy
import dataclasses
import json
import shutil
import sys
import tempfile
import types

import trl_runs  # first: its environment
import datasets
import peft
import torch

# What PEFT takes of attrs, which it does not depend on.
sys.modules.setdefault("attr", types.SimpleNamespace(dataclass=dataclasses.dataclass))
from peft.tuners.lora.corda import preprocess_corda  # noqa: E402
from peft.tuners.lora.loraga import preprocess_loraga  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: E402

OUT = trl_runs.FIXTURES / "trl-starts"
ROWS, BATCH = 6, 2
TARGETS = ["q_proj", "o_proj", "up_proj"]
EVA = dict(r=8, lora_alpha=12, target_modules=TARGETS, init_lora_weights="eva", eva_config=dict(rho=2.0))
CORDA = dict(r=4, lora_alpha=12, target_modules=TARGETS, init_lora_weights="corda", corda_config=dict(corda_method="ipm"))
LORA_GA = dict(r=8, lora_alpha=12, target_modules=TARGETS, init_lora_weights="lora_ga", lora_ga_config=dict(direction="ArBr"))
CASES = {
    "dpo-eva": ("dpo", {}, EVA),
    "dpo-corda": ("dpo", {}, CORDA),
    "dpo-lora-ga": ("dpo", dict(beta=0.3), LORA_GA),
    "dpo-lora-ga-robust-sft": ("dpo", dict(loss_type=["robust", "sft"], label_smoothing=0.1), LORA_GA),
    "kto-eva": ("kto", {}, EVA),
    "kto-lora-ga": ("kto", dict(desirable_weight=1.5), LORA_GA),
    "cpo-lora-ga": ("cpo", {}, LORA_GA),
    "orpo-lora-ga": ("orpo", {}, LORA_GA),
    "reward-eva": ("reward", {}, EVA),
    # The gradient of the last layer's weights has the rank of the texts, one scored token each.
    "reward-lora-ga": ("reward", dict(center_rewards_coefficient=0.01), LORA_GA | dict(r=4)),
}


def configuration(lora):
    classes = dict(eva_config=peft.EvaConfig, corda_config=peft.tuners.lora.config.CordaConfig, lora_ga_config=peft.LoraGAConfig)
    return peft.LoraConfig(**{key: classes[key](**value) if key in classes else value for key, value in lora.items()})


def record(name, kind, options, lora):
    torch.manual_seed(3)
    if kind == "reward":
        folder = trl_runs.RUNS / "reward-full" / "model_start"
        model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)
    else:
        model, tokenizer = trl_runs.base("llama")
    data = "unpaired.jsonl" if kind == "kto" else "preference.jsonl"
    Trainer, Config = trl_runs.TRAINERS[kind]
    with tempfile.TemporaryDirectory() as scratch:
        rows = datasets.load_dataset("json", data_files=str(trl_runs.DATA / data), split="train", cache_dir=scratch)
        args = Config(output_dir=scratch, use_cpu=True, report_to="none", disable_tqdm=True, per_device_train_batch_size=BATCH,
                      max_steps=1, **{key: value for key, value in trl_runs.SHARED.items() if key != "bf16"}, bf16=False, **options)
        trainer = Trainer(copy.deepcopy(model), args=args, train_dataset=rows, processing_class=tokenizer)
        batches = [batch for batch, _ in zip(trainer.get_train_dataloader(), range(ROWS // BATCH))]
        config = configuration(lora)
        inputs = [{key: batch[key] for key in ("input_ids", "attention_mask") if key in batch} for batch in batches]
        if lora["init_lora_weights"] == "eva":
            model = peft.get_peft_model(model, config)
            peft.initialize_lora_eva_weights(model, inputs, show_progress_bar=False)
        elif lora["init_lora_weights"] == "corda":
            def run():
                for batch in inputs:
                    for ids, mask in zip(batch["input_ids"], batch["attention_mask"]):
                        model(input_ids=ids[mask.bool()][None])

            preprocess_corda(model, config, run_model=run)
            model = peft.get_peft_model(model, config)
        else:
            model = trainer.model.train()

            def step():
                for batch in batches:
                    trainer.compute_loss(model, batch).backward()

            preprocess_loraga(model, config, step)
            model = peft.get_peft_model(model, config)
    tensors = {}
    for module, layer in model.named_modules():
        if hasattr(layer, "lora_A") and len(layer.lora_A):
            module = module.removeprefix("base_model.model.")
            tensors[module + ".a"] = layer.lora_A["default"].weight.data.clone().contiguous()
            if lora["init_lora_weights"] != "eva":
                tensors[module + ".b"] = layer.lora_B["default"].weight.data.clone().contiguous()
    save_file(tensors, OUT / f"{name}.safetensors")
    of = dict(trainer=kind, model="trl-runs/reward-full/model_start" if kind == "reward" else "models/llama", data=data,
              rows=ROWS, batch=BATCH, options=options, lora=lora)
    (OUT / f"{name}.json").write_text(json.dumps(of, indent=1) + "\n")
    print(name, {k: tuple(v.shape) for k, v in tensors.items() if k.endswith("q_proj.a")})


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    for name, case in CASES.items():
        record(name, *case)
