"""Records Transformers' and PEFT's tensor parallelism on two gloo ranks: what works as numbers, what fails as words.

Run with PEFT 0.21.2, Transformers 5.23.0 and PyTorch, on a CPU: python tensor_parallel.py
Starts itself under torchrun for every case and writes ../golden/tensor_parallel:
  <base>.safetensors           logits, loss and the gradient of every parameter of ../fixtures/<base> over two ranks
  <base>-lora/                 an adapter on column-parallel targets, as PEFT writes it
  <base>-lora.safetensors      its losses and gradients over two ranks, in steps of SGD, and the factors afterwards
  outcomes.json                per case, the greatest difference from one process, or how it failed
What fails there are the tests of regressions.rs and regressions_tp.rs.
"""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
OUT = HERE.parent / "golden" / "tensor_parallel"
COLWISE = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]
ROW = [3, 1, 4, 1, 5, 9, 2, 6]
STEPS, RATE = 3, 0.5
BASES = ["llama", "qwen3"]


def case_names():
    for base in BASES:
        yield f"full {base}"
        yield f"lora {base}"
    yield from ["rowwise", "clipping", "init false", "init orthogonal", "start pissa", "start olora", "dora", "head", "merge"]
    yield from ["dropout", "accumulation 1", "accumulation 2", "accumulation 4"]


def model(base, ranks):
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    more = {"distributed_config": DistributedConfig(tp_size=ranks, tp_plan="auto")} if ranks > 1 else {}
    return AutoModelForCausalLM.from_pretrained(FIXTURES / base, dtype=torch.float32, attn_implementation="eager", **more)


