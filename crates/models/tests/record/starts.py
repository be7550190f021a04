"""Records where PEFT's EVA, CorDA and LoRA-GA start from over ../fixtures/qwen2 in float32, for crates/models/tests/starts.rs.

Run with PEFT 0.21.2, Transformers 5.24 and PyTorch on the CPU: starts.py
Writes ../fixtures/starts/rows.json (ids and labels of the rows), and of each case NAME.json (its configuration, and for EVA the
ranks and alphas that it gave) and NAME.safetensors (of each module A and B); of CorDA's first the files that PEFT keeps
(corda_cache, corda_covariance), as safetensors. Ranks are such that PEFT's randomised
decompositions, of a fixed seed or of none, are exact.
"""

import dataclasses
import json
import sys
import tempfile
import types
from pathlib import Path

import peft
import torch

# What PEFT takes of attrs, which it does not depend on.
sys.modules.setdefault("attr", types.SimpleNamespace(dataclass=dataclasses.dataclass))
from peft.tuners.lora.corda import preprocess_corda
from peft.tuners.lora.loraga import preprocess_loraga
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).parent.parent / "fixtures"
OUT = FIXTURES / "starts"
OUT.mkdir(exist_ok=True)
torch.manual_seed(3)
rows = []
for at in range(8):
    n = 26 + 3 * (at % 4)
    ids = torch.randint(0, 56, (n,)).tolist()
    # What comes first is not learned.
    rows.append({"ids": ids, "labels": [-100] * (at % 5) + ids[at % 5:]})
(OUT / "rows.json").write_text(json.dumps(rows) + "\n")


def base():
    return AutoModelForCausalLM.from_pretrained(FIXTURES / "qwen2", dtype=torch.float32).eval()


def batches(size):
    for first in range(0, len(rows), size):
        own = rows[first:first + size]
        width = max(len(row["ids"]) for row in own)
        pad = lambda values, fill: values + [fill] * (width - len(values))
        yield {
            "input_ids": torch.tensor([pad(row["ids"], 0) for row in own]),
            "attention_mask": torch.tensor([pad([1] * len(row["ids"]), 0) for row in own]),
            "labels": torch.tensor([pad(row["labels"], -100) for row in own]),
        }


def write(name, model, config, more=None):
    tensors = {}
    for module, layer in model.named_modules():
        if hasattr(layer, "lora_A") and len(layer.lora_A):
            module = module.removeprefix("base_model.model.")
            tensors[module + ".a"] = layer.lora_A["default"].weight.data.clone().contiguous()
            tensors[module + ".b"] = layer.lora_B["default"].weight.data.clone().contiguous()
    save_file(tensors, OUT / f"{name}.safetensors")
    (OUT / f"{name}.json").write_text(json.dumps({"config": config, **(more or {})}, indent=1) + "\n")
    print(name, {k: tuple(v.shape) for k, v in tensors.items() if k.endswith(".a")})


TARGETS = ["q_proj", "k_proj", "o_proj", "up_proj"]
for name, own in {
    "eva": dict(rho=2.0),
    "eva_fixed": dict(rho=1.0, tau=0.9, use_label_mask=False),
    "eva_scaled": dict(rho=2.0, adjust_scaling_factors=False),
}.items():
    r = 16 if name == "eva_fixed" else 8
    config = dict(r=r, lora_alpha=12, target_modules=TARGETS, init_lora_weights="eva", eva_config=own)
    model = peft.get_peft_model(base(), peft.LoraConfig(**{**config, "eva_config": peft.EvaConfig(**own)}))
    peft.initialize_lora_eva_weights(model, list(batches(2)), show_progress_bar=False)
    made = model.peft_config["default"]
    write(name, model, config, {
        "rank_pattern": made.rank_pattern, "alpha_pattern": made.alpha_pattern,
        "target_modules": sorted(made.target_modules)})

for method in ("ipm", "kpm"):
    own = dict(corda_method=method)
    config = dict(r=4, lora_alpha=12, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights="corda",
                  corda_config=own)
    lora = peft.LoraConfig(**{**config, "corda_config": peft.tuners.lora.config.CordaConfig(**own)})
    model = base()

    def run():
        for row in rows:
            model(input_ids=torch.tensor([row["ids"]]))

    with tempfile.TemporaryDirectory() as scratch:
        # What PEFT pickles, as tensors.
        files = {"cache_file": "corda_cache", "covariance_file": "corda_covariance"} if method == "ipm" else {}
        for key, name in files.items():
            setattr(lora.corda_config, key, f"{scratch}/{name}.pt")
        preprocess_corda(model, lora, run_model=run)
        for name in files.values():
            kept = torch.load(f"{scratch}/{name}.pt")
            save_file({key: value.contiguous() for key, value in kept.items()}, OUT / f"{name}.safetensors")
    write(f"corda_{method}", peft.get_peft_model(model, lora), config)

for name, own in {
    "lora_ga": dict(),
    "lora_ga_svd": dict(direction="ArBr", scale="weight_svd"),
    "lora_ga_gd": dict(direction="A2rBr", scale="gd_scale", stable_gamma=64),
    "lora_ga_unit": dict(scale="unit"),
}.items():
    config = dict(r=8, lora_alpha=12, target_modules=TARGETS, init_lora_weights="lora_ga", lora_ga_config=own)
    lora = peft.LoraConfig(**{**config, "lora_ga_config": peft.LoraGAConfig(**own)})
    model = base()

    def step():
        for batch in batches(2):
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            labels = batch["labels"][:, 1:].reshape(-1)
            torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels).backward()

    preprocess_loraga(model, lora, step)
    write(name, peft.get_peft_model(model, lora), config)
