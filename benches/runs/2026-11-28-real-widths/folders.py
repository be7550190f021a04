"""Writes a folder of one type at the widths that its class has by default, of few blocks, with logits: folders.py OUTPUT_FOLDER TYPE"""
import json, sys
from pathlib import Path
import warnings; warnings.filterwarnings("ignore")
import torch, transformers
from transformers import AutoConfig, AutoModelForCausalLM
torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
VOCAB = ("vocab_size", "vocab_size_per_layer_input")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
DROP = ("dropout", "pdrop", "dropout_prob", "dropout_rate")
def cut(config, layers, experts):
    d = config.to_dict(); own = {}
    for k, v in d.items():
        names = {k, config.attribute_map.get(k, k)}
        if names & set(LAYERS) and isinstance(v, int): own[k] = layers
        elif names & set(VOCAB) and isinstance(v, int) : own[k] = 2048
        elif names & set(EXPERTS) and isinstance(v, int) and v > experts: own[k] = experts
        elif any(k.endswith(e) for e in DROP) and isinstance(v, float): own[k] = 0.0
        elif k in ("pad_token_id","bos_token_id","eos_token_id","sep_token_id") : own[k] = {"pad_token_id":0,"bos_token_id":1,"eos_token_id":2}.get(k,3)
        elif k in ("layer_types","layers_block_type","mlp_layer_types","attention_types") and isinstance(v, list) and len(v) > layers and not isinstance(v[0], list):
            # keep both kinds
            kinds = list(dict.fromkeys(v)); first = v[:layers]
            if len(set(first)) < len(kinds) and layers >= len(kinds): first = first[:layers-len(kinds)+1] + [x for x in kinds if x not in first[:layers-len(kinds)+1]]; first = first[:layers]
            own[k] = first
    return own
def build(kind, layers, experts, more):
    base = AutoConfig.for_model(kind)
    own = cut(base, layers, experts)
    for name in base.sub_configs:
        part = getattr(base, name, None)
        if part is not None: own[name] = cut(part, layers, experts) | ({"model_type": part.model_type} if part.model_type else {})
    return type(base)(**(own | more))
def count(config):
    with torch.device("meta"):
        m = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in m.parameters())
def main():
    out, kind = Path(sys.argv[1]), sys.argv[2]
    more = {"gpt_neo": dict(attention_types=[[["global","local"],1]], num_layers=2)}.get(kind, {})
    for layers, experts in ((4, 32), (4, 16), (3, 16), (2, 16), (2, 8), (1, 16), (1, 8), (1, 4)):
        try:
            config = build(kind, layers, experts, more); n = count(config)
        except Exception as e:
            err = e; continue
        if n < 1.1e9 or (layers == 1 and n < 1.7e9): break
    else:
        print("SKIP", kind, repr(locals().get("err"))[:200]); return 1
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1 and ("norm" in name or "ln_" in name): p.copy_(torch.rand(p.shape, generator=g) * 0.8 + 0.6)
            elif p.ndim == 1 and name.endswith("bias"): p.copy_(torch.randn(p.shape, generator=g) * 0.1)
            elif name.endswith("sinks"): p.copy_(torch.rand(p.shape, generator=g))
    folder = out / kind
    model.save_pretrained(folder, max_shard_size="8GB")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    cases = []
    for length in (7, 70):
        ids = torch.randint(4, 2048, (1, length), generator=g)
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0].float()
        cases.append(dict(input_ids=ids[0].tolist(), logits=logits.tolist()))
    (folder / "expected.json").write_text(json.dumps(dict(logits=cases)))
    c = config.to_dict()
    print("BUILT", kind, f"{n/1e6:.0f}M", "layers", layers, "experts", experts, {k: c[k] for k in c if k in ("hidden_size","num_attention_heads","num_key_value_heads","head_dim")})
main()
