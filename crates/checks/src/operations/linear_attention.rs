//! Linear attention, and what stands before and behind it.

use burn::tensor::{DType, Tensor};
use burnish_ops::{
    AnyTensor, ConvCache, Documents, GroupNorm, HeadSteps, LinearAttentionShape, OpsError, RecurrentStates,
    UnitHeads, channel_linear_attention, conv_heads, gated_norm, head_weights, linear_attention,
};

use super::{Bound, check, itself, name_of};
use crate::Check;
use crate::case::{Body, Case, Input};

fn shape(delta_rule: bool) -> LinearAttentionShape {
    LinearAttentionShape {
        key_heads: 2,
        heads: 4,
        key_dim: 16,
        value_dim: 12,
        columns: [0, 32, 64],
        delta_rule,
    }
}

/// What heads keep, which is not above zero, and learn.
fn weights(decay: &AnyTensor, beta: &AnyTensor) -> Result<AnyTensor, OpsError> {
    let (decay, beta) = (decay.rank::<2>()?, beta.rank::<2>()?);
    let n = decay.shape().num_elements();
    let decay = -(decay.clone() * decay);
    Ok(AnyTensor::new(Tensor::cat(vec![decay.reshape([1, n]), beta.reshape([1, n])], 0)))
}

fn inputs(tokens: usize, width: usize) -> Vec<Input> {
    vec![
        Input::new("qkv", &[tokens, width], 0.25),
        Input::new("decay", &[tokens, 4], 0.5),
        Input::new("beta", &[tokens, 4], 0.2).shifted(0.5),
    ]
}

fn walked(delta_rule: bool, parents: &'static [Option<usize>]) -> Case {
    let texts = Documents::from(vec![0..39, 40..43, 43..80]);
    itself(inputs(80, 113), move |t| {
        linear_attention(&t[0], &weights(&t[1], &t[2])?, &shape(delta_rule), &texts, parents)
    })
}

/// Of a model's size, of one head.
fn of_a_model(delta_rule: bool, [key_dim, value_dim]: [usize; 2]) -> Case {
    let width = 2 * key_dim + 4 * value_dim;
    let shape = LinearAttentionShape {
        key_heads: 1,
        key_dim,
        value_dim,
        columns: [4 * value_dim + key_dim, 4 * value_dim, 0],
        ..shape(delta_rule)
    };
    let texts = std::iter::once(0..70).collect::<Documents>();
    let mut inputs = inputs(70, width);
    inputs[0].scale = 0.5 / (key_dim as f32).sqrt();
    itself(inputs, move |t| linear_attention(&t[0], &weights(&t[1], &t[2])?, &shape, &texts, &[]))
}

/// Two sequences piece by piece, against both whole.
fn walked_on(delta_rule: bool) -> Case {
    let mut inputs: Vec<Input> = inputs(11, 112).into_iter().map(Input::frozen).collect();
    inputs.push(Input::new("kernel", &[112, 1, 3], 0.5).frozen());
    let units = UnitHeads { count: 4, head_dim: 16, scales: [0.25, 1.0], eps: 1e-6 };
    let run = move |body: Body, t: &[AnyTensor]| {
        let (x, decay, beta, kernel) = (&t[0], &t[1], &t[2], &t[3]);
        if body == Body::Reference {
            let texts = Documents::from(vec![0..7, 7..11]);
            let qkv = conv_heads(x, kernel, None, Some(&units), &texts, &[])?;
            return linear_attention(&qkv, &weights(decay, beta)?, &shape(delta_rule), &texts, &[]);
        }
        let (mut convolved, mut states) = (ConvCache::new(3, 2), RecurrentStates::new(2));
        let mut parts = [Vec::new(), Vec::new()];
        for pieces in [[0..4, 7..8], [4..5, 8..9], [5..7, 9..11]] {
            let (first, both) = (pieces[0].len(), pieces[0].len() + pieces[1].len());
            let rows = |x: &AnyTensor| super::rows_of(x, &pieces);
            let texts = Documents::from(vec![0..first, first..both]);
            let qkv = convolved.run_heads(&rows(x)?, kernel, None, Some(&units), &texts)?;
            let own = weights(&rows(decay)?, &rows(beta)?)?;
            let y = states.linear_attention(&qkv, &own, &shape(delta_rule), &texts)?.rank::<2>()?;
            parts[0].push(y.clone().narrow(0, 0, first));
            parts[1].push(y.narrow(0, first, both - first));
        }
        Ok(super::one_behind_the_other(parts))
    };
    Case { inputs, run: Box::new(run) }
}

