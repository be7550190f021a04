#!/usr/bin/env python3
"""Step time of every ZeRO stage over stage 0 on the same ranks, beside DeepSpeed and FSDP2.

Everything, between 5 and 6 minutes on two quiet cores:

    python3 benches/zero.py --burnish target/release/burnish --python PYTHON_WITH_TORCH_AND_DEEPSPEED

burnish alone, under 3 minutes; then a quick look at whether everything works (its ratios mean nothing):

    python3 benches/zero.py --burnish target/release/burnish --repetitions 4
    python3 benches/zero.py --burnish target/release/burnish --python PYTHON --shape small --repetitions 1 --output LOOK

Needs nothing but the repository, the binary and, for the peers, a Python with torch, transformers and deepspeed
(`DS_BUILD_OPS=0 pip install deepspeed`; no compiler). --variants picks some, such as `local-0,local-3`; `ds3-live`
runs only when it is named.

A Llama with random weights is trained whole (no adapter) in float32 by two ranks: AdamW, clipping at norm 1,
every block recomputed in backward, the packed texts of examples/data. Each program's ranks share all cores:
burnish's as threads of one process (`local`) and, where mpirun is found, as processes (`mpi`), the peers' as
processes over gloo. The runs are short and take turns; every second repetition goes through them backwards.
What counts is a stage's step over the same program's step without sharding (burnish: stage 0; DeepSpeed: stage 0;
FSDP2: DDP), formed within each repetition: a change of the machine's speed from one minute to the next cancels.

What is measured, for all in the same way:

* step: wall time between the ends of two consecutive steps (all the trainer does, logging included) after WARMUP
  steps; the median of a run is reported;
* peak memory: the greatest resident set of a process. With `local` that process holds all ranks, otherwise one.

The loss of every step must agree between all runs of all programs, or they did not do the same job.
Writes rows and a summary to benches/runs/<date>-<cpu>/.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from sft import BENCHES, cpu_name, median_of, output_of, run, runs_folder, write_csv

EXAMPLES = BENCHES.parent / "examples"
DATA = EXAMPLES / "data" / "pretrain.jsonl"
RANKS = 2
RATE = 2e-4
WARMUP = 2
SAME = 1e-4
# In stage 3 only the norms stay whole; in the full shape this is what both programs' defaults give.
PERSIST = 10_000

SHAPES = {
    "full": dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
                 intermediate_size=1408, sequence=512, rows=4, steps=6),
    "small": dict(hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                  intermediate_size=344, sequence=128, rows=4, steps=8),
}
PEERS = ("ddp", "ds0", "ds1", "ds2", "ds3", "ds3-live", "fsdp2")
# What each variant is held against: the same program, the same ranks, nothing sharded.
OVER = {"fsdp2": "ddp"} | {f"ds{s}": "ds0" for s in ("1", "2", "3", "3-live")} | {
    f"{transport}-{stage}": f"{transport}-0" for transport in ("local", "mpi") for stage in (1, 2, 3)}
TARGETS = {f"{transport}-{stage}": target for transport in ("local", "mpi")
           for stage, target in ((1, 1.03), (2, 1.03), (3, 1.08))}


# ---- what is trained ---------------------------------------------------------------------------------

def model_folder(scratch, name):
    """The folder with the shape and the tokenizer; weights come from the peers, or are drawn by burnish."""
    folder, base = scratch / f"model-{name}", json.loads((EXAMPLES / "base" / "config.json").read_text())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(EXAMPLES / "base" / file, folder)
    shape = {k: v for k, v in SHAPES[name].items() if k not in ("sequence", "rows", "steps")}
    base |= shape | {"head_dim": shape["hidden_size"] // shape["num_attention_heads"], "dtype": "float32",
                     "tie_word_embeddings": False, "max_position_embeddings": 1024,
                     "pad_token_id": None}  # or PyTorch does not train that token's embedding
    (folder / "config.json").write_text(json.dumps(base, indent=1) + "\n")
    return folder, base


def elements(config):
    """Trained parameters, counted from the shape."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    block = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner + 2 * hidden
    return config["num_hidden_layers"] * block + 2 * config["vocab_size"] * hidden + hidden


