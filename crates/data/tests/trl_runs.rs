//! The recorded runs: rows in file order, tokens counted step by step as TRL logged them.

use std::path::Path;

use burnish_data::{
    Collator, CompletionCollator, Cursor, Options, Order, Preparer, Sampler, Source, Strategy, Templates,
    Tokenizer, partner,
};
use serde_json::Value;

use recordings::Replay;

use crate::cases::json;

/// Options that change no token and no row of a step.
const NOT_ROWS: [&str; 36] = [
    "adam_beta2",
    "adam_epsilon",
    "beta",
    "bf16",
    "bnb_4bit_quant_type",
    "center_rewards_coefficient",
    "desirable_weight",
    "eval_steps",
    "eval_strategy",
    "f_divergence_type",
    "gradient_checkpointing",
    "label_smoothing",
    "label_smoothing_factor",
    "ld_alpha",
    "load_in_4bit",
    "learning_rate",
    "logging_steps",
    "loss_type",
    "loss_weights",
    "lr_scheduler_type",
    "max_grad_norm",
    "per_device_eval_batch_size",
    "precompute_ref_batch_size",
    "precompute_ref_log_probs",
    "ref_model_mixup_alpha",
    "ref_model_sync_steps",
    "save_strategy",
    "seed",
    "sync_ref_model",
    "undesirable_weight",
    "use_bnb_nested_quant",
    "use_weighting",
    "warmup_steps",
    "weight_decay",
    "report_to",
    "disable_tqdm",
];

/// Replays the runs under `root/trl-runs`.
fn replay_all(root: &Path) -> Replay {
    let mut told = Replay::of(root.join("trl-runs").display().to_string());
    let runs = std::fs::read_dir(root.join("trl-runs")).unwrap();
    let mut folders: Vec<_> = runs.map(|e| e.unwrap().path()).collect();
    folders.sort();
    for folder in folders.iter().filter(|f| f.join("run.json").is_file()) {
        let run = json(&folder.join("run.json"));
        let done = match run["trainer"].as_str() {
            Some("sft" | "SFTTrainer") => replay(root, &run),
            Some("dpo" | "kto" | "reward") => replay_answers(root, &run),
            Some("cpo" | "orpo") => Err("TRL logs no tokens of this trainer".to_owned()),
            other => Err(format!("a run of the trainer {other:?}")),
        };
        match done {
            Ok(()) => told.replayed(),
            Err(why) => told.refused(folder.file_name().unwrap().display(), why),
        }
    }
    told
}

#[test]
fn tokens_per_step_are_those_of_the_repository_s_runs() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainers/tests/fixtures");
    assert_eq!(replay_all(&own).finish(), (34, 7));
}

#[test]
fn tokens_per_step_are_those_of_the_given_runs() {
    if recordings::given("trl-runs").is_some() {
        replay_all(&recordings::root().unwrap()).finish();
    }
}

/// What a run names within `root`, if it is there.
fn named(root: &Path, kind: &str, run: &Value) -> Result<std::path::PathBuf, String> {
    let name = run[kind].as_str().ok_or_else(|| format!("run.json names no {kind}"))?;
    let path = root.join(if kind == "model" { "models" } else { kind }).join(name);
    if path.exists() { Ok(path) } else { Err(format!("its {kind} {name} is not there")) }
}

fn replay(root: &Path, run: &Value) -> Result<(), String> {
    let name = &run["run"];
    let (folder, data) = (named(root, "model", run)?, named(root, "data", run)?);
    let mut options = Options::default();
    let (mut per_device, mut accumulation, mut packing, mut strategy) = (8, 1, false, Strategy::Bfd);
    let (mut max_steps, mut epochs, mut order) = (-1, 3.0, Order::Random);
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
            "num_train_epochs" => epochs = value.as_f64().unwrap(),
            other if NOT_ROWS.contains(&other) => {}
            other => return Err(format!("the option `{other}`")),
        }
    }
    options.packing = packing.then_some(strategy);

    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let templates = Templates::from_folder(&folder, &tokenizer).unwrap();
    let preparer = Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options: &options };
    let source = Source::train(&data.display().to_string(), "train").unwrap();
    let dataset = preparer.prepare(&source.name(), source.records()).unwrap();

    let collator = Collator { padding_free: options.is_padding_free(), ..Collator::default() };
    let sampler =
        Sampler::new(dataset.examples.len(), order, 42).per_device(per_device).accumulation(accumulation);
    let logged = run["steps"].as_array().unwrap();
    assert_eq!(sampler.total_steps(epochs, max_steps), logged.len(), "run {name}");
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
    Ok(())
}

/// Pairs and unpaired answers: tokens of each step, and of a KTO run the mismatched ones from its own chunk.
fn replay_answers(root: &Path, run: &Value) -> Result<(), String> {
    let name = &run["run"];
    let (folder, data) = (named(root, "model", run)?, named(root, "data", run)?);
    let mut options = Options::default();
    let (mut per_device, mut accumulation, mut max_steps, mut order) = (8, 1, -1, Order::Random);
    let mut epochs = 3.0;
    for (key, value) in run["options"].as_object().unwrap() {
        let size = || usize::try_from(value.as_u64().unwrap()).unwrap();
        match key.as_str() {
            "max_length" => options.max_length = Some(size()),
            "truncation_mode" => options.truncation = value.as_str().unwrap().parse().unwrap(),
            "per_device_train_batch_size" => per_device = size(),
            "gradient_accumulation_steps" => accumulation = size(),
            "max_steps" => max_steps = value.as_i64().unwrap(),
            "train_sampling_strategy" => order = value.as_str().unwrap().parse().unwrap(),
            "num_train_epochs" => epochs = value.as_f64().unwrap(),
            other if NOT_ROWS.contains(&other) => {}
            other => return Err(format!("the option `{other}`")),
        }
    }
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let templates = Templates::from_folder(&folder, &tokenizer).unwrap();
    let preparer = Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options: &options };
    let source = Source::train(&data.display().to_string(), "train").unwrap();
    let (name_of, records) = (source.name(), source.records());
    let collator = CompletionCollator {
        max_length: options.max_length,
        truncation: options.truncation,
        ..CompletionCollator::default()
    };
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
    assert_eq!(sampler.total_steps(epochs, max_steps), logged.len(), "run {name}");
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
    Ok(())
}
