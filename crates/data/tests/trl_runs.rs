//! The recorded runs: rows in file order, tokens counted step by step as TRL logged them.

use std::path::Path;

use burnish_data::{
    Collator, CompletionCollator, Cursor, Options, Order, Preparer, Sampler, Source, Strategy, Templates,
    Tokenizer, partner,
};
use serde_json::Value;

use crate::recordings::{further, json};

#[test]
fn tokens_per_step_are_those_of_the_recorded_runs() {
    let Some(recordings) = further() else { return };
    let (mut replayed, mut others) = (0, 0);
    let mut folders: Vec<_> =
        std::fs::read_dir(recordings.join("trl-runs")).unwrap().map(|e| e.unwrap().path()).collect();
    folders.sort();
    for folder in folders.iter().filter(|f| f.join("run.json").is_file()) {
        let run = json(&folder.join("run.json"));
        match run["trainer"].as_str().unwrap() {
            "sft" => {
                replay(&recordings, &run);
                replayed += 1;
            }
            "dpo" | "kto" | "reward" => {
                replay_answers(&recordings, &run);
                others += 1;
            }
            other => panic!("{}: a run of an unknown trainer `{other}`", folder.display()),
        }
    }
    assert!(replayed >= 3, "only {replayed} runs of sft under {}", recordings.display());
    assert!(others >= 3, "only {others} runs of preference trainers under {}", recordings.display());
}

fn replay(recordings: &Path, run: &Value) {
    let name = run["run"].as_str().unwrap();
    let folder = recordings.join("models").join(run["model"].as_str().unwrap());
    let mut options = Options::default();
    let (mut per_device, mut accumulation, mut packing, mut strategy) = (8, 1, false, Strategy::Bfd);
    let (mut max_steps, mut order) = (-1, Order::Random);
    for (key, value) in run["options"].as_object().unwrap() {
        let integer = || value.as_i64().unwrap();
        let size = || usize::try_from(integer()).unwrap();
        match key.as_str() {
            "max_length" => options.max_length = Some(size()),
            "per_device_train_batch_size" => per_device = size(),
            "gradient_accumulation_steps" => accumulation = size(),
            "packing" => packing = value.as_bool().unwrap(),
            "packing_strategy" => strategy = value.as_str().unwrap().parse().unwrap(),
            "max_steps" => max_steps = integer(),
            "train_sampling_strategy" => order = value.as_str().unwrap().parse().unwrap(),
            "completion_only_loss" => options.completion_only_loss = value.as_bool(),
            "assistant_only_loss" => options.assistant_only_loss = value.as_bool().unwrap(),
            "padding_free" => options.padding_free = value.as_bool().unwrap(),
            "seed"
            | "bf16"
            | "logging_steps"
            | "save_strategy"
            | "learning_rate"
            | "lr_scheduler_type"
            | "warmup_steps"
            | "max_grad_norm"
            | "weight_decay"
            | "loss_type"
            | "gradient_checkpointing" => {}
            other => panic!("run {name}: unknown option `{other}`"),
        }
    }
    options.packing = packing.then_some(strategy);

    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let templates = Templates::from_folder(&folder, &tokenizer).unwrap();
    let preparer = Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options: &options };
    let data = recordings.join("data").join(run["data"].as_str().unwrap());
    let source = Source::train(&data.display().to_string(), "train").unwrap();
    let dataset = preparer.prepare(&source.name(), source.records()).unwrap();

    let collator = Collator { padding_free: options.is_padding_free(), ..Collator::default() };
    let sampler =
        Sampler::new(dataset.examples.len(), order, 42).per_device(per_device).accumulation(accumulation);
    let logged = run["steps"].as_array().unwrap();
    assert_eq!(sampler.total_steps(3.0, max_steps), logged.len(), "run {name}");
    let mut num_tokens = 0;
    for (step, log) in sampler.steps(Cursor::default()).unwrap().zip(logged) {
        for micro in 0..step.micro_steps() {
            let slice = step.slice(0, micro);
            let examples: Vec<_> = step.rows[slice.clone()].iter().map(|&i| &dataset.examples[i]).collect();
            num_tokens += collator.batch(&examples, slice.start).num_tokens;
        }
        assert_eq!(
            num_tokens as f64,
            log["num_tokens"].as_f64().unwrap(),
            "run {name}, step {}",
            log["step"]
        );
        assert!(
            (step.epochs - log["epoch"].as_f64().unwrap()).abs() < 1e-12,
            "run {name}, step {}",
            log["step"]
        );
    }
}

