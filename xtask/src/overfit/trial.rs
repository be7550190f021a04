//! One case of the matrix: trains, and puts the result to the proof.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::curve::{Curves, Fall, STEPS};
use super::matrix::{Case, Experts, MIXTURE, Method};
use super::peft::{Answer, Peft};

/// What a base learns first: a random one puts a ceiling on adapters.
const FIRST: &str = "A small boat sails along the quiet coast of the island.";
/// What is then learned by heart.
const SENTENCE: &str = "Paris is the most beautiful city in the world.";
const START: &str = "Paris";
/// Texts by which two programs' readings of a result are compared: known, once known, and new.
const TEXTS: [&str; 3] = [SENTENCE, FIRST, "The river runs past seven old mills to the sea."];
const NEW_TOKENS: usize = 64;

/// Numbers of ranks at which a result must go on.
const RESUMED: [usize; 4] = [1, 2, 3, 4];
/// Steps it goes on for, at a rate at which rounding does not grow within them.
const MORE: usize = 3;
/// How close the losses of those steps must be, relatively: losses of 0.006 are differences of numbers near 10 in float32.
const CLOSE: f64 = 1e-4;

const CONFIG: &str = include_str!("../../../crates/trainers/tests/fixtures/models/llama/config.json");
const TOKENIZER: [(&str, &str); 3] = [
    ("tokenizer.json", include_str!("../../../crates/trainers/tests/fixtures/models/llama/tokenizer.json")),
    (
        "tokenizer_config.json",
        include_str!("../../../crates/trainers/tests/fixtures/models/llama/tokenizer_config.json"),
    ),
    (
        "generation_config.json",
        include_str!("../../../crates/trainers/tests/fixtures/models/llama/generation_config.json"),
    ),
];

/// Where ranks compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Ranks are threads on the CPU.
    Cpu,
    /// Each rank has one of so many GPUs, and NCCL between them.
    Gpus(usize),
}

impl Place {
    /// The most ranks there can be.
    pub(crate) fn most(self) -> usize {
        match self {
            Self::Cpu => usize::MAX,
            Self::Gpus(count) => count,
        }
    }

    /// Options of every command.
    fn device(self) -> &'static [&'static str] {
        match self {
            Self::Cpu => &[],
            Self::Gpus(_) => &["--device=cuda"],
        }
    }

    /// Options of a training command.
    fn ranks(self) -> &'static [&'static str] {
        match self {
            Self::Cpu => &[],
            Self::Gpus(_) => &["--device=cuda", "--transport=nccl"],
        }
    }
}

/// What held in a case.
#[derive(Clone, Debug)]
pub(crate) struct Proof {
    pub(crate) fall: Fall,
    /// The largest relative difference of a loss to one rank's; `None` where the case is one rank.
    pub(crate) apart: Option<f64>,
    /// The other numbers of ranks at which the result goes on.
    pub(crate) resumed: Vec<usize>,
    /// The largest difference to PEFT of a log-probability per token; `None` where it was not asked.
    pub(crate) peft: Option<f64>,
}

/// The bench that cases are tried on.
pub(crate) struct Bench {
    pub(crate) program: PathBuf,
    pub(crate) scratch: PathBuf,
    pub(crate) place: Place,
    pub(crate) quick: bool,
    pub(crate) peft: Option<Peft>,
}

impl Bench {
    /// A folder with a tiny model of the family that knows one sentence, and the rows.
    pub(crate) fn base(&self, family: &str) -> Result<()> {
        let blank = self.scratch.join(format!("{family}-blank"));
        std::fs::create_dir_all(&blank)?;
        for (name, text) in TOKENIZER {
            std::fs::write(blank.join(name), text)?;
        }
        std::fs::write(blank.join("config.json"), config(family)?.to_string())?;
        self.write_rows("first.jsonl", "text", &[FIRST; 4])?;
        self.write_rows("sentence.jsonl", "text", &[SENTENCE; 4])?;
        self.write_rows("start.jsonl", "prompt", &[START])?;
        self.write_rows("texts.jsonl", "text", &TEXTS)?;
        let mut words = self.training(&blank, None, "first.jsonl", &self.base_folder(family), 1);
        words.extend(recipe(STEPS, "1e-3"));
        words.push("--random_weights".to_owned());
        self.burnish(&words).with_context(|| format!("the base of {family} does not train"))?;
        Ok(())
    }

