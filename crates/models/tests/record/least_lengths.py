#!/usr/bin/env python3
"""Records greedy text whose end is held back by `min_new_tokens`.

Usage: least_lengths.py [OUTPUT_FILE]     (default: ../golden/least_lengths.json)
Made with torch 2.15.0 and transformers 5.23.0, CPU, one thread, eager attention, with the key/value cache.

One case per line: `model` (a folder of fixtures), `prompt`, `max_new_tokens`, `min_new_tokens`, `eos_token_id` (tokens
that the free text has early), `tokens`, and `min_gap`, the least distance between the best and the second best score
of a step. Each case is checked to come out longer than without `min_new_tokens`.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)

HERE = Path(__file__).resolve().parent
NEW_TOKENS = 20


def greedy(model, prompt, **settings):
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS,
                         pad_token_id=0, output_scores=True, return_dict_in_generate=True, **settings)
    best = [score[0].topk(2).values for score in out.scores]
    return out.sequences[0, len(prompt):].tolist(), min(float(b[0] - b[1]) for b in best)


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "golden" / "least_lengths.json"
    cases = []
    for index, name in enumerate(["llama", "qwen2-tied", "qwen3", "mistral-window"]):
        folder = HERE.parent / "fixtures" / name
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(11 + index)
        for least, ends in [(4, 1), (9, 2), (20, 3)]:
            for _ in range(500):
                prompt = torch.randint(3, model.config.vocab_size, (7,), generator=generator).tolist()
                eos = sorted(set(greedy(model, prompt, eos_token_id=[])[0][1:1 + ends]))
                early, _ = greedy(model, prompt, eos_token_id=eos)
                tokens, gap = greedy(model, prompt, eos_token_id=eos, min_new_tokens=least)
                # Most cases end by a token that was held back before.
                ended = tokens[-1] in eos or least == NEW_TOKENS
                if len(early) < least <= len(tokens) and gap > 5e-3 and ended:
                    break
            else:
                raise RuntimeError(f"{name}: no prompt with a clear winner at every step")
            print(name, least, eos, round(gap, 4), len(early), tokens)
            cases.append(dict(model=name, prompt=prompt, max_new_tokens=NEW_TOKENS, min_new_tokens=least,
                              eos_token_id=eos, tokens=tokens, min_gap=round(gap, 6)))
    path.write_text("[" + ",\n".join(json.dumps(c) for c in cases) + "]\n")


if __name__ == "__main__":
    main()
