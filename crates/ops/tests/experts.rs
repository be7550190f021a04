//! Mixtures of experts: routers, experts and the loss that balances them.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use burnish_core::{Activation, Compute, ExpertGate, RouterRule, RouterScores};
use burnish_ops::{
    AnyTensor, ExpertLayer, ExpertLowRank, Experts, OpsError, RouterBalance, Routing, WIDENED_TOGETHER,
    experts, experts_decode, gpu, reference, route,
};

use crate::case::{Body, Case, Input, assert_close, device, tensor, to_f64};

const SOFTMAX: RouterRule =
    RouterRule { per_token: 2, scores: RouterScores::Softmax, renormalise: true, scale: 1.0, groups: None };

/// What a case has beside tokens and two matrices.
#[derive(Clone, Copy, Debug)]
struct Has {
    bias: bool,
    lora: bool,
    dtype: DType,
}

const PLAIN: Has = Has { bias: false, lora: false, dtype: DType::F32 };

/// Logits from a router's weights: its choice stays where it is when an element moves a little.
fn case(rule: RouterRule, gate: ExpertGate, has: Has) -> Case {
    let (tokens, count, hidden, inner, rank) = (7, 5, 12, 6, 2);
    let mut inputs =
        vec![Input::new("x", &[tokens, hidden], 1.0), Input::new("logits", &[tokens, count], 1.5)];
    let names = [["up", "up bias", "up a", "up b"], ["down", "down bias", "down a", "down b"]];
    for (name, [out, input]) in names.into_iter().zip([[gate.reads(inner), hidden], [hidden, inner]]) {
        inputs.push(Input { dtype: has.dtype, ..Input::new(name[0], &[count, out, input], 0.4) });
        if has.bias {
            inputs.push(Input::new(name[1], &[count, out], 0.4));
        }
        if has.lora {
            inputs.push(Input::new(name[2], &[count * rank, input], 0.4));
            inputs.push(Input::new(name[3], &[out, rank * count], 0.4));
        }
    }
    let run = move |body: Body, t: &[AnyTensor]| {
        let mut t = t.iter().cloned();
        let mut next = || t.next().unwrap();
        let (x, logits) = (next(), next());
        let mut layer = || {
            let (weight, bias) = (next(), has.bias.then(&mut next));
            let low_rank = has.lora.then(|| ExpertLowRank { a: next(), b: next(), scale: 0.7 });
            ExpertLayer { weight, bias, low_rank }
        };
        let layers = Experts {
            gate_up: layer(),
            down: layer(),
            gate,
            compute: Compute::Fp32,
            widened_together: WIDENED_TOGETHER,
        };
        let routed = |body| match body {
            Body::Reference => reference::route(&logits, &rule),
            _ => route(&logits, None, &rule, None),
        };
        match body {
            Body::Fused => experts(&x, &routed(body)?, &layers),
            Body::Reference => reference::experts(&x, &routed(body)?, &layers),
            Body::Gpu => gpu::experts(&x, &routed(body)?, &layers),
        }
    };
    Case { name: format!("experts, {rule:?}, {gate:?}, {has:?}"), inputs, run: Box::new(run) }
}

#[test]
fn experts_agree_with_dense_sums_and_differentiate() {
    let halves = ExpertGate::Halves(Activation::Silu);
    let clamped = ExpertGate::Clamped { alpha: 1.702, limit: 1.1 };
    let raw = RouterRule { renormalise: false, ..SOFTMAX };
    let sigmoid = RouterRule { scores: RouterScores::Sigmoid, scale: 2.5, ..SOFTMAX };
    let mixer = RouterRule { scores: RouterScores::SparseMixer { within: 0.9 }, ..raw };
    for (rule, gate, has) in [
        (SOFTMAX, halves, PLAIN),
        (raw, ExpertGate::Halves(Activation::GeluTanh), Has { lora: true, ..PLAIN }),
        (sigmoid, clamped, Has { bias: true, lora: true, ..PLAIN }),
        (RouterRule { per_token: 5, ..SOFTMAX }, halves, PLAIN),
        (mixer, halves, PLAIN),
        (sigmoid, ExpertGate::Plain(Activation::Relu2), Has { bias: true, lora: true, ..PLAIN }),
    ] {
        let case = case(rule, gate, has);
        case.differentiates();
        case.agrees();
    }
    case(SOFTMAX, halves, Has { dtype: DType::BF16, ..PLAIN }).agrees();
}

