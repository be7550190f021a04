"""Trains an adapter with TRL over a folder that compressed-tensors wrote, multiplied out as it is loaded.

    python train_with_trl.py MODEL ADAPTER ROWS.jsonl

TRL 1.16, PEFT 0.21.2, Transformers 5.24, compressed-tensors 0.20.1, torch 2.15 on the CPU. All rows are one batch, so that their
order counts for nothing.
"""

import json
import sys

import torch
from datasets import load_dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, CompressedTensorsConfig
from trl import SFTConfig, SFTTrainer

folder, adapter, rows = sys.argv[1:]
config = CompressedTensorsConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=config)
model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
rows = load_dataset("json", data_files=rows, split="train")
args = SFTConfig(output_dir="out", max_steps=3, per_device_train_batch_size=len(rows), learning_rate=1e-3, logging_steps=1,
                 report_to="none", bf16=False, max_length=128, save_strategy="no", gradient_checkpointing=False, use_cpu=True,
                 lr_scheduler_type="constant")
trainer = SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(folder))
trainer.train()
for row in trainer.state.log_history:
    if "loss" in row:
        print(json.dumps({"folder": folder, "program": "TRL", "step": row["step"], "loss": row["loss"], "grad_norm": row["grad_norm"]}))
