"""Records adapters on every module: DoRA on ../fixtures/qwen2, LoRA on the packed layers of ../fixtures/phi3-window and
on the experts of ../fixtures/qwen2-moe, ../fixtures/gemma4-moe and ../fixtures/llama4.
Their logits and their gradients.

Run with PEFT 0.21.2, Transformers 5.23.0 and PyTorch: dora.py [NAME...]
Writes ../fixtures/peft/NAME (loss: mean cross entropy of the next token; gradients by the adapter's keys).
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

warnings.simplefilter("ignore")
FIXTURES = Path(__file__).parent.parent / "fixtures"
CASES = {
    "dora_everything": ("qwen2", dict(
        use_rslora=True, use_dora=True,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"])),
    "lora_packed": ("phi3-window", dict(target_modules="all-linear")),
    # Experts and router, which are parameters, beside linears.
    "lora_experts": ("qwen2-moe", dict(
        target_modules=["q_proj", "v_proj", "down_proj", "shared_expert_gate"],
        target_parameters=["experts.gate_up_proj", "experts.down_proj", "gate.weight"],
        rank_pattern={r".*\.gate_up_proj": 3})),
    # Gemma 4's router is a linear layer.
    "lora_beside": ("gemma4-moe", dict(
        target_modules="all-linear", target_parameters=["experts.gate_up_proj", "experts.down_proj"])),
    # Of Llama 4's experts PEFT takes [in, out] for [out, in].
    "lora_turned": ("llama4", dict(
        target_modules=["q_proj", "v_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"],
        rank_pattern={r".*\.gate_up_proj": 3})),
}


def main(name):
    base_name, options = CASES[name]
    out_folder = FIXTURES / "peft" / name
    torch.manual_seed(3)
    # The grouped product wants widths in multiples of 16 bytes.
    more = {"experts_implementation": "eager"} if "moe" in base_name else {}
    base = AutoModelForCausalLM.from_pretrained(FIXTURES / base_name, dtype=torch.float32, **more)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.no_grad():
        plain = base(input_ids=ids).logits
    config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, init_lora_weights=False, **options)
    model = get_peft_model(base, config).eval()
    model.peft_config["default"].base_model_name_or_path = f"../{base_name}"
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    with torch.no_grad():
        for name, p in trained:
            noise = torch.randn_like(p)
            p.mul_(1 + 0.2 * noise) if "magnitude" in name else p.copy_(0.1 * noise)
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    model.save_pretrained(out_folder, save_embedding_layers=False)
    (out_folder / "README.md").unlink()
    gradients = get_peft_model_state_dict(model, state_dict={n: p.grad for n, p in trained}, save_embedding_layers=False)
    save_file({k: v.contiguous() for k, v in gradients.items()}, out_folder / "gradients.safetensors")
    logits = out.logits.detach()
    record = {
        "base_model": f"../{base_name}",
        "dtype": "float32",
        "input_ids": ids.tolist(),
        "last_token_logits": logits[0, -1].tolist(),
        "logits_shape": list(logits.shape),
        "loss": out.loss.item(),
        "max_abs_diff_from_base": (logits - plain).abs().max().item(),
        "sum_all_logits": logits.double().sum().item(),
    }
    (out_folder / "expected_logits.json").write_text(json.dumps(record, indent=1) + "\n")
    print(record["max_abs_diff_from_base"], record["loss"], len(gradients))


for wanted in sys.argv[1:] or CASES:
    main(wanted)
