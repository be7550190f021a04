//! Decoding: tokens of a second over all sequences, behind a short prompt.

use std::time::Instant;

use anyhow::Result;
use burnish_models::{Generation, load};

use super::shape::{DELTA, MIXTURE_IN_PART, MXFP4, SMALL, TINY, Written};
use super::{Bench, Measured, Shape};
use crate::Context;

/// Tokens until everything is compiled, tuned and recorded, which are not counted.
const WARM: usize = 16;

pub(super) fn benches(quick: bool) -> Vec<Bench> {
    let (shapes, all): (&[Shape], &[usize]) = match quick {
        true => (&[TINY], &[1, 8]),
        false => (&[SMALL, DELTA, MIXTURE_IN_PART, MXFP4], &[1, 8, 64]),
    };
    let bench = |shape: Shape, sequences: usize| -> Bench {
        let name = format!("{} decodes, {sequences} at once behind 256 tokens, bf16", shape.name);
        let named = name.clone();
        (name, Box::new(move |context, models| measure(context, models, &named, shape, sequences)))
    };
    shapes.iter().flat_map(|&shape| all.iter().map(move |&sequences| bench(shape, sequences))).collect()
}

fn measure(
    context: &Context,
    models: &mut Written,
    name: &str,
    shape: Shape,
    sequences: usize,
) -> Result<Measured> {
    let steps = if context.quick { 8 } else { 128 };
    let model = load(models.folder(&shape, &context.data("examples/base")?)?, &context.device)?.decoder;
    let vocab = model.spec().vocab;
    let prompts: Vec<Vec<u32>> =
        (0..sequences).map(|row| (0..256).map(|at| ((row * 31 + at * 7) % vocab) as u32).collect()).collect();
    let options = Generation { max_new_tokens: WARM + steps, ..Generation::default() };
    let (mut told, mut begun) = (0, Instant::now());
    model.generate(&prompts, &options, &mut |row, _| {
        told += usize::from(row == 0);
        if row == 0 && told == WARM {
            begun = Instant::now();
        }
        true
    })?;
    let seconds = begun.elapsed().as_secs_f64() / steps as f64;
    let tokens = sequences as f64;
    let bound = "the weights' bytes, launches of one recording";
    // A third of a training's work is forward.
    let work = tokens * shape.work(256, false) / 3.0;
    Ok(Measured::new(context, name, [seconds, tokens, work], bound))
}
