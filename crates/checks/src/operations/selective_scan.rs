//! The selective scan of Mamba-1.

use burn::tensor::DType;
use burnish_ops::{AnyTensor, Documents, RecurrentStates, SelectiveScan, selective_scan};

use super::{Bound, check, itself, name_of, one_behind_the_other, rows_of};
use crate::Check;
use crate::case::{Body, Case, Input};

fn scan(t: &[AnyTensor]) -> SelectiveScan {
    let [x, steps, log_rates, b, c, skip] = [0, 1, 2, 3, 4, 5].map(|i| t[i].clone());
    SelectiveScan { x, steps, log_rates, b, c, skip }
}

fn inputs(dtype: DType, tokens: usize, channels: usize, states: usize) -> Vec<Input> {
    vec![
        Input::new("x", &[tokens, channels], 1.0).held(dtype),
        Input::new("steps", &[tokens, channels], 2.0).shifted(-1.0).held(dtype),
        Input::new("log_rates", &[channels, states], 0.7).shifted(-0.5),
        Input::new("b", &[tokens, states], 1.0).held(dtype),
        Input::new("c", &[tokens, states], 1.0).held(dtype),
        Input::new("skip", &[channels], 0.5).shifted(1.0),
    ]
}

fn walked(dtype: DType, channels: usize, states: usize, parents: &'static [Option<usize>]) -> Case {
    let texts = Documents::from(vec![0..39, 40..43, 43..43, 43..77]);
    itself(inputs(dtype, 80, channels, states), move |t| selective_scan(&scan(t), &texts, parents))
}

/// Two sequences piece by piece, against both whole.
fn walked_on() -> Case {
    let inputs = inputs(DType::F32, 11, 40, 16).into_iter().map(Input::frozen).collect();
    let run = |body: Body, t: &[AnyTensor]| {
        if body == Body::Reference {
            return selective_scan(&scan(t), &Documents::from(vec![0..7, 7..11]), &[]);
        }
        let mut states = RecurrentStates::new(2);
        let mut parts = [Vec::new(), Vec::new()];
        for pieces in [[0..4, 7..8], [4..5, 8..9], [5..7, 9..11]] {
            let (first, both) = (pieces[0].len(), pieces[0].len() + pieces[1].len());
            let mut own = t.to_vec();
            for of_tokens in [0, 1, 3, 4] {
                own[of_tokens] = rows_of(&t[of_tokens], &pieces)?;
            }
            let y = states
                .selective_scan(&scan(&own), &Documents::from(vec![0..first, first..both]))?
                .rank::<2>()?;
            parts[0].push(y.clone().narrow(0, 0, first));
            parts[1].push(y.narrow(0, first, both - first));
        }
        Ok(one_behind_the_other(parts))
    };
    Case { inputs, run: Box::new(run) }
}

pub(super) fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    for (of, channels, states, parents) in [
        ("16 states", 72, 16, &[][..]),
        ("shared prompt", 33, 16, &[None, Some(0), Some(0), Some(2)][..]),
        ("one state", 40, 1, &[]),
        ("five states", 5, 5, &[]),
        ("70 states", 8, 70, &[]),
    ] {
        let title = format!("selective scan, {of}");
        all.push(check(title, Bound::Chained, move || walked(DType::F32, channels, states, parents)));
    }
    let title = format!("selective scan, {}", name_of(DType::BF16));
    all.push(check(title, Bound::HalfActivations, || walked(DType::BF16, 72, 16, &[])));
    all.push(check("selective scan, states that are held", Bound::Chained, walked_on));
    all
}
