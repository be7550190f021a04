//! A router's choice: of each token its best experts with their weights, and the gradient of the logits.

use burnish_core::{RouterGroups, RouterRule, RouterScores};

/// Keeps a sum of weights from being zero.
const LEAST: f32 = 1e-20;

/// Which experts each token goes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Chosen {
    /// `[tokens, per_token]`: experts, the best first; of equal scores the one with the lower number.
    pub(crate) experts: Vec<u32>,
    /// `[tokens, per_token]`: what their outputs are multiplied by.
    pub(crate) weights: Vec<f32>,
}

/// A pull on probabilities beside that of the weights: that of an auxiliary loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterPull<'a> {
    /// `[experts]`: the gradient of each expert's probability (softmax of the logits), the same for each token.
    pub(crate) probability: &'a [f32],
    /// `[tokens]`: how often each token feels it.
    pub(crate) tokens: &'a [f32],
}

/// `softmax` of a row.
pub(crate) fn softmax(row: &[f32], to: &mut [f32]) {
    let top = row.iter().fold(f32::NEG_INFINITY, |top, &x| top.max(x));
    let mut sum = 0.0;
    for (to, &x) in to.iter_mut().zip(row) {
        *to = (x - top).exp();
        sum += *to;
    }
    to.iter_mut().for_each(|x| *x /= sum);
}

fn scores(rule: &RouterRule, row: &[f32], to: &mut [f32]) {
    match rule.scores {
        RouterScores::Softmax => softmax(row, to),
        RouterScores::Sigmoid | RouterScores::SigmoidByLogit => {
            to.iter_mut().zip(row).for_each(|(to, x)| *to = 1.0 / (1.0 + (-x).exp()))
        }
        // Experts are compared by their logits.
        RouterScores::SparseMixer { .. } => to.copy_from_slice(row),
    }
}

/// The probabilities that SparseMixer takes the last of `chosen` by: of the experts near it that none of those before is.
pub(crate) fn near(row: &[f32], chosen: &[u32], within: f32, to: &mut [f32]) {
    let Some((&top, before)) = chosen.split_last() else { return };
    let top = row[top as usize];
    for (e, (to, &x)) in to.iter_mut().zip(row).enumerate() {
        // What is no number is near, and shows.
        let far = (top - x) / x.abs().max(top) > within || before.contains(&(e as u32));
        *to = if far { f32::NEG_INFINITY } else { x };
    }
    let kept = to.to_vec();
    softmax(&kept, to);
}

/// The indices of the `count` largest, the largest first; of equals the first. What is no number comes last.
fn best(values: &[f32], count: usize, to: &mut Vec<u32>) {
    to.clear();
    let value = |i: usize| if values[i].is_nan() { f32::NEG_INFINITY } else { values[i] };
    let mut last: Option<usize> = None;
    for _ in 0..count.min(values.len()) {
        // Behind the last one found: smaller, or equal and further on.
        let behind =
            |i: usize| last.is_none_or(|last| value(i) < value(last) || value(i) == value(last) && i > last);
        let mut at: Option<usize> = None;
        for i in 0..values.len() {
            if behind(i) && at.is_none_or(|at| value(i) > value(at)) {
                at = Some(i);
            }
        }
        to.extend(at.map(|at| at as u32));
        last = at;
    }
}

/// Takes experts of all but the best groups out of the choice.
fn keep_groups(groups: &RouterGroups, choice: &mut [f32], of_group: &mut Vec<f32>, kept: &mut Vec<u32>) {
    let each = choice.len() / groups.count.max(1);
    of_group.clear();
    for group in choice.chunks_exact(each.max(1)) {
        best(group, groups.best, kept);
        of_group.push(kept.iter().map(|&i| group[i as usize]).sum());
    }
    best(of_group, groups.kept, kept);
    for (group, values) in choice.chunks_exact_mut(each.max(1)).enumerate() {
        if !kept.contains(&(group as u32)) {
            values.fill(f32::NEG_INFINITY);
        }
    }
}