/// Two heads whose channels have decays.
fn of_channels(
    tokens: usize,
    [key_dim, value_dim]: [usize; 2],
    delta_rule: bool,
) -> (LinearAttentionShape, Vec<Input>) {
    let keys = 2 * key_dim;
    let shape = LinearAttentionShape {
        key_heads: 2,
        heads: 2,
        key_dim,
        value_dim,
        columns: [0, keys, 2 * keys],
        delta_rule,
    };
    let inputs = vec![
        Input::new("qkv", &[tokens, 2 * keys + 2 * value_dim], 0.5 / (key_dim as f32).sqrt()),
        Input::new("decays", &[tokens, keys], 0.5),
        Input::new("betas", &[tokens, 2], 0.2).shifted(0.5),
    ];
    (shape, inputs)
}

/// What is not above zero.
fn below_zero(decays: &AnyTensor) -> Result<AnyTensor, OpsError> {
    let decays = decays.rank::<2>()?;
    Ok(AnyTensor::new(-(decays.clone() * decays)))
}

fn channels_walked(sizes: [usize; 2], delta_rule: bool, parents: &'static [Option<usize>]) -> Case {
    let texts = Documents::from(vec![0..39, 40..43, 43..80]);
    let (shape, inputs) = of_channels(80, sizes, delta_rule);
    itself(inputs, move |t| {
        channel_linear_attention([&t[0], &below_zero(&t[1])?, &t[2]], &shape, &texts, parents)
    })
}

/// Two sequences piece by piece, against both whole.
fn channels_walked_on() -> Case {
    let (shape, inputs) = of_channels(11, [16, 12], true);
    let run = move |body: Body, t: &[AnyTensor]| {
        let all = [t[0].clone(), below_zero(&t[1])?, t[2].clone()];
        if body == Body::Reference {
            let texts = Documents::from(vec![0..7, 7..11]);
            return channel_linear_attention(all.each_ref(), &shape, &texts, &[]);
        }
        let mut states = RecurrentStates::new(2);
        let mut parts = [Vec::new(), Vec::new()];
        for pieces in [[0..4, 7..8], [4..5, 8..9], [5..7, 9..11]] {
            let (first, both) = (pieces[0].len(), pieces[0].len() + pieces[1].len());
            let texts = Documents::from(vec![0..first, first..both]);
            let rows = all.iter().map(|x| super::rows_of(x, &pieces)).collect::<Result<Vec<_>, _>>()?;
            let own = [&rows[0], &rows[1], &rows[2]];
            let y = states.channel_linear_attention(own, &shape, &texts)?.rank::<2>()?;
            parts[0].push(y.clone().narrow(0, 0, first));
            parts[1].push(y.narrow(0, first, both - first));
        }
        Ok(super::one_behind_the_other(parts))
    };
    Case { inputs: inputs.into_iter().map(Input::frozen).collect(), run: Box::new(run) }
}

