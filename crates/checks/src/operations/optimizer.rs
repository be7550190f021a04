//! Checks of the optimizers' operations: Adam, Muon, orthogonalisation, norms of adapted weights.

use burn::tensor::{DType, Tensor};
use burnish_core::random::Stream;
use burnish_ops::{
    Adam, AdamState, AnyTensor, Momentum, NewtonSchulz, Noise, OpsError, Stacked, adam_step, column_norms,
    muon_adapt, muon_apply, muon_momentum, orthogonalize, reference, row_norms,
};

use super::{Bound, check, name_of};
use crate::Check;
use crate::case::{Body, Case, Input};

fn inputs(shape: &[usize], names: &[&'static str]) -> Vec<Input> {
    names.iter().map(|&name| Input::new(name, shape, 1.0).frozen()).collect()
}

/// Four steps with gradients of their own.
fn adam(decoupled: bool) -> Case {
    let run = move |body: Body, t: &[AnyTensor]| {
        let mut master = t[0].clone();
        let mut state: Option<AdamState> = None;
        for (at, gradient) in t[1..].iter().enumerate() {
            let (lr, weight_decay, step) = (0.05, 0.1, at as u64 + 1);
            let hyper = Adam {
                lr,
                beta1: 0.9,
                beta2: 0.99,
                eps: 1e-6,
                weight_decay,
                decoupled,
                step,
                grad_scale: 0.5,
            };
            let (next, held) = match body {
                Body::Device => adam_step(master, state, gradient, &hyper),
                Body::Reference => {
                    let zeros = || AnyTensor::new(Tensor::<2>::zeros_like(&t[0].rank().expect("a matrix")));
                    let state = state.unwrap_or_else(|| AdamState { exp_avg: zeros(), exp_avg_sq: zeros() });
                    reference::adam_step(master, state, gradient, &hyper)
                }
            };
            (master, state) = (next, Some(held));
        }
        Ok(master)
    };
    Case { inputs: inputs(&[37, 65], &["master", "g0", "g1", "g2", "g3"]), run: Box::new(run) }
}

/// Momentum, second moments and the update, three times.
fn muon() -> Case {
    let run = |body: Body, t: &[AnyTensor]| {
        let zeros = AnyTensor::new(Tensor::<2>::zeros_like(&t[0].rank()?));
        let (mut master, mut momentum, mut second) = (t[0].clone(), zeros.clone(), zeros);
        let noise = Noise { stream: Stream::new(5, "noise"), runs: std::iter::once(0..37 * 65).collect() };
        let step = Momentum { beta: 0.9, nesterov: true, grad_scale: 0.5 };
        for gradient in &t[1..] {
            let gradient = gradient.clone();
            let mut update;
            match body {
                Body::Device => {
                    (momentum, update) = muon_momentum(momentum, gradient, &step, &noise);
                    (update, second) = muon_adapt(update, second, 0.95, 1e-8);
                    master = muon_apply(master, &update, 0.99, 0.05);
                }
                Body::Reference => {
                    (momentum, update) = reference::muon_momentum(momentum, gradient, &step, &noise);
                    (update, second) = reference::muon_adapt(update, second, 0.95, 1e-8);
                    master = reference::muon_apply(master, &update, 0.99, 0.05);
                }
            }
        }
        Ok(master)
    };
    Case { inputs: inputs(&[37, 65], &["master", "g0", "g1", "g2"]), run: Box::new(run) }
}

fn orthogonal(shape: [usize; 2], blocks: Vec<usize>) -> Case {
    let run = move |body: Body, t: &[AnyTensor]| {
        let stack = Stacked { tensor: t[0].clone(), blocks: blocks.clone() };
        let iteration = NewtonSchulz::default();
        let done = match body {
            Body::Device => orthogonalize(vec![stack], &iteration),
            Body::Reference => reference::orthogonalize(vec![stack], &iteration),
        }?;
        done.into_iter().next().ok_or(OpsError::Rank { expected: 2, shape: vec![] })
    };
    Case { inputs: inputs(&shape, &["matrix"]), run: Box::new(run) }
}

fn norms(dtype: DType, columns: bool) -> Case {
    let [rows, width, rank] = [301, 70, 4];
    let (from, to) = if columns { (rows, width) } else { (width, rows) };
    let inputs = vec![
        Input::new("weight", &[rows, width], 0.3).held(dtype).frozen(),
        Input::new("a", &[rank, from], 0.3).frozen(),
        Input::new("b", &[to, rank], 0.5).frozen(),
    ];
    let run = move |body: Body, t: &[AnyTensor]| {
        let of = |squares: AnyTensor| -> Result<AnyTensor, OpsError> {
            Ok(AnyTensor::new(squares.rank::<1>()?.sqrt()))
        };
        let norms = match (body, columns) {
            (Body::Device, false) => row_norms(&t[0], &t[1], &t[2], 0.75),
            (Body::Device, true) => column_norms(&t[0], &t[1], &t[2], 0.75),
            (Body::Reference, false) => of(reference::squared_row_norms(&t[0], &t[1], &t[2], 0.75)?),
            (Body::Reference, true) => of(reference::squared_column_norms(&t[0], &t[1], &t[2], 0.75)?),
        }?;
        Ok(AnyTensor::new(norms.rank::<1>()?.unsqueeze::<2>()))
    };
    Case { inputs, run: Box::new(run) }
}

pub(super) fn checks() -> Vec<Check> {
    let mut all = vec![
        check("AdamW", Bound::Plain, || adam(true)),
        check("Adam, decay in the gradient", Bound::Plain, || adam(false)),
        check("Muon: momentum, second moments, update", Bound::Product, muon),
    ];
    for (name, shape, blocks) in
        [("wide", [48, 160], vec![48]), ("tall", [160, 48], vec![160]), ("blocks", [96, 64], vec![32, 64])]
    {
        // Five iterations, each of three products, enlarge what products round.
        all.push(check(format!("Newton-Schulz, {name}"), Bound::Iterated, move || {
            orthogonal(shape, blocks.clone())
        }));
    }
    for dtype in [DType::F32, DType::BF16] {
        let name = name_of(dtype);
        all.push(check(format!("norms of adapted rows, {name}"), Bound::of(dtype), move || {
            norms(dtype, false)
        }));
        all.push(check(format!("norms of adapted columns, {name}"), Bound::of(dtype), move || {
            norms(dtype, true)
        }));
    }
    all
}
