//! Adapters that wait for tokens (aLoRA): where they act in texts, in generation and in turns, and what they are refused.

use std::sync::Arc;

use burnish_core::Dtype;
use burnish_models::{
    ContinuousBatch, Conversation, Decoder, Generation, Mode, Model, ModelFolder, Sequence, Tokens, Tuning,
    load,
};
use burnish_ops::head_logits;
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_weight_files::FolderWriter;

use crate::recordings::{close, device, fixtures, ids, json, logits};
use crate::round_trips::{adapted, answers, target};

const CASES: [(&str, &str); 2] = [("alora", "qwen2"), ("alora_bias", "phi3")];
const WAITS: &str = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "lora_bias": true,
    "target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"], "alora_invocation_tokens": [1, 5]}"#;

fn open(case: &str, base: &str) -> Model {
    let folder = ModelFolder::open(fixtures().join(base)).unwrap();
    let adapter = AdapterFolder::open(fixtures().join("peft").join(case)).unwrap();
    Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0, &device()).unwrap()
}

fn settings() -> Generation {
    Generation { max_new_tokens: 6, ..Generation::default() }
}

/// Prompts with an invocation, without, with two and with one at their end: together, in turn, and joining late.
#[test]
fn generated_text_is_peft_s() {
    for (case, base) in CASES {
        let model = open(case, base).decoder;
        let expected = json(&fixtures().join("peft").join(case).join("expected_logits.json"));
        let recorded = expected["generated"].as_array().unwrap();
        let prompts: Vec<Vec<u32>> = recorded.iter().map(|one| ids(&one["prompt"])).collect();
        let wanted: Vec<Vec<u32>> = recorded.iter().map(|one| ids(&one["tokens"])).collect();
        for max_sequences in [0, 1, 3] {
            let options = Generation { max_sequences, ..settings() };
            let done = model.generate(&prompts, &options, &mut |_, _| true).unwrap();
            let got: Vec<Vec<u32>> = done.into_iter().map(|completion| completion.token_ids).collect();
            assert_eq!(got, wanted, "{case}, {max_sequences} at once");
        }
        // The others join a step later.
        let sequence = |at: usize| Sequence {
            id: at as u64,
            prompt: prompts[at].clone(),
            adapter: None,
            settings: Arc::new(settings()),
        };
        let mut batch = ContinuousBatch::new(&model);
        let mut done = batch.join(vec![sequence(1)], None, &mut |_, _| true).unwrap();
        done.extend(batch.step(&mut |_, _| true).unwrap());
        done.extend(batch.join(vec![sequence(0), sequence(2), sequence(3)], None, &mut |_, _| true).unwrap());
        while !batch.is_empty() {
            done.extend(batch.step(&mut |_, _| true).unwrap());
        }
        for (at, completion) in done {
            assert_eq!(completion.token_ids, wanted[at as usize], "{case}, {at}");
        }
    }
}

fn base_logits(model: &Decoder, text: &[u32]) -> Vec<f32> {
    let tokens = Tokens::from_sequences(&[text]);
    let pass = burnish_models::ForwardContext::new(model.parameters().clone(), Mode::Score, false);
    let hidden = model.hidden(&tokens, &pass).unwrap();
    let hidden = model.final_norm(&hidden, &pass).unwrap();
    head_logits(&hidden, &model.head(&pass, &tokens.rows).unwrap(), model.head_options(1.0)).unwrap()
}

/// Documents of one row are texts of their own; before the invocation, and without one, the base answers.
#[test]
fn it_acts_from_the_last_invocation_of_each_text_on() {
    let (folder, model) = adapted("llama-bias", WAITS);
    let base = load(folder.path(), &device()).unwrap().decoder;
    let model = model.decoder;
    let texts: [&[u32]; 4] = [&[3, 1, 5, 4, 1, 5, 9, 2], &[5, 3, 1], &[5, 1, 1, 5], &[1, 5, 7]];
    let vocab = model.spec().vocab;
    let packed = logits(&model, &texts.map(<[u32]>::to_vec));
    let mut at = 0;
    for (text, begins) in texts.iter().zip([4, 3, 2, 0]) {
        let own = &packed[at..at + text.len() * vocab];
        at += text.len() * vocab;
        close("packed", own, &logits(&model, &[text.to_vec()]), 1e-5);
        let plain = logits(&base, &[text.to_vec()]);
        assert_eq!(base_logits(&model, text), plain);
        if begins > 0 {
            close("before it", &own[..begins * vocab], &plain[..begins * vocab], 1e-6);
        }
        for (token, (own, plain)) in
            own.chunks_exact(vocab).zip(plain.chunks_exact(vocab)).enumerate().skip(begins)
        {
            assert!(own.iter().zip(plain).any(|(x, y)| (x - y).abs() > 0.01), "token {token} of {text:?}");
        }
    }
}

