#!/usr/bin/env python3
"""Speed and memory of `burnish sft` beside TRL, interleaved in one session.

    sft.py --text TEXT.jsonl --burnish target/release/burnish [--models 1m,30m] [--recompute off,on]
           [--precision fp32,bf16] [--steps 1m=60,30m=12] [--repetitions 3] [--threads N] [--scratch FOLDER] [--python PYTHON]

Builds two Llamas with random weights, a byte-level BPE of each one's vocabulary trained on TEXT (JSON
lines with `text`), and packs TEXT so that every step has exactly batch x sequence tokens. Both programs
get the same options file (LoRA r 16, alpha 32, no dropout, all linear layers, AdamW; weights in float32,
`bf16` false or, TRL's default, true) and run in turn, repetition by repetition; which one goes first
alternates. Without --burnish only TRL runs.

What is measured, for both from outside and in the same way:

* step: wall time between the metrics lines of two consecutive steps (everything the trainer does: data,
  forward, backward, clipping, optimizer, logging), after WARMUP steps; the median is reported;
* tokens/s: tokens of all steady steps over their total wall time;
* first step: from the start of the process to the metrics line of step 1;
* peak memory: the greatest resident set of the process (ru_maxrss).

The loss of step 1 must agree (LoRA starts as the identity), or the two did not do the same job: to 1e-3 in
fp32, to 2e-2 where products are rounded.
Writes rows and a summary to benches/runs/<date>-<cpu>/. Run it on a quiet machine: the load average at
the start of every run is in the rows.
"""

import argparse
import csv
import datetime
import json
import multiprocessing
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

BENCHES = Path(__file__).resolve().parent
WARMUP = 3
POLL_S = 0.002

PRECISIONS = ("fp32", "bf16")
SAME_JOB = dict(fp32=1e-3, bf16=2e-2)

MODELS = {
    "1m": dict(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
               intermediate_size=344, vocab_size=1024, sequence=256, batch=8, steps=60),
    "30m": dict(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
                intermediate_size=1408, vocab_size=4096, sequence=512, batch=4, steps=12),
}
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VERSIONS = ("torch", "transformers", "peft", "trl", "datasets")


# ---- what is trained ---------------------------------------------------------------------------------

