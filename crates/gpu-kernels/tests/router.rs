use burnish_core::{RouterGroups, RouterRule, RouterScores};
use burnish_gpu_kernels::{
    Buffer, Client, FloatType, choose_experts, choose_experts_backward, chooses_experts, probability_sums,
};

use crate::on_device::{
    client, close, download, dtypes, in_f64, numbers, rounded, rounding, upload, upload_integers,
};

const LEAST: f64 = 1e-20;
const TOKENS: [usize; 3] = [1, 3, 70];

/// What is no number counts as the least.
fn value(x: f64) -> f64 {
    if x.is_nan() { f64::NEG_INFINITY } else { x }
}

/// Indices of the largest, of equals the first before others.
fn best(values: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| value(values[b]).partial_cmp(&value(values[a])).unwrap());
    order.truncate(count);
    order
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let top = row.iter().fold(f64::NEG_INFINITY, |top, &x| top.max(x));
    let sum: f64 = row.iter().map(|x| (x - top).exp()).sum();
    row.iter().map(|x| (x - top).exp() / sum).collect()
}

fn scores(rule: &RouterRule, row: &[f64]) -> Vec<f64> {
    match rule.scores {
        RouterScores::Softmax => softmax(row),
        RouterScores::Sigmoid | RouterScores::SigmoidByLogit => {
            row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect()
        }
        RouterScores::SparseMixer { .. } => row.to_vec(),
    }
}

/// The probabilities of experts near the last of `chosen`, without those before; what is near is told in f32.
fn near(row: &[f64], chosen: &[usize], within: f32) -> Vec<f64> {
    let (&last, before) = chosen.split_last().unwrap();
    let top = row[last] as f32;
    let keep = |(e, &x): (usize, &f64)| {
        let one = x as f32;
        let far = (top - one) / one.abs().max(top) > within || before.contains(&e);
        if far { f64::NEG_INFINITY } else { x }
    };
    softmax(&row.iter().enumerate().map(keep).collect::<Vec<_>>())
}

/// One token's experts and weights.
fn choice(rule: &RouterRule, row: &[f64], bias: Option<&[f32]>) -> (Vec<usize>, Vec<f64>) {
    let scores = scores(rule, row);
    let by_logit = rule.scores == RouterScores::SigmoidByLogit;
    let mut compared = if by_logit { row.to_vec() } else { scores.clone() };
    for (x, &b) in compared.iter_mut().zip(bias.into_iter().flatten()) {
        *x += f64::from(b);
    }
    if let Some(groups) = rule.groups {
        let each = row.len() / groups.count;
        let of_group = |group: &[f64]| best(group, groups.best).iter().map(|&i| group[i]).sum();
        let sums: Vec<f64> = compared.chunks(each).map(of_group).collect();
        let kept = best(&sums, groups.kept);
        for (group, values) in compared.chunks_mut(each).enumerate() {
            if !kept.contains(&group) {
                values.fill(f64::NEG_INFINITY);
            }
        }
    }
    let chosen = best(&compared, rule.per_token);
    let scale = f64::from(rule.scale);
    if let RouterScores::SparseMixer { within } = rule.scores {
        let weight = |j: usize| near(row, &chosen[..=j], within)[chosen[j]] * scale;
        let weights = (0..chosen.len()).map(weight).collect();
        return (chosen, weights);
    }
    let sum: f64 = chosen.iter().map(|&e| scores[e]).sum();
    let factor = if rule.renormalise { scale / sum.max(LEAST) } else { scale };
    let weights = chosen.iter().map(|&e| scores[e] * factor).collect();
    (chosen, weights)
}

/// The gradient of one token's logits.
fn gradient(
    rule: &RouterRule,
    row: &[f64],
    chosen: &[usize],
    dw: Option<&[f32]>,
    pull: Option<&[f32]>,
) -> Vec<f64> {
    let mut to = vec![0.0; row.len()];
    let through = |to: &mut [f64], p: &[f64], d: &[f64]| {
        let mean: f64 = p.iter().zip(d).map(|(p, d)| p * d).sum();
        (0..p.len()).for_each(|e| to[e] += p[e] * (d[e] - mean));
    };
    let scale = f64::from(rule.scale);
    let own = scores(rule, row);
    if let Some(dw) = dw.map(in_f64) {
        let sum = chosen.iter().map(|&e| own[e]).sum::<f64>().max(LEAST);
        let dot: f64 = chosen.iter().zip(&dw).map(|(&e, d)| own[e] * d).sum();
        let mut d = vec![0.0; row.len()];
        for (&e, dw) in chosen.iter().zip(&dw) {
            d[e] = if rule.renormalise { scale / sum * (dw - dot / sum) } else { scale * dw };
        }
        match rule.scores {
            RouterScores::Softmax => through(&mut to, &own, &d),
            RouterScores::Sigmoid | RouterScores::SigmoidByLogit => {
                (0..d.len()).for_each(|e| to[e] += d[e] * own[e] * (1.0 - own[e]))
            }
            RouterScores::SparseMixer { within } => {
                for (j, dw) in dw.iter().enumerate() {
                    let mut d = vec![0.0; row.len()];
                    d[chosen[j]] = scale * dw;
                    through(&mut to, &near(row, &chosen[..=j], within), &d);
                }
            }
        }
    }
    if let Some(pull) = pull {
        through(&mut to, &softmax(row), &in_f64(pull));
    }
    to
}