/// In each turn it acts from the last invocation of the whole text on, whatever the turns before had.
#[test]
fn turns_answer_as_their_whole_text_would() {
    let (_, model) = adapted("llama-bias", WAITS);
    let model = model.decoder;
    let mut conversation = Conversation::new(&model);
    let mut text = Vec::new();
    for said in [&[3, 1, 4][..], &[9, 1, 5], &[6, 2], &[1, 5, 8], &[7]] {
        text.extend_from_slice(said);
        let reply = conversation.reply(&text, &settings(), &mut |_| true).unwrap().token_ids;
        let whole = model.generate(std::slice::from_ref(&text), &settings(), &mut |_, _| true).unwrap();
        assert_eq!(reply, whole[0].token_ids, "after {text:?}");
        text.extend(reply);
    }
}

#[test]
fn it_is_written_as_it_was_read_and_not_merged() {
    let (folder, model) = adapted("llama-bias", WAITS);
    let (_guard, path, mut writer) = target();
    model.write_adapter(&mut writer).unwrap();
    writer.commit().unwrap();
    let adapter = AdapterFolder::open(&path).unwrap();
    assert_eq!(adapter.config.invocation(), Some(&[1, 5][..]));
    let again = Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0, &device()).unwrap();
    assert_eq!(answers(&again), answers(&model));
    let merged = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::new_folder(merged.path().join("merged")).unwrap();
    let error = model.write_merged(&folder, &mut writer, Dtype::F32).unwrap_err().to_string();
    assert!(error.contains("alora_invocation_tokens") && error.contains("[1, 5]"), "{error}");
    // What PEFT wrote is written again as it is.
    for (case, base) in CASES {
        let (_guard, path, mut writer) = target();
        open(case, base).write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            let bytes = |folder: &std::path::Path| std::fs::read(folder.join(file)).unwrap();
            let same = bytes(&path) == bytes(&fixtures().join("peft").join(case));
            assert!(same || file != "adapter_config.json", "{case}: {file}");
        }
    }
}

#[test]
fn where_peft_has_no_such_variant_it_is_refused() {
    for (base, more, why) in [
        ("llama", r#""target_modules": ["q_proj", "embed_tokens"]"#, "embed_tokens"),
        ("llama", r#""target_modules": ["q_proj", "lm_head"]"#, "lm_head"),
        ("llama", r#""target_modules": ["q_proj"], "use_dora": true"#, "use_dora"),
        ("qwen2-moe", r#""target_parameters": ["experts.down_proj"], "target_modules": []"#, "experts"),
    ] {
        let config = format!(r#"{{"peft_type": "LORA", "alora_invocation_tokens": [4], {more}}}"#);
        let config = LoraConfig::from_json(&config).unwrap();
        let folder = ModelFolder::open(fixtures().join(base)).unwrap();
        let error = Model::load(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 0, &device());
        let error = error.err().unwrap_or_else(|| panic!("{base} {more}")).to_string();
        assert!(error.contains("alora_invocation_tokens") && error.contains(why), "{more}: {error}");
    }
    let config =
        r#"{"peft_type": "LORA", "alora_invocation_tokens": [4, 4000], "target_modules": ["q_proj"]}"#;
    let config = LoraConfig::from_json(config).unwrap();
    let folder = ModelFolder::open(fixtures().join("llama")).unwrap();
    let error = Model::load(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 0, &device());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("4000") && error.contains("vocabulary"), "{error}");
}
