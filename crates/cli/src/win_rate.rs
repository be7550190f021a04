//! `burnish win-rate`: how often one model's completions score higher than another's.

use std::process::ExitCode;

use burnish_config::WinRateOptions;
use burnish_config::groups::{GenerationOptions, ModelOptions, PreparationOptions};
use burnish_data::{Content, Record, Row, Source};
use burnish_models::Generation;
use burnish_rewards::Sample;
use burnish_trainers::{
    Inference, InferenceRank, Prepared, TrainError, WeightedReward, prepare_rows, reward_functions,
};
use serde_json::{Map, Value, json};

use crate::generate::settings;
use crate::model::{Lines, Loaded};
use crate::refusal::refuse;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<WinRateOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    let options = resolved.options;
    let loaded = Loaded::open(&options.model, &options.quantization, &options.ranks)?;
    let target = &options.target;
    let reference_model = ModelOptions {
        model_name_or_path: target
            .reference_model_name_or_path
            .clone()
            .unwrap_or_else(|| options.model.model_name_or_path.clone()),
        adapter_name_or_path: target.reference_adapter_name_or_path.clone(),
        ..options.model.clone()
    };
    let reference_model = Inference::open(
        &reference_model,
        options.quantization.quantization(),
        options.ranks.tp_size,
        &loaded.device,
    )?
    .with_whole_experts(options.ranks.enable_expert_parallel);
    let preparation = PreparationOptions {
        chat_template_path: target.chat_template_path.clone(),
        eos_token: target.eos_token.clone(),
        pad_token: target.pad_token.clone(),
        ..PreparationOptions::default()
    };
    let eos_given = target.eos_token.is_some();
    let policy = Writer::new(&loaded.inference, &preparation, &options.generation, eos_given)?;
    let reference = Writer::new(&reference_model, &preparation, &options.generation, eos_given)?;
    let most = policy.settings.max_new_tokens.max(reference.settings.max_new_tokens);
    let size = target.per_device_eval_batch_size;
    let rewards = reward_functions(&options.rewards, most, size, &loaded.device)?;
    let source = Source::train(&target.dataset_name, &target.dataset_test_split)?;
    if source.records().next().is_none() {
        refuse!(NoRows, "{}: no rows; each line holds a JSON object with a prompt", source.name());
    }
    loaded.run(
        |rank| {
            let beside = reference_model.beside(rank)?;
            let mut lines = Lines::new(Some(&target.output_file), rank)?;
            let mut tally = Tally::default();
            rank.in_order(
                source.records(),
                size,
                |first_row, records| {
                    let prompts = records.into_iter().map(Prompt::new).collect::<Result<Vec<_>, _>>()?;
                    let said = policy.completions(rank, &prompts, first_row)?;
                    let other = reference.completions(&beside, &prompts, first_row)?;
                    // One of the ranks that share layers scores: what the others have is the same.
                    if !rank.leads_layers() {
                        return Ok(String::new());
                    }
                    let scores = [scores(&rewards, &prompts, &said)?, scores(&rewards, &prompts, &other)?];
                    let mut text = String::new();
                    for (i, prompt) in prompts.iter().enumerate() {
                        let line = json!({
                            "prompt": prompt.value,
                            "completion": said[i].text,
                            "reference_completion": other[i].text,
                            "score": scores[0][i],
                            "reference_score": scores[1][i],
                        });
                        text.push_str(&format!("{line}\n"));
                    }
                    Ok(text)
                },
                |text| {
                    tally.see(text);
                    lines.write(text)
                },
            )?;
            Ok(tally)
        },
        |tally| crate::voice::result(serde_json::to_string_pretty(&tally.result())?),
    )
}

/// A model that continues prompts, with its own tokenizer and settings.
struct Writer {
    rows: Prepared,
    settings: Generation,
    skip_special_tokens: bool,
}

/// What one wrote.
struct Written {
    text: String,
    tokens: Vec<u32>,
}

/// A prompt and the other columns of its row.
struct Prompt {
    row: Row,
    value: Value,
}

impl Prompt {
    fn new(record: Record) -> Result<Self, TrainError> {
        let row = Row::parse_prompt(record)?;
        let Content::Prompt(prompt) = &row.content else { unreachable!("parsed as a prompt") };
        let value = prompt.to_json();
        Ok(Self { row, value })
    }
}

impl Writer {
    fn new(
        model: &Inference,
        preparation: &PreparationOptions,
        options: &GenerationOptions,
        eos_given: bool,
    ) -> anyhow::Result<Self> {
        let folder = model.folder();
        let rows = prepare_rows(folder.tokenizer_path(), preparation, folder.spec().vocab)?;
        let settings = settings(folder, &rows, options, eos_given)?;
        Ok(Self { rows, settings, skip_special_tokens: options.skip_special_tokens })
    }

