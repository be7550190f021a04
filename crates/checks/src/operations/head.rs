//! The head: log-probabilities, entropies, the fused loss.

use std::sync::Arc;

use burn::tensor::DType;
use burnish_ops::{
    AnyTensor, Coefficient, HeadOptions, Linear, LowRank, OpsError, TokenStats, head_log_probs, head_loss,
    reference,
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
    /// The scalar loss instead of the log-probabilities.
    loss: bool,
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
        if !with.loss {
            let (out, stats) = match body {
                Body::Device => head_log_probs(&t[0], &head, None, &targets, with.options),
                Body::Reference => reference::head_log_probs(&t[0], &head, None, &targets, with.options),
            }?;
            assert!(stats.log_prob.iter().all(|lp| lp.is_finite() && *lp <= 0.0), "log-probabilities");
            return Ok(out);
        }
        let (coefficient, value) = (dft(), dft_value);
        let (loss, _) = match body {
            Body::Device => head_loss(&t[0], &head, None, &targets, with.options, &coefficient, value),
            Body::Reference => {
                reference::head_loss(&t[0], &head, None, &targets, with.options, &coefficient, value)
            }
        }?;
        Ok(AnyTensor::new(loss.rank::<1>()?.reshape([1, 1])))
    };
    Case { inputs, run: Box::new(run) }
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
        let bare = With { rank: 0, bias: false, dtype, options: PLAIN, loss: false };
        let kinds = [
            ("log-probabilities", bare),
            ("log-probabilities, cap, temperature, bias", With { options: SHAPED, bias: true, ..bare }),
            ("log-probabilities, LoRA", With { rank: 4, ..bare }),
            ("loss", With { loss: true, ..bare }),
            ("loss, LoRA, cap", With { loss: true, rank: 4, options: SHAPED, ..bare }),
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