def build(scratch, name, text):
    """The model folder and the data file, made once in the scratch folder."""
    folder, data = scratch / f"model-{name}", scratch / f"data-{name}.jsonl"
    shape = MODELS[name]
    if not (folder / "model.safetensors").exists():
        import torch
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        bpe.train_from_iterator(text, trainers.BpeTrainer(
            vocab_size=shape["vocab_size"], show_progress=False,
            special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIALS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        if bpe.get_vocab_size() != shape["vocab_size"]:
            sys.exit(f"the text gives {bpe.get_vocab_size()} tokens, {shape['vocab_size']} are needed: give more text")
        torch.manual_seed(0)
        kept = {k: v for k, v in shape.items() if k not in ("sequence", "batch", "steps")}
        LlamaForCausalLM(LlamaConfig(
            **kept, max_position_embeddings=1024, bos_token_id=None, eos_token_id=2, pad_token_id=0,
        )).save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=bpe, eos_token=SPECIALS[2], pad_token=SPECIALS[0]).save_pretrained(folder)
    if not data.exists():
        data.write_text("".join(json.dumps({"text": row}) + "\n" for row in text))
    return folder, data


def check_length(folder, text, name, steps):
    """Every step must find full sequences without starting the data anew."""
    from tokenizers import Tokenizer

    bpe = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = sum(len(e.ids) + 1 for e in bpe.encode_batch(text))
    needed = steps * MODELS[name]["sequence"] * MODELS[name]["batch"]
    if tokens < needed:
        sys.exit(f"{name}: the text has {tokens} tokens, {steps} steps need {needed}: give more text or fewer steps")


def write_options(path, model, data, output, name, recompute, steps, precision):
    """The options file both programs read (JSON is YAML)."""
    path.write_text(json.dumps({
        "model_name_or_path": str(model), "dataset_name": str(data), "output_dir": str(output),
        "max_length": MODELS[name]["sequence"], "packing": True, "packing_strategy": "wrapped",
        "per_device_train_batch_size": MODELS[name]["batch"], "gradient_checkpointing": recompute,
        "learning_rate": 2e-4, "max_steps": steps, "logging_steps": 1, "save_strategy": "no",
        "bf16": precision == "bf16", "use_cpu": True,
        "train_sampling_strategy": "sequential", "seed": 42,
        "use_peft": True, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.0,
        "lora_target_modules": "all-linear"}, indent=1) + "\n")


# ---- one run -----------------------------------------------------------------------------------------

class Watch(threading.Thread):
    """Notes when each line of a growing file is complete."""

    def __init__(self, path, start):
        super().__init__(daemon=True)
        self.path, self.start_time, self.seen, self.stop = path, start, [], threading.Event()

    def run(self):
        position = 0
        while True:
            last = self.stop.is_set()
            try:
                grown = self.path.stat().st_size > position
            except FileNotFoundError:
                grown = False
            if grown:
                now = time.perf_counter() - self.start_time
                with self.path.open() as file:
                    file.seek(position)
                    text = file.read()
                for line in text.splitlines(keepends=True):
                    if line.endswith("\n"):
                        position += len(line.encode())
                        row = json.loads(line)
                        if "loss" in row and "step" in row:
                            self.seen.append((now, row))
            if last:
                return
            self.stop.wait(POLL_S)


def run(command, output, log, environment):
    """Runs one program; its steps with their times, its total time and its peak memory."""
    load = os.getloadavg()[0]
    start = time.perf_counter()
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
        watch = Watch(output / "metrics.jsonl", start)
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)
    total = time.perf_counter() - start
    watch.stop.set()
    watch.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        tail = log.read_text(errors="replace")[-3000:]
        sys.exit(f"{command[0]} ended with {process.returncode}:\n{tail}")
    return dict(seen=watch.seen, total_s=total, cpu_s=usage.ru_utime + usage.ru_stime,
                peak_rss_bytes=usage.ru_maxrss * 1024, load=load)


def measures(result, tokens_per_step, steps):
    """The figures of one run and its rows per step."""
    seen = result["seen"]
    if [row["step"] for _, row in seen] != list(range(1, steps + 1)):
        sys.exit(f"expected metrics of steps 1 to {steps}, got {[row['step'] for _, row in seen]}")
    times = [when for when, _ in seen]
    gaps = [b - a for a, b in zip(times, times[1:])]
    steady = gaps[WARMUP - 1:]
    figures = dict(
        median_step_s=statistics.median(steady), tokens_per_s=tokens_per_step * len(steady) / sum(steady),
        first_step_s=times[0], total_s=result["total_s"], cpu_s=result["cpu_s"], peak_rss_bytes=result["peak_rss_bytes"],
        load_at_start=result["load"], first_loss=seen[0][1]["loss"], last_loss=seen[-1][1]["loss"])
    rows = [dict(step=row["step"], logged_at_s=when, step_s=gap, reported_step_time_s=row.get("step_time"),
                 loss=row["loss"]) for (when, row), gap in zip(seen, [None] + gaps)]
    return figures, rows


# ---- the report --------------------------------------------------------------------------------------

def cpu_name():
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=BENCHES).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine(options):
    from importlib.metadata import version

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    changed = " (with uncommitted changes)" if output_of("git", "status", "--porcelain", "-uno") else ""
    return {
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
        "cpu": f"{cpu_name()}, {os.cpu_count()} cores", "flags": flags(), "memory": f"{memory:.1f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "threads": str(options.threads or "each program's default"), "python": platform.python_version(),
        **{package: version(package) for package in VERSIONS},
        "burnish": output_of(str(options.burnish), "--version") if options.burnish else "not run",
        "commit": output_of("git", "rev-parse", "--short=12", "HEAD") + changed,
    }


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()})


def median_of(runs, key):
    return statistics.median(r[key] for r in runs)