    /// Trains and proves a case; its base, and what it is held to, have been trained before.
    pub(crate) fn case(&mut self, case: &Case) -> Result<Proof> {
        let base = self.base_folder(case.family);
        let out = self.scratch.join(case.folder());
        let sends = case.experts == Experts::Exchanged;
        let mut words = self.training(&base, None, "sentence.jsonl", &out, if sends { 1 } else { case.tp });
        if sends {
            words.extend([format!("--nproc={}", case.tp), format!("--ep_size={}", case.tp)]);
        }
        words.extend(recipe(STEPS, "1e-3"));
        let dealt = if sends { case.tp } else { 1 };
        words.push(format!("--per_device_train_batch_size={}", (4 / case.accumulation / dealt).max(1)));
        words.extend(method(case));
        words.extend(bits(case));
        // The run itself fails if ranks end with different bits of what each has whole.
        self.burnish(&words)?;

        let curves = curves(&out)?;
        let fall = curves.fallen()?;
        let apart = match case.tp {
            1 => None,
            _ => Some(curves.apart(&self::curves(&self.scratch.join(case.alone().folder()))?)?),
        };
        let adapts = case.method != Method::Full;
        let (model, adapter) = if adapts { (&base, Some(out.as_path())) } else { (&out, None) };
        let tokens = self.says_it(case, model, adapter)?;
        let resumed = self.goes_on(case, model, adapter)?;
        // Over bits of its own PEFT would round the base to bfloat16.
        let peft = match self.peft.is_some() && case.method != Method::Qlora {
            true => Some(self.agrees(model, adapter, tokens)?),
            false => None,
        };
        Ok(Proof { fall, apart, resumed, peft })
    }

    /// That a fresh process generates the sentence from its first word and then stops. Gives the tokens.
    fn says_it(&self, case: &Case, model: &Path, adapter: Option<&Path>) -> Result<Vec<u64>> {
        let file = self.scratch.join("said.jsonl");
        let mut words = self.reading("generate", model, adapter, "start.jsonl", &file);
        words.extend([format!("--max_new_tokens={NEW_TOKENS}"), "--do_sample=false".to_owned()]);
        words.extend(bits(case));
        self.burnish(&words)?;
        let rows = rows(&file)?;
        let row = rows.first().context("generate writes no row")?;
        let said = format!("{START}{}", row["completion"].as_str().unwrap_or_default());
        ensure!(
            said == SENTENCE && row["finish_reason"] == "stop",
            "it says {said:?} (finish_reason {}), expected {SENTENCE:?}",
            row["finish_reason"]
        );
        let tokens = row["token_ids"].as_array().context("generate writes no token_ids")?;
        Ok(tokens.iter().filter_map(Value::as_u64).collect())
    }

