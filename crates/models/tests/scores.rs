//! Models that score texts, against Transformers and PEFT.

use std::path::Path;

use burnish_comm::local;
use burnish_core::Dtype;
use burnish_models::{
    DropoutStep, Generation, LocalParams, Mode, Model, ModelError, ModelFolder, ModelPlan, Output, PassSize,
    Tokens, Tuning, load,
};
use burnish_ops::{AnyTensor, Parameters};
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_tp::{PartialGrad, Tp};
use burnish_weight_files::WeightFolder;
use serde_json::{Value, json};

use crate::recordings::{close, device, fixtures, floats, ids, json as read_json, logits};
use crate::round_trips::target;

const TOLERANCE: f32 = 1e-5;
const ADAPTER: &str = r#"{"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 3, "lora_alpha": 6,
    "target_modules": "all-linear"}"#;

fn rows(case: &Value) -> Vec<Vec<u32>> {
    case["input_ids"].as_array().unwrap().iter().map(ids).collect()
}

fn rewards(model: &Model, rows: &[Vec<u32>]) -> Vec<f32> {
    let decoder = &model.decoder;
    decoder.rewards(&Tokens::from_sequences(rows), &decoder.pass(Mode::Score)).unwrap().to_f32()
}

/// Adds the gradients of `sum(c * rewards)`; returns the rewards.
fn backward(model: &Model, rows: &[Vec<u32>], coefficients: &[f32], mode: Mode) -> Vec<f32> {
    let pass = model.decoder.pass(mode);
    let scores = model.decoder.rewards(&Tokens::from_sequences(rows), &pass).unwrap();
    let c = AnyTensor::from_elements(coefficients.to_vec(), &[coefficients.len()], &device());
    let sum = (scores.rank::<1>().unwrap() * c.rank::<1>().unwrap()).sum();
    pass.backward(&AnyTensor::new(sum)).unwrap();
    scores.to_f32()
}

fn check(case: &Path, model: &Model, resident: &LocalParams, prefix: &str, mode: Mode) {
    let expected = read_json(&case.join("scores.json"));
    let what = case.file_name().unwrap().to_string_lossy();
    let got = backward(model, &rows(&expected), &floats(&expected["coefficients"]), mode);
    close(&what, &got, &floats(&expected["rewards"]), TOLERANCE);
    let recorded = WeightFolder::open_stem(case, "gradients").unwrap();
    let mut found = 0;
    for (index, parameter) in resident.registry().iter().enumerate() {
        let Some(gradient) = resident.take_gradient(index) else {
            assert!(!parameter.trainable, "{what}: no gradient of {}", parameter.name);
            continue;
        };
        let name = parameter.name.strip_prefix("modules_to_save.").unwrap_or(&parameter.name);
        let want = recorded.read(&format!("{prefix}{name}")).unwrap().to_f32();
        let largest = want.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        close(&format!("{what}: {name}"), &gradient.to_f32(), &want, TOLERANCE * largest.max(1e-2));
        found += 1;
    }
    assert_eq!(found, recorded.names().count(), "{what}");
}

const MODES: [Mode; 2] =
    [Mode::Train { recompute: false, dropout: None }, Mode::Train { recompute: true, dropout: None }];

#[test]
fn rewards_and_gradients_are_transformers() {
    let case = fixtures().join("score-llama");
    for mode in MODES {
        let folder = ModelFolder::open(&case).unwrap();
        let planned = ModelPlan::new(&folder, &Tuning::Full, Dtype::F32, 0).unwrap();
        let (model, resident) = planned.resident(&device()).unwrap();
        assert_eq!(model.decoder.spec().output, Output::Score);
        check(&case, &model, &resident, "", mode);
    }
}

#[test]
fn rewards_and_gradients_of_an_adapter_are_peft_s() {
    let case = fixtures().join("score-qwen3-lora");
    let adapter = AdapterFolder::open(&case).unwrap();
    for mode in MODES {
        // A language model's folder: the adapter says what it is for.
        let folder = ModelFolder::open(fixtures().join("qwen3")).unwrap().for_adapter(&adapter);
        let planned = ModelPlan::new(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0).unwrap();
        let (model, resident) = planned.resident(&device()).unwrap();
        check(&case, &model, &resident, "", mode);
    }
}

#[test]
fn models_of_recorded_runs_load() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainers/tests/fixtures/trl-runs");
    let mut told = recordings::Replay::of("reward models of recorded runs");
    for runs in [Some(own), recordings::given("trl-runs")].into_iter().flatten() {
        for run in std::fs::read_dir(runs).unwrap().map(|e| e.unwrap().path()) {
            let start = run.join("model_start");
            if !start.is_dir() {
                continue;
            }
            let model = match load(&start, &device()) {
                Ok(model) => model,
                Err(why @ ModelError::Unsupported { .. }) => {
                    told.refused(run.display(), why);
                    continue;
                }
                Err(error) => panic!("{}: {error}", start.display()),
            };
            let rewards = rewards(&model, &[vec![5, 6, 7, 8], vec![9, 10]]);
            assert!(rewards.len() == 2 && rewards.iter().all(|r| r.is_finite() && *r != 0.0), "{rewards:?}");
            told.replayed();
        }
    }
    assert!(told.finish().0 >= 1, "the repository's own run has a reward model");
}

