//! The functions that have a name.

use burnish_rewards::{BUILT_IN, BuiltInOptions, RewardError, Sample, built_in};
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
        ("get_soft_overlong_punishment", BuiltInOptions { soft_punish_cache: 1281, ..good.clone() }),
        ("get_repetition_penalty_reward", BuiltInOptions { repetition_ngram_size: 0, ..good.clone() }),
        ("get_repetition_penalty_reward", BuiltInOptions { repetition_max_penalty: 0.5, ..good.clone() }),
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
