//! Folders that cannot be loaded, and what is said about them.

use std::path::Path;

use burnish_core::Dtype;
use burnish_models::{ConfigFile, Family, ModelFolder, ModelPlan, RopeKind, Spec, Tuning, load};
use burnish_peft::LoraConfig;
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::recordings::{device, fixtures, json as read_json};

/// A copy of a fixture, its configuration changed.
pub(crate) fn copy(name: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(fixtures().join(name)).unwrap().map(|e| e.unwrap().path()) {
        std::fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut config = read_json(&path);
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
    folder
}

/// The message about a folder, its own path written as `DIR`.
fn error(folder: &Path) -> String {
    let message = load(folder, &device()).err().expect("refused").to_string();
    message.replace(&folder.display().to_string(), "DIR")
}

fn error_with(name: &str, key: &str, value: Value) -> String {
    error(copy(name, |c| c[key] = value).path())
}

/// Replaces the weights of a copy by those that `change` leaves.
pub(crate) fn reweighted(name: &str, change: impl FnOnce(&mut Vec<(String, HostTensor)>)) -> TempDir {
    let folder = copy(name, |_| {});
    let weights = WeightFolder::open(folder.path()).unwrap();
    let mut all: Vec<(String, HostTensor)> =
        weights.names().map(|n| (n.to_owned(), weights.read(n).unwrap())).collect();
    drop(weights);
    change(&mut all);
    let mut writer = FolderWriter::in_place(folder.path()).unwrap();
    let views: Vec<_> = all.iter().map(|(n, t)| (n.clone(), t.view())).collect();
    writer.tensors("model", &views).unwrap();
    writer.commit().unwrap();
    folder
}

#[test]
fn weights_that_do_not_fit() {
    let missing = reweighted("llama", |w| w.retain(|(n, _)| n != "model.layers.1.mlp.up_proj.weight"));
    assert_eq!(
        error(missing.path()),
        "DIR: the weights do not fit config.json: tensor `model.layers.1.mlp.up_proj.weight` is missing"
    );
    let shape = reweighted("llama", |w| {
        w.iter_mut().find(|(n, _)| n == "model.norm.weight").unwrap().1 =
            HostTensor::zeros(Dtype::F32, &[31]);
    });
    assert_eq!(
        error(shape.path()),
        "DIR: the weights do not fit config.json: tensor `model.norm.weight` has shape [31], expected [32] from \
         config.json"
    );
    let unexpected = reweighted("llama", |w| {
        w.push(("model.layers.0.self_attn.q_proj.bias".to_owned(), HostTensor::zeros(Dtype::F32, &[32])));
        w.push((
            "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(),
            HostTensor::zeros(Dtype::F32, &[4]),
        ));
    });
    assert_eq!(
        error(unexpected.path()),
        "DIR: the weights do not fit config.json: tensor `model.layers.0.self_attn.q_proj.bias` belongs to no \
         parameter of this configuration"
    );
    let integers = reweighted("llama", |w| {
        w.iter_mut().find(|(n, _)| n == "lm_head.weight").unwrap().1 =
            HostTensor::zeros(Dtype::U8, &[56, 32]);
    });
    assert_eq!(
        error(integers.path()),
        "DIR: the weights do not fit config.json: tensor `lm_head.weight` is uint8, expected float32, bfloat16 or \
         float16 (quantised matrices are read where config.json has a `quantization_config`)"
    );
    // All differences are named at once, up to eight.
    let deeper = error_with("llama", "num_hidden_layers", json!(3));
    assert!(deeper.contains("`model.layers.2.input_layernorm.weight` is missing; "), "{deeper}");
    assert!(deeper.ends_with("; and 1 more"), "{deeper}");
}

#[test]
fn damaged_and_missing_files() {
    let folder = copy("llama", |_| {});
    let weights = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() - 100]).unwrap();
    assert_eq!(
        error(folder.path()),
        format!(
            "`DIR/model.safetensors` is damaged: its header describes {} bytes, the file has {}; copy or download it \
             again",
            bytes.len(),
            bytes.len() - 100
        )
    );
    std::fs::remove_file(&weights).unwrap();
    assert!(error(folder.path()).starts_with("no weights in `DIR`: looked for model.safetensors, "));
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    assert!(error(folder.path()).starts_with("DIR/config.json: not valid JSON: "));
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    assert_eq!(
        error(folder.path()),
        "DIR/config.json: not found; a Hugging Face model folder holds config.json, model*.safetensors and \
         tokenizer.json"
    );
    let sharded = copy("llama-sharded", |_| {});
    std::fs::remove_file(sharded.path().join("model-00002-of-00005.safetensors")).unwrap();
    assert_eq!(
        error(sharded.path()),
        "`DIR/model.safetensors.index.json` names the shard `model-00002-of-00005.safetensors`, which is not in the \
         folder; copy or download it too"
    );
}

