"""Records tiny models in fine-grained FP8, for crates/models/tests/fp8.rs.

    python fp8.py ../fixtures/fp8

Transformers 5.24, torch 2.15 on the CPU. A Llama and a Qwen3-MoE (an expert's matrices one by one, as published folders
have them) whose projections are float8_e4m3fn with a scale for each block of 16 x 16. `logits` are those of the model
that Transformers multiplies out to bfloat16 (`FineGrainedFP8Config(dequantize=True)`), computed in float32.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, LlamaConfig, Qwen3MoeConfig

BLOCK = 16
SHARED = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
              max_position_embeddings=64, initializer_range=0.2, tie_word_embeddings=False)
CONFIGS = {
    "dense": LlamaConfig(hidden_size=64, intermediate_size=96, **SHARED),
    "experts": Qwen3MoeConfig(hidden_size=32, intermediate_size=48, moe_intermediate_size=32, head_dim=8, num_experts=4,
                              num_experts_per_tok=2, decoder_sparse_step=1, **SHARED),
}
root = Path(sys.argv[1])
ids = torch.tensor([[1, 5, 9, 30, 2, 47, 12, 8, 60, 33]])


def blocks(weight):
    rows, columns = weight.shape[0] // BLOCK, weight.shape[1] // BLOCK
    each = weight.float().reshape(rows, BLOCK, columns, BLOCK)
    scales = each.abs().amax((1, 3)) / 448
    codes = (each / scales[:, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn)
    return codes, scales


shutil.rmtree(root, ignore_errors=True)
for name, config in CONFIGS.items():
    folder = root / name
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tensors = {}
    for key, weight in load_file(folder / "model.safetensors").items():
        if key.endswith("proj.weight"):
            tensors[key], tensors[f"{key}_scale_inv"] = blocks(weight)
        else:
            tensors[key] = weight
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    written["quantization_config"] = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8",
                                          weight_block_size=[BLOCK, BLOCK])
    (folder / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    wide = FineGrainedFP8Config(dequantize=True, weight_block_size=(BLOCK, BLOCK))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=wide).float()
    with torch.no_grad():
        logits = model(ids).logits[0].flatten().tolist()
    (folder / "expected.json").write_text(json.dumps({"ids": ids[0].tolist(), "logits": logits}) + "\n")
