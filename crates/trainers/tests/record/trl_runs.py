#!/usr/bin/env python3
"""Records short SFT, DPO, KTO, CPO, ORPO and reward runs of TRL on the tiny models and data beside it.

Usage: trl_runs.py [NAME ...]     (default: every run; writes ../fixtures/models and ../fixtures/trl-runs)
Made with TRL 1.16.0, torch 2.15.0, transformers 5.23.0 and peft 0.21.2; CPU, float32, dropout 0.

The models are random (bf16 on disk, loaded as float32) and share a byte-level BPE of 300 tokens trained
on ../fixtures/data. Each run folder holds:

* `run.json`: `trainer`, `model`, `data` (and `eval_data`, `reference`), `options` (everything not listed has TRL's
  default), `lora`, `adapter_start`, `steps` (one object per optimizer step: TRL's metrics, unrounded) and
  `evaluations` (one object per evaluation: every `eval_steps` and after the last step; one batch, so
  that every way to average agrees);
* `model_start/`, of reward runs: the model that scores texts, as the run starts from it;
* `adapter_start/`, where `adapter_start` is true: the adapter the run starts from, no factor zero.

Rows are taken in file order. `learning_rate` is the rate the step used, `num_tokens` counts from the start.
TRL's CPO and ORPO average logits over prompts and padding, and call a likelihood of weight 0 zero: these are left out.
With accumulation TRL's `entropy` and `mean_token_accuracy` are means of the micro-batches' means.
"""

import json
import logging
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")

import datasets  # noqa: E402
import torch  # noqa: E402
from peft import PeftModel, get_peft_config, get_peft_model  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, BitsAndBytesConfig, LlamaConfig, PreTrainedTokenizerFast, Qwen3Config, TrainerCallback)
from trl import (  # noqa: E402
    DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer)
from trl.experimental.cpo import CPOConfig, CPOTrainer  # noqa: E402
from trl.experimental.orpo import ORPOConfig, ORPOTrainer  # noqa: E402

torch.set_num_threads(1)
logging.disable(logging.WARNING)

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
MODELS, DATA, RUNS = FIXTURES / "models", FIXTURES / "data", FIXTURES / "trl-runs"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}")

SHAPE = dict(
    vocab_size=300, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=256, initializer_range=0.1,
    bos_token_id=None, eos_token_id=2, pad_token_id=0)
BASES = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3-tied": Qwen3Config(**SHAPE, tie_word_embeddings=True, attention_bias=True),
    # Rows of whole blocks: bitsandbytes 0.50.2 reads wrong scales on AVX-512 where a row is 32 more than a multiple of 64.
    "llama-64": LlamaConfig(**SHAPE | dict(hidden_size=64, intermediate_size=128, head_dim=16)),
}

SHARED = dict(bf16=False, logging_steps=1, save_strategy="no", train_sampling_strategy="sequential", seed=42,
              max_length=48)
