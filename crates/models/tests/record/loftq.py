"""Records where PEFT's LoftQ starts from and what three steps of gradient descent make of it, over ../fixtures/quantized/plain
in float32, for crates/models/tests/loftq.rs.

Run with PEFT 0.21.2, bitsandbytes 0.50.2, Transformers 5.23 and PyTorch on the CPU: loftq.py
PEFT asks for CUDA there; its function runs on the CPU with the device's name replaced. down_proj, which has no adapter, is
quantised in the same way: as its function for the CPU takes rows of 96 for rows of whole blocks, by rows of 64.
Writes ../fixtures/loftq/{4,8}.safetensors (of each module `base`, its values as they are read then, and `product`, the
factors') and .json (the loss before each step of rate RATE and after them), and {4,8}-3.safetensors, the same of two modules
after three iterations.
"""

import inspect
import json
from pathlib import Path

import bitsandbytes as bnb
import peft.tuners.lora.layer as layer
import torch
from peft import LoraConfig, get_peft_model
from peft.utils import loftq_utils
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).parent.parent / "fixtures"
RATE = 0.05
source = inspect.getsource(loftq_utils.loftq_init).replace('"cuda"', '"cpu"')
exec(compile(source, "loftq_init", "exec"), loftq_utils.__dict__)
layer.loftq_init = loftq_utils.loftq_init


def quantised(weight, bits):
    if bits == 8:
        held = bnb.nn.Int8Params(weight.clone(), requires_grad=False).to("cpu")
        if held.data.dtype == torch.float32:
            codes, scale, _ = bnb.functional.int8_vectorwise_quant(weight.half())
            return bnb.functional.int8_vectorwise_dequant(codes, scale)
        return bnb.functional.int8_vectorwise_dequant(held.data, held.SCB)
    rows = weight.reshape(-1, 64)
    codes, state = bnb.functional.quantize_4bit(rows, quant_type="nf4", compress_statistics=False)
    return bnb.functional.dequantize_4bit(codes, state).reshape(weight.shape)


for bits in (4, 8):
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "quantized" / "plain", dtype=torch.float32)
    config = LoraConfig(
        r=4, lora_alpha=4, init_lora_weights="loftq", loftq_config={"loftq_bits": bits, "loftq_iter": 3},
        target_modules=["model.layers.0.self_attn.k_proj", "model.layers.0.mlp.up_proj"], task_type="CAUSAL_LM",
    )
    tensors = {}
    for name, module in get_peft_model(model, config).named_modules():
        if hasattr(module, "lora_A"):
            name = name.removeprefix("base_model.model.")
            a, b = (m["default"].weight.data for m in (module.lora_A, module.lora_B))
            tensors[name + ".base"] = module.base_layer.weight.data.clone()
            tensors[name + ".product"] = (b @ a).clone()
    save_file(tensors, FIXTURES / "loftq" / f"{bits}-3.safetensors")

for bits in (4, 8):
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "quantized" / "plain", dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "down_proj" in name:
                p.copy_(quantised(p.data, bits))
    config = LoraConfig(
        r=4, lora_alpha=4, init_lora_weights="loftq", loftq_config={"loftq_bits": bits, "loftq_iter": 1},
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"], task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, config).eval()
    tensors = {}
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            name = name.removeprefix("base_model.model.")
            a, b = (m["default"].weight.data for m in (module.lora_A, module.lora_B))
            tensors[name + ".base"] = module.base_layer.weight.data.clone()
            tensors[name + ".product"] = (b @ a).clone()
    ids = torch.tensor([[1, 5, 9, 30, 2, 47, 12, 8, 60, 33]])
    trained = [p for p in model.parameters() if p.requires_grad]
    losses = []
    for _ in range(4):
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
        losses.append(loss.item())
        loss.backward()
        with torch.no_grad():
            for p in trained:
                p -= RATE * p.grad
                p.grad = None
    out = FIXTURES / "loftq"
    out.mkdir(exist_ok=True)
    save_file(tensors, out / f"{bits}.safetensors")
    record = {"ids": ids[0].tolist(), "losses": losses, "rate": RATE}
    (out / f"{bits}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(bits, losses, {k: v.abs().max().item() for k, v in tensors.items()})