fn convolved(dtype: DType, units: bool, parents: &'static [Option<usize>]) -> Case {
    let inputs = vec![
        Input::new("x", &[60, 72], 1.0).held(dtype),
        Input::new("kernel", &[72, 1, 4], 0.5),
        Input::new("bias", &[72], 0.5),
    ];
    let units = units.then_some(UnitHeads { count: 4, head_dim: 12, scales: [0.25, 1.0], eps: 1e-6 });
    let texts = Documents::from(vec![0..31, 31..33, 33..58]);
    itself(inputs, move |t| conv_heads(&t[0], &t[1], Some(&t[2]), units.as_ref(), &texts, parents))
}

fn gated(dtype: DType, gamma: Option<usize>, before_gate: bool) -> Case {
    let mut inputs = vec![Input::new("x", &[33, 72], 1.0), Input::new("gate", &[33, 72], 1.0).held(dtype)];
    inputs.extend(gamma.map(|n| Input::new("gamma", &[n], 0.3).shifted(1.0)));
    itself(inputs, move |t| {
        let gamma = t.get(2).cloned();
        let norm = gamma.map(|gamma| GroupNorm { group: 24, gamma, eps: 1e-5, before_gate });
        gated_norm(&t[0], &t[1], norm.as_ref())
    })
}

fn weighed(dtype: DType, learns: bool) -> Case {
    let mut inputs = vec![
        Input::new("steps", &[33, 6], 9.0).held(dtype),
        Input::new("bias", &[6], 1.0),
        Input::new("log_rate", &[6], 1.0),
    ];
    inputs.extend(learns.then(|| Input::new("learning", &[33, 6], 1.0).held(dtype)));
    itself(inputs, |t| {
        let (steps, learning) = (t[0].clone(), t.get(3).cloned());
        head_weights(&HeadSteps { steps, learning, bias: t[1].clone(), log_rate: t[2].clone() })
    })
}

pub(super) fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    for delta in [true, false] {
        let name = |what: &str| format!("{}{what}", if delta { "delta rule" } else { "state space" });
        all.push(check(name(""), Bound::Chained, move || walked(delta, &[])));
        let parents = &[None, Some(0), Some(0)];
        all.push(check(name(", shared prompt"), Bound::Chained, move || walked(delta, parents)));
        let dims = if delta { [128, 128] } else { [128, 64] };
        all.push(check(name(", a model's heads"), Bound::Chained, move || of_a_model(delta, dims)));
        all.push(check(name(", states that are held"), Bound::Chained, move || walked_on(delta)));
    }
    for (of, sizes, delta, parents) in [
        ("the delta rule", [16, 12], true, &[][..]),
        ("shared prompt", [16, 12], true, &[None, Some(0), Some(0)][..]),
        ("without the rule", [16, 12], false, &[]),
        ("a model's heads", [128, 128], true, &[]),
    ] {
        let title = format!("decays of channels, {of}");
        all.push(check(title, Bound::Chained, move || channels_walked(sizes, delta, parents)));
    }
    all.push(check("decays of channels, states that are held", Bound::Chained, channels_walked_on));
    for dtype in [DType::F32, DType::BF16] {
        let name = name_of(dtype);
        let bound = if dtype == DType::F32 { Bound::Plain } else { Bound::HalfActivations };
        for (of, units, parents) in [
            ("heads of unit length", true, &[][..]),
            ("shared prompt", true, &[None, Some(0), Some(0)][..]),
            ("no heads", false, &[][..]),
        ] {
            let title = format!("convolved heads, {of}, {name}");
            all.push(check(title, bound, move || convolved(dtype, units, parents)));
        }
        for (of, learns) in [("learned by a sigmoid", true), ("learned by steps", false)] {
            let title = format!("weights of heads, {of}, {name}");
            all.push(check(title, bound, move || weighed(dtype, learns)));
        }
        for (of, gamma, before) in [
            ("shared gains", Some(24), true),
            ("behind its gate", Some(72), false),
            ("a gate alone", None, true),
        ] {
            let title = format!("gated norm, {of}, {name}");
            all.push(check(title, bound, move || gated(dtype, gamma, before)));
        }
    }
    all
}