def whole(tensor):
    """A tensor's value on one rank."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone().contiguous()


def named(model, what):
    return {n: whole(what(p)) for n, p in model.named_parameters() if what(p) is not None}


def passed(model, ids, scale=1.0):
    out = model(input_ids=ids, labels=ids, use_cache=False)
    (out.loss * scale).backward()
    return whole(out.logits), whole(out.loss)


def apart(a, b):
    assert a.keys() == b.keys(), (sorted(a.keys() ^ b.keys()))
    return max((a[k] - b[k]).abs().max().item() for k in a)


def full(base, rank):
    import torch
    from safetensors.torch import save_file

    ids = torch.tensor([ROW])
    found = []
    for ranks in (2, 1):
        one = model(base, ranks).eval()
        logits, loss = passed(one, ids)
        gradients = named(one, lambda p: p.grad)
        found.append({"logits": logits[0], "loss": loss.reshape(1), **gradients})
    if rank == 0:
        save_file(found[0], OUT / f"{base}.safetensors")
    return apart(*found)


def adapter(base, ranks, seed=None, **more):
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3 if seed is None else seed)
    settings = {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": COLWISE, **more}
    return get_peft_model(model(base, ranks), LoraConfig(**settings))


def lora(base, rank):
    import torch
    import torch.distributed as dist
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors.torch import save_file

    folder = OUT / f"{base}-lora"
    if rank == 0:
        fresh = adapter(base, 1, init_lora_weights=False)
        fresh.peft_config["default"].base_model_name_or_path = f"../../../fixtures/{base}"
        fresh.save_pretrained(folder)
        (folder / "README.md").unlink()
    dist.barrier()
    ids = torch.tensor([ROW])
    found = []
    for ranks in (2, 1):
        wrapped = PeftModel.from_pretrained(model(base, ranks), folder, is_trainable=True).eval()
        trained = [p for p in wrapped.parameters() if p.requires_grad]
        sgd = torch.optim.SGD(trained, lr=RATE, foreach=False)
        record = {}
        for step in range(STEPS):
            sgd.zero_grad()
            _, loss = passed(wrapped, ids)
            record[f"loss {step}"] = loss.reshape(1)
            gradients = get_peft_model_state_dict(wrapped, state_dict=named(wrapped, lambda p: p.grad))
            record |= {f"gradient {step} {k}": v for k, v in gradients.items() if step in (0, STEPS - 1)}
            sgd.step()
        factors = get_peft_model_state_dict(wrapped, state_dict=named(wrapped, lambda p: p if p.requires_grad else None))
        found.append(record | {f"trained {k}": v for k, v in factors.items()})
    if rank == 0:
        save_file(found[0], OUT / f"{base}-lora.safetensors")
    return apart(*found)


def spread(wrapped):
    """The greatest difference between ranks of a replicated adapter tensor."""
    import torch.distributed as dist

    worst = 0.0
    for _, p in wrapped.named_parameters():
        if p.requires_grad and not hasattr(p, "full_tensor"):
            for value in [p.detach()] + ([p.grad] if p.grad is not None else []):
                all_ranks = [value.clone() for _ in range(dist.get_world_size())]
                dist.all_gather(all_ranks, value.contiguous())
                worst = max(worst, max((x - all_ranks[0]).abs().max().item() for x in all_ranks))
    return worst


def failure(name, rank):
    import torch

    ids = torch.tensor([ROW])
    if name.startswith("accumulation"):
        times = int(name.split()[-1])
        ratios = []
        found = []
        for ranks in (2, 1):
            one = model("qwen3", ranks).eval()
            for _ in range(times):
                passed(one, ids, 1 / times)
            found.append(named(one, lambda p: p.grad))
        for key in found[0]:
            if "q_norm" in key or "k_norm" in key:
                ratios.append((found[0][key].norm() / found[1][key].norm()).item())
        return {"q/k norm gradient of that of one process": [min(ratios), max(ratios)]}
    if name == "rowwise":
        wrapped = adapter("llama", 2, target_modules=["o_proj", "down_proj"])
        passed(wrapped, ids)
    elif name == "clipping":
        wrapped = adapter("llama", 2)
        passed(wrapped, ids)
        torch.nn.utils.clip_grad_norm_([p for p in wrapped.parameters() if p.requires_grad], 1.0)
    elif name.startswith("init "):
        init = False if name == "init false" else "orthogonal"
        wrapped = adapter("llama", 2, seed=10 + rank, init_lora_weights=init)
    elif name.startswith("start "):
        wrapped = adapter("llama", 2, init_lora_weights=name.split()[1])
        passed(wrapped, ids)
    elif name == "dora":
        wrapped = adapter("llama", 2, use_dora=True)
        passed(wrapped, ids)
    elif name == "head":
        wrapped = adapter("llama", 2, target_modules=["lm_head"])
        passed(wrapped, ids)
    elif name == "merge":
        wrapped = adapter("llama", 2)
        wrapped.merge_adapter()
    elif name == "dropout":
        wrapped = adapter("llama", 2, lora_dropout=0.3, init_lora_weights="gaussian")
        with torch.no_grad():
            for n, p in wrapped.named_parameters():
                if "lora_B" in n:
                    p.add_(0.1)
        torch.manual_seed(10 + rank)
        passed(wrapped.train(), ids)
    return {"replicated adapter tensors and gradients between ranks": spread(wrapped)}


def child(name):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    kind, _, rest = name.partition(" ")
    if kind in ("full", "lora"):
        outcome = {"greatest difference from one process": {"full": full, "lora": lora}[kind](rest, rank)}
    else:
        outcome = failure(name, rank)
    if rank == 0:
        print("OUTCOME " + json.dumps(outcome), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for name in case_names():
        words = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29613", __file__, name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600)
        said = [line[8:] for line in done.stdout.splitlines() if line.startswith("OUTCOME ")]
        if said:
            outcomes[name] = json.loads(said[0])
        else:
            errors = [x.split("]: ", 1)[-1].strip() for x in done.stderr.splitlines()]
            raised = [x for x in errors if x.split(":")[0].endswith("Error") and "ChildFailed" not in x]
            codes = [f"exit code {x}" for x in re.findall(r"exitcode: (-?\d+)", done.stderr)]
            outcomes[name] = {"fails": (raised or codes or errors[-1:])[0][:200]}
        print(name, outcomes[name], flush=True)
    versions = {m: __import__(m).__version__ for m in ("peft", "transformers", "torch")}
    record = {"versions": versions, "ranks": 2, "backend": "gloo", "input_ids": ROW, "steps": STEPS, "learning_rate": RATE, "outcomes": outcomes}
    (OUT / "outcomes.json").write_text(json.dumps(record, indent=1) + "\n")


if len(sys.argv) > 1:
    child(sys.argv[1])
else:
    main()
