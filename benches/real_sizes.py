#!/usr/bin/env python3
"""SFT with LoRA on models of real sizes with random weights: memory, time per token, per cent of peak, start-up.

    real_sizes.py --burnish target/release/burnish [--models qwen3-0.6b,llama-3.2-1b,llama-3-8b] [--jobs 1x1024,4x512,1x4096]
                  [--precision bf16,fp32] [--steps 4] [--repetitions 1] [--peak bf16=465,fp32=232] [--trl] [--trl-dtype bfloat16]
                  [--python PYTHON] [--scratch FOLDER] [--output ROWS.jsonl]

Needs no network and, without --trl, nothing but Python. A model folder has the shape that it is named for, weights in
bfloat16 that are pieces of one million normal numbers, and the tokenizer of examples/base, so most rows of the vocabulary are
never looked up, but all are multiplied. The text is that of the repository's documentation, packed so that every step has
exactly batch x sequence tokens. LoRA r 16, alpha 32, every linear layer, recomputation on, `bf16` as named; `nf4` and
`nf4-bf16` hold the base in four bits and multiply fp32 or bfloat16. TRL's weights are of --trl-dtype: where they rest in
bfloat16 it multiplies bfloat16 whatever `bf16` says, for which PyTorch has no fast products without AVX-512.

What is reported, from outside and in the same way for both programs:

* step, tokens/s: as in sft.py, the median of all steps but the first;
* start, s: from the start of the process to the first step's line, less a step: what comes before the first batch;
* peak, MiB: the greatest resident set (ru_maxrss; pages of the model's file that are mapped count);
* per cent of peak: multiplications and additions that the step cannot do without (the layer's products forward, once more
  for recomputation but the last, and for the input's gradient; adapters; causal attention; the head forward and its hidden gradient)
  over the step and over --peak, the GF/s that `cargo xtask bench roofline` measures for all threads.

Rows go to --output (JSON lines), a table to standard output.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import struct
import sys
from pathlib import Path

from sft import BENCHES, run

REPOSITORY = BENCHES.parent
BASE = REPOSITORY / "examples" / "base"
RANK = 16
SHAPES = {
    "qwen3-0.6b": dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], hidden_size=1024,
                       intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
                       head_dim=128, vocab_size=151_936, rope_theta=1e6, rms_norm_eps=1e-6,
                       max_position_embeddings=40_960, attention_bias=False),
    # The text part, three gated delta rules before each attention.
    "qwen3.5-0.8b": dict(model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], hidden_size=1024,
                         intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8, num_key_value_heads=2,
                         head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128,
                         linear_value_head_dim=128, linear_conv_kernel_dim=4, vocab_size=248_320, rms_norm_eps=1e-6,
                         layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 6, attention_bias=False,
                         rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25),
                         max_position_embeddings=262_144),
    "llama-3.2-1b": dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=2048,
                         intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                         num_key_value_heads=8, head_dim=64, vocab_size=128_256, rope_theta=5e5, rms_norm_eps=1e-5,
                         max_position_embeddings=131_072, attention_bias=False, mlp_bias=False),
    "llama-3-8b": dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=4096,
                       intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                       num_key_value_heads=8, head_dim=128, vocab_size=128_256, rope_theta=5e5, rms_norm_eps=1e-5,
                       max_position_embeddings=8192, attention_bias=False, mlp_bias=False, tie_word_embeddings=False),
}
POOL = 1 << 20


# ---- what is trained ---------------------------------------------------------------------------------

def tensors(shape):
    """Names and shapes, in the order of the file."""
    h, d, inter = shape["hidden_size"], shape["head_dim"], shape["intermediate_size"]
    q, kv = shape["num_attention_heads"] * d, shape["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (shape["vocab_size"], h)
    for i in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        if shape.get("layer_types", [""] * (i + 1))[i] == "linear_attention":
            heads, values = shape["linear_num_value_heads"], shape["linear_num_value_heads"] * shape["linear_value_head_dim"]
            channels = 2 * shape["linear_num_key_heads"] * shape["linear_key_head_dim"] + values
            for name, size in dict(in_proj_qkv=(channels, h), in_proj_z=(values, h), in_proj_a=(heads, h),
                                   in_proj_b=(heads, h), out_proj=(h, values),
                                   conv1d=(channels, 1, shape["linear_conv_kernel_dim"]),
                                   norm=(shape["linear_value_head_dim"],)).items():
                yield f"{layer}linear_attn.{name}.weight", size
            yield f"{layer}linear_attn.A_log", (heads,)
            yield f"{layer}linear_attn.dt_bias", (heads,)
        else:
            # Qwen3.5's queries bring gates.
            gated = 2 if shape["model_type"] == "qwen3_5_text" else 1
            for name, size in dict(q_proj=(gated * q, h), k_proj=(kv, h), v_proj=(kv, h), o_proj=(h, q)).items():
                yield f"{layer}self_attn.{name}.weight", size
            if shape["model_type"] in ("qwen3", "qwen3_5_text"):
                yield f"{layer}self_attn.q_norm.weight", (d,)
                yield f"{layer}self_attn.k_norm.weight", (d,)
        for name, size in dict(gate_proj=(inter, h), up_proj=(inter, h), down_proj=(h, inter)).items():
            yield f"{layer}mlp.{name}.weight", size
        yield f"{layer}input_layernorm.weight", (h,)
        yield f"{layer}post_attention_layernorm.weight", (h,)
    yield "model.norm.weight", (h,)
    if not shape.get("tie_word_embeddings", True):
        yield "lm_head.weight", (shape["vocab_size"], h)


def elements(size):
    count = 1
    for n in size:
        count *= n
    return count


def bf16(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def build(scratch, name):
    """The model folder, written once."""
    folder, shape = scratch / name, SHAPES[name]
    if (folder / "model.safetensors").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    header, at = {}, 0
    for tensor, size in tensors(shape):
        header[tensor] = dict(dtype="BF16", shape=size, data_offsets=[at, at + 2 * elements(size)])
        at += 2 * elements(size)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = random.Random(0)
    pool = bf16(draw.gauss(0.0, 0.02) for _ in range(POOL))
    with (folder / "part").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor, size in tensors(shape):
            if len(size) == 1:
                file.write(bf16([1.0]) * size[0])
                continue
            left = 2 * elements(size)
            while left:
                start = 2 * draw.randrange(POOL)
                piece = pool[start:start + left]
                file.write(piece)
                left -= len(piece)
    config = dict(hidden_act="silu", tie_word_embeddings=True, dtype="bfloat16", torch_dtype="bfloat16",
                  bos_token_id=None, eos_token_id=0, pad_token_id=0, attention_dropout=0.0, initializer_range=0.02,
                  use_cache=True) | shape
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BASE / file, folder / file)
    (folder / "part").rename(folder / "model.safetensors")
    return folder


def write_data(path, tokens, row):
    """Enough of the repository's documentation, over and over, for so many tokens, in rows of so many characters."""
    text = "\n\n".join(page.read_text() for page in sorted((REPOSITORY / "docs").glob("*.md")))
    rows = [text[i:i + row] for i in range(0, len(text) - row, row)]
    # No tokenizer makes fewer than a token of ten of these characters.
    needed = 10 * tokens // row + 2
    path.write_text("".join(json.dumps({"text": rows[i % len(rows)]}) + "\n" for i in range(needed)))


