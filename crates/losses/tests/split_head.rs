//! Losses on a head that is split over ranks are those on the whole one.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::TensorData;
use burnish_comm::{Bucket, Group, local};
use burnish_losses::{LossOutput, TokenLoss, TokenLossOptions, token_loss};
use burnish_ops::{AnyTensor, HeadOptions, VocabShard};

use crate::problem::{Problem, Tensors, assert_close};

/// A group's ranks split the vocabulary.
fn across(group: Group) -> impl Fn(&[f32]) -> Vec<f32> + Send + Sync {
    move |own| {
        let counts = vec![own.len(); group.size()];
        let all = group.all_gather_v(Bucket::new(own.to_vec()), &counts, "the head's parts").wait();
        all.unwrap().concat().into_vec()
    }
}

/// A leaf that holds some rows.
fn rows(t: &AnyTensor, own: &Range<usize>) -> AnyTensor {
    let mut shape = t.shape();
    let width: usize = shape[1..].iter().product();
    shape[0] = own.len();
    let values = t.to_f32()[own.start * width..own.end * width].to_vec();
    AnyTensor::from_data(TensorData::new(values, shape), &t.device()).leaf()
}

fn targets(problem: &Problem) -> Arc<Vec<u32>> {
    // Rows without a label are given entry 0.
    Arc::new(problem.labels().into_iter().map(Option::unwrap_or_default).collect())
}

type Gradients = Vec<(&'static str, Option<Vec<f32>>)>;

fn run(
    problem: &Problem,
    kind: TokenLoss,
    tensors: &Tensors,
    shard: Option<&VocabShard>,
) -> (LossOutput, Gradients) {
    let denominator = problem.tokens as f64;
    let (hidden, head, targets) = (&tensors.hidden, tensors.head(), targets(problem));
    let options = TokenLossOptions { head: problem.options, shard, denominator: Some(denominator) };
    let out = token_loss(kind, hidden, &head, &targets, &options).unwrap();
    let mut gradients = out.loss.rank::<1>().unwrap().backward();
    (out, tensors.gradients(&mut gradients))
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x.into()).collect()
}

fn check(problem: &Problem, kind: TokenLoss, counts: &[usize]) {
    let label = format!("{kind:?} {problem:?} split {counts:?}");
    let (whole, want) = run(problem, kind, &problem.tensors(), None);
    let ranks = local::run(counts.len(), |world| {
        let group = world.group();
        let shard = VocabShard::new(counts, group.rank(), Arc::new(across(group))).unwrap();
        let (own, all) = (shard.rows(), problem.tensors());
        let tensors = Tensors {
            weight: rows(&all.weight, &own),
            hidden: all.hidden,
            bias: all.bias.map(|b| rows(&b, &own)),
            low_rank: all.low_rank.map(|(a, b)| (a, rows(&b, &own))),
        };
        run(problem, kind, &tensors, Some(&shard))
    });
    let ranks: Vec<(LossOutput, Gradients)> = ranks.into_iter().map(|r| r.unwrap()).collect();

    for (out, _) in &ranks {
        assert_eq!(out.loss.to_f32(), ranks[0].0.loss.to_f32(), "{label}");
        assert_eq!(
            (out.facts.tally(), out.facts.stats()),
            (ranks[0].0.facts.tally(), ranks[0].0.facts.stats()),
            "{label}"
        );
    }
    let out = &ranks[0].0;
    assert_close(&out.loss.to_f32(), &wide(&whole.loss.to_f32()), 1e-6, &format!("{label}: loss"));
    assert_close(
        &out.facts.stats().log_prob,
        &wide(&whole.facts.stats().log_prob),
        1e-6,
        &format!("{label}: log_prob"),
    );
    assert_close(
        &out.facts.stats().entropy,
        &wide(&whole.facts.stats().entropy),
        1e-6,
        &format!("{label}: entropy"),
    );
    assert_eq!(out.facts.stats().is_top1, whole.facts.stats().is_top1, "{label}");
    for name in ["loss", "entropy"] {
        let (got, want) = (out.facts.tally().mean(name).unwrap(), whole.facts.tally().mean(name).unwrap());
        assert!((got - want).abs() < 1e-6, "{label}: {name} is {got}, not {want}");
    }
    assert_eq!(
        out.facts.tally().sums("mean_token_accuracy"),
        whole.facts.tally().sums("mean_token_accuracy"),
        "{label}"
    );

    for (i, (name, want)) in want.iter().enumerate() {
        let parts: Vec<&Vec<f32>> = ranks.iter().map(|(_, g)| g[i].1.as_ref().unwrap()).collect();
        let got: Vec<f32> = if ["hidden", "a"].contains(name) {
            (0..parts[0].len()).map(|e| parts.iter().map(|p| p[e]).sum()).collect()
        } else {
            parts.into_iter().flatten().copied().collect()
        };
        assert_close(&got, &wide(want.as_ref().unwrap()), 1e-6, &format!("{label}: gradient of {name}"));
    }
}

#[test]
fn losses_tallies_and_gradients_are_those_of_the_whole_head() {
    let capped =
        HeadOptions { temperature: 0.8, softcap: Some(3.0), logit_scale: 1.25, label_smoothing: 0.15 };
    let plain = Problem { tokens: 150, ..Problem::new() };
    let full = Problem { bias: true, rank: Some(4), options: capped, ..plain.clone() };
    for kind in [TokenLoss::Nll, TokenLoss::Dft] {
        for problem in [&plain, &full] {
            let counts: [&[usize]; 5] =
                [&[51, 50], &[34, 34, 33], &[26, 25, 25, 25], &[80, 0, 21], &[0, 7, 94, 0]];
            for counts in counts {
                check(problem, kind, counts);
            }
        }
    }
}