    /// That other numbers of ranks load the result: at rate 0 they save the same bytes, and above it they take the steps that
    /// its own number of ranks takes. Gives the numbers.
    fn goes_on(&self, case: &Case, model: &Path, adapter: Option<&Path>) -> Result<Vec<usize>> {
        let file = if adapter.is_some() { "adapter_model.safetensors" } else { "model.safetensors" };
        let bytes = |folder: &Path| {
            let path = folder.join(file);
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let saved = bytes(adapter.unwrap_or(model))?;
        let next = self.scratch.join("next");
        let train = |tp: usize, steps: usize, rate: &str| {
            let mut words = self.training(model, adapter, "sentence.jsonl", &next, tp);
            words.extend(recipe(steps, rate));
            words.push(format!("--per_device_train_batch_size={}", 4 / case.accumulation));
            words.extend(bits(case));
            self.burnish(&words).with_context(|| format!("it does not go on at {tp} ranks"))?;
            curves(&next)
        };
        let own = train(case.tp, MORE, "1e-5")?;
        let others = others(case.tp, self.place.most(), self.quick);
        for &tp in &others {
            train(tp, 1, "0")?;
            ensure!(bytes(&next)? == saved, "loaded and saved at {tp} ranks, {file} has other bytes");
            let other = train(tp, MORE, "1e-5")?;
            for (step, (a, b)) in own.loss.iter().zip(&other.loss).enumerate() {
                let apart = ((a - b) / a).abs();
                ensure!(
                    apart <= CLOSE,
                    "going on at {tp} ranks the loss of step {} is {b}, expected {a}",
                    step + 1
                );
            }
        }
        Ok(others)
    }

    /// That PEFT (Transformers for a full model) reads the result as burnish does.
    fn agrees(&mut self, model: &Path, adapter: Option<&Path>, tokens: Vec<u64>) -> Result<f64> {
        let file = self.scratch.join("scores.jsonl");
        self.burnish(&self.reading("score", model, adapter, "texts.jsonl", &file))?;
        let rows = rows(&file)?;
        let column = |key: &str| -> Result<Vec<f64>> {
            let numbers = rows.iter().map(|row| row[key].as_f64());
            numbers.collect::<Option<_>>().with_context(|| format!("score writes no {key}"))
        };
        let ours = Answer { sums: column("sum_logprob")?, tokens };
        let lengths = column("num_tokens")?;
        let peft = self.peft.as_mut().context("no python was given")?;
        let theirs = peft.ask(model, adapter, &TEXTS, START, NEW_TOKENS).context("PEFT does not load it")?;
        ours.apart(&theirs, &lengths)
    }

    fn base_folder(&self, family: &str) -> PathBuf {
        self.scratch.join(format!("{family}-base"))
    }

    fn write_rows(&self, name: &str, column: &str, texts: &[&str]) -> Result<()> {
        let rows: String = texts.iter().map(|text| format!("{}\n", json!({ column: text }))).collect();
        Ok(std::fs::write(self.scratch.join(name), rows)?)
    }

    /// `burnish sft` on a model.
    fn training(
        &self,
        model: &Path,
        adapter: Option<&Path>,
        rows: &str,
        out: &Path,
        tp: usize,
    ) -> Vec<String> {
        let mut words = vec!["sft".to_owned(), format!("--output_dir={}", out.display())];
        words.extend(self.source(model, adapter, rows));
        words.extend([format!("--nproc={tp}"), format!("--tp_size={tp}")]);
        words.extend(self.place.ranks().iter().map(|&word| word.to_owned()));
        words
    }

    /// `burnish generate` or `score`.
    fn reading(
        &self,
        command: &str,
        model: &Path,
        adapter: Option<&Path>,
        rows: &str,
        file: &Path,
    ) -> Vec<String> {
        let mut words = vec![command.to_owned(), format!("--output_file={}", file.display())];
        words.extend(self.source(model, adapter, rows));
        words.extend(self.place.device().iter().map(|&word| word.to_owned()));
        words
    }

    fn source(&self, model: &Path, adapter: Option<&Path>, rows: &str) -> Vec<String> {
        let mut words = vec![
            format!("--model_name_or_path={}", model.display()),
            format!("--dataset_name={}", self.scratch.join(rows).display()),
        ];
        words.extend(adapter.map(|path| format!("--adapter_name_or_path={}", path.display())));
        words
    }

    fn burnish(&self, words: &[String]) -> Result<()> {
        let mut command = Command::new(&self.program);
        let output = command
            .args(words)
            // Ranks equal one to float32's last bits, not to those of bfloat16.
            .env("ACCELERATE_MIXED_PRECISION", "no")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("burnish {}: {}", words[0], said.lines().last().unwrap_or("no message"));
        }
        Ok(())
    }
}

/// The other numbers of ranks to go on at.
fn others(tp: usize, most: usize, quick: bool) -> Vec<usize> {
    let mut all: Vec<usize> = RESUMED.into_iter().filter(|&n| n != tp && n <= most).collect();
    if quick {
        // 1 to 2, 2 to 3, 4 to 1.
        let next = all.iter().position(|&n| n > tp).unwrap_or(0);
        all = all.into_iter().skip(next).take(1).collect();
    }
    all
}