def write_options(path, model, data, output, job, steps, precision, packed, dtype):
    batch, sequence = job
    path.write_text(json.dumps({
        "model_name_or_path": str(model), "dataset_name": str(data), "output_dir": str(output), "dtype": dtype,
        "max_length": sequence, "packing": packed, "packing_strategy": "wrapped",
        "per_device_train_batch_size": batch, "gradient_checkpointing": True, "learning_rate": 1e-4,
        "max_steps": steps, "logging_steps": 1, "save_strategy": "no", "bf16": precision.endswith("bf16"), "use_cpu": True,
        "train_sampling_strategy": "sequential", "seed": 42, "use_peft": True, "lora_r": RANK, "lora_alpha": 32,
        "lora_dropout": 0.0, "lora_target_modules": "all-linear", "load_in_4bit": precision.startswith("nf4")},
        indent=1) + "\n")


def operations(shape, job):
    """Multiplications and additions that a step cannot do without."""
    batch, sequence = job
    tokens, h, d = batch * sequence, shape["hidden_size"], shape["head_dim"]
    q, kv, inter = shape["num_attention_heads"] * d, shape["num_key_value_heads"] * d, shape["intermediate_size"]
    gated = 2 if shape["model_type"] == "qwen3_5_text" else 1
    attention = [(h, gated * q), (h, kv), (h, kv), (q, h)]
    pairs = batch * sequence * (sequence + 1) // 2
    total = 4 * tokens * h * shape["vocab_size"]
    for kind in shape.get("layer_types", ["full_attention"] * shape["num_hidden_layers"]):
        mixer, seen = attention, 2 * pairs * q * (2 + 2 + 5)
        if kind == "linear_attention":
            heads, key, value = (shape[f"linear_{of}"] for of in ("num_value_heads", "key_head_dim", "value_head_dim"))
            mixer = [(h, 2 * shape["linear_num_key_heads"] * key + heads * value), (h, heads * value), (h, heads),
                     (h, heads), (heads * value, h)]
            # A state is read, corrected and read again, forward and once more; backward has twice that and the state again.
            seen = 2 * tokens * heads * key * value * (3 + 3 + 8)
        layers = [*mixer, (h, inter), (h, inter), (inter, h)]
        base = sum(a * b for a, b in layers)
        low = sum(RANK * (a + b) for a, b in layers)
        # Forward, once more but for the last product, which nobody reads then, and backward: of the base the input's gradient
        # alone, of adapters their own too.
        total += 2 * tokens * (3 * base - inter * h + 4 * low) + seen
    return total


