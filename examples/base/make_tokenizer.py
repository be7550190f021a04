"""Trains the example's tokenizer and writes its folder. Run once, from the repository's root:

    pip install tokenizers
    python examples/base/make_tokenizer.py

It needs the data files that `cargo xtask example-data` writes. burnish itself never runs Python.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = Path(__file__).parent
DATA = FOLDER.parent / "data"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def texts():
    for line in (DATA / "pretrain.jsonl").read_text().splitlines():
        yield json.loads(line)["text"]
    for line in (DATA / "sft-train.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield row["prompt"][0]["content"]
        yield row["completion"][0]["content"]


tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=1024,
    special_tokens=SPECIAL,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
)
tokenizer.train_from_iterator(texts(), trainer)
tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)


def write(name, value):
    (FOLDER / name).write_text(json.dumps(value, indent=2) + "\n")


special = {
    str(tokenizer.token_to_id(token)): {
        "content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True,
    }
    for token in SPECIAL
}
end, turn = tokenizer.token_to_id(SPECIAL[0]), tokenizer.token_to_id(SPECIAL[2])
write("tokenizer_config.json", {
    "added_tokens_decoder": special,
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "eos_token": SPECIAL[0],
    "model_max_length": 512,
    "pad_token": SPECIAL[0],
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": None,
})
write("generation_config.json", {"do_sample": False, "eos_token_id": [turn, end], "max_new_tokens": 64, "pad_token_id": end})
write("config.json", {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "dtype": "bfloat16",
    "eos_token_id": end,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 192,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 6,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pad_token_id": end,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": tokenizer.get_vocab_size(),
})
lengths = [len(tokenizer.encode(text).ids) for text in texts()]
print(f"vocabulary {tokenizer.get_vocab_size()}, {sum(lengths)} tokens in {len(lengths)} texts, longest {max(lengths)}")
