//! Batches whose sequences each have another adapter of one base, or none: tokens and logits are those of each alone.

use std::path::PathBuf;
use std::sync::Arc;

use burnish_comm::local;
use burnish_core::Dtype;
use burnish_models::{
    AdaptedPrompt, ContinuousBatch, Decoder, Decoding, Generation, MixedAdapters, Model, ModelError,
    ModelFolder, Sequence, Tokens, Tuning, load,
};
use burnish_peft::{AdapterFolder, PeftError};
use burnish_tp::{AdapterSum, AdapterSums, Tp};
use tempfile::TempDir;

use crate::recordings::{close, device, fixtures};
use crate::round_trips::{adapted, target};

/// Of other ranks, targets and scales, one with ranks of its own for a module.
const CONFIGS: [&str; 3] = [
    r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}"#,
    r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 1, "use_rslora": true, "target_modules": "all-linear",
        "rank_pattern": {"o_proj": 5}, "alpha_pattern": {"layers.1.self_attn.o_proj": 3}}"#,
    r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 2, "layers_to_transform": [1],
        "target_modules": ["k_proj", "o_proj"]}"#,
];

struct Written {
    _guards: Vec<TempDir>,
    paths: Vec<PathBuf>,
    /// Each adapter alone.
    alone: Vec<Decoder>,
    /// The base.
    base: Decoder,
    mixed: Decoder,
}

fn written(base: &str, names: &[(&str, &str)]) -> Written {
    let (mut guards, mut paths, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    let folder = ModelFolder::open(fixtures().join(base)).unwrap();
    let mut adapters = MixedAdapters::new(&folder);
    for (at, config) in CONFIGS.iter().enumerate() {
        let (guard, path, mut writer) = target();
        let config = names.iter().fold((*config).to_owned(), |config, (from, to)| config.replace(from, to));
        adapted(base, &config).1.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let adapter = AdapterFolder::open(&path).unwrap();
        assert_eq!(adapters.add(&format!("a{at}"), &adapter).unwrap(), at);
        let model = Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0, &device()).unwrap();
        alone.push(model.decoder);
        guards.push(guard);
        paths.push(path);
    }
    assert_eq!((adapters.len(), adapters.rank()), (3, 4 + 5 + 1));
    let base = load(folder.path(), &device()).unwrap().decoder;
    let mixed = adapters.plan().unwrap().resident(&device()).unwrap().0.decoder;
    assert_eq!((mixed.adapters(), base.adapters(), alone[0].adapters()), (3, 0, 0));
    Written { _guards: guards, paths, alone, base, mixed }
}

impl Written {
    fn own(&self, adapter: Option<usize>) -> &Decoder {
        adapter.map_or(&self.base, |adapter| &self.alone[adapter])
    }
}

fn settings() -> Generation {
    Generation { max_new_tokens: 7, log_probs: true, ..Generation::default() }
}