/// Rows of numbers; of some many are equal, of some a few or all are not finite.
fn logits(dtype: FloatType, tokens: usize, experts: usize) -> Vec<f32> {
    let mut all: Vec<f32> = numbers(dtype, tokens * experts, 3).iter().map(|x| x * 4.0).collect();
    for (token, row) in all.chunks_mut(experts).enumerate() {
        for (e, x) in row.iter_mut().enumerate() {
            match token {
                8 => *x = if e % 2 == 0 { 0.0 } else { -0.0 },
                11 => *x = f32::NAN,
                14 if e % 3 == 1 => *x = f32::NAN,
                17 if e % 2 == 0 => *x = f32::NEG_INFINITY,
                20 => *x = f32::NEG_INFINITY,
                _ if token % 2 == 1 => *x = (*x * 2.0).round() / 2.0,
                _ => *x = rounded(dtype, *x),
            }
        }
    }
    all
}

/// [`close`], row by row; no numbers are where none are expected.
#[track_caller]
fn close_rows(what: &str, got: &[f32], expected: &[f64], columns: usize, bound: f64, least: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (row, (got, expected)) in got.chunks(columns).zip(expected.chunks(columns)).enumerate() {
        let largest = expected.iter().filter(|e| e.is_finite()).fold(0.0f64, |a, b| a.max(b.abs()));
        for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
            assert_eq!(got.is_nan(), expected.is_nan(), "{what}[{row}][{i}]: {got}, not {expected}");
            let allowed = bound * expected.abs().max(largest / 100.0).max(least);
            let error = (f64::from(got) - expected).abs();
            assert!(
                expected.is_nan() || error <= allowed,
                "{what}[{row}][{i}]: {got}, not {expected} ({error:e} > {allowed:e})"
            );
        }
    }
}

fn integers(client: &Client, values: &Buffer) -> Vec<u32> {
    download(client, values).iter().map(|x| x.to_bits()).collect()
}

/// Choices, weights and gradients of a rule. Of gradients those of weights and of probabilities apart too, where it is `each`.
fn check(experts: usize, rule: &RouterRule, biased: bool, dtype: FloatType, each: bool) {
    let client = client();
    assert!(chooses_experts(&client, experts, rule), "{rule:?} of {experts}");
    let bias: Vec<f32> = numbers(FloatType::F32, experts, 5).iter().map(|x| x / 4.0).collect();
    let bias_at = upload(&client, FloatType::F32, &bias);
    let (bias, bias_at) = if biased { (Some(&bias[..]), Some(&bias_at)) } else { (None, None) };
    let pull = numbers(FloatType::F32, experts, 6);
    let pull_at = upload(&client, FloatType::F32, &pull);
    for tokens in TOKENS {
        let what = format!("{tokens} of {experts} {rule:?} {biased} {dtype:?}");
        let x = logits(dtype, tokens, experts);
        let x_at = upload(&client, dtype, &x);
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for row in x.chunks(experts) {
            let (chosen, of_row) = choice(rule, &in_f64(row), bias);
            ids.push(chosen);
            weights.extend(of_row);
        }
        let flat: Vec<u32> = ids.iter().flatten().map(|&e| e as u32).collect();
        let got = choose_experts(&client, &x_at, bias_at, experts, rule);
        assert_eq!(integers(&client, &got.experts), flat, "{what}");
        close_rows(&what, &download(&client, &got.weights), &weights, rule.per_token, 2e-5, 1e-6);

        let dw = numbers(FloatType::F32, flat.len(), 7);
        let dw_at = upload(&client, FloatType::F32, &dw);
        let chosen_at = upload_integers(&client, &flat);
        let kinds = if each { &[(true, false), (false, true), (true, true)][..] } else { &[(true, true)] };
        for &(weighted, pulled) in kinds {
            let mut expected = Vec::new();
            for ((row, chosen), dw) in x.chunks(experts).zip(&ids).zip(dw.chunks(rule.per_token)) {
                let (dw, pull) = (weighted.then_some(dw), pulled.then_some(&pull[..]));
                expected.extend(gradient(rule, &in_f64(row), chosen, dw, pull));
            }
            let got = choose_experts_backward(
                &client,
                &x_at,
                &chosen_at,
                weighted.then_some(&dw_at),
                pulled.then_some(&pull_at),
                experts,
                rule,
            );
            // What is left of a weight's gradient behind the mean's may be little.
            let least = if rule.renormalise { 0.1 } else { 0.01 };
            close_rows(
                &format!("{what} gradient {weighted} {pulled}"),
                &download(&client, &got),
                &expected,
                experts,
                2e-5 + rounding(dtype),
                least,
            );
        }
    }
}

