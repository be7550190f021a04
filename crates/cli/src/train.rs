//! The commands that train, one for each trainer.

use std::process::ExitCode;

use anyhow::Context;
use burnish_config::table::Raw;
use burnish_config::{Command, TrainerOptions};
use burnish_device::{DeviceKind, release, room};
use burnish_report::{bytes, count, duration, replace};
use burnish_trainers::{
    FittingBatch, Outcome, Ranks, Run, RunInputs, Stop, TrainError, Trainer, WithTrainer, fitting_batch,
    resumed_batch, until_it_fits,
};

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
    let Some(resolved) = crate::options::<T::Options>(words)? else { return Ok(ExitCode::SUCCESS) };
    let common = resolved.options.run_options();
    crate::use_threads(common.model.threads)?;
    let record = serde_json::Value::Object(resolved.to_json());
    #[cfg(feature = "hub")]
    let record = crate::hub::named(record);
    let (ranks, device) = crate::device::with_ranks(common.model.device, &common.ranks)?;
    let lead = ranks.lead();
    #[cfg(feature = "hub")]
    let push = if lead { crate::hub::Push::prepare(&common.training)? } else { None };
    #[cfg(feature = "hub")]
    let pushing = push.as_ref().and_then(|push| crate::hub::CheckpointPush::start(push, &common.training));
    #[cfg(not(feature = "hub"))]
    if lead && common.training.push_to_hub {
        eprintln!("note: push_to_hub: this build leaves the hub out; nothing is uploaded");
    }
    let output_dir = common.training.output_dir.clone();
    let mut note = |note: &str| {
        if lead {
            eprintln!("note: {note}");
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
        eprintln!("{}", run.summary()?);
        replace(&output_dir.join("burnish.json"), serde_json::to_string_pretty(&record)?.as_bytes())?;
    }

    let stop = Stop::never();
    let asked = stop.clone();
    ctrlc::set_handler(move || {
        if asked.ask() {
            // A second wish is not to wait any longer; the last complete checkpoint stays.
            std::process::exit(130);
        }
        eprintln!("\nstopping after this step and saving; once more stops at once");
    })
    .context("cannot listen for Ctrl-C")?;

    let outcome = if common.training.auto_find_batch_size {
        let mut opened = Some(run);
        let again = |rows: usize| match opened.take() {
            Some(run) => run.run(&ranks, &stop),
            None => open(rows)?.run(&ranks, &stop),
        };
        let fewer = |rows: usize, error: &TrainError| {
            release(&device);
            eprintln!(
                "note: {error}\nnote: auto_find_batch_size: from the start, with {rows} rows per micro-batch"
            );
        };
        until_it_fits(rows, &ranks, fewer, again)
    } else {
        run.run(&ranks, &stop)
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            // Said while the other ranks can still be reached: a launcher ends all of them when one ends.
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(1));
        }
    };
    #[cfg(feature = "hub")]
    if let Some(pushing) = pushing {
        pushing.finish();
    }
    if !lead {
        return Ok(if outcome.interrupted.is_some() { ExitCode::from(130) } else { ExitCode::SUCCESS });
    }
    let status = report(T::Options::NAME, &outcome, &output_dir, words);
    #[cfg(feature = "hub")]
    if let Some(push) = push.filter(|_| outcome.interrupted.is_none()) {
        println!("{}", push.finish(&output_dir)?);
    }
    Ok(status)
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
    let (kind, _) = crate::device::kind(options.run_options().model.device, &mut |_| {})?;
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

fn report(command: &str, outcome: &Outcome, output_dir: &std::path::Path, words: &[String]) -> ExitCode {
    if let Some(checkpoint) = &outcome.interrupted {
        let quoted: Vec<String> = words
            .iter()
            .map(|w| if w.contains(char::is_whitespace) { format!("'{w}'") } else { w.clone() })
            .collect();
        eprintln!(
            "stopped at step {}; saved {}\nto go on: burnish {command} {} --resume_from_checkpoint true",
            outcome.steps,
            checkpoint.display(),
            quoted.join(" ")
        );
        return ExitCode::from(130);
    }
    if let Some(sample) = &outcome.sample {
        println!("prompt: {}\ncompletion: {}", sample.prompt.trim_end(), sample.completion.trim_end());
    }
    let last = outcome.records.iter().rev().find_map(|r| r.get("loss"));
    let peak = outcome.records.iter().rev().find_map(|r| r.get("peak_memory_bytes"));
    let tokens = outcome.records.iter().rev().find_map(|r| r.get("num_tokens"));
    println!(
        "{} steps in {}, {} tokens, loss {}, peak memory {}; everything is in {}",
        outcome.steps,
        duration(outcome.time),
        count(tokens.unwrap_or(0.0) as u64),
        last.map_or_else(|| "unknown".to_owned(), |l| format!("{l:.4}")),
        peak.map_or_else(|| "unknown".to_owned(), |p| bytes(p as u64)),
        output_dir.display()
    );
    ExitCode::SUCCESS
}