/// On a language model the score is new, and all else is as it was.
#[test]
fn a_scorer_starts_from_a_language_model() {
    for base in ["llama", "llama-tied", "llama-bf16", "phi3", "phi", "gptj"] {
        let path = fixtures().join(base);
        let started = |seed| {
            let folder = ModelFolder::open(&path).unwrap().into_scorer();
            Model::load(&folder, &Tuning::Full, Dtype::F32, seed, &device()).unwrap()
        };
        let model = started(3);
        let registry = model.parameters.registry();
        assert!(registry.index_of("lm_head.weight").is_none());
        let score = registry.index_of("score.weight").unwrap();
        let value = model.host(score).to_f32();
        let hidden = model.decoder.spec().hidden;
        assert_eq!(registry.at(score).shape, [1, hidden]);
        let deviation = (value.iter().map(|x| x * x).sum::<f32>() / hidden as f32).sqrt();
        let range = model.decoder.spec().initializer_range as f32;
        assert!((0.6..1.5).contains(&(deviation / range)), "{base}: {deviation} for {range}");
        assert_eq!(value, started(3).host(score).to_f32(), "a function of the seed");
        assert_ne!(value, started(4).host(score).to_f32());
        // The score is the product with the hidden state of the last token that the language model has.
        let rows = [vec![3, 1, 4, 1, 5], vec![9, 2]];
        let language = load(&path, &device()).unwrap().decoder;
        let pass = language.pass(Mode::Score);
        let tokens = Tokens::from_sequences(&rows);
        let states = language.final_norm(&language.hidden(&tokens, &pass).unwrap(), &pass).unwrap().to_f32();
        let product = |at: usize| -> f32 {
            states[at * hidden..(at + 1) * hidden].iter().zip(&value).map(|(x, w)| x * w).sum()
        };
        close(base, &rewards(&model, &rows), &[product(4), product(6)], TOLERANCE);
    }
}

#[test]
fn folders_are_written_as_transformers_does_and_load_again() {
    let rows = [vec![3, 1, 4, 1, 5], vec![9, 2]];
    for base in ["score-llama", "llama-tied", "phi3", "qwen3"] {
        let folder = ModelFolder::open(fixtures().join(base)).unwrap().into_scorer().with_pad_token(6);
        let model = Model::load(&folder, &Tuning::Full, Dtype::F32, 3, &device()).unwrap();
        let (_guard, path, mut writer) = target();
        model.write_full(&folder, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();
        let config = read_json(&path.join("config.json"));
        let class = config["architectures"][0].as_str().unwrap();
        assert!(class.ends_with("ForSequenceClassification"), "{class}");
        assert_eq!(config["id2label"], json!({"0": "LABEL_0"}));
        assert_eq!(config["label2id"], json!({"LABEL_0": 0}));
        assert_eq!(config["pad_token_id"], 6);
        let weights = WeightFolder::open(&path).unwrap();
        assert_eq!(weights.info("score.weight").unwrap().shape[0], 1);
        assert!(!weights.contains("lm_head.weight"), "{base}");
        let again = load(&path, &device()).unwrap();
        assert_eq!(rewards(&again, &rows), rewards(&model, &rows), "{base}");
    }
}

#[test]
fn an_adapter_trains_and_keeps_the_score() {
    let config = LoraConfig::from_json(ADAPTER).unwrap();
    let rows = [vec![3, 1, 4, 1, 5], vec![9, 2]];
    let folder = ModelFolder::open(fixtures().join("llama")).unwrap().into_scorer();
    let model = Model::load(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 3, &device()).unwrap();
    let trained: Vec<&str> = model.parameters.registry().trainable().map(|p| p.name.as_str()).collect();
    assert!(trained.contains(&"modules_to_save.score.weight") && !trained.contains(&"score.weight"));
    assert!(!trained.iter().any(|name| name.contains("score.lora")), "the head is not among all-linear");
    let expected = rewards(&model, &rows);
    let (_guard, path, mut writer) = target();
    model.write_adapter(&mut writer).unwrap();
    writer.commit().unwrap();
    let written = read_json(&path.join("adapter_config.json"));
    assert_eq!((&written["task_type"], &written["modules_to_save"]), (&json!("SEQ_CLS"), &json!(["score"])));
    let stored = WeightFolder::open_stem(&path, "adapter_model").unwrap();
    assert_eq!(stored.info("base_model.model.score.weight").unwrap().shape, [1, 32]);
    // Another seed: the score is the file's.
    let adapter = AdapterFolder::open(&path).unwrap();
    let model = Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 9, &device()).unwrap();
    assert_eq!(rewards(&model, &rows), expected);
    let (_merged_guard, merged, mut writer) = target();
    model.write_merged(&folder, &mut writer, Dtype::F32).unwrap();
    writer.commit().unwrap();
    close("merged", &rewards(&load(&merged, &device()).unwrap(), &rows), &expected, TOLERANCE);
}

