#!/usr/bin/env python3
"""Writes a survey of tiny random model folders, for `cargo run -p burnish-models --example recorded_logits -- FOLDER...`.

Usage: model_folders.py OUTPUT_FOLDER [PART_OF_A_NAME...]
Made with torch 2.15.0 and transformers 5.23.0, CPU, one thread, eager attention.

For every type of Transformers' mapping of causal language models, and of models with a text part, two folders: `TYPE` as
its class has it by default but for sizes, and `TYPE-other` with other sizes, the other kind of head (tied or not), bf16.
`published-*` have the keys of configurations that are published, with small sizes.
Each has `expected.json` with `logits` of two rows, as `families.py` writes it. What Transformers itself cannot build, save or
read back to the same logits is named and left out.
"""

import json
import shutil
import signal
import sys
import warnings
import zlib
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM
from transformers.models.auto import modeling_auto

from model_folders_published import PUBLISHED

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

# Small sizes by the names that configurations have for them.
SIZES = dict(
    vocab_size=61, hidden_size=32, d_model=32, n_embd=32, embed_dim=32, dim=32, word_embed_proj_dim=32, model_dim=32,
    intermediate_size=44, ffn_dim=44, n_inner=44, ffn_hidden_size=44, d_ff=44, dense_intermediate_size=44,
    intermediate_size_mlp=36, encoder_ffn_dim=44, decoder_ffn_dim=44, moe_intermediate_size=12, expert_ffn_hidden_size=12,
    shared_expert_intermediate_size=20, moe_shared_expert_intermediate_size=12, shared_intermediate_size=20, ffn_intermediate_size=12,
    num_hidden_layers=2, n_layer=2, n_layers=2, num_layers=2, decoder_layers=2, encoder_layers=2,
    num_attention_heads=4, n_head=4, n_heads=4, num_heads=4, attention_heads=4, decoder_attention_heads=4,
    encoder_attention_heads=4, num_key_value_heads=2, num_kv_heads=2, multi_query_group_num=2, head_dim=8, kv_channels=8, attention_head_dim=8,
    max_position_embeddings=128, n_positions=128, max_seq_len=128, max_sequence_length=128, n_ctx=128, seq_length=128,
    num_experts=6, num_local_experts=6, n_routed_experts=6, moe_num_experts=6, num_experts_per_tok=2, moe_top_k=2, moe_topk=2, moe_k=2, top_k_experts=2,
    n_shared_experts=1, n_group=1, topk_group=1, num_experts_per_token=2, num_shared_experts=1,
    q_lora_rank=16, kv_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8, rotary_dim=4,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, sep_token_id=3, decoder_start_token_id=1,
    sliding_window=8, attention_window_size=8, local_attention=8, mamba_d_state=8, mamba_n_heads=4, mamba_d_head=16,
    mamba_d_ssm=64, mamba_num_heads=4, mamba_head_dim=16, state_size=8, lru_width=32, attention_hidden_size=32,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8, conv_L_cache=3,
    image_size=28, patch_size=14, depth=2, num_position_embeddings=16, out_hidden_size=32, projection_dim=32,
    vocab_size_per_layer_input=61, hidden_size_per_layer_input=8, global_head_dim=12, laurel_rank=4,
    query_pre_attn_scalar=8, block_ff_dim=44, block_dim=32, attention_chunk_size=8, mm_tokens_per_image=4,
)
OTHER = dict(
    vocab_size=53, hidden_size=48, d_model=48, n_embd=48, embed_dim=48, word_embed_proj_dim=48, intermediate_size=36, ffn_dim=36, n_inner=36,
    ffn_hidden_size=36, num_hidden_layers=3, n_layer=3, n_layers=3, num_layers=3, num_attention_heads=4, n_head=4, n_heads=4,
    num_heads=4, attention_heads=4, num_key_value_heads=4, num_kv_heads=4, head_dim=12, rotary_dim=8, projection_dim=48, out_hidden_size=48,
    lru_width=48, vocab_size_per_layer_input=53, attention_hidden_size=48, query_pre_attn_scalar=12, multi_query_group_num=4, block_dim=48, kv_channels=12)