RUNS_TO_RECORD = {
    "sft-full-lm": dict(
        model="llama", data="text.jsonl",
        options=dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=2e-3,
                     warmup_steps=2, weight_decay=0.1, max_steps=8)),
    "sft-full-tied": dict(
        model="qwen3-tied", data="text.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, lr_scheduler_type="constant_with_warmup",
                     warmup_steps=2, weight_decay=0.1, max_grad_norm=0.5, adam_beta2=0.98, max_steps=8)),
    "sft-lora-prompt-completion": dict(
        model="llama", data="prompt_completion.jsonl",
        options=dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=5e-3,
                     lr_scheduler_type="cosine", warmup_steps=2, weight_decay=0.01, max_steps=8),
        lora=dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "sft-lora-packed-bfd": dict(
        model="qwen3-tied", data="text.jsonl",
        options=dict(per_device_train_batch_size=2, learning_rate=5e-3, packing=True, max_steps=8),
        lora=dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])),
    "sft-lora-packed-bfd-prompt-completion": dict(
        model="llama", data="prompt_completion.jsonl",
        options=dict(per_device_train_batch_size=3, learning_rate=5e-3, packing=True, max_length=64, max_steps=6,
                     num_train_epochs=2),
        lora=dict(r=2, lora_alpha=8, target_modules=["q_proj", "down_proj"])),
    "sft-lora-packed-wrapped-conversational": dict(
        model="llama", data="messages.jsonl",
        options=dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=5e-3, packing=True,
                     packing_strategy="wrapped", weight_decay=0.1, max_steps=8),
        lora=dict(r=4, lora_alpha=4, target_modules=["q_proj", "v_proj", "down_proj"])),
    "sft-full-dft": dict(
        model="llama", data="prompt_completion.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=1e-3, lr_scheduler_type="constant",
                     loss_type="dft", max_steps=8)),
    "sft-lora-modules-to-save": dict(
        model="llama", data="text.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, weight_decay=0.05, max_steps=8),
        lora=dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_rslora=True,
                  modules_to_save=["embed_tokens", "lm_head"])),
    # TRL refuses an adapter on `lm_head`.
    "sft-lora-embedding": dict(
        model="llama", data="conversational_prompt_completion.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, max_steps=6),
        lora=dict(r=3, lora_alpha=6, target_modules=["q_proj", "embed_tokens"])),
    "sft-lora-bias": dict(
        model="qwen3-tied", data="prompt_completion.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=5e-3, gradient_checkpointing=False,
                     completion_only_loss=False, weight_decay=0.1, max_steps=6),
        lora=dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "gate_proj"], bias="all",
                  rank_pattern={"v_proj": 2}, alpha_pattern={"layers.1.self_attn.q_proj": 16})),
    "sft-full-evaluation": dict(
        model="qwen3-tied", data="prompt_completion.jsonl", eval_data="prompt_completion_eval.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, eval_strategy="steps", eval_steps=3,
                     per_device_eval_batch_size=8, max_steps=7)),
    # 40 rows in batches of 12: the last batch of an epoch is short, the second epoch starts anew.
    "sft-full-epochs": dict(
        model="llama", data="text.jsonl",
        options=dict(per_device_train_batch_size=4, gradient_accumulation_steps=3, learning_rate=2e-3,
                     num_train_epochs=2)),
    # An adapter that was there before is copied: the copy is the reference.
    "dpo-lora": dict(
        model="llama", data="preference.jsonl", eval_data="preference_eval.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=5e-3, max_steps=6, eval_strategy="steps",
                     eval_steps=3, per_device_eval_batch_size=8),
        lora=dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "dpo-full-weighted-losses": dict(
        model="llama", data="preference.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, loss_type=["sigmoid", "bco_pair", "sft"],
                     loss_weights=[0.8, 0.2, 1.0], max_steps=6)),
    "dpo-full-ipo": dict(
        model="qwen3-tied", data="preference.jsonl",
        options=dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=2e-3,
                     loss_type=["ipo"], beta=0.3, max_steps=5)),
    # Where both texts of a pair are one, its gradient is zero only as long as both get the same bits wherever they lie, and Adam makes
    # steps of what rounding leaves: `preference_apart.jsonl` has no such pair.
    "dpo-full-robust-js": dict(
        model="llama", data="preference_apart.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, loss_type=["robust"], label_smoothing=0.1,
                     f_divergence_type="js_divergence", max_steps=5)),
    # Sorts over the batch: one micro-batch, which is burnish's definition.
    "dpo-full-aot": dict(
        model="llama", data="preference_apart.jsonl", eval_data="preference_eval.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, loss_type=["aot"], label_smoothing=0.05,
                     max_steps=5, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=8)),
    "dpo-full-length-and-weight": dict(
        model="llama", data="preference_apart.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, loss_type=["discopop"], ld_alpha=0.5,
                     use_weighting=True, max_steps=5)),
    "dpo-full-moving-reference": dict(
        model="llama", data="preference_apart.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, sync_ref_model=True, ref_model_sync_steps=2,
                     ref_model_mixup_alpha=0.6, max_steps=7)),
    # Where both answers go on alike, gradients cancel up to rounding, which Adam makes whole steps of: a larger epsilon.
    "dpo-full-precomputed": dict(
        model="llama", data="preference.jsonl", eval_data="preference_eval.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, precompute_ref_log_probs=True,
                     precompute_ref_batch_size=3, max_length=24, max_steps=6, adam_epsilon=1e-5, eval_strategy="steps", eval_steps=3,
                     per_device_eval_batch_size=8)),
    "kto-lora": dict(
        model="llama", data="unpaired.jsonl", eval_data="unpaired_eval.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=5e-3, max_steps=6, eval_strategy="steps",
                     eval_steps=3, per_device_eval_batch_size=8),
        lora=dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "kto-full-weights": dict(
        model="qwen3-tied", data="unpaired.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, beta=0.5, desirable_weight=0.7,
                     undesirable_weight=1.4, max_steps=6)),
    "kto-full-apo-zero": dict(
        model="llama", data="unpaired.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, loss_type="apo_zero_unpaired", max_steps=5)),
    # Pairs are taken apart.
    "kto-full-pairs": dict(
        model="llama", data="preference.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, precompute_ref_log_probs=True, max_steps=6)),
    # Compared with another model, in float32 as the policy.
    "dpo-full-other-reference": dict(
        model="llama", data="preference_apart.jsonl", eval_data="preference_eval.jsonl", reference="qwen3-tied",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, max_steps=6, eval_strategy="steps",
                     eval_steps=3, per_device_eval_batch_size=8)),
    "kto-lora-other-reference": dict(
        model="qwen3-tied", data="unpaired.jsonl", reference="llama",
        options=dict(per_device_train_batch_size=4, learning_rate=5e-3, max_steps=6),
        lora=dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "reward-full": dict(
        model="llama", data="preference.jsonl", eval_data="preference_eval.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, center_rewards_coefficient=0.01, max_steps=6,
                     eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=8)),
    "sft-full-label-smoothing": dict(
        model="qwen3-tied", data="prompt_completion.jsonl", eval_data="prompt_completion_eval.jsonl",
        options=dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=2e-3,
                     label_smoothing_factor=0.2, eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=8,
                     max_steps=6)),
    "sft-lora-label-smoothing": dict(
        model="llama", data="text.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=5e-3, label_smoothing_factor=0.1, max_steps=6),
        lora=dict(r=4, lora_alpha=8, target_modules="all-linear")),
    # TRL rounds adapters over quantised bases to bfloat16; here they stay as they are, as everywhere in burnish.
    "sft-qlora-nf4": dict(
        model="llama-64", data="prompt_completion.jsonl", quantized=dict(load_in_4bit=True),
        options=dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=5e-3, max_steps=6),
        lora=dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "sft-qlora-fp4-nested": dict(
        model="llama-64", data="text.jsonl",
        quantized=dict(load_in_4bit=True, bnb_4bit_quant_type="fp4", use_bnb_nested_quant=True),
        options=dict(per_device_train_batch_size=4, learning_rate=5e-3, max_steps=6),
        lora=dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])),
    "sft-qlora-dora": dict(
        model="llama-64", data="text.jsonl", quantized=dict(load_in_4bit=True, use_bnb_nested_quant=True),
        options=dict(per_device_train_batch_size=4, learning_rate=5e-3, max_steps=5),
        lora=dict(r=4, lora_alpha=8, target_modules="all-linear", use_dora=True)),
    "dpo-qlora-nf4": dict(
        model="llama-64", data="preference.jsonl", quantized=dict(load_in_4bit=True, use_bnb_nested_quant=True),
        options=dict(per_device_train_batch_size=4, learning_rate=5e-3, max_steps=5),
        lora=dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "cpo-full": dict(
        model="llama", data="preference.jsonl", eval_data="preference_eval.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, label_smoothing=0.1, max_length=40, max_steps=6,
                     eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=8)),
    "cpo-full-hinge": dict(
        model="qwen3-tied", data="preference_conversational.jsonl",
        options=dict(per_device_train_batch_size=2, learning_rate=1e-3, loss_type="hinge", beta=0.05, cpo_alpha=0.5,
                     max_length=256, max_steps=4)),
    "cpo-lora-simpo": dict(
        model="llama", data="preference.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=5e-3, loss_type="simpo", beta=2.0, simpo_gamma=1.0,
                     cpo_alpha=0.0, max_steps=6),
        lora=dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "cpo-full-alphapo": dict(
        model="llama", data="preference_apart.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=1e-3, loss_type="alphapo", beta=2.5, alpha=0.25,
                     simpo_gamma=0.5, max_steps=5)),
    "cpo-full-ipo": dict(
        model="qwen3-tied", data="preference.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-3, loss_type="ipo", beta=0.5, max_steps=5)),
    "orpo-lora": dict(
        model="llama", data="preference.jsonl", eval_data="preference_eval.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=5e-3, max_steps=6, eval_strategy="steps",
                     eval_steps=3, per_device_eval_batch_size=8),
        lora=dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "orpo-full": dict(
        model="qwen3-tied", data="preference_conversational.jsonl",
        options=dict(per_device_train_batch_size=3, learning_rate=2e-3, beta=0.5, max_length=256, max_steps=4)),
    # Ranks are allocated after every step, and orthogonality is in the loss, neither of which TRL's trainer does by itself.
    "sft-adalora": dict(
        model="llama", data="prompt_completion.jsonl",
        options=dict(per_device_train_batch_size=4, learning_rate=2e-2, lr_scheduler_type="constant", max_grad_norm=0.4,
                     num_train_epochs=4, max_steps=32),
        lora=dict(peft_type="ADALORA", init_r=4, target_r=2, tinit=5, tfinal=8, deltaT=3, total_step=32, beta1=0.8,
                  beta2=0.9, orth_reg_weight=0.3, lora_alpha=8, target_modules=["q_proj", "o_proj", "down_proj"])),
}
TRAINERS = {"sft": (SFTTrainer, SFTConfig), "dpo": (DPOTrainer, DPOConfig), "kto": (KTOTrainer, KTOConfig),
            "reward": (RewardTrainer, RewardConfig), "cpo": (CPOTrainer, CPOConfig), "orpo": (ORPOTrainer, ORPOConfig)}
