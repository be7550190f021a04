#!/usr/bin/env python3
"""burnish on a GPU beside PyTorch, Transformers and PEFT: training of two shapes, the head, attention.

    gpu.py --burnish target/release/burnish-check [--data .] [--device cuda|cpu] [--only NAME] [--quick] [--out ROWS.jsonl]
    gpu.py --table ROWS.jsonl

Runs `burnish-check bench` (a build with the feature cuda), then the same work in PyTorch where that and
Transformers are installed, and lays the two side by side. What PyTorch does is the usual way: bf16 weights, scaled-dot-product attention, recomputation of each layer,
fused AdamW, rows of 2048 tokens, four a step, or two by four micro-batches, with and without recomputation. Full fine-tuning keeps fp32 masters by autocast over fp32 weights, as TRL
does. A row that does not fit or fails says so and does not stop the others; each is written when it is there, and `--table`
prints the table of a file again.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import transformers
except ImportError:
    torch = None

SMALL = dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
             num_key_value_heads=8, head_dim=128, vocab_size=151936)
SHAPES = {"Qwen3-0.6B": SMALL, "Qwen3-1.7B": dict(SMALL, hidden_size=2048, intermediate_size=6144)}
LARGE = dict(SMALL, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32)
PUBLISHED = {"Qwen3-0.6B": SMALL, "Qwen3-4B": LARGE,
             "Qwen3-8B": dict(LARGE, hidden_size=4096, intermediate_size=12288, tie_word_embeddings=False)}
# With what burnish-check calls them (`crates/checks/src/bench/shape.rs`).
MIXTURE = dict(SMALL, model_type="qwen3_moe", hidden_size=2048, moe_intermediate_size=768, num_hidden_layers=48,
               num_attention_heads=32, num_key_value_heads=4, num_experts=128, num_experts_per_tok=8,
               norm_topk_prob=True, tie_word_embeddings=False)
PART = {"Qwen3-MoE of 12 layers": dict(MIXTURE, num_hidden_layers=12)}
DELTA = {"Qwen3.5-0.8B": dict(SMALL, model_type="qwen3_5_text", intermediate_size=3584, num_hidden_layers=24,
                              num_attention_heads=8, num_key_value_heads=2, head_dim=256, vocab_size=248320,
                              linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128,
                              linear_value_head_dim=128, linear_conv_kernel_dim=4,
                              layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 6)}
TINY = {"tiny": dict(hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=16, vocab_size=2048)}


def configuration(shape):
    shape = dict(dict(model_type="qwen3", tie_word_embeddings=True, max_position_embeddings=40960), **shape)
    return transformers.AutoConfig.for_model(shape.pop("model_type"), **shape)


def multiplied(config):
    """Weights that a token is multiplied by."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    share = getattr(config, "num_experts_per_tok", 1) / (getattr(config, "num_experts", None) or 1)
    looked_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return sum(p.numel() * (share if "experts" in name else 1) for name, p in model.named_parameters()) - looked_up


