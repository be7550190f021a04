//! open-r1's rewards, from its formulas evaluated by hand (`record/open_r1.py` evaluates them with Python's own functions).

use burnish_rewards::{BuiltInOptions, Sample, built_in};
use serde_json::{Map, Value, json};

const RECORD: &str = include_str!("golden/open_r1.json");

#[test]
fn rewards_are_those_of_the_formulas() {
    let record: Map<String, Value> = serde_json::from_str(RECORD).unwrap();
    assert_eq!(record.len(), 5);
    for (name, cases) in &record {
        let function = built_in(name, &BuiltInOptions::default()).unwrap();
        for case in cases.as_array().unwrap() {
            let (completion, expected) = (case[0].as_str().unwrap(), case[1].as_f64().unwrap());
            let columns = Map::from_iter([("solution".to_owned(), Value::from("$72$"))]);
            let prompt = json!("A question");
            let sample = Sample { prompt: &prompt, completion, completion_ids: &[], columns: &columns };
            let got = function.score(&[sample]).unwrap()[0].unwrap();
            assert!((got - expected).abs() <= 1e-12, "{name}: {completion:?}: {got}, expected {expected}");
        }
    }
}

#[test]
fn names_of_open_r1_that_are_trls() {
    for (name, own) in
        [("accuracy", "accuracy_reward"), ("soft_overlong_punishment", "soft_overlong_punishment_reward")]
    {
        assert_eq!(built_in(name, &BuiltInOptions::default()).unwrap().name(), own);
    }
}
