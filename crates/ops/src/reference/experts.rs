//! A router and experts: each expert over all tokens, times a weight that is zero where it was not chosen.

use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{DType, Tensor, TensorData};
use burnish_core::{ExpertGate, RouterRule, RouterScores};

use super::{activated, wide};
use crate::experts::{ExpertLayer, Experts};
use crate::router::choice::near;
use crate::{AnyTensor, OpsError, Routing};

/// See [`crate::route`]; which experts are chosen is a constant.
pub fn route(logits: &AnyTensor, rule: &RouterRule) -> Result<Routing, OpsError> {
    let found = crate::route(&logits.plain(), None, rule, None)?.experts;
    let chosen = found.to_host();
    let x = wide::<2>(logits)?;
    let [tokens, experts] = x.dims();
    let rows = logits.plain().to_f32();
    let scores = |j: usize| match rule.scores {
        RouterScores::Softmax => softmax(x.clone(), 1),
        RouterScores::Sigmoid | RouterScores::SigmoidByLogit => sigmoid(x.clone()),
        RouterScores::SparseMixer { within } => {
            let mut far = Vec::with_capacity(rows.len());
            for (row, chosen) in rows.chunks(experts).zip(chosen.chunks(rule.per_token)) {
                let mut p = vec![0.0; experts];
                near(row, &chosen[..=j], within, &mut p);
                far.extend(p.into_iter().map(|p| if p > 0.0 { 0.0 } else { -1e30 }));
            }
            softmax(x.clone() + constant(far, [tokens, experts], &x), 1)
        }
    };
    let column = |j: usize| {
        let mut mask = vec![0.0_f32; tokens * experts];
        for t in 0..tokens {
            mask[t * experts + chosen[t * rule.per_token + j] as usize] = 1.0;
        }
        (scores(j) * constant(mask, [tokens, experts], &x)).sum_dim(1)
    };
    let mut weights = Tensor::cat((0..rule.per_token).map(column).collect(), 1);
    if rule.renormalise {
        weights = weights.clone() / weights.sum_dim(1);
    }
    Ok(Routing { weights: AnyTensor::new(weights * rule.scale), experts: found })
}

/// See [`crate::experts()`].
pub fn experts(x: &AnyTensor, routing: &Routing, experts: &Experts) -> Result<AnyTensor, OpsError> {
    let (x, weights) = (wide::<2>(x)?, wide::<2>(&routing.weights)?);
    let [tokens, each] = weights.dims();
    let [count, ..] = experts.sizes()?;
    let mut y = x.zeros_like();
    for e in 0..count {
        let both = layer(&experts.gate_up, e, x.clone())?;
        let width = both.dims()[1];
        let z = match experts.gate {
            ExpertGate::Halves(f) => {
                activated(f, both.clone().narrow(1, 0, width / 2)) * both.narrow(1, width / 2, width / 2)
            }
            ExpertGate::Plain(f) => activated(f, both),
            ExpertGate::Clamped { alpha, limit } | ExpertGate::ClampedHalves { alpha, limit } => {
                let turns = matches!(experts.gate, ExpertGate::Clamped { .. });
                let half = width / 2;
                let of = |at: usize| match turns {
                    true => both.clone().reshape([tokens, half, 2]).narrow(2, at, 1).reshape([tokens, half]),
                    false => both.clone().narrow(1, at * half, half),
                };
                let (g, u) = (of(0).clamp_max(limit), of(1).clamp(-limit, limit));
                g.clone() * sigmoid(g * alpha) * (u + 1.0)
            }
        };
        let own: Vec<f32> = routing.experts.to_host().iter().map(|&c| f32::from(c as usize == e)).collect();
        let own = constant(own, [tokens, each], &weights);
        let weight = (weights.clone() * own).sum_dim(1);
        y = y + layer(&experts.down, e, z)? * weight;
    }
    Ok(AnyTensor::new(y))
}

fn constant(values: Vec<f32>, shape: [usize; 2], like: &Tensor<2>) -> Tensor<2> {
    let dtype: DType = like.dtype();
    Tensor::from_data(TensorData::new(values, shape), (&like.device(), dtype))
}

/// One expert's layer.
fn layer(layer: &ExpertLayer, e: usize, x: Tensor<2>) -> Result<Tensor<2>, OpsError> {
    let weight = wide::<3>(&layer.weight)?;
    let [experts, out, input] = weight.dims();
    let weight = weight.narrow(0, e, 1).reshape([out, input]);
    let mut y = x.clone().matmul(weight.transpose());
    if let Some(low) = &layer.low_rank {
        let rank = layer.rank(experts);
        let a = wide::<2>(&low.a)?.narrow(0, e * rank, rank);
        let b = wide::<2>(&low.b)?.reshape([out, rank, experts]).narrow(2, e, 1).reshape([out, rank]);
        y = y + x.matmul(a.transpose()).matmul(b.transpose()) * low.scale;
    }
    if let Some(bias) = &layer.bias {
        y = y + wide::<2>(bias)?.narrow(0, e, 1);
    }
    Ok(y)
}
