//! The commands that train, one for each trainer.

use std::path::Path;
use std::process::ExitCode;

use burnish_config::groups::{ModelOptions, TrainingOptions};
use burnish_config::table::Raw;
use burnish_config::{Command, TrainerOptions};
use burnish_core::Compute;
use burnish_device::{DeviceKind, multiplies_bf16, release, room};
use burnish_report::{bytes, count, duration, replace};
use burnish_trainers::{
    FittingBatch, Outcome, Ranks, Run, RunInputs, Stop, TrainError, Trainer, WithTrainer, cores_of_process,
    default_bf16, fitting_batch, resumed_batch, until_it_fits,
};

use crate::voice;

/// Runs the trainer of a command with the words after it.
pub(crate) struct Train<'a>(pub(crate) &'a [String]);

impl WithTrainer for Train<'_> {
    type Output = anyhow::Result<ExitCode>;

    fn with<T: Trainer>(self) -> Self::Output {
        run::<T>(self.0)
    }
}

/// Runs the command of a trainer.
fn run<T: Trainer>(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(mut resolved) = crate::options::<T::Options>(words)? else { return Ok(ExitCode::SUCCESS) };
    let common = resolved.options.run_options();
    let cores = cores_of_process(&common.ranks)?;
    // Ranks that are threads of this process have threads of their own then.
    crate::use_threads(common.model.threads, cores.as_ref().filter(|_| common.ranks.nproc == 1))?;
    let (ranks, device, kind) = crate::device::with_ranks(common.model.device.kind(), &common.ranks)?;
    let ranks = ranks.keeping_to(cores.as_ref())?;
    let lead = ranks.lead();
    let chosen = choose_products(&mut resolved.options, (&common.model, &common.training), kind)?;
    let asked = resolved.options.run_options().model.compute() == Compute::Bf16;
    if asked && kind == DeviceKind::Cpu && !multiplies_bf16() && lead {
        voice::note("products multiply float32, as this processor has none of bfloat16");
    } else if chosen && lead {
        voice::note("products multiply bfloat16, TRL's default; `bf16: false` multiplies float32");
    }
    let record = serde_json::Value::Object(resolved.to_json());
    #[cfg(feature = "hub")]
    let record = crate::hub::named(record);
    let base = record["model_name_or_path"].as_str().unwrap_or_default().to_owned();
    #[cfg(feature = "hub")]
    let push = if lead { crate::hub::Push::prepare(&common.training)? } else { None };
    #[cfg(feature = "hub")]
    let pushing = push.as_ref().and_then(|push| crate::hub::CheckpointPush::start(push, &common.training));
    #[cfg(not(feature = "hub"))]
    if lead && common.training.push_to_hub {
        voice::note("push_to_hub: this build leaves the hub out; nothing is uploaded");
    }
    let output_dir = common.training.output_dir.clone();
    let overwrites = common.training.overwrite_output_dir;
    let mut note = |note: &str| {
        if lead {
            voice::note(note);
        }
    };
    let rows = batch_rows::<T>(&resolved.options, &ranks, &mut note)?;
    let mut open = |rows: usize| -> Result<Run<T>, TrainError> {
        let mut options = resolved.options.clone();
        let written = Raw::Int(i64::try_from(rows).unwrap_or(i64::MAX));
        let set = options.set("per_device_train_batch_size", &written);
        assert!(matches!(set, Some(Ok(()))), "invariant: every trainer has rows per micro-batch");
        let inputs = RunInputs::new(&ranks, &device).notes(&mut note);
        #[cfg(feature = "hub")]
        let inputs = inputs.row_cache(crate::hub::row_cache());
        let run = T::open(options, inputs)?;
        #[cfg(feature = "hub")]
        if let Some(pushing) = &pushing {
            return Ok(run.on_checkpoint(pushing.hears()));
        }
        Ok(run)
    };
    let run = open(rows)?;
    if lead {
        voice::say(run.summary()?);
        replace(&output_dir.join("burnish.json"), serde_json::to_string_pretty(&record)?.as_bytes())?;
    }

    let stop = Stop::never();
    let asked = stop.clone();
    crate::interrupt::listen(move || {
        asked.ask();
        voice::say("\nstopping after this step and saving; once more stops at once");
    })?;

    let outcome = if common.training.auto_find_batch_size {
        let mut opened = Some(run);
        let again = |rows: usize| match opened.take() {
            Some(run) => run.run(&ranks, &stop),
            None => open(rows)?.run(&ranks, &stop),
        };
        let fewer = |rows: usize, error: &TrainError| {
            release(&device);
            voice::note(error);
            voice::note(format_args!(
                "auto_find_batch_size: from the start, with {rows} rows per micro-batch"
            ));
        };
        until_it_fits(rows, &ranks, fewer, again)
    } else {
        run.run(&ranks, &stop)
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            // Said while the other ranks can still be reached: a launcher ends all of them when one ends.
            return Ok(voice::failed(&error.into()));
        }
    };
    #[cfg(feature = "hub")]
    if let Some(pushing) = pushing {
        pushing.finish();
    }
    if !lead {
        return Ok(if outcome.interrupted.is_some() { ExitCode::from(130) } else { ExitCode::SUCCESS });
    }
    let status = report(T::Options::NAME, &outcome, &output_dir, words, overwrites);
    if outcome.interrupted.is_none() {
        voice::say(crate::hints::after_training(T::Options::NAME, &base, &output_dir));
    }
    #[cfg(feature = "hub")]
    if let Some(push) = push.filter(|_| outcome.interrupted.is_none()) {
        voice::closing(push.finish(&output_dir)?);
    }
    Ok(status)
}

