//! Streams between linears: sums, bounds, columns in another order or normed, learned activations, convolutions.

use std::sync::Arc;

use burn::tensor::DType;
use burnish_ops::{
    AnyTensor, ColumnNorm, ColumnOrder, ConvCache, Rotary, clamp, norm_columns, permute_columns, scaled_sum,
    short_conv, xielu,
};

use super::{Bound, check, itself, name_of};
use crate::Check;
use crate::case::{Body, Case, Input};

fn sum(residual: bool) -> Case {
    let mut inputs = vec![Input::new("x", &[65, 37], 1.0)];
    inputs.extend(residual.then(|| Input::new("residual", &[65, 37], 1.0)));
    itself(inputs, |t| scaled_sum(&t[0], 0.37, t.get(1)))
}

fn bounded(dtype: DType) -> Case {
    // A bound that is the same in every dtype.
    itself(vec![Input::new("x", &[33, 70], 1.0).held(dtype)], |t| clamp(&t[0], 0.75))
}

fn permuted(dtype: DType) -> Case {
    let order = ColumnOrder::new(&(0..70).map(|i| i * 3 % 70).collect::<Vec<_>>());
    let order = order.expect("invariant: 3 and 70 have no common divisor");
    itself(vec![Input::new("x", &[33, 70], 1.0).held(dtype)], move |t| permute_columns(&t[0], &order))
}

/// Of two runs of groups with columns between and behind them.
fn columns(dtype: DType, own: bool, centered: bool, turned: bool) -> Case {
    let (tokens, d) = (50, 12);
    let angles: Vec<f32> = (0..tokens * 8).map(|i| (i as f32 * 0.37).sin()).collect();
    let rotary = Rotary::new(Arc::new(angles), Arc::new((0..tokens as u32).rev().collect()), 8);
    let gains = |groups: usize| if own { vec![groups, d] } else { vec![d] };
    let mut inputs = vec![
        Input::new("x", &[tokens, 67], 1.0).held(dtype),
        Input::new("first", &gains(3), 0.3).shifted(1.0),
        Input::new("second", &gains(2), 0.3).shifted(1.0),
    ];
    if centered {
        inputs.extend([Input::new("bias", &gains(3), 0.3), Input::new("second bias", &gains(2), 0.3)]);
    }
    itself(inputs, move |t| {
        let bias = |at: usize| centered.then(|| t[at].clone());
        let norms = [
            ColumnNorm { first: 1, groups: 3, width: d, gamma: t[1].clone(), beta: bias(3) },
            ColumnNorm { first: 40, groups: 2, width: d, gamma: t[2].clone(), beta: bias(4) },
        ];
        norm_columns(&t[0], &norms, centered, 1e-3, turned.then_some(&rotary))
    })
}

fn learned(dtype: DType) -> Case {
    let inputs = vec![
        Input::new("x", &[40, 33], 2.0).held(dtype),
        Input::new("alpha_p", &[1], 0.5).shifted(0.3),
        Input::new("alpha_n", &[1], 0.5).shifted(-0.8),
    ];
    itself(inputs, |t| xielu(&t[0], &t[1], &t[2]))
}

fn convolved(dtype: DType, parents: &'static [Option<usize>]) -> Case {
    let inputs = vec![
        Input::new("bcx", &[60, 72], 1.0).held(dtype),
        Input::new("kernel", &[24, 1, 3], 1.0),
        Input::new("bias", &[24], 1.0),
    ];
    itself(inputs, move |t| short_conv(&t[0], &t[1], Some(&t[2]), &[0..31, 31..33, 33..58], parents))
}

/// Two sequences piece by piece over a cache, against both whole.
fn convolved_on() -> Case {
    let inputs = vec![
        Input::new("bcx", &[11, 72], 1.0).frozen(),
        Input::new("kernel", &[24, 1, 3], 1.0).frozen(),
        Input::new("bias", &[24], 1.0).frozen(),
    ];
    let run = |body: Body, t: &[AnyTensor]| {
        if body == Body::Reference {
            return short_conv(&t[0], &t[1], Some(&t[2]), &[0..7, 7..11], &[]);
        }
        let mut cache = ConvCache::new(3, 2);
        let mut parts = [Vec::new(), Vec::new()];
        for pieces in [[0..4, 7..8], [4..5, 8..9], [5..7, 9..11]] {
            let rows = super::rows_of(&t[0], &pieces)?;
            let (first, both) = (pieces[0].len(), pieces[0].len() + pieces[1].len());
            let y = cache.run(&rows, &t[1], Some(&t[2]), &vec![0..first, first..both].into())?.rank::<2>()?;
            parts[0].push(y.clone().narrow(0, 0, first));
            parts[1].push(y.narrow(0, first, both - first));
        }
        Ok(super::one_behind_the_other(parts))
    };
    Case { inputs, run: Box::new(run) }
}

pub(super) fn checks() -> Vec<Check> {
    let mut all = vec![
        check("scaled sum", Bound::Plain, || sum(false)),
        check("scaled sum, residual", Bound::Plain, || sum(true)),
        check("short convolution over a cache", Bound::Plain, convolved_on),
    ];
    for dtype in [DType::F32, DType::BF16] {
        let name = name_of(dtype);
        let bound = if dtype == DType::F32 { Bound::Plain } else { Bound::HalfActivations };
        all.push(check(format!("bounds, {name}"), bound, move || bounded(dtype)));
        all.push(check(format!("columns in another order, {name}"), bound, move || permuted(dtype)));
        all.push(check(format!("xIELU, {name}"), bound, move || learned(dtype)));
        for (of, own, centered, turned) in [
            ("shared gains", false, false, false),
            ("own gains, biases", true, true, false),
            ("turned before", true, false, true),
        ] {
            let title = format!("norms of columns, {of}, {name}");
            all.push(check(title, bound, move || columns(dtype, own, centered, turned)));
        }
        all.push(check(format!("short convolution, {name}"), bound, move || convolved(dtype, &[])));
        let parents = &[None, Some(0), Some(0)];
        let title = format!("short convolution, shared prompt, {name}");
        all.push(check(title, bound, move || convolved(dtype, parents)));
    }
    all
}
