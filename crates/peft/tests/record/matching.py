"""Records which modules PEFT adapts, with which rank, alpha and scale, for a table of configurations.

Run with PEFT 0.21.2, Transformers 5.23.0 and PyTorch: python matching.py > ../matching.json
"""

import json
import sys
import warnings

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import LoraLayer
from torch import nn

warnings.simplefilter("ignore")
SMALL = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, vocab_size=40)


def llama():
    config = transformers.LlamaConfig(num_hidden_layers=12, **SMALL)
    return transformers.LlamaForCausalLM(config)


def qwen2():
    config = transformers.Qwen2Config(num_hidden_layers=2, tie_word_embeddings=False, **SMALL)
    return transformers.Qwen2ForCausalLM(config)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.k_q = nn.Linear(8, 8, bias=False)
        self.experts = nn.ModuleList([nn.Linear(8, 6) for _ in range(3)])
        self.norm = nn.LayerNorm(8)


class Nested(nn.Module):
    """Names that suffixes, numbers and dots can be confused by."""

    def __init__(self):
        super().__init__()
        self.config = {"model_type": "nested"}
        self.embed = nn.Embedding(10, 8)
        self.q = nn.Linear(8, 8)
        self.encoder = nn.ModuleDict({"block": nn.ModuleList([Block() for _ in range(2)])})
        self.decoder = nn.ModuleDict({"layers": nn.ModuleList([Block() for _ in range(2)])})
        self.score = nn.Linear(8, 2, bias=False)


MODELS = {"llama": llama, "qwen2": qwen2, "nested": Nested}