#[test]
fn architectures_that_are_not_computed() {
    let cases = [
        (
            "hidden_act",
            json!("softplus"),
            "`hidden_act` = softplus is not supported; supported: silu, swish, gelu, gelu_python, gelu_new, \
             gelu_pytorch_tanh, gelu_fast, gelu_accurate, relu, relu2",
        ),
        (
            "quantization_config",
            json!({"quant_method": "hqq"}),
            "`quantization_config.quant_method` = hqq is not supported; supported: bitsandbytes in four and eight bits, \
             gptq, awq and auto-round in four, compressed-tensors, fp8; or a folder of unquantised weights",
        ),
        (
            "num_key_value_heads",
            json!(3),
            "`num_key_value_heads` = 3 for 4 heads is not supported; supported: a divisor of num_attention_heads",
        ),
        (
            "rope_parameters",
            json!({"rope_type": "spiral"}),
            "`rope_type` = spiral is not supported; supported: default, linear, dynamic, llama3, yarn, longrope, \
             proportional",
        ),
    ];
    for (key, value, message) in cases {
        assert_eq!(error_with("llama", key, value), format!("config.json: {message}"));
    }
    // Every family is named, in one order.
    let supported: Vec<&str> = Family::all().map(Family::model_type).collect();
    assert_eq!(supported[..5], ["llama", "mistral", "qwen2", "qwen3", "phi3"]);
    for (value, got) in [(json!("xlnet"), "xlnet"), (Value::Null, "missing")] {
        let message = format!("config.json: `model_type` = {got} is not supported; supported: ");
        assert_eq!(error_with("llama", "model_type", value), message + &supported.join(", "));
    }
    // Of well-known ones it is said why.
    for (value, why) in [
        ("dbrx", "a mixture of experts of a kind that is not computed here"),
        ("rwkv", "layers with a state"),
        ("t5", "an encoder and a decoder"),
    ] {
        let message = error_with("llama", "model_type", json!(value));
        assert!(message.contains(&format!("`model_type` = {value} ({why}) is not supported")), "{message}");
    }
    // Sizes whose products no integer holds.
    let huge = 1_u64 << 62;
    for (name, key, value, expected) in [
        ("llama-head-dim", "head_dim", json!(huge), "at most 2^40"),
        ("glm4-moe", "moe_intermediate_size", json!(huge), "a positive integer, at most 2^40"),
        (
            "laguna",
            "num_attention_heads_per_layer",
            json!([huge, 2, 2]),
            "one integer from 1 to 65536 per layer",
        ),
    ] {
        let message = error_with(name, key, value);
        assert!(message.contains(&format!("`{key}` is")) && message.ends_with(expected), "{message}");
    }
    // Positions so far on that none is.
    let far = copy("ministral3", |config| {
        config["rope_parameters"]["original_max_position_embeddings"] = json!(1_u64 << 32);
    });
    load(far.path(), &device()).unwrap();
    // What changes the computation and is not computed is refused by name.
    for (name, key, value, said) in [
        ("chatglm", "position_encoding_2d", json!(true), "`model_type` = chatglm of ChatGLM-6B"),
        ("chatglm", "add_bias_linear", json!(true), "`add_bias_linear` = true is not supported"),
        (
            "chatglm",
            "multi_query_attention",
            json!(false),
            "`multi_query_attention` = false is not supported",
        ),
        ("chatglm", "quantization_bit", json!(4), "`quantization_bit` = 4 is not supported"),
        ("chatglm", "vision_config", json!({}), "`vision_config` = given is not supported"),
        ("qwen", "visual", json!({}), "`visual` = given is not supported"),
        ("qwen", "kv_channels", json!(16), "`kv_channels` is 16, expected hidden_size over"),
        ("qwen", "intermediate_size", json!(87), "`intermediate_size` is 87, expected an even number"),
        ("baichuan", "rope_scaling", json!({"factor": 2.0}), "`rope_scaling` = {\"factor\":2.0} is not"),
        ("baichuan", "rope_theta", json!(500.0), "`rope_theta` = 500 is not supported"),
        ("baichuan2", "z_loss_weight", json!(0.1), "`z_loss_weight` = 0.1 is not supported"),
        ("baichuan2", "tie_word_embeddings", json!(true), "`tie_word_embeddings` = true is not supported"),
    ] {
        let message = error_with(name, key, value);
        assert!(message.contains(said), "{message}");
    }
    let interpolated = copy("chatglm", |config| {
        config["padded_vocab_size"] = json!(65_024);
        config["rope_ratio"] = json!(4);
    });
    let message = error(interpolated.path());
    assert!(message.contains("`rope_ratio` = 4 is not supported"), "{message}");
    let message = error_with("nemotron-h-moe", "moe_latent_size", json!(16));
    assert!(message.contains("`moe_latent_size` = 16 is not supported"), "{message}");
    let message = error_with("bamba", "time_step_limit", json!([0.0, 0.5]));
    assert!(message.contains("`time_step_limit` = [0.0,0.5] is not supported"), "{message}");
    let message = "config.json: `use_bidirectional_attention` = true is not supported; supported: false";
    assert_eq!(error_with("gemma3", "use_bidirectional_attention", json!(true)), message);
    let message =
        "config.json: `use_bidirectional_attention` = all is not supported; supported: null, vision";
    assert_eq!(error_with("gemma4", "use_bidirectional_attention", json!("all")), message);
    let message = "config.json: `num_experts` is missing, expected a positive integer";
    assert_eq!(error_with("gemma4", "enable_moe_block", json!(true)), message);
    let message = "config.json: `altup_active_idx` is 3, expected less than altup_num_inputs";
    assert_eq!(error_with("gemma3n", "altup_active_idx", json!(3)), message);
    let message =
        "config.json: `activation_sparsity_pattern` is [0.5], expected a number below 1 for each block";
    assert_eq!(error_with("gemma3n", "activation_sparsity_pattern", json!([0.5])), message);
    let message =
        "config.json: `intermediate_size` is 2 for 3 blocks, expected an integer, or one for each block";
    assert_eq!(error_with("gemma3n", "intermediate_size", json!([8, 8])), message);
    assert_eq!(
        error_with("gemma4", "num_kv_shared_layers", json!(4)),
        "config.json: `num_kv_shared_layers` is 4 of 5, expected a number that leaves a block of each kind with keys and \
         values of its own"
    );
    assert_eq!(
        error_with(
            "gemma4",
            "per_layer_config",
            json!({"1": {"head_dim": 12}, "3": {"head_dim": 16}, "4": {"head_dim": 12}})
        ),
        "config.json: `per_layer_config.3` = head_dim 16 and num_key_value_heads 1 is not supported; supported: the same \
         for all blocks of a kind, and those of the model for blocks that slide"
    );
    assert_eq!(
        error_with("gemma4", "vocab_size_per_layer_input", json!(0)),
        "config.json: `vocab_size_per_layer_input` is 0, expected a positive integer"
    );
    let message = "config.json: `layer_norm_elementwise_affine` = false is not supported; supported: true";
    assert_eq!(error_with("opt", "layer_norm_elementwise_affine", json!(false)), message);
    let message = "config.json: `word_embed_proj_dim` = 20 is not supported; supported: the hidden size, or another where \
        do_layer_norm_before is false (OPT-350m)";
    assert_eq!(error_with("opt", "word_embed_proj_dim", json!(20)), message);
    assert_eq!(
        error_with("qwen3-window", "layer_types", json!(["full_attention", "linear_attention"])),
        "config.json: `layer_types` = \"linear_attention\" is not supported; supported: full_attention, \
         sliding_attention"
    );
}

