//! Rows and options of the trainers on pairs, with adapters of LoRA and of IA3.

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::lab::{Lab, has_null};
use crate::mutation;
use crate::random::Random;
use crate::verdict::{Outcome, judge};

const COMMANDS: [&str; 5] = ["cpo", "orpo", "dpo", "kto", "reward"];

/// A command with options that contradict each other or themselves, and what an error names; none where a run may succeed.
const LINES: [(&str, &str); 40] = [
    ("cpo --loss_type=nothing", "loss_type"),
    ("cpo --beta=nan", "beta"),
    ("cpo --beta=-1", "beta"),
    ("cpo --beta=1e39", "beta"),
    ("cpo --beta=0", ""),
    ("cpo --cpo_alpha=inf", "cpo_alpha"),
    ("cpo --cpo_alpha=-1", "cpo_alpha"),
    ("cpo --label_smoothing=1", "label_smoothing"),
    ("cpo --label_smoothing=-0.1", "label_smoothing"),
    ("cpo --loss_type=ipo --label_smoothing=0.1", ""),
    ("cpo --loss_type=simpo --cpo_alpha=0 --simpo_gamma=nan", "simpo_gamma"),
    ("cpo --loss_type=simpo --simpo_gamma=-3", ""),
    ("cpo --loss_type=alphapo --alpha=inf", "alpha"),
    ("cpo --loss_type=alphapo --alpha=1e39", "alpha"),
    ("cpo --loss_type=alphapo --alpha=30", ""),
    ("cpo --loss_type=alphapo --alpha=-30", ""),
    ("cpo --loss_type=hinge --beta=1e30", ""),
    ("cpo --ref_model_name_or_path=x", "ref_model_name_or_path"),
    ("cpo --max_length=1", "max_length"),
    ("cpo --max_length=0", "max_length"),
    ("cpo --truncation_mode=middle", "truncation_mode"),
    ("orpo --beta=nan", "beta"),
    ("orpo --beta=-0.1", "beta"),
    ("orpo --beta=1e39", "beta"),
    ("orpo --loss_type=ipo", "loss_type"),
    ("orpo --max_length=2", ""),
    ("orpo --learning_rate=1e39", ""),
    ("cpo --use_peft --peft_type=ia3", ""),
    ("cpo --use_peft --peft_type=IA4", "peft_type"),
    ("cpo --peft_type=IA3", ""),
    ("cpo --use_peft --peft_type=IA3 --lora_r=8", ""),
    ("cpo --use_peft --peft_type=IA3 --use_dora", "use_dora"),
    ("cpo --use_peft --peft_type=IA3 --lora_target_modules=nothing", "nothing"),
    (
        "cpo --use_peft --peft_type=IA3 --lora_target_modules k_proj --feedforward_modules=down_proj",
        "feedforward_modules",
    ),
    ("cpo --use_peft --peft_type=IA3 --feedforward_modules=(", "feedforward_modules"),
    ("cpo --use_peft --feedforward_modules=down_proj", "feedforward_modules"),
    ("cpo --use_peft --peft_type=IA3 --init_lora_weights=pissa", "init_lora_weights"),
    ("cpo --use_peft --peft_type=IA3 --bias=all", "bias"),
    ("orpo --use_peft --load_in_4bit --load_in_8bit", "load_in_8bit"),
    ("orpo --load_in_4bit", "load_in_4bit"),
];