# ---- the program -------------------------------------------------------------------------------------

def pairs(text, of=str):
    return {key: of(value) for key, value in (part.split("=") for part in text.split(",") if part)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burnish", type=Path, required=True, help="the release binary")
    parser.add_argument("--models", default="qwen3-0.6b,llama-3.2-1b", help=", ".join(SHAPES))
    parser.add_argument("--jobs", default="1x1024,4x512,1x4096", help="batch x sequence")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--peak", default="", help="GF/s of all threads, such as bf16=465,fp32=232")
    parser.add_argument("--trl", action="store_true", help="TRL beside it")
    parser.add_argument("--trl-dtype", default="bfloat16", help="of TRL's weights")
    parser.add_argument("--python", default=sys.executable, help="the Python that has TRL")
    parser.add_argument("--scratch", type=Path, default=Path("target/bench-real-sizes"))
    parser.add_argument("--output", type=Path, help="rows are added to it")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps: at least 2 are needed, since the first does not count")
    models = options.models.split(",")
    if unknown := set(models) - set(SHAPES):
        parser.error(f"unknown model: {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    jobs = [tuple(map(int, job.split("x"))) for job in options.jobs.split(",")]
    peak = pairs(options.peak, float)
    scratch = options.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, HF_HOME=str(scratch / "cache"), HF_HUB_OFFLINE="1")
    programs = {"burnish": [str(options.burnish.resolve()), "sft"]}
    if options.trl:
        programs["trl"] = [options.python, str(BENCHES / "trl_sft.py")]

    print("| model | batch x sequence | program | precision | step, s | tokens/s | start, s | peak, MiB | % of peak | load |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for _ in range(options.repetitions):
        for name in models:
            model = build(scratch, name)
            for job in jobs:
                tokens = job[0] * job[1]
                # TRL packs no rows of linear attention without its CUDA kernels: a row is a text, cut off at its length.
                packed = "layer_types" not in SHAPES[name]
                row = 4000 if packed else 10 * job[1]
                data = scratch / f"data-{tokens * options.steps}-{row}.jsonl"
                if not data.exists():
                    write_data(data, tokens * options.steps, row)
                for program, command in programs.items():
                    for precision in options.precision.split(","):
                        output = scratch / f"out-{program}"
                        shutil.rmtree(output, ignore_errors=True)
                        config = scratch / f"{output.name}.yaml"
                        dtype = options.trl_dtype if program == "trl" else "bfloat16"
                        write_options(config, model, data, output, job, options.steps, precision, packed, dtype)
                        result = run([*command, "--config", str(config)], output, scratch / f"{output.name}.log",
                                     environment)
                        times = [when for when, _ in result["seen"]]
                        if len(times) != options.steps:
                            sys.exit(f"expected {options.steps} lines of steps, got {len(times)}")
                        step = statistics.median(b - a for a, b in zip(times, times[1:]))
                        work = operations(SHAPES[name], job)
                        row = dict(model=name, batch=job[0], sequence=job[1], program=program, precision=precision, dtype=dtype,
                                   step_s=step, tokens_per_s=tokens / step, start_s=times[0] - step,
                                   peak_rss_bytes=result["peak_rss_bytes"], operations=work,
                                   first_loss=result["seen"][0][1]["loss"], load=result["load"])
                        share = f"{100e-9 * work / step / peak[precision]:.0f}" if precision in peak else ""
                        print(f"| {name} | {job[0]} x {job[1]} | {program} | {precision} | {step:.2f} "
                              f"| {tokens / step:.1f} | {times[0] - step:.2f} "
                              f"| {result['peak_rss_bytes'] / 2**20:.0f} | {share} | {result['load']:.1f} |", flush=True)
                        if options.output:
                            with options.output.open("a") as file:
                                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