def attended(config, length):
    """Operations of attention for a token of training."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return 12 * kinds.count("full_attention") * config.num_attention_heads * config.head_dim * length


class Bench:
    def __init__(self, device, only, quick, out):
        self.device, self.only, self.quick, self.out, self.rows = device, only, quick, out, []

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def median(self, work, repeats):
        work()
        times = []
        for _ in range(repeats):
            self.synchronize()
            begun = time.perf_counter()
            work()
            self.synchronize()
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    def row(self, name, tokens, operations, measure):
        """`measure` gives the seconds of one repetition, `operations` how many it does."""
        if self.only not in name:
            return
        row = dict(program=f"torch {torch.__version__}, transformers {transformers.__version__}", bench=name)
        try:
            if self.device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            seconds = measure()
            row.update(seconds=seconds, tokens_per_second=tokens / seconds, tflops=operations() / seconds / 1e12)
            if self.device == "cuda":
                row["device_memory_bytes"] = torch.cuda.max_memory_reserved()
        except (RuntimeError, ImportError) as error:
            row["failed"] = str(error).splitlines()[0]
        print(f"torch  {name}: {row.get('failed') or f'{1e3 * seconds:.2f} ms'}", flush=True)
        self.rows.append(row)
        keep(row, self.out)

    def head(self, trains):
        tokens, vocab, hidden = (64, 1024, 64) if self.quick else (8192, 151936, 4096)
        name = f"head {'trains' if trains else 'frozen'}, {tokens} x {vocab} x {hidden}, bf16"

        def measure():
            weight = (0.05 * torch.randn(vocab, hidden, device=self.device)).to(torch.bfloat16)
            weight.requires_grad_(trains)
            states = (0.05 * torch.randn(tokens, hidden, device=self.device)).to(torch.bfloat16).requires_grad_()
            targets = torch.arange(tokens, device=self.device) * 7919 % vocab

            def step():
                states.grad = weight.grad = None
                logits = states @ weight.T
                torch.nn.functional.cross_entropy(logits.float(), targets).backward()

            return self.median(step, 2 if self.quick else 5)

        self.row(name, tokens, lambda: (3 if trains else 2) * 2 * tokens * vocab * hidden, measure)

    def attention(self, length):
        rows, heads, kv_heads, dim = (1 if self.quick else 16384 // length), 16, 8, 128
        name = f"attention, rows of {length}, 16 heads of 128, bf16"

        def measure():
            def tensor(count):
                shape = (rows, count, length, dim)
                return torch.randn(shape, device=self.device, dtype=torch.bfloat16, requires_grad=True)

            q, k, v = tensor(heads), tensor(kv_heads), tensor(kv_heads)

            def step():
                q.grad = k.grad = v.grad = None
                attend = torch.nn.functional.scaled_dot_product_attention
                attend(q, k, v, is_causal=True, enable_gqa=True).sum().backward()

            return self.median(step, 2 if self.quick else 5)

        tokens = rows * length
        self.row(name, tokens, lambda: 7 * 2 * (tokens * length // 2) * heads * dim, measure)

    def decode(self, name, shape, sequences):
        steps = 8 if self.quick else 128
        config = configuration(shape)

        def operations():
            return sequences * (2 * multiplied(config) + attended(config, 256) / 3)

        def measure():
            with torch.device(self.device):
                model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16,
                                                                      attn_implementation="sdpa").eval()
            ids = torch.randint(0, config.vocab_size, (sequences, 256), device=self.device)

            def run(count):
                self.synchronize()
                begun = time.perf_counter()
                with torch.no_grad():
                    model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
                                   min_new_tokens=count, max_new_tokens=count)
                self.synchronize()
                return time.perf_counter() - begun

            run(4)
            return (run(16 + steps) - run(16)) / steps

        self.row(f"{name} decodes, {sequences} at once behind 256 tokens, bf16", sequences, operations, measure)

    def train(self, name, shape, lora, rows=4, accumulated=1, recompute=True):
        length, steps = (128, 5) if self.quick else (2048, 12 if accumulated == 1 else 7)
        config = configuration(shape)
        tokens = accumulated * rows * length

        def operations():
            return tokens * ((4 if lora else 6) * multiplied(config) + attended(config, length))

        def measure():
            dtype = torch.bfloat16 if lora else torch.float32
            with torch.device(self.device):
                model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype,
                                                                      attn_implementation="sdpa")
            if lora:
                import peft
                model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32,
                                                                   target_modules="all-linear"))
            model.config.use_cache = False
            if recompute:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
                model.enable_input_require_grads()
            model.train()
            trained = [p for p in model.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=self.device == "cuda")
            ids = torch.randint(0, config.vocab_size, (rows, length), device=self.device)
            times = []
            for _ in range(steps):
                self.synchronize()
                begun = time.perf_counter()
                for _ in range(accumulated):
                    with torch.autocast(self.device, dtype=torch.bfloat16):
                        loss = model(input_ids=ids, labels=ids).loss
                    (loss / accumulated).backward()
                torch.nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                self.synchronize()
                times.append(time.perf_counter() - begun)
            return statistics.median(times[3:])

        times = f", {accumulated} times {rows} rows" if accumulated > 1 else ""
        kept = "" if recompute else ", activations kept"
        self.row(f"{name} {'LoRA r 16' if lora else 'full'}{times}{kept}, bf16", tokens, operations, measure)


def keep(row, out):
    if out:
        with open(out, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def burnish(options):
    """The rows of burnish's own program, which prints them as it goes."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl", encoding="utf-8") as file:
        command = [options.burnish, "bench", "--device", options.device, "--data", options.data,
                   "--only", options.only, "--json", file.name] + (["--quick"] if options.quick else [])
        failed = subprocess.run(command, check=False).returncode != 0
        rows = [json.loads(line) for line in file]
    for row in rows:
        keep(row, options.out)
    if failed:
        sys.exit(f"gpu.py: {' '.join(command)} failed")
    return rows