#[test]
fn values_that_cannot_be() {
    let cases = [
        ("hidden_size", json!("wide"), "`hidden_size` is \"wide\", expected a non-negative integer"),
        ("hidden_size", Value::Null, "`hidden_size` is missing, expected a positive integer"),
        ("num_attention_heads", json!(0), "`num_attention_heads` is 0, expected a positive integer"),
        ("num_hidden_layers", json!(0), "`num_hidden_layers` is 0, expected a positive integer"),
        ("vocab_size", json!(-1), "`vocab_size` is -1, expected a non-negative integer"),
        ("head_dim", json!(7), "`head_dim` is 7, expected an even number, whose halves rotate"),
        ("rms_norm_eps", json!("small"), "`rms_norm_eps` is \"small\", expected a number"),
        ("tie_word_embeddings", json!(1), "`tie_word_embeddings` is 1, expected true or false"),
        ("rope_parameters", json!([1]), "`rope_parameters` is [1], expected an object"),
        (
            "rope_parameters",
            json!({"rope_type": "linear"}),
            "`rope_parameters.factor` is missing, expected a number",
        ),
        (
            "rope_parameters",
            json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
            "`rope_parameters.short_factor` is [1.0], expected one number per rotated pair",
        ),
    ];
    for (key, value, message) in cases {
        assert_eq!(error_with("llama", key, value), format!("config.json: {message}"));
    }
    assert_eq!(
        error_with("mistral", "sliding_window", json!(0)),
        "config.json: `sliding_window` is 0, expected a positive integer, or null for none"
    );
    assert_eq!(
        error_with("qwen2-window", "layer_types", json!(["full_attention"])),
        "config.json: `layer_types` is [\"full_attention\"], expected one entry per layer"
    );
}