fn rule(per_token: usize, scores: RouterScores, renormalise: bool) -> RouterRule {
    RouterRule { per_token, scores, renormalise, scale: 1.5, groups: None }
}

#[test]
fn softmax_chooses_and_weighs_as_in_f64() {
    for (experts, k, renormalise, biased) in [
        (1, 1, true, false),
        (2, 1, false, true),
        (4, 2, true, true),
        (6, 4, false, false),
        (8, 8, true, false),
        (60, 4, false, true),
        (64, 8, true, false),
        (128, 8, true, false),
        (512, 8, true, false),
    ] {
        let rule = rule(k, RouterScores::Softmax, renormalise);
        for &dtype in dtypes().iter().filter(|&&dtype| dtype == FloatType::F32 || [4, 128].contains(&experts))
        {
            check(experts, &rule, biased, dtype, experts == 6);
        }
    }
}

#[test]
fn sigmoids_choose_and_weigh_as_in_f64() {
    for (experts, k, renormalise, biased) in
        [(1, 1, false, false), (6, 2, true, false), (160, 8, false, true)]
    {
        for scores in [RouterScores::Sigmoid, RouterScores::SigmoidByLogit] {
            check(experts, &rule(k, scores, renormalise), biased, FloatType::F32, experts == 6);
        }
    }
}

#[test]
fn sparse_mixers_choose_and_weigh_as_in_f64() {
    for (experts, k, within, biased) in
        [(1, 1, 0.1, false), (4, 4, 0.5, false), (16, 2, 0.02, false), (60, 2, 0.3, true)]
    {
        let rule = rule(k, RouterScores::SparseMixer { within }, experts == 4);
        check(experts, &rule, biased, FloatType::F32, experts == 16);
    }
}

#[test]
fn groups_limit_the_choice_as_in_f64() {
    for (experts, k, scores, [count, kept, best], biased) in [
        (6, 2, RouterScores::Sigmoid, [3, 1, 2], false),
        (6, 4, RouterScores::Softmax, [6, 2, 2], false),
        (60, 4, RouterScores::Softmax, [6, 3, 1], false),
        (160, 6, RouterScores::Softmax, [8, 3, 1], false),
        (256, 8, RouterScores::Sigmoid, [8, 4, 2], true),
    ] {
        let groups = Some(RouterGroups { count, kept, best });
        let rule = RouterRule { groups, ..rule(k, scores, true) };
        check(experts, &rule, biased, FloatType::F32, false);
    }
}

#[test]
fn many_experts_are_chosen_of_1024() {
    let rule = rule(32, RouterScores::Softmax, true);
    check(1024, &rule, false, FloatType::F32, false);
    let client = client();
    assert!(!chooses_experts(&client, 1025, &rule) && !chooses_experts(&client, 16, &rule));
    let groups = |count| Some(RouterGroups { count, kept: 1, best: 1 });
    assert!(chooses_experts(&client, 1024, &RouterRule { groups: groups(32), ..rule }));
    assert!(!chooses_experts(&client, 1024, &RouterRule { groups: groups(64), ..rule }));
    assert!(!chooses_experts(&client, 100, &RouterRule { groups: groups(7), ..rule }));
}

#[test]
fn probabilities_are_summed_over_tokens() {
    let client = client();
    for (experts, tokens) in [(1, 70), (6, 300), (60, 3), (128, 1), (128, 70), (512, 600)] {
        for &dtype in dtypes() {
            let x: Vec<f32> = numbers(dtype, tokens * experts, 9).iter().map(|x| x * 4.0).collect();
            let mut expected = vec![0.0; experts];
            for row in x.chunks(experts) {
                expected.iter_mut().zip(softmax(&in_f64(row))).for_each(|(sum, p)| *sum += p);
            }
            let x_at = upload(&client, dtype, &x);
            let what = format!("{tokens} of {experts} in {dtype:?}");
            let got = download(&client, &probability_sums(&client, &x_at, experts));
            close(&what, &got, &expected, 2e-5);
            assert_eq!(download(&client, &probability_sums(&client, &x_at, experts)), got, "{what}");
        }
    }
    let none = upload(&client, FloatType::F32, &[]);
    let got = download(&client, &probability_sums(&client, &none, 4));
    assert_eq!(got, [0.0; 4]);
}
