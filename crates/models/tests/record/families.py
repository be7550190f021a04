#!/usr/bin/env python3
"""Records the model fixtures: tiny random models with the logits and tokens Transformers gives.

Usage: families.py [OUTPUT_FOLDER [NAME...]]     (default: ../fixtures beside this file, all)
Made with torch 2.15.0 and transformers 5.23.0, CPU, one thread, eager attention.

Each folder holds a model in Hugging Face's format and `expected.json`:

* `logits`: rows of `input_ids` and the float32 logits [positions, vocab] of every position
  (each row run alone, no padding, no cache), rounded to 6 decimals;
* `generate`: greedy continuations (`prompt`, `repetition_penalty`, `max_new_tokens`, `tokens`);
  `tokens` ends with the end-of-sequence token if one of `generation_config.json` was met.
* `train` (families beyond the first five): `documents`, the log-probabilities of their next tokens, the loss (the mean
  over all of them) and of each parameter's gradient its norm and its sum with the weights of `probe`; one document
  holds the padding token, whose embedding the lookup does not train.
  Matrices that the class keeps as `[in, out]` (GPT-2's, gpt-oss' experts) are digested turned, as `[out, in]`.
* `min_gap`: the least distance between the best and the second best score of any greedy step.

`config_old.json`, where present, is the same model in the spelling of Transformers 4
(`rope_theta`, `rope_scaling`, `torch_dtype`); `config_alt*.json` are further spellings.
Every one of them is checked here to give the same logits as `config.json`.
"""

import itertools
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM, AutoModelForMultimodalLM, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config)
import transformers

torch.set_num_threads(1)

HERE = Path(__file__).resolve().parent
NEW_TOKENS = 20

SMALL = dict(
    vocab_size=56,
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=0.2,
    bos_token_id=1,
    eos_token_id=2,
)
# Two heads of 16: eight frequencies, enough for every scaling rule to matter.
ROPE = SMALL | dict(num_attention_heads=2, num_key_value_heads=1, vocab_size=48)
# The first five families, whose fixtures have other spellings of their configuration.
OLD = ("llama", "mistral", "qwen2", "qwen3", "phi3")
LONG = [3, 17, 33]
SHORT = [5, 40]


