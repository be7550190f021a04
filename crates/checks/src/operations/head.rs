//! The head: log-probabilities, entropies, the fused loss.

use std::sync::Arc;

use burn::tensor::DType;
use burnish_ops::{
    AnyTensor, Coefficient, HeadOptions, Linear, LowRank, OpsError, TokenStats, head_log_probs, head_loss,
    head_nll, reference,
};

use super::{Bound, check, name_of};
use crate::Check;
use crate::case::{Body, Case, Input};

#[derive(Clone, Copy, Debug)]
struct With {
    rank: usize,
    bias: bool,
    dtype: DType,
    options: HeadOptions,
    gives: Gives,
}

/// What is made of the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gives {
    LogProbs,
    /// A scalar loss by coefficients that follow from log-probabilities.
    Loss,
    /// The negative log-likelihood.
    Nll,
}

const PLAIN: HeadOptions =
    HeadOptions { temperature: 1.0, softcap: None, logit_scale: 1.0, label_smoothing: 0.0 };
const SHAPED: HeadOptions =
    HeadOptions { temperature: 0.7, softcap: Some(2.5), logit_scale: 1.5, label_smoothing: 0.3 };

fn case(with: With, [tokens, dim, vocab]: [usize; 3]) -> Case {
    let scale = 1.0 / (dim as f32).sqrt();
    let weight = Input::new("weight", &[vocab, dim], 2.0 * scale).held(with.dtype);
    let mut inputs = vec![Input::new("hidden", &[tokens, dim], 1.0), weight];
    if with.bias {
        inputs.push(Input::new("bias", &[vocab], 0.5));
    }
    if with.rank > 0 {
        inputs[1].tracked = false;
        inputs.push(Input::new("a", &[with.rank, dim], scale));
        inputs.push(Input::new("b", &[vocab, with.rank], 0.5));
    }
    let targets = Arc::new((0..tokens).map(|i| (i * 31 % vocab) as u32).collect::<Vec<_>>());
    let run = move |body: Body, t: &[AnyTensor]| -> Result<AnyTensor, OpsError> {
        let mut tensors = t[1..].iter().cloned();
        let mut next = || tensors.next().expect("invariant: as many tensors as inputs");
        let head = Linear {
            compute: Default::default(),
            weight: next(),
            bias: with.bias.then(&mut next),
            low_rank: (with.rank > 0).then(|| LowRank {
                a: next(),
                b: next(),
                b_bias: None,
                scale: 0.75,
                dropout: None,
                magnitude: None,
            }),
        };
        let loss = match with.gives {
            Gives::LogProbs => {
                let (out, stats) = match body {
                    Body::Device => head_log_probs(&t[0], &head, None, &targets, with.options),
                    Body::Reference => reference::head_log_probs(&t[0], &head, None, &targets, with.options),
                }?;
                finite(&stats);
                return Ok(out);
            }
            Gives::Nll if body == Body::Device => {
                let (loss, stats) = head_nll(&t[0], &head, None, &targets, with.options, DENOMINATOR)?;
                finite(stats.get());
                loss
            }
            gives => {
                let (coefficient, value): (Coefficient, fn(&TokenStats) -> f32) = match gives {
                    Gives::Nll => (Arc::new(|_, _| (-1.0 / DENOMINATOR) as f32), nll_value),
                    _ => (dft(), dft_value),
                };
                let options = with.options;
                match body {
                    Body::Device => head_loss(&t[0], &head, None, &targets, options, &coefficient, value),
                    Body::Reference => {
                        reference::head_loss(&t[0], &head, None, &targets, options, &coefficient, value)
                    }
                }?
                .0
            }
        };
        Ok(AnyTensor::new(loss.rank::<1>()?.reshape([1, 1])))
    };
    Case { inputs, run: Box::new(run) }
}

/// What the likelihood is divided by: any number that is no power of two.
const DENOMINATOR: f64 = 7.0;

fn nll_value(stats: &TokenStats) -> f32 {
    (-stats.log_prob.iter().map(|&log_prob| f64::from(log_prob)).sum::<f64>() / DENOMINATOR) as f32
}

fn finite(stats: &TokenStats) {
    assert!(stats.log_prob.iter().all(|lp| lp.is_finite() && *lp <= 0.0), "log-probabilities");
}

/// A coefficient that depends on row and log-probability.
fn dft() -> Coefficient {
    Arc::new(|row, log_prob: f32| -log_prob.exp() * (1.0 + row as f32 % 3.0))
}

fn dft_value(stats: &TokenStats) -> f32 {
    stats.log_prob.iter().map(|&log_prob| -log_prob.exp() * log_prob).sum()
}

pub(super) fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        let bare = With { rank: 0, bias: false, dtype, options: PLAIN, gives: Gives::LogProbs };
        let kinds = [
            ("log-probabilities", bare),
            ("log-probabilities, cap, temperature, bias", With { options: SHAPED, bias: true, ..bare }),
            ("log-probabilities, LoRA", With { rank: 4, ..bare }),
            ("loss", With { gives: Gives::Loss, ..bare }),
            ("loss, LoRA, cap", With { gives: Gives::Loss, rank: 4, options: SHAPED, ..bare }),
            ("likelihood", With { gives: Gives::Nll, ..bare }),
            ("likelihood, LoRA, cap", With { gives: Gives::Nll, rank: 4, options: SHAPED, ..bare }),
        ];
        for (name, with) in kinds {
            // The last is more than one chunk of rows.
            for dims in [[5, 19, 37], [130, 64, 1000], [700, 32, 4099]] {
                let [tokens, _, vocab] = dims;
                let title = format!("head {name}, {}, {tokens} x {vocab}", name_of(dtype));
                // The gradient is a product of what an exponential makes of products.
                all.push(check(title, Bound::chained(dtype), move || case(with, dims)));
            }
        }
    }
    all
}
