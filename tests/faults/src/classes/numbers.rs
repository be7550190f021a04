//! Numbers that are none: in weights, in results, in updates.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use crate::lab::{Lab, copy, has_null};
use crate::random::Random;
use crate::running::Ended;
use crate::verdict::{Outcome, judge};

/// Runs whose updates overflow.
const OVERFLOWS: [&[&str]; 6] = [
    &["--learning_rate=1e38", "--max_grad_norm=0", "--max_steps=1"],
    &["--learning_rate=1e38", "--max_grad_norm=0", "--max_steps=3", "--save_steps=1"],
    &["--learning_rate=1e30", "--lr_scheduler_type=constant", "--max_steps=6", "--save_steps=1"],
    &["--learning_rate=1e20", "--dtype=float16", "--max_steps=4", "--save_steps=1"],
    &["--learning_rate=1e38", "--dtype=bfloat16", "--max_steps=2"],
    &["--weight_decay=1e38", "--learning_rate=1e30", "--max_steps=3", "--save_steps=1"],
];

const COMMANDS: [(&str, &str, &[&str]); 9] = [
    ("score", "text.jsonl", &["--max_length=48"]),
    ("eval", "text.jsonl", &["--max_length=48"]),
    ("generate", "prompt_completion.jsonl", &["--max_new_tokens=4"]),
    ("generate", "prompt_completion.jsonl", &["--max_new_tokens=4", "--do_sample=true"]),
    ("sft", "text.jsonl", &["--max_steps=2", "--max_length=48", "--per_device_train_batch_size=2"]),
    ("dpo", "preference.jsonl", &["--max_steps=2", "--max_length=48", "--per_device_train_batch_size=2"]),
    (
        "grpo",
        "prompt_completion.jsonl",
        &[
            "--max_steps=2",
            "--per_device_train_batch_size=2",
            "--num_generations=2",
            "--max_completion_length=4",
            "--reward_funcs=length_reward",
        ],
    ),
    (
        "rloo",
        "prompt_completion.jsonl",
        &[
            "--max_steps=2",
            "--per_device_train_batch_size=2",
            "--num_generations=2",
            "--max_completion_length=4",
            "--reward_funcs=length_reward",
        ],
    ),
    ("reward", "preference.jsonl", &["--max_steps=2", "--max_length=48", "--per_device_train_batch_size=2"]),
];

/// What elements become, as float32 bits.
const VALUES: [u32; 4] = [0x7fc0_0000, 0x7f80_0000, 0xff80_0000, 0x7f7f_ffff];

pub(crate) fn written(_: &Lab) -> usize {
    OVERFLOWS.len() + COMMANDS.len() * VALUES.len()
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let out = folder.path().join("out");
    if let Some(words) = OVERFLOWS.get(attempt) {
        let ended = lab.run(lab.sft(&out, words))?;
        let names = ["step ", "learning_rate"];
        let mut outcome = judge(format!("{words:?}"), &ended, &names, |_| not_finite(&out));
        // Checkpoints that are there are of numbers.
        let bad = (1..=6).find_map(|step| not_finite(&out.join(format!("checkpoint-{step}"))));
        if let Some(bad) = bad {
            outcome.verdict = crate::verdict::Verdict::Wrong;
            outcome.said = format!("{bad}\n{}", outcome.said);
        }
        return Ok(outcome);
    }
    let index = attempt - OVERFLOWS.len();
    let listed = index < COMMANDS.len() * VALUES.len();
    let (command, rows, more) =
        if listed { COMMANDS[index / VALUES.len()] } else { *random.of_these(&COMMANDS) };
    let value = if listed { VALUES[index % VALUES.len()] } else { *random.of_these(&VALUES) };
    let model = folder.path().join("model");
    copy(&lab.model(), &model)?;
    let path = model.join("model.safetensors");
    let mut bytes = std::fs::read(&path)?;
    let tensors = tensors(&bytes)?;
    let (name, start, end, size) = random.of_these(&tensors).clone();
    let share = if listed { 1 } else { 1 + random.below(50) };
    for at in (start..end).step_by(size * share) {
        let word = value.to_le_bytes();
        bytes[at..at + size].copy_from_slice(&word[4 - size..]);
    }
    std::fs::write(&path, &bytes)?;
    let output = format!("--output_dir={}", out.display());
    let trains = more.iter().any(|word| word.starts_with("--max_steps"));
    let all = [
        more,
        if trains { std::slice::from_ref(&output) } else { &[] }
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .as_slice(),
    ]
    .concat();
    let ended = lab.run(lab.words(command, &model, &lab.rows(rows), &all))?;
    let what = format!("{command} {more:?}, {name} of {:?}, one of {share}", f32::from_bits(value));
    // A weight that no row reads may be anything, but for a run that writes it again.
    Ok(judge(what, &ended, &[], |e: &Ended| {
        has_null(&e.stdout).or_else(|| if trains { not_finite(&out) } else { None })
    }))
}

/// Name, first byte, one past the last byte and bytes of an element of each tensor of a safetensors file.
fn tensors(bytes: &[u8]) -> Result<Vec<(String, usize, usize, usize)>> {
    let mut length = [0; 8];
    length.copy_from_slice(&bytes[..8]);
    let head = 8 + usize::try_from(u64::from_le_bytes(length))?;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..head])?;
    let of = |(name, info): (&String, &Value)| {
        let at = |i: usize| head + info["data_offsets"][i].as_u64().unwrap_or(0) as usize;
        let size = match info["dtype"].as_str() {
            Some("F32") => 4,
            Some("BF16") => 2,
            _ => return None,
        };
        Some((name.clone(), at(0), at(1), size))
    };
    Ok(header.iter().filter_map(of).collect())
}

/// That a folder's weights hold something that is not a number.
fn not_finite(folder: &Path) -> Option<String> {
    ["model.safetensors", "adapter_model.safetensors"].iter().find_map(|file| {
        let bytes = std::fs::read(folder.join(file)).ok()?;
        let bad = tensors(&bytes).ok()?.into_iter().find(|(_, start, end, size)| {
            bytes[*start..*end].chunks(*size).any(|element| {
                let high = u16::from_le_bytes([element[size - 2], element[size - 1]]);
                high & 0x7f80 == 0x7f80
            })
        })?;
        Some(format!("{} of {} is not of numbers", bad.0, folder.join(file).display()))
    })
}