def flags():
    """What of the processor's instructions decides the speed of products."""
    try:
        known = set(re.search(r"^flags\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M).group(1).split())
    except (OSError, AttributeError):
        return "unknown"
    asked = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "amx_bf16", "amx_int8")
    return " ".join(flag for flag in asked if flag in known) or "none of AVX2, AVX-512, AMX"


def summary(facts, runs, repetitions):
    lines = ["# SFT with LoRA, beside TRL", ""]
    lines += [f"* {key}: {value}" for key, value in facts.items()]
    lines += ["", f"Medians of {repetitions} interleaved repetition(s); LoRA r 16 on every linear layer, weights in float32; "
              "bf16 is `bf16: true`, TRL's default. The ratios are tokens/s over TRL's in that precision (range: over the "
              "repetitions).", "",
              "| model | recompute | program | precision | step, s | tokens/s | first step, s | peak memory, MiB "
              "| of TRL bf16 | of TRL fp32 |", "|---|---|---|---|---|---|---|---|---|---|"]
    notes = []
    for name, recompute in dict.fromkeys((r["model"], r["recompute"]) for r in runs):
        by = {}
        for run in runs:
            if (run["model"], run["recompute"]) == (name, recompute):
                by.setdefault((run["program"], run["precision"]), []).append(run)

        def ratio(rows, precision):
            theirs = by.get(("trl", precision))
            if not theirs:
                return ""
            pairs = [b["tokens_per_s"] / t["tokens_per_s"] for b, t in zip(rows, theirs)]
            whole = median_of(rows, "tokens_per_s") / median_of(theirs, "tokens_per_s")
            return f"{whole:.2f} ({min(pairs):.2f} to {max(pairs):.2f})"

        for (program, precision), rows in sorted(by.items(), key=lambda item: item[0][::-1]):
            lines.append(
                f"| {name} | {recompute} | {program} | {precision} | {median_of(rows, 'median_step_s'):.4f} "
                f"| {median_of(rows, 'tokens_per_s'):.0f} | {median_of(rows, 'first_step_s'):.2f} "
                f"| {median_of(rows, 'peak_rss_bytes') / 2**20:.0f} | {ratio(rows, 'bf16')} | {ratio(rows, 'fp32')} |")
        for precision in PRECISIONS:
            theirs, ours = by.get(("trl", precision)), by.get(("burnish", precision))
            if not theirs or not ours:
                continue
            apart = max(abs(b["first_loss"] - t["first_loss"]) for b, t in zip(ours, theirs))
            verdict = "the same job" if apart < SAME_JOB[precision] else "NOT THE SAME JOB"
            memory = median_of(ours, "peak_rss_bytes") / median_of(theirs, "peak_rss_bytes")
            notes.append(f"* {name}, recompute {recompute}, {precision}: first losses differ by {apart:.1e} ({verdict}); "
                         f"last losses {theirs[-1]['last_loss']:.4f} (trl), {ours[-1]['last_loss']:.4f} "
                         f"(burnish); peak memory {memory:.2f} of TRL's.")
    load = max(r["load_at_start"] for r in runs)
    notes.append(f"* Greatest load average at the start of a run: {load:.2f} (about 1 to the number of cores is "
                 "what the bench itself leaves behind; more means other work ran).")
    return "\n".join(lines + [""] + notes) + "\n"


def runs_folder():
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)|processor|cpu|@.*", "", cpu_name().lower())).strip("-")
    stem = f"{datetime.date.today().isoformat()}-{slug or 'cpu'}"
    for number in range(1, 1000):
        folder = BENCHES / "runs" / (stem if number == 1 else f"{stem}-{number}")
        if not folder.exists():
            return folder
    sys.exit(f"too many runs named {stem}")


# ---- the program -------------------------------------------------------------------------------------

