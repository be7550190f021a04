"""Records what PEFT's add_weighted_adapter makes of two adapters on one layer.

Run with PEFT 0.21.2 and PyTorch: python weighted.py > ../weighted.json
"""

import json
import sys
import warnings

import torch
from peft import LoraConfig, get_peft_model

warnings.simplefilter("ignore")
CASES = [
    ("linear", 1.0, "total"),
    ("cat", 1.0, "total"),
    ("svd", 1.0, "total"),
    ("ties", 0.5, "total"),
    ("ties", 0.7, "frequency"),
    ("magnitude_prune", 0.4, "total"),
    ("dare_linear", 1.0, "total"),
    ("dare_ties", 1.0, "frequency"),
    ("ties_svd", 0.5, "total"),
    ("ties_svd", 0.7, "frequency"),
    ("magnitude_prune_svd", 0.4, "total"),
    ("dare_linear_svd", 1.0, "total"),
    ("dare_ties_svd", 1.0, "total"),
]
WEIGHTS = [0.7, -1.3]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(5, 4, bias=False)

    def forward(self, x):
        return self.proj(x)


def main():
    torch.manual_seed(5)
    configs = [dict(r=2, lora_alpha=3), dict(r=2, lora_alpha=8)]
    net = Net()
    model = get_peft_model(net, LoraConfig(target_modules=["proj"], **configs[0]), adapter_name="one")
    model.add_adapter("two", LoraConfig(target_modules=["proj"], **configs[1]))
    layer = model.base_model.model.proj
    parts = []
    for name, config in zip(["one", "two"], configs):
        a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
        with torch.no_grad():
            a.normal_()
            b.normal_()
        parts.append(dict(alpha=config["lora_alpha"], a=a.flatten().tolist(), b=b.flatten().tolist()))
    sums = []
    for number, (kind, density, majority) in enumerate(CASES):
        name = f"sum{number}"
        model.add_weighted_adapter(["one", "two"], WEIGHTS, name, combination_type=kind, density=density,
                                   majority_sign_method=majority)
        a, b = layer.lora_A[name].weight.data, layer.lora_B[name].weight.data
        sums.append(dict(combination_type=kind, density=density, majority_sign_method=majority,
                         scale=layer.scaling[name], a=a.flatten().tolist(), b=b.flatten().tolist(),
                         change=layer.get_delta_weight(name).flatten().tolist()))
    json.dump(dict(weights=WEIGHTS, parts=parts, sums=sums), sys.stdout, indent=1)
    print()


main()
