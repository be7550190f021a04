//! Runs recorded from TRL: every logged number of every step comes out again.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use burn::tensor::Device;
use burnish_config::Command as _;
use burnish_report::Record;
use burnish_trainers::{Cpo, Dpo, Kto, Orpo, Ranks, Reward, Sft, Trainer};
use serde_json::{Map, Value};

use crate::run::run;
use crate::{Check, Context};

/// Options that a replay sets itself.
const OURS: [&str; 6] =
    ["train_sampling_strategy", "save_strategy", "report_to", "output_dir", "use_cpu", "disable_tqdm"];

/// A recorded run.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its folder's name.
    pub name: String,
    /// Where `models`, `data` and `trl-runs` lie.
    root: PathBuf,
    folder: PathBuf,
}

/// The runs under `root/trl-runs`, by name.
///
/// # Errors
/// If the folder cannot be read.
pub fn recorded(root: &Path) -> Result<Vec<Recorded>> {
    let runs = root.join("trl-runs");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&runs).with_context(|| format!("cannot read {}", runs.display()))? {
        let folder = entry?.path();
        if folder.is_dir() {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            all.push(Recorded { name, root: root.to_owned(), folder });
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

fn word(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        Value::Array(items) => items.iter().map(word).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn text<'a>(run: &'a Value, key: &str) -> Result<&'a str> {
    run[key].as_str().with_context(|| format!("run.json: no {key}"))
}

impl Recorded {
    /// Why burnish does not do such a run, if it does not: another trainer, an option that is refused, an adapter of another
    /// kind, or a model or data that are not there.
    ///
    /// # Errors
    /// If the recording cannot be read.
    pub fn refused(&self) -> Result<Option<String>> {
        let run = self.run()?;
        for (folder, key) in
            [("models", "model"), ("models", "reference"), ("data", "data"), ("data", "eval_data")]
        {
            let Some(name) = run[key].as_str() else { continue };
            let own = key == "model" && self.folder.join("model_start").is_dir();
            if !own && !self.root.join(folder).join(name).exists() {
                return Ok(Some(format!("its {key} {name} is not there")));
            }
        }
        let adapter = self.folder.join("adapter_start");
        if adapter.is_dir() {
            let config = burnish_peft::LoraConfig::read(&adapter);
            if let Err(why) = config.and_then(|config| config.check(burnish_peft::Purpose::Load)) {
                return Ok(Some(why.to_string()));
            }
        }
        let words = self.flags(&run, Path::new("out"))?;
        Ok(match text(&run, "trainer")? {
            "sft" | "SFTTrainer" => refused::<Sft>(words),
            "dpo" => refused::<Dpo>(words),
            "kto" => refused::<Kto>(words),
            "cpo" => refused::<Cpo>(words),
            "orpo" => refused::<Orpo>(words),
            "reward" => refused::<Reward>(words),
            other => Some(format!("a run of the trainer `{other}`")),
        })
    }

    fn run(&self) -> Result<Value> {
        let file = self.folder.join("run.json");
        let bytes = std::fs::read(&file).with_context(|| file.display().to_string())?;
        serde_json::from_slice(&bytes).with_context(|| file.display().to_string())
    }

    /// Runs it on `device` with `more` options and holds every figure against TRL's, to a relative `bound`; the largest
    /// error. With `wide` products are of f32, as TRL's were.
    ///
    /// # Errors
    /// If a figure is missing or further away, or the run fails.
    pub fn replay(&self, device: &Device, bound: f64, wide: bool, more: &[&str]) -> Result<f64> {
        let run = self.run()?;
        let output = tempfile::tempdir()?;
        let mut words = self.flags(&run, &output.path().join("out"))?;
        if wide && !words.iter().any(|word| word.starts_with("--bf16=")) {
            words.push("--bf16=false".to_owned());
        }
        words.extend(more.iter().map(|&word| word.to_owned()));
        let records = match text(&run, "trainer")? {
            "sft" | "SFTTrainer" => trained::<Sft>(words, device),
            "dpo" => trained::<Dpo>(words, device),
            "kto" => trained::<Kto>(words, device),
            "cpo" => trained::<Cpo>(words, device),
            "orpo" => trained::<Orpo>(words, device),
            "reward" => trained::<Reward>(words, device),
            other => bail!("unknown kind of recording `{other}`"),
        }?;
        if let Some(expected) = run.get("rank_pattern") {
            let file = output.path().join("out/adapter_config.json");
            let config: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
            let got = &config["rank_pattern"];
            ensure!(got == expected, "rank_pattern: {got}, TRL has {expected}");
        }
        let ties = |key: &str| match run[key].as_str() {
            // Where bits do not depend on where a text lies, ties are ties.
            Some(name) if bound > SUMS => ties(&self.root.join("data").join(name)),
            _ => Ok(Vec::new()),
        };
        let ties = Ties { train: ties("data")?, eval: ties("eval_data")? };
        compare(&run, &records, bound, &ties)
    }

    /// The run's options as burnish's flags.
    fn flags(&self, run: &Value, output: &Path) -> Result<Vec<String>> {
        let within = |folder: &str, name: &str| self.root.join(folder).join(name).display().to_string();
        let start = self.folder.join("model_start");
        let model =
            if start.is_dir() { start.display().to_string() } else { within("models", text(run, "model")?) };
        let mut words = vec![
            format!("--model_name_or_path={model}"),
            format!("--dataset_name={}", within("data", text(run, "data")?)),
            format!("--output_dir={}", output.display()),
            "--train_sampling_strategy=sequential".to_owned(),
            "--save_strategy=no".to_owned(),
            "--report_to=none".to_owned(),
            "--disable_tqdm".to_owned(),
        ];
        if let Some(data) = run["eval_data"].as_str() {
            words.push(format!("--eval_dataset_name={}", within("data", data)));
        }
        for (name, value) in run["options"].as_object().context("run.json: no options")? {
            if !OURS.contains(&name.as_str()) {
                words.push(format!("--{name}={}", word(value)));
            }
        }
        if let Some(model) = run["reference"].as_str() {
            words.push(format!("--ref_model_name_or_path={}", within("models", model)));
        }
        let adapter = self.folder.join("adapter_start");
        if adapter.is_dir() {
            words.push(format!("--adapter_name_or_path={}", adapter.display()));
        }
        Ok(words)
    }
}

/// What the options' table says against these words.
fn refused<T: Trainer>(words: Vec<String>) -> Option<String> {
    T::Options::parse(words).err().map(|error| error.to_string())
}

fn trained<T: Trainer>(words: Vec<String>, device: &Device) -> Result<Vec<Record>> {
    Ok(run::<T>(words, &Ranks::alone(), device)?.records)
}

/// What sums that nearly cancel may differ by beside the relative bound: rewards by `rounding`, means of logits of both
/// signs by little, and scores of a head whose weights have both signs by what steps before have rounded (AVX2 and AVX-512
/// sum in different orders).
fn absolute(key: &str, rounding: f64) -> f64 {
    match key.split_once('/') {
        Some(("rewards", _)) => rounding,
        Some(("logits", _)) => 1e-6,
        _ if ["min_reward", "mean_reward", "max_reward", "margin"].contains(&key) => 5e-6,
        _ => 0.0,
    }
}

/// The relative bound to which the absolute ones of [`absolute`] belong: f32 sums in another order over a few steps.
const SUMS: f64 = 1e-4;

/// Of each pair of texts whether both are the same. A GPU rounds their scores as it does where they lie, so that either may be
/// the larger one.
struct Ties {
    train: Vec<bool>,
    eval: Vec<bool>,
}

impl Ties {
    /// What an accuracy over so many of these pairs may differ by.
    fn share(pairs: &[bool]) -> f64 {
        pairs.iter().filter(|&&tie| tie).count() as f64 / pairs.len().max(1) as f64
    }

    /// Of the pairs of a step of `each`, which follow one after another; the last step of an epoch has what is left.
    fn of_step(&self, step: usize, each: usize) -> f64 {
        let of_epoch = self.train.len().div_ceil(each).max(1);
        let own = self.train.chunks(each).nth((step - 1) % of_epoch);
        own.map_or(0.0, Self::share)
    }
}

fn ties(file: &Path) -> Result<Vec<bool>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).with_context(|| file.display().to_string())?;
        Ok(row.get("chosen").is_some() && row["chosen"] == row["rejected"])
    };
    text.lines().map(row).collect()
}