/// The experts of each token from its logits `[tokens, experts]`; `bias` `[experts]` is added to scores where experts
/// are compared, and not to weights.
///
/// # Panics
/// If lengths do not fit, or there are fewer experts than a token has.
#[must_use]
pub(crate) fn route(experts: usize, rule: &RouterRule, logits: &[f32], bias: Option<&[f32]>) -> Chosen {
    let k = rule.per_token;
    assert!(experts > 0 && (1..=experts).contains(&k), "route: a token has {k} of {experts} experts");
    assert!(logits.len().is_multiple_of(experts), "route: `logits` is [tokens, experts]");
    assert!(bias.is_none_or(|bias| bias.len() == experts), "route: `bias` is [experts]");
    let tokens = logits.len() / experts;
    let mut chosen = Chosen { experts: vec![0; tokens * k], weights: vec![0.0; tokens * k] };
    let (mut score, mut choice) = (vec![0.0; experts], vec![0.0; experts]);
    let (mut of_group, mut found) = (Vec::new(), Vec::new());
    let rows = chosen.experts.chunks_exact_mut(k).zip(chosen.weights.chunks_exact_mut(k));
    for ((to, weights), row) in rows.zip(logits.chunks_exact(experts)) {
        scores(rule, row, &mut score);
        choice.copy_from_slice(if rule.scores == RouterScores::SigmoidByLogit { row } else { &score });
        if let Some(bias) = bias {
            choice.iter_mut().zip(bias).for_each(|(c, b)| *c += b);
        }
        if let Some(groups) = &rule.groups {
            keep_groups(groups, &mut choice, &mut of_group, &mut found);
        }
        best(&choice, k, &mut found);
        to.copy_from_slice(&found);
        if let RouterScores::SparseMixer { within } = rule.scores {
            for (j, weight) in weights.iter_mut().enumerate() {
                near(row, &found[..=j], within, &mut score);
                *weight = score[found[j] as usize] * rule.scale;
            }
            continue;
        }
        weights.iter_mut().zip(&found).for_each(|(w, &e)| *w = score[e as usize]);
        let sum: f32 = weights.iter().sum();
        let factor = if rule.renormalise { rule.scale / sum.max(LEAST) } else { rule.scale };
        weights.iter_mut().for_each(|w| *w *= factor);
    }
    chosen
}

/// Adds to the gradient of logits what that of their softmax brings.
fn through_softmax(probability: &[f32], d: &[f32], to: &mut [f32]) {
    let mean: f32 = probability.iter().zip(d).map(|(p, d)| p * d).sum();
    for ((to, p), d) in to.iter_mut().zip(probability).zip(d) {
        *to += p * (d - mean);
    }
}

