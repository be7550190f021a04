//! Against sums written out, and against differences.
#![allow(clippy::unwrap_used, reason = "tests")]

use burnish_core::{Activation, LinearPart, LinearParts};

use super::*;

/// Values that tell elements apart.
fn values(seed: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (((i + 31 * seed) * 7919 % 1009) as f32 / 504.5 - 1.0) * 0.7).collect()
}

const TOKENS: usize = 7;
const EACH: usize = 2;
const COUNT: usize = 5;
const HIDDEN: usize = 9;
const INNER: usize = 6;
const RANK: usize = 2;

struct Case {
    x: Vec<f32>,
    weights: Vec<f32>,
    chosen: Vec<u32>,
    tensors: Vec<Vec<f32>>,
    gate: ExpertGate,
    lora: bool,
}

impl Case {
    fn new(gate: ExpertGate, lora: bool) -> Self {
        let lens = [
            COUNT * gate.reads(INNER) * HIDDEN,
            COUNT * gate.reads(INNER),
            COUNT * RANK * HIDDEN,
            COUNT * gate.reads(INNER) * RANK,
            COUNT * HIDDEN * INNER,
            COUNT * HIDDEN,
            COUNT * RANK * INNER,
            COUNT * HIDDEN * RANK,
        ];
        let tensors = lens.iter().enumerate().map(|(i, &len)| values(i + 3, len)).collect();
        // The last expert has no token.
        let chosen =
            (0..TOKENS).flat_map(|t| [(t % 3) as u32, (t % 2 + 2 - t % 3 % 2) as u32]).collect::<Vec<_>>();
        assert!(chosen.chunks(2).all(|c| c[0] != c[1]) || chosen.iter().all(|&e| e < 4));
        Self { x: values(1, TOKENS * HIDDEN), weights: values(2, TOKENS * EACH), chosen, tensors, gate, lora }
    }

    fn experts(&self) -> Experts<'_> {
        let t = &self.tensors;
        let low = |at: usize| ExpertLowRank { rank: RANK, a: &t[at], b: &t[at + 1], scale: 0.8 };
        let matrix = |at: usize| ExpertMatrix {
            weight: Weight::F32(&t[at]),
            bias: Some(&t[at + 1]),
            low_rank: self.lora.then(|| low(at + 2)),
        };
        Experts {
            count: COUNT,
            hidden: HIDDEN,
            inner: INNER,
            gate_up: matrix(0),
            down: matrix(4),
            gate: self.gate,
            compute: Compute::Fp32,
        }
    }

    /// Written out, in double.
    fn expected(&self) -> Vec<f64> {
        let t = &self.tensors;
        let layer = |at: usize, e: usize, out: usize, input: usize, x: &[f64]| -> Vec<f64> {
            let row = |o: usize| -> f64 {
                let mut sum = f64::from(t[at + 1][e * out + o]);
                for (i, x) in x.iter().enumerate() {
                    sum += x * f64::from(t[at][(e * out + o) * input + i]);
                    for r in 0..if self.lora { RANK } else { 0 } {
                        let a = f64::from(t[at + 2][(e * RANK + r) * input + i]);
                        sum += 0.8 * f64::from(t[at + 3][(e * out + o) * RANK + r]) * a * x;
                    }
                }
                sum
            };
            (0..out).map(row).collect()
        };
        let mut y = vec![0.0; TOKENS * HIDDEN];
        for (place, (&e, w)) in self.chosen.iter().zip(&self.weights).enumerate() {
            let token = place / EACH;
            let x: Vec<f64> =
                self.x[token * HIDDEN..(token + 1) * HIDDEN].iter().map(|&x| x.into()).collect();
            let both = layer(0, e as usize, self.gate.reads(INNER), HIDDEN, &x);
            let z: Vec<f64> = (0..INNER)
                .map(|i| match self.gate {
                    ExpertGate::Halves(_) => both[i] / (1.0 + (-both[i]).exp()) * both[INNER + i],
                    ExpertGate::Plain(_) => both[i].max(0.0).powi(2),
                    ExpertGate::Clamped { alpha, limit } | ExpertGate::ClampedHalves { alpha, limit } => {
                        let (limit, alpha) = (f64::from(limit), f64::from(alpha));
                        let turns = matches!(self.gate, ExpertGate::Clamped { .. });
                        let [at, beside] = if turns { [2 * i, 2 * i + 1] } else { [i, INNER + i] };
                        let (g, u) = (both[at].min(limit), both[beside].clamp(-limit, limit));
                        g / (1.0 + (-alpha * g).exp()) * (u + 1.0)
                    }
                })
                .collect();
            for (o, v) in layer(4, e as usize, HIDDEN, INNER, &z).into_iter().enumerate() {
                y[token * HIDDEN + o] += f64::from(*w) * v;
            }
        }
        y
    }
}

