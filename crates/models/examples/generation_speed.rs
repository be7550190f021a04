//! Times generation: `generation_speed MODEL_FOLDER [bf16|int8]` (products of bfloat16; matrices of blocks in int8 and products
//! of int8, others of bfloat16), then on each line of standard input
//! `SEQUENCES PROMPT_TOKENS NEW_TOKENS GROUP [AT_ONCE CALLS]`, answered by one line of JSON.
//!
//! Prompts are made of counted ids; sequences of a group have the same one. Every sequence gets all of its new tokens,
//! the likeliest ones. `first_s` is the time until every sequence has its first token, `total_s` the whole.
//!
//! With `AT_ONCE` at most so many sequences run at once, prompts have up to PROMPT_TOKENS, and completions end after a
//! number of tokens of their own, up to NEW_TOKENS: most are short, few are long. CALLS 0 is one call with a queue, 1 a
//! call for every AT_ONCE sequences.

use std::error::Error;
use std::io::{BufRead, stdin};
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;
use burnish_core::{Compute, Dtype};
use burnish_models::{
    Generation, LocalParams, ModelFolder, ModelPlan, Parameters, Tuning, int8_for_generation,
};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: generation_speed MODEL_FOLDER [bf16|int8]")?;
    let products = std::env::args().nth(2);
    let compute = match products.as_deref() {
        Some("bf16" | "int8") => Compute::Bf16,
        _ => Compute::Fp32,
    };
    let files = ModelFolder::open(&folder)?;
    let plan = ModelPlan::new(&files, &Tuning::None, Dtype::F32, 0)?.computing(compute);
    let model = if products.as_deref() == Some("int8") {
        let registry = plan.local_registry();
        let (model, parameters) = plan.resident(&Device::flex())?;
        let value = |index| int8_for_generation(registry.at(index), parameters.read(index));
        let values = (0..registry.len()).map(value).collect::<Result<Vec<_>, _>>()?;
        drop((model, parameters));
        let plan = ModelPlan::new(&files, &Tuning::None, Dtype::F32, 0)?.computing(compute);
        plan.into_model(Arc::new(LocalParams::new(registry, values))).decoder
    } else {
        plan.resident(&Device::flex())?.0.decoder
    };
    let vocab = model.spec().vocab as u32;
    for line in stdin().lock().lines() {
        let mut numbers: Vec<usize> = line?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let queued = numbers.len() == 6;
        if !queued {
            numbers.extend([0, 0]);
        }
        let [sequences, prompt, new, group, at_once, calls] = numbers[..] else {
            return Err("expected SEQUENCES PROMPT_TOKENS NEW_TOKENS GROUP [AT_ONCE CALLS]".into());
        };
        // A part of `most`: spread evenly, or (power 2) most of them small.
        let part = |most: usize, i: usize, power: i32| match queued {
            true => ((most as f64 * (((i + 11) % 64) as f64 / 63.0).powi(power)) as usize).max(1),
            false => most,
        };
        let prompts: Vec<Vec<u32>> = (0..sequences)
            .map(|s| s / group)
            .map(|g| (0..part(prompt, g * 37, 1)).map(|i| ((g * 7919 + i * 31 + 5) as u32) % vocab).collect())
            .collect();
        let options = Generation { max_new_tokens: new, max_sequences: at_once, ..Generation::default() };
        let mut lengths = vec![0; sequences];
        let (mut begun, mut first, mut done) = (0, 0.0, Vec::new());
        let start = Instant::now();
        let size = if calls == 1 { at_once } else { sequences };
        for (call, prompts) in prompts.chunks(size.max(1)).enumerate() {
            done.extend(model.generate(prompts, &options, &mut |row, _| {
                let row = call * size + row;
                lengths[row] += 1;
                if lengths[row] == 1 {
                    begun += 1;
                    if begun == sequences {
                        first = start.elapsed().as_secs_f64();
                    }
                }
                lengths[row] < part(new, row * 23, 2)
            })?);
        }
        let total = start.elapsed().as_secs_f64();
        let tokens: usize = done.iter().map(|c| c.token_ids.len()).sum();
        let last: Vec<u32> = done.iter().filter_map(|c| c.token_ids.last().copied()).collect();
        println!(
            "{}",
            serde_json::json!({"tokens": tokens, "first_s": first, "total_s": total, "last": last})
        );
    }
    Ok(())
}
