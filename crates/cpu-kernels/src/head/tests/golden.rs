//! Recorded log-probabilities, entropies and gradients.

use super::{assert_close, for_each_path};
use crate::head::{HeadOptions, HeadWanted, head_backward, head_forward};
use crate::{Linear, Weight};
use burnish_core::{LinearPart, LinearParts};
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
    let head = Linear {
        out,
        weight: Weight::F32(&weight),
        bias: bias.as_deref(),
        low_rank: None,
        compute: Default::default(),
    };
    if case.get("tie").is_some() {
        let got = head_forward(&hidden, &head, None, &targets, &HeadOptions::default());
        assert_eq!(got.is_top1, top1(&case["is_top1"]), "{label}: is_top1");
        assert_close(label, &got.log_prob, &numbers(&case["log_probs"]), 1e-6);
        return;
    }
    let options = HeadOptions {
        label_smoothing: 0.0,
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
    let wanted = HeadWanted { hidden: true, parts: LinearParts::of(&[LinearPart::Weight, LinearPart::Bias]) };
    let grad = head_backward(&hidden, &head, None, &targets, &options, &got, &g_lp, Some(&g_h), &wanted);
    assert_close(&format!("{label}: hidden"), &grad.hidden.unwrap(), &numbers(&case["grad_hidden"]), 5e-6);
    assert_close(
        &format!("{label}: weight"),
        grad.parts.weight.as_ref().unwrap(),
        &numbers(&case["grad_weight"]),
        5e-6,
    );
    assert_eq!(grad.parts.found(LinearPart::Bias).is_some(), bias.is_some(), "{label}: bias gradient");
    if let Some(b) = grad.parts.found(LinearPart::Bias) {
        assert_close(&format!("{label}: bias"), b, &numbers(&case["grad_bias"]), 5e-6);
    }
}

fn known(case: &Value) -> Result<(), String> {
    let needed: &[&str] = if case.get("tie").is_some() {
        &["hidden", "weight", "targets", "is_top1", "log_probs"]
    } else {
        &["hidden", "weight", "targets", "temperature", "softcap", "logit_scale", "coef_logp", "grad_hidden"]
    };
    match needed.iter().find(|key| case.get(**key).is_none()) {
        Some(key) => Err(format!("an unknown kind of case, without `{key}`")),
        None => Ok(()),
    }
}

#[test]
fn recorded_cases_are_reproduced() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for_each_path(|| {
        let cases = recordings::golden(&tests, "chunked_logprob.json", known);
        assert!(cases.len() >= 12, "{}", cases.len());
        for (i, (file, case)) in cases.iter().enumerate() {
            check(case, &format!("{} case {i}", file.display()));
        }
    });
}