# What is there besides the text that the tokenizer was trained on.
PREFERENCES = ("preference", "unpaired")


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    files = [file for file in sorted(DATA.glob("*.jsonl")) if not file.name.startswith(PREFERENCES)]
    texts = [line for file in files for line in strings(file)]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"], special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    assert tokenizer.get_vocab_size() == SHAPE["vocab_size"]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIALS[2], pad_token=SPECIALS[0])
    fast.chat_template = TEMPLATE
    return fast


def strings(file):
    """Every text in a data file."""
    def walk(value):
        if isinstance(value, dict):
            for inner in value.values():
                yield from walk(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner)
        else:
            yield value
    for line in file.read_text().splitlines():
        yield from walk(json.loads(line))


def make_models():
    for index, (name, config) in enumerate(BASES.items()):
        torch.manual_seed(index)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "norm" in key:
                    parameter.uniform_(0.7, 1.3)
                elif key.endswith("bias"):
                    parameter.normal_(0.0, 0.1)
        folder = MODELS / name
        shutil.rmtree(folder, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)


def base(name, quantized=None):
    config = None
    if quantized:
        config = BitsAndBytesConfig(
            load_in_4bit=quantized["load_in_4bit"], bnb_4bit_compute_dtype=torch.float32,
            bnb_4bit_quant_type=quantized.get("bnb_4bit_quant_type", "nf4"),
            bnb_4bit_use_double_quant=quantized.get("use_bnb_nested_quant", False))
    model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32, quantization_config=config)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / name)
    return model, tokenizer