fn cases() -> Vec<Case> {
    let clamped = ExpertGate::Clamped { alpha: 1.702, limit: 0.9 };
    let halves = ExpertGate::ClampedHalves { alpha: 1.702, limit: 0.9 };
    [ExpertGate::Halves(Activation::Silu), clamped, halves, ExpertGate::Plain(Activation::Relu2)]
        .into_iter()
        .flat_map(|gate| [false, true].map(|lora| Case::new(gate, lora)))
        .collect()
}

#[test]
fn outputs_equal_sums_written_out() {
    for case in cases() {
        let experts = case.experts();
        let out = experts_forward(TOKENS, &case.x, &case.weights, &case.chosen, &experts);
        let decoded = experts_decode(TOKENS, &case.x, &case.weights, &case.chosen, &experts);
        for (got, want) in out.y.iter().zip(&decoded).zip(case.expected()).map(|((a, b), w)| ([a, b], w)) {
            assert!(got.iter().all(|&&got| (f64::from(got) - want).abs() < 2e-5), "{got:?}, not {want}");
        }
    }
}

#[test]
fn gradients_equal_differences() {
    for mut case in cases() {
        let dy = values(17, TOKENS * HIDDEN);
        let all = LinearParts::of(&LinearPart::ALL);
        let wanted = ExpertsWanted { dx: true, dweights: true, gate_up: all, down: all };
        let experts = case.experts();
        let out = experts_forward(TOKENS, &case.x, &case.weights, &case.chosen, &experts);
        let grad = experts_backward(
            TOKENS,
            &case.x,
            &case.weights,
            &case.chosen,
            &experts,
            &out.saved,
            &dy,
            &wanted,
        );
        let found = |parts: &LinearParts<Option<Vec<f32>>>| {
            [LinearPart::Weight, LinearPart::Bias, LinearPart::LoraA, LinearPart::LoraB]
                .map(|part| parts.found(part).cloned())
        };
        let value =
            |case: &Case| -> f64 { case.expected().iter().zip(&dy).map(|(y, d)| y * f64::from(*d)).sum() };
        let differences = |case: &mut Case,
                           at: fn(&mut Case, usize) -> &mut Vec<f32>,
                           which: usize,
                           got: &[f32]| {
            assert_eq!(at(case, which).len(), got.len());
            for i in (0..got.len()).step_by(3) {
                let (step, before) = (1e-3_f32, at(case, which)[i]);
                at(case, which)[i] = before + step;
                let above = value(case);
                at(case, which)[i] = before - step;
                let below = value(case);
                at(case, which)[i] = before;
                let want = (above - below) / (2.0 * f64::from(step));
                let (got, by) = (f64::from(got[i]), 3e-3 * want.abs().max(1.0));
                assert!((got - want).abs() < by, "{:?}: tensor {which} at {i}: {got}, not {want}", case.gate);
            }
        };
        differences(&mut case, |case, _| &mut case.x, 100, &grad.dx.unwrap());
        differences(&mut case, |case, _| &mut case.weights, 101, &grad.dweights.unwrap());
        let parts = found(&grad.gate_up).into_iter().chain(found(&grad.down));
        for (which, gradient) in parts.enumerate() {
            assert_eq!(gradient.is_some(), case.lora || which % 4 < 2);
            if let Some(gradient) = gradient {
                // An expert without a token gets zeros.
                let last = gradient.len() / COUNT * (COUNT - 1);
                assert!(gradient[last..].iter().all(|&g| g == 0.0));
                differences(&mut case, |case, which| &mut case.tensors[which], which, &gradient);
            }
        }
    }
}

#[test]
fn no_token_gives_zeros() {
    let case = Case::new(ExpertGate::Halves(Activation::Silu), false);
    let experts = case.experts();
    let out = experts_forward(0, &[], &[], &[], &experts);
    assert!(out.y.is_empty());
    let wanted =
        ExpertsWanted { gate_up: LinearParts::of(&[LinearPart::Weight]), ..ExpertsWanted::default() };
    let grad = experts_backward(0, &[], &[], &[], &experts, &out.saved, &[], &wanted);
    assert!(grad.gate_up.found(LinearPart::Weight).unwrap().iter().all(|&g| g == 0.0));
}