/// Settles `bf16` where `options` leave it open; whether products multiply bfloat16 because of that.
pub(crate) fn choose_products(
    options: &mut impl Command,
    (model, training): (&ModelOptions, &TrainingOptions),
    kind: DeviceKind,
) -> Result<bool, TrainError> {
    let launched = std::env::var("ACCELERATE_MIXED_PRECISION").ok();
    let Some(bf16) = default_bf16(model, training, kind, launched.as_deref())? else { return Ok(false) };
    let set = options.set("bf16", &Raw::Bool(bf16));
    assert!(matches!(set, Some(Ok(()))), "invariant: what trains has bf16");
    Ok(bf16)
}

/// Rows per micro-batch: as many as the options say, or with `auto_find_batch_size` as the checkpoint had, or as fit into the
/// machine's memory by the plan. A GPU's is tried.
fn batch_rows<T: Trainer>(
    options: &T::Options,
    ranks: &Ranks,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<usize> {
    let training = options.run_options().training;
    let asked = training.per_device_train_batch_size;
    if !training.auto_find_batch_size {
        return Ok(asked);
    }
    if let Some(rows) = resumed_batch(options)? {
        if rows != asked {
            note(&format!(
                "auto_find_batch_size: {rows} rows per micro-batch, as the checkpoint was made with"
            ));
        }
        return Ok(rows);
    }
    if matches!(ranks, Ranks::Process(_)) {
        note("auto_find_batch_size: ranks that a launcher started keep the batch size that is asked for");
        return Ok(asked);
    }
    let (kind, _) = crate::device::kind(options.run_options().model.device.kind(), &mut |_| {})?;
    let Some(room) = room().filter(|_| kind == DeviceKind::Cpu) else { return Ok(asked) };
    let found = fitting_batch::<T>(options, ranks, room)?;
    let FittingBatch { rows, needs, fits } = found;
    if rows != asked || !fits {
        let but = if fits { "" } else { ", which is too much still" };
        note(&format!(
            "auto_find_batch_size: {rows} rows per micro-batch instead of {asked}, for which the plan counts {}{but}; the \
             machine has {} left. gradient_accumulation_steps stays, as with Transformers: a step has fewer rows",
            bytes(needs),
            bytes(room)
        ));
    }
    Ok(rows)
}

fn report(
    command: &str,
    outcome: &Outcome,
    output_dir: &Path,
    words: &[String],
    overwrites: bool,
) -> ExitCode {
    if let Some(checkpoint) = &outcome.interrupted {
        // The newest is not looked for in a folder that is to be overwritten.
        let from = if overwrites { quoted(&[checkpoint.display().to_string()]) } else { "true".to_owned() };
        voice::say(format_args!(
            "stopped at step {}; saved {}\nto go on: burnish {command} {} --resume_from_checkpoint {from}",
            outcome.steps,
            checkpoint.display(),
            quoted(words)
        ));
        return ExitCode::from(130);
    }
    if let Some(sample) = &outcome.sample {
        let (prompt, completion) = (sample.prompt.trim_end(), sample.completion.trim_end());
        voice::closing(format_args!("prompt: {prompt}\ncompletion: {completion}"));
    }
    let last = outcome.records.iter().rev().find_map(|r| r.get("loss"));
    let peak = outcome.records.iter().rev().find_map(|r| r.get("peak_memory_bytes"));
    let tokens = outcome.records.iter().rev().find_map(|r| r.get("num_tokens"));
    voice::closing(format_args!(
        "{} steps in {}, {} tokens, loss {}, peak memory {}; everything is in {}",
        outcome.steps,
        duration(outcome.time),
        count(tokens.unwrap_or(0.0) as u64),
        last.map_or_else(|| "unknown".to_owned(), |l| format!("{l:.4}")),
        peak.map_or_else(|| "unknown".to_owned(), |p| bytes(p as u64)),
        output_dir.display()
    ));
    ExitCode::SUCCESS
}

/// Words as a shell takes them.
pub(crate) fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_shell_reads_what_was_meant() {
        let words = ["--output_dir", "my run", "--chat_template", "", "it's {{ a }}", "$HOME", "a=b/c.d"];
        let line = super::quoted(&words.map(str::to_owned));
        assert_eq!(line, "--output_dir 'my run' --chat_template '' 'it'\\''s {{ a }}' '$HOME' a=b/c.d");
    }
}
