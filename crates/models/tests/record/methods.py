"""Records adapters of PEFT's methods other than plain LoRA on ../fixtures/BASE: their files, logits and gradients, and
the losses of three steps of plain gradient descent.

Run with PEFT 0.21.2, Transformers 5.23.0 and PyTorch: methods.py [NAME...]
Writes ../fixtures/peft/NAME (loss: mean cross entropy of the next token; gradients by the adapter's keys; losses: before
each of three steps of rate RATE, and after them; of an encoder of virtual tokens also its parameters, and gradients by their
names).
"""

import json
import sys
import warnings
from pathlib import Path

import peft
import torch
from peft import get_peft_model, get_peft_model_state_dict
from peft.tuners.boft import layer as boft_layer
from peft.tuners.c3a import layer as c3a_layer
from peft.tuners.c3a.utils import get_circulant_fast
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

warnings.simplefilter("ignore")
FIXTURES = Path(__file__).parent.parent / "fixtures"
RATE = 0.2
CASES = {
    # Outputs and inputs of layers with biases, and of the head.
    "ia3": ("qwen2", peft.IA3Config, dict(
        target_modules=["k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"],
        feedforward_modules=["o_proj", "down_proj"])),
    # Rows of a table that the head shares, and of a table and a head of their own, beside factors.
    "tokens_tied": ("llama-tied", peft.LoraConfig, dict(
        r=2, target_modules=["q_proj"], trainable_token_indices=[1, 5, 9])),
    "tokens_apart": ("qwen2", peft.LoraConfig, dict(
        r=2, target_modules=["v_proj"], trainable_token_indices={"embed_tokens": [1, 5], "lm_head": [5, 9, 2]})),
    # Layers and a table of which each block has a part.
    "lora_per_layer": ("gemma4", peft.LoraConfig, dict(
        r=2, lora_alpha=6, target_modules=[
            "q_proj", "k_proj", "down_proj", "per_layer_input_gate", "per_layer_projection", "per_layer_model_projection",
            "embed_tokens_per_layer"])),
    # A head that stays its embedding: trained whole, and with factors (PEFT's optimizer then steps one storage twice, once for
    # each of its gradients).
    "tying_saved": ("llama-tied", peft.LoraConfig, dict(
        r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], ensure_weight_tying=True)),
    "tying_factors": ("llama-tied", peft.LoraConfig, dict(
        r=2, lora_alpha=6, target_modules=["q_proj", "embed_tokens"], ensure_weight_tying=True)),
    "trainable_tokens": ("llama-tied", peft.TrainableTokensConfig, dict(token_indices=[4, 1, 9])),
    "oft": ("qwen2", peft.OFTConfig, dict(oft_block_size=8, target_modules=["q_proj", "o_proj", "down_proj", "lm_head"])),
    "oft_shared": ("qwen2", peft.OFTConfig, dict(
        r=4, oft_block_size=0, block_share=True, num_cayley_neumann_terms=6, target_modules=["k_proj", "up_proj"])),
    "oft_exact": ("qwen2", peft.OFTConfig, dict(
        oft_block_size=4, use_cayley_neumann=False, target_modules=["k_proj", "up_proj"])),
    "loha": ("qwen2", peft.LoHaConfig, dict(
        r=3, alpha=5, rank_pattern={"k_proj": 2}, target_modules=["q_proj", "k_proj", "o_proj", "down_proj", "lm_head"])),
    "lokr": ("qwen2", peft.LoKrConfig, dict(
        r=2, alpha=5, target_modules=["q_proj", "k_proj", "o_proj", "down_proj", "lm_head"])),
    "lokr_both": ("qwen2", peft.LoKrConfig, dict(
        r=1, alpha=2, decompose_both=True, decompose_factor=8, target_modules=["q_proj", "up_proj"])),
    # Modules of several sizes between the same matrices; in the file, and drawn anew.
    "vera": ("qwen2", peft.VeraConfig, dict(
        r=4, projection_prng_key=7, target_modules=["q_proj", "k_proj", "down_proj"])),
    "vera_drawn": ("qwen2", peft.VeraConfig, dict(r=4, save_projection=False, target_modules=["q_proj", "o_proj"])),
    # Tokens before every text: as they are, and of an encoder, of which PEFT keeps what it gives.
    "prompt_tuning": ("qwen2", peft.PromptTuningConfig, dict(num_virtual_tokens=3)),
    "p_tuning": ("gpt2", peft.PromptEncoderConfig, dict(num_virtual_tokens=4, encoder_hidden_size=16)),
    "p_tuning_lstm": ("qwen2", peft.PromptEncoderConfig, dict(
        num_virtual_tokens=3, encoder_reparameterization_type="LSTM", encoder_hidden_size=6)),
    # Keys and values before every text: of a base with biases, of one whose heads are normed, of one with learned positions;
    # and of a projection, of which PEFT keeps what it gives.
    "prefix_tuning": ("qwen2", peft.PrefixTuningConfig, dict(num_virtual_tokens=3)),
    "prefix_normed": ("qwen3", peft.PrefixTuningConfig, dict(num_virtual_tokens=2)),
    "prefix_positions": ("gpt2", peft.PrefixTuningConfig, dict(num_virtual_tokens=4)),
    "prefix_projection": ("qwen2", peft.PrefixTuningConfig, dict(
        num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=16)),
    # Circulant blocks of several sizes, on layers of several shapes and on the head.
    "c3a": ("qwen2", peft.C3AConfig, dict(
        block_size=8, block_size_pattern={"k_proj": 16, "o_proj": 4},
        target_modules=["q_proj", "k_proj", "o_proj", "down_proj", "lm_head"])),
    # Rotated blocks of inputs, and outputs that are scaled beside biases; and products of rotations of blocks that overlap.
    "boft": ("qwen2", peft.BOFTConfig, dict(target_modules=["q_proj", "o_proj", "down_proj", "lm_head"])),
    "boft_butterfly": ("qwen2", peft.BOFTConfig, dict(
        boft_block_size=4, boft_n_butterfly_factor=3, target_modules=["k_proj", "up_proj"])),
    "boft_blocks": ("qwen2", peft.BOFTConfig, dict(
        boft_block_size=0, boft_block_num=4, boft_n_butterfly_factor=2, target_modules=["v_proj", "down_proj"])),
    # Random bases of all modules, wide and high ones, in ranks that divide their sides or do not; and ternary ones, drawn anew.
    "randlora": ("qwen2", peft.RandLoraConfig, dict(
        r=5, randlora_alpha=3, projection_prng_key=7, target_modules=["q_proj", "k_proj", "up_proj", "down_proj"])),
    "randlora_sparse": ("qwen2", peft.RandLoraConfig, dict(
        r=4, randlora_alpha=2, sparse=True, save_projection=False, target_modules=["k_proj", "down_proj"])),
    "randlora_very_sparse": ("qwen2", peft.RandLoraConfig, dict(
        r=4, randlora_alpha=2, very_sparse=True, projection_prng_key=3, save_projection=False,
        target_modules=["q_proj", "up_proj"])),
    # Vectors of one bank for all modules; and the weights of those that were chosen alone.
    "vblora": ("qwen2", peft.VBLoRAConfig, dict(
        r=3, num_vectors=12, vector_length=8, topk=3, target_modules=["q_proj", "k_proj", "down_proj", "lm_head"])),
    "vblora_topk": ("qwen2", peft.VBLoRAConfig, dict(
        r=2, num_vectors=9, vector_length=4, topk=2, save_only_topk_weights=True, target_modules=["v_proj", "up_proj"])),
    # Minor singular vectors, of which only one factor trains.
    "mica": ("qwen2", peft.LoraConfig, dict(
        r=2, lora_alpha=6, init_lora_weights="mica", target_modules=["q_proj", "k_proj", "down_proj", "embed_tokens"])),
    # Acting from the last of two invocations on; with biases of B, on a base whose layers are packed.
    "alora": ("qwen2", peft.LoraConfig, dict(
        r=2, lora_alpha=6, alora_invocation_tokens=[1], target_modules=["q_proj", "v_proj", "o_proj", "down_proj"])),
    "alora_bias": ("phi3", peft.LoraConfig, dict(
        r=3, lora_alpha=5, lora_bias=True, alora_invocation_tokens=[1, 5],
        target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
    # Layers that stand several times, with factors of their own each.
    "replicated": ("llama", peft.LoraConfig, dict(
        r=2, lora_alpha=6, layer_replication=[[0, 2], [0, 1], [0, 2]], target_modules=["q_proj", "v_proj", "down_proj"])),
    "ln_tuning": ("qwen2", peft.LNTuningConfig, dict(
        target_modules=["input_layernorm", "post_attention_layernorm", "norm"])),
    "adalora": ("qwen2", peft.AdaLoraConfig, dict(
        init_r=4, target_r=2, total_step=20, tinit=2, tfinal=5, lora_alpha=6, target_modules=["q_proj", "down_proj"])),
    # After an allocation, which leaves some modules other ranks and one none.
    "adalora_ranks": ("qwen2", peft.AdaLoraConfig, dict(
        init_r=3, target_r=1, total_step=6, tinit=1, tfinal=2, lora_alpha=6, target_modules=["q_proj", "down_proj"])),
}


class Blocks:
    """PEFT's CUDA kernel of BOFT, without which it sets boft_n_butterfly_factor to 1."""

    @staticmethod
    def apply(blocks):
        return torch.stack([torch.block_diag(*factor) for factor in blocks])


class Circulants:
    """PEFT's product with circulant blocks, differentiated by PyTorch: PEFT's own gradient of the input is not that of its
    product (torch.autograd.gradcheck)."""

    @staticmethod
    def apply(x, kernels):
        return x @ get_circulant_fast(kernels).T


c3a_layer.BlockCircularConvolution = Circulants
boft_layer.get_fbd_cuda = lambda: Blocks
boft_layer.FastBlockDiag = Blocks


def loss_of(model, ids):
    logits = model(input_ids=ids).logits
    # Of the tokens that are given.
    logits = logits[:, -ids.shape[1]:]
    return logits, torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])


