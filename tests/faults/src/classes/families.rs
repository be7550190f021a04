//! Folders of mixtures of experts, with sinks, latent attention, and of quantised models.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::lab::{Lab, copy, has_null};
use crate::mutation;
use crate::random::Random;
use crate::running::Ended;
use crate::verdict::{Outcome, judge};

/// Folders among the fixtures of `models`.
const FOLDERS: [&str; 16] = [
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "olmoe",
    "granitemoe",
    "glm4-moe",
    "gpt-oss",
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "quantized/nf4",
    "quantized/nf4-nested",
    "quantized/fp4-skipped",
    "quantized/int8",
    "quantized/gptq",
    "quantized/awq",
];

/// A folder, a place of its `config.json`, and what stands there: sizes that contradict each other or the files.
const SIZES: [(&str, &str, &str); 78] = [
    ("mixtral", "/num_local_experts", "0"),
    ("mixtral", "/num_local_experts", "4"),
    ("mixtral", "/num_local_experts", "6"),
    ("mixtral", "/num_local_experts", "1000000000"),
    ("mixtral", "/num_local_experts", "18446744073709551615"),
    ("mixtral", "/num_experts_per_tok", "0"),
    ("mixtral", "/num_experts_per_tok", "6"),
    ("mixtral", "/num_experts_per_tok", "1000000000000"),
    ("mixtral", "/intermediate_size", "0"),
    ("mixtral", "/intermediate_size", "13"),
    ("mixtral", "/hidden_size", "25"),
    ("mixtral", "/router_aux_loss_coef", "\"much\""),
    ("mixtral", "/router_jitter_noise", "0.5"),
    ("qwen2-moe", "/num_experts", "0"),
    ("qwen2-moe", "/num_experts", "1e30"),
    ("qwen2-moe", "/moe_intermediate_size", "0"),
    ("qwen2-moe", "/moe_intermediate_size", "1000000000000"),
    ("qwen2-moe", "/shared_expert_intermediate_size", "0"),
    ("qwen2-moe", "/shared_expert_intermediate_size", "5"),
    ("qwen2-moe", "/decoder_sparse_step", "0"),
    ("qwen2-moe", "/mlp_only_layers", "[0, 7]"),
    ("qwen2-moe", "/mlp_only_layers", "\"all\""),
    ("qwen2-moe", "/norm_topk_prob", "\"yes\""),
    ("qwen3-moe", "/num_experts", "3"),
    ("qwen3-moe", "/num_experts_per_tok", "-1"),
    ("qwen3-moe", "/decoder_sparse_step", "1000"),
    ("olmoe", "/clip_qkv", "0"),
    ("olmoe", "/clip_qkv", "-1"),
    ("granitemoe", "/residual_multiplier", "1e39"),
    ("granitemoe", "/attention_multiplier", "0"),
    ("granitemoe", "/logits_scaling", "0"),
    ("glm4-moe", "/n_group", "0"),
    ("glm4-moe", "/topk_group", "9"),
    ("glm4-moe", "/n_shared_experts", "1000000000"),
    ("glm4-moe", "/first_k_dense_replace", "100"),
    ("gpt-oss", "/num_local_experts", "4"),
    ("gpt-oss", "/swiglu_limit", "0"),
    ("gpt-oss", "/swiglu_limit", "-1"),
    ("gpt-oss", "/swiglu_alpha", "null"),
    ("gpt-oss", "/layer_types", "[\"nothing\", \"full_attention\"]"),
    ("gpt-oss", "/layer_types", "[\"full_attention\"]"),
    ("gpt-oss", "/layer_types", "[]"),
    ("gpt-oss", "/sliding_window", "0"),
    ("gpt-oss", "/sliding_window", "18446744073709551615"),
    ("gpt-oss", "/head_dim", "11"),
    ("gpt-oss", "/attention_bias", "false"),
    ("gpt-oss", "/rope_parameters/factor", "0"),
    ("gpt-oss", "/rope_parameters/original_max_position_embeddings", "0"),
    ("deepseek-v3", "/kv_lora_rank", "0"),
    ("deepseek-v3", "/kv_lora_rank", "9"),
    ("deepseek-v3", "/kv_lora_rank", "1000000000000"),
    ("deepseek-v3", "/q_lora_rank", "null"),
    ("deepseek-v3", "/q_lora_rank", "0"),
    ("deepseek-v3", "/q_lora_rank", "18446744073709551615"),
    ("deepseek-v3", "/qk_rope_head_dim", "5"),
    ("deepseek-v3", "/qk_rope_head_dim", "0"),
    ("deepseek-v3", "/qk_nope_head_dim", "0"),
    ("deepseek-v3", "/v_head_dim", "0"),
    ("deepseek-v3", "/v_head_dim", "1099511627776"),
    ("deepseek-v3", "/n_group", "4"),
    ("deepseek-v3", "/n_group", "0"),
    ("deepseek-v3", "/topk_group", "4"),
    ("deepseek-v3", "/topk_group", "0"),
    ("deepseek-v3", "/n_routed_experts", "0"),
    ("deepseek-v3", "/first_k_dense_replace", "-1"),
    ("deepseek-v3", "/routed_scaling_factor", "1e39"),
    ("deepseek-v2", "/topk_method", "\"nothing\""),
    ("deepseek-v2-lite", "/q_lora_rank", "10"),
    ("quantized/nf4", "/quantization_config/bnb_4bit_quant_type", "\"nf5\""),
    ("quantized/nf4", "/quantization_config/bnb_4bit_use_double_quant", "true"),
    ("quantized/nf4", "/quantization_config/load_in_8bit", "true"),
    ("quantized/int8", "/quantization_config/llm_int8_skip_modules", "\"lm_head\""),
    ("quantized/gptq", "/quantization_config/bits", "3"),
    ("quantized/gptq", "/quantization_config/group_size", "0"),
    ("quantized/gptq", "/quantization_config/group_size", "-1"),
    ("quantized/gptq", "/quantization_config/group_size", "1000000000000"),
    ("quantized/awq", "/quantization_config/version", "\"nothing\""),
    ("quantized/awq", "/quantization_config/quant_method", "\"../awq\""),
];

