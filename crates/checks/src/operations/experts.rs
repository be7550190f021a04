//! Mixtures of experts: routers, gates, biases, adapters, experts without tokens and those of other ranks.

use burn::tensor::DType;
use burnish_core::{Compute, ExpertGate, Quantization, RouterRule, RouterScores, Scheme};
use burnish_ops::{
    Activation, AnyTensor, ExpertLayer, ExpertLowRank, Experts, Routing, WIDENED_TOGETHER, experts,
    experts_decode, reference, route,
};

use super::{Bound, check, name_of};
use crate::Check;
use crate::case::{Body, Case, Input};

#[derive(Clone, Copy, Debug)]
struct With {
    rule: RouterRule,
    gate: ExpertGate,
    bias: bool,
    lora: bool,
    /// Experts before this one are another rank's.
    first: usize,
    /// Weights rest in four bits.
    packed: bool,
    /// Elements of them that are widened together.
    widened_together: usize,
    /// As a step of decoding.
    decodes: bool,
}

const RULE: RouterRule =
    RouterRule { per_token: 2, scores: RouterScores::Softmax, renormalise: true, scale: 1.0, groups: None };
const PLAIN: With = With {
    rule: RULE,
    gate: ExpertGate::Halves(Activation::Silu),
    bias: false,
    lora: false,
    first: 0,
    packed: false,
    widened_together: WIDENED_TOGETHER,
    decodes: false,
};

fn case(with: With, dtype: DType, [tokens, count, hidden, inner]: [usize; 4]) -> Case {
    let (rank, own) = (2, count - with.first);
    let mut inputs =
        vec![Input::new("x", &[tokens, hidden], 1.0), Input::new("logits", &[tokens, count], 1.5)];
    let names = [["up", "up bias", "up a", "up b"], ["down", "down bias", "down a", "down b"]];
    for (name, [out, input]) in names.into_iter().zip([[with.gate.reads(inner), hidden], [hidden, inner]]) {
        let scale = 1.0 / (input as f32).sqrt();
        let weight = Input::new(name[0], &[own, out, input], scale).held(dtype);
        inputs.push(match with {
            With { packed: true, .. } => weight.packed(Quantization { scheme: Scheme::Nf4, nested: true }),
            With { lora: true, .. } => weight.frozen(),
            With { .. } => weight,
        });
        if with.bias {
            inputs.push(Input::new(name[1], &[own, out], 0.4));
        }
        if with.lora {
            inputs.push(Input::new(name[2], &[own * rank, input], scale));
            inputs.push(Input::new(name[3], &[out, rank * own], 0.4));
        }
    }
    if with.decodes {
        inputs = inputs.into_iter().map(Input::frozen).collect();
    }
    let run = move |body: Body, t: &[AnyTensor]| {
        let mut t = t.iter().cloned();
        let mut next = || t.next().expect("invariant: as many tensors as inputs");
        let (x, logits) = (next(), next());
        let mut layer = || ExpertLayer {
            weight: next(),
            bias: with.bias.then(&mut next),
            low_rank: with.lora.then(|| ExpertLowRank { a: next(), b: next(), scale: 0.7 }),
        };
        let layers = Experts {
            gate_up: layer(),
            down: layer(),
            gate: with.gate,
            compute: Compute::Fp32,
            widened_together: with.widened_together,
        };
        let routing = match body {
            Body::Device => route(&logits, None, &with.rule, None),
            Body::Reference => reference::route(&logits, &with.rule),
        }?;
        let routing = routing.to(&(with.first..count));
        match body {
            Body::Device if with.decodes => experts_decode(&x, &routing, &layers),
            Body::Device => experts(&x, &routing, &layers),
            Body::Reference => reference::experts(&x, &routing, &layers),
        }
    };
    Case { inputs, run: Box::new(run) }
}

/// All tokens go to one expert of three, with a weight each.
fn single(dtype: DType) -> Case {
    let (tokens, count, hidden, inner) = (33, 3, 16, 24);
    let inputs = vec![
        Input::new("x", &[tokens, hidden], 1.0),
        Input::new("weights", &[tokens, 1], 1.0),
        Input::new("up", &[count, 2 * inner, hidden], 0.25).held(dtype),
        Input::new("down", &[count, hidden, inner], 0.2).held(dtype),
    ];
    let run = move |body: Body, t: &[AnyTensor]| {
        let layer = |weight: &AnyTensor| ExpertLayer { weight: weight.clone(), bias: None, low_rank: None };
        let layers = Experts {
            gate_up: layer(&t[2]),
            down: layer(&t[3]),
            gate: PLAIN.gate,
            compute: Compute::Fp32,
            widened_together: WIDENED_TOGETHER,
        };
        let routing = Routing { weights: t[1].clone(), experts: vec![1; tokens].into() };
        match body {
            Body::Device => experts(&t[0], &routing, &layers),
            Body::Reference => reference::experts(&t[0], &routing, &layers),
        }
    };
    Case { inputs, run: Box::new(run) }
}

pub(super) fn checks() -> Vec<Check> {
    let sigmoid = RouterRule { scores: RouterScores::Sigmoid, scale: 2.5, ..RULE };
    let mixer = RouterRule { scores: RouterScores::SparseMixer { within: 0.9 }, renormalise: false, ..RULE };
    let clamped = ExpertGate::Clamped { alpha: 1.702, limit: 1.1 };
    let kinds = [
        ("gates", PLAIN),
        (
            "LoRA, biases, gates by turns",
            With { rule: sigmoid, gate: clamped, bias: true, lora: true, ..PLAIN },
        ),
        (
            "no gates, some of another rank",
            With { gate: ExpertGate::Plain(Activation::Relu2), first: 2, ..PLAIN },
        ),
        ("LoRA, by SparseMixer", With { rule: mixer, lora: true, ..PLAIN }),
        ("LoRA on NF4", With { lora: true, packed: true, ..PLAIN }),
        // Of the first layer's four experts one at a time, of the second's three and one.
        (
            "LoRA and biases on NF4, by blocks",
            With { lora: true, bias: true, packed: true, widened_together: 9216, ..PLAIN },
        ),
    ];
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        // Two layers, with adapters four products, and as many in backward.
        let bound = Bound::chained(dtype);
        for (name, with) in kinds {
            for (dims, limit) in [([7, 5, 12, 6], 1.1), ([96, 4, 64, 48], 40.0)] {
                let [tokens, count, ..] = dims;
                // Of many elements one lies so near a limit that rounding takes it over, and with it its whole gradient.
                let gate = match with.gate {
                    ExpertGate::Clamped { alpha, .. } => ExpertGate::Clamped { alpha, limit },
                    other => other,
                };
                let with = With { gate, ..with };
                let title = format!("experts {name}, {}, {tokens} over {count}", name_of(dtype));
                all.push(check(title, bound, move || case(with, dtype, dims)));
            }
            let title = format!("experts of few tokens, {name}, {}", name_of(dtype));
            let decoded = With { decodes: true, ..with };
            all.push(check(title, bound, move || case(decoded, dtype, [7, 5, 64, 48])));
        }
        let title = format!("experts without tokens, {}", name_of(dtype));
        all.push(check(title, bound, move || single(dtype)));
    }
    all
}