def families():
    """name -> (config class, arguments, options of `record`)."""
    theta = {"rope_type": "default", "rope_theta": 10000.0}
    yield "llama", LlamaConfig, SMALL | dict(rms_norm_eps=1e-5), {}
    yield "llama-tied", LlamaConfig, SMALL | dict(
        tie_word_embeddings=True, rope_parameters=theta | {"rope_theta": 500000.0}), {}
    yield "llama-bias", LlamaConfig, SMALL | dict(attention_bias=True, mlp_bias=True), {}
    yield "llama-head-dim", LlamaConfig, SMALL | dict(head_dim=12, intermediate_size=36), {}
    yield "llama-mqa", LlamaConfig, SMALL | dict(
        hidden_size=48, num_attention_heads=6, num_key_value_heads=1, vocab_size=40,
        num_hidden_layers=1), {}
    yield "llama-mha", LlamaConfig, SMALL | dict(num_key_value_heads=4, vocab_size=40), {}
    yield "llama-rope-linear", LlamaConfig, ROPE | dict(
        rope_parameters=theta | {"rope_type": "linear", "factor": 2.5}), dict(dtype="bfloat16", rows=SHORT)
    # 40 tokens are beyond the 32 trained positions, the generated text stays within them.
    yield "llama-rope-dynamic", LlamaConfig, ROPE | dict(
        max_position_embeddings=32, rope_parameters=theta | {"rope_type": "dynamic", "factor": 2.0},
    ), dict(dtype="bfloat16", rows=SHORT, prompts=(4, 9))
    yield "llama-rope-llama3", LlamaConfig, ROPE | dict(
        max_position_embeddings=2048, rope_parameters=theta | {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256}), dict(dtype="bfloat16", rows=SHORT)
    yield "llama-rope-yarn", LlamaConfig, ROPE | dict(
        max_position_embeddings=8192, rope_parameters={
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
            "original_max_position_embeddings": 2048}), dict(dtype="bfloat16", rows=SHORT)
    yield "llama-rope-yarn-untruncated", LlamaConfig, ROPE | dict(
        max_position_embeddings=8192, rope_parameters={
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "truncate": False,
            "beta_fast": 24.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5,
            "original_max_position_embeddings": 2048}), dict(dtype="bfloat16", rows=SHORT)
    yield "llama-rope-yarn-attention-factor", LlamaConfig, ROPE | dict(
        max_position_embeddings=8192, rope_parameters={
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "attention_factor": 1.3,
            "original_max_position_embeddings": 2048}), dict(dtype="bfloat16", rows=SHORT)
    longrope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32,
        "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8],
        "long_factor": [1.1, 1.5, 2.0, 2.6, 3.1, 3.5, 3.8, 4.0]}
    yield "llama-rope-longrope", LlamaConfig, ROPE | dict(
        max_position_embeddings=128, rope_parameters=longrope,
    ), dict(dtype="bfloat16", rows=SHORT, prompts=(4, 9))
    yield "llama-bf16", LlamaConfig, SMALL | dict(rms_norm_eps=1e-5), dict(dtype="bfloat16")
    yield "llama-f16", LlamaConfig, SMALL | dict(tie_word_embeddings=True), dict(dtype="float16")
    yield "llama-sharded", LlamaConfig, SMALL | dict(attention_bias=True), dict(shard="16KB", rows=SHORT)
    yield "mistral", MistralConfig, SMALL | dict(
        sliding_window=None, head_dim=16, num_attention_heads=2, num_key_value_heads=1,
        rope_parameters=theta | {"rope_theta": 1000000.0}), {}
    yield "mistral-window", MistralConfig, SMALL | dict(sliding_window=8, rms_norm_eps=1e-5), {}
    yield "qwen2", Qwen2Config, SMALL | dict(rope_parameters=theta | {"rope_theta": 1000000.0}), {}
    yield "qwen2-tied", Qwen2Config, SMALL | dict(tie_word_embeddings=True), dict(eos_list=True)
    yield "qwen2-window", Qwen2Config, SMALL | dict(
        use_sliding_window=True, sliding_window=8, max_window_layers=1), dict(dtype="bfloat16")
    yield "qwen2-yarn", Qwen2Config, ROPE | dict(
        max_position_embeddings=4096, rope_parameters={
            "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
            "original_max_position_embeddings": 1024}), dict(dtype="bfloat16", rows=SHORT)
    yield "qwen3", Qwen3Config, SMALL | dict(head_dim=12, intermediate_size=36), {}
    yield "qwen3-tied", Qwen3Config, SMALL | dict(
        head_dim=16, tie_word_embeddings=True, attention_bias=True, vocab_size=40), dict(eos_list=True)
    yield "qwen3-window", Qwen3Config, SMALL | dict(
        head_dim=8, use_sliding_window=True, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"]), dict(dtype="bfloat16")
    phi = SMALL | dict(pad_token_id=0)
    yield "phi3", Phi3Config, phi | dict(num_key_value_heads=4, vocab_size=40), {}
    # As Phi-4-mini: tied, some dimensions of a head do not rotate.
    yield "phi3-window", Phi3Config, phi | dict(
        tie_word_embeddings=True, sliding_window=8,
        rope_parameters=theta | {"partial_rotary_factor": 0.75}), {}
    yield "phi3-longrope", Phi3Config, phi | dict(
        num_attention_heads=2, num_key_value_heads=1, vocab_size=48, original_max_position_embeddings=32,
        rope_parameters=longrope), dict(dtype="bfloat16", rows=SHORT, prompts=(4, 9))


def more_families():
    """Those beyond the first five: name -> (model type, arguments); windows shorter than the text, biases everywhere."""
    theta = {"rope_type": "default", "rope_theta": 10000.0}
    base = {k: v for k, v in SMALL.items()} | dict(
        pad_token_id=0, head_dim=8, hidden_size=36, intermediate_size=44, vocab_size=42)
    # Where a head is the hidden size over the heads.
    square = {k: v for k, v in base.items() if k != "head_dim"} | dict(hidden_size=32)
    alternating = ["sliding_attention", "full_attention"]
    yield "gemma", "gemma", base | dict(attention_bias=True, num_key_value_heads=1)
    yield "gemma2", "gemma2", base | dict(
        sliding_window=8, query_pre_attn_scalar=20, attn_logit_softcapping=1.5, final_logit_softcapping=4.0)
    yield "gemma3", "gemma3_text", base | dict(
        hidden_size=20, intermediate_size=28, sliding_window=8, query_pre_attn_scalar=20, num_hidden_layers=3, final_logit_softcapping=4.0,
        layer_types=["sliding_attention"] * 2 + ["full_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                         "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}})
    yield "smollm3", "smollm3", square | dict(
        no_rope_layer_interval=2, attention_bias=True, mlp_bias=True, rope_parameters=theta | {"rope_theta": 50.0})
    yield "granite", "granite", square | dict(
        attention_bias=True, mlp_bias=True, embedding_multiplier=3.0, logits_scaling=1.7,
        residual_multiplier=0.6, attention_multiplier=0.21)
    yield "olmo", "olmo", square | dict(clip_qkv=0.4, attention_bias=True)
    yield "olmo2", "olmo2", square | dict(attention_bias=True)
    yield "olmo3", "olmo3", square | dict(
        sliding_window=8, layer_types=alternating,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                         "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}})
    yield "ministral", "ministral", base | dict(sliding_window=8, layer_types=alternating)
    yield "ministral3", "ministral3", base | dict(rope_parameters={
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 8,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4})
    yield "cohere", "cohere", square | dict(attention_bias=True, logit_scale=0.8)
    yield "cohere2", "cohere2", square | dict(sliding_window=8, logit_scale=0.8, layer_types=alternating)
    yield "glm", "glm", base
    yield "glm4", "glm4", base | dict(attention_bias=False)
    yield "starcoder2", "starcoder2", square | dict(sliding_window=8)
    yield "phi", "phi", square
    yield "stablelm", "stablelm", square | dict(use_qkv_bias=True, rope_parameters=theta | {
        "partial_rotary_factor": 0.5})
    yield "stablelm-parallel", "stablelm", square | dict(use_parallel_residual=True)
    yield "nemotron", "nemotron", base | dict(attention_bias=True, mlp_bias=True)
    neox = {k: v for k, v in square.items() if k != "num_key_value_heads"}
    yield "gpt-neox", "gpt_neox", neox
    yield "gpt-neox-sequential", "gpt_neox", neox | dict(use_parallel_residual=False, tie_word_embeddings=True)
    yield "internlm3", "internlm3", base | dict(attention_bias=True, mlp_bias=True)
    yield "exaone4", "exaone4", square | dict(sliding_window=8, layer_types=alternating)
    yield "helium", "helium", square | dict(head_dim=8)
    yield "ernie4_5", "ernie4_5", base | dict(use_bias=True)
    yield "seed-oss", "seed_oss", base | dict(
        attention_out_bias=True, mlp_bias=True, attention_dropout=0.0, residual_dropout=0.0)
    yield "hunyuan", "hunyuan_v1_dense", base | dict(rope_parameters={
        "rope_type": "dynamic", "rope_theta": 500.0, "alpha": 50.0, "factor": 1.0})
    yield "arcee", "arcee", base | dict(attention_bias=True, mlp_bias=True)
    opt = {k: v for k, v in square.items() if k not in ("num_key_value_heads", "intermediate_size", "initializer_range")}
    yield "opt", "opt", opt | dict(
        ffn_dim=44, word_embed_proj_dim=32, init_std=0.2, dropout=0.0, attention_dropout=0.0)
    falcon = {k: v for k, v in square.items() if k not in ("num_key_value_heads", "intermediate_size")} | dict(
        ffn_hidden_size=44)
    yield "falcon", "falcon", falcon | dict(bias=True)
    yield "falcon-new", "falcon", falcon | dict(
        new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False)
    gpt = dict(vocab_size=42, n_embd=32, n_layer=2, n_head=4, n_positions=64, n_inner=44, initializer_range=0.2,
               bos_token_id=1, eos_token_id=2, pad_token_id=0)
    quiet = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    yield "gptj", "gptj", gpt | dict(rotary_dim=4)
    yield "gpt-neo", "gpt_neo", dict(
        vocab_size=42, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=44, window_size=8,
        max_position_embeddings=64, attention_types=[[["global", "local"], 1]], initializer_range=0.2,
        bos_token_id=1, eos_token_id=2, pad_token_id=0)
    yield "gpt-bigcode", "gpt_bigcode", gpt | quiet
    yield "gpt-bigcode-heads", "gpt_bigcode", gpt | quiet | dict(multi_query=False)
    yield "gpt2", "gpt2", gpt | quiet
    yield "gpt2-layers", "gpt2", gpt | quiet | dict(scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False)
    yield "codegen", "codegen", gpt | quiet | dict(rotary_dim=4, tie_word_embeddings=False)
    yield "xglm", "xglm", dict(
        vocab_size=42, d_model=32, ffn_dim=44, num_layers=2, attention_heads=4, init_std=0.2, dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, max_position_embeddings=64, pad_token_id=0, bos_token_id=1,
        eos_token_id=2)
    # Convolutions before and between, which reach over no document's border.
    yield "lfm2", "lfm2", square | dict(
        num_hidden_layers=3, full_attn_idxs=[1], conv_L_cache=3, conv_bias=True, block_multiple_of=4,
        block_ff_dim=48)
    # Gates of heads, windows, ropes by kinds of blocks.
    yield "lfm3", "lfm3", square | dict(
        num_hidden_layers=4, layer_types=["conv", "sliding_attention", "full_attention", "conv"], conv_L_cache=3, conv_bias=True,
        sliding_window=8, num_key_value_heads=2, head_dim=12, attention_bias=True, initializer_range=0.15, rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}})
    yield "lfm3-bare", "lfm3", square | dict(
        num_hidden_layers=2, layer_types=["sliding_attention", "conv"], conv_L_cache=3, sliding_window=8, head_dim=8,
        use_sandwich_norm=False, use_attention_gate=False, tie_word_embeddings=False)
    yield "exaone", "exaone", base | dict(attention_bias=True, mlp_bias=True, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16})
    yield "cwm", "cwm", base | dict(sliding_window=8, layer_types=alternating, mlp_bias=True, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16})
    yield "bloom", "bloom", dict(
        vocab_size=42, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.2, bos_token_id=1, eos_token_id=2,
        pad_token_id=0)
    # Slopes of a number of heads that is no power of two.
    yield "bloom-heads", "bloom", dict(
        vocab_size=42, hidden_size=24, n_layer=2, n_head=6, initializer_range=0.2, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, tie_word_embeddings=False)
    yield "mpt", "mpt", dict(
        vocab_size=42, d_model=24, n_layers=2, n_heads=6, max_seq_len=64, initializer_range=0.2, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, attn_config=dict(clip_qkv=0.6, softmax_scale=0.4))
    yield "persimmon", "persimmon", {k: v for k, v in square.items() if k != "num_key_value_heads"}
    yield "phi-qk-norm", "phi", square | dict(qk_layernorm=True)
    yield "cohere-qk-norm", "cohere", square | dict(use_qk_norm=True, logit_scale=0.8)
    bio = {k: v for k, v in square.items() if k != "num_key_value_heads"}
    yield "biogpt", "biogpt", bio | dict(
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, activation_dropout=0.0, max_position_embeddings=64,
        initializer_range=0.06)
    yield "vaultgemma", "vaultgemma", base | dict(
        initializer_range=0.1, sliding_window=8, query_pre_attn_scalar=20, attn_logit_softcapping=1.5, final_logit_softcapping=4.0)
    yield "apertus", "apertus", square | dict(initializer_range=0.15)
    yield "jais2", "jais2", base
    yield "hyperclovax", "hyperclovax", square | dict(
        attention_bias=True, mlp_bias=True, embedding_multiplier=3.0, logits_scaling=0.6, residual_multiplier=0.6,
        attention_multiplier=0.21)
    yield "iquestcoder", "iquestcoder", base | dict(num_key_value_heads=2, attention_bias=True)
    yield "nanochat", "nanochat", square | dict(attention_bias=True, final_logit_softcapping=4.0)
    # Text parts of models that also see; their towers are as small as they get.
    small = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                 patch_size=14)
    text = square | dict(num_key_value_heads=2, vocab_size=42, hidden_size=24, intermediate_size=32,
                         num_attention_heads=2, head_dim=12)
    gemma3 = text | dict(
        sliding_window=8, query_pre_attn_scalar=20, num_hidden_layers=2, layer_types=alternating,
        final_logit_softcapping=4.0)
    yield "gemma3-vision", "gemma3", dict(text_config=gemma3, vision_config=small, mm_tokens_per_image=4)
    yield "mistral3-vision", "mistral3", dict(
        text_config=text | dict(model_type="mistral", sliding_window=None), tie_word_embeddings=False,
        vision_config=small | dict(model_type="pixtral", head_dim=8))
    mrope = dict(rope_parameters={"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 2, 2]})
    tower = dict(depth=1, num_heads=2, patch_size=4)
    qwen = {k: v for k, v in text.items() if k != "head_dim"} | mrope
    yield "qwen2-vl", "qwen2_vl", dict(
        text_config=qwen, vision_config=tower | dict(embed_dim=16, hidden_size=24, mlp_ratio=1))
    yield "qwen2_5-vl", "qwen2_5_vl", dict(
        text_config=qwen | dict(use_sliding_window=True, sliding_window=8, max_window_layers=1),
        tie_word_embeddings=True,
        vision_config=tower | dict(hidden_size=16, intermediate_size=16, out_hidden_size=24))
    yield "qwen3-vl", "qwen3_vl", dict(
        text_config=text | mrope, vision_config=tower | dict(
            hidden_size=16, intermediate_size=16, out_hidden_size=24, num_position_embeddings=16,
            deepstack_visual_indexes=[0]))
    clip = small | dict(model_type="clip_vision_model")
    yield "llava", "llava", dict(text_config=text | dict(model_type="llama"), vision_config=clip)
    yield "llava-next", "llava_next", dict(
        text_config=text | dict(model_type="mistral", sliding_window=8), vision_config=clip)
    yield "llava-onevision", "llava_onevision", dict(
        text_config=qwen | dict(model_type="qwen2", tie_word_embeddings=True, rope_parameters=theta),
        vision_config=small | dict(model_type="siglip_vision_model"))
    yield "internvl", "internvl", dict(
        text_config=text | dict(model_type="qwen3"), tie_word_embeddings=False,
        vision_config=small | dict(image_size=[28, 28], patch_size=[14, 14]))
    yield "smolvlm", "smolvlm", dict(text_config=text | dict(model_type="llama"), vision_config=small)
    yield "idefics3", "idefics3", dict(text_config=text | dict(model_type="llama"), vision_config=small)
    yield "aya-vision", "aya_vision", dict(
        text_config=text | dict(model_type="cohere2", sliding_window=8, layer_types=alternating),
        vision_config=small | dict(model_type="siglip_vision_model"))
    # Mixtures of experts, with more experts than most rows have tokens.
    mixed = {k: v for k, v in square.items()} | dict(
        hidden_size=24, intermediate_size=12, num_attention_heads=2, num_key_value_heads=1, num_experts_per_tok=2)
    yield "mixtral", "mixtral", mixed | dict(num_local_experts=5, num_experts_per_tok=2)
    qwen = mixed | dict(num_experts=6, moe_intermediate_size=10, intermediate_size=20)
    yield "qwen3-moe", "qwen3_moe", qwen | dict(head_dim=12, norm_topk_prob=True)
    # The first block dense, weights that do not sum to one, biases, a window.
    yield "qwen3-moe-dense", "qwen3_moe", qwen | dict(
        head_dim=12, num_hidden_layers=3, mlp_only_layers=[0], decoder_sparse_step=1, num_experts_per_tok=3,
        attention_bias=True, use_sliding_window=True, sliding_window=8, num_experts=4)
    yield "qwen2-moe", "qwen2_moe", qwen | dict(
        shared_expert_intermediate_size=14, decoder_sparse_step=2, use_sliding_window=True, sliding_window=8,
        max_window_layers=2)
    yield "olmoe", "olmoe", mixed | dict(num_experts=6, clip_qkv=0.9, num_key_value_heads=2)
    yield "granitemoe", "granitemoe", mixed | dict(
        num_local_experts=5, embedding_multiplier=3.0, logits_scaling=1.7, residual_multiplier=0.6,
        attention_multiplier=0.21)
    yield from more_mixtures(mixed)
    # As StableLM 2 12B: norms of each head, in modules of their own.
    yield "stablelm-qk-norm", "stablelm", square | dict(use_parallel_residual=True, qk_layernorm=True)
    # As the smallest Gemma 4: each block has an embedding of its own, the last ones read others' keys and values.
    wide = base | dict(
        hidden_size=20, intermediate_size=12, sliding_window=8, global_head_dim=12, num_hidden_layers=5,
        vocab_size_per_layer_input=42, hidden_size_per_layer_input=6, num_key_value_heads=1, initializer_range=0.12)
    yield "gemma4", "gemma4_text", wide | dict(
        num_kv_shared_layers=3, use_double_wide_mlp=True, final_logit_softcapping=4.0,
        layer_types=alternating * 2 + ["full_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                         "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 50.0}})
    # As the largest: keys are values where everything is seen, with fewer heads.
    yield "gemma4-keys-as-values", "gemma4_text", wide | dict(
        num_hidden_layers=3, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_key_value_heads=2,
        num_global_key_value_heads=1, attention_bias=True, layer_types=["full_attention"] + alternating)
    yield "gemma4-vision", "gemma4", dict(
        text_config=wide | dict(
            hidden_size_per_layer_input=12, num_hidden_layers=3, num_kv_shared_layers=1, layer_types=alternating + ["full_attention"], final_logit_softcapping=4.0),
        vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                           num_key_value_heads=2, head_dim=8, patch_size=4, position_embedding_size=16),
        audio_config=None)
    # As Falcon-RW: linear biases, of slopes that bfloat16 has not.
    rw = {k: v for k, v in square.items() if k not in ("num_key_value_heads", "intermediate_size")} | dict(
        ffn_hidden_size=44, alibi=True, multi_query=False, bias=True)
    yield "falcon-rw", "falcon", rw | dict(parallel_attn=False)
    yield "falcon-rw-heads", "falcon", rw | dict(num_attention_heads=12, hidden_size=24)
    # As OPT-350m: norms of sums, an embedding narrower than the stream.
    after = {k: v for k, v in square.items() if k not in ("num_key_value_heads", "intermediate_size", "initializer_range")}
    after = after | dict(ffn_dim=44, init_std=0.2, dropout=0.0, attention_dropout=0.0)
    yield "opt-350m", "opt", after | dict(word_embed_proj_dim=20, do_layer_norm_before=False)
    yield "opt-unnormed", "opt", after | dict(word_embed_proj_dim=32, _remove_final_layer_norm=True)
    yield from llama4s(mixed)
    yield "flex-olmo", "flex_olmo", mixed | dict(num_experts=5, num_key_value_heads=2)
    yield "dots1", "dots1", mixed | dict(
        n_routed_experts=6, moe_intermediate_size=8, intermediate_size=20, n_shared_experts=2, n_group=3, topk_group=2,
        routed_scaling_factor=1.7, first_k_dense_replace=1, norm_topk_prob=True, sliding_window=8, max_window_layers=1, head_dim=12)
    yield "cohere2-vision", "cohere2_vision", dict(
        alignment_intermediate_size=16,
        text_config=text | dict(model_type="cohere2", sliding_window=8, layer_types=alternating),
        vision_config=small | dict(model_type="siglip_vision_model"))
    yield "vipllava", "vipllava", dict(text_config=text | dict(model_type="llama"), vision_config=clip)
    yield "llava-next-video", "llava_next_video", dict(text_config=text | dict(model_type="llama"), vision_config=clip)
    yield "glm4-moe-lite", "glm4_moe_lite", mixed | dict(
        num_key_value_heads=2, moe_intermediate_size=8, intermediate_size=20, kv_lora_rank=8, n_routed_experts=6, n_shared_experts=2,
        q_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=9, n_group=3, topk_group=2, num_hidden_layers=3,
        mlp_layer_types=["sparse", "dense", "sparse"])
    shared = dict(num_local_experts=5, embedding_multiplier=3.0, logits_scaling=1.7, residual_multiplier=0.6,
                  attention_multiplier=0.21)
    yield "granitemoeshared", "granitemoeshared", mixed | shared | dict(shared_intermediate_size=14, attention_bias=True)
    ernie = mixed | dict(
        num_hidden_layers=3, moe_num_experts=6, moe_k=2, moe_intermediate_size=8, intermediate_size=20, tie_word_embeddings=False)
    yield "ernie4_5-moe", "ernie4_5_moe", ernie | dict(
        use_bias=True, moe_layer_interval=2, moe_num_shared_experts=2, num_hidden_layers=4, moe_layer_start_index=0, moe_layer_end_index=2)
    yield "ernie4_5-moe-unshared", "ernie4_5_moe", ernie | dict(
        num_hidden_layers=2, moe_num_shared_experts=0, tie_word_embeddings=True)
    # Logits near each other, whose weights are probabilities of more than one; beyond the original positions.
    yield "phimoe", "phimoe", mixed | dict(
        num_local_experts=5, router_jitter_noise=0.3, attention_bias=True, lm_head_bias=True, sliding_window=8,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16, "factor": 4.0,
            "short_mscale": 1.1, "long_mscale": 1.4, "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
            "long_factor": [1.1, 1.5, 2.0, 2.6, 3.1, 3.5]})
    # As Transformers writes it, and as it is published: experts `[in, out]`.
    vl = text | mrope | dict(num_experts=6, moe_intermediate_size=10, intermediate_size=20, num_experts_per_tok=2)
    eye = tower | dict(
        hidden_size=16, intermediate_size=16, out_hidden_size=24, num_position_embeddings=16, deepstack_visual_indexes=[0])
    yield "qwen3-vl-moe", "qwen3_vl_moe", dict(text_config=vl | dict(mlp_only_layers=[0]), vision_config=eye)
    yield "qwen3-vl-moe-published", "qwen3_vl_moe", dict(
        text_config=vl | dict(attention_bias=True, num_hidden_layers=1), vision_config=eye)
    yield "exaone4_5", "exaone4_5", dict(
        text_config={k: v for k, v in text.items() if k != "head_dim"} | dict(
            model_type="exaone4", sliding_window=8, layer_types=alternating),
        vision_config=tower | dict(
            hidden_size=16, intermediate_size=16, out_hidden_size=24, num_key_value_heads=2, fullatt_block_indexes=[0]))
    yield "lfm2-vl", "lfm2_vl", dict(
        text_config=square | dict(
            model_type="lfm2", initializer_range=0.15, num_hidden_layers=3, full_attn_idxs=[1], conv_L_cache=3, block_multiple_of=4, block_ff_dim=48),
        projector_hidden_size=16,
        vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, patch_size=4, num_patches=16))
    # Experts beside feed-forwards: as the published mixture, and with all that the smallest ones have.
    beside = dict(enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=6)
    yield "gemma4-moe", "gemma4_text", wide | beside | dict(
        num_hidden_layers=3, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_key_value_heads=2,
        num_global_key_value_heads=1, layer_types=alternating + ["full_attention"], final_logit_softcapping=4.0)
    yield "gemma4-moe-per-layer", "gemma4_text", wide | beside | dict(
        num_hidden_layers=3, num_kv_shared_layers=1, use_double_wide_mlp=True, attention_bias=True, initializer_range=0.07,
        layer_types=alternating + ["full_attention"])
    # Streams beside each other; blocks of several widths, with and without gates that are cut off; tokens without an input
    # of their own; keys and values of earlier blocks.
    streams = base | dict(
        hidden_size=20, num_attention_heads=4, intermediate_size=[12, 16, 12], sliding_window=8, num_hidden_layers=3,
        vocab_size_per_layer_input=37, hidden_size_per_layer_input=6, num_key_value_heads=2, initializer_range=0.08,
        activation_sparsity_pattern=[0.6, 0.0, 0.4], altup_num_inputs=3, altup_active_idx=1, laurel_rank=5,
        num_kv_shared_layers=1, final_logit_softcapping=4.0, layer_types=alternating + ["sliding_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                         "full_attention": {"rope_type": "default", "rope_theta": 500.0}})
    yield "gemma3n", "gemma3n_text", streams
    yield "gemma3n-vision", "gemma3n", dict(
        text_config=streams | dict(intermediate_size=[12, 16], num_hidden_layers=2, num_kv_shared_layers=0,
                                   activation_sparsity_pattern=[0.5, 0.0], layer_types=alternating, altup_active_idx=0),
        vision_config=dict(architecture="test_efficientnet", hidden_size=64, vocab_size=2, vocab_offset=42),
        audio_config=dict(hidden_size=16, conf_num_attention_heads=2, conf_num_hidden_layers=1, input_feat_size=8,
                          sscp_conv_channel_size=[2, 2], vocab_size=2, vocab_offset=44))
    # Linear biases on keys that all heads share, and that groups share.
    yield "falcon-rw-shared", "falcon", rw | dict(multi_query=True, parallel_attn=False)
    yield "falcon-rw-groups", "falcon", rw | dict(new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False)
    # Gated delta rules, over more tokens than one chunk.
    linear = dict(
        linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=6, linear_value_head_dim=5, linear_conv_kernel_dim=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"], num_hidden_layers=3, initializer_range=0.12,
        rope_parameters=theta | {"partial_rotary_factor": 0.5})
    yield "qwen3_5", "qwen3_5_text", base | linear | dict(hidden_size=24, intermediate_size=20, attention_bias=True)
    spread = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=10)
    few = linear | dict(linear_num_value_heads=4, num_hidden_layers=2)
    few["layer_types"] = ["linear_attention", "full_attention"]
    yield "qwen3-next", "qwen3_next", base | linear | spread | dict(
        hidden_size=24, intermediate_size=12, mlp_only_layers=[1], norm_topk_prob=False)
    yield "qwen3_5-moe", "qwen3_5_moe_text", {k: v for k, v in base.items() if k != "intermediate_size"} | few | spread | dict(hidden_size=24)
    look = dict(depth=1, num_heads=2, patch_size=4, hidden_size=16, intermediate_size=16, out_hidden_size=24, num_position_embeddings=16)
    turned = dict(rope_parameters=theta | {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0], "mrope_interleaved": True})
    yield "qwen3_5-vision", "qwen3_5", dict(
        text_config=base | few | turned | dict(hidden_size=24, intermediate_size=12), vision_config=look)
    yield "qwen3_5-moe-vision", "qwen3_5_moe", dict(
        text_config={k: v for k, v in base.items() if k != "intermediate_size"} | few | spread | turned | dict(hidden_size=24),
        vision_config=look)
    # As Gemma 4 of 12B: no encoders, and nothing beside the stream.
    unified = {k: v for k, v in wide.items() if k not in ("vocab_size_per_layer_input", "hidden_size_per_layer_input")} | dict(
        num_hidden_layers=3, num_kv_shared_layers=1, attention_k_eq_v=True, num_key_value_heads=2, num_global_key_value_heads=1,
        layer_types=alternating + ["full_attention"], final_logit_softcapping=4.0)
    yield "gemma4-unified", "gemma4_unified_text", unified
    yield "gemma4-unified-vision", "gemma4_unified", dict(
        text_config=unified, audio_config=None, vision_config=dict(
            patch_size=4, pooling_kernel_size=2, mm_embed_dim=20, mm_posemb_size=8, output_proj_dims=20))
    yield "minimax-m2", "minimax_m2", mixed | dict(
        num_local_experts=5, num_key_value_heads=2, head_dim=12, rope_parameters=theta | {"partial_rotary_factor": 0.5})
    yield "lfm2-moe", "lfm2_moe", mixed | dict(
        num_experts=5, moe_intermediate_size=10, intermediate_size=20, num_hidden_layers=3, num_dense_layers=1, conv_L_cache=3,
        conv_bias=True, routed_scaling_factor=1.7, layer_types=["conv", "full_attention", "conv"], initializer_range=0.15)
    yield "afmoe", "afmoe", mixed | dict(
        num_experts=5, moe_intermediate_size=8, intermediate_size=20, num_hidden_layers=4, num_dense_layers=1, num_shared_experts=2,
        num_key_value_heads=2, head_dim=12, route_scale=1.7, sliding_window=8, mup_enabled=True, attention_bias=True,
        initializer_range=0.15)
    yield from state_spaces(square, mixed)
    # One's attention, another's feed-forwards.
    yield "hunyuan-moe", "hunyuan_v1_moe", mixed | dict(
        num_experts=5, moe_topk=2, attention_bias=True, head_dim=12, rope_parameters={
            "rope_type": "dynamic", "rope_theta": 500.0, "alpha": 50.0, "factor": 1.0})
    deep = dict(moe_intermediate_size=8, intermediate_size=20, num_hidden_layers=3, routed_scaling_factor=1.7)
    yield "exaone-moe", "exaone_moe", mixed | deep | dict(
        num_experts=6, num_shared_experts=2, n_group=3, topk_group=2, sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], mlp_layer_types=["dense", "sparse", "sparse"])
    yield "solar-open", "solar_open", {k: v for k, v in mixed.items() if k != "intermediate_size"} | dict(
        moe_intermediate_size=8, n_routed_experts=6, n_shared_experts=2, n_group=3, topk_group=2, routed_scaling_factor=1.7, head_dim=12,
        attention_bias=True)
    yield "mellum", "mellum", mixed | dict(
        num_experts=5, moe_intermediate_size=8, intermediate_size=20, num_hidden_layers=3, head_dim=12, sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], mlp_layer_types=["sparse", "dense", "sparse"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                         "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}})
    windows = dict(sliding_window=8, layer_types=["full_attention", "sliding_attention", "sliding_attention"], num_hidden_layers=3,
                   layer_rope_theta=[0.0, 100.0, 5000.0], embedding_multiplier=3.0, logits_scaling=1.7, residual_multiplier=0.6,
                   attention_multiplier=0.21)
    yield "granite-swa", "granite_swa", square | windows | dict(attention_bias=True, mlp_bias=True)
    yield "granitemoe-swa", "granitemoe_swa", mixed | windows | dict(num_local_experts=5, shared_intermediate_size=14)
    latent = dict(num_key_value_heads=4, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=9)
    yield "youtu", "youtu", square | latent | dict(q_lora_rank=10, tie_word_embeddings=True, pad_token_id=None)
    yield "minicpm3", "minicpm3", square | latent | dict(
        q_lora_rank=None, scale_emb=3, scale_depth=1.2, dim_model_base=20, attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    yield "glm4v", "glm4v", dict(
        text_config={k: v for k, v in text.items() if k != "head_dim"} | dict(rope_parameters={
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1]}),
        vision_config=dict(depth=1, hidden_size=16, num_heads=2, image_size=28, patch_size=14, out_hidden_size=24, intermediate_size=16))
    yield "glm4v-moe", "glm4v_moe", dict(
        text_config={k: v for k, v in text.items() if k != "head_dim"} | dict(
            moe_intermediate_size=8, n_routed_experts=6, num_experts_per_tok=2, n_group=3, topk_group=2, routed_scaling_factor=1.7,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1]}),
        vision_config=dict(depth=1, hidden_size=16, num_heads=2, image_size=28, patch_size=14, out_hidden_size=24, intermediate_size=16))
    yield "glm46v", "glm46v", dict(
        text_config={k: v for k, v in text.items() if k != "head_dim"} | dict(model_type="glm4v_text", rope_parameters={
            "rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 2, 2]}),
        vision_config=dict(model_type="glm4v_vision", depth=1, hidden_size=16, num_heads=2, image_size=28, patch_size=14, out_hidden_size=24,
                           intermediate_size=16))
    yield "granite-docling", "granite_docling", dict(
        text_config={k: v for k, v in text.items() if k != "head_dim"} | dict(logits_scaling=1.3, embedding_multiplier=3.0, attention_multiplier=0.2), pad_token_id=0,
        vision_config=small | dict(out_hidden_size=24, image_size=64, deepstack_visual_indexes=[0], num_hidden_layers=1))
    sparse = dict(num_experts=5, moe_intermediate_size=8, intermediate_size=20, num_hidden_layers=3, head_dim=12, attention_bias=True)
    by_turns = dict(sliding_window=8, layer_types=["full_attention", "sliding_attention", "full_attention"])
    yield "hy-v3", "hy_v3", mixed | sparse | dict(num_shared_experts=2, router_scaling_factor=1.7)
    yield "flint", "flint", mixed | sparse | by_turns | dict(shared_expert_intermediate_size=10, mlp_only_layers=[0])
    yield "cohere2-moe", "cohere2_moe", mixed | sparse | by_turns | dict(
        intermediate_size=8, logit_scale=0.7, num_shared_experts=2, prefix_dense_intermediate_size=20, expert_selection_fn="sigmoid",
        mlp_layer_types=["dense", "sparse", "sparse"])
    # Heads and a rotation of each kind of block.
    yield "laguna", "laguna", mixed | sparse | by_turns | dict(
        num_key_value_heads=2, num_attention_heads_per_layer=[2, 4, 2], shared_expert_intermediate_size=10, moe_routed_scaling_factor=1.7,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}})
    yield "mistral4", "mistral4", mixed | dict(
        num_key_value_heads=2, moe_intermediate_size=8, intermediate_size=20, n_routed_experts=6, n_shared_experts=2, n_group=3,
        topk_group=2, routed_scaling_factor=1.7, first_k_dense_replace=1, kv_lora_rank=8, q_lora_rank=10, qk_nope_head_dim=12,
        qk_rope_head_dim=4, v_head_dim=9, rope_parameters={
            "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3, "partial_rotary_factor": 0.25})
    # As published: nothing turns, and convolutions lie apart.
    yield "olmo-hybrid", "olmo_hybrid", square | dict(
        hidden_size=24, intermediate_size=20, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=3, initializer_range=0.12,
        linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=6, linear_value_head_dim=5, linear_conv_kernel_dim=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"], rope_parameters={"rope_type": "default", "rope_theta": None})
    yield "glm-ocr", "glm_ocr", dict(
        text_config={k: v for k, v in text.items() if k != "head_dim"} | dict(rope_parameters={
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1]}),
        vision_config=dict(depth=1, hidden_size=16, num_heads=2, image_size=28, patch_size=14, out_hidden_size=24, intermediate_size=16))
    yield "voxtral", "voxtral", dict(
        text_config=text | dict(model_type="llama"), audio_config=dict(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_mel_bins=8, max_source_positions=8))
    yield "paddleocr-vl", "paddleocr_vl", dict(text_config=text | mrope, vision_config=small)
    yield "qwen2_5-omni", "qwen2_5_omni_thinker", dict(
        vision_start_token_id=151652,
        text_config={k: v for k, v in text.items() if k != "head_dim"} | mrope, vision_config=tower | dict(hidden_size=16, intermediate_size=16, out_hidden_size=24), audio_config=dict(
            d_model=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16, num_mel_bins=8, max_source_positions=8,
            output_dim=24))
    yield "aria", "aria_text", mixed | dict(
        intermediate_size=8, moe_num_experts=6, moe_topk=2, moe_num_shared_experts=2, tie_word_embeddings=False)
    yield "openai-gpt", "openai-gpt", dict(
        vocab_size=42, n_positions=96, n_embd=24, n_layer=2, n_head=3, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        afn="gelu")
    # Text passes by the second block, which looks at pictures; tokens of pictures have no logits.
    yield "mllama", "mllama", dict(
        text_config=text | dict(num_hidden_layers=3, cross_attention_layers=[1], vocab_size=42, pad_token_id=0, rope_parameters={
            "rope_type": "default", "rope_theta": 500.0}),
        vision_config=dict(
            hidden_size=16, num_hidden_layers=1, num_global_layers=1, attention_heads=2, intermediate_size=16, vision_output_dim=32,
            image_size=28, patch_size=14, max_num_tiles=1, supported_aspect_ratios=[[1, 1]], intermediate_layers_indices=[0]))
    yield "apertus1p5", "apertus1p5_text", square | dict(
        vocab_size=50, output_vocab_size=42, hidden_act="xielu", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    # Mamba's scans, over states of another size than usual.
    scans = dict(
        vocab_size=42, hidden_size=24, state_size=6, num_hidden_layers=2, conv_kernel=3, time_step_rank=5, initializer_range=0.2,
        pad_token_id=0, bos_token_id=1, eos_token_id=2)
    yield "mamba", "mamba", scans
    # As Falcon-Mamba 7B: the width is not the stream's times `expand`.
    yield "falcon-mamba", "falcon_mamba", scans | dict(
        expand=16, intermediate_size=40, time_step_rank="auto", use_bias=True, use_conv_bias=False, mixer_rms_eps=1e-3,
        tie_word_embeddings=False)
    yield "jamba", "jamba", mixed | dict(
        num_hidden_layers=4, num_experts=5, num_experts_per_tok=2, attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2,
        expert_layer_offset=1, mamba_d_state=6, mamba_d_conv=3, mamba_dt_rank=5, mamba_proj_bias=True, pad_token_id=0)
    # What picks tokens is in the files; rows have no more than it picks.
    yield "glm-moe-dsa", "glm_moe_dsa", mixed | dict(
        num_key_value_heads=2, moe_intermediate_size=8, intermediate_size=20, kv_lora_rank=8, n_routed_experts=6, n_shared_experts=2,
        q_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=9, n_group=3, topk_group=2, routed_scaling_factor=1.7,
        mlp_layer_types=["dense", "sparse"], index_topk=80, index_n_heads=2, index_head_dim=8)
    # Channels that forget each by itself, over more tokens than one chunk; latents in which nothing turns.
    yield "kimi-linear", "kimi_linear", {k: v for k, v in mixed.items() if not k.startswith(("num_experts", "max_"))} | dict(
        num_hidden_layers=3, num_key_value_heads=2, moe_intermediate_size=8, intermediate_size=20, kv_lora_rank=8, num_experts=6,
        num_experts_per_token=2, num_shared_experts=2, num_expert_group=3, topk_group=2, routed_scaling_factor=1.7, qk_nope_head_dim=8,
        qk_rope_head_dim=4, v_head_dim=9, model_max_length=128, linear_attn_config=dict(
            num_heads=3, head_dim=6, short_conv_kernel_size=3, full_attn_layers=[2], kda_layers=[1, 3]))
    # The same with gated latents that turn, and bounded decays straight from the stream.
    yield "bailing-hybrid", "bailing_hybrid", {k: v for k, v in mixed.items() if not k.startswith(("num_experts", "max_"))} | dict(
        num_hidden_layers=3, num_key_value_heads=2, moe_intermediate_size=8, intermediate_size=20, kv_lora_rank=8, num_experts=6,
        num_experts_per_token=2, num_shared_experts=2, num_expert_group=3, topk_group=2, routed_scaling_factor=1.7, qk_nope_head_dim=8,
        qk_rope_head_dim=4, v_head_dim=9, model_max_length=128, head_dim=6, short_conv_kernel_size=3, layer_group_size=2,
        first_k_dense_replace=1, q_lora_rank=10)
    yield "modernbert-decoder", "modernbert-decoder", dict(
        vocab_size=42, hidden_size=24, intermediate_size=20, num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=128,
        local_attention=12, global_attn_every_n_layers=2, norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True,
        initializer_range=0.2, initializer_cutoff_factor=3.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                         "full_attention": {"rope_type": "default", "rope_theta": 5000.0}})
    yield "sarvam-moe", "sarvam_moe", mixed | dict(
        n_routed_experts=6, moe_intermediate_size=8, intermediate_size=20, n_shared_experts=2, n_group=3, topk_group=2,
        routed_scaling_factor=1.7, first_k_dense_replace=1, attention_bias=True, head_dim=12)
    # A norm behind the mixture alone.
    yield "axk1", "axk1", mixed | dict(
        num_key_value_heads=2, moe_intermediate_size=8, intermediate_size=20, kv_lora_rank=8, n_routed_experts=6, n_shared_experts=2,
        q_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=9, n_group=3, topk_group=2, routed_scaling_factor=1.7,
        mlp_layer_types=["dense", "sparse"])
    yield "paligemma", "paligemma", dict(
        text_config=text | dict(
            model_type="gemma2", sliding_window=8, query_pre_attn_scalar=20, attn_logit_softcapping=1.5, final_logit_softcapping=4.0),
        vision_config=small | dict(model_type="siglip_vision_model"), projection_dim=24)
    # Nothing turns where everything is seen.
    yield "cohere-compass", "cohere_compass_text", square | dict(
        sliding_window=8, logit_scale=0.8, layer_types=alternating, attention_bias=True, rope_parameters={
            "full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 1, 1]}})
    yield "deepseek-ocr2", "deepseek_ocr2", dict(
        text_config={k: v for k, v in mixed.items() if k != "head_dim"} | dict(
            moe_intermediate_size=8, intermediate_size=20, n_routed_experts=6, n_shared_experts=2, n_group=3, topk_group=2,
            topk_method="group_limited_greedy", routed_scaling_factor=1.7, mlp_layer_types=["dense", "sparse"], attention_bias=True, mlp_bias=True),
        vision_config=dict(
            sam_config=dict(hidden_size=16, output_channels=8, num_hidden_layers=1, num_attention_heads=2, image_size=32, mlp_ratio=1.0,
                            downsample_channels=[8, 8], global_attn_indexes=[0]),
            encoder_config=dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)))
    # Values narrower than keys, which blocks that slide have twice as many of.
    yield "mimo-v2-flash", "mimo_v2_flash", mixed | dict(
        num_attention_heads=4, num_key_value_heads=1, num_hidden_layers=3, moe_intermediate_size=8, intermediate_size=20, n_routed_experts=6,
        n_group=3, topk_group=2, routed_scaling_factor=1.7, head_dim=12, v_head_dim=8, sliding_window=8, attention_bias=True,
        layer_types=["full_attention", "sliding_attention", "full_attention"], mlp_layer_types=["dense", "sparse", "sparse"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.334},
                         "full_attention": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}})
    yield "kolibri1", "kolibri1", {k: v for k, v in mixed.items() if k != "intermediate_size"} | dict(
        num_experts=6, moe_intermediate_size=8, shared_expert_intermediate_size=10, head_dim=12, sliding_window=8, norm_topk_prob=True,
        layer_types=alternating)
    yield "gpt-neox-japanese", "gpt_neox_japanese", {k: v for k, v in neox.items() if k != "intermediate_size"} | dict(
        attention_dropout=0.0, hidden_dropout=0.0, intermediate_multiple_size=2, rope_parameters={
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5})
    # Norms of their own kinds at the ends; blocks that see everything do not turn.
    yield "muse-glimmer", "muse_glimmer", dict(
        text_config=text | dict(
            head_dim=8, sliding_window=8, final_logit_softcapping=4.0, qk_scale_factor=2.5, output_multiplier=0.7, post_norm_eps=0.05,
            num_hidden_layers=3, attention_bias=True, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
            layer_rope_theta=[0, 500.0, 500.0], rope_parameters=theta | {"rope_theta": 500.0}),
        vision_config=dict(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, pos_emb_height=2, pos_emb_width=2),
        out_hidden_size=64, projector_hidden_size=8)
    # Experts for pictures lie behind those for text.
    yield "ernie4_5-vl-moe", "ernie4_5_vl_moe", dict(
        text_config={k: v for k, v in mixed.items() if k != "num_experts_per_tok"} | dict(
            moe_k=2, moe_num_experts=5, moe_intermediate_size=[8, 4], moe_num_shared_experts=2, intermediate_size=20, num_hidden_layers=3,
            use_bias=True, mlp_layer_types=["sparse", "dense", "sparse"], rope_parameters={
                "rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 2, 2]}),
        tie_word_embeddings=False, vision_config=dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16))
    # Gates beyond their bounds; what picks blocks of keys is in the files, and rows have no more than it picks.
    m3 = mixed | dict(
        num_local_experts=5, num_key_value_heads=2, head_dim=12, intermediate_size=8, dense_intermediate_size=20, shared_intermediate_size=10,
        num_hidden_layers=3, swiglu_limit=0.7, mlp_layer_types=["dense", "sparse", "sparse"],
        layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"], index_n_heads=2, index_head_dim=12, index_block_size=16,
        index_topk_blocks=5, rope_parameters=theta | {"partial_rotary_factor": 0.5})
    yield "minimax-m3", "minimax_m3_vl", dict(
        text_config=m3, projector_hidden_size=8, vision_config=dict(
            hidden_size=24, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14))
    yield "minimax-m3-text", "minimax_m3_vl_text", m3 | dict(num_hidden_layers=2, mlp_layer_types=["sparse", "dense"], layer_types=["minimax_m3_sparse"] * 2)


def state_spaces(square, mixed):
    """Mamba-2's, over more tokens than one chunk."""
    factors = dict(embedding_multiplier=3.0, logits_scaling=1.7, residual_multiplier=0.6, attention_multiplier=0.21)
    few = dict(mamba_n_heads=4, mamba_d_state=6, mamba_d_conv=3, mamba_chunk_size=32, num_hidden_layers=3, initializer_range=0.15)
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    yield "granitemoehybrid", "granitemoehybrid", mixed | few | factors | dict(
        num_local_experts=5, shared_intermediate_size=14, layer_types=kinds, mamba_n_groups=1)
    yield "granitemoehybrid-dense", "granitemoehybrid", mixed | few | factors | dict(
        num_local_experts=0, shared_intermediate_size=14, layer_types=kinds, mamba_n_groups=2, position_embedding_type="rope",
        attention_bias=True, mamba_proj_bias=True, mamba_conv_bias=False, tie_word_embeddings=True)
    small = {k: v for k, v in square.items()} | few | dict(hidden_size=24, intermediate_size=20, num_attention_heads=2, num_key_value_heads=1)
    yield "bamba", "bamba", small | dict(
        attn_layer_indices=[1], mamba_n_groups=2, attention_bias=True, mlp_bias=True, head_dim=12,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5})
    h1 = small | dict(
        num_hidden_layers=2, mamba_d_ssm=32, lm_head_multiplier=0.7, embedding_multiplier=2.5, mlp_multipliers=[0.8, 1.3],
        key_multiplier=0.6, attention_out_multiplier=0.9, ssm_multipliers=[0.8, 1.2, 0.9, 1.1, 0.7], ssm_out_multiplier=1.4,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    yield "falcon-h1", "falcon_h1", h1 | dict(
        attention_in_multiplier=1.2, ssm_in_multiplier=1.3, mamba_n_groups=2, mamba_rms_norm=True, mamba_norm_before_gate=False)
    yield "falcon-h1-unnormed", "falcon_h1", h1 | dict(
        attention_bias=True, mlp_bias=True, mamba_proj_bias=True, projectors_bias=True)
    yield "falcon-h1-normed-first", "falcon_h1", h1 | dict(num_hidden_layers=1, mamba_rms_norm=True, mamba_norm_before_gate=True)
    yield "nemotron-h", "nemotron_h", {k: v for k, v in small.items() if not k.startswith(("mamba_", "num_hidden"))} | dict(
        head_dim=12, layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"], mamba_num_heads=4,
        mamba_head_dim=8, n_groups=2, ssm_state_size=6, conv_kernel=3, chunk_size=32, use_bias=True, mlp_bias=True)
    yield "nemotron-h-moe", "nemotron_h", {k: v for k, v in small.items() if not k.startswith(("mamba_", "num_hidden"))} | dict(
        head_dim=12, layers_block_type=["linear_attention", "moe", "full_attention", "moe"], mamba_num_heads=4, mamba_head_dim=8, n_groups=1,
        ssm_state_size=6, conv_kernel=3, chunk_size=32, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=8,
        moe_shared_expert_intermediate_size=14, n_group=3, topk_group=2, routed_scaling_factor=1.7)
    yield "mamba2", "mamba2", dict(
        vocab_size=42, hidden_size=24, state_size=6, num_hidden_layers=2, num_heads=6, head_dim=8, n_groups=2, conv_kernel=3,
        chunk_size=32, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)


def more_mixtures(mixed):
    yield "glm4-moe", "glm4_moe", mixed | dict(
        n_routed_experts=6, moe_intermediate_size=8, intermediate_size=20, n_shared_experts=2, n_group=3, topk_group=2,
        routed_scaling_factor=1.7, first_k_dense_replace=1, use_qk_norm=True, attention_bias=True, head_dim=12)
    yarn = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 8,
            "beta_fast": 32.0, "beta_slow": 1.0}
    # Gates and ups beyond their bounds, texts longer than the window and than the positions of before.
    yield "gpt-oss", "gpt_oss", mixed | dict(
        num_local_experts=5, head_dim=12, sliding_window=8, swiglu_limit=0.7, layer_types=["sliding_attention", "full_attention"],
        rope_parameters=yarn | {"truncate": False})
    latent = mixed | dict(
        num_key_value_heads=2,
        moe_intermediate_size=8, intermediate_size=20, kv_lora_rank=8, n_routed_experts=6, n_shared_experts=2)
    # Values wider than queries and keys; groups by their best expert; scores beyond the usual.
    yield "deepseek-v2", "deepseek_v2", latent | dict(
        q_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=14, n_group=3, topk_group=2,
        topk_method="group_limited_greedy", routed_scaling_factor=1.7, first_k_dense_replace=1,
        rope_parameters=yarn | {"mscale": 0.8, "mscale_all_dim": 0.6})
    # As DeepSeek-V2-Lite: queries straight from the stream.
    yield "deepseek-v2-lite", "deepseek_v2", latent | dict(
        q_lora_rank=None, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, topk_method="greedy",
        attention_bias=True, mlp_bias=True)
    yield "deepseek-v3", "deepseek_v3", latent | dict(
        q_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=9, n_group=3, topk_group=2,
        routed_scaling_factor=1.7, first_k_dense_replace=1, attention_bias=True)
    yield "deepseek-v3-halves", "deepseek_v3", latent | dict(
        q_lora_rank=None, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=10, n_group=1, topk_group=1,
        norm_topk_prob=False, first_k_dense_replace=0, rope_interleave=False)


def llama4s(mixed):
    """Texts longer than a chunk; blocks of every kind."""
    llama4 = mixed | dict(
        num_local_experts=3, num_experts_per_tok=1, head_dim=12, intermediate_size=10, intermediate_size_mlp=14,
        attention_chunk_size=8, floor_scale=5, attn_scale=0.7)
    yield "llama4", "llama4_text", llama4 | dict(
        num_hidden_layers=4, hidden_size=20, no_rope_layer_interval=2, moe_layers=[0, 3], attention_bias=True)
    # As Maverick's: no norms of queries and keys; more experts a token than published ones have, a rope that is scaled.
    yield "llama4-pairs", "llama4_text", llama4 | dict(
        num_hidden_layers=3, num_experts_per_tok=2, use_qk_norm=False, interleave_moe_layer_step=2, attn_temperature_tuning=False,
        no_rope_layers=[1, 0, 1], layer_types=["full_attention", "chunked_attention", "chunked_attention"],
        rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 16})
    yield "llama4-vision", "llama4", dict(
        text_config={k: v for k, v in llama4.items()} | dict(num_hidden_layers=2, no_rope_layers=[1, 0]),
        vision_config=dict(hidden_size=16, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                           patch_size=14, vision_output_dim=16, projector_input_dim=16, projector_output_dim=16))