/// A rank that no token is sent to: its experts get gradients all the same, so that ranks agree on which there are.
#[test]
fn experts_of_no_token_get_gradients_of_zeros() {
    type Run = fn(&AnyTensor, &Routing, &Experts) -> Result<AnyTensor, OpsError>;
    for run in [experts as Run, gpu::experts as Run] {
        let x = AnyTensor::new(Tensor::<2>::zeros([0, 8], &device())).leaf();
        let weights = AnyTensor::new(Tensor::<2>::zeros([0, 2], &device())).leaf();
        let mut layers = layers(3, 8, 4);
        layers.gate_up.weight = layers.gate_up.weight.leaf();
        let y = run(&x, &Routing { weights: weights.clone(), experts: Vec::new().into() }, &layers).unwrap();
        assert_eq!((y.shape(), y.dtype()), (vec![0, 8], Some(burnish_core::Dtype::F32)));
        let mut gradients = y.rank::<2>().unwrap().sum().backward();
        let mut shape = |t: &AnyTensor| t.take_gradient(&mut gradients).map(|gradient| gradient.shape());
        assert_eq!((shape(&x), shape(&weights)), (Some(vec![0, 8]), Some(vec![0, 2])));
        assert_eq!(shape(&layers.gate_up.weight), Some(vec![3, 8, 8]));
    }
}

fn layers(count: usize, hidden: usize, inner: usize) -> Experts {
    let layer = |name: &'static str, shape: &[usize]| ExpertLayer {
        weight: tensor(name, shape),
        bias: None,
        low_rank: None,
    };
    Experts {
        gate_up: layer("up", &[count, 2 * inner, hidden]),
        down: layer("down", &[count, hidden, inner]),
        gate: ExpertGate::Halves(Activation::Silu),
        compute: Compute::Fp32,
        widened_together: WIDENED_TOGETHER,
    }
}

#[test]
fn decoding_is_the_same() {
    let (x, layers) = (tensor("x", &[3, 12]), layers(5, 12, 6));
    let routing = route(&tensor("logits", &[3, 5]), None, &SOFTMAX, None).unwrap();
    let want = to_f64(&experts(&x, &routing, &layers).unwrap());
    assert_close(&to_f64(&experts_decode(&x, &routing, &layers).unwrap()), &want, 1e-6, "decoded");
}

#[test]
fn what_does_not_fit_is_told() {
    let (x, layers) = (tensor("x", &[3, 12]), layers(5, 12, 6));
    let logits = tensor("logits", &[3, 5]);
    let told = |error: OpsError| error.to_string();
    let many = RouterRule { per_token: 6, ..SOFTMAX };
    assert!(told(route(&logits, None, &many, None).unwrap_err()).contains("route"));
    let bias = tensor("bias", &[4]);
    assert!(told(route(&logits, Some(&bias), &SOFTMAX, None).unwrap_err()).contains("bias"));
    let other =
        route(&tensor("logits", &[3, 6]), None, &RouterRule { per_token: 6, ..SOFTMAX }, None).unwrap();
    assert!(matches!(experts(&x, &other, &layers), Err(OpsError::Index { .. })));
    let routing = route(&tensor("logits", &[2, 5]), None, &SOFTMAX, None).unwrap();
    assert!(told(experts(&x, &routing, &layers).unwrap_err()).contains("weights of tokens"));
    let routing = route(&logits, None, &SOFTMAX, None).unwrap();
    let narrow =
        Experts { gate_up: ExpertLayer { weight: tensor("up", &[5, 11, 12]), ..layers.gate_up }, ..layers };
    assert!(told(experts(&x, &routing, &narrow).unwrap_err()).contains("gate_up_proj"));
}