MROPE = dict(rope_parameters={"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [2, 1, 1]})
WIDER_MROPE = dict(rope_parameters=MROPE["rope_parameters"] | {"mrope_section": [2, 2, 2]})
RADIO = dict(video_temporal_patch_size=2)
DEEPSEEK_OCR2 = dict(
    sam_config=dict(hidden_size=16, output_channels=16, num_hidden_layers=1, num_attention_heads=2, image_size=64, downsample_channels=[16, 16],
                    global_attn_indexes=[0]),
    encoder_config=dict(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2))
# What classes check of sizes of their own.
KINDS = {
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]]),
    "gpt_neo-other": dict(attention_types=[[["global", "local"], 1], [["global"], 1]]),
    "dbrx": dict(attn_config=dict(kv_n_heads=2, rope_theta=10000.0), ffn_config=dict(ffn_hidden_size=12, moe_num_experts=4, moe_top_k=2)),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"]),
    "qwen2_vl": dict(text_config=MROPE), "qwen2_vl-other": dict(text_config=WIDER_MROPE),
    "qwen2_5_vl": dict(text_config=MROPE), "qwen2_5_vl-other": dict(text_config=WIDER_MROPE),
    "bamba-other": dict(mamba_d_head=24), "granitemoehybrid-other": dict(mamba_d_head=24),
    "mamba2": dict(n_groups=2, head_dim=16), "mamba2-other": dict(n_groups=2, head_dim=24),
    "nemotron_h": dict(n_groups=2),
    "nemotron_h-other": dict(n_groups=2, layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"]),
    "granite_docling-other": dict(vision_config=dict(out_hidden_size=48)),
    # Its class sets the pad token's row to zero as it reads a tied model.
    "youtu": dict(pad_token_id=None),
    "glm4v": dict(text_config=MROPE, vision_config=dict(intermediate_size=32)),
    "glm4v-other": dict(text_config=WIDER_MROPE, vision_config=dict(intermediate_size=32)),
    "glm4v_moe": dict(text_config=dict(rope_parameters=MROPE["rope_parameters"] | {"mrope_section": [1, 1, 0]}), vision_config=dict(intermediate_size=32)),
    "glm4v_moe-other": dict(
        text_config=dict(rope_parameters=WIDER_MROPE["rope_parameters"] | {"partial_rotary_factor": 1.0}), vision_config=dict(intermediate_size=32)),
    "glm46v": dict(text_config=MROPE, vision_config=dict(intermediate_size=32)),
    "glm46v-other": dict(text_config=WIDER_MROPE, vision_config=dict(intermediate_size=32)),
    "gemma3n_text": dict(num_kv_shared_layers=0),
    "laguna": dict(layer_types=["full_attention", "sliding_attention"], num_attention_heads_per_layer=[4, 6]),
    "laguna-other": dict(
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], gating="per-element",
        moe_routed_scaling_factor=1.7),
    "cohere2_moe": dict(num_shared_experts=1),
    "cohere2_moe-other": dict(
        num_shared_experts=2, shared_expert_combination_strategy="sum", expert_selection_fn="sigmoid", rms_norm_eps=1e-5,
        prefix_dense_intermediate_size=28, layer_types=["full_attention", "sliding_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"]),
    # Files have the convolutions of queries, keys and values apart, which Transformers writes as equal thirds.
    "olmo_hybrid": dict(linear_value_head_dim=4),
    "olmo_hybrid-other": dict(
        linear_value_head_dim=4, layer_types=["linear_attention", "full_attention", "linear_attention"], linear_allow_neg_eigval=False,
        rope_parameters=dict(rope_type="default", rope_theta=None)),
    "mistral4": dict(qk_nope_head_dim=12, head_dim=16),
    "mistral4-other": dict(
        qk_nope_head_dim=12, head_dim=16, q_lora_rank=None, n_group=2, topk_group=1, first_k_dense_replace=1,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0,
            mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3, partial_rotary_factor=0.25)),
    "kimi_k25": dict(text_config=dict(num_key_value_heads=4, head_dim=4)),
    "kimi_k25-other": dict(text_config=dict(num_key_value_heads=4, head_dim=4)),
    "perception_lm": dict(vision_config=dict(architecture="vit_tiny_patch16_224", model_args=dict(embed_dim=16, depth=1, num_heads=2, img_size=[32, 32]))),
    "paddleocr_vl": dict(text_config=MROPE), "paddleocr_vl-other": dict(text_config=WIDER_MROPE),
    "glm_ocr": dict(text_config=MROPE, vision_config=dict(intermediate_size=32)),
    "glm_ocr-other": dict(text_config=WIDER_MROPE, vision_config=dict(intermediate_size=32)),
    "glmga": dict(text_config=MROPE, vision_config=dict(intermediate_size=32)),
    "glmga-other": dict(text_config=WIDER_MROPE, vision_config=dict(intermediate_size=32)),
    "qwen2_5_omni_thinker": dict(text_config=MROPE), "qwen2_5_omni_thinker-other": dict(text_config=WIDER_MROPE),
    "qwen3_omni_moe_thinker": dict(text_config=MROPE), "qwen3_omni_moe_thinker-other": dict(text_config=WIDER_MROPE),
    "cohere_compass_text": dict(rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}),
    "cohere_compass_text-other": dict(
        layer_types=["full_attention", "sliding_attention", "sliding_attention"], logit_scale=0.3, rope_parameters={
            "full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 2, 2]}}),
    "cohere_compass": dict(text_config=dict(rope_parameters={
        "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}), vision_config=dict(deepstack_visual_indexes=[0])),
    "cohere_compass-other": dict(text_config=dict(
        layer_types=["full_attention", "sliding_attention", "sliding_attention"], logit_scale=0.3, rope_parameters={
            "full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 2, 2]}}),
        vision_config=dict(deepstack_visual_indexes=[0], out_hidden_size=48)),
    "granite4_vision": dict(deepstack_layer_map=[[0, 0]], downsample_rate="1/2", vision_config=dict(hidden_size=64)),
    "granite4_vision-other": dict(
        text_config=dict(attention_multiplier=0.2, logits_scaling=2.0, residual_multiplier=0.5, embedding_multiplier=3.0),
        deepstack_layer_map=[[0, 0]], downsample_rate="1/2", vision_config=dict(hidden_size=64)),
    "hunyuan_vl": dict(text_config=dict(rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1, 1]})),
    "hunyuan_vl-other": dict(text_config=dict(rope_parameters={
        "rope_type": "xdrope", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0, "xdrope_section": [2, 2, 1, 1]})),
    "nemotron_h_omni": dict(text_config=dict(n_groups=2), audio_config=None, vision_config=RADIO),
    "nemotron_h_omni-other": dict(
        text_config=dict(n_groups=2, layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"]), audio_config=None, vision_config=RADIO),
    "deepseek_ocr2": dict(text_config=dict(mlp_layer_types=["dense", "sparse"]), vision_config=DEEPSEEK_OCR2),
    "deepseek_ocr2-other": dict(
        text_config=dict(mlp_layer_types=["sparse", "dense", "sparse"], n_group=2, topk_group=1, topk_method="group_limited_greedy", attention_bias=True),
        vision_config=DEEPSEEK_OCR2),
    "mimo_v2_flash-other": dict(num_key_value_heads=2, n_group=2, topk_group=1, sliding_window_size=6, attention_value_scale=None, norm_topk_prob=False),
    "kolibri1-other": dict(layer_types=["full_attention", "sliding_attention", "sliding_attention"], norm_topk_prob=True),
    "paligemma-other": dict(text_config=dict(model_type="gemma2")),
    "axk1-other": dict(n_group=2, topk_group=1, rope_interleave=False, attention_bias=True, norm_topk_prob=False),
    "muse_glimmer": dict(text_config=dict(final_logit_softcapping=5.0), vision_config=dict(pos_emb_height=2, pos_emb_width=2)),
    "muse_glimmer-other": dict(
        text_config=dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"], layer_rope_theta=[0, 7.0, 7.0], attention_bias=True),
        vision_config=dict(pos_emb_height=2, pos_emb_width=2)),
    "ernie4_5_vl_moe": dict(text_config=dict(moe_intermediate_size=[12, 8], rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]})),
    "ernie4_5_vl_moe-other": dict(text_config=dict(
        moe_intermediate_size=[12, 8], mlp_layer_types=["sparse", "dense", "sparse"], use_bias=True, moe_num_shared_experts=0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]})),
    "minimax_m3_vl_text": dict(dense_intermediate_size=44), "minimax_m3_vl": dict(text_config=dict(dense_intermediate_size=44)),
    "minimax_m3_vl-other": dict(text_config=dict(
        swiglu_limit=0.5, layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"], index_n_heads=4, index_head_dim=12,
        index_block_size=8, index_topk_blocks=4, mlp_layer_types=["dense", "sparse", "sparse"])),
    "fun_asr_nano": dict(adaptor_config=dict(hidden_size=32, intermediate_size=8)),
    "fun_asr_nano-other": dict(adaptor_config=dict(hidden_size=48, intermediate_size=12)),
}
DROPOUTS = ("dropout", "pdrop", "dropout_prob", "dropout_rate")


class Slow(Exception):
    pass


def small(config, sizes, given=()):
    """The sizes that this configuration has, as arguments of its class."""
    own = {}
    for key, value in config.to_dict().items():
        names = {key, config.attribute_map.get(key, key)}
        size = next((sizes[name] for name in names if name in sizes), None)
        if key in given or size is None:
            if any(key.endswith(end) for end in DROPOUTS) and isinstance(value, float):
                own[key] = 0.0
            continue
        if isinstance(value, bool) or isinstance(value, (list, dict)) and key != "eos_token_id":
            continue
        if value is None and key in ("rotary_dim", "sliding_window", "hidden_size_per_layer_input", "q_lora_rank", "num_experts", "num_local_experts"):
            continue
        own[key] = size
    return own


def configuration(kind, sizes, more):
    base = AutoConfig.for_model(kind)
    arguments = small(base, sizes, more)
    if hasattr(base, "kv_lora_rank"):  # a head of its own for each query's, whose turned part is `head_dim`
        arguments["num_key_value_heads"] = sizes["num_attention_heads"]
        arguments["head_dim"] = sizes["qk_rope_head_dim"]
    for name in base.sub_configs:
        part = getattr(base, name, None)
        if part is None:
            continue
        kept = {key: value for key, value in (more.get(name) or {}).items()}
        arguments[name] = small(part, sizes if "vision" not in name and "audio" not in name else SIZES, kept) | kept
        if part.model_type:
            arguments[name].setdefault("model_type", part.model_type)
    return type(base)(**arguments | {k: v for k, v in more.items() if k not in base.sub_configs})


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.9 / parameter.shape[-1] ** 0.5)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
            elif "norm" in name or "ln_" in name or name.endswith("sinks"):
                parameter.copy_(torch.rand(parameter.shape, generator=generator) * 0.8 + 0.6)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
            elif name.endswith("layer_scalar"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) * 0.8 + 0.6)


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def load(auto, folder):
    own = AutoConfig.from_pretrained(folder)
    attention = "sdpa" if getattr(own, "alibi", False) else "eager"
    kwargs = dict(dtype=torch.float32, attn_implementation=attention)
    try:
        return auto.from_pretrained(folder, **kwargs).eval()
    except ValueError:
        return auto.from_pretrained(folder, dtype=torch.float32).eval()