    fn completions(
        &self,
        rank: &InferenceRank,
        prompts: &[Prompt],
        first_row: u64,
    ) -> Result<Vec<Written>, TrainError> {
        let preparer = self.rows.preparer();
        let prompts =
            prompts.iter().map(|prompt| preparer.prompt(&prompt.row)).collect::<Result<Vec<_>, _>>()?;
        let settings = Generation { first_row, ..self.settings.clone() };
        let mut written = Vec::with_capacity(prompts.len());
        for completion in rank.generate(&prompts, &settings, &mut |_, _| true)? {
            let text = self.rows.tokenizer.decode(&completion.token_ids, self.skip_special_tokens)?;
            written.push(Written { text, tokens: completion.token_ids });
        }
        Ok(written)
    }
}

/// The weighted sum of what reward functions say of each completion, of those that can score it; none if none can.
fn scores(
    rewards: &[WeightedReward],
    prompts: &[Prompt],
    written: &[Written],
) -> Result<Vec<Option<f64>>, TrainError> {
    let samples: Vec<Sample<'_>> = prompts
        .iter()
        .zip(written)
        .map(|(prompt, written)| Sample {
            prompt: &prompt.value,
            completion: &written.text,
            completion_ids: &written.tokens,
            columns: &prompt.row.columns,
        })
        .collect();
    let mut sums: Vec<Option<f64>> = vec![None; samples.len()];
    for (function, weight) in rewards {
        for (sum, score) in sums.iter_mut().zip(function.score(&samples)?) {
            if let Some(score) = score {
                *sum = Some(sum.unwrap_or(0.0) + weight * score);
            }
        }
    }
    Ok(sums)
}

/// What the lines that the lead writes add up to.
#[derive(Default)]
struct Tally {
    wins: u64,
    ties: u64,
    losses: u64,
    unscorable: u64,
    sums: [f64; 2],
}

impl Tally {
    /// Counts whole lines.
    fn see(&mut self, lines: &[u8]) {
        for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let line: Map<String, Value> = serde_json::from_slice(line).unwrap_or_default();
            let score = |name: &str| line.get(name).and_then(Value::as_f64);
            let (Some(score), Some(other)) = (score("score"), score("reference_score")) else {
                self.unscorable += 1;
                continue;
            };
            self.sums[0] += score;
            self.sums[1] += other;
            if score > other {
                self.wins += 1;
            } else if score < other {
                self.losses += 1;
            } else {
                self.ties += 1;
            }
        }
    }

    /// The share of prompts won, ties as half, and the standard error of that mean; null without a prompt that both sides
    /// have a score for (the error, with fewer than two).
    fn result(&self) -> Value {
        let Self { wins, ties, losses, unscorable, sums } = self;
        let count = (wins + ties + losses) as f64;
        let rate = (*wins as f64 + 0.5 * *ties as f64) / count;
        let squares = *wins as f64 * (1.0 - rate).powi(2)
            + *ties as f64 * (0.5 - rate).powi(2)
            + *losses as f64 * rate.powi(2);
        // What is not a number becomes null.
        json!({
            "win_rate": rate,
            "win_rate_stderr": (squares / (count - 1.0) / count).sqrt(),
            "mean_score": sums[0] / count,
            "mean_reference_score": sums[1] / count,
            "wins": wins,
            "ties": ties,
            "losses": losses,
            "unscorable": unscorable,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_count_half() {
        let mut tally = Tally::default();
        tally.see(b"{\"score\":1,\"reference_score\":0}\n{\"score\":2,\"reference_score\":2}\n");
        tally.see(b"{\"score\":null,\"reference_score\":0}\n{\"score\":-1,\"reference_score\":1}\n");
        tally.see(b"{\"score\":4,\"reference_score\":1}\n");
        let result = tally.result();
        // Of 1, 0.5, 0 and 1 the mean is 0.625 and the variance 0.6875 / 3.
        assert_eq!(result["win_rate"], 0.625);
        let error = result["win_rate_stderr"].as_f64().unwrap_or(f64::NAN);
        assert!((error - (0.6875_f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12, "{error}");
        assert_eq!([&result["mean_score"], &result["mean_reference_score"]], [1.5, 1.0]);
        assert_eq!(
            [&result["wins"], &result["ties"], &result["losses"], &result["unscorable"]],
            [2, 1, 1, 1]
        );
        assert!(Tally::default().result()["win_rate"].is_null());
    }
}
