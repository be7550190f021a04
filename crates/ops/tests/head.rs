//! The log-probability head and the loss on it.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use burnish_core::random::Stream;
use burnish_ops::{
    AnyTensor, Coefficient, Dropout, HeadOptions, Linear, LowRank, Magnitude, OpsError, TokenStats, gpu,
    head_log_probs, head_logits, head_loss, head_nll, reference,
};

use crate::case::{Body, Case, DIFFERENCE, F32, Input, assert_close, device, norms, tensor, to_f64};

#[derive(Clone, Copy, Debug)]
pub(crate) struct With {
    pub(crate) bias: bool,
    pub(crate) rank: usize,
    pub(crate) b_bias: bool,
    pub(crate) dropout: f32,
    pub(crate) dtype: DType,
    pub(crate) options: HeadOptions,
    pub(crate) magnitude: bool,
}

pub(crate) const PLAIN: HeadOptions =
    HeadOptions { temperature: 1.0, softcap: None, logit_scale: 1.0, label_smoothing: 0.0 };
pub(crate) const ALL: HeadOptions =
    HeadOptions { temperature: 0.7, softcap: Some(2.5), logit_scale: 1.5, label_smoothing: 0.3 };
pub(crate) const BARE: With = With {
    bias: false,
    rank: 0,
    b_bias: false,
    dropout: 0.0,
    dtype: DType::F32,
    options: PLAIN,
    magnitude: false,
};
const DORA: With = With { rank: 3, magnitude: true, ..BARE };
pub(crate) const FULL: With = With { bias: true, rank: 3, b_bias: true, dropout: 0.3, options: ALL, ..BARE };

pub(crate) fn inputs(with: With, [tokens, dim, vocab]: [usize; 3]) -> Vec<Input> {
    let scale = 1.0 / (dim as f32).sqrt();
    let weight = Input { dtype: with.dtype, ..Input::new("weight", &[vocab, dim], 2.0 * scale) };
    let mut all = vec![Input::new("hidden", &[tokens, dim], 1.0), weight];
    if with.bias {
        all.push(Input::new("bias", &[vocab], 0.5));
    }
    if with.rank > 0 {
        all.push(Input::new("a", &[with.rank, dim], scale));
        all.push(Input::new("b", &[vocab, with.rank], 0.5));
        if with.b_bias {
            all.push(Input::new("b_bias", &[vocab], 0.5));
        }
        if with.magnitude {
            all.push(Input { shift: 1.5, ..Input::new("m", &[vocab], 0.5) });
        }
    }
    all
}

pub(crate) fn linear(with: With, tokens: usize, tensors: &[AnyTensor]) -> Linear {
    let mut tensors = tensors.iter().cloned();
    let mut next = || tensors.next().unwrap();
    let weight = next();
    let bias = with.bias.then(&mut next);
    let low_rank = (with.rank > 0).then(|| LowRank {
        a: next(),
        b: next(),
        b_bias: with.b_bias.then(&mut next),
        scale: 0.75,
        dropout: (with.dropout > 0.0).then(|| Dropout {
            key: Stream::new(4, "lm_head").dropout_key(),
            p: with.dropout,
            rows: Arc::new((100..100 + tokens as u64).collect()),
            first_column: 0,
        }),
        magnitude: with.magnitude.then(|| Magnitude { value: next(), norm: norms(weight.shape()[0]) }),
    });
    Linear { bias, low_rank, ..Linear::new(weight) }
}

pub(crate) fn targets(tokens: usize, vocab: usize) -> Arc<Vec<u32>> {
    Arc::new((0..tokens).map(|i| (i * 31 % vocab) as u32).collect())
}

fn log_probs(name: &str, with: With, dims: [usize; 3]) -> Case {
    let [tokens, _, vocab] = dims;
    let run = move |body: Body, t: &[AnyTensor]| -> Result<AnyTensor, OpsError> {
        let (head, targets) = (linear(with, tokens, &t[1..]), targets(tokens, vocab));
        let (out, stats) = match body {
            Body::Fused => head_log_probs(&t[0], &head, None, &targets, with.options),
            Body::Reference => reference::head_log_probs(&t[0], &head, None, &targets, with.options),
            Body::Gpu => gpu::head_log_probs(&t[0], &head, None, &targets, with.options),
        }?;
        // The tensor says what the statistics say.
        let stats: Vec<f64> = stats.log_prob.iter().chain(&stats.entropy).map(|&x| x.into()).collect();
        assert_close(&to_f64(&out), &stats, 1e-6, "statistics");
        Ok(out)
    };
    Case { name: format!("log_probs {name}, {dims:?}"), inputs: inputs(with, dims), run: Box::new(run) }
}

