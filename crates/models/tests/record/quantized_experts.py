"""Records tiny mixtures of experts that are quantised, for crates/models/tests/quantized_experts.rs.

    python quantized_experts.py ../fixtures/quantized-experts

Transformers 5.24, bitsandbytes 0.50.2, torch 2.15 on the CPU. `plain` is a Qwen2-MoE with a shared expert; `nf4` is what
Transformers makes of it, whose experts stay in bfloat16; `each-nf4` and `each-int8` have every expert's matrices quantised
too, each by itself under the name that published folders have it by (Transformers 4 kept experts as layers), with the
numbers of bitsandbytes' functions, scales of four bits quantised again. `logits` are those of the values in float32.
"""

import json
import shutil
import sys
from pathlib import Path

import bitsandbytes as bnb
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen2MoeConfig, Qwen2MoeForCausalLM

F = bnb.functional
root = Path(sys.argv[1])
ids = torch.tensor([[1, 5, 9, 30, 2, 47, 12, 8, 60, 33]])
torch.manual_seed(5)
config = Qwen2MoeConfig(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, shared_expert_intermediate_size=64, num_experts=4,
    num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
    max_position_embeddings=64, initializer_range=0.2, tie_word_embeddings=False, dtype=torch.bfloat16,
)
shutil.rmtree(root, ignore_errors=True)
Qwen2MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(root / "plain")


def record(folder, values):
    """Logits of a float32 model with these values, by the names of the files, in place of its own."""
    whole = root / "whole"
    shutil.copytree(root / "plain", whole)
    tensors = {k: v.float() for k, v in load_file(root / "plain" / "model.safetensors").items()}
    assert set(values) <= set(tensors), set(values) - set(tensors)
    save_file(tensors | {k: v.float().contiguous() for k, v in values.items()}, whole / "model.safetensors",
              metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    with torch.no_grad():
        logits = model(ids).logits[0].flatten().tolist()
    shutil.rmtree(whole)
    (folder / "expected.json").write_text(json.dumps({"ids": ids[0].tolist(), "logits": logits}))
    (folder / "generation_config.json").unlink(missing_ok=True)


def four(weight, nested):
    """Codes and state of a matrix, and its values over the flattened matrix."""
    codes, state = F.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type="nf4")
    absmax = state.absmax
    if nested:
        absmax = F.dequantize_blockwise(absmax, state.state2) + state.offset
    raw = codes.flatten()
    each = torch.stack([raw >> 4, raw & 15], 1).flatten().long()[: weight.numel()]
    flat = state.code[each] * absmax.repeat_interleave(64)[: weight.numel()]
    return codes, state, flat.to(weight.dtype).reshape(weight.shape)


plain = load_file(root / "plain" / "model.safetensors")
print(sorted(k for k in plain if ".layers.0." in k))
record(root / "plain", {})

how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
model = AutoModelForCausalLM.from_pretrained(root / "plain", quantization_config=how, dtype=torch.bfloat16)
model.save_pretrained(root / "nf4")
saved = load_file(root / "nf4" / "model.safetensors")
quantised = sorted(k.split(".quant_state.")[0] for k in saved if ".quant_state." in k)
assert not any(".experts." in k for k in quantised), quantised
record(root / "nf4", {k: four(plain[k], False)[2] for k in quantised})

linears = [k for k in plain if k in quantised or ".experts." in k]
tensors, values = dict(plain), {}
for k in linears:
    codes, state, values[k] = four(plain[k], True)
    tensors[k] = codes
    for name, value in state.as_dict(packed=True).items():
        tensors[f"{k}.{name}"] = value
(root / "each-nf4").mkdir()
save_file({k: v.contiguous() for k, v in tensors.items()}, root / "each-nf4" / "model.safetensors", metadata={"format": "pt"})
settings = json.loads((root / "nf4" / "config.json").read_text())
settings["quantization_config"]["bnb_4bit_use_double_quant"] = True
(root / "each-nf4" / "config.json").write_text(json.dumps(settings, indent=2))
record(root / "each-nf4", values)

tensors, values = dict(plain), {}
for k in linears:
    codes, scales, _ = F.int8_vectorwise_quant(plain[k].to(torch.float16))
    tensors[k], tensors[k.removesuffix(".weight") + ".SCB"] = codes, scales.float()
    tensors[k.removesuffix(".weight") + ".weight_format"] = torch.tensor(0, dtype=torch.uint8)
    values[k] = F.int8_vectorwise_dequant(codes, scales).to(torch.bfloat16)
(root / "each-int8").mkdir()
save_file({k: v.contiguous() for k, v in tensors.items()}, root / "each-int8" / "model.safetensors", metadata={"format": "pt"})
settings["quantization_config"] |= dict(_load_in_4bit=False, _load_in_8bit=True, load_in_4bit=False, load_in_8bit=True)
(root / "each-int8" / "config.json").write_text(json.dumps(settings, indent=2))
record(root / "each-int8", values)

# gpt-oss as it is published: experts in MXFP4, which Transformers widens where it has no kernels.
from transformers import GptOssConfig, GptOssForCausalLM  # noqa: E402

config = GptOssConfig(
    hidden_size=64, intermediate_size=96, num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=8, vocab_size=64,
    max_position_embeddings=64, initializer_range=0.2, dtype=torch.bfloat16, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0},
)
folder = root / "mxfp4"
GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
tensors = load_file(folder / "model.safetensors")
generator = torch.Generator().manual_seed(7)
for name in [k for k in tensors if k.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
    experts, inputs, outputs = tensors.pop(name).shape
    codes = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
    tensors[f"{name}_blocks"] = codes
    tensors[f"{name}_scales"] = torch.randint(122, 126, codes.shape[:3], generator=generator, dtype=torch.uint8)
save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
settings = json.loads((folder / "config.json").read_text())
settings["quantization_config"] = {
    "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]}
(folder / "config.json").write_text(json.dumps(settings, indent=2))
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
assert not any(p.isnan().any() for p in model.parameters())
with torch.no_grad():
    logits = model.float()(ids).logits[0].flatten().tolist()
(folder / "expected.json").write_text(json.dumps({"ids": ids[0].tolist(), "logits": logits}))
(folder / "generation_config.json").unlink(missing_ok=True)
