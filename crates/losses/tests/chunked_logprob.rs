//! TRL's chunked log-probability head: values and gradients, on the fused head and on its reference body.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use burnish_ops::{
    AnyTensor, HeadOptions, Linear, OpsError, TokenStats, VocabShard, head_log_probs, reference,
};
use serde_json::Value;

use crate::golden::{cases, count, number, numbers};
use crate::problem::assert_close;

/// Both are f32 computations of the same numbers; the recording's own suggested tolerance.
const TOLERANCE: f64 = 1e-5;

const FULL: [&str; 20] = [
    "N",
    "H",
    "V",
    "chunk",
    "temperature",
    "softcap",
    "logit_scale",
    "hidden",
    "weight",
    "bias",
    "targets",
    "coef_logp",
    "coef_entropy",
    "log_probs",
    "entropy",
    "log_sum_sq_probs",
    "mean_logits",
    "is_top1",
    "grad_hidden",
    "grad_weight",
];
const TIE: [&str; 7] = ["tie", "hidden", "weight", "targets", "chunk", "is_top1", "log_probs"];

type Head = fn(
    &AnyTensor,
    &Linear,
    Option<&VocabShard>,
    &Arc<Vec<u32>>,
    HeadOptions,
) -> Result<(AnyTensor, TokenStats), OpsError>;

fn leaf(v: &Value) -> Option<AnyTensor> {
    let rows = v.as_array()?;
    let data = if rows[0].is_array() {
        let width = rows[0].as_array()?.len();
        TensorData::new(
            rows.iter().flat_map(numbers).map(|x| x as f32).collect::<Vec<f32>>(),
            [rows.len(), width],
        )
    } else {
        TensorData::new(numbers(v).into_iter().map(|x| x as f32).collect::<Vec<f32>>(), [rows.len()])
    };
    Some(AnyTensor::from_data(data, &Device::flex()).leaf())
}

fn flat(v: &Value) -> Vec<f64> {
    v.as_array()
        .unwrap()
        .iter()
        .flat_map(|row| if row.is_array() { numbers(row) } else { vec![number(row)] })
        .collect()
}

fn replay(head: Head, case: &Value, name: &str) {
    let (hidden, weight, bias) =
        (leaf(&case["hidden"]).unwrap(), leaf(&case["weight"]).unwrap(), leaf(&case["bias"]));
    let targets: Vec<u32> = case["targets"].as_array().unwrap().iter().map(|t| count(t) as u32).collect();
    let layer = Linear { bias: bias.clone(), ..Linear::new(weight.clone()) };
    let or = |key: &str, absent: f64| case.get(key).map_or(absent, number) as f32;
    let options = HeadOptions {
        temperature: or("temperature", 1.0),
        softcap: case["softcap"].as_f64().map(|c| c as f32),
        logit_scale: or("logit_scale", 1.0),
        label_smoothing: 0.0,
    };
    let (both, stats) = head(&hidden, &layer, None, &Arc::new(targets), options).unwrap();

    let check =
        |got: &[f32], key: &str| assert_close(got, &flat(&case[key]), TOLERANCE, &format!("{name}: {key}"));
    check(&stats.log_prob, "log_probs");
    let top: Vec<bool> = case["is_top1"].as_array().unwrap().iter().map(|b| b.as_bool().unwrap()).collect();
    assert_eq!(stats.is_top1, top, "{name}: is_top1");
    if case.get("tie").is_some() {
        return;
    }
    check(&stats.entropy, "entropy");
    check(&stats.log_sum_sq_probs, "log_sum_sq_probs");
    check(&stats.mean_logit, "mean_logits");
    let n = stats.log_prob.len();
    let recorded: Vec<f32> = stats.log_prob.iter().chain(&stats.entropy).copied().collect();
    assert_eq!(both.shape(), [2, n]);
    assert_close(&both.to_f32(), &recorded.iter().map(|&x| x.into()).collect::<Vec<_>>(), 1e-6, name);

    let coefficients: Vec<f32> =
        ["coef_logp", "coef_entropy"].iter().flat_map(|k| numbers(&case[*k])).map(|x| x as f32).collect();
    let coefficients: Tensor<2> = Tensor::from_data(TensorData::new(coefficients, [2, n]), &Device::flex());
    let mut gradients = (both.rank::<2>().unwrap() * coefficients).sum().backward();
    check(&hidden.take_gradient(&mut gradients).unwrap().to_f32(), "grad_hidden");
    check(&weight.take_gradient(&mut gradients).unwrap().to_f32(), "grad_weight");
    match bias {
        Some(bias) => check(&bias.take_gradient(&mut gradients).unwrap().to_f32(), "grad_bias"),
        None => assert!(case["grad_bias"].is_null(), "{name}"),
    }
}

fn known(case: &Value) -> Result<(), String> {
    let known: &[&str] = if case["tie"] == true { &TIE } else { &FULL };
    let without_bias: Vec<&str> = known.iter().copied().chain(["grad_bias"]).collect();
    recordings::has_keys(case, known).or_else(|_| recordings::has_keys(case, &without_bias))
}

#[test]
fn recorded_values_and_gradients() {
    for (i, (file, case)) in cases("chunked_logprob.json", known).into_iter().enumerate() {
        let name = format!("{} case {i}", file.display());
        let keys: Vec<&str> = case.as_object().unwrap().keys().map(String::as_str).collect();
        let known: &[&str] = if case["tie"] == true { &TIE } else { &FULL };
        assert!(known.iter().all(|k| keys.contains(k)), "{name}: an unknown kind of case, with {keys:?}");
        assert!(
            keys.iter().all(|k| known.contains(k) || *k == "grad_bias"),
            "{name}: no test for all of {keys:?}"
        );
        replay(head_log_probs, &case, &format!("fused, {name}"));
        replay(reference::head_log_probs, &case, &format!("reference, {name}"));
    }
}