/// Tokens of a step whose two best logits weights in bf16 may order otherwise.
const FLIPPED: f64 = 2.0;
/// From which bound on weights are in bf16.
const HALF: f64 = 1e-2;

/// Whether a figure is the share of pairs whose chosen text scores more.
fn counts_pairs(key: &str) -> bool {
    ["accuracy", "rewards/accuracies"].contains(&key.trim_start_matches("eval_"))
}

fn compare(run: &Value, records: &[Record], bound: f64, ties: &Ties) -> Result<f64> {
    let option = |name: &str, otherwise: u64| run["options"][name].as_u64().unwrap_or(otherwise) as usize;
    let micro_batches = option("gradient_accumulation_steps", 1);
    let accumulates = micro_batches > 1;
    let each = micro_batches * option("per_device_train_batch_size", 8);
    let wider = (bound / SUMS).max(1.0);
    let mut worst = 0.0_f64;
    let steps = run["steps"].as_array().context("run.json: no steps")?;
    let logged: Vec<_> = records.iter().filter(|record| record.get("loss").is_some()).collect();
    ensure!(logged.len() == steps.len(), "{} lines of log, TRL has {}", logged.len(), steps.len());
    let mut seen = 0.0;
    for (record, expected) in logged.iter().zip(steps) {
        let all = expected["num_tokens"].as_f64().unwrap_or(seen);
        let flipped = if bound >= HALF { FLIPPED / (all - seen).max(1.0) } else { 0.0 };
        seen = all;
        // A reward is a difference of log-probabilities that TRL has summed in f32.
        let sums = ["logps/chosen", "logps/rejected"].map(|key| expected[key].as_f64().unwrap_or(0.0).abs());
        let beta = run["options"]["beta"].as_f64().unwrap_or(0.1);
        let rounding = beta * 2.0 * f64::from(f32::EPSILON) * sums[0].max(sums[1]);
        for (key, wanted) in figures(expected)? {
            // TRL averages these over micro-batches; burnish over tokens.
            let by_token = ["mean_token_accuracy", "entropy", "logits/chosen", "logits/rejected"];
            if accumulates && by_token.contains(&key) || key == "step" {
                continue;
            }
            let got = if key == "epoch" { Some(record.epoch) } else { record.get(key) };
            let what = format!("step {}, {key}", record.step);
            let tied = match key {
                "mean_token_accuracy" => flipped,
                _ if counts_pairs(key) => ties.of_step(record.step as usize, each),
                _ => 0.0,
            };
            worst = worst.max(near(&what, got, wanted, bound, tied + wider * absolute(key, rounding))?);
        }
    }
    let evaluated: Vec<_> = records.iter().filter(|record| record.get("eval_loss").is_some()).collect();
    let none = Vec::new();
    let evaluations = run["evaluations"].as_array().unwrap_or(&none);
    ensure!(
        evaluated.len() == evaluations.len(),
        "{} evaluations, TRL has {}",
        evaluated.len(),
        evaluations.len()
    );
    for (record, expected) in evaluated.iter().zip(evaluations) {
        for (key, wanted) in figures(expected)?.filter(|(key, _)| key.starts_with("eval_")) {
            let what = format!("evaluation at {}, {key}", record.step);
            let tied = if counts_pairs(key) { Ties::share(&ties.eval) } else { 0.0 };
            let rounding = tied + wider * absolute(&key["eval_".len()..], 1e-6);
            worst = worst.max(near(&what, record.get(key), wanted, bound, rounding)?);
        }
    }
    Ok(worst)
}

