"""Asks `burnish serve` as TRL's GRPO trainer asks its server, with TRL's own client, and compares with Transformers.

    burnish serve --model_name_or_path MODEL --port 8000
    python benches/check_trl_client.py MODEL http://127.0.0.1:8000

TRL's `VLLMClient` samples texts, token ids and conversations, several of each, with and without log-probabilities; each
sampled token's must be Transformers' in float32, and prompts and counts those that were asked for. Weights are not sent: a
server of burnish takes adapters (docs/serve.md). The client wants to see vLLM installed, which it does not use for this.
"""

import argparse

import torch
import transformers
import trl.generation.vllm_client as client_module


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("url")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()
    client_module.is_vllm_available = lambda *_, **__: True
    client = client_module.VLLMClient(base_url=options.url, connection_timeout=20)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    texts = ["Hello there", "What is the capital of France?", "Tell me a story"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    talks = [[{"role": "user", "content": text}] for text in texts]

    def check(name, said, n):
        prompts, completions = said["prompt_ids"], said["completion_ids"]
        assert len(completions) == n * len(prompts), name
        worst = 0.0
        for at, (completion, own, tokens) in enumerate(zip(completions, said["logprobs"], said["logprob_token_ids"])):
            prompt = prompts[at // n]
            with torch.no_grad():
                expected = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
            for place, token in enumerate(completion):
                got = own[place][tokens[place].index(token)]
                worst = max(worst, abs(got - expected[len(prompt) + place - 1, token].item()))
        print(f"{name}: {len(completions)} completions, log-probabilities to {worst:.1e}", flush=True)
        assert worst < options.tolerance, name

    check("texts", client.generate(texts, n=2, max_tokens=12), 2)
    said = client.generate(ids, n=4, max_tokens=16)
    assert said["prompt_ids"] == ids
    check("token ids", said, 4)
    check("the three likeliest", client.generate(ids, max_tokens=8, logprobs=3, generation_kwargs={"seed": 7}), 1)
    check("conversations", client.chat(talks, n=2, max_tokens=12), 2)
    check("64 prompts at once", client.generate([ids[i % 3] for i in range(64)], n=4, max_tokens=16), 4)
    plain = client.generate(ids, n=2, max_tokens=4, temperature=0.7, top_p=0.9, top_k=20, min_p=0.05, logprobs=None,
                            repetition_penalty=1.1)
    assert plain["logprobs"] is None and len(plain["completion_ids"]) == 6


if __name__ == "__main__":
    main()
