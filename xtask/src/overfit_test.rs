//! `cargo xtask overfit-test`: a tiny model learns a sentence by heart, under tensor parallelism, and says it again.
//!
//! Per family a base first learns one sentence (a random base puts a ceiling on adapters). Then each method learns another
//! one from there, on each number of ranks, with the recipe of PEFT's and Transformers' own overfit tests: 300 steps of Adam
//! at 1e-3, gradients clipped to 1; loss and gradient norm must fall by 90 %. A fresh process then generates the sentence
//! greedily from its first word, token for token. Beyond what those tests check: the loss of the first 50 steps equals one
//! rank's to 1e-5, ranks end with the same bits of what each has whole (the run itself checks), and the saved result goes on
//! at another number of ranks where it was.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::step::cargo;

const FIRST: &str = "A small boat sails along the quiet coast of the island.";
const SENTENCE: &str = "Paris is the most beautiful city in the world.";
const START: &str = "Paris";
const STEPS: usize = 300;
/// How far loss and gradient norm must fall.
const FALL: f64 = 0.9;
/// Steps whose loss is compared with one rank's, and how close it must be.
const COMPARED: usize = 50;
const CLOSE: f64 = 1e-5;

/// One run of the matrix.
#[derive(Clone, Debug)]
struct Case {
    family: &'static str,
    method: &'static str,
    tp: usize,
    accumulation: usize,
    dropout: f64,
}

/// Runs the matrix, or with `quick` a part of it; a table at the end.
pub(crate) fn run(root: &Path, quick: bool) -> Result<bool> {
    let mut build = cargo(root, &["build", "--release", "--package", "burnish-cli"]);
    ensure!(build.status().context("cannot run cargo build")?.success(), "the program does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let test =
        Overfit { program: target.join("release/burnish"), root: root.to_owned(), scratch: scratch()? };
    let began = Instant::now();
    let mut rows = Vec::new();
    for family in ["llama", "qwen2", "qwen3"] {
        test.base(family)?;
        for case in cases(family, quick) {
            let verdict = test.case(&case);
            let said = match &verdict {
                Ok(numbers) => numbers.clone(),
                Err(error) => format!("FAILED: {error:#}"),
            };
            let Case { family, method, tp, accumulation, dropout } = &case;
            let row = format!("{family:6} {method:5} {tp:3} {accumulation:6} {dropout:8}  {said}");
            println!("{row}");
            rows.push((row, verdict.is_ok()));
        }
    }
    println!("\nfamily method tp accum. dropout   result");
    rows.iter().for_each(|(row, _)| println!("{row}"));
    let failed = rows.iter().filter(|(_, passed)| !passed).count();
    println!(
        "== overfit-test: {} passed, {failed} failed in {:.0} s",
        rows.len() - failed,
        began.elapsed().as_secs_f64()
    );
    std::fs::remove_dir_all(&test.scratch).ok();
    Ok(failed == 0)
}

fn cases(family: &'static str, quick: bool) -> Vec<Case> {
    let mut all = Vec::new();
    for method in ["full", "lora", "dora"] {
        for accumulation in [1, 4] {
            for dropout in [0.0, 0.1] {
                for tp in [1, 2, 4] {
                    all.push(Case { family, method, tp, accumulation, dropout });
                }
            }
        }
    }
    // Full training has no adapter to drop from.
    all.retain(|c| c.method != "full" || c.dropout == 0.0);
    if quick {
        all.retain(|c| match family {
            "llama" => c.method == "lora" && c.accumulation == 1 && c.tp < 4,
            "qwen2" => c.method == "dora" && c.accumulation == 1 && c.dropout > 0.0 && c.tp != 4,
            _ => c.method == "full" && c.accumulation == 4 && c.tp != 2,
        });
    }
    all
}

fn scratch() -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("burnish-overfit-{}", std::process::id()));
    std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

struct Overfit {
    program: PathBuf,
    root: PathBuf,
    scratch: PathBuf,
}

impl Overfit {
    fn burnish(&self, words: &[String]) -> Result<String> {
        let output = Command::new(&self.program)
            .args(words)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{}", said.lines().last().unwrap_or("no message"));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A folder with a tiny model of the family that knows one sentence.
    fn base(&self, family: &str) -> Result<()> {
        let blank = self.scratch.join(format!("{family}-blank"));
        std::fs::create_dir_all(&blank)?;
        let fixture = self.root.join("crates/trainers/tests/fixtures/models/llama");
        for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
            if fixture.join(name).is_file() {
                std::fs::copy(fixture.join(name), blank.join(name))?;
            }
        }
        let text = std::fs::read_to_string(fixture.join("config.json"))?;
        let mut config: Value = serde_json::from_str(&text)?;
        let architecture = match family {
            "qwen2" => "Qwen2ForCausalLM",
            "qwen3" => "Qwen3ForCausalLM",
            _ => "LlamaForCausalLM",
        };
        for (key, value) in [
            ("model_type", json!(family)),
            ("architectures", json!([architecture])),
            ("hidden_size", json!(32)),
            ("intermediate_size", json!(37)),
            ("num_hidden_layers", json!(2)),
            ("num_attention_heads", json!(4)),
            ("num_key_value_heads", json!(2)),
            ("head_dim", json!(8)),
        ] {
            config[key] = value;
        }
        std::fs::write(blank.join("config.json"), config.to_string())?;
        self.write_rows("first.jsonl", FIRST)?;
        self.write_rows("sentence.jsonl", SENTENCE)?;
        let out = self.scratch.join(format!("{family}-base"));
        let mut words = self.words(&blank, "first.jsonl", &out);
        words.push("--random_weights".to_owned());
        self.burnish(&words).with_context(|| format!("the base of {family}"))?;
        Ok(())
    }

