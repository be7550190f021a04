//! Ranks as threads that share the device: every stage, tensor parallelism, adapters, both dtypes.

use anyhow::Result;
use burnish_trainers::Ranks;

use crate::run::{Short, compare};
use crate::{Check, Context};

const KEYS: [&str; 2] = ["loss", "grad_norm"];

pub(crate) fn lora(more: &[&str]) -> Vec<String> {
    let mut all = vec!["--use_peft=true", "--lora_r=4", "--lora_alpha=8", "--lora_dropout=0.1"];
    all.extend(more);
    all.into_iter().map(str::to_owned).collect()
}

pub(crate) fn full(more: &[&str]) -> Vec<String> {
    more.iter().map(|&word| word.to_owned()).collect()
}

/// The same run on one rank and on several.
fn check(name: &str, ranks: usize, common: Vec<String>, several: &[&str]) -> Check {
    let several: Vec<String> = several.iter().map(|&word| word.to_owned()).collect();
    let half = common.iter().any(|word| word == "--dtype=bfloat16");
    Check::new("ranks", name, move |context: &Context| {
        if half {
            context.has_half()?;
        }
        against_one(context, 4, half, &common, (&several, &Ranks::threads(ranks)))
    })
}

/// A run of steps of `rows` rows on `ranks`, with these options of theirs, against the same on one rank.
pub(crate) fn against_one(
    context: &Context,
    rows: usize,
    half: bool,
    common: &[String],
    (several, ranks): (&[String], &Ranks),
) -> Result<String> {
    let fixtures = context.fixtures()?;
    let folder = tempfile::tempdir()?;
    let model = fixtures.join("models/llama");
    let on = |more: &[String], ranks: &Ranks| {
        let mut all = common.to_vec();
        if !half {
            all.push("--bf16=false".to_owned());
        }
        all.push(format!("--global_batch_size={rows}"));
        all.extend(more.iter().cloned());
        Short {
            model: &model,
            data: &fixtures.join("data/prompt_completion.jsonl"),
            output: &folder.path().join("out"),
            steps: 4,
            more: all,
        }
        .on(ranks, &context.device)
    };
    let one = on(&[], &Ranks::alone())?;
    let many = on(&[several, &["--per_device_train_batch_size=1".to_owned()]].concat(), ranks)?;
    let bound = if half { context.tolerance().half_run } else { context.tolerance().run };
    let worst = compare(&many.records, &one.records, &KEYS, bound)?;
    Ok(format!("{worst:.1e} from one rank over {} steps, bound {bound:.0e}", one.records.len()))
}

pub(crate) fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    for stage in ["--zero_stage=0", "--zero_stage=1", "--zero_stage=2", "--zero_stage=3"] {
        let name = stage.trim_start_matches("--zero_stage=");
        let sharp = [stage, "--stage3_param_persistence_threshold=0"];
        all.push(check(&format!("stage {name}, full, 2 ranks"), 2, full(&[]), &sharp));
        all.push(check(&format!("stage {name}, LoRA, 4 ranks"), 4, lora(&[]), &sharp));
    }
    let half = ["--dtype=bfloat16"];
    all.push(check("stage 3, LoRA, bf16 base, 2 ranks", 2, lora(&half), &["--zero_stage=3"]));
    all.push(check("tp 2, full", 2, full(&[]), &["--tp_size=2"]));
    all.push(check("tp 2, LoRA", 2, lora(&[]), &["--tp_size=2"]));
    all.push(check("tp 2, DoRA", 2, lora(&["--use_dora=true"]), &["--tp_size=2"]));
    all.push(check("tp 2, stage 3, LoRA, 4 ranks", 4, lora(&[]), &["--tp_size=2", "--zero_stage=3"]));
    all.push(check("tp 2, Muon, 4 ranks", 4, full(&["--optim=muon"]), &["--tp_size=2", "--zero_stage=2"]));
    all
}
