"""Records the model fixtures of types that Transformers runs by code of their folders.

    python remote_code.py ../fixtures

What each of them computes a class of Transformers computes as well, over tensors and keys of other names: a model of that
class is recorded as in `families.py`, and its folder is written in the type's own spelling.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

import families

SQUARE = dict(vocab_size=42, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, initializer_range=0.2, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def internlm2(tensors):
    """Of each key head its queries, key and value in one matrix."""
    heads, kv = SQUARE["num_attention_heads"], SQUARE["num_key_value_heads"]
    made = {}
    for name, tensor in tensors.items():
        name = name.replace("embed_tokens", "tok_embeddings").replace("lm_head", "output")
        name = name.replace("input_layernorm", "attention_norm").replace("post_attention_layernorm", "ffn_norm")
        name = name.replace("self_attn.o_proj", "attention.wo")
        for theirs, own in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
            name = name.replace(f"mlp.{theirs}", f"feed_forward.{own}")
        made[name] = tensor
    for name in [n for n in made if ".self_attn.q_proj." in n]:
        q, k, v = (made.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj"))
        q, k, v = (part.reshape(kv, -1, part.shape[0] // (kv if at else heads), *part.shape[1:]) for at, part in enumerate((q, k, v)))
        made[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat([q, k, v], 1).flatten(0, 2)
    return made


def same(tensors):
    return dict(tensors)


def recorded(root, index, name, kind, arguments, tensors, config):
    def training(model, documents, usual=families.training):
        train = usual(model, documents)
        gradients = tensors({n: p.grad.double() for n, p in model.named_parameters()})
        train["gradients"] = {
            n: [float(f"{x:.7g}") for x in (g.norm(), (g.flatten() * families.probe(g.numel())).sum())]
            for n, g in gradients.items()
        }
        return train

    own, families.training = families.training, training
    families.record(root, index, name, type(transformers.AutoConfig.for_model(kind)), arguments, rows=[2, 19])
    families.training = own
    folder = root / name
    for other in folder.glob("config_*.json"):
        other.unlink()
    written = tensors(load_file(folder / "model.safetensors"))
    save_file({n: t.contiguous() for n, t in written.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(json.loads((folder / "config.json").read_text())), indent=2) + "\n")


def of_minicpm(config):
    keys = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier")
    factors = {key: config.pop(key) for key in keys}
    depth = factors["residual_multiplier"] * config["num_hidden_layers"] ** 0.5
    return config | dict(model_type="minicpm", architectures=["MiniCPMForCausalLM"], scale_emb=factors["embedding_multiplier"],
                         scale_depth=depth, dim_model_base=config["hidden_size"] / factors["logits_scaling"])


def main():
    root = Path(sys.argv[1])
    recorded(root, 900, "internlm2", "llama", SQUARE | dict(tie_word_embeddings=False, attention_bias=True), internlm2,
             lambda c: {k: v for k, v in c.items() if k != "attention_bias"}
             | dict(model_type="internlm2", architectures=["InternLM2ForCausalLM"], bias=True))
    recorded(root, 901, "mimo", "qwen2", SQUARE | dict(tie_word_embeddings=False), same,
             lambda c: c | dict(model_type="mimo", architectures=["MiMoForCausalLM"], attention_bias=True, num_nextn_predict_layers=1))
    recorded(root, 902, "minicpm", "granite", SQUARE | dict(
        tie_word_embeddings=True, embedding_multiplier=12.0, residual_multiplier=0.7, logits_scaling=1.6, attention_multiplier=8 ** -0.5),
        same, of_minicpm)


if __name__ == "__main__":
    main()
