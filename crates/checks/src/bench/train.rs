//! Training: tokens per second of whole steps.

use std::io::Write;

use anyhow::{Context as _, Result};
use burnish_config::{Command as _, SftOptions};
use burnish_trainers::{Ranks, Sft, Trainer as _};

use super::shape::{DELTA, LARGE, LARGEST, MIDDLE, MIXTURE, MIXTURE_IN_PART, MXFP4, SMALL, TINY, Written};
use super::{Bench, Measured, Shape, gpu};
use crate::Context;
use crate::run::run;

/// Steps that compile and tune, and are not counted.
const WARM: u64 = 3;

/// What attention gave is kept where blocks are recomputed.
const KEPT_ATTENTION: (&str, &[&str]) = ("attention kept", &["--keep_attention=true"]);

/// QLoRA.
const NF4: (&str, &[&str]) =
    ("NF4", &["--load_in_4bit=true", "--bnb_4bit_quant_type=nf4", "--bnb_4bit_use_double_quant=true"]);

/// A training.
#[derive(Clone, Copy)]
struct Case {
    shape: Shape,
    lora: bool,
    /// Rows of a micro-batch.
    rows: usize,
    /// Micro-batches of a step.
    accumulated: usize,
    /// Whether blocks are computed again in the backward pass.
    recompute: bool,
    /// What else is asked for: how it is called, and the words.
    more: Option<(&'static str, &'static [&'static str])>,
}

impl Case {
    fn new(shape: Shape, lora: bool) -> Self {
        Self { shape, lora, rows: 4, accumulated: 1, recompute: true, more: None }
    }

    fn name(&self) -> String {
        let what = if self.lora { "LoRA r 16" } else { "full" };
        let accumulated = match self.accumulated {
            1 => String::new(),
            n => format!(", {n} times {} rows", self.rows),
        };
        let kept = if self.recompute { "" } else { ", activations kept" };
        let more = self.more.map_or_else(String::new, |(name, _)| format!(", {name}"));
        format!("{} {what}{accumulated}{kept}{more}, bf16", self.shape.name)
    }
}

pub(super) fn benches(quick: bool) -> Vec<Bench> {
    let shapes: &[Shape] = if quick { &[TINY] } else { &[SMALL, MIDDLE] };
    let mut cases: Vec<Case> = Vec::new();
    for &shape in shapes {
        for lora in [true, false] {
            cases.push(Case::new(shape, lora));
        }
    }
    // As others publish their speed: two rows of 2048 tokens, four times a step.
    let published: &[Shape] = match quick {
        true => &[TINY],
        false => &[SMALL, LARGE, LARGEST, DELTA, MIXTURE_IN_PART, MIXTURE, MXFP4],
    };
    for &shape in published {
        let case = Case { rows: 2, accumulated: 4, ..Case::new(shape, true) };
        cases.extend([case, Case { recompute: false, ..case }]);
        if [SMALL.name, LARGEST.name, TINY.name].contains(&shape.name) {
            let more = [KEPT_ATTENTION, NF4];
            cases.extend(more.map(|more| Case { more: Some(more), ..case }));
        }
    }
    let bench = |case: Case| -> Bench {
        (case.name(), Box::new(move |context, models| measure(context, models, &case)))
    };
    cases.into_iter().map(bench).collect()
}

fn measure(context: &Context, models: &mut Written, case: &Case) -> Result<Measured> {
    let Case { shape, lora, rows, accumulated, recompute, more } = *case;
    let (length, steps) = match (context.quick, accumulated) {
        (true, _) => (128, 5),
        (false, 1) => (2048, 12),
        (false, _) => (2048, 7),
    };
    let all_rows = rows * accumulated;
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("rows.jsonl");
    let model = models.folder(&shape, &context.data("examples/base")?)?;
    let mut file = std::fs::File::create(&data)?;
    let sentence = "The quick brown fox jumps over the lazy dog while the cow sleeps in the barn. ";
    for row in 0..(steps + 2) * all_rows * 4 {
        writeln!(file, "{}", serde_json::json!({"text": format!("{row} {}", sentence.repeat(length / 16))}))?;
    }
    let mut words = vec![
        format!("--model_name_or_path={}", model.display()),
        format!("--dataset_name={}", data.display()),
        format!("--output_dir={}", folder.path().join("out").display()),
        format!("--max_length={length}"),
        format!("--max_steps={steps}"),
        format!("--per_device_train_batch_size={rows}"),
        format!("--gradient_accumulation_steps={accumulated}"),
        format!("--gradient_checkpointing={recompute}"),
        "--packing=true".to_owned(),
        "--packing_strategy=wrapped".to_owned(),
        // As PyTorch's: weights that train are in f32.
        format!("--dtype={}", if lora { "bfloat16" } else { "float32" }),
        "--bf16=true".to_owned(),
        "--logging_steps=1".to_owned(),
        "--save_strategy=no".to_owned(),
        "--report_to=none".to_owned(),
        "--disable_tqdm=true".to_owned(),
        "--learning_rate=1e-5".to_owned(),
    ];
    words.extend(more.into_iter().flat_map(|(_, words)| words.iter().map(|&word| word.to_owned())));
    if lora {
        words.extend(
            [
                "--use_peft=true",
                "--lora_r=16",
                "--lora_alpha=32",
                "--lora_dropout=0",
                "--lora_target_modules=all-linear",
            ]
            .map(str::to_owned),
        );
    }
    let predicted = match gpu(context) {
        Some(gpu) => predicted(&words, gpu.name())?,
        None => None,
    };
    let done = run::<Sft>(words, &Ranks::alone(), &context.device)?;
    let of = |key: &str| -> Vec<f64> {
        done.records.iter().filter(|record| record.step > WARM).filter_map(|record| record.get(key)).collect()
    };
    let mut times = of("step_time");
    times.sort_by(f64::total_cmp);
    let seconds = *times.get(times.len() / 2).context("no step was timed")?;
    let tokens = (length * all_rows) as f64;
    let work = tokens * shape.work(length, lora);
    let bound = match recompute {
        true => "products, made again in the backward of each block; f32 sums between them",
        false => "products; f32 sums between them",
    };
    let mut measured = Measured::new(context, case.name(), [seconds, tokens, work], bound);
    measured.predicted = predicted;
    let memory = of("device_memory_bytes");
    measured.memory = memory.into_iter().reduce(f64::max).map(|bytes| bytes as u64).or(measured.memory);
    Ok(measured)
}

/// Tokens of a second that the plan of these words predicts on a GPU.
fn predicted(words: &[String], gpu: &str) -> Result<Option<f64>> {
    let words = words.iter().cloned().chain([format!("--device={gpu}")]);
    let options = SftOptions::parse_to_plan(words)?.run().context("words that ask for help")?.options;
    Ok(Sft::plan(&options)?.roofline.map(|roofline| roofline.tokens_per_second()))
}
