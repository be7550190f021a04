//! Times generation: `generation_speed MODEL_FOLDER`, then on each line of standard input
//! `SEQUENCES PROMPT_TOKENS NEW_TOKENS GROUP`, answered by one line of JSON.
//!
//! Prompts are made of counted ids; sequences of a group have the same one. Every sequence gets all of its new tokens,
//! the likeliest ones. `first_s` is the time until every sequence has its first token, `total_s` the whole.

use std::error::Error;
use std::io::{BufRead, stdin};
use std::time::Instant;

use burn::tensor::Device;
use burnish_models::{Generation, load};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: generation_speed MODEL_FOLDER")?;
    let model = load(&folder, &Device::flex())?.decoder;
    let vocab = model.spec().vocab as u32;
    for line in stdin().lock().lines() {
        let numbers: Vec<usize> = line?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [sequences, prompt, new, group] = numbers[..] else {
            return Err("expected SEQUENCES PROMPT_TOKENS NEW_TOKENS GROUP".into());
        };
        let prompts: Vec<Vec<u32>> = (0..sequences)
            .map(|s| (0..prompt).map(|i| (((s / group) * 7919 + i * 31 + 5) as u32) % vocab).collect())
            .collect();
        let options = Generation { max_new_tokens: new, ..Generation::default() };
        let (mut heard, mut first) = (0, 0.0);
        let start = Instant::now();
        let done = model.generate(&prompts, &options, &mut |_, _| {
            heard += 1;
            if heard == sequences {
                first = start.elapsed().as_secs_f64();
            }
            true
        })?;
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
