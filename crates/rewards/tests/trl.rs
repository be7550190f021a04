//! Every built-in function of TRL's gives what TRL gave (`record/trl_rewards.py`).

use std::sync::LazyLock;

use burnish_rewards::{BuiltInOptions, CosineScaled, RewardFunction, Sample, built_in};
use serde_json::{Map, Value, json};

static RECORD: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("golden/trl_rewards.json")).unwrap());

fn function(name: &str, options: &BuiltInOptions) -> Box<dyn RewardFunction> {
    built_in(name, options).unwrap()
}

fn score(function: &dyn RewardFunction, solution: &str, completion: &str, tokens: &[u32]) -> Option<f64> {
    let columns = Map::from_iter([("solution".to_owned(), Value::from(solution))]);
    let prompt = json!("A question");
    let sample = Sample { prompt: &prompt, completion, completion_ids: tokens, columns: &columns };
    function.score(&[sample]).unwrap()[0]
}

fn close(got: Option<f64>, recorded: &Value) -> bool {
    match (got, recorded.as_f64()) {
        (Some(got), Some(recorded)) => (got - recorded).abs() <= 1e-12,
        (None, None) => recorded.is_null(),
        _ => false,
    }
}

fn cases(record: &Value) -> &Vec<Value> {
    let cases = record.as_array().unwrap();
    assert!(cases.len() > 5);
    cases
}

/// (Solution, completion) where burnish differs. Right where TRL is not:
const DIFFERENT: &[(&str, &str)] = &[
    (r"$\boxed{(3,\frac\pi2)}$", r"\boxed{\left( 3, \frac{\pi}{2} \right)}"),
    (r"\boxed{\ln 2}", r"\boxed{\log_e 2}"),
    (r"\boxed{2x=10}", r"\boxed{x=5}"),
    (r"\boxed{2(3)}", r"\boxed{6}"),
    // Nor is an equation with a sum on its left side what stands on its right.
    (r"\boxed{x + y = z}", r"\boxed{z}"),
    // Not covered.
    (r"\boxed{\begin{pmatrix} 1/2 \\ 2 \end{pmatrix}}", r"\boxed{\begin{pmatrix} 0.5 \\ 2 \end{pmatrix}}"),
    (r"$\int_0^1 x\,dx$", r"\boxed{\frac{1}{2}}"),
    (r"$\sum_{i=1}^{3} i$", r"\boxed{6}"),
];