/// Every rank has every reward, the score and its whole gradient; what is divided has its part.
#[test]
fn ranks_that_share_layers_give_one_rank_s_rewards_and_gradients() {
    let rows = [vec![3, 1, 4, 1, 5], vec![9, 2], vec![7, 8, 6]];
    let coefficients = [0.5, -1.25, 2.0];
    let mode = Mode::Train { recompute: true, dropout: Some(DropoutStep { seed: 4, step: 7 }) };
    let adapter = r#"{"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 3, "lora_alpha": 6, "lora_dropout": 0.2,
        "target_modules": "all-linear"}"#;
    let on_score = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["score", "q_proj"]}"#;
    for config in [None, Some(adapter), Some(on_score)] {
        let config = config.map(|c| LoraConfig::from_json(c).unwrap());
        let run = |tp: &Tp, traffic: &dyn Fn() -> burnish_comm::Traffic| {
            let folder = ModelFolder::open(fixtures().join("qwen3")).unwrap().into_scorer();
            let tuning = config.as_ref().map_or(Tuning::Full, Tuning::NewAdapter);
            let planned = ModelPlan::new(&folder, &tuning, Dtype::F32, 5).unwrap().over(tp).unwrap();
            let parallel = planned.parallel().unwrap().clone();
            let size = PassSize { tokens: 10, targets: rows.len(), texts: rows.len(), recompute: true };
            let forecast = planned.forecast(&parallel, &size, 1).traffic().clone();
            let (model, resident) = planned.resident(&device()).unwrap();
            traffic();
            let scores = backward(&model, &rows, &coefficients, mode);
            tp.check().unwrap();
            let moved = traffic();
            let registry = resident.registry();
            let mut addends = Vec::new();
            for (index, p) in registry.iter().enumerate().filter(|(_, p)| p.trainable) {
                let gradient = resident.take_gradient(index).unwrap();
                let placement = parallel.tp_layout(index);
                assert!(!p.name.contains("score") || placement.layout().split().is_none(), "{}", p.name);
                addends.push(PartialGrad { name: &p.name, layout: placement, rows: 0..p.shape[0], gradient });
            }
            tp.sum_partial(&mut addends).unwrap();
            let found: Vec<_> = addends
                .into_iter()
                .map(|a| (a.name.to_owned(), a.layout.clone(), a.gradient.to_f32()))
                .collect();
            (scores, found, moved, forecast)
        };
        let none = burnish_comm::Traffic::default;
        let (want_scores, whole, _, _) = run(&Tp::alone(), &none);
        for ranks in [2, 4] {
            for (rank, result) in local::run(ranks, |world| {
                let group = world.group();
                let traffic = || {
                    let traffic = group.traffic();
                    group.clear_traffic();
                    traffic
                };
                run(&Tp::new(&world.group()), &traffic)
            })
            .into_iter()
            .enumerate()
            {
                let (scores, parts, moved, forecast) = result.unwrap();
                close("rewards", &scores, &want_scores, TOLERANCE);
                assert_eq!(moved, forecast, "{ranks} ranks");
                for ((name, placement, got), (_, _, want)) in parts.iter().zip(&whole) {
                    let largest = want.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                    let what = format!("{name} of rank {rank} of {ranks}");
                    close(
                        &what,
                        got,
                        &placement.layout().shard(want, rank),
                        2.0 * TOLERANCE * largest.max(1e-3),
                    );
                }
            }
        }
    }
}

#[test]
fn heads_are_not_mistaken_for_each_other() {
    let language = load(fixtures().join("llama"), &device()).unwrap().decoder;
    let tokens = Tokens::from_sequences(&[[1, 2]]);
    let refused = language.rewards(&tokens, &language.pass(Mode::Score));
    assert!(matches!(refused, Err(ModelError::NoScore)), "{refused:?}");
    let scorer = load(fixtures().join("score-llama"), &device()).unwrap().decoder;
    let generated = scorer.generate(&[vec![1]], &Generation::default(), &mut |_, _| true);
    assert!(matches!(generated, Err(ModelError::NoVocabulary)), "{generated:?}");
    let head = scorer.head(&scorer.pass(Mode::Score), &tokens.rows);
    assert!(matches!(head, Err(ModelError::NoVocabulary)));
    let empty = Tokens::from_sequences(&[vec![1, 2], vec![]]);
    let refused = scorer.rewards(&empty, &scorer.pass(Mode::Score));
    assert!(matches!(refused, Err(ModelError::EmptyDocument { row: 1 })), "{refused:?}");
    // Two labels, in either spelling.
    for change in [json!({"id2label": {"0": "A", "1": "B"}}), json!({"id2label": null})] {
        let copy = tempfile::tempdir().unwrap();
        let mut config = read_json(&fixtures().join("score-llama/config.json"));
        for (key, value) in change.as_object().unwrap() {
            config[key] = value.clone();
        }
        std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
        let message = ModelFolder::open_untrained(copy.path()).err().unwrap().to_string();
        assert!(message.contains("2 labels"), "{message}");
    }
    // A language model's logits are untouched by what stands beside.
    assert_eq!(logits(&language, &[vec![1, 2]]).len(), 2 * language.spec().vocab);
}
