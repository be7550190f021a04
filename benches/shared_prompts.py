#!/usr/bin/env python3
"""Times DPO steps of a program that computes a pair's prompt once, and of one that computes it for each answer.

Usage: shared_prompts.py --once PROGRAM --twice PROGRAM [--repetitions 3] [--prompt 700] [--answer 70] OUT.jsonl

Programs are `burnish` binaries; repetitions are interleaved. A row has the medians over a run's steps, the CPU seconds of
the whole run and the loss of its last step. The model is examples/base with as many positions as it needs; pairs are
words of examples/data/pretrain.jsonl.
"""

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def pairs(path, prompt, answer, rows):
    words = []
    for line in (EXAMPLES / "data/pretrain.jsonl").read_text().splitlines():
        text = json.loads(line).get("text")
        words += text.split() if isinstance(text, str) else []
    draw = random.Random(0)

    def take(n):
        start = draw.randrange(len(words) - n)
        return " ".join(words[start:start + n])

    made = [dict(prompt=take(prompt), chosen=" " + take(answer), rejected=" " + take(answer)) for _ in range(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))


def run(program, scratch, steps, rows, recompute):
    out = scratch / "out"
    shutil.rmtree(out, ignore_errors=True)
    words = ["dpo", f"--model_name_or_path={scratch / 'base'}", f"--dataset_name={scratch / 'rows.jsonl'}",
             f"--output_dir={out}", "--use_peft", "--lora_target_modules=all-linear", "--max_length=2048",
             f"--per_device_train_batch_size={rows}", f"--max_steps={steps}", "--logging_steps=1", "--save_strategy=no",
             "--disable_tqdm", "--report_to=none", "--learning_rate=1e-4", "--bf16=false",
             "--gradient_checkpointing" if recompute else "--no_gradient_checkpointing"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    return dict(step_time=statistics.median(line["step_time"] for line in steps),
                cpu_s=round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
                num_tokens=steps[-1]["num_tokens"], loss=steps[-1]["loss"],
                peak_memory_bytes=max(line["peak_memory_bytes"] for line in lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", required=True)
    parser.add_argument("--twice", required=True)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=700)
    parser.add_argument("--answer", type=int, default=70)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, given.out.open("a") as out:
        scratch = Path(scratch)
        shutil.copytree(EXAMPLES / "base", scratch / "base")
        config = json.loads((scratch / "base/config.json").read_text())
        config["max_position_embeddings"] = 2048
        (scratch / "base/config.json").write_text(json.dumps(config))
        pairs(scratch / "rows.jsonl", given.prompt, given.answer, given.steps * given.rows)
        for repetition in range(given.repetitions):
            for recompute in (True, False):
                for layout in ("once", "twice"):
                    row = dict(prompt=layout, recompute=recompute, prompt_words=given.prompt,
                               answer_words=given.answer, rows=given.rows, repetition=repetition)
                    row |= run(getattr(given, layout), scratch, given.steps, given.rows, recompute)
                    row["load"] = os.getloadavg()[0]
                    out.write(json.dumps(row) + "\n")
                    print(row, flush=True)


if __name__ == "__main__":
    main()
