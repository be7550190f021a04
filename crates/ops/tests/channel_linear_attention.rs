//! Linear attention whose channels have decays: kernels and Burn's operations against the recurrence in f64, those against
//! differences.

use burn::tensor::{FloatDType, Tensor};
use burnish_ops::{AnyTensor, Documents, LinearAttentionShape, RecurrentStates, channel_linear_attention};

use crate::case::{Body, Case, Input, assert_close, tensor, to_f64};
use crate::linear_attention::{LAYOUTS, rows};

fn shape(heads: usize, key_dim: usize, value_dim: usize, delta_rule: bool) -> LinearAttentionShape {
    let keys = heads * key_dim;
    let columns = [heads * value_dim, heads * value_dim + keys, 0];
    LinearAttentionShape { key_heads: heads, heads, key_dim, value_dim, columns, delta_rule }
}

/// Columns of a row, with one that nothing reads.
fn width(shape: &LinearAttentionShape) -> usize {
    shape.heads * (2 * shape.key_dim + shape.value_dim) + 1
}

fn inputs(shape: &LinearAttentionShape, tokens: usize, scale: f32) -> Vec<Input> {
    vec![
        Input::new("qkv", &[tokens, width(shape)], scale),
        Input::new("decays", &[tokens, shape.heads * shape.key_dim], 0.7),
        Input { shift: 0.5, ..Input::new("betas", &[tokens, shape.heads], 0.2) },
    ]
}

/// What is not above zero.
fn below_zero(decays: &AnyTensor) -> AnyTensor {
    let decays: Tensor<2> = decays.rank().unwrap();
    AnyTensor::new(-(decays.clone() * decays))
}

/// The output of one text after another, token by token.
fn recurrence(
    shape: &LinearAttentionShape,
    inputs: [&AnyTensor; 3],
    texts: &[std::ops::Range<usize>],
) -> Vec<f64> {
    let [qkv, decays, betas] = inputs.map(to_f64);
    let LinearAttentionShape { heads, key_dim, value_dim, columns, delta_rule, .. } = *shape;
    let (tokens, width) = (betas.len() / heads, width(shape));
    let mut out = vec![0.0; tokens * heads * value_dim];
    for (text, head) in texts.iter().flat_map(|text| (0..heads).map(move |head| (text, head))) {
        let mut state = vec![0.0; key_dim * value_dim];
        for row in text.clone() {
            let part = |part: usize, of: usize| &qkv[row * width + columns[part] + head * of..][..of];
            let [q, k, v] = [part(0, key_dim), part(1, key_dim), part(2, value_dim)];
            let decay = &decays[(row * heads + head) * key_dim..][..key_dim];
            state
                .chunks_exact_mut(value_dim)
                .zip(decay)
                .for_each(|(of, g)| of.iter_mut().for_each(|s| *s *= g.exp()));
            for j in 0..value_dim {
                let said: f64 = (0..key_dim).map(|i| k[i] * state[i * value_dim + j]).sum();
                let new = betas[row * heads + head] * (v[j] - if delta_rule { said } else { 0.0 });
                (0..key_dim).for_each(|i| state[i * value_dim + j] += k[i] * new);
                out[(row * heads + head) * value_dim + j] =
                    (0..key_dim).map(|i| q[i] * state[i * value_dim + j]).sum();
            }
        }
    }
    out
}

#[test]
fn decays_of_channels_differentiate_within_texts() {
    for (texts, parents) in LAYOUTS {
        for delta in [true, false] {
            let (own, ties, shape) =
                (Documents::from(texts.to_vec()), parents.to_vec(), shape(2, 4, 3, delta));
            let run = move |_: Body, t: &[AnyTensor]| {
                channel_linear_attention([&t[0], &below_zero(&t[1]), &t[2]], &shape, &own, &ties)
            };
            let inputs = inputs(&shape, 10, 0.5);
            let case = Case { name: format!("{texts:?}, delta {delta}"), inputs, run: Box::new(run) };
            case.differentiates();
            case.agrees();
        }
    }
}

/// Texts of some chunks, as models have them, of which the second goes on from the first.
#[test]
fn long_texts_agree() {
    let shape = shape(2, 24, 16, true);
    let texts = Documents::from(vec![0..130, 131..200]);
    let run = move |_: Body, t: &[AnyTensor]| {
        channel_linear_attention([&t[0], &below_zero(&t[1]), &t[2]], &shape, &texts, &[None, Some(0)])
    };
    Case { name: "long".into(), inputs: inputs(&shape, 200, 0.2), run: Box::new(run) }.agrees();
}

