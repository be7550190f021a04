#!/usr/bin/env python3
"""Speed of text generation with a cache of keys and values beside Transformers, interleaved in one session.

    generate.py --burnish target/release/examples/generation_speed [--model 30m] [--batches 1,16] [--prompt 32]
                [--new 96] [--repetitions 7] [--group 0] [--queue 0] [--threads 2] [--scratch FOLDER]
                [--quantize target/release/burnish] [--output ROWS.jsonl]

`cargo build --release -p burnish-models --example generation_speed` makes the program. The model is a Llama of 30M
parameters with random weights, in float32 and in bfloat16, or one of real_sizes.py in bfloat16; Transformers runs it in
float32, as the measure of all, and in bfloat16 for comparison. Burnish multiplies fp32, and the weights
in bfloat16 also with products of bfloat16, and as rollouts with rollout_quantization int8. With --quantize, the program that does it, it also generates from the same
weights in NF4 and int8. All programs stay in memory and run in turn, repetition by repetition, on the same
prompts; every sequence gets all of its new tokens, the likeliest ones. The first repetition does not count.

* tokens/s: new tokens of all sequences over the time from the prompts to the last token;
* first, s: until every sequence has its first token: what prompts cost.

With --group N the sequences also come in groups of N with one prompt each, which is then computed once.
With --queue N burnish also takes N prompts of very different lengths, whose completions are (up to --prompt and --new
tokens, mean a half and a third), through the last of --batches places: as one queue, and as calls of so many each.
Rows go to --output (JSON lines), a summary to standard output.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import real_sizes

SHAPE = dict(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
             intermediate_size=1408, vocab_size=4096, max_position_embeddings=1024)


def prompts(sequences, length, group, vocab):
    return [[((s // group) * 7919 + i * 31 + 5) % vocab for i in range(length)] for s in range(sequences)]


def build(scratch, model):
    """Folders by what they hold."""
    if model in real_sizes.SHAPES:
        return dict(bfloat16=real_sizes.build(scratch, model))
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folders = {}
    for dtype in ("float32", "bfloat16"):
        folders[dtype] = scratch / f"model-30m-{dtype}"
        if not (folders[dtype] / "model.safetensors").exists():
            torch.manual_seed(0)
            model = LlamaForCausalLM(LlamaConfig(**SHAPE, bos_token_id=None, eos_token_id=None, pad_token_id=0))
            model.to(getattr(torch, dtype)).save_pretrained(folders[dtype])
    return folders


def quantize(program, folders):
    """Adds the weights in few bits."""
    for name, option in dict(nf4="--load_in_4bit", int8="--load_in_8bit").items():
        folders[name] = folders["bfloat16"].with_name(f"{folders['bfloat16'].name}-{name}")
        if not folders[name].exists():
            subprocess.run([program, "quantize", "--model_name_or_path", folders["bfloat16"], "--output_dir", folders[name],
                            option, "true"], check=True, stdout=subprocess.DEVNULL)


class Transformers:
    def __init__(self, folder, dtype, threads):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def run(self, sequences, length, new, group):
        torch = self.torch
        ids = torch.tensor(prompts(sequences, length, group, self.model.config.vocab_size))
        calls = []
        hook = self.model.register_forward_hook(lambda *_: calls.append(time.perf_counter()))
        start = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new,
                                      min_new_tokens=new, do_sample=False, eos_token_id=None)
        total = time.perf_counter() - start
        hook.remove()
        assert out.shape == (sequences, length + new)
        return dict(tokens=sequences * new, first_s=calls[0] - start, total_s=total, last=out[:, -1].tolist())


class Burnish:
    def __init__(self, program, folder, threads, *more):
        environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
        self.process = subprocess.Popen([program, folder, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)

    def run(self, *numbers):
        self.process.stdin.write(" ".join(map(str, numbers)) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burnish", required=True, action="append", help="NAME=PROGRAM to compare several")
    parser.add_argument("--model", default="30m", choices=["30m", *real_sizes.SHAPES])
    parser.add_argument("--quantize", help="the release binary")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new", type=int, default=96)
    parser.add_argument("--group", type=int, default=0)
    parser.add_argument("--queue", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--scratch", type=Path, default=Path("target/bench-generate"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    scratch = options.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    folders = build(scratch, options.model)
    programs = {f"transformers {d}": Transformers(folders.get(d, folders["bfloat16"]), d, options.threads)
                for d in ("float32", "bfloat16")}
    if options.quantize:
        quantize(options.quantize, folders)
    for given in options.burnish:
        name, _, program = given.rpartition("=")
        for dtype in folders:
            programs[f"{name or 'burnish'} {dtype}"] = Burnish(program, folders[dtype], options.threads)
        programs[f"{name or 'burnish'}, bf16 products, bfloat16"] = Burnish(
            program, folders["bfloat16"], options.threads, "bf16")
        programs[f"{name or 'burnish'}, int8 matrices and products, bfloat16"] = Burnish(
            program, folders["bfloat16"], options.threads, "int8")

    jobs = []
    for batch in map(int, options.batches.split(",")):
        jobs.append((batch, 1))
        if options.group > 1 and batch % options.group == 0:
            jobs.append((batch, options.group))
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    facts = dict(model=options.model, threads=options.threads, python=platform.python_version(), commit=commit)
    rows = []

    def keep(figures, **row):
        rows.append(row | dict(prompt=options.prompt, new=options.new,
                               tokens_per_s=round(figures["tokens"] / figures["total_s"], 2),
                               total_s=round(figures["total_s"], 5)))
        if options.output:
            with options.output.open("a") as file:
                file.write(json.dumps(facts | rows[-1]) + "\n")

    for repetition in range(options.repetitions + 1):
        order = list(programs) if repetition % 2 else list(reversed(programs))
        for batch, group in jobs:
            for name in order:
                load = os.getloadavg()[0]
                figures = programs[name].run(batch, options.prompt, options.new, group)
                keep(figures, repetition=repetition, program=name, batch=batch, group=group,
                     first_s=round(figures["first_s"], 5), load=load, last=figures["last"])
        for calls, name in [(calls, name) for name in order for calls in (0, 1) if options.queue]:
            if not isinstance(programs[name], Burnish):
                continue
            load, places = os.getloadavg()[0], jobs[-1][0]
            figures = programs[name].run(options.queue, options.prompt, options.new, 1, places, calls)
            keep(figures, repetition=repetition, program=name, queue=options.queue, places=places, calls=calls,
                 tokens=figures["tokens"], load=load)
    counted = [r for r in rows if r["repetition"] > 0]
    print("| batch | group | program | tokens/s | first, s | ratio (median of pairs) | tokens as Transformers |")
    print("|---|---|---|---|---|---|---|")
    for batch, group in jobs:
        of = {n: [r for r in counted if (r["program"], r.get("batch"), r.get("group")) == (n, batch, group)]
              for n in programs}
        base = of["transformers float32"]
        for name, own in of.items():
            pairs = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(own, base)]
            same = sum(x == y for x, y in zip(own[0]["last"], of.get(f"transformers {name.split()[-1]}", base)[0]["last"]))
            print(f"| {batch} | {group} | {name} | {statistics.median(r['tokens_per_s'] for r in own):.0f} "
                  f"| {statistics.median(r['first_s'] for r in own):.4f} "
                  f"| {statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f}) | {same} of {batch} |")
    for name in programs if options.queue else ():
        queue, calls = ([r for r in counted if r["program"] == name and r.get("calls") == c] for c in (0, 1))
        if queue:
            pairs = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(queue, calls)]
            medians = [statistics.median(r["tokens_per_s"] for r in r) for r in (queue, calls)]
            print(f"{name}: a queue of {options.queue} {medians[0]:.0f} tokens/s, in calls {medians[1]:.0f}, "
                  f"ratio {statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})")
    print(f"greatest load average: {max(r['load'] for r in counted):.1f}", file=sys.stderr)


main()
