//! Recorded log-probabilities, entropies and gradients.

use super::{assert_close, for_each_path};
use crate::head::{HeadOptions, HeadWanted, head_backward, head_forward};
use crate::{Linear, Weight};
use serde_json::Value;

fn floats(v: &Value) -> Vec<f32> {
    match v {
        Value::Array(items) => items.iter().flat_map(floats).collect(),
        other => vec![other.as_f64().unwrap() as f32],
    }
}

fn numbers(v: &Value) -> Vec<f64> {
    match v {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        other => vec![other.as_f64().unwrap()],
    }
}

fn top1(v: &Value) -> Vec<bool> {
    v.as_array().unwrap().iter().map(|b| b.as_bool().unwrap()).collect()
}

fn check(case: &Value, label: &str) {
    let (hidden, weight) = (floats(&case["hidden"]), floats(&case["weight"]));
    let bias = case.get("bias").filter(|b| !b.is_null()).map(floats);
    let targets: Vec<u32> = numbers(&case["targets"]).iter().map(|&t| t as u32).collect();
    let out = case["weight"].as_array().unwrap().len();
    let head = Linear { out, weight: Weight::F32(&weight), bias: bias.as_deref(), low_rank: None };
    if case.get("tie").is_some() {
        let got = head_forward(&hidden, &head, None, &targets, &HeadOptions::default());
        assert_eq!(got.is_top1, top1(&case["is_top1"]), "{label}: is_top1");
        assert_close(label, &got.log_prob, &numbers(&case["log_probs"]), 1e-6);
        return;
    }
    let options = HeadOptions {
        temperature: case["temperature"].as_f64().unwrap() as f32,
        softcap: case["softcap"].as_f64().map(|c| c as f32),
        logit_scale: case["logit_scale"].as_f64().unwrap() as f32,
    };
    let got = head_forward(&hidden, &head, None, &targets, &options);
    assert_eq!(got.is_top1, top1(&case["is_top1"]), "{label}: is_top1");
    for (name, got) in [
        ("log_probs", &got.log_prob),
        ("entropy", &got.entropy),
        ("log_sum_sq_probs", &got.log_sum_sq_probs),
        ("mean_logits", &got.mean_logit),
    ] {
        assert_close(&format!("{label}: {name}"), got, &numbers(&case[name]), 5e-6);
    }
    let (g_lp, g_h) = (floats(&case["coef_logp"]), floats(&case["coef_entropy"]));
    let wanted = HeadWanted { hidden: true, weight: true, bias: true, ..Default::default() };
    let grad = head_backward(&hidden, &head, None, &targets, &options, &got, &g_lp, Some(&g_h), &wanted);
    assert_close(&format!("{label}: hidden"), &grad.hidden.unwrap(), &numbers(&case["grad_hidden"]), 5e-6);
    assert_close(&format!("{label}: weight"), &grad.weight.unwrap(), &numbers(&case["grad_weight"]), 5e-6);
    assert_eq!(grad.bias.is_some(), bias.is_some(), "{label}: bias gradient");
    if let Some(b) = grad.bias {
        assert_close(&format!("{label}: bias"), &b, &numbers(&case["grad_bias"]), 5e-6);
    }
}

fn replay(text: &str, source: &str) -> usize {
    let cases: Vec<Value> = serde_json::from_str(text).unwrap();
    for (i, case) in cases.iter().enumerate() {
        check(case, &format!("{source} case {i}"));
    }
    cases.len()
}

#[test]
fn recorded_cases_are_reproduced() {
    for_each_path(|| {
        let own = include_str!("../../../tests/golden/chunked_logprob.json");
        assert_eq!(replay(own, "own"), 12);
        match std::env::var_os("BURNISH_RECORDINGS") {
            Some(folder) => {
                let path = std::path::Path::new(&folder).join("golden/chunked_logprob.json");
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(replay(&text, "recordings") > 0, "{} holds no case", path.display());
            }
            None => println!("BURNISH_RECORDINGS is unset: the repository's own cases only"),
        }
    });
}