/// Rows of pairs, and whether a run of them may succeed.
const ROWS: [(&str, bool); 14] = [
    (r#"{"prompt": "a", "chosen": "b", "rejected": "b"}"#, true),
    (r#"{"prompt": "", "chosen": "b", "rejected": "c"}"#, true),
    (r#"{"prompt": "a", "chosen": "", "rejected": "c"}"#, true),
    (r#"{"prompt": "a", "chosen": "", "rejected": ""}"#, true),
    (r#"{"chosen": "a b", "rejected": "c d"}"#, true),
    (r#"{"chosen": "", "rejected": ""}"#, true),
    (r#"{"prompt": "a", "chosen": "b"}"#, false),
    (r#"{"prompt": "a", "chosen": null, "rejected": "b"}"#, false),
    (r#"{"prompt": "a", "chosen": ["b"], "rejected": ["c"]}"#, false),
    (r#"{"prompt": 1, "chosen": "b", "rejected": "c"}"#, false),
    (r#"{"prompt": [{"role": "user", "content": "a"}], "chosen": "b", "rejected": "c"}"#, false),
    (
        r#"{"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "a"}]}"#,
        false,
    ),
    (r#"{"chosen": [], "rejected": []}"#, false),
    (r#"{"prompt": "a", "chosen": [{"role": "assistant", "content": "b"}], "rejected": "c"}"#, false),
];

pub(crate) fn written(_: &Lab) -> usize {
    LINES.len() + 2 * ROWS.len()
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let path = folder.path().join("rows.jsonl");
    let output = format!("--output_dir={}", folder.path().join("out").display());
    let common = [
        "--per_device_train_batch_size=2",
        "--max_steps=1",
        "--max_length=48",
        "--save_strategy=no",
        &output,
    ];
    let train = |command: &str, more: &[&str]| {
        // The last of an option that stands twice counts in no shell: each is given once.
        let name = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
        let kept = common.iter().copied().filter(|word| !more.iter().any(|other| name(other) == name(word)));
        lab.words(command, &lab.model(), &path, &kept.chain(more.iter().copied()).collect::<Vec<_>>())
    };
    if let Some((line, named)) = LINES.get(attempt) {
        std::fs::copy(lab.rows("preference.jsonl"), &path)?;
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        let ended = lab.run(train(command, &words.collect::<Vec<_>>()))?;
        let may = named.is_empty();
        let names = if may { vec![] } else { vec![*named] };
        return Ok(judge(*line, &ended, &names, |e| {
            has_null(&e.stdout).or_else(|| (!may).then(|| "no error".to_owned()))
        }));
    }
    if let Some((row, may)) = ROWS.get((attempt - LINES.len()) / 2).filter(|_| attempt < written(lab)) {
        let command = ["cpo", "orpo"][(attempt - LINES.len()) % 2];
        std::fs::write(&path, format!("{row}\n{row}\n"))?;
        let ended = lab.run(train(command, &[]))?;
        return Ok(judge(format!("{command}: {row}"), &ended, &["rows.jsonl"], |e| {
            has_null(&e.stdout).or_else(|| (!may).then(|| "no error".to_owned()))
        }));
    }
    let command = *random.of_these(&COMMANDS);
    let name = match command {
        "kto" => "unpaired.jsonl",
        _ if random.below(2) == 0 => "preference_conversational.jsonl",
        _ => "preference.jsonl",
    };
    let text = std::fs::read_to_string(lab.rows(name))?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = random.below(lines.len());
    let what = if random.below(4) == 0 {
        let mut bytes = text.into_bytes();
        let what = mutation::bytes(random, &mut bytes);
        std::fs::write(&path, bytes)?;
        what
    } else {
        let mut row: Map<String, Value> = serde_json::from_str(&lines[at])?;
        let change = mutation::row(random, &mut row);
        lines[at] = json!(row).to_string();
        std::fs::write(&path, lines.join("\n") + "\n")?;
        format!("row {}: {}", at + 1, change.what)
    };
    let adapters: [&[&str]; 4] = [
        &[],
        &["--use_peft", "--lora_r=2"],
        &[
            "--use_peft",
            "--peft_type=IA3",
            "--lora_target_modules",
            "k_proj",
            "down_proj",
            "--feedforward_modules",
            "down_proj",
        ],
        &["--use_peft", "--lora_r=2", "--load_in_4bit"],
    ];
    let adapter = *random.of_these(&adapters);
    let ended = lab.run(train(command, adapter))?;
    Ok(judge(format!("{command} {adapter:?}, {name}: {what}"), &ended, &["rows.jsonl"], |e| {
        has_null(&e.stdout)
    }))
}
