"""Compares `burnish score` with Transformers and PEFT: every text row's log-probability, or its score by a reward model.

    burnish score --model_name_or_path BASE [--adapter_name_or_path ADAPTER] --dataset_name rows.jsonl --output_file s.jsonl
    python benches/check_scores.py BASE rows.jsonl s.jsonl [--adapter ADAPTER]

Rows are {"text": ...}; a row gets the tokenizer's end-of-sequence token if it lacks it, and is cut to --max_length, as in SFT.
"""

import argparse
import json

import torch
import transformers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("rows")
    parser.add_argument("scores")
    parser.add_argument("--adapter")
    parser.add_argument("--max_length", type=int, default=1024)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    given = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.base)
    with open(given.scores) as scores:
        of_texts = "score" in json.loads(scores.readline())
    auto = transformers.AutoModelForSequenceClassification if of_texts else transformers.AutoModelForCausalLM
    labels = {"num_labels": 1} if of_texts else {}
    model = auto.from_pretrained(given.base, dtype=torch.float32, **labels)
    if given.adapter:
        import peft

        model = peft.PeftModel.from_pretrained(model, given.adapter)
    model.eval()
    worst = 0.0
    count = 0
    with open(given.rows) as rows, open(given.scores) as scores:
        for row, score in zip(map(json.loads, rows), map(json.loads, scores), strict=True):
            text = row["text"]
            if not text.endswith(tokenizer.eos_token):
                text += tokenizer.eos_token
            ids = torch.tensor([tokenizer(text)["input_ids"][: given.max_length]])
            if of_texts:
                model.config.pad_token_id = tokenizer.pad_token_id
                with torch.no_grad():
                    expected = model(ids).logits[0, 0].item()
                assert score["num_tokens"] == ids.shape[1], (score, ids.shape)
                worst = max(worst, abs(score["score"] - expected) / max(1.0, abs(expected)))
                count += 1
                continue
            with torch.no_grad():
                logprobs = model(ids).logits[0, :-1].double().log_softmax(-1)
            sum_logprob = logprobs.gather(1, ids[0, 1:, None]).sum().item()
            assert score["num_tokens"] == ids.shape[1] - 1, (score, ids.shape)
            worst = max(worst, abs(score["sum_logprob"] - sum_logprob) / max(1.0, abs(sum_logprob)))
            count += 1
    print(f"{count} rows, largest relative difference {worst:.2e}")
    if worst > given.tolerance:
        raise SystemExit(f"differs by more than {given.tolerance}")


if __name__ == "__main__":
    main()