def probe(count):
    """Weights that tell elements apart."""
    return ((torch.arange(count) * 7919) % 101).double() / 50 - 1


def training(model, documents):
    """Log-probabilities of next tokens, the mean loss and a digest of every gradient."""
    model.zero_grad()
    log_probs, total = [], sum(len(d) - 1 for d in documents)
    for document in documents:
        ids = torch.tensor([document])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1)
        own = logits.gather(1, ids[0, 1:, None])[:, 0]
        (-own.sum() / total).backward()
        log_probs.append([round(float(x), 6) for x in own])
    gradients = {}
    turned = {f"{name}.weight" for name, m in model.named_modules() if type(m).__name__ == "Conv1D"}
    turned |= {f"{name}.{part}" for name, m in model.named_modules() if type(m).__name__ in ("GptOssExperts", "Llama4TextExperts", "AriaExperts")
               for part in ("gate_up_proj", "down_proj")}
    heads = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None or "embed_vision" in name or "embed_audio" in name:  # of another part
            continue
        # Norms of heads, one after another.
        module, of_head, _ = name.partition(".norms.")
        heads.setdefault(f"{module}.weight" if of_head else name, []).append(parameter.grad.double())
    if model.config.model_type == "sarvam_moe":  # files have these in one matrix
        for name in [name for name in heads if ".q_proj." in name]:
            all_of = torch.cat([heads.pop(name.replace("q_proj", f"{part}_proj"))[0] for part in "qkv"])
            heads[name.replace("q_proj", "query_key_value")] = [all_of]
    for name, grads in heads.items():
        gradient = torch.stack(grads) if len(grads) > 1 else grads[0]
        gradient = gradient.transpose(-2, -1) if name in turned else gradient
        for name, part in parts_of(model.config, name, gradient):
            part = part.flatten()
            gradients[name] = [float(f"{x:.7g}") for x in (part.norm(), (part * probe(len(part))).sum())]
    loss = -sum(sum(row) for row in log_probs) / total
    return dict(documents=documents, log_probs=log_probs, loss=round(loss, 6), gradients=gradients)