fn spec(config: Value) -> Spec {
    let Value::Object(json) = config else { panic!("an object") };
    Spec::from_config(&ConfigFile { json }).unwrap()
}

/// What a key means when it is not there, and when it is null.
#[test]
fn absent_and_null_keys() {
    let of = |model_type: &str, more: Value| {
        let mut config = json!({
            "model_type": model_type, "hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 64,
            "intermediate_size": 8, "vocab_size": 8,
        });
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        spec(config)
    };
    let windows = |model_type, more| -> Vec<Option<usize>> {
        of(model_type, more).layers.iter().map(|layer| layer.window).collect()
    };
    assert_eq!(windows("mistral", json!({})), [Some(4096); 3]);
    assert_eq!(windows("mistral", json!({"sliding_window": null})), [None; 3]);
    assert_eq!(windows("mistral", json!({"sliding_window": 9})), [Some(9); 3]);
    assert_eq!(windows("llama", json!({"sliding_window": 9})), [None; 3]);
    for family in ["qwen2", "qwen3"] {
        assert_eq!(windows(family, json!({"sliding_window": 9})), [None; 3]);
        let on = json!({"use_sliding_window": true, "max_window_layers": 1});
        assert_eq!(windows(family, on), [None, Some(4096), Some(4096)]);
        let null = json!({"use_sliding_window": true, "max_window_layers": 1, "sliding_window": null});
        assert_eq!(windows(family, null), [None; 3]);
        let full = json!({"use_sliding_window": true, "sliding_window": 9});
        assert_eq!(windows(family, full), [None; 3], "28 layers see everything where nothing is said");
        let types = ["sliding_attention", "full_attention", "sliding_attention"];
        let listed = json!({
            "use_sliding_window": true, "sliding_window": 9, "max_window_layers": 0, "layer_types": types,
        });
        assert_eq!(windows(family, listed), [Some(9), None, Some(9)], "the list counts");
        let off = json!({"use_sliding_window": false, "sliding_window": 9, "layer_types": types});
        assert_eq!(windows(family, off), [None; 3]);
    }
    let kv = |model_type, more| of(model_type, more).kv_heads;
    let null = || json!({"num_key_value_heads": null});
    assert_eq!((kv("llama", json!({})), kv("llama", null())), (64, 64));
    assert_eq!((kv("mistral", json!({})), kv("mistral", null())), (8, 64));
    assert_eq!((kv("qwen2", json!({})), kv("qwen2", null())), (32, 64));
    assert_eq!((of("qwen3", json!({})).head_dim, of("qwen2", json!({})).head_dim), (128, 8));
    let llama = of("llama", json!({}));
    assert_eq!(
        (llama.ropes[0].theta, &llama.ropes[0].kind, llama.max_positions),
        (10_000.0, &RopeKind::Default, 2048)
    );
    assert_eq!(llama.norm_eps, 1e-6);
}

