//! The functions that have a name.

use burnish_rewards::{BUILT_IN, BuiltInOptions, CosineScaled, RewardError, Sample, built_in};
use serde_json::{Map, json};

#[test]
fn every_name_is_the_functions_own() {
    for name in BUILT_IN {
        assert_eq!(&built_in(name, &BuiltInOptions::default()).unwrap().name(), name);
    }
}

#[test]
fn an_unknown_name_lists_the_known() {
    let Err(refused) = built_in("acuracy_reward", &BuiltInOptions::default()) else { panic!("accepted") };
    assert!(matches!(refused, RewardError::Unknown { .. }));
    for name in BUILT_IN {
        assert!(refused.to_string().contains(name), "{refused}");
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = BuiltInOptions::default();
    for (name, options) in [
        ("get_soft_overlong_punishment", BuiltInOptions { overlong_soft_punish_cache: 1281, ..good.clone() }),
        ("get_repetition_penalty_reward", BuiltInOptions { repetition_ngram_size: 0, ..good.clone() }),
        ("get_repetition_penalty_reward", BuiltInOptions { repetition_max_penalty: 0.5, ..good.clone() }),
        (
            "get_cosine_scaled_reward",
            BuiltInOptions { cosine: CosineScaled { max_len: 0, ..good.cosine }, ..good.clone() },
        ),
        ("length_reward", BuiltInOptions { length_scale: f64::NAN, ..good.clone() }),
    ] {
        assert!(matches!(built_in(name, &options), Err(RewardError::Setting { .. })), "{name}");
    }
}

#[test]
fn a_completion_is_a_message_where_the_prompt_is_a_conversation() {
    let columns = Map::new();
    let value = |prompt| {
        Sample { prompt: &prompt, completion: "two", completion_ids: &[], columns: &columns }
            .completion_value()
    };
    assert_eq!(value(json!("1 + 1?")), json!("two"));
    assert_eq!(
        value(json!([{"role": "user", "content": "1 + 1?"}])),
        json!([{"role": "assistant", "content": "two"}])
    );
}

#[test]
fn a_final_answer_needs_no_mark() {
    let function = built_in("final_answer_reward", &BuiltInOptions::default()).unwrap();
    let prompt = json!("");
    for (solution, completion, reward) in [
        ("72", "6 times 12 is 72", Some(1.0)),
        ("72", "72 is 6 times 12", Some(0.0)),
        ("1/2", "It is $\\frac{1}{2}$.", Some(1.0)),
        ("72", "\\boxed{72}, not 71", Some(1.0)),
        ("72", "I do not know", Some(0.0)),
        ("none", "72", None),
    ] {
        let columns = Map::from_iter([("solution".to_owned(), json!(solution))]);
        let sample = Sample { prompt: &prompt, completion, completion_ids: &[], columns: &columns };
        assert_eq!(function.score(&[sample]).unwrap(), [reward], "{solution} {completion}");
    }
}

#[test]
fn length_is_scaled() {
    let options = BuiltInOptions { length_scale: 0.5, ..BuiltInOptions::default() };
    let (prompt, columns) = (json!(""), Map::new());
    let sample = Sample { prompt: &prompt, completion: "", completion_ids: &[1, 2, 3], columns: &columns };
    assert_eq!(built_in("length_reward", &options).unwrap().score(&[sample]).unwrap(), [Some(1.5)]);
}

#[test]
fn a_missing_solution_names_the_column_and_the_completion() {
    let function = built_in("accuracy_reward", &BuiltInOptions::default()).unwrap();
    let (prompt, right) = (json!(""), Map::from_iter([("solution".to_owned(), json!("72"))]));
    for (columns, word) in
        [(Map::new(), "missing"), (Map::from_iter([("solution".to_owned(), json!(72))]), "72")]
    {
        let sample = |columns| Sample { prompt: &prompt, completion: "", completion_ids: &[], columns };
        let refused = function.score(&[sample(&right), sample(&columns)]).unwrap_err().to_string();
        for part in ["accuracy_reward", "\"solution\"", "completion 2", word] {
            assert!(refused.contains(part), "{refused}");
        }
    }
}
