"""Records what PEFT's initialisations take from the weights of ../fixtures/tiny-llama-1l.

Run with PEFT 0.21.2, Transformers 5.23.0 and PyTorch: python inits.py > ../inits.json
Per initialisation and module: elements of scale * B A and of the base weight that is left, both free of signs.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

warnings.simplefilter("ignore")
BASE = Path(__file__).parent.parent / "fixtures" / "tiny-llama-1l"


def picks(tensor):
    flat = tensor.detach().double().flatten()
    at = [i * (flat.numel() - 1) // 63 for i in range(64)]
    return {"sum": flat.sum().item(), "abs_sum": flat.abs().sum().item(), "at": at, "values": [flat[i].item() for i in at]}


def main():
    table = {}
    for init in ("pissa", "olora"):
        for rslora in (False, True):
            torch.manual_seed(0)
            base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
            targets = ["q_proj", "k_proj", "down_proj", "lm_head"]
            model = get_peft_model(base, LoraConfig(r=4, lora_alpha=10, use_rslora=rslora, init_lora_weights=init, target_modules=targets))
            case = {}
            for name, module in model.base_model.model.named_modules():
                if hasattr(module, "lora_A") and name.split(".")[-1] in targets:
                    a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
                    s = module.scaling["default"]
                    case[name] = {"delta": picks(s * b @ a), "rest": picks(module.base_layer.weight), "scale": s}
            table[f"{init}, rslora {rslora}"] = case
    json.dump(table, sys.stdout, indent=1)
    print()


main()
