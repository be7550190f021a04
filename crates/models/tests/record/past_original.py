#!/usr/bin/env python3
"""Records greedy text that grows past the length a scaled rotary embedding was trained on.

Usage: past_original.py [OUTPUT_FILE]     (default: ../golden/past_original.json)
Made with torch 2.15.0 and transformers 5.23.0, CPU, one thread, eager attention, with the key/value cache.

The frequencies of `dynamic` and `longrope` follow the current length; keys in the cache keep those of their own time,
but for Phi-3, whose cache begins anew where a text grows beyond the original positions.
One case per line: `model` (a folder of fixtures), `prompt`, `max_new_tokens`, `tokens`, and `min_gap`, the least
distance between the best and the second best score of a step. Each case is checked to come out differently where the
frequencies stay those of a short text.
"""

import copy
import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)

HERE = Path(__file__).resolve().parent
NEW_TOKENS = 40


def load(folder, config=None):
    return AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager").eval()


def greedy(model, prompt):
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS,
                         output_scores=True, return_dict_in_generate=True)
    best = [score[0].topk(2).values for score in out.scores]
    return out.sequences[0, len(prompt):].tolist(), min(float(b[0] - b[1]) for b in best)


def short(config):
    """The configuration with the frequencies of a short text at every length."""
    other = copy.deepcopy(config)
    if other["rope_parameters"]["rope_type"] == "dynamic":
        other["max_position_embeddings"] = 100000
    else:
        other["rope_parameters"]["long_factor"] = other["rope_parameters"]["short_factor"]
    return type(AutoConfig.for_model(other["model_type"])).from_dict(other)


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "golden" / "past_original.json"
    cases = []
    for index, name in enumerate(["llama-rope-dynamic", "llama-rope-longrope", "phi3-longrope"]):
        folder = HERE.parent / "fixtures" / name
        config = json.loads((folder / "config.json").read_text())
        generator = torch.Generator().manual_seed(7 + index)
        for length in (9, 40):  # growing past the original 32, and beginning beyond it
            for _ in range(200):
                prompt = torch.randint(3, config["vocab_size"], (length,), generator=generator).tolist()
                tokens, gap = greedy(load(folder), prompt)
                if len(tokens) == NEW_TOKENS and gap > 5e-3 and tokens != greedy(load(folder, short(config)), prompt)[0]:
                    break
            else:
                raise RuntimeError(f"{name}: no prompt with a clear winner at every step")
            print(name, length, round(gap, 4), tokens)
            cases.append(dict(model=name, prompt=prompt, max_new_tokens=NEW_TOKENS, tokens=tokens,
                              min_gap=round(gap, 6)))
    path.write_text("[" + ",\n".join(json.dumps(c) for c in cases) + "]\n")


if __name__ == "__main__":
    main()
