#!/usr/bin/env python3
"""Muon beside AdamW: steps to the same loss, and what the optimizer costs in a step.

    python3 benches/muon.py --burnish target/release/burnish --text TEXT.jsonl

TEXT has JSON lines with `text`; about a megabyte is enough. Needs nothing but the repository, the binary and the
text. `--parts loss` and `--parts share` run one half; rows are added to OUTPUT/muon.jsonl as they come, and
`--parts table` prints the tables of the rows that are there. Rows that are there are not measured again.

* loss: a Llama of 1.8 M parameters (the shape and the tokenizer of examples/base) is trained from the same random
  weights on the same batches, with AdamW and with Muon at each of the learning rates: one number for both halves of
  Muon, so that the two have as many trials. Cosine schedule after a short warm-up, clipping at norm 1, no weight
  decay, float32. One row of the text in TWENTY is held out; its loss is taken every EVAL steps. Reported: each
  run's last loss, and the first evaluation at which a run is at or below the best loss that any AdamW run ended with.

* share: seconds of everything that happens once a step (gradient norm, clipping, optimizer, logging), over the
  seconds of forward and backward of one batch. A step of k micro-batches takes `once + k each`, so two runs that
  differ in accumulation alone give both. `once` does not depend on the tokens and is measured with small
  micro-batches, where it is not lost beside them; `each` is of a whole batch. Micro-batches after the first also add
  to its gradients, so `once` is low by as much; a step of one small micro-batch is more than it. One thread, and the seconds that it
  ran (Linux): what else runs on the machine then hardly matters. Medians over the repetitions.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from sft import BENCHES, cpu_name, output_of, run, runs_folder

BASE = BENCHES.parent / "examples" / "base"
TWENTY = 20
SEQUENCE = 256
ROWS = 16
EVAL = 20
RATES = "1e-3,3e-3,1e-2"
SHAPES = {
    "1.8M": dict(rows=ROWS, sequence=SEQUENCE, steps=23),
    "28M": dict(rows=4, sequence=512, steps=9, hidden_size=512, num_hidden_layers=8, num_attention_heads=8,
                num_key_value_heads=4, intermediate_size=1408, vocab_size=4096, tie_word_embeddings=False),
}
# What each kind of run adds to the options.
OPTIMIZERS = {
    "adamw": dict(optim="adamw"),
    "muon": dict(optim="muon"),
    # The AdamW half at the rate that is best for AdamW alone: what the matrices alone bring.
    "muon_adam_1e-3": dict(optim="muon", adam_lr=1e-3),
    "normuon": dict(optim="muon", muon_variant="normuon"),
    "adamuon": dict(optim="muon", muon_variant="adamuon"),
    "polar_express": dict(optim="muon", muon_ns_coefficients="polar_express"),
}
# Of `share`: rows and tokens of a small micro-batch, and the accumulations that are compared.
SMALL = dict(rows=1, sequence=32)
ACCUMULATIONS = (1, 3)
SHARED = ("adamw", "muon", "normuon")


# ---- what is trained ---------------------------------------------------------------------------------

def model_folder(scratch, name):
    """The folder with the shape and the tokenizer; weights are drawn by burnish."""
    folder, base = scratch / f"model-{name}", json.loads((BASE / "config.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(BASE / file, folder)
    shape = {k: v for k, v in SHAPES[name].items() if k not in ("rows", "sequence", "steps")}
    if shape:
        shape["head_dim"] = shape["hidden_size"] // shape["num_attention_heads"]
    (folder / "config.json").write_text(json.dumps(base | shape | dict(dtype="float32"), indent=1) + "\n")
    return folder


def split(scratch, text):
    """The rows that are trained on, and every twentieth."""
    rows = [line for line in text.read_text().splitlines() if line.strip()]
    files = scratch / "train.jsonl", scratch / "held-out.jsonl"
    for file, kept in zip(files, ([r for i, r in enumerate(rows) if i % TWENTY], rows[::TWENTY])):
        file.write_text("".join(row + "\n" for row in kept))
    return files


def train(options, name, label, optimizer, start=run, **more):
    """One run; the rows of its metrics, and what `start` says of it."""
    output, config = options.scratch / f"out-{label}", options.scratch / f"{label}.json"
    shutil.rmtree(output, ignore_errors=True)
    config.write_text(json.dumps({
        "model_name_or_path": str(options.scratch / f"model-{name}"), "output_dir": str(output),
        "dataset_name": str(options.files[0]), "random_weights": True, "packing": True,
        "packing_strategy": "wrapped", "gradient_checkpointing": False, "weight_decay": 0.0, "save_strategy": "no",
        "report_to": "none", "disable_tqdm": True, "threads": options.threads, "seed": 1, "bf16": False, **OPTIMIZERS[optimizer],
        **more}, indent=1) + "\n")
    result = start([str(options.burnish), "sft", "--config", str(config)], output, options.scratch / f"{label}.log",
                   dict(os.environ, HF_HUB_OFFLINE="1"))
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(output, ignore_errors=True)
    return lines, result


# ---- loss --------------------------------------------------------------------------------------------

def loss_rows(options):
    """Trains with every optimizer at every rate."""
    for seed in options.seeds:
        for optimizer in options.optimizers:
            for rate in options.rates:
                key = dict(part="loss", optimizer=optimizer, rate=rate, steps=options.steps, seed=seed)
                if options.has(key):
                    continue
                lines, result = train(
                    options, "1.8M", f"loss-{optimizer}-{rate}-{seed}", optimizer, learning_rate=rate, seed=seed,
                    max_length=SEQUENCE, per_device_train_batch_size=ROWS, max_steps=options.steps,
                    lr_scheduler_type="cosine", warmup_steps=20, logging_steps=EVAL, eval_strategy="steps",
                    eval_steps=EVAL, eval_dataset_name=str(options.files[1]), adam_beta2=0.95)
                evaluations = [[row["step"], row["eval_loss"]] for row in lines if "eval_loss" in row]
                trained = [[row["step"], row["loss"]] for row in lines if "loss" in row]
                steps = statistics.median(row["step_time"] for row in lines if "step_time" in row)
                options.add(key | dict(evaluations=evaluations, train=trained, median_step_s=round(steps, 5),
                                       load=result["load"]))
                print(f"{optimizer:14} {rate:g} seed {seed}  {evaluations[-1][1]:.4f}", flush=True)


def loss_table(rows):
    """The table of one number of steps."""
    last = {(r["seed"], r["optimizer"], r["rate"]): r["evaluations"][-1][1] for r in rows}
    seeds = sorted({r["seed"] for r in rows})
    best = {s: min(v for (seed, o, _), v in last.items() if (seed, o) == (s, "adamw")) for s in seeds}
    lines = [f"Loss to reach (the best that AdamW ends with): "
             f"{', '.join(f'{best[s]:.4f}' for s in seeds)} (seed {', '.join(map(str, seeds))}).", "",
             "| optimizer | rate | loss on held-out text at the end | steps to AdamW's best | of AdamW's |",
             "|---|---|---|---|---|"]
    for optimizer in dict.fromkeys(r["optimizer"] for r in rows):
        for rate in sorted({r["rate"] for r in rows if r["optimizer"] == optimizer}):
            found = sorted((r for r in rows if (r["optimizer"], r["rate"]) == (optimizer, rate)),
                           key=lambda r: r["seed"])
            reached = [next((s for s, v in r["evaluations"] if v <= best[r["seed"]]), None) for r in found]
            share = [f"{s / r['steps']:.2f}" if s else "" for s, r in zip(reached, found)]
            ends = ", ".join(f"{r['evaluations'][-1][1]:.4f}" for r in found)
            lines.append(
                f"| {optimizer} | {rate:g} | {ends} "
                f"| {', '.join(str(s) if s else 'never' for s in reached)} | {', '.join(s for s in share if s)} |")
    return lines


# ---- share -------------------------------------------------------------------------------------------

def running(process):
    """Seconds that the threads of a process have run."""
    total = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass
    return total * 1e-9


def counted(command, output, log, environment):
    """Runs one program; the seconds it had run when each line of its metrics was there."""
    metrics, seen, lines = output / "metrics.jsonl", [], 0
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
        while process.poll() is None:
            now = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
            if now > lines:
                try:
                    seen.append((now, running(process.pid)))
                except FileNotFoundError:
                    break
                lines = now
            time.sleep(0.001)
        if process.wait():
            sys.exit(f"{command[0]} ended with {process.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
    return seen


def share_rows(options):
    """Steps of a few micro-batches, small and whole."""
    common = dict(learning_rate=1e-4, lr_scheduler_type="constant", logging_steps=1, threads=1, start=counted)
    for repetition in range(1, options.repetitions + 1):
        for name in options.shapes:
            whole = {k: SHAPES[name][k] for k in ("rows", "sequence")}
            # Forward and backward are the same with every optimizer.
            jobs = [("small", SMALL, k, o) for o in SHARED for k in ACCUMULATIONS] + [("whole", whole, 1, "adamw")]
            for kind, batch, accumulation, optimizer in jobs:
                key = dict(part="share", repetition=repetition, shape=name, optimizer=optimizer, batch=kind,
                           accumulation=accumulation)
                if options.has(key):
                    continue
                _, seen = train(
                    options, name, f"share-{name}", optimizer, max_length=batch["sequence"],
                    per_device_train_batch_size=batch["rows"], gradient_accumulation_steps=accumulation,
                    max_steps=SHAPES[name]["steps"], **common)
                # After two steps of warm-up; before the last, after which the model is written.
                (first, start), (last, end) = seen[1], seen[-2]
                options.add(key | dict(tokens=batch["rows"] * batch["sequence"], steps=last - first,
                                       step_s=round((end - start) / (last - first), 6)))
                print(f"{repetition} {name} {kind} x{accumulation} {optimizer:8} "
                      f"{(end - start) / (last - first) * 1e3:.2f} ms", flush=True)


def share_table(rows):
    """Once a step, over forward and backward."""
    def of(shape, optimizer, batch, accumulation):
        return {r["repetition"]: r["step_s"] for r in rows if (r["shape"], r["optimizer"], r["batch"],
                r["accumulation"]) == (shape, optimizer, batch, accumulation)}

    few, many = ACCUMULATIONS
    lines = ["| model | tokens a step | forward and backward, s | optimizer | once a step, s | share |",
             "|---|---|---|---|---|---|"]
    for shape in dict.fromkeys(r["shape"] for r in rows):
        once = {}
        for optimizer in dict.fromkeys(r["optimizer"] for r in rows if r["shape"] == shape):
            t1, t2 = (of(shape, optimizer, "small", k) for k in (few, many))
            once[optimizer] = statistics.median(
                (many * t1[n] - few * t2[n]) / (many - few) for n in t1.keys() & t2.keys())
        each = statistics.median(of(shape, "adamw", "whole", 1).values()) - once["adamw"]
        tokens = next(r["tokens"] for r in rows if (r["shape"], r["batch"]) == (shape, "whole"))
        for optimizer, low in once.items():
            low, high = max(low, 0.0), statistics.median(of(shape, optimizer, "small", few).values())
            lines.append(f"| {shape} | {tokens} | {each:.2f} | {optimizer} | {low:.3f} to {high:.3f} "
                         f"| {100 * low / each:.0f} to {100 * high / each:.0f} % |")
    return lines


# ---- the program -------------------------------------------------------------------------------------

def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burnish", type=Path, help="the release binary")
    parser.add_argument("--text", type=Path, help="JSON lines with a `text` field")
    parser.add_argument("--parts", default="loss,share,table")
    parser.add_argument("--optimizers", default="adamw,muon", help=f"of {','.join(OPTIMIZERS)}")
    parser.add_argument("--rates", default=RATES)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--repetitions", type=int, default=3, help="of `share`")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--scratch", type=Path, default=Path("target/bench-muon"))
    parser.add_argument("--output", type=Path, help="default: benches/runs/<date>-<cpu>")
    options = parser.parse_args()
    for name in ("parts", "optimizers", "shapes"):
        setattr(options, name, getattr(options, name).split(","))
    options.rates = [float(rate) for rate in options.rates.split(",")]
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    if unknown := (set(options.optimizers) - set(OPTIMIZERS)) | (set(options.shapes) - set(SHAPES)):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    measured = {"loss", "share"} & set(options.parts)
    if measured and not (options.burnish and options.text):
        parser.error("--burnish and --text are needed")
    if not measured and not options.output:
        parser.error("--output is needed: the folder with muon.jsonl")
    return options


def main():
    options = parse()
    folder = options.output or runs_folder()
    file = folder / "muon.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def add(row):
        rows.append(row)
        with file.open("a") as sink:
            sink.write(json.dumps(row) + "\n")

    options.add = add
    options.has = lambda key: any(all(row.get(k) == v for k, v in key.items()) for row in rows)
    if {"loss", "share"} & set(options.parts):
        options.burnish, options.scratch = options.burnish.resolve(), options.scratch.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        options.scratch.mkdir(parents=True, exist_ok=True)
        options.files = split(options.scratch, options.text)
        for name in SHAPES:
            model_folder(options.scratch, name)
        add(dict(part="machine", cpu=cpu_name(), threads=options.threads,
                 burnish=output_of(str(options.burnish), "--version"),
                 commit=output_of("git", "rev-parse", "--short=12", "HEAD")))
    if "loss" in options.parts:
        loss_rows(options)
    if "share" in options.parts:
        share_rows(options)
    if "table" in options.parts:
        loss = [row for row in rows if row["part"] == "loss"]
        for steps in sorted({row["steps"] for row in loss}):
            print(f"\n{steps} steps\n")
            print("\n".join(loss_table([row for row in loss if row["steps"] == steps])))
        if share := [row for row in rows if row["part"] == "share"]:
            print()
            print("\n".join(share_table(share)))


if __name__ == "__main__":
    sys.exit(main())