/// The loss over two layers, and its gradient of each layer's logits, against Burn's autodiff.
#[test]
fn the_balancing_loss_pulls_on_every_layer() {
    let (tokens, count, coefficient) = (9, 4, 0.3_f32);
    let logits = [tensor("a", &[tokens, count]), tensor("b", &[tokens, count])];
    let balance = Arc::new(RouterBalance::new(2, count, coefficient));
    let leaves = logits.clone().map(|t| t.leaf());
    let mut total = None;
    for (layer, leaf) in leaves.iter().enumerate() {
        let routing = route(leaf, None, &SOFTMAX, Some((&balance, layer))).unwrap();
        // Nothing else pulls.
        let own = (routing.weights.rank::<2>().unwrap() * 0.0).sum();
        total = Some(total.map_or(own.clone(), |t: Tensor<1>| t + own));
    }
    let mut found = total.unwrap().backward();

    let expected = logits.map(|t| t.leaf());
    let (mut counts, mut sums) = (vec![0.0_f32; count], None);
    for leaf in &expected {
        for &e in route(&leaf.plain(), None, &SOFTMAX, None).unwrap().experts.to_host().iter() {
            counts[e as usize] += 1.0 / (2 * tokens) as f32;
        }
        let p =
            burn::tensor::activation::softmax(leaf.rank::<2>().unwrap(), 1).sum_dim(0) / (2 * tokens) as f32;
        sums = Some(sums.map_or(p.clone(), |s: Tensor<2>| s + p));
    }
    let counts = AnyTensor::from_elements(counts, &[1, count], &device()).untracked();
    let loss = (sums.unwrap() * counts.rank::<2>().unwrap()).sum() * count as f32;
    let value = f64::from(loss.clone().into_scalar::<f32>());
    assert!((balance.loss() - value).abs() < 1e-6, "{} is not {value}", balance.loss());
    let mut want = (loss * coefficient).backward();
    for (got, want_of) in leaves.iter().zip(&expected) {
        let (got, want) = (got.take_gradient(&mut found), want_of.take_gradient(&mut want));
        assert_close(&to_f64(&got.unwrap()), &to_f64(&want.unwrap()), 1e-5, "gradient of logits");
    }
    assert_eq!(RouterBalance::new(1, 3, 1.0).loss(), 0.0);
}

/// What Transformers' `load_balancing_loss_func` gave, over two layers.
#[test]
fn the_balancing_loss_is_transformers() {
    let cases = include_str!("golden/moe_load_balancing.json");
    let cases: Vec<serde_json::Value> = serde_json::from_str(cases).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let (experts, per_token) = (&case["num_experts"], &case["top_k"]);
        let (experts, per_token) = (experts.as_u64().unwrap() as usize, per_token.as_u64().unwrap() as usize);
        assert!(case["attention_mask"].is_null());
        let layers = case["router_logits"].as_array().unwrap();
        let balance = Arc::new(RouterBalance::new(layers.len(), experts, 0.1));
        for (layer, rows) in layers.iter().enumerate() {
            let rows: Vec<Vec<f32>> = serde_json::from_value(rows.clone()).unwrap();
            let logits = AnyTensor::from_elements(rows.concat(), &[rows.len(), experts], &device());
            route(&logits, None, &RouterRule { per_token, ..SOFTMAX }, Some((&balance, layer))).unwrap();
        }
        let (got, want) = (balance.loss(), case["loss"].as_f64().unwrap());
        assert!((got - want).abs() < 1e-6, "{got} is not {want}");
    }
}