def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="JSON lines with a `text` field")
    parser.add_argument("--burnish", type=Path, help="the release binary")
    parser.add_argument("--models", default="1m,30m")
    parser.add_argument("--recompute", default="off,on")
    parser.add_argument("--precision", default="fp32,bf16", help="`bf16: false`, `bf16: true`, or both")
    parser.add_argument("--steps", default="", help="steps per model, such as 1m=60,30m=12")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, help="threads of both programs (default: their own choice)")
    parser.add_argument("--scratch", type=Path, default=Path("target/bench-sft"))
    parser.add_argument("--python", default=sys.executable, help="the Python that has TRL")
    parser.add_argument("--output", type=Path, help="default: benches/runs/<date>-<cpu>")
    options = parser.parse_args()
    if options.burnish is not None:
        options.burnish = options.burnish.resolve()
        if not options.burnish.is_file():
            parser.error(f"{options.burnish} is not a file: build it with `cargo build --release`")
    options.models = options.models.split(",")
    options.recompute = options.recompute.split(",")
    options.precision = options.precision.split(",")
    if unknown := set(options.precision) - set(PRECISIONS):
        parser.error(f"unknown precision: {', '.join(sorted(unknown))}; there are {', '.join(PRECISIONS)}")
    if unknown := (set(options.models) - set(MODELS)) | (set(options.recompute) - {"on", "off"}):
        parser.error(f"unknown model or recompute setting: {', '.join(sorted(unknown))}")
    options.steps = {n: MODELS[n]["steps"] for n in MODELS} | {
        n: int(count) for n, count in (part.split("=") for part in options.steps.split(",") if part)}
    if min(options.steps[n] for n in options.models) < WARMUP + 2:
        parser.error(f"at least {WARMUP + 2} steps are needed: the first {WARMUP} do not count")
    return options


def main():
    options = parse()
    scratch = options.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    text = [json.loads(line)["text"] for line in options.text.read_text().splitlines() if line.strip()]
    environment = dict(os.environ, HF_HOME=str(scratch / "cache"), HF_HUB_OFFLINE="1")
    if options.threads:
        environment |= {k: str(options.threads) for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")}
    folders = {}
    for name in options.models:
        # A child begins with its parent's peak: PyTorch is another process's.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
            folders[name] = apart.submit(build, scratch, name, text).result()
        check_length(folders[name][0], text, name, options.steps[name])

    programs = {"trl": [options.python, str(BENCHES / "trl_sft.py")]}
    if options.burnish:
        programs["burnish"] = [str(options.burnish), "sft"]
    runs, steps = [], []
    for repetition in range(1, options.repetitions + 1):
        order = list(programs) if repetition % 2 else list(reversed(programs))
        for name in options.models:
            tokens = MODELS[name]["sequence"] * MODELS[name]["batch"]
            cases = [(recompute, precision, program) for recompute in options.recompute
                     for precision in options.precision for program in order]
            for recompute, precision, program in cases:
                output = scratch / f"out-{program}-{name}-{recompute}-{precision}"
                shutil.rmtree(output, ignore_errors=True)
                config = scratch / f"{output.name}.yaml"
                write_options(config, *folders[name], output, name, recompute == "on", options.steps[name], precision)
                result = run([*programs[program], "--config", str(config)], output,
                             scratch / f"{output.name}.log", environment)
                figures, rows = measures(result, tokens, options.steps[name])
                which = dict(repetition=repetition, program=program, precision=precision, model=name,
                             recompute=recompute)
                runs.append(which | figures)
                steps += [which | row for row in rows]
                print(f"{repetition} {program:8} {precision} {name:4} recompute {recompute:3}  "
                      f"step {figures['median_step_s']:.4f} s  {figures['tokens_per_s']:7.0f} tokens/s  "
                      f"first {figures['first_step_s']:.2f} s  peak {figures['peak_rss_bytes'] / 2**20:.0f} MiB  "
                      f"load {figures['load_at_start']:.1f}", flush=True)

    folder = options.output or runs_folder()
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "runs.csv", runs)
    write_csv(folder / "steps.csv", steps)
    (folder / "summary.md").write_text(summary(machine(options), runs, options.repetitions))
    print((folder / "summary.md").read_text())


if __name__ == "__main__":
    main()
