#!/usr/bin/env python3
"""The PyTorch half of the ZeRO bench: DDP, FSDP2 and DeepSpeed with gloo ranks on the CPU.

Started by zero.py. Imports everything once, then answers one JSON request a line: `{"make": true}` writes the
model folder, `{"mode": ...}` trains in freshly forked ranks, so that every run has a process and a peak memory
of its own without paying for the imports again. Checked with torch 2.15.0 and DeepSpeed 0.19.8.

Modes: `ddp`, `fsdp2` (each block and the root are sharded, gathered in forward and again in backward), `ds0` to
`ds3` (DeepSpeed's defaults, but buckets of 16 Mi elements), `ds3-live` (stage 3 that keeps at most two blocks
gathered; with its defaults DeepSpeed keeps a model of this size whole from forward to backward).
All in float32 with AdamW, clipping at norm 1 and recomputation of every block.
"""

import json
import os
import resource
import socket
import sys
import time
import traceback
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="",
                  DEEPSPEED_LOG_LEVEL="error")

BUCKET = 1 << 24
CLIP = 1.0


# ---- the same job as burnish's -----------------------------------------------------------------------

def make(request):
    """Random weights of the shape in the folder's config.json."""
    import torch
    from transformers import AutoConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = Path(request["model"])
    LlamaForCausalLM(AutoConfig.from_pretrained(folder)).save_pretrained(folder)


def batches(request, rank):
    """This rank's rows of every step: the texts joined, each with its end token, and cut to the sequence length."""
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(request["model"]) / "tokenizer.json"))
    lines = Path(request["data"]).read_text().splitlines()
    encoded = tokenizer.encode_batch([json.loads(line)["text"] for line in lines])
    ids = [token for row in encoded for token in [*row.ids, request["end"]]]
    length, rows, ranks = request["sequence"], request["rows"], request["ranks"]
    table = torch.tensor(ids[:len(ids) // length * length]).view(-1, length)
    if len(table) < rows * request["steps"]:
        raise ValueError(f"the text fills {len(table)} rows, {rows * request['steps']} are needed")
    share = rows // ranks
    return [table[step * rows + rank * share:][:share] for step in range(request["steps"])]


def load(request):
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(request["model"], dtype=torch.float32)
    model.config.use_cache = False
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def adamw(parameters, request):
    import torch

    return torch.optim.AdamW(parameters, lr=request["rate"], weight_decay=0.0, fused=True)


# ---- the modes: each gives a function that trains on one batch and returns the loss -------------------

def plain(model, request):
    import torch

    optimizer = adamw(model.parameters(), request)

    def step(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return step


def ddp(request):
    from torch.nn.parallel import DistributedDataParallel

    return plain(DistributedDataParallel(load(request)), request)


def fsdp2(request):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = load(request), init_device_mesh("cpu", (request["ranks"],))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    return plain(fully_shard(model, mesh=mesh), request)


def deepspeed(request, stage, live=False):
    import deepspeed

    model = load(request)
    zero = {"stage": stage, "reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET,
            "stage3_param_persistence_threshold": request["persist"]}
    if live:
        block = sum(p.numel() for p in model.model.layers[0].parameters())
        zero |= {"stage3_max_live_parameters": 2 * block, "stage3_max_reuse_distance": 0,
                 "stage3_prefetch_bucket_size": block}
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=adamw(model.parameters(), request), dist_init_required=False,
        config={"train_micro_batch_size_per_gpu": request["rows"] // request["ranks"],
                "gradient_accumulation_steps": 1, "gradient_clipping": CLIP, "zero_optimization": zero,
                "steps_per_print": 1 << 30, "wall_clock_breakdown": False})

    def step(ids):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return loss.detach()
    return step


MODES = {"ddp": ddp, "fsdp2": fsdp2, "ds3-live": lambda request: deepspeed(request, 3, live=True)} | {
    f"ds{stage}": lambda request, stage=stage: deepspeed(request, stage) for stage in range(4)}


def train(request, rank, port):
    """One rank's run: when each step ended, its loss over all ranks, and the peak memory."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(request["ranks"]), LOCAL_SIZE=str(request["ranks"]))
    torch.set_num_threads(request["threads"])
    if request["mode"].startswith("ds"):
        import deepspeed

        # Plain gloo as for the others: without this DeepSpeed compiles its own shared-memory all-reduce at start.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    else:
        dist.init_process_group("gloo")
    step = MODES[request["mode"]](request)
    seen = []
    for ids in batches(request, rank):
        loss = step(ids)
        dist.all_reduce(loss)
        seen.append((time.perf_counter() - request["begun"], loss.item() / request["ranks"]))
    dist.barrier()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return dict(seen=seen, peak_rss_bytes=peak)


# ---- the server --------------------------------------------------------------------------------------

def forked(request, rank, port, work):
    """Runs `work` in a child; its process id and the pipe its answer comes through."""
    out, into = os.pipe()
    child = os.fork()
    if child:
        os.close(into)
        return child, out
    os.close(out)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    code = 1
    try:
        answer = work(request, rank, port) if work is train else work(request)
        with os.fdopen(into, "w") as pipe:
            json.dump(answer, pipe)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def answer(request):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    request["begun"] = time.perf_counter()
    work = make if request.get("make") else train
    children = [forked(request, rank, port, work) for rank in range(1 if work is make else request["ranks"])]
    answers, failed, cpu = [], False, 0.0
    for child, pipe in children:
        with os.fdopen(pipe) as file:
            text = file.read()
        _, status, usage = os.wait4(child, 0)
        cpu += usage.ru_utime + usage.ru_stime
        failed |= status != 0
        answers.append(json.loads(text) if text else None)
    if failed:
        return dict(error=Path(request["log"]).read_text(errors="replace")[-3000:])
    if work is make:
        return {}
    return dict(seen=answers[0]["seen"], peaks=[a["peak_rss_bytes"] for a in answers], cpu_s=cpu,
                total_s=time.perf_counter() - request["begun"])


def main():
    # Imports only: a thread started here would not survive the fork.
    import torch
    import torch.distributed.fsdp  # noqa: F401
    import transformers
    from transformers import LlamaForCausalLM  # noqa: F401

    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    try:
        import deepspeed

        versions["deepspeed"] = deepspeed.__version__
    except ImportError:
        pass
    print(json.dumps(versions), file=reply, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=reply, flush=True)


if __name__ == "__main__":
    main()