# ---- one run -----------------------------------------------------------------------------------------

def burnish(options, job, variant):
    """Runs one stage over one transport."""
    transport, stage = variant.split("-")
    output = options.scratch / f"out-{variant}"
    shutil.rmtree(output, ignore_errors=True)
    config = options.scratch / f"{variant}.json"
    config.write_text(json.dumps({
        "model_name_or_path": str(job["model"]), "dataset_name": str(DATA), "output_dir": str(output),
        "random_weights": job["random"], "max_length": job["sequence"], "packing": True,
        "packing_strategy": "wrapped", "train_sampling_strategy": "sequential", "gradient_checkpointing": True,
        "global_batch_size": job["rows"], "per_device_train_batch_size": job["rows"] // RANKS,
        "learning_rate": RATE, "lr_scheduler_type": "constant", "max_steps": job["steps"], "logging_steps": 1,
        "bf16": False, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "zero_stage": int(stage),
        "stage3_param_persistence_threshold": PERSIST,
        "transport": transport, "nproc": RANKS if transport == "local" else 1,
        "threads": options.threads if transport == "local" else max(1, options.threads // RANKS)}, indent=1) + "\n")
    command = [str(options.burnish), "sft", "--config", str(config), *options.extra]
    if transport == "mpi":
        command = [*options.mpirun, *command]
    result = run(command, output, options.scratch / f"{variant}.log", dict(os.environ, HF_HUB_OFFLINE="1"))
    seen = [(when, row["loss"]) for when, row in result["seen"]]
    if [row["step"] for _, row in result["seen"]] != list(range(1, job["steps"] + 1)):
        sys.exit(f"{variant}: expected metrics of steps 1 to {job['steps']}, got {len(seen)} lines")
    return result | dict(seen=seen)


class Peers:
    """The server of zero_peers.py."""

    def __init__(self, options):
        self.log = options.scratch / "peers.log"
        self.process = subprocess.Popen(
            [options.python, str(BENCHES / "zero_peers.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log.open("wb"), text=True)
        self.versions = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"zero_peers.py ended:\n{self.log.read_text()[-3000:]}")
        return json.loads(line)

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.read()
        if "error" in answer:
            sys.exit(f"{request}:\n{answer['error']}")
        return answer

    def make(self, job, scratch):
        log = scratch / "make.log"
        log.unlink(missing_ok=True)
        self.ask(make=True, model=str(job["model"]), log=str(log))

    def train(self, options, job, mode):
        log = options.scratch / f"{mode}.log"
        log.unlink(missing_ok=True)
        load = os.getloadavg()[0]
        answer = self.ask(
            mode=mode, model=str(job["model"]), data=str(DATA), end=job["end"], log=str(log), ranks=RANKS,
            threads=max(1, options.threads // RANKS), rate=RATE,
            persist=PERSIST, **{k: job[k] for k in ("sequence", "rows", "steps")})
        return answer | dict(peak_rss_bytes=max(answer["peaks"]), load=load)


def measures(result):
    """The figures of one run and its rows per step."""
    times = [when for when, _ in result["seen"]]
    gaps = [b - a for a, b in zip(times, times[1:])]
    steady, losses = gaps[WARMUP - 1:], [loss for _, loss in result["seen"]]
    figures = dict(
        median_step_s=statistics.median(steady), fastest_step_s=min(steady), first_step_s=times[0],
        total_s=result["total_s"], cpu_s=result["cpu_s"], peak_rss_bytes=result["peak_rss_bytes"],
        load_at_start=result["load"], first_loss=losses[0], last_loss=losses[-1])
    rows = [dict(step=number, ended_at_s=when, step_s=gap, loss=loss)
            for number, ((when, loss), gap) in enumerate(zip(result["seen"], [None] + gaps), 1)]
    return figures, rows


# ---- the report --------------------------------------------------------------------------------------

def machine(options, peers):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    changed = " (with uncommitted changes)" if output_of("git", "status", "--porcelain", "-uno") else ""
    facts = {
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
        "cpu": f"{cpu_name()}, {os.cpu_count()} cores, {options.threads} used", "memory": f"{memory:.1f} GiB",
        "system": f"{platform.system()} {platform.machine()}", **(peers.versions if peers else {}),
        "burnish": output_of(str(options.burnish), "--version") if options.burnish else "not run",
        "commit": output_of("git", "rev-parse", "--short=12", "HEAD") + changed,
    }
    if any("mpi" in variant for variant in options.variants):
        facts["mpi"] = output_of(options.mpirun[0], "--version").splitlines()[0]
    if options.extra:
        facts["options added to burnish's"] = " ".join(options.extra)
    return facts


def ratios(runs, variant):
    """Median step over the unsharded one's, per repetition."""
    of = {(r["repetition"], r["variant"]): r["median_step_s"] for r in runs}
    return [of[n, v] / of[n, OVER[variant]] for n, v in of if v == variant and (n, OVER[variant]) in of]


def program(variant):
    return "burnish" if "-" in variant and not variant.startswith("ds") else "peers"


def agreement(steps):
    """What the losses say about whether all did the same job."""
    by = {}
    for row in steps:
        by.setdefault(program(row["variant"]), {}).setdefault(row["step"], []).append(row["loss"])
    if len(by) == 2:
        by["burnish and its peers"] = {step: by["burnish"][step] + by["peers"][step] for step in by["peers"]}
    notes = []
    for name, losses in by.items():
        apart = max(max(found) - min(found) for found in losses.values())
        notes.append(f"* {name}: losses at every step agree within {apart:.1e} "
                     f"({'the same job' if apart < SAME else 'NOT THE SAME JOB'}).")
    return notes


def summary(facts, job, runs, steps):
    repetitions = max(r["repetition"] for r in runs)
    lines = ["# ZeRO stages over stage 0, two ranks", ""]
    lines += [f"* {key}: {value}" for key, value in facts.items()]
    lines += ["", f"{job['elements'] / 1e6:.1f} M parameters, all trained, float32; {job['rows']} rows of "
              f"{job['sequence']} tokens a step on all ranks together; recompute on. Medians of {repetitions} "
              f"interleaved repetition(s) of {job['steps'] - WARMUP} counted steps. `ratio`: step over the same "
              "program's unsharded one, formed within each repetition (median, and range over the repetitions).", "",
              "| variant | step, s | fastest, s | over | ratio | target | CPU time of a run, s "
              "| peak memory of a process, MiB |",
              "|---|---|---|---|---|---|---|---|"]
    for variant in dict.fromkeys(r["variant"] for r in sorted(runs, key=lambda r: ORDER.index(r["variant"]))):
        rows = [r for r in runs if r["variant"] == variant]
        shown = target = ""
        if variant in OVER and (found := ratios(runs, variant)):
            middle = statistics.median(found)
            shown = f"**{middle:.3f}** ({min(found):.3f} to {max(found):.3f})"
            if wanted := TARGETS.get(variant):
                target = f"{wanted:.2f}: {'met' if middle <= wanted else 'MISSED'}"
        lines.append(
            f"| {variant} | {median_of(rows, 'median_step_s'):.4f} | {min(r['fastest_step_s'] for r in rows):.4f} "
            f"| {OVER.get(variant, '')} | {shown} | {target} | {median_of(rows, 'cpu_s'):.1f} "
            f"| {median_of(rows, 'peak_rss_bytes') / 2**20:.0f} |")
    load = max(r["load_at_start"] for r in runs)
    lines += ["", *agreement(steps),
              "* A process of `local` holds both ranks, one of any other variant a single rank.",
              f"* Greatest load average at the start of a run: {load:.2f} (about 1 to the number of cores is what "
              "the bench itself leaves behind; more means other work ran)."]
    return "\n".join(lines) + "\n"


# ---- the program -------------------------------------------------------------------------------------

ORDER = [f"{t}-{s}" for t in ("local", "mpi") for s in range(4)] + list(PEERS)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burnish", type=Path, help="the release binary")
    parser.add_argument("--python", help="a Python with torch, transformers and deepspeed; without it no peers run")
    parser.add_argument("--variants", help=f"which to run, of {','.join(ORDER)} (default: all that can run)")
    parser.add_argument("--shape", default="full", choices=SHAPES)
    parser.add_argument("--steps", type=int, help="steps of a run")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of all ranks together")
    parser.add_argument("--mpirun", default="mpirun -n 2 --bind-to none --allow-run-as-root", help="the MPI launcher")
    parser.add_argument("--extra", default="", help="options added to burnish's: --extra=--no-stage3_prefetch")
    parser.add_argument("--scratch", type=Path, default=Path("target/bench-zero"))
    parser.add_argument("--output", type=Path, help="default: benches/runs/<date>-<cpu>")
    options = parser.parse_args()
    options.mpirun, options.extra = options.mpirun.split(), options.extra.split()
    options.scratch = options.scratch.resolve()
    if options.burnish is not None:
        options.burnish = options.burnish.resolve()
        if not options.burnish.is_file():
            parser.error(f"{options.burnish} is not a file: build it with `cargo build --release`")
    if options.variants:
        options.variants = options.variants.split(",")
        if unknown := set(options.variants) - set(ORDER):
            parser.error(f"unknown variants: {', '.join(sorted(unknown))}")
    else:
        launcher = shutil.which(options.mpirun[0])
        transports = [t for t in ("local", "mpi") if options.burnish and (t == "local" or launcher)]
        options.variants = [f"{t}-{s}" for t in transports for s in range(4)]
        options.variants += [p for p in PEERS if options.python and p != "ds3-live"]
    for variant in options.variants:
        if not (options.burnish if program(variant) == "burnish" else options.python):
            parser.error(f"{variant} needs {'--burnish' if program(variant) == 'burnish' else '--python'}")
    if not options.variants:
        parser.error("nothing to run: give --burnish, --python or both")
    return options


def main():
    options = parse()
    began = time.perf_counter()
    options.scratch.mkdir(parents=True, exist_ok=True)
    job = dict(SHAPES[options.shape])
    job["steps"] = options.steps or job["steps"]
    if job["steps"] < WARMUP + 2:
        sys.exit(f"at least {WARMUP + 2} steps are needed: the first {WARMUP} do not count")
    job["model"], config = model_folder(options.scratch, options.shape)
    job |= dict(elements=elements(config), end=config["eos_token_id"], random=True)
    peers = None
    if any(program(v) == "peers" for v in options.variants):
        peers = Peers(options)
        if "deepspeed" not in peers.versions and any(v.startswith("ds") for v in options.variants):
            print("deepspeed is not installed: only DDP and FSDP2 run beside burnish", flush=True)
            options.variants = [v for v in options.variants if not v.startswith("ds")]
        peers.make(job, options.scratch)
        job["random"] = False

    runs, steps = [], []
    for repetition in range(1, options.repetitions + 1):
        for variant in options.variants if repetition % 2 else reversed(options.variants):
            mine = program(variant) == "burnish"
            result = burnish(options, job, variant) if mine else peers.train(options, job, variant)
            figures, rows = measures(result)
            which = dict(repetition=repetition, variant=variant)
            runs.append(which | figures)
            steps += [which | row for row in rows]
            print(f"{repetition} {variant:8}  step {figures['median_step_s']:.4f} s  fastest "
                  f"{figures['fastest_step_s']:.4f} s  total {figures['total_s']:.1f} s  cpu {figures['cpu_s']:.1f} s  "
                  f"peak {figures['peak_rss_bytes'] / 2**20:.0f} MiB  loss {figures['last_loss']:.4f}  "
                  f"load {figures['load_at_start']:.1f}", flush=True)

    folder = options.output or runs_folder()
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "runs.csv", runs)
    write_csv(folder / "steps.csv", steps)
    (folder / "summary.md").write_text(summary(machine(options, peers), job, runs, steps))
    print((folder / "summary.md").read_text())
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