def balance(model, rows):
    """The auxiliary loss over the routers of one pass, and the norms of its gradients of routers and embedding."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits = [model(input_ids=torch.tensor([row]), use_cache=False, output_router_logits=True).router_logits for row in rows]
    logits = tuple(torch.cat(layer) for layer in zip(*logits))
    experts = getattr(model.config, "num_experts", None) or model.config.num_local_experts
    loss = load_balancing_loss_func(logits, experts, model.config.num_experts_per_tok)
    loss.backward()
    wanted = ("embed_tokens.weight", "mlp.gate.weight", "router.weight", "q_proj.weight")
    norms = {name: float(f"{p.grad.norm():.7g}") for name, p in model.named_parameters()
             if name.endswith(wanted) and p.grad is not None}
    return dict(input_ids=rows, loss=float(f"{loss:.7g}"), gradient_norms=norms)


def build(config, seed, dtype):
    """A random model whose norms and biases are random too, with weights exact in `dtype`."""
    torch.manual_seed(seed)
    if config is not config.get_text_config() and hasattr(config, "text_config"):
        config.initializer_range = config.text_config.initializer_range
    model = auto(config).from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "alpha" in name:  # xIELU's
                parameter.add_(torch.rand(1) - 0.5)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
            elif "router" in name and name.endswith("scale") or name.endswith("correct_output_scale"):
                parameter.uniform_(0.6, 1.4)
            elif name.endswith("A_log"):  # heads that remember
                parameter.uniform_(-2.0, 0.5)
            elif name.endswith(".D"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("sinks"):
                parameter.normal_(0.0, 1.0)
            elif "norm" in name or "ln_" in name:
                # Gemma, up to its third, and Nemotron add one.
                bare = config.model_type.startswith(("gemma3n", "gemma4"))
                delta = config.model_type.startswith(("qwen3_5", "qwen3_next")) and "linear_attn" not in name
                centred = config.model_type == "muse_glimmer" and "layers" in name and "vision" not in name
                m3 = config.model_type.startswith("minimax_m3") and "vision" not in name
                adds = m3 or centred or config.model_type.startswith(("gemma", "nemotron")) and config.model_type != "nemotron_h" and not bare or delta and "visual" not in name
                shift = 1.0 if adds else 0.0
                parameter.uniform_(0.6 - shift, 1.4 - shift)
                if bare and "q_norm" in name:
                    parameter.mul_(0.3)  # its scores are not divided by the root of a head's width
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.normal_(0.0, 0.1)
            elif name.endswith("layer_scalar"):
                buffer.uniform_(0.6, 1.4)
    if dtype != "float32":
        model = model.to(getattr(torch, dtype))
    return model.eval()


def turn_experts(file):
    """Keeps the matrices of experts as `[in, out]`."""
    tensors = load_file(file)
    turned = {name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor for name, tensor in tensors.items()}
    save_file(turned, file, metadata={"format": "pt"})


def thin(file):
    """Leaves of the vision tower its small tensors alone: it stays as it is, whatever it is."""
    tensors = load_file(file)
    kept = {name: tensor for name, tensor in tensors.items() if "vision_tower" not in name or tensor.numel() < 16}
    save_file(kept, file, metadata={"format": "pt"})


def recurs(config):
    """Whether blocks walk over texts in chunks."""
    return any(hasattr(config, key) for key in ("linear_num_key_heads", "linear_num_heads", "mamba_n_heads", "mamba_num_heads", "mamba_d_state", "state_size"))


def in_sarvam(name):
    """What Sarvam 30B's files call a parameter."""
    for own, theirs in [("embed_tokens", "word_embeddings"), ("self_attn.", "attention."), ("o_proj", "dense"), ("q_norm", "query_layernorm"),
                        ("k_norm", "key_layernorm")]:
        name = name.replace(own, theirs)
    return name


