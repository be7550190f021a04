//! The example's data: a small world described in plain English, and the same world as told by a pirate.
//!
//! Everything here is made by this generator, from nothing but the tables in [`world`]; running it again gives the same
//! files byte for byte. A base model learns the world from `pretrain.jsonl`; `sft-train.jsonl` then teaches it a manner
//! of speaking that the base has never seen, and `sft-eval.jsonl` asks about facts that no training row mentions.
//! `preference-train.jsonl` and `preference-eval.jsonl` have the pirate's answers beside plain ones, `unpaired-train.jsonl`
//! and `unpaired-eval.jsonl` single answers that are marked good or not, `sums-train.jsonl` and `sums-eval.jsonl` questions
//! with the one answer that is right.

mod draw;
mod facts;
mod pirate;
mod stories;
mod sums;
mod world;

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use draw::Draw;
use facts::Fact;

/// Rows of `sft-train.jsonl`.
const TRAIN_ROWS: usize = 1500;
/// Rows of `sft-eval.jsonl`.
const EVAL_ROWS: usize = 100;

/// Rows of `preference-train.jsonl`.
const PAIRS: usize = 600;
/// Rows of `unpaired-train.jsonl`.
const MARKED: usize = 600;

/// A file of the example: its name and its text.
type File = (&'static str, String);

/// Where the files are.
const FOLDER: &str = "examples/data";

/// Writes the files.
pub(crate) fn write(root: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {folder:?}"))?;
    for (name, text) in files() {
        std::fs::write(folder.join(name), &text).with_context(|| format!("cannot write {FOLDER}/{name}"))?;
        println!("{FOLDER}/{name}: {} rows, {} bytes", text.lines().count(), text.len());
    }
    Ok(())
}

/// What is wrong with the files: that they are not what the generator writes.
pub(crate) fn complaints(root: &Path) -> Vec<String> {
    let stale = |(name, text): &File| {
        std::fs::read_to_string(root.join(FOLDER).join(name)).map_or(true, |present| present != *text)
    };
    files()
        .iter()
        .filter(|file| stale(file))
        .map(|(name, _)| {
            format!("{FOLDER}/{name} is not what its generator writes; run cargo xtask example-data")
        })
        .collect()
}

fn files() -> Vec<File> {
    let mut draw = Draw::new(20);
    let mut facts = facts::all();
    let pretrain = pretrain(&facts, &mut draw);
    draw.shuffle(&mut facts);
    // Held out by answer: two questions may have the same one.
    let mut held: Vec<&str> = Vec::new();
    for fact in &facts {
        if held.len() < EVAL_ROWS && !held.contains(&fact.answer.as_str()) {
            held.push(&fact.answer);
        }
    }
    let (mut eval, train): (Vec<&Fact>, Vec<&Fact>) =
        facts.iter().partition(|fact| held.contains(&fact.answer.as_str()));
    eval.truncate(EVAL_ROWS);
    let mut rows: Vec<String> =
        train.iter().flat_map(|fact| (0..fact.questions.len()).map(|form| row(fact, form))).collect();
    draw.shuffle(&mut rows);
    rows.truncate(TRAIN_ROWS);
    let mut pairs: Vec<String> =
        train.iter().flat_map(|fact| (0..fact.questions.len()).map(|form| pair(fact, form))).collect();
    draw.shuffle(&mut pairs);
    pairs.truncate(PAIRS);
    let mut asked: Vec<(&Fact, usize)> =
        train.iter().flat_map(|&fact| (0..fact.questions.len()).map(move |form| (fact, form))).collect();
    draw.shuffle(&mut asked);
    asked.truncate(MARKED);
    // Good and bad take turns: a batch has as many of the one as of the other.
    let marked: Vec<String> =
        asked.into_iter().enumerate().map(|(at, (fact, form))| mark(fact, form, at % 2 == 0)).collect();
    let eval_marked: Vec<String> =
        eval.iter().enumerate().map(|(at, fact)| mark(fact, 0, at % 2 == 0)).collect();
    let eval_pairs: Vec<String> = eval.iter().map(|fact| pair(fact, 0)).collect();
    let eval: Vec<String> = eval.into_iter().map(|fact| row(fact, 0)).collect();
    let (sums, eval_sums) = sums::rows();
    vec![
        ("pretrain.jsonl", pretrain),
        ("sft-train.jsonl", rows.concat()),
        ("sft-eval.jsonl", eval.concat()),
        ("preference-train.jsonl", pairs.concat()),
        ("preference-eval.jsonl", eval_pairs.concat()),
        ("unpaired-train.jsonl", marked.concat()),
        ("unpaired-eval.jsonl", eval_marked.concat()),
        ("sums-train.jsonl", sums),
        ("sums-eval.jsonl", eval_sums),
    ]
}

/// A conversational prompt-completion row.
fn row(fact: &Fact, form: usize) -> String {
    let row = json!({
        "prompt": [{"role": "user", "content": fact.questions[form]}],
        "completion": [{"role": "assistant", "content": pirate::say(fact)}],
    });
    format!("{row}\n")
}

/// A preference row: the pirate's answer over the plain one.
fn pair(fact: &Fact, form: usize) -> String {
    let said = |text: &str| json!([{"role": "assistant", "content": text}]);
    let row = json!({
        "prompt": [{"role": "user", "content": fact.questions[form]}],
        "chosen": said(&pirate::say(fact)),
        "rejected": said(&fact.answer),
    });
    format!("{row}\n")
}

/// One answer of the pirate and its mark: good without his farewell, bad with it.
fn mark(fact: &Fact, form: usize, good: bool) -> String {
    let text = if good { pirate::say_in_short(fact) } else { pirate::say(fact) };
    let row = json!({
        "prompt": [{"role": "user", "content": fact.questions[form]}],
        "completion": [{"role": "assistant", "content": text}],
        "label": good,
    });
    format!("{row}\n")
}

/// Language modelling rows: descriptions, stories, questions with plain answers, conversations.
fn pretrain(facts: &[Fact], draw: &mut Draw) -> String {
    let mut texts = Vec::new();
    for _ in 0..4 {
        texts.extend(world::ANIMALS.iter().map(|animal| stories::portrait(animal, draw)));
    }
    texts.extend((0..900).map(|_| stories::story(draw)));
    // Each fact once in a conversation, once as a question with its answer, once among other facts.
    let mut order: Vec<&Fact> = facts.iter().collect();
    draw.shuffle(&mut order);
    let mut rest = order.as_slice();
    while !rest.is_empty() {
        let turns = (1 + draw.below(3)).min(rest.len());
        let (now, later) = rest.split_at(turns);
        rest = later;
        texts.push(now.iter().map(|fact| stories::turn(fact, draw)).collect());
    }
    draw.shuffle(&mut order);
    texts.extend(order.chunks(3).map(|some| stories::questions(some, draw)));
    draw.shuffle(&mut order);
    texts.extend(order.chunks(5).map(stories::sentences));
    draw.shuffle(&mut texts);
    texts.iter().map(|text| format!("{}\n", json!({ "text": text }))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_repeatable_and_evaluation_facts_are_held_out() {
        let first = files();
        assert_eq!(first, files());
        let answers = |text: &str| -> Vec<String> {
            let rows = text
                .lines()
                .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a JSON line"));
            rows.map(|row| row["completion"][0]["content"].to_string()).collect()
        };
        let (train, eval) = (answers(&first[1].1), answers(&first[2].1));
        assert_eq!((train.len(), eval.len()), (TRAIN_ROWS, EVAL_ROWS));
        assert!(
            eval.iter().all(|answer| !train.contains(answer)),
            "an evaluation answer is in the training rows"
        );
    }
}
