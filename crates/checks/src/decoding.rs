//! Steps of decoding that are recorded, against the same steps launched one by one.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use burnish_device::DeviceKind;
use burnish_models::{Decoder, Decoding, Generation, Output, Sampling, Spec, load};

use crate::check::LeftOut;
use crate::{Check, Context};

/// Steps until as many sequences as there were go on.
const STEPS: usize = 9;

/// The logits of every call.
fn logits_of(mut decoding: Decoding<'_>, spec: &Spec) -> Result<(Vec<Vec<f32>>, usize)> {
    let vocab = spec.vocab;
    // Beyond a page of keys, where positions go so far.
    let long = (spec.max_positions - 2 * STEPS).min(60);
    let token = |at: usize| (5 + 7 * at % 11) as u32 % vocab as u32;
    let prompt = |length: usize| (0..length).map(token).collect::<Vec<u32>>();
    let mut all = vec![decoding.join(&[prompt(5), prompt(2), prompt(9)], None)?];
    let steps = |decoding: &mut Decoding<'_>, all: &mut Vec<Vec<f32>>| -> Result<()> {
        for step in 0..STEPS {
            let new: Vec<[u32; 1]> = (0..decoding.sequences()).map(|row| [token(3 * step + row)]).collect();
            all.push(decoding.logits(&new)?);
        }
        Ok(())
    };
    steps(&mut decoding, &mut all)?;
    // One ends, five come, two of them alike: a step has more rows than sequences.
    decoding.reorder(&[2, 0])?;
    all.push(decoding.join(&[prompt(long), prompt(4), prompt(4), prompt(1), prompt(long - 1)], None)?);
    steps(&mut decoding, &mut all)?;
    // Fewer, in as many rows.
    decoding.reorder(&[1, 3, 2, 6, 0])?;
    steps(&mut decoding, &mut all)?;
    if let (0, Some(why)) = (decoding.recorded_steps(), decoding.recording_refused()) {
        bail!("{why}");
    }
    Ok((all, decoding.recorded_steps()))
}

fn compared(folder: &Path, context: &Context) -> Result<String> {
    if context.kind == DeviceKind::Cpu {
        return Err(LeftOut("nothing is recorded on the processor".to_owned()).into());
    }
    let model =
        load(folder, &context.device).with_context(|| format!("cannot load {}", folder.display()))?.decoder;
    if model.spec().output != Output::Vocabulary {
        return Err(LeftOut("it gives no tokens".to_owned()).into());
    }
    if model.parameters().registry().iter().any(|parameter| parameter.precision.store.bytes() == 2) {
        context.has_half()?;
    }
    let (expected, none) = logits_of(Decoding::new(&model, 0).eager(), model.spec())?;
    ensure!(none == 0, "{none} steps were recorded that were to run as they are");
    let (got, recorded) = logits_of(Decoding::new(&model, 0), model.spec())?;
    if recorded == 0 {
        return Err(LeftOut("its steps are not alike".to_owned()).into());
    }
    let worst = |a: &[Vec<f32>], b: &[Vec<f32>]| {
        let largest = a.iter().flatten().fold(0.0_f32, |top, x| top.max(x.abs()));
        let apart = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs());
        apart.fold(0.0_f32, |top, d| if d.is_nan() { f32::INFINITY } else { top.max(d) }) / largest
    };
    let same = 1 + STEPS;
    ensure!(
        expected[..same] == got[..same],
        "steps of as many rows as sequences differ by {:.1e}",
        worst(&expected[..same], &got[..same])
    );
    let (worst, bound) = (worst(&expected, &got), context.tolerance().product as f32);
    ensure!(worst <= bound, "logits differ by {worst:.1e} of the largest, bound {bound:.0e}");
    let apart = drawn(&model)?;
    ensure!(apart <= bound, "log-probabilities of drawn tokens differ by {apart:.1e}, bound {bound:.0e}");
    Ok(format!(
        "{recorded} of {} steps recorded, {worst:.1e} of the largest logit; drawn within {apart:.1e}; bound {bound:.0e}",
        3 * STEPS
    ))
}

/// Tokens and their log-probabilities, drawn where logits are made and on the host.
fn drawn(model: &Decoder) -> Result<f32> {
    let vocab = model.spec().vocab;
    let mut worst = 0.0_f32;
    for do_sample in [false, true] {
        let sampling = Sampling { do_sample, temperature: 0.8, seed: 11, ..Sampling::default() };
        let options = Generation { max_new_tokens: 12, log_probs: true, sampling, ..Generation::default() };
        let prompts: Vec<Vec<u32>> =
            (1..4).map(|n| (0..3 * n).map(|at| (at * 5 % vocab) as u32).collect()).collect();
        let completions = model.generate(&prompts, &options, &mut |_, _| true)?;
        // As it would be with any sampler over the logits of the same steps.
        let mut tokens = prompts.clone();
        let mut decoding = Decoding::new(model, 0);
        let mut logits = decoding.join(&prompts, None)?;
        for step in 0..options.max_new_tokens {
            let mut next = Vec::new();
            for (row, (tokens, logits)) in tokens.iter_mut().zip(logits.chunks(vocab)).enumerate() {
                let of = &options.sampling;
                let id = of.next(&mut logits.to_vec(), tokens, row as u64, tokens.len() as u64);
                let said = (completions[row].token_ids[step], completions[row].log_probs[step]);
                ensure!(said.0 == id, "row {row}, token {step}: {} was drawn, {id} on the host", said.0);
                worst = worst.max((of.log_prob(logits, id) - said.1).abs());
                tokens.push(id);
                next.push([id]);
            }
            logits = decoding.logits(&next)?;
        }
    }
    Ok(worst)
}

/// Models in a folder, by name.
fn models(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("config.json").is_file() && path.join("model.safetensors").is_file())
        .collect();
    all.sort();
    all
}

pub(crate) fn checks(context: &Context) -> Result<Vec<Check>> {
    let folders = [
        ("model of runs", context.fixtures()?.join("models")),
        ("family", context.data.join("crates/models/tests/fixtures")),
    ];
    let named =
        folders.iter().flat_map(|(what, folder)| models(folder).into_iter().map(move |path| (what, path)));
    let all = named.map(|(what, folder)| {
        // No name is a part of another: checks are chosen by what their names hold.
        let name = format!("{what} {}, recorded", folder.file_name().unwrap_or_default().to_string_lossy());
        Check::new("decoding", name, move |context| compared(&folder, context))
    });
    Ok(all.collect())
}