def table(ours, theirs):
    theirs = {row["bench"]: row for row in theirs}
    print(f"\n{'':44} {'burnish tok/s':>14} {'torch tok/s':>12} {'ratio':>6} {'plan':>8} {'peak':>6} {'GB':>7} {'GB':>7}  bound by")
    for row in ours:
        other = theirs.get(row["bench"], {})
        speed, against = row["tokens_per_second"], other.get("tokens_per_second")
        share, planned = row.get("share_of_bf16_peak"), row.get("predicted_tokens_per_second")
        gigabytes = [f"{held / 1e9:.2f}" if held else "" for held in
                     (row.get("device_memory_bytes"), other.get("device_memory_bytes"))]
        print(f"{row['bench']:44} {speed:14.0f} {f'{against:.0f}' if against else other.get('failed', '-')[:12]:>12} "
              f"{f'{speed / against:.2f}' if against else '':>6} {f'{planned:.0f}' if planned else '':>8} {f'{100 * share:.1f}%' if share else '':>6} "
              f"{gigabytes[0]:>7} {gigabytes[1]:>7}  {row['bound']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burnish", help="the program burnish-check")
    parser.add_argument("--table", help="print the table of this file of rows, and run nothing")
    parser.add_argument("--only", default="", help="only benchmarks whose name holds this")
    parser.add_argument("--data", default=".", help="folder with examples: the repository, or a bundle")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--out", help="file for the rows, as JSON lines; they are appended")
    options = parser.parse_args()
    if options.table:
        with open(options.table, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return table([row for row in rows if row["program"] == "burnish"],
                     [row for row in rows if row["program"] != "burnish"])
    if not options.burnish:
        parser.error("--burnish is missing")
    ours = burnish(options)
    if torch is None:
        print("no PyTorch with Transformers here: nothing to compare with")
        return
    bench = Bench(options.device, options.only, options.quick, options.out)
    for trains in (False, True):
        bench.head(trains)
    for length in [128] if options.quick else [2048, 8192]:
        bench.attention(length)
    decoded = {**dict(list(SHAPES.items())[:1]), **PART, **DELTA}
    for name, shape in (TINY if options.quick else decoded).items():
        for sequences in [1, 8] if options.quick else [1, 8, 64]:
            bench.decode(name, shape, sequences)
    for name, shape in (TINY if options.quick else SHAPES).items():
        for lora in (True, False):
            bench.train(name, shape, lora)
    for name, shape in (TINY if options.quick else {**PUBLISHED, **PART, **DELTA}).items():
        for recompute in (True, False):
            bench.train(name, shape, True, rows=2, accumulated=4, recompute=recompute)
    table(ours, bench.rows)


if __name__ == "__main__":
    main()
