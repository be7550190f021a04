"""Loads what burnish saved into Transformers and PEFT.

A question per line of JSON on standard input: {"base", "adapter" or null, "texts", "prompt", "max_new_tokens"}. An answer per
line on standard output: the summed log-probability of each text, and the tokens generated greedily after the prompt.
"""

import json
import os
import sys

answers = os.fdopen(os.dup(1), "w")
sys.stdout = sys.stderr
os.environ["HF_HUB_OFFLINE"] = "1"


def say(answer):
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


try:
    import peft
    import torch
    import transformers
except ImportError as error:
    say({"error": f"{type(error).__name__}: {error}"})
    sys.exit(0)

torch.set_num_threads(1)
say({"versions": f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}"})


def answer(question):
    base = question["base"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if question["adapter"]:
        model = peft.PeftModel.from_pretrained(model, question["adapter"])
    model.eval()
    sums = []
    with torch.no_grad():
        for text in question["texts"]:
            ids = torch.tensor([tokenizer(text).input_ids + [tokenizer.eos_token_id]])
            logs = model(ids).logits[:, :-1].log_softmax(-1)
            sums.append(logs.gather(-1, ids[:, 1:, None]).double().sum().item())
        prompt = torch.tensor([tokenizer(question["prompt"]).input_ids])
        whole = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=question["max_new_tokens"],
        )
    return {"sums": sums, "tokens": whole[0, prompt.shape[1] :].tolist()}


for line in sys.stdin:
    try:
        say(answer(json.loads(line)))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
