"""Records the model fixtures of types that Transformers runs by code of their folders.

    python remote_code.py ../fixtures

What each of them computes a class of Transformers computes as well, over tensors and keys of other names: a model of that
class is recorded as in `families.py`, and its folder is written in the type's own spelling.
"""

import copy
import json
import re
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.bloom import modeling_bloom
from transformers.models.llama import modeling_llama
from transformers.models.qwen2_moe import modeling_qwen2_moe

import families

SQUARE = dict(vocab_size=42, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, initializer_range=0.2, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def internlm2(tensors):
    """Of each key head its queries, key and value in one matrix."""
    heads, kv = SQUARE["num_attention_heads"], SQUARE["num_key_value_heads"]
    made = {}
    for name, tensor in tensors.items():
        name = name.replace("embed_tokens", "tok_embeddings").replace("lm_head", "output")
        name = name.replace("input_layernorm", "attention_norm").replace("post_attention_layernorm", "ffn_norm")
        name = name.replace("self_attn.o_proj", "attention.wo")
        for theirs, own in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
            name = name.replace(f"mlp.{theirs}", f"feed_forward.{own}")
        made[name] = tensor
    for name in [n for n in made if ".self_attn.q_proj." in n]:
        q, k, v = (made.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj"))
        q, k, v = (part.reshape(kv, -1, part.shape[0] // (kv if at else heads), *part.shape[1:]) for at, part in enumerate((q, k, v)))
        made[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat([q, k, v], 1).flatten(0, 2)
    return made


def same(tensors):
    return dict(tensors)


def renamed(tensors, names):
    made = {}
    for name, tensor in tensors.items():
        for theirs, own in names:
            name = name.replace(theirs, own)
        made[name] = tensor
    return made


def packed(tensors):
    """Queries, keys and values in one matrix, under Ling's names."""
    made = renamed(tensors, [
        ("embed_tokens", "word_embeddings"), ("self_attn.o_proj", "attention.dense"), ("self_attn.q_norm", "attention.query_layernorm"),
        ("self_attn.k_norm", "attention.key_layernorm"), ("gate.e_score_correction_bias", "gate.expert_bias")])
    for name in [n for n in made if ".self_attn.q_proj." in n]:
        parts = [made.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        made[name.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(parts)
    return made


def of_granite(tensors):
    """Ling of before 2.0: Granite's mixtures without factors."""
    made = renamed(tensors, [
        ("block_sparse_moe.input_linear.weight", "mlp.experts.gate_up_proj"), ("block_sparse_moe.output_linear.weight", "mlp.experts.down_proj"),
        ("block_sparse_moe.experts", "mlp.experts"), ("block_sparse_moe.router.layer", "mlp.gate"), ("block_sparse_moe.router", "mlp.gate"),
        ("shared_mlp.output_linear", "mlp.shared_experts.down_proj")])
    for name in [n for n in made if ".shared_mlp.input_linear" in n]:
        parts = zip(("gate_proj", "up_proj"), made.pop(name).chunk(2))
        made |= {name.replace("shared_mlp.input_linear", f"mlp.shared_experts.{part}"): piece for part, piece in parts}
    return packed(made)


def by_expert(tensors):
    """Experts' matrices apart, as files have them."""
    made = {}
    for name, tensor in tensors.items():
        block, stack, part = name.partition(".mlp.experts.")
        if part not in ("gate_up_proj", "down_proj"):
            made[name] = tensor
            continue
        for at, matrix in enumerate(tensor):
            parts = zip(("gate_proj", "up_proj"), matrix.chunk(2)) if part == "gate_up_proj" else [(part, matrix)]
            made |= {f"{block}{stack}{at}.{own}.weight": piece for own, piece in parts}
    return made


def of_qwen(tensors):
    """DeepSeek of before V2: nothing gates what every token goes through."""
    return renamed({n: t for n, t in tensors.items() if "shared_expert_gate" not in n}, [(".shared_expert.", ".shared_experts.")])


class Open(torch.nn.Module):
    """In place of the gate of an expert that every token goes through: its sigmoid is 1."""

    def __init__(self, config):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, config.hidden_size))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight * 0) + 100.0


def opened(block):
    def init(self, config, usual=block.__init__):
        usual(self, config)
        self.shared_expert_gate = Open(config)
    block.__init__ = init


class Searched(modeling_llama.LlamaDecoderLayer):
    """A block of Llama of sizes of its own, or without a part."""

    def __init__(self, config, layer_idx):
        self.parts = config.block_configs[layer_idx]
        own = copy.deepcopy(config)
        attention, ffn = self.parts["attention"], self.parts["ffn"]
        own.num_key_value_heads = config.num_attention_heads // (attention.get("n_heads_in_group") or 1)
        width = int(2 * (ffn.get("ffn_mult") or 1) * config.hidden_size / 3)
        own.intermediate_size = -(-width // 256) * 256
        super().__init__(own, layer_idx)
        if attention["no_op"]:
            del self.self_attn, self.input_layernorm
        if ffn["no_op"]:
            del self.mlp, self.post_attention_layernorm

    def forward(self, hidden_states, **kwargs):
        if not self.parts["attention"]["no_op"]:
            hidden_states = hidden_states + self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)[0]
        if not self.parts["ffn"]["no_op"]:
            hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states


def recorded(root, index, name, kind, arguments, tensors, config, in_files=same):
    def training(model, documents, usual=families.training):
        train = usual(model, documents)
        gradients = tensors({n: p.grad.double() for n, p in model.named_parameters()})
        train["gradients"] = {
            n: [float(f"{x:.7g}") for x in (g.norm(), (g.flatten() * families.probe(g.numel())).sum())]
            for n, g in gradients.items()
        }
        return train

    own, families.training = families.training, training
    families.record(root, index, name, type(transformers.AutoConfig.for_model(kind)), arguments, rows=[2, 19])
    families.training = own
    folder = root / name
    for other in folder.glob("config_*.json"):
        other.unlink()
    # None of them has a loss that balances experts.
    text = (folder / "expected.json").read_text()
    (folder / "expected.json").write_text(re.sub(r', "balance": \{.*\}\}$', "}", text, flags=re.DOTALL))
    written = in_files(tensors(load_file(folder / "model.safetensors")))
    save_file({n: t.contiguous() for n, t in written.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(json.loads((folder / "config.json").read_text())), indent=2) + "\n")


def in_one(tensors, parts, whole):
    """Several matrices of one input in one, one after another."""
    made = dict(tensors)
    for name in [n for n in made if f".{parts[0]}." in n]:
        pieces = [made.pop(name.replace(parts[0], part)) for part in parts]
        made[name.replace(parts[0], whole)] = torch.cat(pieces)
    return made


QKV = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]


def baichuan(tensors):
    return in_one(tensors, QKV, "self_attn.W_pack")


def chatglm(tensors):
    return renamed(in_one(tensors, QKV, "self_attention.query_key_value"), [
        ("model.embed_tokens", "transformer.embedding.word_embeddings"), ("model.layers", "transformer.encoder.layers"),
        ("model.norm", "transformer.encoder.final_layernorm"), ("lm_head", "transformer.output_layer"), ("self_attn.o_proj", "self_attention.dense"),
        ("gate_up_proj", "dense_h_to_4h"), ("down_proj", "dense_4h_to_h")])


def of_chatglm(c):
    keys = dict(num_hidden_layers="num_layers", vocab_size="padded_vocab_size", intermediate_size="ffn_hidden_size", head_dim="kv_channels",
                num_key_value_heads="multi_query_group_num", max_position_embeddings="seq_length", rms_norm_eps="layernorm_epsilon")
    unread = ("rope_parameters", "attention_bias", "attention_dropout", "hidden_act", "layer_types", "initializer_range", "pad_token_id")
    return {keys.get(k, k): v for k, v in c.items() if k not in unread} | dict(
        model_type="chatglm", architectures=["ChatGLMForConditionalGeneration"], add_bias_linear=False, add_qkv_bias=True, apply_query_key_layer_scaling=True,
        apply_residual_connection_post_layernorm=False, attention_dropout=0.0, attention_softmax_in_fp32=True, bias_dropout_fusion=True,
        fp32_residual_connection=False, hidden_dropout=0.0, multi_query_attention=True, original_rope=True, post_layer_norm=True, pre_seq_len=None,
        prefix_projection=False, quantization_bit=0, rmsnorm=True, rope_ratio=3)


def qwen(tensors):
    return renamed(in_one(tensors, QKV, "attn.c_attn"), [
        ("model.embed_tokens", "transformer.wte"), ("model.layers", "transformer.h"), ("model.norm", "transformer.ln_f"),
        ("self_attn.o_proj", "attn.c_proj"), ("gate_proj", "w2"), ("up_proj", "w1"), ("down_proj", "c_proj"), ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2")])


def of_qwen_1(c):
    unread = ("rope_parameters", "rms_norm_eps", "num_key_value_heads", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
              "hidden_act", "attention_dropout", "pad_token_id", "head_dim")
    return {k: v for k, v in c.items() if k not in unread} | dict(
        model_type="qwen", architectures=["QWenLMHeadModel"], intermediate_size=2 * c["intermediate_size"], kv_channels=8, layer_norm_epsilon=1e-6,
        no_bias=True, rotary_emb_base=500, rotary_pct=1.0, scale_attn_weights=True, seq_length=48, max_position_embeddings=96,
        use_dynamic_ntk=True, use_logn_attn=True, use_flash_attn="auto", attn_dropout_prob=0.0, emb_dropout_prob=0.0, softmax_in_fp32=False,
        use_cache_quantization=False, use_cache_kernel=False)


class UnitHead(torch.nn.Linear):
    """A head whose rows have length one."""

    def forward(self, x):
        return torch.nn.functional.linear(x, torch.nn.functional.normalize(self.weight))


class Leaning(modeling_llama.LlamaAttention):
    """Llama's attention with linear biases, by Bloom's own slopes, in place of a rotation."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (own(hidden_states).view(shape).transpose(1, 2) for own in (self.q_proj, self.k_proj, self.v_proj))
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        heads, length = q.shape[1], k.shape[2]
        biases = modeling_bloom.build_alibi_tensor(torch.ones(1, length), heads, torch.float32).view(1, heads, 1, length)
        scores = (q @ k.transpose(2, 3)) * self.scaling + biases.to(q.dtype)
        scores = scores + torch.full(scores.shape[-2:], float("-inf"), dtype=q.dtype).triu(length - q.shape[2] + 1)
        mixed = scores.softmax(-1) @ v
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), None


def of_baichuan(**more):
    unread = ("rope_parameters", "num_key_value_heads", "head_dim", "attention_bias", "mlp_bias", "attention_dropout", "pretraining_tp")
    return lambda c: {k: v for k, v in c.items() if k not in unread} | dict(model_type="baichuan", model_max_length=64) | more


def of_minicpm(config):
    keys = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier")
    factors = {key: config.pop(key) for key in keys}
    depth = factors["residual_multiplier"] * config["num_hidden_layers"] ** 0.5
    return config | dict(model_type="minicpm", architectures=["MiniCPMForCausalLM"], scale_emb=factors["embedding_multiplier"],
                         scale_depth=depth, dim_model_base=config["hidden_size"] / factors["logits_scaling"])


def main():
    root = Path(sys.argv[1])
    recorded(root, 900, "internlm2", "llama", SQUARE | dict(tie_word_embeddings=False, attention_bias=True), internlm2,
             lambda c: {k: v for k, v in c.items() if k != "attention_bias"}
             | dict(model_type="internlm2", architectures=["InternLM2ForCausalLM"], bias=True))
    recorded(root, 901, "mimo", "qwen2", SQUARE | dict(tie_word_embeddings=False), same,
             lambda c: c | dict(model_type="mimo", architectures=["MiMoForCausalLM"], attention_bias=True, num_nextn_predict_layers=1))
    recorded(root, 902, "minicpm", "granite", SQUARE | dict(
        tie_word_embeddings=True, embedding_multiplier=12.0, residual_multiplier=0.7, logits_scaling=1.6, attention_multiplier=8 ** -0.5),
        same, of_minicpm)
    mixed = SQUARE | dict(hidden_size=24, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False)
    recorded(root, 903, "bailing-moe", "granitemoeshared", mixed | dict(
        intermediate_size=8, shared_intermediate_size=16, num_local_experts=5, num_experts_per_tok=2, attention_multiplier=12 ** -0.5), of_granite,
        lambda c: {k: v for k, v in c.items() if k not in ("num_local_experts", "shared_intermediate_size", "router_aux_loss_coef")
                   and not k.endswith(("_multiplier", "_scaling"))}
        | dict(model_type="bailing_moe", architectures=["BailingMoeForCausalLM"], num_experts=5, num_shared_experts=2, moe_intermediate_size=8,
               intermediate_size=44, norm_topk_prob=True, use_bias=False, use_qkv_bias=False, norm_head=False, first_k_dense_replace=0),
        by_expert)
    recorded(root, 904, "bailing-moe-v2", "glm4_moe", mixed | dict(
        moe_intermediate_size=8, intermediate_size=20, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=3, topk_group=2,
        routed_scaling_factor=2.5, first_k_dense_replace=1, use_qk_norm=True, head_dim=12, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 600000.0, "partial_rotary_factor": 0.5}), packed,
        lambda c: {k: v for k, v in c.items() if k not in ("n_routed_experts", "n_shared_experts", "rope_parameters", "num_nextn_predict_layers")}
        | dict(model_type="bailing_moe_v2", architectures=["BailingMoeV2ForCausalLM"], num_experts=6, num_shared_experts=1,
               rope_theta=600000, partial_rotary_factor=0.5, rope_scaling=None, score_function="sigmoid", moe_router_enable_expert_bias=True,
               use_bias=False, use_qkv_bias=False, use_rmsnorm=True, num_nextn_predict_layers=0))
    opened(modeling_qwen2_moe.Qwen2MoeSparseMoeBlock)
    recorded(root, 905, "deepseek-moe", "qwen2_moe", mixed | dict(
        moe_intermediate_size=8, shared_expert_intermediate_size=16, intermediate_size=20, num_experts=6, num_experts_per_tok=2, qkv_bias=False,
        norm_topk_prob=False, mlp_only_layers=[0]), of_qwen,
        lambda c: {k: v for k, v in c.items() if k not in ("num_experts", "shared_expert_intermediate_size", "mlp_only_layers", "qkv_bias",
                                                           "decoder_sparse_step", "layer_types", "router_aux_loss_coef")}
        | dict(model_type="deepseek", architectures=["DeepseekForCausalLM"], n_routed_experts=6, n_shared_experts=2, first_k_dense_replace=1,
               moe_layer_freq=1, scoring_func="softmax", aux_loss_alpha=0.001, seq_aux=True))
    theta = lambda base, **more: dict(rope_parameters={"rope_type": "default", "rope_theta": base, **more})
    families.OLD = ()  # with gradients
    recorded(root, 907, "chatglm", "glm", SQUARE | dict(
        attention_bias=True, head_dim=12, pad_token_id=None, rms_norm_eps=1e-5, tie_word_embeddings=False, **theta(30000.0, partial_rotary_factor=0.5)),
        chatglm, of_chatglm)
    whole = SQUARE | dict(num_key_value_heads=4, tie_word_embeddings=False)
    recorded(root, 908, "qwen", "qwen2", whole | dict(pad_token_id=None, **theta(500.0)), qwen, of_qwen_1)
    recorded(root, 909, "baichuan", "llama", whole, baichuan, of_baichuan(architectures=["BaiChuanForCausalLM"]))
    usual = modeling_llama.LlamaAttention
    modeling_llama.LlamaAttention = Leaning
    # Six heads, whose slopes are of two sequences; logits of unit rows are narrow.
    recorded(root, 910, "baichuan-alibi", "llama", whole | dict(hidden_size=36, num_attention_heads=6, num_key_value_heads=6), baichuan,
             of_baichuan(architectures=["BaichuanForCausalLM"]))
    init = modeling_llama.LlamaForCausalLM.__init__

    def with_unit_head(self, config):
        init(self, config)
        self.lm_head = UnitHead(config.hidden_size, config.vocab_size, bias=False)
        torch.nn.init.normal_(self.lm_head.weight, 0.0, config.initializer_range)

    modeling_llama.LlamaForCausalLM.__init__ = with_unit_head
    recorded(root, 911, "baichuan2", "llama", whole, baichuan, of_baichuan(architectures=["BaichuanForCausalLM"], z_loss_weight=0))
    modeling_llama.LlamaForCausalLM.__init__ = init
    modeling_llama.LlamaAttention = usual
    modeling_llama.LlamaDecoderLayer = Searched
    attends = dict(n_heads_in_group=2, no_op=False, num_sink_tokens=None, replace_with_linear=False, sparsify=None, unshifted_sink=False,
                   use_prefill_window_in_sink_attention=False, window_length=None)
    feeds = dict(ffn_mult=5.25, no_op=False, replace_with_linear=False, sparsify=None)
    skips, rests = dict(attends, n_heads_in_group=None, no_op=True), dict(feeds, ffn_mult=None, no_op=True)
    recorded(root, 906, "nemotron-nas", "llama", SQUARE | dict(
        hidden_size=16, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=3, tie_word_embeddings=False, block_configs=[
            dict(attention=attends, ffn=rests), dict(attention=skips, ffn=feeds), dict(attention=dict(attends, n_heads_in_group=1), ffn=feeds)]),
        same, lambda c: c | dict(model_type="nemotron-nas", architectures=["DeciLMForCausalLM"], intermediate_size=None, num_key_value_heads=None))


if __name__ == "__main__":
    main()