fn figures(expected: &Value) -> Result<impl Iterator<Item = (&str, f64)>> {
    let all: &Map<String, Value> = expected.as_object().context("run.json: a step is no object")?;
    Ok(all.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_f64()?))))
}

/// The relative error of a figure that is near enough.
fn near(what: &str, got: Option<f64>, wanted: f64, bound: f64, absolute: f64) -> Result<f64> {
    let got = got.with_context(|| format!("{what}: not logged"))?;
    let scale = wanted.abs().max(1e-3);
    let error = (got - wanted).abs();
    ensure!(
        error <= bound * scale + absolute,
        "{what}: {got}, TRL {wanted}, relative {:.2e}, bound {bound:.0e}",
        error / scale
    );
    Ok(if error <= absolute { 0.0 } else { error / scale })
}

pub(crate) fn checks(context: &Context) -> Result<Vec<Check>> {
    let mut all = Vec::new();
    for recorded in recorded(&context.fixtures()?)? {
        let half = recorded.clone();
        all.push(Check::new("TRL", format!("{}, f32", recorded.name), move |context| {
            let bound = context.tolerance().run;
            Ok(format!(
                "{:.1e} from TRL, bound {bound:.0e}",
                recorded.replay(&context.device, bound, true, &[])?
            ))
        }));
        // With weights held in bf16 a run is another one; that it stays near says that nothing is lost on the way.
        if half.name.starts_with("sft-lora") {
            all.push(Check::new("TRL", format!("{}, bf16", half.name), move |context| {
                context.has_half()?;
                let bound = context.tolerance().half_run.max(3e-2);
                let worst = half.replay(&context.device, bound, false, &["--dtype=bfloat16"])?;
                Ok(format!("{worst:.1e} from TRL in f32, bound {bound:.0e}"))
            }));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracies_may_differ_by_pairs_of_one_text() {
        let ties = Ties { train: vec![false, true, false, false, true, true], eval: vec![true, false] };
        assert_eq!([1, 2, 3].map(|step| ties.of_step(step, 4)), [0.25, 1.0, 0.25]);
        assert_eq!((Ties::share(&ties.eval), Ties::share(&[])), (0.5, 0.0));
        assert!(counts_pairs("eval_accuracy") && counts_pairs("rewards/accuracies"));
        assert!(!counts_pairs("mean_token_accuracy"));
    }
}
