"""Records what Transformers makes of tokenizers without `tokenizer.json`.

    python record_tokenizer_files.py ../golden

Needs sentencepiece, protobuf and tokenizers beside transformers. Each folder of `tokenizer_files/` has a tokenizer's files;
`tokenizer_files.json` has texts and, by folder, their tokens, what those are decoded to, and the named tokens.
"""

import base64
import json
import os
import shutil
import sys
from pathlib import Path

import sentencepiece
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import bytes_to_unicode

END = "<|endoftext|>"
CORPUS = """The cow has four legs and says moo. Où est la forêt? Ça va, naïve Ümlaut; 你好世界, こんにちは. x = 3*y + 1
    def double(number):
        return number + number  # twice the number, "quoted" and 'said', don't and I'll
Texts are cut into words, words into pieces, and pieces into bytes: 12345 67 890 tokens of many texts. The end of the text.
""" * 8
TEXTS = ["", " ", "a", " a", "a ", "  two  spaces  ", "The cow says moo.", "\n\nOù est\tla forêt?", "你好 👩‍🚀", "▁under ▁▁", "e\u0301 ﬁ ① \u00a0",
         "<s>The</s> <unk>", f"one{END}two", "<|im_start|>user\nHello<|im_end|>\n", "[INST] don't I'LL [/INST]", "x=3*y+1\n\n\n12345",
         "<start_of_turn>a  b\n<mask>", "<tool> a<tool>"]


def pieces(name, **settings):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()), model_prefix=name, vocab_size=345, model_type="bpe", minloglevel=2,
        character_coverage=0.99, **settings)
    return {f"{name}.model": "tokenizer.model"}


def byte_level(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [END, "</s>", "<pad>"]
    tokenizer.train_from_iterator([CORPUS], trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=alphabet))
    os.makedirs(folder, exist_ok=True)
    tokenizer.model.save(folder)
    return {f"{folder}/vocab.json": "vocab.json", f"{folder}/merges.txt": "merges.txt"}


def tekken(vocab):
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    words = [bytes(letters[letter] for letter in word) for word, _ in sorted(vocab.items(), key=lambda item: item[1])[3:]]
    tokens = [bytes([byte]) for byte in range(256)] + [word for word in words if len(word) > 1]
    pattern = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    return {
        "config": {"pattern": pattern, "default_vocab_size": len(tokens) + 16, "default_num_special_tokens": 20, "version": "v7"},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for rank, token in enumerate(tokens)],
        "special_tokens": [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(special)],
    }


def main(golden):
    golden = Path(golden).absolute()
    work = golden / "work"
    work.mkdir()
    os.chdir(work)
    as_is = dict(normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True)
    llama = pieces("llama", split_digits=True, allow_whitespace_only_pieces=True, **as_is)
    user = pieces("user", user_defined_symbols=["<|im_start|>", "[INST]", "\n\n"], control_symbols=["<ctrl>"], **as_is)
    gemma = pieces("gemma", add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                   user_defined_symbols=["<start_of_turn>", "\n", "  ", "<mask>"], **as_is)
    usual = pieces("usual", byte_fallback=False, hard_vocab_limit=False)
    bytes_ = byte_level("bytes")
    added = lambda texts: {str(id): dict(content=text, special=special, lstrip=False, rstrip=False, normalized=False, single_word=False)
                           for id, text, special in texts}
    spm = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", add_bos_token=True, add_eos_token=False)
    folders = {
        "opt": (bytes_, dict(tokenizer_class="GPT2Tokenizer", add_bos_token=True, bos_token="</s>", eos_token="</s>", unk_token="</s>",
                             pad_token="<pad>"), "opt"),
        "gpt2": (bytes_, None, "gpt2"),
        "codegen": (bytes_, dict(tokenizer_class="CodeGenTokenizer", add_prefix_space=True, bos_token=END, eos_token=END, unk_token=END,
                                 added_tokens_decoder=added([(340, "<|im_end|>", True), (341, "<tool>", False)])), "codegen"),
        "qwen2": (bytes_, dict(tokenizer_class="Qwen2Tokenizer", bos_token=None, eos_token=END, unk_token=None, pad_token=END,
                               added_tokens_decoder=added([(340, "<|im_start|>", True)])), "qwen2"),
        "llama": (llama, dict(tokenizer_class="LlamaTokenizer", legacy=True, **spm), "llama"),
        "llama-first": (user, dict(tokenizer_class="LlamaTokenizerFast", legacy=False, **spm), "llama"),
        "llama-added": (llama, dict(spm, tokenizer_class="LlamaTokenizer", eos_token="<|im_end|>", added_tokens_decoder=added(
            [(345, "<|im_start|>", True), (346, "<|im_end|>", True), (347, "<tool>", False)])), "llama"),
        "gemma": (gemma, dict(tokenizer_class="GemmaTokenizer", pad_token="<pad>", **spm), "gemma"),
        "mistral": (user, dict(tokenizer_class="LlamaTokenizer", **spm), "mistral"),
        "internlm2": (usual, dict(tokenizer_class="InternLM2Tokenizer", **spm), "internlm2"),
        "bare": (llama, None, "llama"),
        "phi": (bytes_, dict(tokenizer_class="CodeGenTokenizer", bos_token=END, eos_token=END, unk_token=END), "phi"),
    }
    root = golden / "tokenizer_files"
    shutil.rmtree(root, ignore_errors=True)
    for name, (files, config, model_type) in folders.items():
        folder = root / name
        folder.mkdir(parents=True)
        for file, to in files.items():
            shutil.copy(file, folder / to)
        if config is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (root / "phi" / "added_tokens.json").write_text(json.dumps({"      ": 340, "<|im_start|>": 341, "<|im_end|>": 342}))
    (root / "tekken").mkdir()
    (root / "tekken" / "tekken.json").write_text(json.dumps(tekken(json.loads(Path("bytes/vocab.json").read_text()))))
    (root / "tekken" / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    said = {}
    for folder in sorted(root.iterdir()):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        ids = [tokenizer(text)["input_ids"] for text in TEXTS]
        decoded = [tokenizer.decode(own, skip_special_tokens=False, clean_up_tokenization_spaces=False) for own in ids]
        said[folder.name] = dict(ids=ids, decoded=decoded, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
    (golden / "tokenizer_files.json").write_text(json.dumps({"texts": TEXTS, "folders": said}, ensure_ascii=False, indent=1) + "\n")
    os.chdir(golden)
    shutil.rmtree(work)


main(sys.argv[1])