fn check_answers(function: &dyn RewardFunction, record: &Value) {
    let wrong: Vec<String> = cases(record)
        .iter()
        .filter_map(|case| {
            let (solution, completion) = (case[0].as_str().unwrap(), case[1].as_str().unwrap());
            let got = score(function, solution, completion, &[]);
            let expected = close(got, &case[2]) != DIFFERENT.contains(&(solution, completion));
            (!expected).then(|| format!("{solution:?} {completion:?}: {got:?}, TRL {}", case[2]))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn think_format() {
    let format = function("think_format_reward", &BuiltInOptions::default());
    for case in cases(&RECORD["think_format"]) {
        assert!(close(score(&*format, "", case[0].as_str().unwrap(), &[]), &case[1]), "{case}");
    }
}

#[test]
fn accuracy() {
    check_answers(&*function("accuracy_reward", &BuiltInOptions::default()), &RECORD["accuracy"]);
}

#[test]
fn accuracy_after_reasoning() {
    let options = BuiltInOptions::default();
    check_answers(&*function("reasoning_accuracy_reward", &options), &RECORD["reasoning_accuracy"]);
    let record = &RECORD["reasoning_accuracy_delimiters"];
    let delimiters = record["delimiters"].as_array().unwrap();
    let reasoning_delimiters = delimiters.iter().map(|text| text.as_str().unwrap().to_owned()).collect();
    let options = BuiltInOptions { reasoning_delimiters, ..options };
    check_answers(&*function("reasoning_accuracy_reward", &options), &record["cases"]);
}

#[test]
fn soft_overlong_punishment() {
    for record in RECORD["soft_overlong"].as_array().unwrap() {
        let number = |key: &str| record[key].as_u64().unwrap() as usize;
        let options = BuiltInOptions {
            overlong_max_completion_len: number("max_completion_len"),
            overlong_soft_punish_cache: number("soft_punish_cache"),
            ..BuiltInOptions::default()
        };
        let punishment = function("get_soft_overlong_punishment", &options);
        for case in cases(&record["cases"]) {
            let tokens = vec![1; case[0].as_u64().unwrap() as usize];
            assert!(close(score(&*punishment, "", "", &tokens), &case[1]), "{options:?} {case}");
        }
    }
}

#[test]
fn repetition_penalty() {
    for record in RECORD["repetition"].as_array().unwrap() {
        let options = BuiltInOptions {
            repetition_ngram_size: record["ngram_size"].as_u64().unwrap() as usize,
            repetition_max_penalty: record["max_penalty"].as_f64().unwrap(),
            ..BuiltInOptions::default()
        };
        let penalty = function("get_repetition_penalty_reward", &options);
        for case in cases(&record["cases"]) {
            let tokens: Vec<u32> =
                case[0].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect();
            assert!(close(score(&*penalty, "", "", &tokens), &case[1]), "{options:?} {case}");
        }
    }
}

#[test]
fn cosine_scaled() {
    for record in RECORD["cosine"].as_array().unwrap() {
        let usual = CosineScaled::default();
        let value = |key: &str, usual: f64| record.get(key).map_or(usual, |value| value.as_f64().unwrap());
        let cosine = CosineScaled {
            max_len: record["max_len"].as_u64().unwrap() as usize,
            min_value_wrong: value("min_value_wrong", usual.min_value_wrong),
            max_value_wrong: value("max_value_wrong", usual.max_value_wrong),
            min_value_correct: value("min_value_correct", usual.min_value_correct),
            max_value_correct: value("max_value_correct", usual.max_value_correct),
        };
        let options = BuiltInOptions { cosine, ..BuiltInOptions::default() };
        let scaled = function("get_cosine_scaled_reward", &options);
        for case in cases(&record["cases"]) {
            let tokens = vec![1; case[2].as_u64().unwrap() as usize];
            let got = score(&*scaled, case[0].as_str().unwrap(), case[1].as_str().unwrap(), &tokens);
            assert!(close(got, &case[3]), "{cosine:?} {case}: {got:?}");
        }
    }
}

#[test]
fn any_text_has_an_answer_or_none() {
    // Pieces that open what others close, in every order of three.
    let pieces = [
        r"\boxed{",
        "}",
        "$",
        r"\frac",
        "{",
        "answer: ",
        "1,0",
        "é",
        "(",
        "]",
        "^",
        "_",
        " ",
        "-",
        "%",
        r"\",
        "final answer is ",
    ];
    let columns = Map::from_iter([("solution".to_owned(), Value::from("1"))]);
    let prompt = json!("");
    let accuracy = function("accuracy_reward", &BuiltInOptions::default());
    let count = pieces.len().pow(3);
    for i in 0..count {
        let text: String = (0..3).map(|place| pieces[i / pieces.len().pow(place) % pieces.len()]).collect();
        let sample = Sample { prompt: &prompt, completion: &text, completion_ids: &[], columns: &columns };
        assert!(accuracy.score(&[sample]).unwrap()[0].is_some(), "{text:?}");
        score(&*accuracy, &text, r"\boxed{1}", &[]);
    }
    // Nothing nests without end.
    for piece in ["(", "{", "-", r"\sqrt", r"\frac{", "x^", "(1,", "|", "!", "=", "$", r"\(", "answer "] {
        let deep = format!(r"\boxed{{{}}} answer: ${0}$", piece.repeat(2_000));
        score(&*accuracy, "1", &deep, &[]);
        score(&*accuracy, &deep, r"\boxed{1}", &[]);
    }
}