def parts_of(config, name, gradient):
    """A parameter of the class as the parameters of published files: convolutions of queries, keys and values apart."""
    if config.model_type == "minimax_m3_vl" and name.endswith(".gate_up_proj.weight"):
        return [(name.replace("gate_up", part), half) for part, half in zip(("gate", "up"), gradient.chunk(2))]
    if config.model_type == "ernie4_5_vl_moe" and "vision_moe" in name:
        return []
    if config.model_type == "gpt_neox_japanese":
        return [(name.replace("dense_bias", "dense.bias"), gradient)]
    if config.model_type == "sarvam_moe":
        return [(in_sarvam(name), gradient)]
    if config.model_type not in ("olmo_hybrid", "kimi_linear", "bailing_hybrid") or not name.endswith("conv1d.weight"):
        return [(name, gradient)]
    thirds = config.model_type != "olmo_hybrid"
    keys = len(gradient) // 3 if thirds else config.linear_num_key_heads * config.linear_key_head_dim
    parts = gradient.split([keys, keys, len(gradient) - 2 * keys])
    return [(name.replace("conv1d", f"{part}_conv1d"), own) for part, own in zip("qkv", parts)]


def split_convolutions(file, config):
    """Lays the convolutions of queries, keys and values apart as published files have them, not in equal thirds."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(".q_conv1d.weight")]:
        names = [name.replace("q_conv1d", f"{part}_conv1d") for part in "qkv"]
        all_of = torch.cat([tensors[name] for name in names])
        tensors.update(zip(names, (part.contiguous() for part in all_of.split([keys, keys, len(all_of) - 2 * keys]))))
    save_file(tensors, file, metadata={"format": "pt"})


def nest(folder, expected):
    """Makes a thinker the part of a model that also speaks, as published ones are."""
    tensors = load_file(folder / "model.safetensors")
    save_file({f"thinker.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    config = dict(architectures=["Qwen2_5OmniForConditionalGeneration"], model_type="qwen2_5_omni", thinker_config=json.loads((folder / "config.json").read_text()))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    expected["train"]["gradients"] = {f"thinker.{name}": digest for name, digest in expected["train"]["gradients"].items()}


def auto(config):
    several = hasattr(config, "vision_config") or hasattr(config, "audio_config") or config.model_type == "mistral4"
    return AutoModelForMultimodalLM if several else AutoModelForCausalLM


def load(folder, config=None):
    kwargs = {} if config is None else {"config": config}
    own = transformers.AutoConfig.from_pretrained(folder)
    kind = auto(own)
    if any(hasattr(own.get_text_config(), key) for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")):
        kwargs["experts_implementation"] = "eager"  # the grouped product does not run in double
    # Falcon's eager attention adds its linear biases twice, alone and in the mask; the one that is used adds them once.
    attention = "sdpa" if getattr(own, "alibi", False) else "eager"
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention, **kwargs).eval()


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model, prompt, penalty):
    """Greedy decoding by `generate`; returns the new tokens and the least top-two gap."""
    output = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW_TOKENS, do_sample=False, repetition_penalty=penalty,
        output_scores=True, return_dict_in_generate=True, pad_token_id=0)
    gaps = [float(top[0] - top[1]) for top in (s[0].topk(2).values for s in output.scores)]
    return output.sequences[0, len(prompt):].tolist(), min(gaps)


def old_spelling(config):
    """The same configuration as Transformers 4 wrote it."""
    old = dict(config)
    rope = dict(old.pop("rope_parameters"))
    old["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        old["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type")
    if kind == "default":
        old["rope_scaling"] = None
    else:
        # Llama 3 configurations say `rope_type`, older ones `type`.
        old["rope_scaling"] = {("rope_type" if kind in ("llama3", "dynamic") else "type"): kind, **rope}
    old["torch_dtype"] = old.pop("dtype")
    old["transformers_version"] = "4.44.0"
    if (old.get("layer_types") or [None])[0] == "full_attention":
        old.pop("layer_types")  # follows from `max_window_layers`
    return old


def alternatives(name, config):
    """Further spellings found in the wild: file name -> configuration."""
    if name == "kimi-linear":  # as published
        kept = {k: v for k, v in config.items() if k not in ("layer_types", "mlp_layer_types") and not k.startswith(("linear_conv", "linear_head", "linear_num"))}
        yield "config_alt.json", kept | dict(first_k_dense_replace=1, moe_layer_freq=1, mla_use_nope=True, moe_router_activation_func="sigmoid",
                                                   num_nextn_predict_layers=0, rope_theta=10000.0, rope_scaling=None, use_grouped_topk=True)
    if config["model_type"] not in OLD:
        return
    yield "config_old.json", old_spelling(config)
    if name == "llama-mha":  # the first Llama: most keys left to their defaults
        bare = old_spelling(config)
        for key in ("num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "attention_bias",
                    "mlp_bias", "attention_dropout", "tie_word_embeddings"):
            bare.pop(key, None)
        yield "config_alt.json", bare
    if name == "llama-rope-longrope":  # original length beside the scaling, as Phi-3 does
        phi = old_spelling(config)
        phi["original_max_position_embeddings"] = phi["rope_scaling"].pop("original_max_position_embeddings")
        yield "config_alt.json", phi
    if name == "phi3-longrope":  # the first Phi-3 with 128k positions
        first = old_spelling(config)
        first["rope_scaling"]["type"] = "su"
        yield "config_alt.json", first


def plain(config):
    """The configuration without the scaling or window it is a fixture of, or None."""
    rope = config.get("rope_parameters") or {}
    if config["model_type"] not in OLD:
        return None
    if rope["rope_type"] != "default":
        return config | {"rope_parameters": {"rope_type": "default", "rope_theta": rope["rope_theta"]}}
    if config.get("sliding_window"):
        return {k: v for k, v in config.items() if k not in ("sliding_window", "layer_types")} | {
            "sliding_window": None}
    return None


def rounded(tensor):
    return [[round(float(x), 6) for x in row] for row in tensor]


def record(root, index, name, config_class, arguments, dtype="float32", rows=LONG, prompts=(4, 12),
           shard=None, eos_list=False):
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = config_class(**arguments)
    generator = torch.Generator().manual_seed(1000 + index)

    if recurs(config.get_text_config()):
        rows = [*rows, 70]

    def ids(count):
        text = config.get_text_config()
        # Tokens of pictures and sound may have no logits.
        count_of = getattr(text, "output_vocab_size", None) or text.vocab_size
        return torch.randint(3, count_of, (count,), generator=generator).tolist()

    build(config, 100 + index, dtype).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    if name == "qwen3-vl-moe-published":
        turn_experts(folder / "model.safetensors")
    if name == "olmo-hybrid":
        split_convolutions(folder / "model.safetensors", config)
    model = load(folder)
    expected = {"dtype": "float32", "logits": [], "generate": []}
    for count in rows:
        row = ids(count)
        logits = logits_of(model, row)
        # XGLM's class does not run in double.
        double = logits if config.model_type == "xglm" else logits_of(load(folder).double(), row)
        assert (logits - double).abs().max() < 3e-5, (name, (logits - double).abs().max())
        assert logits.std() > 0.3, (name, logits.std())
        expected["logits"].append({"input_ids": row, "logits": rounded(logits)})

    # A greedy token must not hang on rounding: draw prompts until every step has a clear winner.
    def continuation(length, penalty):
        for _ in range(50):
            prompt = ids(length)
            tokens, gap = greedy(model, prompt, penalty)
            if penalty != 1.0 and tokens == greedy(model, prompt, 1.0)[0]:
                continue  # the penalty must show
            if gap > 5e-3 and (eos_list or len(tokens) == NEW_TOKENS):
                return prompt, tokens, gap
        raise RuntimeError(f"{name}: no prompt with a clear winner at every step")

    gaps = []
    if eos_list:
        # End tokens which the greedy text meets midway.
        model.generation_config.eos_token_id = None
        while True:
            prompt, tokens, gap = continuation(prompts[0], 1.0)
            late = [t for i, t in enumerate(tokens) if i >= 4 and t not in tokens[:i]]
            if late:
                break
        model.generation_config.eos_token_id = [2, late[0]]
        model.generation_config.save_pretrained(folder)
        tokens, gap = greedy(model, prompt, 1.0)
        assert tokens[-1] == late[0] and len(tokens) < NEW_TOKENS
        gaps.append(gap)
        expected["generate"].append(dict(prompt=prompt, repetition_penalty=1.0,
                                         max_new_tokens=NEW_TOKENS, tokens=tokens))
    for length, penalty in [(prompts[0], 1.0), (prompts[1], 1.3)]:
        prompt, tokens, gap = continuation(length, penalty)
        gaps.append(gap)
        expected["generate"].append(dict(prompt=prompt, repetition_penalty=penalty,
                                         max_new_tokens=NEW_TOKENS, tokens=tokens))
    expected["min_gap"] = round(min(gaps), 6)
    if config.model_type not in OLD:
        documents = [ids(7), ids(2), ids(19), ids(11)]
        documents[2][5] = 0  # the padding token
        if recurs(config.get_text_config()):
            documents.append(ids(70))
        expected["train"] = training(load(folder), documents)

    spelled = json.loads((folder / "config.json").read_text())
    for file, other in alternatives(name, spelled):
        (folder / file).write_text(json.dumps(other, indent=2) + "\n")
        again = load(folder, config_class.from_dict(dict(other)))
        for case in expected["logits"]:
            difference = (logits_of(again, case["input_ids"]) - torch.tensor(case["logits"])).abs().max()
            assert difference < 1e-5, (name, file, difference)

    without = plain(spelled)
    if without is not None:  # the fixture must tell a reader who ignores the setting
        case = expected["logits"][-1]
        other = logits_of(load(folder, config_class.from_dict(without)), case["input_ids"])
        assert (other - torch.tensor(case["logits"])).abs().max() > 0.02, f"{name} shows nothing"

    # Granite 4's class gives no logits of routers.
    if getattr(config, "router_aux_loss_coef", None) is not None and config.model_type != "granitemoehybrid":
        expected["balance"] = balance(load(folder), [ids(7), ids(2), ids(11)])

    if name == "gemma3n-vision":
        thin(folder / "model.safetensors")
    if name == "qwen2_5-omni":
        nest(folder, expected)
    text = json.dumps(expected).replace('}, {"input_ids"', '},\n{"input_ids"').replace("], [", "],\n[")
    (folder / "expected.json").write_text(text + "\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:36} {size / 1024:6.1f} KiB  gap {min(gaps):.4f}  "
          f"new {[len(c['tokens']) for c in expected['generate']]}", flush=True)
    return size


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "fixtures"
    wanted = sys.argv[2:]
    more = ((name, type(transformers.AutoConfig.for_model(kind)), args, dict(rows=[2, 19]))
            for name, kind, args in more_families())
    total = sum(record(root, i, name, cls, args, **options)
                for i, (name, cls, args, options) in enumerate(itertools.chain(families(), more))
                if not wanted or name in wanted)
    print(f"total {total / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