/// The gradient of the logits `[tokens, experts]` from that of the weights of `chosen` experts.
///
/// # Panics
/// If lengths do not fit.
#[must_use]
pub(crate) fn route_backward(
    experts: usize,
    rule: &RouterRule,
    logits: &[f32],
    chosen: &[u32],
    dweights: Option<&[f32]>,
    pull: Option<RouterPull<'_>>,
) -> Vec<f32> {
    let k = rule.per_token;
    let tokens = logits.len() / experts;
    assert_eq!(chosen.len(), tokens * k, "route: `chosen` is [tokens, per_token]");
    assert!(dweights.is_none_or(|d| d.len() == chosen.len()), "route: `dweights` is [tokens, per_token]");
    assert!(
        pull.is_none_or(|pull| pull.probability.len() == experts && pull.tokens.len() == tokens),
        "route: a pull is of [experts] and [tokens]"
    );
    let mut gradient = vec![0.0; logits.len()];
    let (mut score, mut ds, mut own) = (vec![0.0; experts], vec![0.0; experts], vec![0.0; k]);
    let rows = gradient.chunks_exact_mut(experts).zip(logits.chunks_exact(experts));
    for (token, ((to, row), chosen)) in rows.zip(chosen.chunks_exact(k)).enumerate() {
        ds.fill(0.0);
        scores(rule, row, &mut score);
        let dw = dweights.map(|dweights| &dweights[token * k..(token + 1) * k]);
        if let (Some(dw), false) = (dw, matches!(rule.scores, RouterScores::SparseMixer { .. })) {
            own.iter_mut().zip(chosen).for_each(|(s, &e)| *s = score[e as usize]);
            let sum: f32 = own.iter().sum::<f32>().max(LEAST);
            let (factor, mean) = if rule.renormalise {
                let mean = own.iter().zip(dw).map(|(s, d)| s * d).sum::<f32>() / sum;
                (rule.scale / sum, mean)
            } else {
                (rule.scale, 0.0)
            };
            for (&e, d) in chosen.iter().zip(dw) {
                ds[e as usize] += factor * (d - mean);
            }
        }
        match rule.scores {
            RouterScores::Softmax => through_softmax(&score, &ds, to),
            RouterScores::Sigmoid | RouterScores::SigmoidByLogit => {
                for ((to, s), d) in to.iter_mut().zip(&score).zip(&ds) {
                    *to += d * s * (1.0 - s);
                }
            }
            RouterScores::SparseMixer { within } => {
                for (j, d) in dw.into_iter().flatten().enumerate() {
                    near(row, &chosen[..=j], within, &mut score);
                    ds[chosen[j] as usize] = rule.scale * d;
                    through_softmax(&score, &ds, to);
                    ds[chosen[j] as usize] = 0.0;
                }
            }
        }
        if let Some(pull) = pull {
            softmax(row, &mut score);
            ds.iter_mut().zip(pull.probability).for_each(|(d, p)| *d = pull.tokens[token] * p);
            through_softmax(&score, &ds, to);
        }
    }
    gradient
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: RouterRule = RouterRule {
        per_token: 2,
        scores: RouterScores::Softmax,
        renormalise: true,
        scale: 1.0,
        groups: None,
    };

    fn logits(tokens: usize, experts: usize) -> Vec<f32> {
        (0..tokens * experts).map(|i| ((i * 7919) % 101) as f32 / 25.0 - 2.0).collect()
    }

    #[test]
    fn the_best_are_chosen_and_equals_by_number() {
        let chosen = route(4, &RULE, &[1.0, 3.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0], None);
        assert_eq!(chosen.experts, [1, 2, 0, 1]);
        assert!(chosen.weights.iter().all(|w| (w - 0.5).abs() < 1e-6));
        // A bias chooses, and does not weigh.
        let biased = route(4, &RULE, &[1.0, 3.0, 3.0, 2.0], Some(&[0.0, 0.0, -1.0, 1.0]));
        assert_eq!(biased.experts, [3, 1]);
        assert!(biased.weights[0] < biased.weights[1]);
        // What is no number chooses something, and shows.
        let lost = route(4, &RULE, &[f32::NAN; 4], None);
        assert!(lost.experts == [0, 1] && lost.weights.iter().all(|w| w.is_nan()));
    }

    #[test]
    fn groups_limit_the_choice() {
        let groups = RouterGroups { count: 3, kept: 1, best: 2 };
        let rule = RouterRule { groups: Some(groups), scores: RouterScores::Sigmoid, ..RULE };
        // The best single expert stands in a group whose best two are not.
        let chosen = route(6, &rule, &[3.0, -9.0, 2.0, 1.5, 1.0, 1.0], None);
        assert_eq!(chosen.experts, [2, 3]);
        let by_one = RouterRule { groups: Some(RouterGroups { best: 1, ..groups }), ..rule };
        assert_eq!(route(6, &by_one, &[3.0, -9.0, 2.0, 1.5, 1.0, 1.0], None).experts, [0, 1]);
    }

    #[test]
    fn a_sparse_mixer_weighs_an_expert_among_those_near_it() {
        let rule =
            RouterRule { scores: RouterScores::SparseMixer { within: 0.02 }, renormalise: false, ..RULE };
        // 2% of the best is near; the next is compared with those that are left.
        let chosen = route(4, &rule, &[2.0, 1.97, 1.0, 1.5], None);
        assert_eq!(chosen.experts, [0, 1]);
        assert!((chosen.weights[0] - 1.0 / (1.0 + (-0.03_f32).exp())).abs() < 1e-6, "{chosen:?}");
        assert_eq!(chosen.weights[1], 1.0);
        // Of negative logits distance is measured by their own size.
        let below = route(3, &rule, &[-1.0, -1.01, -2.0], None);
        assert!(below.experts == [0, 1] && below.weights[0] < 0.51, "{below:?}");
    }

    /// Against differences of the weights' sum, weighted.
    #[test]
    fn the_gradient_equals_finite_differences() {
        let (tokens, experts) = (5, 6);
        let mixer = RouterScores::SparseMixer { within: 0.7 };
        for scores in [RouterScores::Softmax, RouterScores::Sigmoid, RouterScores::SigmoidByLogit, mixer] {
            for renormalise in [false, true] {
                let rule = RouterRule { scores, renormalise, scale: 1.5, ..RULE };
                let x = logits(tokens, experts);
                let chosen = route(experts, &rule, &x, None);
                let dw: Vec<f32> = (0..tokens * 2).map(|i| (i as f32 * 0.7).sin()).collect();
                let (pulls, feels) = ([0.3_f32, -0.2, 0.1, 0.0, 0.5, -0.4], [1.0_f32, 0.0, 3.0, 1.0, 0.0]);
                let pull = RouterPull { probability: &pulls, tokens: &feels };
                let got = route_backward(experts, &rule, &x, &chosen.experts, Some(&dw), Some(pull));
                let value = |x: &[f32]| -> f64 {
                    let again = route(experts, &rule, x, None);
                    assert_eq!(again.experts, chosen.experts);
                    let own: f64 = again.weights.iter().zip(&dw).map(|(w, d)| f64::from(w * d)).sum();
                    let mut p = vec![0.0; experts];
                    let pulled: f64 = (0..tokens)
                        .map(|t| {
                            softmax(&x[t * experts..(t + 1) * experts], &mut p);
                            p.iter().zip(&pulls).map(|(p, c)| f64::from(feels[t] * p * c)).sum::<f64>()
                        })
                        .sum();
                    own + pulled
                };
                for i in 0..x.len() {
                    let step = 4e-3_f32;
                    let moved = |by: f32| {
                        let mut x = x.clone();
                        x[i] += by;
                        value(&x)
                    };
                    let want = (moved(step) - moved(-step)) / (2.0 * f64::from(step));
                    assert!(
                        (f64::from(got[i]) - want).abs() < 2e-4,
                        "{rule:?} at {i}: {} not {want}",
                        got[i]
                    );
                }
            }
        }
    }
}