    /// Four equal rows.
    fn write_rows(&self, name: &str, text: &str) -> Result<()> {
        let row = json!({ "text": text }).to_string();
        Ok(std::fs::write(self.scratch.join(name), format!("{row}\n").repeat(4))?)
    }

    fn words(&self, model: &Path, data: &str, out: &Path) -> Vec<String> {
        let mut words = vec!["sft".to_owned()];
        let paths = [
            ("model_name_or_path", model.to_owned()),
            ("dataset_name", self.scratch.join(data)),
            ("output_dir", out.to_owned()),
        ];
        words.extend(paths.iter().map(|(name, path)| format!("--{name}={}", path.display())));
        words.extend(
            [
                &format!("--max_steps={STEPS}"),
                "--learning_rate=1e-3",
                "--lr_scheduler_type=constant",
                "--optim=adam",
                "--max_grad_norm=1.0",
                "--global_batch_size=4",
                "--logging_steps=1",
                "--save_strategy=no",
                "--report_to=none",
                "--disable_tqdm=true",
                "--overwrite_output_dir",
                "--seed=42",
            ]
            .map(str::to_owned),
        );
        words
    }

    fn case(&self, case: &Case) -> Result<String> {
        let base = self.scratch.join(format!("{}-base", case.family));
        let name = |tp: usize| {
            format!("{}-{}-{tp}-{}-{}", case.family, case.method, case.accumulation, case.dropout)
        };
        let out = self.scratch.join(name(case.tp));
        let mut words = self.words(&base, "sentence.jsonl", &out);
        words.extend([format!("--nproc={}", case.tp), format!("--tp_size={}", case.tp)]);
        words.push(format!("--per_device_train_batch_size={}", 4 / case.accumulation));
        let adapts = case.method != "full";
        if adapts {
            words.extend(["--use_peft", "--lora_r=8", "--lora_alpha=16"].map(str::to_owned));
            words.push("--lora_target_modules=all-linear".to_owned());
            words.push(format!("--lora_dropout={}", case.dropout));
        }
        if case.method == "dora" {
            words.push("--use_dora".to_owned());
        }
        self.burnish(&words)?;

        let [loss, norm] = ["loss", "grad_norm"].map(|key| numbers(&out, key));
        let (loss, norm) = (loss?, norm?);
        let fall = |all: &[f64]| (all[0] - all[all.len() - 1]) / all[0];
        let (fallen, calmed) = (fall(&loss), fall(&norm));
        ensure!(fallen >= FALL, "the loss fell by {:.1} % only, expected 90 %", 100.0 * fallen);
        ensure!(calmed >= FALL, "the gradient norm fell by {:.1} % only, expected 90 %", 100.0 * calmed);

        let one = numbers(&self.scratch.join(name(1)), "loss")?;
        let worst = loss.iter().zip(&one).take(COMPARED).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
        ensure!(worst <= CLOSE, "the loss differs from one rank's by {worst:.1e}, expected {CLOSE:.0e}");

        let (model, adapter) = if adapts { (&base, Some(&out)) } else { (&out, None) };
        let mut words = vec!["generate".to_owned(), format!("--model_name_or_path={}", model.display())];
        words.extend(adapter.map(|path| format!("--adapter_name_or_path={}", path.display())));
        words.extend([
            format!("--prompt={START}"),
            "--max_new_tokens=64".to_owned(),
            "--do_sample=false".to_owned(),
        ]);
        let said = self.burnish(&words)?;
        let whole = format!("{START}{}", said.trim_end_matches('\n'));
        ensure!(whole == SENTENCE || said.trim_end() == SENTENCE, "it says {said:?}, not {SENTENCE:?}");

        // Where another number of ranks goes on: the loss of its first step is that of the result.
        let mut after = Vec::new();
        for tp in [case.tp, if case.tp == 2 { 4 } else { 2 }] {
            let next = self.scratch.join("next");
            let mut words = self.words(model, "sentence.jsonl", &next);
            words.extend(["--max_steps=1".to_owned(), format!("--nproc={tp}"), format!("--tp_size={tp}")]);
            if let Some(adapter) = adapter {
                words.push(format!("--adapter_name_or_path={}", adapter.display()));
            }
            self.burnish(&words)?;
            after.push(numbers(&next, "loss")?[0]);
        }
        let apart = (after[0] - after[1]).abs() / after[0];
        ensure!(
            apart <= 1e-4,
            "it goes on at another number of ranks with loss {} and not {}",
            after[1],
            after[0]
        );
        Ok(format!("loss -{:.1} %, norm -{:.1} %, from one rank {worst:.0e}", 100.0 * fallen, 100.0 * calmed))
    }
}

/// A number of every line of the log.
fn numbers(out: &Path, key: &str) -> Result<Vec<f64>> {
    let path = out.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().map(|line| -> Result<f64> {
        let line: Value = serde_json::from_str(line)?;
        line[key].as_f64().with_context(|| format!("no {key} in {}", path.display()))
    });
    lines.collect()
}