/// Pairs and unpaired answers: tokens of each step, and of a KTO run the mismatched ones from its own chunk.
fn replay_answers(recordings: &Path, run: &Value) {
    let name = run["run"].as_str().unwrap();
    let folder = recordings.join("models").join(run["model"].as_str().unwrap());
    let mut options = Options::default();
    let (mut per_device, mut accumulation, mut max_steps, mut order) = (8, 1, -1, Order::Random);
    for (key, value) in run["options"].as_object().unwrap() {
        let size = || usize::try_from(value.as_u64().unwrap()).unwrap();
        match key.as_str() {
            "max_length" => options.max_length = Some(size()),
            "truncation_mode" => options.truncation = value.as_str().unwrap().parse().unwrap(),
            "per_device_train_batch_size" => per_device = size(),
            "gradient_accumulation_steps" => accumulation = size(),
            "max_steps" => max_steps = value.as_i64().unwrap(),
            "train_sampling_strategy" => order = value.as_str().unwrap().parse().unwrap(),
            "seed"
            | "bf16"
            | "logging_steps"
            | "save_strategy"
            | "learning_rate"
            | "beta"
            | "loss_type"
            | "center_rewards_coefficient" => {}
            other => panic!("run {name}: unknown option `{other}`"),
        }
    }
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let templates = Templates::from_folder(&folder, &tokenizer).unwrap();
    let preparer = Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options: &options };
    let data = recordings.join("data").join(run["data"].as_str().unwrap());
    let source = Source::train(&data.display().to_string(), "train").unwrap();
    let (name_of, records) = (source.name(), source.records());
    let collator = CompletionCollator { max_length: options.max_length, truncation: options.truncation };
    type Tokens<'a> = Box<dyn Fn(&[usize]) -> usize + 'a>;
    let (rows, tokens): (usize, Tokens<'_>) = match run["trainer"].as_str().unwrap() {
        "dpo" => {
            let examples = preparer.preferences(&name_of, records).unwrap().examples;
            let rows = examples.len();
            let tokens = move |rows: &[usize]| {
                let rows: Vec<_> = rows.iter().map(|&i| &examples[i]).collect();
                collator.preferences(&rows, 0).completions.batch.num_tokens
            };
            (rows, Box::new(tokens))
        }
        "reward" => {
            let examples = preparer.reward_pairs(&name_of, records).unwrap().examples;
            let rows = examples.len();
            let tokens = move |rows: &[usize]| {
                let rows: Vec<_> = rows.iter().map(|&i| &examples[i]).collect();
                collator.rewards(&rows, tokenizer.pad_id(), 0).batch.num_tokens
            };
            (rows, Box::new(tokens))
        }
        _ => {
            let examples = preparer.unpaired(&name_of, records).unwrap().examples;
            let rows = examples.len();
            let tokens = move |rows: &[usize]| {
                let of = |rows: &[usize]| rows.iter().map(|&i| &examples[i]).collect::<Vec<_>>();
                let partners: Vec<usize> =
                    rows.iter().map(|&i| partner(i, per_device, examples.len())).collect();
                let mut sorted = partners.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, rows, "a batch's mismatched answers are its own");
                collator.unpaired(&of(rows), Some(&of(&partners)), 0).completions.batch.num_tokens
            };
            (rows, Box::new(tokens))
        }
    };
    let sampler = Sampler::new(rows, order, 42).per_device(per_device).accumulation(accumulation);
    let logged = run["steps"].as_array().unwrap();
    assert_eq!(sampler.total_steps(3.0, max_steps), logged.len(), "run {name}");
    let mut num_tokens = 0;
    for (step, log) in sampler.steps(Cursor::default()).unwrap().zip(logged) {
        for micro in 0..step.micro_steps() {
            num_tokens += tokens(&step.rows[step.slice(0, micro)]);
        }
        let expected = log["num_tokens"].as_f64().unwrap();
        assert_eq!(num_tokens as f64, expected, "run {name}, step {}", log["step"]);
        let epochs = log["epoch"].as_f64().unwrap();
        assert!((step.epochs - epochs).abs() < 1e-12, "run {name}, step {}", log["step"]);
    }
}