/// A loss whose coefficients depend on row and log-probability, as `[1, 1]`.
fn loss(name: &str, with: With, dims: [usize; 3]) -> Case {
    let [tokens, _, vocab] = dims;
    let run = move |body: Body, t: &[AnyTensor]| -> Result<AnyTensor, OpsError> {
        let (head, targets) = (linear(with, tokens, &t[1..]), targets(tokens, vocab));
        let (loss, stats) = match body {
            Body::Fused => head_loss(&t[0], &head, None, &targets, with.options, &coefficient(), value),
            Body::Reference => {
                reference::head_loss(&t[0], &head, None, &targets, with.options, &coefficient(), value)
            }
            Body::Gpu => gpu::head_loss(&t[0], &head, None, &targets, with.options, &coefficient(), value),
        }?;
        assert_eq!(stats.log_prob.len(), tokens);
        Ok(AnyTensor::new(loss.rank::<1>()?.reshape([1, 1])))
    };
    Case { name: format!("loss {name}, {dims:?}"), inputs: inputs(with, dims), run: Box::new(run) }
}

/// The likelihood, as `[1, 1]`.
fn nll(name: &str, with: With, dims: [usize; 3]) -> Case {
    const DENOMINATOR: f64 = 7.0;
    let [tokens, _, vocab] = dims;
    let run = move |body: Body, t: &[AnyTensor]| -> Result<AnyTensor, OpsError> {
        let (head, targets) = (linear(with, tokens, &t[1..]), targets(tokens, vocab));
        let (hidden, options) = (&t[0], with.options);
        let (loss, stats) = match body {
            Body::Fused => head_nll(hidden, &head, None, &targets, options, DENOMINATOR)?,
            Body::Gpu => gpu::head_nll(hidden, &head, None, &targets, options, DENOMINATOR)?,
            Body::Reference => {
                let coefficient: Coefficient = Arc::new(|_, _| (-1.0 / DENOMINATOR) as f32);
                let value = |stats: &TokenStats| {
                    (-stats.log_prob.iter().map(|&lp| f64::from(lp)).sum::<f64>() / DENOMINATOR) as f32
                };
                let (loss, stats) =
                    reference::head_loss(hidden, &head, None, &targets, options, &coefficient, value)?;
                (loss, stats.into())
            }
        };
        assert_eq!(stats.get().log_prob.len(), tokens);
        let sum = stats.get().log_prob.iter().map(|&lp| f64::from(lp)).sum::<f64>();
        assert_close(&to_f64(&loss), &[-sum / DENOMINATOR], 1e-5, "the loss is that of the statistics");
        Ok(AnyTensor::new(loss.rank::<1>()?.reshape([1, 1])))
    };
    Case { name: format!("nll {name}, {dims:?}"), inputs: inputs(with, dims), run: Box::new(run) }
}

pub(crate) fn coefficient() -> Coefficient {
    Arc::new(|row, lp| -lp.exp() * (1.0 + row as f32 % 5.0) / 16.0)
}

/// Not the antiderivative of the coefficients: the two are the caller's.
pub(crate) fn value(stats: &TokenStats) -> f32 {
    stats.log_prob.iter().sum::<f32>() / 16.0
}

fn variants() -> Vec<(&'static str, With)> {
    vec![
        ("bare", BARE),
        ("bias", With { bias: true, ..BARE }),
        ("softcap", With { options: HeadOptions { softcap: Some(1.5), ..PLAIN }, ..BARE }),
        ("temperature", With { options: HeadOptions { temperature: 1.7, ..PLAIN }, ..BARE }),
        ("logit scale", With { options: HeadOptions { logit_scale: 0.25, ..PLAIN }, ..BARE }),
        ("label smoothing", With { options: HeadOptions { label_smoothing: 0.1, ..PLAIN }, ..BARE }),
        ("low rank", With { rank: 2, ..BARE }),
        ("low rank, bias of B", With { rank: 1, b_bias: true, ..BARE }),
        ("everything", FULL),
        ("magnitude", DORA),
        ("magnitude, temperature", With { options: HeadOptions { temperature: 1.7, ..PLAIN }, ..DORA }),
        ("magnitude, smoothing", With { options: HeadOptions { label_smoothing: 0.4, ..PLAIN }, ..DORA }),
        ("magnitude, bf16", With { dtype: DType::BF16, ..DORA }),
        // Those that kernels leave to the plain body.
        ("magnitude, softcap", With { options: HeadOptions { softcap: Some(1.5), ..PLAIN }, ..DORA }),
        ("magnitude, dropout, bias", With { dropout: 0.3, bias: true, ..DORA }),
    ]
}

