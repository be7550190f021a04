#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use super::*;

fn tokenizer() -> Tokenizer {
    Tokenizer::from_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/model")).unwrap()
}

fn concerns(checks: &TokenChecks<'_>) -> Vec<Concern> {
    checks.findings().into_iter().map(|finding| finding.concern).collect()
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).unwrap()
}

#[test]
fn rows_that_come_twice_are_counted_and_named() {
    let tokenizer = tokenizer();
    let eos = tokenizer.eos_id().unwrap();
    let row = |text: &str| Example::all(ids(&tokenizer, text).into_iter().chain([eos]).collect());
    let rows = ["a b", "c", "a b", "d", "a b"].map(row);
    let checks = TokenChecks::of_examples(&tokenizer, &rows, None);
    assert_eq!((checks.rows(), checks.repeated()), (5, 2));
    assert_eq!(concerns(&checks), [Concern::Repeated]);
    assert!(checks.findings()[0].message.contains("2 of 5 rows came before (first: row 3 is row 1)"));
    let eval = TokenChecks::of_examples(&tokenizer, &["d", "e", "d"].map(row), None);
    let finding = checks.evaluated(&eval).unwrap();
    assert!(finding.message.starts_with("1 of 2 rows to evaluate on are trained on"), "{finding}");
    assert_eq!(eval.evaluated(&TokenChecks::of_examples(&tokenizer, &["a b"].map(row), None)), None);
    // The same tokens divided otherwise are another pair.
    let pair = |chosen: &[u32], rejected: &[u32]| RewardExample {
        chosen: chosen.to_vec(),
        rejected: rejected.to_vec(),
        margin: None,
    };
    let pairs = [pair(&[1, 2], &[3]), pair(&[1], &[2, 3])];
    assert_eq!(TokenChecks::of_texts(&tokenizer, &pairs).repeated(), 0);
}

#[test]
fn what_does_not_end_is_counted_unless_it_was_cut() {
    let tokenizer = tokenizer();
    let eos = tokenizer.eos_id().unwrap();
    let open = Example::all(ids(&tokenizer, "no end"));
    let mut ended = open.clone();
    ended.input_ids.push(eos);
    ended.labels.push(i32::try_from(eos).unwrap());
    // Templates write a line break after the token that ends a turn.
    let mut line = ended.clone();
    for id in ids(&tokenizer, "\n") {
        line.input_ids.push(id);
        line.labels.push(i32::try_from(id).unwrap());
    }
    let mut masked = ended.clone();
    *masked.labels.last_mut().unwrap() = IGNORED;
    let of = |example: &Example, max_length| {
        concerns(&TokenChecks::of_examples(&tokenizer, std::slice::from_ref(example), max_length))
    };
    assert_eq!(of(&open, None), [Concern::EndNotLearned]);
    assert_eq!(of(&masked, None), [Concern::EndNotLearned]);
    assert_eq!(of(&open, Some(open.len())), []);
    assert_eq!(of(&ended, None), []);
    assert_eq!(of(&line, None), []);
    let answer = |completion: &[u32]| UnpairedExample {
        prompt: vec![1],
        completion: completion.to_vec(),
        desirable: true,
    };
    assert_eq!(concerns(&TokenChecks::of_texts(&tokenizer, &[answer(&[5])])), [Concern::EndNotLearned]);
    assert_eq!(concerns(&TokenChecks::of_texts(&tokenizer, &[answer(&[5, eos])])), []);
}

#[test]
fn a_doubled_beginning_is_told() {
    let mut tokenizer = tokenizer();
    tokenizer.set_named("bos_token", "<|im_start|>").unwrap();
    let (bos, eos) = (tokenizer.bos_id().unwrap(), tokenizer.eos_id().unwrap());
    let rows = [Example::all(vec![bos, 7, eos]), Example::all(vec![bos, bos, 7, eos])];
    let checks = TokenChecks::of_examples(&tokenizer, &rows, None);
    assert_eq!(concerns(&checks), [Concern::DoubledBos]);
    assert!(checks.findings()[0].message.contains("(first: row 2)"), "{:?}", checks.findings());
}