def main(name):
    base_name, kind, options = CASES[name]
    out_folder = FIXTURES / "peft" / name
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(FIXTURES / base_name, dtype=torch.float32)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.no_grad():
        plain = base(input_ids=ids).logits
    config = kind(task_type="CAUSAL_LM", **options)
    model = get_peft_model(base, config).eval()
    model.peft_config["default"].base_model_name_or_path = f"../{base_name}"
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    with torch.no_grad():
        for n, p in trained:
            p.add_(0.1 * torch.randn_like(p))
    if name == "adalora_ranks":
        for step in range(1, 7):
            loss_of(model, ids)[1].backward()
            model.base_model.update_and_allocate(step)
            for _, p in trained:
                p.grad = None
        kept = model.peft_config["default"].rank_pattern
        print({k: sum(v) for k, v in kept.items()})
    generated = []
    if options.get("alora_invocation_tokens") or options.get("layer_replication"):
        # A prompt with the invocation in its middle, without it, twice, and at its end.
        for prompt in ([3, 1, 5, 4], [7, 9, 2], [1, 5, 2, 1, 5, 6], [8, 8, 1, 5]):
            made = model.generate(input_ids=torch.tensor([prompt]), max_new_tokens=6, do_sample=False, pad_token_id=0,
                                  eos_token_id=None)
            generated.append({"prompt": prompt, "tokens": made[0, len(prompt):].tolist()})
    logits, loss = loss_of(model, ids)
    loss.backward()
    model.save_pretrained(out_folder, save_embedding_layers=False)
    (out_folder / "README.md").unlink(missing_ok=True)
    grads = {n: p.grad for n, p in trained}
    if kind is peft.VBLoRAConfig:
        # Its layers have it too, and the first of them names it.
        bank = next(n for n in grads if "vblora_vector_bank" in n)
        grads["base_model.vblora_vector_bank.default"] = grads.pop(bank)
    if kind is peft.PromptEncoderConfig or options.get("prefix_projection"):
        plainly = lambda tensors: {n.replace(".default", ""): t.detach().clone() for n, t in tensors}
        save_file(plainly(trained), out_folder / "encoder.safetensors")
        gradients = plainly(grads.items())
    elif kind in (peft.PromptTuningConfig, peft.PrefixTuningConfig):
        gradients = {"prompt_embeddings": next(iter(grads.values()))}
    elif kind in (peft.VeraConfig, peft.RandLoraConfig) or name in ("tying_saved", "vblora_topk"):
        gradients = {n.replace(".default", ""): g for n, g in grads.items()}
    else:
        gradients = get_peft_model_state_dict(model, state_dict=grads, save_embedding_layers=False)
        kept = {t.data_ptr() for t in grads.values()}
        gradients = {k: v for k, v in gradients.items() if v.data_ptr() in kept}
    if name == "tying_factors":
        head = "base_model.model.lm_head.lora_{}.weight"
        embed = "base_model.model.model.embed_tokens.lora_embedding_{}"
        gradients[embed.format("A")] = gradients[embed.format("A")] + gradients.pop(head.format("B")).T
        gradients[embed.format("B")] = gradients[embed.format("B")] + gradients.pop(head.format("A")).T
    if name == "tying_saved":
        gradients = {n.replace("modules_to_save.", ""): g for n, g in gradients.items()}
    if gradients:
        tensors = {k: v.contiguous().clone() for k, v in gradients.items()}
        save_file(tensors, out_folder / "gradients.safetensors")
    losses = [loss.item()]
    for _ in range(3):
        with torch.no_grad():
            for _, p in trained:
                p -= RATE * p.grad
                p.grad = None
        _, loss = loss_of(model, ids)
        loss.backward()
        losses.append(loss.item())
    logits = logits.detach()
    record = {
        "base_model": f"../{base_name}",
        "dtype": "float32",
        "input_ids": ids.tolist(),
        "last_token_logits": logits[0, -1].tolist(),
        "logits_shape": list(logits.shape),
        "loss": losses[0],
        "losses": losses,
        "rate": RATE,
        "max_abs_diff_from_base": (logits - plain).abs().max().item(),
        "sum_all_logits": logits.double().sum().item(),
    }
    if generated:
        record["generated"] = generated
    (out_folder / "expected_logits.json").write_text(json.dumps(record, indent=1) + "\n")
    print(name, record["max_abs_diff_from_base"], losses, list(gradients), flush=True)


for wanted in sys.argv[1:] or CASES:
    main(wanted)
