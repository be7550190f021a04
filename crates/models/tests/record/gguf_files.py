"""Records what llama.cpp's converter and quantiser make of this folder's fixtures: `fixtures/gguf`.

    python crates/models/tests/record/gguf_files.py LLAMA_CPP [LIBRARIES]
    python crates/models/tests/record/gguf_files.py LLAMA_CPP adapters

LLAMA_CPP is a checkout of llama.cpp (the sdist of llama-cpp-python has one in `vendor`), LIBRARIES the folder of its built
libllama.so, without which files in blocks are not recorded again. Needs torch, transformers, gguf, sentencepiece, blake3, and
of llama-cpp-python its module `llama_cpp` on the path.

Per model: the metadata of the converter's file in 32 bits, and of each tensor its type, shape and digest. Models whose
fixtures have what llama.cpp has not (biases, other scales) are made without it; the test makes the same ones. The tokenizer
is the same for all, and of a kind that the converter is told the name of: it knows published ones by their digests.
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import blake3
import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
OWN = FIXTURES / "gguf"

# What is another in config.json than in the fixture; biases go where it says that there are none.
WITHOUT = {"attention_bias": False, "mlp_bias": False}
MODELS = {
    "llama": {}, "llama-bf16": {}, "llama-f16": {}, "llama-bias": {}, "llama-head-dim": {}, "llama-tied": {},
    "llama-rope-linear": {}, "llama-rope-llama3": {}, "llama-rope-yarn": {}, "llama-rope-yarn-attention-factor": {},
    "mistral-window": {}, "mixtral": {}, "qwen2": {}, "qwen2-tied": {}, "qwen2-yarn": {}, "qwen3": {}, "qwen3-moe": {},
    "phi3": {}, "phi3-longrope": {}, "granite": {}, "gpt2": {"n_ctx": 64},
    "gemma": WITHOUT, "gemma2": {"query_pre_attn_scalar": 8}, "gemma3": {"query_pre_attn_scalar": 8},
    "olmo2": WITHOUT, "smollm3": WITHOUT | {"no_rope_layers": [1, 1]},
}

# Adapters of `fixtures/peft`, and their bases.
ADAPTERS = {
    "tiny_ad/nonzero": "peft/tiny-llama", "out_alllin/nonzero": "peft/tiny-llama-1l", "out_emb/nonzero": "peft/tiny-llama-1l",
    "lora_packed": "phi3-window",
}

DRIVER = """
import json, runpy, sys
sys.path.insert(0, sys.argv[1])
from conversion import base, gemma, phi
import transformers
# Families' own classes add tokens of their published models.
transformers.AutoTokenizer.from_pretrained = transformers.PreTrainedTokenizerFast.from_pretrained
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
for of in [gemma.GemmaModel, gemma.Gemma2Model, gemma.Gemma3Model, phi.Phi3MiniModel]:
    of.set_vocab = base.TextModel._set_vocab_gpt2


def whole(self, data, name, bid):
    # Without cutting the embedding to the tokenizer's size, beyond which published folders' tokenizer.model goes.
    shift = self.norm_shift(name)
    yield from base.TextModel.modify_tensors(self, data + shift if shift else data, name, bid)


gemma.Gemma3Model.modify_tensors = whole
program = sys.argv[1] + "/convert_hf_to_gguf.py"
for folder, file, outtype in json.loads(sys.argv[2]):
    sys.argv = [program, folder, "--outfile", file, "--outtype", outtype]
    runpy.run_path(program, run_name="__main__")