def write(root, name, auto, config, dtype):
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    model = auto.from_config(config, dtype=torch.float32).eval()
    randomise(model, seed)
    if getattr(config.get_text_config(), "tie_word_embeddings", False) or getattr(config, "tie_word_embeddings", False):
        model.tie_weights()
    model.to(dtype).save_pretrained(folder)
    model = load(auto, folder)
    vocab = config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(seed)
    expected = {"logits": []}
    again = load(auto, folder)
    for count in (6, 23):
        ids = torch.randint(4, vocab - 4, (count,), generator=generator).tolist()
        logits = logits_of(model, ids)
        if not torch.equal(logits, logits_of(again, ids)):
            raise RuntimeError("not the same logits when it is read twice")
        if not logits.isfinite().all() or logits.std() < 1e-3:
            raise RuntimeError(f"logits say nothing: {logits.std()}")
        expected["logits"].append({"input_ids": ids, "logits": [[round(float(x), 6) for x in row] for row in logits]})
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def folders():
    causal = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    several = dict(modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)
    for kind in sorted(set(causal) | set(several)):
        auto = AutoModelForMultimodalLM if kind in several else AutoModelForCausalLM
        yield kind, kind, auto, SIZES, KINDS.get(kind, {}), False, torch.float32
        yield f"{kind}-other", kind, auto, SIZES | OTHER, KINDS.get(f"{kind}-other", KINDS.get(kind, {})), True, torch.bfloat16
    for name, (kind, more) in PUBLISHED.items():
        auto = AutoModelForMultimodalLM if kind in several else AutoModelForCausalLM
        yield f"published-{name}", kind, auto, SIZES, more, False, torch.bfloat16


def main():
    root, wanted = Path(sys.argv[1]), sys.argv[2:]
    left_out = {}

    def slow(*_):
        raise Slow("longer than 40 s")

    signal.signal(signal.SIGALRM, slow)
    for name, kind, auto, sizes, more, flipped, dtype in folders():
        if wanted and not any(part in name for part in wanted):
            continue
        signal.alarm(40)
        try:
            config = configuration(kind, sizes, more)
            if flipped:
                config.tie_word_embeddings = not getattr(config, "tie_word_embeddings", False)
                text = config.get_text_config()
                if text is not config:
                    text.tie_word_embeddings = config.tie_word_embeddings
            write(root, name, auto, config, dtype)
        except Exception as error:  # whatever a class raises
            shutil.rmtree(root / name, ignore_errors=True)
            left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
        finally:
            signal.alarm(0)
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")


if __name__ == "__main__":
    main()