CASES = [
    ("llama", {}),
    ("qwen2", {}),
    ("nested", {}),
    ("llama", dict(target_modules=["q_proj"])),
    ("llama", dict(target_modules=["proj"])),
    ("llama", dict(target_modules=["q_proj", "nothing"])),
    ("llama", dict(target_modules=["layers.1.self_attn.q_proj"])),
    ("llama", dict(target_modules=["model.layers.1.self_attn.q_proj"])),
    ("llama", dict(target_modules=["1.self_attn.q_proj"])),
    ("llama", dict(target_modules=["embed_tokens"])),
    ("llama", dict(target_modules=["lm_head", "q_proj"])),
    ("llama", dict(target_modules="all-linear")),
    ("llama", dict(target_modules="ALL-Linear")),
    ("llama", dict(target_modules="all-linear", exclude_modules=["down_proj"])),
    ("llama", dict(target_modules="all-linear", exclude_modules=r".*\.(0|1)\..*")),
    ("nested", dict(target_modules="all-linear")),
    ("llama", dict(target_modules=r".*q_proj")),
    ("llama", dict(target_modules=r"q_proj")),
    ("llama", dict(target_modules=r".*\.(q|v)_proj")),
    ("llama", dict(target_modules=r"model\.layers\.\d\.self_attn\.(?:q|k)_proj")),
    ("llama", dict(target_modules=r"model\.layers\.\d{2}\.self_attn\.q_proj")),
    ("llama", dict(target_modules=r".*layers\.(?!0|1\.).*\.q_proj")),
    ("llama", dict(target_modules=r"(?P<head>.*)\.(?<=layers\.3\.self_attn\.)o_proj")),
    ("llama", dict(target_modules=r"(?i).*Q_PROJ")),
    ("llama", dict(target_modules=r".*\.(\w)\w*_proj")),
    ("llama", dict(target_modules=r"model\.layers\.\d{,1}\.mlp\.up_proj")),
    ("llama", dict(target_modules=r".*up_proj\Z")),
    ("llama", dict(target_modules=r"lm_head|.*\.11\.mlp\.gate_proj")),
    ("llama", dict(target_modules=r"[")),
    ("llama", dict(target_modules=["q_proj"], exclude_modules=["layers.0.self_attn.q_proj"])),
    ("llama", dict(target_modules=["q_proj"], exclude_modules=["self_attn.q_proj"])),
    ("llama", dict(target_modules=["q_proj", "v_proj"], exclude_modules=r".*\.1\d?\..*")),
    ("llama", dict(target_modules=["q_proj"], exclude_modules=["elsewhere"])),
    ("llama", dict(target_modules=["q_proj"], exclude_modules=[])),
    ("llama", dict(target_modules=["q_proj"], layers_to_transform=1)),
    ("llama", dict(target_modules=["q_proj"], layers_to_transform=[0, 11])),
    ("llama", dict(target_modules=["q_proj"], layers_to_transform=[])),
    ("llama", dict(target_modules=["q_proj"], layers_to_transform=[1], layers_pattern="layers")),
    ("llama", dict(target_modules=["q_proj"], layers_to_transform=[1], layers_pattern="blocks")),
    ("llama", dict(target_modules=["q_proj"], layers_to_transform=[1], layers_pattern=["blocks", "layers"])),
    ("llama", dict(target_modules=["q_proj"], layers_to_transform=[1], layers_pattern="")),
    ("llama", dict(target_modules=["q_proj"], layers_to_transform=[1], layers_pattern=[])),
    ("llama", dict(target_modules=["q_proj", "lm_head"], layers_to_transform=[2])),
    ("llama", dict(target_modules=["model.layers.3.self_attn.k_proj", "q_proj"], layers_to_transform=[2])),
    ("llama", dict(target_modules=["lm_head", "v_proj"], layers_to_transform=[40])),
    ("llama", dict(target_modules=r".*q_proj", layers_to_transform=[1])),
    ("llama", dict(target_modules=r".*q_proj", layers_pattern="layers")),
    ("llama", dict(target_modules=["q_proj"], layers_pattern="layers")),
    ("nested", dict(target_modules=["q"])),
    ("nested", dict(target_modules=["q"], layers_to_transform=[0])),
    ("nested", dict(target_modules=["q"], layers_to_transform=[1], layers_pattern="layers")),
    ("nested", dict(target_modules=["q"], layers_to_transform=[1], layers_pattern=["layers", "block"])),
    ("nested", dict(target_modules=["1", "2"], layers_to_transform=[1])),
    ("nested", dict(target_modules=["experts.0"])),
    ("nested", dict(target_modules=r".*experts\.[02]")),
    ("nested", dict(target_modules=["q", "embed"], modules_to_save=["score"])),
    ("nested", dict(target_modules=["q", "score"], modules_to_save=["score"])),
    ("nested", dict(target_modules=["q", "k_q"], modules_to_save=["block.1"])),
    ("llama", dict(target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"])),
    ("llama", dict(target_modules=["q_proj"], modules_to_save=["norm"])),
    ("llama", dict(target_modules="all-linear", modules_to_save=["lm_head"])),
    ("llama", dict(target_modules=["q_proj"], modules_to_save=["q_proj"])),
    ("llama", dict(target_modules=["q_proj", "v_proj"], rank_pattern={"q_proj": 4})),
    ("llama", dict(target_modules=["q_proj", "v_proj"], rank_pattern={"proj": 4})),
    ("llama", dict(target_modules=["q_proj", "v_proj"], rank_pattern={r"layers\.1\d?\..*": 3}, alpha_pattern={"v_proj": 32})),
    ("llama", dict(target_modules=["q_proj", "v_proj"], rank_pattern={"q_proj|v_proj": 2, ".*": 5})),
    ("llama", dict(target_modules=["q_proj", "v_proj"], rank_pattern={"^model.layers.0.self_attn.q_proj": 6})),
    ("llama", dict(target_modules=["q_proj", "v_proj"], rank_pattern={"^layers.0.self_attn.q_proj": 6})),
    ("llama", dict(target_modules=["q_proj", "v_proj"], use_rslora=True, lora_alpha=3, r=5, alpha_pattern={r"0.self_attn.q_proj": 7})),
    ("llama", dict(target_modules=["q_proj", "v_proj"], lora_alpha=2.5, r=3)),
    ("qwen2", dict(target_modules=["q_proj", "o_proj"], bias="all")),
    ("qwen2", dict(target_modules=["q_proj", "o_proj"], bias="lora_only")),
    ("qwen2", dict(target_modules=["q_proj", "o_proj"], lora_bias=True)),
    ("qwen2", dict(target_modules=["k_proj"], bias="all", modules_to_save=["v_proj"])),
    ("nested", dict(target_modules=["k_q"], bias="all")),
    ("llama", dict(target_modules=["embed_tokens"], lora_bias=True)),
    ("llama", dict(target_modules=["q_proj"], r=0)),
    ("llama", dict(target_modules=["q_proj"], lora_bias=True, init_lora_weights="gaussian")),
    ("llama", dict(target_modules=[""])),
]


def kind(name, module):
    if isinstance(module, nn.Embedding):
        return "embedding"
    return "head" if name in ("lm_head",) else "linear"


def run(model_name, kwargs):
    torch.manual_seed(0)
    case = {"model": model_name, "config": kwargs}
    try:
        model = MODELS[model_name]()
        config = LoraConfig(task_type="CAUSAL_LM" if model_name != "nested" else None, **kwargs)
        adapted = get_peft_model(model, config)
    except Exception as error:  # the kind of refusal is what is recorded
        case["error"] = type(error).__name__
        return case
    prefix = "base_model.model."
    sites = {}
    for name, module in adapted.named_modules():
        if isinstance(module, LoraLayer):
            sites[name.removeprefix(prefix)] = [
                module.r["default"],
                module.lora_alpha["default"],
                module.scaling["default"],
            ]
    case["sites"] = sites
    names = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    case["shapes"] = {
        k.removeprefix(prefix): list(v.shape)
        for k, v in sorted(names.items())
        if len(sites) <= 8 or ".lora_" not in k
    }
    return case


def describe(make):
    model = make()
    modules = [
        [name, kind(name, m), *m.weight.shape]
        for name, m in model.named_modules()
        if isinstance(m, (nn.Linear, nn.Embedding))
    ]
    return {"modules": modules, "parameters": {n: list(p.shape) for n, p in model.named_parameters()}}


def main():
    table = {
        "peft": peft.__version__,
        "transformers": transformers.__version__,
        "models": {name: describe(make) for name, make in MODELS.items()},
        "cases": [run(*case) for case in CASES],
    }
    lines = [json.dumps(case, separators=(",", ":")) for case in table.pop("cases")]
    head = json.dumps(table, separators=(",", ":"))
    sys.stdout.write(head[:-1] + ',"cases":[\n' + ",\n".join(lines) + "\n]}\n")


main()