"""


def tokenizer():
    folder = OWN / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    special = ["<pad>", "<s>", "</s>"]
    texts = special + [chr(code) for code in range(ord("a"), ord("z") + 1)] + ["Ġ", "Ċ", "Ġt", "he", "Ġthe", "in"]
    vocab = {text: at for at, text in enumerate(texts)}
    added = [
        {"id": at, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for at, text in enumerate(special)
    ]
    added.append({"id": len(vocab), "content": "<note>", "single_word": False, "lstrip": False, "rstrip": False,
                  "normalized": False, "special": False})
    begins = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing", "single": [begins, text],
            "pair": [begins, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
            "merges": [["Ġ", "t"], ["h", "e"], ["Ġt", "he"], ["i", "n"]],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n")
    config = {
        "tokenizer_class": "TokenizersBackend", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    return folder


def folder_of(name, into):
    folder = into / name
    folder.mkdir()
    changes = MODELS.get(name, {})
    source = FIXTURES / name
    config = json.loads((source / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    if changes.get("attention_bias") is False:
        tensors = load_file(source / "model.safetensors")
        save_file({key: value for key, value in tensors.items() if not key.endswith(".bias")}, folder / "model.safetensors")
    else:
        shutil.copy(source / "model.safetensors", folder)
    for file in (OWN / "tokenizer").iterdir():
        shutil.copy(file, folder)
    return folder


def wide(into):
    """A model whose rows fill blocks of 256, its values a function of their place (`wide_value` of the test)."""
    folder = into / "wide"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "bos_token_id": 1,
        "eos_token_id": 2, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (64, 256), "lm_head.weight": (64, 256), "model.norm.weight": (256,)}
    for layer in range(8):
        block = f"model.layers.{layer}"
        shapes |= {
            f"{block}.input_layernorm.weight": (256,), f"{block}.post_attention_layernorm.weight": (256,),
            f"{block}.self_attn.q_proj.weight": (256, 256), f"{block}.self_attn.k_proj.weight": (128, 256),
            f"{block}.self_attn.v_proj.weight": (128, 256), f"{block}.self_attn.o_proj.weight": (256, 256),
            f"{block}.mlp.gate_proj.weight": (512, 256), f"{block}.mlp.up_proj.weight": (512, 256),
            f"{block}.mlp.down_proj.weight": (256, 512),
        }
    tensors = {}
    for number, (name, shape) in enumerate(sorted(shapes.items())):
        at = np.arange(int(np.prod(shape)), dtype=np.uint32) + np.uint32(number * 1_000_003)
        mixed = at * np.uint32(2_654_435_761)
        mixed ^= mixed >> np.uint32(15)
        mixed *= np.uint32(2_246_822_519)
        mixed ^= mixed >> np.uint32(13)
        unit = (mixed >> np.uint32(8)).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)
        tensors[name] = (unit * unit * unit * np.float32(1.5)).reshape(shape)
        if name.endswith("norm.weight"):
            tensors[name] = tensors[name] + np.float32(1.0)
    save_file(tensors, folder / "model.safetensors")
    for file in (OWN / "tokenizer").iterdir():
        shutil.copy(file, folder)
    return folder


def convert(llama_cpp, jobs):
    words = [sys.executable, "-c", DRIVER, llama_cpp, json.dumps([[str(word) for word in job] for job in jobs])]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])


def convert_adapter(llama_cpp, name, base, scratch):
    folder = scratch / "adapter"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tensors = load_file(FIXTURES / "peft" / name / "adapter_model.safetensors")
    # PEFT writes the embedding beside its adapter; it is the base's.
    save_file({key: own for key, own in tensors.items() if "base_layer" not in key}, folder / "adapter_model.safetensors")
    shutil.copy(FIXTURES / "peft" / name / "adapter_config.json", folder)
    file = scratch / "adapter.gguf"
    words = [sys.executable, f"{llama_cpp}/convert_lora_to_gguf.py", "--base", str(FIXTURES / base), "--outfile", str(file), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return recorded(file)


def recorded(file):
    reader = gguf.GGUFReader(file)
    metadata = {}
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        value = field.contents()
        value = [float(own) for own in value] if isinstance(value, list) and value and isinstance(value[0], np.floating) else value
        metadata[key] = [field.types[-1].name if len(field.types) > 1 else field.types[0].name, value]
    tensors = {}
    for tensor in reader.tensors:
        data = np.ascontiguousarray(tensor.data).tobytes()
        shape = [int(size) for size in reversed(tensor.shape)]
        tensors[tensor.name] = [tensor.tensor_type.name, shape, blake3.blake3(data).hexdigest()[:16]]
        if tensor.name.startswith("rope_"):
            tensors[tensor.name].append([float(value) for value in np.frombuffer(data, dtype=np.float32)])
    return {"metadata": metadata, "tensors": tensors}


def quantize(file, into, ftype):
    from llama_cpp import llama_cpp as library

    params = library.llama_model_quantize_default_params()
    params.ftype = ftype
    params.nthread = 2
    if library.llama_model_quantize(str(file).encode(), str(into).encode(), params):
        raise SystemExit(f"{file}: not quantised")


def written(path, models):
    lines = [f"{json.dumps(name)}: {json.dumps(model, ensure_ascii=False)}" for name, model in sorted(models.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    llama_cpp = sys.argv[1]
    tokenizer()
    if sys.argv[-1] == "adapters":
        with tempfile.TemporaryDirectory() as scratch:
            models = {name: convert_adapter(llama_cpp, name, base, pathlib.Path(scratch)) for name, base in ADAPTERS.items()}
        return written(OWN / "adapters.json", models)
    path = OWN / "converted.json"
    all_models = json.loads(path.read_text()) if path.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        jobs = []
        for name in MODELS:
            folder = folder_of(name, scratch)
            for outtype in ["f32", "bf16", "f16", "q8_0"] if name in ("llama", "qwen3-moe", "gpt2") else ["f32"]:
                jobs.append((folder, scratch / f"{name}-{outtype}.gguf", outtype))
        if sys.argv[2:]:
            jobs.append((wide(scratch), scratch / "wide-f32.gguf", "f32"))
        convert(llama_cpp, jobs)
        for _, file, _ in jobs:
            all_models[file.stem] = recorded(file)
        if sys.argv[2:]:
            os.environ["LLAMA_CPP_LIB_PATH"] = sys.argv[2]
            for source in ["wide", "llama", "llama-tied", "qwen3-moe"]:
                for outtype, ftype in [("q4_0", 2), ("q8_0", 7), ("q4_k_m", 15)]:
                    file = scratch / f"{source}-{outtype}-blocks.gguf"
                    quantize(scratch / f"{source}-f32.gguf", file, ftype)
                    all_models[f"{source}-{outtype}-blocks"] = recorded(file)
    written(path, all_models)


main()