#[test]
fn texts_follow_the_recurrence() {
    let texts = [0..1, 1..18, 20..84, 84..150];
    for delta in [true, false] {
        for [key_dim, value_dim] in [[16, 16], [24, 40], [64, 64], [128, 128]] {
            let shape = shape(2, key_dim, value_dim, delta);
            let scale = 1.0 / (key_dim as f32).sqrt();
            let inputs = inputs(&shape, 151, scale)
                .into_iter()
                .map(|input| AnyTensor::from_data(input.values(), &crate::case::device()));
            let [qkv, decays, betas]: [AnyTensor; 3] = inputs.collect::<Vec<_>>().try_into().unwrap();
            let decays = below_zero(&decays);
            let want = recurrence(&shape, [&qkv, &decays, &betas], &texts);
            let own = Documents::from(texts.to_vec());
            let got = channel_linear_attention([&qkv, &decays, &betas], &shape, &own, &[]).unwrap();
            assert_close(&to_f64(&got), &want, 1e-5, &format!("{key_dim} by {value_dim}, delta {delta}"));
        }
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let shape = shape(2, 4, 3, true);
    let (qkv, decays, betas) = (tensor("qkv", &[5, 23]), tensor("x", &[5, 8]), tensor("x", &[5, 2]));
    let texts = Documents::from(vec![0..5]);
    let run = |inputs: [&AnyTensor; 3], shape: &LinearAttentionShape, texts: &Documents| {
        channel_linear_attention(inputs, shape, texts, &[]).map(|_| ())
    };
    assert!(run([&qkv, &decays, &betas], &shape, &texts).is_ok());
    assert!(run([&tensor("qkv", &[5, 21]), &decays, &betas], &shape, &texts).is_err());
    assert!(run([&qkv, &tensor("x", &[5, 2]), &betas], &shape, &texts).is_err());
    assert!(run([&qkv, &decays, &tensor("x", &[5, 8])], &shape, &texts).is_err());
    assert!(run([&qkv, &decays, &betas], &shape, &Documents::from(vec![0..6])).is_err());
    let shared = LinearAttentionShape { key_heads: 1, ..shape };
    assert!(run([&qkv, &decays, &betas], &shared, &texts).is_err());
}

/// Two sequences piece by piece, which change places on the way, give what they give whole; also heads that no kernel has.
#[test]
fn sequences_go_on_from_their_states() {
    for (delta, value_dim) in [(true, 3), (false, 3), (true, 300)] {
        let shape = shape(2, 4, value_dim, delta);
        let inputs = inputs(&shape, 11, 0.5)
            .into_iter()
            .map(|input| AnyTensor::from_data(input.values(), &crate::case::device()).cast(FloatDType::F32));
        let [qkv, decays, betas]: [AnyTensor; 3] = inputs.collect::<Vec<_>>().try_into().unwrap();
        let decays = below_zero(&decays);
        let texts = [0..7, 7..11];
        let want = recurrence(&shape, [&qkv, &decays, &betas], &texts);
        let whole =
            channel_linear_attention([&qkv, &decays, &betas], &shape, &Documents::from(texts.to_vec()), &[]);
        assert_close(&to_f64(&whole.unwrap()), &want, 1e-5, "whole");
        let mut states = RecurrentStates::new(2);
        let mut found = [Vec::<f64>::new(), Vec::new()];
        for step in [[0..4, 7..8], [4..5, 8..9], [5..5, 9..11], [5..7, 11..11]] {
            let lengths = [step[0].len(), step[1].len()];
            let documents = Documents::from(vec![0..lengths[0], lengths[0]..lengths[0] + lengths[1]]);
            let of = [&qkv, &decays, &betas].map(|x| rows(x, &step));
            let y = states.channel_linear_attention(of.each_ref(), &shape, &documents).unwrap();
            let (y, row) = (to_f64(&y), 2 * value_dim);
            found[0].extend(&y[..row * lengths[0]]);
            found[1].extend(&y[row * lengths[0]..]);
            states.reorder(&[1, 0]).unwrap();
            states.reorder(&[1, 0]).unwrap();
        }
        assert_eq!(states.bytes(), 2 * 4 * 2 * 4 * value_dim);
        assert_close(&found.concat(), &want, 1e-5, "piece by piece");
    }
}