def make_adapter(folder, name, seed, lora):
    """A PEFT adapter whose factors, saved modules and biases all differ from the fresh ones."""
    model, _ = base(name)
    torch.manual_seed(seed)
    adapted = get_peft_model(model, get_peft_config(dict(peft_type="LORA", task_type="CAUSAL_LM") | lora))
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if "lora_" in key and lora.get("peft_type") != "ADALORA":
                parameter.normal_(0.0, 0.1)
            elif "lora_" in key:
                pass
            elif parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = name
    for key in ("target_modules", "modules_to_save"):
        if isinstance(config[key], list):
            config[key].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


class Keep(TrainerCallback):
    """Collects the logged metrics as they are."""

    def __init__(self):
        self.steps, self.evaluations = [], []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.steps.append({**logs, "step": state.global_step})
        elif "eval_loss" in logs:
            timing = ("runtime", "per_second")
            kept = {k: v for k, v in logs.items() if not any(word in k for word in timing)}
            self.evaluations.append({**kept, "step": state.global_step})


class Allocate(TrainerCallback):
    """Has AdaLoRA allocate its ranks, between a step and the end of its gradients."""

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        model.base_model.update_and_allocate(state.global_step)


class AdaLoraTrainer(SFTTrainer):
    """Adds what PEFT's AdaLoraModel adds to a loss that the model computes, which TRL's trainer does itself."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        plain = {key: inputs[key] for key in ("input_ids", "attention_mask", "labels") if key in inputs}
        added = model(**plain).loss - model.base_model.model(**plain).loss
        found = super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        return (found[0] + added, found[1]) if return_outputs else found + added


def record(index, name, model, data, options, lora=None, eval_data=None, reference=None, quantized=None):
    folder = RUNS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    network, tokenizer = base(model, quantized)
    if lora is not None:
        make_adapter(folder / "adapter_start", model, 10 + index, lora)
        network = PeftModel.from_pretrained(network, folder / "adapter_start", is_trainable=True)
    if name.startswith("reward"):
        torch.manual_seed(10 + index)
        scorer = AutoModelForSequenceClassification.from_pretrained(MODELS / model, num_labels=1, dtype=torch.bfloat16)
        scorer.config.pad_token_id = tokenizer.pad_token_id
        for part in (scorer, tokenizer):
            part.save_pretrained(folder / "model_start")
        network = AutoModelForSequenceClassification.from_pretrained(folder / "model_start", dtype=torch.float32)
    whole = {key: value.detach().float().clone() for key, value in network.named_parameters() if value.requires_grad}
    options = SHARED | options
    kind = name.split("-")[0]
    Trainer, Config = TRAINERS[kind]
    if "adalora" in name:
        Trainer = AdaLoraTrainer
    keep = Keep()
    with tempfile.TemporaryDirectory() as scratch:
        def rows(file):
            return datasets.load_dataset("json", data_files=str(DATA / file), split="train", cache_dir=scratch)

        compared = dict(ref_model=base(reference)[0]) if reference else {}
        trainer = Trainer(
            network, **compared, args=Config(output_dir=scratch, use_cpu=True, report_to="none", disable_tqdm=True, **options),
            train_dataset=rows(data), eval_dataset=rows(eval_data) if eval_data else None,
            processing_class=tokenizer, callbacks=[keep] + ([Allocate()] if "adalora" in name else []))
        for key, parameter in trainer.model.named_parameters():
            if quantized and parameter.requires_grad:
                parameter.data = whole[key.replace("ref.", "default.")].clone()
        start = {k: p.detach().clone() for k, p in trainer.model.named_parameters() if p.requires_grad}
        trainer.train()
        for key, parameter in trainer.model.named_parameters():
            # A trained tensor which TRL leaves out of its loss would show here.
            # Singular values of which none is left are zero again.
            moved = key not in start or "lora_E" in key or not torch.equal(parameter, start[key])
            assert moved, f"{name}: {key} never moved"
    if kind in ("cpo", "orpo"):
        unlike = ["logits/chosen", "logits/rejected"]
        if kind == "cpo" and trainer.args.cpo_alpha == 0:
            unlike.append("nll_loss")
        for figures in keep.steps + keep.evaluations:
            for key in unlike:
                figures.pop(key, None)
                figures.pop(f"eval_{key}", None)
    run = dict(run=name, trainer=kind, model=model, data=data, options=options | (quantized or {}), adapter_start=lora is not None,
               lora=lora, versions={p: version(p) for p in ("torch", "transformers", "peft", "trl")},
               steps=keep.steps)
    if reference:
        run["reference"] = reference
    if "adalora" in name:
        pattern = trainer.model.peft_config["default"].rank_pattern
        run["rank_pattern"] = {key.replace(".default", ""): kept for key, kept in pattern.items()}
    if eval_data:
        run |= dict(eval_data=eval_data, evaluations=keep.evaluations)
    (folder / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    losses = [step["loss"] for step in keep.steps]
    norms = [step["grad_norm"] for step in keep.steps]
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{name:40} {len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
          f"grad_norm {min(norms):.3f}..{max(norms):.3f}, {size / 1024:.0f} KiB", flush=True)


def main():
    names = sys.argv[1:]
    if not names:
        make_models()
    for index, (name, run) in enumerate(RUNS_TO_RECORD.items()):
        if not names or name in names:
            record(index, name, **run)


if __name__ == "__main__":
    main()
