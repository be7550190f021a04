"""Records tiny models as compressed-tensors writes them, for crates/models/tests/compressed_tensors.rs.

    python compressed_tensors.py ../fixtures/compressed-tensors

compressed-tensors 0.20.1, Transformers 5.24, torch 2.15 on the CPU. A Llama in each of the formats that llm-compressor
publishes (schemes by their names there, groups and blocks smaller), and a Qwen3-MoE whose experts' matrices lie one by one, as in
published folders. Scales are of the weights' extremes. `logits` are those of the model that Transformers multiplies out
(`CompressedTensorsConfig(dequantize=True)`) in bfloat16, computed in float32; of the mixture and of groups in an order of
their own those of the same values put into a float32 model here, by compressed-tensors' own functions.
"""

import json
import shutil
import sys
from copy import deepcopy
from pathlib import Path

sys.path = sys.path[1:]  # this file is named as the package is

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, LlamaConfig, Qwen3MoeConfig

SHARED = dict(num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, vocab_size=64, head_dim=16,
              max_position_embeddings=64, initializer_range=0.2, tie_word_embeddings=False)
DENSE = LlamaConfig(hidden_size=64, intermediate_size=96, **SHARED)
EXPERTS = Qwen3MoeConfig(hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2,
                         decoder_sparse_step=1, **SHARED)
root = Path(sys.argv[1])
ids = torch.tensor([[1, 5, 9, 30, 2, 47, 12, 8, 60, 33]])


def scheme(name, **weights):
    given = deepcopy(PRESET_SCHEMES[name])
    args = given["weights"].model_copy(update=weights)
    return QuantizationScheme(targets=["Linear"], **(given | {"weights": args}))


def extremes(weight, args):
    """Least and greatest values, by what shares a scale."""
    rows, columns = weight.shape
    match args.strategy:
        case "tensor":
            each = weight.reshape(1, -1)
        case "channel":
            each = weight
        case "block":
            high, wide = args.block_structure
            each = weight.reshape(rows // high, high, columns // wide, wide).transpose(1, 2).flatten(2)
        case _:
            each = weight.reshape(rows, columns // args.group_size, args.group_size)
    low, high = each.amin(-1), each.amax(-1)
    if args.strategy == "tensor":
        return low, high
    return (low[:, None], high[:, None]) if args.strategy == "channel" else (low, high)


def compressed(weight, how):
    """The tensors of a matrix, and its values."""
    args = how.weights
    low, high = extremes(weight, args)
    state, whole = {"weight": weight}, None
    if args.strategy == "tensor_group":
        whole = (448 * 6 / weight.abs().max().float()).reshape(1)
        state["weight_global_scale"] = whole
    state["weight_scale"], zero = calculate_qparams(low, high, args, whole)
    if args.strategy == "tensor_group":
        state["weight_scale"] = state["weight_scale"].to(torch.float32)
    else:
        state["weight_scale"] = state["weight_scale"].to(weight.dtype)
    if not args.symmetric:
        state["weight_zero_point"] = zero.to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(infer_module_format(torch.nn.Linear, how).value)
    state = compressor.compress(state, how)
    values = compressor.decompress(dict(state), how)["weight"]
    return {k: v.contiguous() for k, v in state.items()}, values


def record(name, config, how, dtype=torch.bfloat16, ordered=False):
    folder = root / name
    torch.manual_seed(4)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    tensors, values = {}, {}
    plain = load_file(folder / "model.safetensors")
    for key, weight in plain.items():
        if not key.endswith("proj.weight"):
            tensors[key] = weight
            continue
        module, own = key.removesuffix(".weight"), weight
        if ordered:
            order = torch.randperm(weight.shape[1])
            own = weight[:, order].contiguous()
        state, value = compressed(own, how)
        if ordered:
            # Codes stay where their inputs are, and a list says of which group each is.
            groups = torch.empty(weight.shape[1], dtype=torch.int32)
            groups[order] = torch.arange(weight.shape[1], dtype=torch.int32) // how.weights.group_size
            from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
            codes = torch.empty(weight.shape, dtype=torch.int8)
            codes[:, order] = unpack_from_int32(state["weight_packed"], 4, weight.shape)
            back = torch.empty_like(value)
            back[:, order] = value
            state["weight_packed"], state["weight_g_idx"], value = pack_to_int32(codes, 4), groups, back
        tensors |= {f"{module}.{part}": tensor for part, tensor in state.items()}
        values[key] = value.to(dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    fmt = infer_module_format(torch.nn.Linear, how).value
    group = how.model_dump(mode="json") | {"format": fmt}
    written["quantization_config"] = {
        "config_groups": {"group_0": group}, "format": fmt, "global_compression_ratio": None, "ignore": ["lm_head"],
        "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed",
        "sparsity_config": {}, "transform_config": {}, "version": "0.20.1",
    }
    (folder / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)

    whole = root / "whole"
    shutil.copytree(folder, whole)
    bare = {k: v for k, v in written.items() if k != "quantization_config"}
    (whole / "config.json").write_text(json.dumps(bare))
    save_file({k: v.contiguous() for k, v in (plain | values).items()}, whole / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(whole, dtype=dtype).float()(ids).logits[0]
    shutil.rmtree(whole)
    if config is DENSE and not ordered:
        theirs = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, quantization_config=CompressedTensorsConfig(dequantize=True)
        ).float()
        with torch.no_grad():
            theirs = theirs(ids).logits[0]
        print(name, fmt, "apart from Transformers", (logits - theirs).abs().max().item())
        logits = theirs
    (folder / "expected.json").write_text(json.dumps({"ids": ids[0].tolist(), "logits": logits.flatten().tolist()}) + "\n")


shutil.rmtree(root, ignore_errors=True)
record("fp8", DENSE, scheme("FP8"))
record("fp8-dynamic", DENSE, scheme("FP8_DYNAMIC"))
record("fp8-block", DENSE, scheme("FP8_BLOCK", block_structure=[16, 32]))
record("mxfp8", DENSE, scheme("MXFP8"))
record("w8a8", DENSE, scheme("W8A8"), torch.float16)
record("w8a8-asym", DENSE, scheme("W8A8", symmetric=False))
record("w4a8", DENSE, scheme("W4A8", group_size=32))
record("w8a16", DENSE, scheme("W8A16", group_size=32))
record("w4a16", DENSE, scheme("W4A16", group_size=32))
record("w4a16-asym", DENSE, scheme("W4A16_ASYM", group_size=32), torch.float16)
record("w4a16-ordered", DENSE, scheme("W4A16", group_size=32), ordered=True)
record("mxfp4", DENSE, scheme("MXFP4A16"))
record("nvfp4", DENSE, scheme("NVFP4"))
record("experts-fp8", EXPERTS, scheme("FP8_DYNAMIC"))
record("experts-w4a16", EXPERTS, scheme("W4A16", group_size=32))
record("experts-nvfp4", EXPERTS, scheme("NVFP4A16"))
