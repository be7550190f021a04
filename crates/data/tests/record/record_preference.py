"""Records preferences.json of ../golden with TRL 1.16 and Transformers 5.23.

    python record_preference.py

The trainers' own preparation runs on the rows of `golden/rows/pairs.jsonl` and on rows made from them, with the
tokenizer of `golden/model`; no model is needed. Nothing here is needed to run the tests.
"""

import json
import pathlib
from types import SimpleNamespace

from datasets import Dataset
from transformers import AutoTokenizer
from trl.trainer.dpo_trainer import DataCollatorForPreference, DPOTrainer
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference, KTOTrainer
from trl.trainer.reward_trainer import RewardTrainer

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"


def rows():
    text = (GOLDEN / "rows" / "pairs.jsonl").read_text()
    pairs = [json.loads(line) for line in text.splitlines()]
    user = lambda text: {"role": "user", "content": text}
    said = lambda text: {"role": "assistant", "content": text}
    system = {"role": "system", "content": "Speak as in a play."}
    chat = [
        {
            "prompt": [*([system] if i % 2 else []), user(r["prompt"]), *([said("Aye."), user("Go on.")] if i % 3 == 0 else [])],
            "chosen": [said(r["chosen"])],
            "rejected": [said(r["rejected"])],
        }
        for i, r in enumerate(pairs)
    ]
    whole = [{"chosen": r["prompt"] + r["chosen"], "rejected": r["prompt"] + r["rejected"]} for r in chat]
    # One of several turns that part early, and one that is the start of the other.
    whole[0]["rejected"] = [*whole[0]["chosen"][:-2], user("Stop."), said("I do.")]
    whole[1]["rejected"] = [*whole[1]["chosen"], user("And then?"), said("No more.")]
    # An answer that follows an answer.
    chat[2]["prompt"] = [*chat[2]["prompt"], said("Well,")]
    return {
        "pairs": pairs,
        "implicit": [{"chosen": r["prompt"] + r["chosen"], "rejected": r["prompt"] + r["rejected"]} for r in pairs],
        "chat": chat,
        "chat_implicit": whole,
        "margin": [{**r, "margin": i / 4 - 1} for i, r in enumerate(pairs)],
        "unpaired": [
            {"prompt": r["prompt"], "completion": r["chosen" if i % 3 else "rejected"], "label": i % 3 > 0} for i, r in enumerate(pairs)
        ],
        "chat_unpaired": [
            {"prompt": r["prompt"], "completion": r["chosen" if i % 2 else "rejected"], "label": i % 2 > 0} for i, r in enumerate(chat)
        ],
    }


def record():
    tokenizer = AutoTokenizer.from_pretrained(GOLDEN / "model")
    made = rows()
    cases = []
    lists = lambda batch: {key: value.tolist() for key, value in batch.items()}
    for trainer, name, options in [
        ("dpo", "pairs", {"max_length": 1024}),
        ("dpo", "pairs", {"max_length": 24}),
        ("dpo", "pairs", {"max_length": 24, "truncation_mode": "keep_end"}),
        ("dpo", "implicit", {"max_length": 64}),
        ("dpo", "chat", {"max_length": 48}),
        ("dpo", "chat_implicit", {"max_length": None}),
        ("reward", "pairs", {"max_length": 1024}),
        ("reward", "implicit", {"max_length": 40}),
        ("reward", "chat", {"max_length": 64}),
        ("reward", "chat_implicit", {"max_length": None}),
        ("reward", "margin", {"max_length": 1024}),
        ("kto", "unpaired", {"max_length": 40, "per_device_train_batch_size": 4}),
        ("kto", "chat_unpaired", {"max_length": 1024, "per_device_train_batch_size": 3}),
        ("kto", "pairs", {"max_length": 24, "per_device_train_batch_size": 4}),
        ("kto", "implicit", {"max_length": None, "per_device_train_batch_size": 5}),
        ("kto", "chat_implicit", {"max_length": None, "per_device_train_batch_size": 8}),
    ]:
        args = SimpleNamespace(dataset_num_proc=None, truncation_mode="keep_start", **{k: v for k, v in options.items() if k != "truncation_mode"})
        args.truncation_mode = options.get("truncation_mode", "keep_start")
        self = SimpleNamespace(_tokenizer=tokenizer, calculate_KL=True, desirable_weight=1.0, undesirable_weight=1.0)
        prepare = {"dpo": DPOTrainer, "kto": KTOTrainer, "reward": RewardTrainer}[trainer]._prepare_dataset
        out = list(prepare(self, Dataset.from_list(made[name]), tokenizer, args, "train"))
        keys = {
            "dpo": ["prompt_ids", "chosen_ids", "rejected_ids"],
            "reward": ["chosen_ids", "rejected_ids", *(["margin"] if name == "margin" else [])],
            "kto": ["prompt_ids", "completion_ids", "KL_completion_ids", "label"],
        }[trainer]
        case = {"trainer": trainer, "rows": name, "options": options, "out": [{k: row[k] for k in keys} for row in out]}
        if trainer == "dpo":
            collator = DataCollatorForPreference(pad_token_id=0, max_length=args.max_length, truncation_mode=args.truncation_mode)
            case["batch"] = lists(collator(case["out"][:3]))
        if trainer == "kto":
            collator = DataCollatorForUnpairedPreference(pad_token_id=0, max_length=args.max_length)
            case["batch"] = lists(collator(case["out"][:3]))
            # The test makes them again.
            case["KL"] = [row.pop("KL_completion_ids") for row in case["out"]]
            case["KL"] = [next(i for i, row in enumerate(case["out"]) if row["completion_ids"] == ids) for ids in case["KL"]]
        cases.append(case)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    made = ",\n".join(f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=False)}" for name, value in made.items())
    (GOLDEN / "preferences.json").write_text(f'{{"rows":{{\n{made}\n}},"cases":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    record()