/// Llama's configuration made the family's; four heads over two key and value heads, and a width that does not divide.
fn config(family: &str) -> Result<Value> {
    let mut config: Value = serde_json::from_str(CONFIG)?;
    let architecture = match family {
        MIXTURE => "Qwen3MoeForCausalLM",
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
    if family == MIXTURE {
        // PyTorch's products of groups want rows of whole 16 bytes.
        let of_experts = json!({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
            "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []});
        for (key, value) in of_experts.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
    }
    Ok(config)
}

/// Adam at a constant rate on four rows a step, gradients clipped to 1, every step logged.
fn recipe(steps: usize, rate: &str) -> Vec<String> {
    let mut words = vec![format!("--max_steps={steps}"), format!("--learning_rate={rate}")];
    let fixed = [
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
    ];
    words.extend(fixed.map(str::to_owned));
    words
}

fn method(case: &Case) -> Vec<String> {
    let mut words = Vec::new();
    if case.method != Method::Full {
        words.extend(["--use_peft", "--lora_r=8", "--lora_alpha=16"].map(str::to_owned));
        words.push("--lora_target_modules=all-linear".to_owned());
        words.push(format!("--lora_dropout={}", case.dropout));
        if case.family == MIXTURE {
            words.push("--lora_target_parameters=experts.gate_up_proj,experts.down_proj".to_owned());
        }
    }
    if case.method == Method::Dora {
        words.push("--use_dora".to_owned());
    }
    if case.experts == Experts::Whole {
        words.push("--enable_expert_parallel".to_owned());
    }
    words
}

/// How a base rests in few bits, for every command over it.
fn bits(case: &Case) -> Option<String> {
    (case.method == Method::Qlora).then(|| "--load_in_4bit".to_owned())
}

/// The log of a run.
fn curves(out: &Path) -> Result<Curves> {
    let path = out.join("metrics.jsonl");
    let lines = rows(&path)?;
    let column = |key: &str| -> Result<Vec<f64>> {
        let numbers = lines.iter().map(|line| line[key].as_f64());
        numbers.collect::<Option<_>>().with_context(|| format!("a line of {} has no {key}", path.display()))
    };
    Ok(Curves { loss: column("loss")?, norm: column("grad_norm")? })
}

fn rows(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    lines.with_context(|| format!("{} has a line that is not JSON", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_go_on_at_ranks_that_there_are() {
        assert_eq!(others(2, usize::MAX, false), [1, 3, 4]);
        assert_eq!(others(1, usize::MAX, false), [2, 3, 4]);
        assert_eq!(others(1, 2, false), [2]);
        assert!(others(1, 1, false).is_empty() && others(1, 1, true).is_empty());
        assert_eq!([1, 2, 4].map(|tp| others(tp, usize::MAX, true)), [[2], [3], [1]]);
        assert_eq!(others(2, 2, true), [1]);
    }

    #[test]
    fn a_place_says_its_options() {
        assert!(Place::Cpu.ranks().is_empty() && Place::Cpu.device().is_empty());
        assert_eq!(Place::Gpus(2).ranks(), ["--device=cuda", "--transport=nccl"]);
        assert_eq!((Place::Gpus(2).device(), Place::Gpus(2).most()), (&["--device=cuda"][..], 2));
    }

    #[test]
    fn methods_and_families_are_spelled_out() {
        let case = |method| Case {
            family: "qwen3",
            method,
            tp: 2,
            experts: Experts::Parts,
            accumulation: 1,
            dropout: 0.1,
        };
        assert!(method(&case(Method::Full)).is_empty());
        let (lora, dora) = (method(&case(Method::Lora)), method(&case(Method::Dora)));
        assert!(lora.contains(&"--lora_dropout=0.1".to_owned()) && !lora.contains(&"--use_dora".to_owned()));
        assert_eq!(dora.last().map(String::as_str), Some("--use_dora"));
        let config = config("qwen3").expect("a configuration");
        assert_eq!(config["architectures"][0], "Qwen3ForCausalLM");
        assert_eq!(config["intermediate_size"], 37);
    }
}