/// Sizes and classes tell the Baichuans apart, as their configurations do not.
#[test]
fn baichuans_are_told_apart() {
    let of = |class: &str, hidden: usize, vocab: usize| {
        let spec = spec(json!({
            "model_type": "baichuan", "architectures": [class], "hidden_size": hidden, "num_hidden_layers": 1,
            "num_attention_heads": hidden / 128, "intermediate_size": 8, "vocab_size": vocab,
        }));
        (spec.ropes.len(), spec.slopes.len(), spec.unit_head)
    };
    assert_eq!(of("BaiChuanForCausalLM", 4096, 64_000), (1, 0, false), "7B");
    assert_eq!(of("BaichuanForCausalLM", 5120, 64_000), (0, 40, false), "13B");
    assert_eq!(of("BaichuanForCausalLM", 4096, 125_696), (1, 0, true), "the second 7B");
    assert_eq!(of("BaichuanForCausalLM", 5120, 125_696), (0, 40, true), "the second 13B");
}

/// PEFT adapts no head whose rows have length one.
#[test]
fn heads_of_unit_rows_have_no_adapters() {
    let opened = ModelFolder::open(fixtures().join("baichuan2")).unwrap();
    let planned = |targets: &str| {
        let config = format!(r#"{{"peft_type": "LORA", "r": 2, "target_modules": {targets}}}"#);
        let config = LoraConfig::from_json(&config).unwrap();
        ModelPlan::new(&opened, &Tuning::NewAdapter(&config), Dtype::F32, 0).map(|_| ())
    };
    planned(r#"["W_pack"]"#).unwrap();
    let said = planned(r#"["lm_head"]"#).unwrap_err().to_string();
    assert!(said.contains("lm_head"), "{said}");
}

/// Published folders of ChatGLM have a buffer that nothing reads.
#[test]
fn frequencies_of_rotations_are_passed_by() {
    let folder = reweighted("chatglm", |w| {
        let name = "transformer.rotary_pos_emb.inv_freq".to_owned();
        w.push((name, HostTensor::zeros(Dtype::F32, &[3])));
    });
    let rows = [vec![3, 1, 4]];
    let got = crate::recordings::logits(&load(folder.path(), &device()).unwrap().decoder, &rows);
    let wanted = load(fixtures().join("chatglm"), &device()).unwrap();
    assert_eq!(got, crate::recordings::logits(&wanted.decoder, &rows));
}

#[test]
fn folders_of_the_bare_transformer_load() {
    // Saved from the model class without a head: names lack `model.`, and the head is tied.
    let folder = reweighted("llama-tied", |w| {
        w.retain(|(n, _)| n != "lm_head.weight");
        for (name, _) in w.iter_mut() {
            *name = name.strip_prefix("model.").unwrap().to_owned();
        }
    });
    let rows = [vec![3, 1, 4]];
    let got = crate::recordings::logits(&load(folder.path(), &device()).unwrap().decoder, &rows);
    let wanted = load(fixtures().join("llama-tied"), &device()).unwrap();
    assert_eq!(got, crate::recordings::logits(&wanted.decoder, &rows));
    assert_eq!(ModelFolder::open(folder.path()).unwrap().stored_dtype(), Dtype::F32);
}