/// A folder and options that do not go together with it, and what an error names.
const LINES: [(&str, &str, &str); 12] = [
    ("quantized/nf4", "score --load_in_8bit", "load_in_8bit"),
    ("quantized/int8", "score --load_in_4bit", "load_in_4bit"),
    ("quantized/gptq", "quantize --load_in_4bit", "quantised"),
    ("quantized/awq", "sft --max_steps=1 --max_length=8", "quantised"),
    (
        "mixtral",
        "sft --max_steps=1 --max_length=8 --use_peft --lora_target_modules=experts.99.w1",
        "target_modules",
    ),
    ("mixtral", "sft --max_steps=1 --max_length=8 --use_peft --lora_target_parameters=nothing", "nothing"),
    ("mixtral", "sft --max_steps=1 --max_length=8 --tp_size=7 --nproc=7", "tp_size"),
    ("deepseek-v3", "sft --max_steps=1 --max_length=8 --use_peft --lora_target_modules=kv_b", "kv_b"),
    (
        "mixtral",
        "sft --max_steps=1 --max_length=8 --use_peft --peft_type=IA3 --lora_target_modules=gate_up_proj",
        "feedforward_modules",
    ),
    ("gpt-oss", "sft --max_steps=1 --max_length=8 --bf16 --device=cuda", "cuda"),
    ("granitemoe", "sft --max_steps=1 --max_length=8 --router_aux_loss_coef=nan", "router_aux_loss_coef"),
    ("granitemoe", "sft --max_steps=1 --max_length=8 --router_aux_loss_coef=-1e39", "router_aux_loss_coef"),
];

pub(crate) fn written(_: &Lab) -> usize {
    SIZES.len() + LINES.len()
}

/// A copy of a folder, with a tokenizer of as many words as it has, and rows of these words.
fn put_folder(lab: &Lab, name: &str, into: &Path) -> Result<()> {
    let model = into.join("model");
    copy(&lab.families().join(name), &model)?;
    let config: Value = serde_json::from_slice(&std::fs::read(model.join("config.json"))?)?;
    let words = config["vocab_size"].as_u64().context("no vocab_size")?;
    let vocab: BTreeMap<String, u64> = (0..words).map(|word| (format!("w{word}"), word)).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
    });
    std::fs::write(model.join("tokenizer.json"), tokenizer.to_string())?;
    let rows = (0..6).map(|row| {
        let text: Vec<String> = (0..5 + row).map(|at| format!("w{}", (at * 7 + row * row) % 40)).collect();
        format!("{}\n", json!({"text": text.join(" ")}))
    });
    Ok(std::fs::write(into.join("rows.jsonl"), rows.collect::<String>())?)
}