#[test]
fn kernels_are_the_reference() {
    let sixteen =
        [("bf16", With { dtype: DType::BF16, ..FULL }), ("f16", With { dtype: DType::F16, ..BARE })];
    for (name, with) in variants().into_iter().chain(sixteen) {
        // The reference goes by chunks of 256 tokens.
        for dims in [[1, 6, 5], [9, 19, 33], [300, 24, 150]] {
            log_probs(name, with, dims).agrees();
            loss(name, with, dims).agrees();
            nll(name, with, dims).agrees();
        }
    }
}

#[test]
fn the_reference_differentiates() {
    for (name, with) in variants() {
        log_probs(name, With { dtype: DType::F32, ..with }, [4, 3, 6]).differentiates();
    }
}

/// The loss' gradient is that of `sum c_i lp_i` with the coefficients held fixed.
#[test]
fn the_loss_uses_its_coefficients() {
    let dims = [4, 3, 6];
    let all = vec![true; inputs(FULL, dims).len()];
    let plain: Vec<AnyTensor> = inputs(FULL, dims)
        .iter()
        .map(|i| {
            AnyTensor::from_data(tensor(i.name, &i.shape).to_data().convert_dtype(DType::F64), &device())
        })
        .collect();
    let leaves: Vec<AnyTensor> = plain.iter().map(AnyTensor::leaf).collect();
    let fixed: Coefficient = Arc::new(|row, _| [0.5, -1.25, 2.0, 0.125][row]);
    let head = linear(FULL, 4, &leaves[1..]);
    let (loss, _) = head_loss(&leaves[0], &head, None, &targets(4, 6), ALL, &fixed, |_| 3.0).unwrap();
    assert_eq!((loss.to_f32(), loss.shape()), (vec![3.0], vec![1]));
    let mut gradients = loss.rank::<1>().unwrap().backward();

    let leaves_again: Vec<AnyTensor> = plain.iter().map(AnyTensor::leaf).collect();
    let head = linear(FULL, 4, &leaves_again[1..]);
    let (both, _) = head_log_probs(&leaves_again[0], &head, None, &targets(4, 6), ALL).unwrap();
    let weights: Tensor<2> = Tensor::from_data([[0.5, -1.25, 2.0, 0.125]], (&device(), DType::F64));
    let mut want = (both.rank::<2>().unwrap().narrow(0, 0, 1) * weights).sum().backward();
    for ((leaf, again), _) in leaves.iter().zip(&leaves_again).zip(&all) {
        let (got, want) =
            (leaf.take_gradient(&mut gradients).unwrap(), again.take_gradient(&mut want).unwrap());
        assert_close(&to_f64(&got), &to_f64(&want), DIFFERENCE, "gradient");
    }
}