/// Families, and what stands there in place of names of Llama's.
const FAMILIES: [(&str, &[(&str, &str)]); 3] = [
    ("llama-bias", &[]),
    ("phi3-longrope", &[(r#""q_proj", "v_proj""#, r#""qkv_proj""#), (r#""k_proj""#, r#""qkv_proj""#)]),
    ("qwen2-moe", &[]),
];

#[test]
fn logits_are_those_of_each_adapter_alone_in_prompts_and_after_them() {
    for (base, names) in FAMILIES {
        let all = written(base, names);
        let long: Vec<u32> = (0..31).map(|i| 1 + i % 9).collect();
        let prompts: [(&[u32], Option<usize>); 6] = [
            (&[3, 1, 4, 1], Some(0)),
            (&[3, 1, 4, 1], None),
            (&[3, 1, 4, 1], Some(1)),
            (&[5, 9], Some(2)),
            (&[5, 9], Some(2)),
            // With the tokens below it grows beyond Phi-3's original positions.
            (&long, Some(1)),
        ];
        let adapted = prompts.map(|(tokens, adapter)| AdaptedPrompt { tokens, adapter });
        let mut mixed = Decoding::new(&all.mixed, 0);
        // The last prompt begins again in the next call, by its adapter and by another.
        let mut got = vec![mixed.join_adapted(&adapted[..5], Some(adapted[4])).unwrap()];
        got[0].extend(mixed.join_adapted(&[adapted[4], adapted[5]], Some(adapted[5])).unwrap());
        let other = AdaptedPrompt { adapter: Some(0), ..adapted[5] };
        got[0].extend(mixed.join_adapted(&[other], None).unwrap());
        let order = [0, 1, 2, 3, 4, 4, 5].map(|at: usize| adapted[at]).into_iter().chain([other]);
        let order: Vec<AdaptedPrompt<'_>> = order.collect();
        let next = [[7], [7], [7], [8], [8], [1], [2], [2]];
        got.push(mixed.logits(&next).unwrap());
        got.push(mixed.logits(&next).unwrap());
        let vocab = all.mixed.spec().vocab;
        let mut seen: Vec<Vec<f32>> = Vec::new();
        for (row, prompt) in order.iter().enumerate() {
            let mut own = Decoding::new(all.own(prompt.adapter), 1);
            let mut want = own.logits(&[prompt.tokens]).unwrap();
            for (step, got) in got.iter().enumerate() {
                let of = &got[row * vocab..(row + 1) * vocab];
                close(&format!("{base}, row {row}, step {step}"), of, &want, 1e-5);
                if step == 0 {
                    seen.push(of.to_vec());
                }
                want = own.logits(&[next[row]]).unwrap();
            }
        }
        // One prompt by three adapters is three answers.
        for (a, b) in [(0, 1), (0, 2), (1, 2), (6, 7)] {
            let differ = seen[a].iter().zip(&seen[b]).any(|(x, y)| (x - y).abs() > 0.01);
            assert!(differ, "{base}: rows {a} and {b}");
        }
        // Sequences of the base alone are the base's to the bit.
        let texts = [[3, 1, 4], [5, 9, 2]];
        let of = |model: &Decoder| Decoding::of_prompts(model, &texts).unwrap().1;
        assert_eq!(of(&all.mixed), of(&all.base), "{base}");
    }
}

#[test]
fn text_is_that_of_each_adapter_alone_while_others_join_and_leave() {
    let all = written("llama-bias", &[]);
    let prompts: Vec<Vec<u32>> =
        [&[3, 1, 4][..], &[3, 1, 4], &[3, 1, 4], &[9, 2], &[9, 2], &[5, 6, 7, 8]].map(<[u32]>::to_vec).into();
    let of = [Some(0), None, Some(1), Some(2), Some(2), Some(1)];
    for sampled in [false, true] {
        let mut options = settings();
        options.sampling.do_sample = sampled;
        let alone = |row: usize| {
            let own = Generation { first_row: row as u64, ..options.clone() };
            all.own(of[row]).generate(&prompts[row..=row], &own, &mut |_, _| true).unwrap().remove(0)
        };
        for max_sequences in [0, 1, 2, 4] {
            let options = Generation { max_sequences, ..options.clone() };
            let done = all.mixed.generate_adapted(&prompts, &of, &options, &mut |_, _| true).unwrap();
            for (row, got) in done.iter().enumerate() {
                let want = alone(row);
                assert_eq!(got.token_ids, want.token_ids, "row {row}, {max_sequences} at once, {sampled}");
                close(&format!("row {row}"), &got.log_probs, &want.log_probs, 1e-5);
            }
        }
        // Without adapters all is the base's.
        let done = all.mixed.generate(&prompts, &options, &mut |_, _| true).unwrap();
        assert_eq!(done, all.base.generate(&prompts, &options, &mut |_, _| true).unwrap());
    }
    // One leaves before its end, another takes its place.
    let sequence = |row: usize| {
        let settings = Arc::new(settings());
        Sequence { id: row as u64, prompt: prompts[row].clone(), adapter: of[row], settings }
    };
    let mut batch = ContinuousBatch::new(&all.mixed);
    let mut done = batch.join(vec![sequence(0), sequence(1), sequence(3)], None, &mut |_, _| true).unwrap();
    done.extend(batch.step(&mut |_, _| true).unwrap());
    batch.leave(&[1]).unwrap();
    done.extend(batch.join(vec![sequence(2)], None, &mut |_, _| true).unwrap());
    while !batch.is_empty() {
        done.extend(batch.step(&mut |_, _| true).unwrap());
    }
    assert_eq!(done.len(), 3);
    for (id, got) in done {
        let row = id as usize;
        let own = all.own(of[row]).generate(&prompts[row..=row], &settings(), &mut |_, _| true).unwrap();
        assert_eq!(got.token_ids, own[0].token_ids, "row {row}");
    }
}

/// One adapter beside its base: alone in a pass and with a sequence of the base.
#[test]
fn one_adapter_and_its_base_are_a_batch() {
    let all = written("llama-bias", &[]);
    let folder = ModelFolder::open(fixtures().join("llama-bias")).unwrap();
    let mut adapters = MixedAdapters::new(&folder);
    adapters.add("a0", &AdapterFolder::open(&all.paths[0]).unwrap()).unwrap();
    let mixed = adapters.plan().unwrap().resident(&device()).unwrap().0.decoder;
    let prompts = vec![vec![3, 1, 4], vec![9, 2]];
    for of in [[Some(0), Some(0)], [Some(0), None], [None, None]] {
        let done = mixed.generate_adapted(&prompts, &of, &settings(), &mut |_, _| true).unwrap();
        for (row, got) in done.iter().enumerate() {
            let own = all.own(of[row]).generate(&prompts[row..=row], &settings(), &mut |_, _| true).unwrap();
            assert_eq!(got.token_ids, own[0].token_ids, "{of:?}, row {row}");
        }
    }
}

/// Two ranks that share layers, with adapters inside their layers' sums and beside them.
#[test]
fn ranks_that_share_layers_answer_as_one_does() {
    let all = written("llama-bias", &[]);
    let prompts = [[3, 1, 4], [3, 1, 4], [5, 9, 2]];
    let of = [None, Some(0), Some(1)];
    let say = |model: &Decoder| {
        let prompts: Vec<AdaptedPrompt<'_>> =
            prompts.iter().zip(of).map(|(tokens, adapter)| AdaptedPrompt { tokens, adapter }).collect();
        let mut decoding = Decoding::new(model, 0);
        let mut logits = decoding.join_adapted(&prompts, None).unwrap();
        logits.extend(decoding.logits(&[[7], [8], [6]]).unwrap());
        logits
    };
    let want = say(&all.mixed);
    for form in [AdapterSum::Fused, AdapterSum::RankR] {
        let results = local::run(2, |world| {
            let folder = ModelFolder::open(fixtures().join("llama-bias")).unwrap();
            let mut adapters = MixedAdapters::new(&folder);
            for path in &all.paths {
                adapters.add("one", &AdapterFolder::open(path).unwrap()).unwrap();
            }
            let sums = AdapterSums { rowwise: form, colwise: form };
            let plan = adapters.plan().unwrap().summing(sums).over(&Tp::new(&world.group())).unwrap();
            say(&plan.resident(&device()).unwrap().0.decoder)
        });
        for got in results {
            close(&format!("{form:?}"), &got.unwrap(), &want, 1e-5);
        }
    }
}

#[test]
fn what_cannot_be_mixed_is_said_by_name() {
    let folder = ModelFolder::open(fixtures().join("llama-bias")).unwrap();
    let mut adapters = MixedAdapters::new(&folder);
    for (more, key) in [
        (r#""target_modules": ["q_proj"], "use_dora": true"#, "use_dora"),
        (r#""target_modules": ["q_proj"], "lora_bias": true"#, "lora_bias"),
        (r#""target_modules": ["q_proj"], "alora_invocation_tokens": [4]"#, "alora_invocation_tokens"),
        (r#""target_modules": ["q_proj"], "modules_to_save": ["lm_head"]"#, "modules_to_save"),
        (r#""target_modules": ["q_proj"], "bias": "lora_only""#, "bias"),
        (r#""target_modules": ["q_proj", "lm_head"]"#, "target_modules"),
        (r#""target_modules": ["q_proj", "embed_tokens"]"#, "target_modules"),
        (r#""target_modules": ["q_proj"], "trainable_token_indices": [3]"#, "trainable_token_indices"),
        (r#""target_modules": ["q_proj"], "layer_replication": [[0, 2], [1, 2]]"#, "layer_replication"),
    ] {
        let (_guard, path, mut writer) = target();
        let config = format!(r#"{{"peft_type": "LORA", "r": 2, "lora_alpha": 4, {more}}}"#);
        adapted("llama-bias", &config).1.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        match adapters.add("one", &AdapterFolder::open(&path).unwrap()) {
            Err(ModelError::Peft(PeftError::NotMixed { adapter, key: got })) => {
                assert_eq!((adapter.as_str(), got), ("one", key));
            }
            other => panic!("{more}: {other:?}"),
        }
    }
    assert!(adapters.is_empty());
    assert!(adapters.plan().is_err_and(|error| error.to_string().contains("adapters")));
    // Prompts that name what is not there, and passes that cannot tell.
    let all = written("llama-bias", &[]);
    assert!(all.paths.iter().all(|path| path.is_dir()));
    let generate = |of| all.mixed.generate_adapted(&[vec![1, 2]], &[of], &settings(), &mut |_, _| true);
    let error = generate(Some(3)).unwrap_err().to_string();
    assert!(error.contains("adapter 3 of 3"), "{error}");
    let pass = burnish_models::ForwardContext::new(
        all.mixed.parameters().clone(),
        burnish_models::Mode::Score,
        true,
    );
    let tokens = Tokens::from_sequences(&[&[1, 2][..]]);
    let error = all.mixed.hidden(&tokens, &pass).err().unwrap().to_string();
    assert!(error.contains("of 0 documents") && error.contains("adapted_pass"), "{error}");
    let two = all.mixed.adapted_pass(vec![Some(0), None]).unwrap();
    assert!(all.mixed.hidden(&tokens, &two).is_err_and(|error| error.to_string().contains("of 2 documents")));
    let far = all.mixed.adapted_pass(vec![None, Some(3)]).err().unwrap().to_string();
    assert!(far.contains("adapter 3 of 3"), "{far}");
}

/// Documents of one pass, each by its adapter or the base.
#[test]
fn documents_of_a_pass_are_those_of_each_adapter_alone() {
    for (base, names) in FAMILIES {
        let all = written(base, names);
        let texts: [&[u32]; 5] = [&[3, 1, 4, 1], &[3, 1, 4], &[5, 9, 2, 6], &[7], &[8, 2, 8]];
        let of = [Some(1), None, Some(0), Some(2), Some(1)];
        let hidden = |decoder: &Decoder, texts: &[&[u32]], of: &[Option<usize>]| {
            let pass = decoder.adapted_pass(of.to_vec()).unwrap();
            decoder.hidden(&Tokens::from_sequences(texts), &pass).unwrap().to_f32()
        };
        let got = hidden(&all.mixed, &texts, &of);
        let width = got.len() / texts.iter().map(|text| text.len()).sum::<usize>();
        let mut at = 0;
        for (text, of) in texts.iter().zip(of) {
            let own = all.own(of);
            let pass = own.pass(burnish_models::Mode::Score);
            let want = own.hidden(&Tokens::from_sequences(&[*text]), &pass).unwrap().to_f32();
            let largest = want.iter().fold(1.0_f32, |top, x| top.max(x.abs()));
            close(base, &got[at * width..][..want.len()], &want, 1e-5 * largest);
            at += text.len();
        }
        // None of them has one: the base to the bit.
        let pass = all.base.pass(burnish_models::Mode::Score);
        let want = all.base.hidden(&Tokens::from_sequences(&texts), &pass).unwrap().to_f32();
        assert_eq!(hidden(&all.mixed, &texts, &[None; 5]), want, "{base}");
    }
}