/// What `score` says of the undamaged folder.
fn score_of(lab: &Lab, name: &'static str) -> Result<String> {
    static KNOWN: Mutex<BTreeMap<&str, String>> = Mutex::new(BTreeMap::new());
    if let Some(known) = KNOWN.lock().ok().and_then(|known| known.get(name).cloned()) {
        return Ok(known);
    }
    let folder = lab.fresh()?;
    put_folder(lab, name, folder.path())?;
    let ended = lab.run(lab.score(&folder.path().join("model"), &folder.path().join("rows.jsonl"), &[]))?;
    anyhow::ensure!(ended.code == Some(0), "{name} is not scored: {}", ended.stderr);
    if let Ok(mut known) = KNOWN.lock() {
        known.insert(name, ended.stdout.clone());
    }
    Ok(ended.stdout)
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let (model, rows) = (folder.path().join("model"), folder.path().join("rows.jsonl"));
    let config = model.join("config.json");
    let shown = model.display().to_string();
    let train = || {
        let output = format!("--output_dir={}", folder.path().join("out").display());
        lab.words(
            "sft",
            &model,
            &rows,
            &[
                "--max_steps=1",
                "--max_length=16",
                "--use_peft",
                "--lora_target_modules=all-linear",
                "--lora_dropout=0",
                "--save_strategy=no",
                &output,
            ],
        )
    };
    if let Some((name, place, value)) = SIZES.get(attempt) {
        put_folder(lab, name, folder.path())?;
        let mut said: Value = serde_json::from_slice(&std::fs::read(&config)?)?;
        let (parent, key) = place.rsplit_once('/').context("a place without a key")?;
        said.pointer_mut(parent).context("no such place")?[key] =
            serde_json::from_str(value).with_context(|| (*value).to_owned())?;
        std::fs::write(&config, said.to_string())?;
        let ended = lab.run(lab.score(&model, &rows, &[]))?;
        return Ok(judge(format!("{name}: {place} = {value}"), &ended, &[key, &shown], |e| {
            has_null(&e.stdout)
        }));
    }
    if let Some((name, line, named)) = LINES.get(attempt.wrapping_sub(SIZES.len())) {
        put_folder(lab, name, folder.path())?;
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        let output = format!("--output_dir={}", folder.path().join("out").display());
        let mut more: Vec<&str> = words.collect();
        if command != "score" {
            more.push(&output);
        }
        let mut all = lab.words(command, &model, &rows, &more);
        if command == "quantize" {
            all.remove(2);
        }
        let ended = lab.run(all)?;
        return Ok(judge(format!("{name}: {line}"), &ended, &[named], |_| Some("no error".to_owned())));
    }
    let name = *random.of_these(&FOLDERS);
    let expected = score_of(lab, name)?;
    put_folder(lab, name, folder.path())?;
    let weights = random.below(2) == 0;
    let path = if weights { model.join("model.safetensors") } else { config };
    let mut bytes = std::fs::read(&path)?;
    let (what, wrong_type) = if weights {
        // Most of the header, which a drawn place would seldom meet.
        let length = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)) as usize;
        let mut header = bytes[8..8 + length].to_vec();
        if random.below(3) == 0 {
            (mutation::bytes(random, &mut bytes), None)
        } else {
            let what = if random.below(2) == 0 {
                mutation::bytes(random, &mut header)
            } else {
                let mut value: Value = serde_json::from_slice(&header)?;
                let change = mutation::value(random, &mut value);
                header = value.to_string().into_bytes();
                change.what
            };
            let mut whole = (header.len() as u64).to_le_bytes().to_vec();
            whole.extend(header);
            whole.extend(&bytes[8 + length..]);
            bytes = whole;
            (format!("header: {what}"), None)
        }
    } else {
        let mut value: Value = serde_json::from_slice(&bytes)?;
        let change = mutation::value(random, &mut value);
        bytes = value.to_string().into_bytes();
        let nothing = change.what.ends_with("= null");
        (change.what, change.other_type.then_some(change.key).filter(|_| !nothing))
    };
    std::fs::write(&path, bytes)?;
    let trains = random.below(4) == 0;
    let ended = lab.run(if trains { train() } else { lab.score(&model, &rows, &[]) })?;
    let right = |e: &Ended| {
        has_null(&e.stdout).or_else(|| {
            let other = wrong_type.filter(|_| !trains && e.stdout != expected);
            other.map(|key| format!("`{key}` of another type changed what is computed"))
        })
    };
    let what = format!("{name}, {}: {what}", if trains { "sft" } else { "score" });
    Ok(judge(what, &ended, &[&shown, "config.json", "model.safetensors", "row ", "loss"], right))
}