#[test]
fn statistics_are_those_of_the_softmax() {
    for with in [BARE, FULL] {
        let dims = [7, 6, 11];
        let t: Vec<AnyTensor> = inputs(with, dims).iter().map(|i| tensor(i.name, &i.shape)).collect();
        let (head, targets) = (linear(with, 7, &t[1..]), targets(7, 11));
        let logits = head_logits(&t[0], &head, HeadOptions { temperature: 1.0, ..with.options }).unwrap();
        let (_, fused) = head_log_probs(&t[0], &head, None, &targets, with.options).unwrap();
        let (_, of_loss) =
            head_loss(&t[0], &head, None, &targets, with.options, &coefficient(), value).unwrap();
        let (_, reference) = reference::head_log_probs(&t[0], &head, None, &targets, with.options).unwrap();
        let (_, of_gpu) = gpu::head_log_probs(&t[0], &head, None, &targets, with.options).unwrap();
        for (row, logits) in logits.chunks(11).enumerate() {
            let z: Vec<f64> = logits.iter().map(|&z| f64::from(z / with.options.temperature)).collect();
            let sum: f64 = z.iter().map(|z| z.exp()).sum();
            let p: Vec<f64> = z.iter().map(|z| z.exp() / sum).collect();
            let target = targets[row] as usize;
            let want = [
                {
                    let mean = p.iter().map(|p| p.ln()).sum::<f64>() / 11.0;
                    let s = f64::from(with.options.label_smoothing);
                    (1.0 - s) * p[target].ln() + s * mean
                },
                -p.iter().map(|p| p * p.ln()).sum::<f64>(),
                p.iter().map(|p| p * p).sum::<f64>().ln(),
                z.iter().sum::<f64>() / 11.0,
            ];
            let top = (0..11).fold(0, |top, j| if z[j] > z[top] { j } else { top });
            for s in [&fused, &of_loss, &reference, &of_gpu] {
                let got = [s.log_prob[row], s.entropy[row], s.log_sum_sq_probs[row], s.mean_logit[row]];
                assert_close(&got.map(f64::from), &want, F32, &format!("row {row}"));
                assert_eq!(s.is_top1[row], top == target, "row {row}");
            }
        }
    }
}

#[test]
fn logits_agree() {
    let dims = [7, 6, 11];
    let t: Vec<AnyTensor> = inputs(FULL, dims).iter().map(|i| tensor(i.name, &i.shape)).collect();
    let head = linear(FULL, 7, &t[1..]);
    let wide = |v: Vec<f32>| v.into_iter().map(f64::from).collect::<Vec<f64>>();
    let want = wide(reference::head_logits(&t[0], &head, ALL).unwrap());
    for body in [head_logits, gpu::head_logits] {
        assert_close(&wide(body(&t[0], &head, ALL).unwrap()), &want, F32, "logits");
    }
}

#[test]
fn without_tokens_every_gradient_is_zero() {
    let dims = [0, 6, 11];
    let leaves =
        || -> Vec<AnyTensor> { inputs(FULL, dims).iter().map(|i| tensor(i.name, &i.shape).leaf()).collect() };
    let check = |leaves: &[AnyTensor], sum: Tensor<1>| {
        let mut gradients = sum.backward();
        for leaf in leaves {
            let zero = vec![0.0; leaf.shape().iter().product()];
            assert_eq!(leaf.take_gradient(&mut gradients).unwrap().to_f32(), zero);
        }
    };
    for body in [Body::Fused, Body::Reference, Body::Gpu] {
        let t = leaves();
        let head = linear(FULL, 0, &t[1..]);
        let of_loss = match body {
            Body::Fused => head_loss(&t[0], &head, None, &Arc::default(), ALL, &coefficient(), |_| 0.5),
            Body::Reference => {
                reference::head_loss(&t[0], &head, None, &Arc::default(), ALL, &coefficient(), |_| 0.5)
            }
            Body::Gpu => gpu::head_loss(&t[0], &head, None, &Arc::default(), ALL, &coefficient(), |_| 0.5),
        };
        let (loss, stats) = of_loss.unwrap();
        assert_eq!((loss.to_f32(), stats), (vec![0.5], TokenStats::default()));
        check(&t, loss.rank::<1>().unwrap());

        if body != Body::Reference {
            let t = leaves();
            let head = linear(FULL, 0, &t[1..]);
            let nll = if body == Body::Gpu { gpu::head_nll } else { head_nll };
            let (loss, stats) = nll(&t[0], &head, None, &Arc::default(), ALL, 0.0).unwrap();
            assert_eq!((loss.to_f32(), stats.get()), (vec![0.0], &TokenStats::default()));
            check(&t, loss.rank::<1>().unwrap());
        }

        let t = leaves();
        let head = linear(FULL, 0, &t[1..]);
        let both = match body {
            Body::Fused => head_log_probs(&t[0], &head, None, &Arc::default(), ALL),
            Body::Reference => reference::head_log_probs(&t[0], &head, None, &Arc::default(), ALL),
            Body::Gpu => gpu::head_log_probs(&t[0], &head, None, &Arc::default(), ALL),
        };
        let (both, _) = both.unwrap();
        assert_eq!(both.shape(), [2, 0]);
        check(&t, both.rank::<2>().unwrap().sum());
    }
}
