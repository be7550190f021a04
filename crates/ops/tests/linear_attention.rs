//! Linear attention and what stands before and behind it: kernels against Burn's operations in f64, those against differences.

use std::ops::Range;

use burn::tensor::Tensor;
use burnish_ops::{
    AnyTensor, ConvCache, Documents, GroupNorm, HeadSteps, LinearAttentionShape, RecurrentStates, UnitHeads,
    conv_heads, gated_norm, head_weights, linear_attention, split_columns,
};

use crate::case::{Body, Case, Input, assert_close, tensor, to_f64};

/// Two heads of keys of 4 elements, four of values of 3, and a column that nothing reads.
fn shape(delta_rule: bool) -> LinearAttentionShape {
    LinearAttentionShape {
        key_heads: 2,
        heads: 4,
        key_dim: 4,
        value_dim: 3,
        columns: [12, 20, 0],
        delta_rule,
    }
}

pub(crate) type Layout = (&'static [Range<usize>], &'static [Option<usize>]);

pub(crate) const LAYOUTS: [Layout; 3] = [
    (&[0..9], &[]),
    (&[4..8, 1..3, 9..9, 9..10], &[]),
    (&[0..4, 4..6, 6..9, 9..10], &[None, Some(0), Some(0), Some(2)]),
];

/// What heads keep, which is not above zero, and learn.
fn weights(decay: &AnyTensor, beta: &AnyTensor) -> AnyTensor {
    let [decay, beta]: [Tensor<2>; 2] = [decay, beta].map(|x| x.rank().unwrap());
    let n = decay.shape().num_elements();
    let decay = -(decay.clone() * decay);
    AnyTensor::new(Tensor::cat(vec![decay.reshape([1, n]), beta.reshape([1, n])], 0))
}

#[test]
fn linear_attention_differentiates_within_texts() {
    for (texts, parents) in LAYOUTS {
        for delta in [true, false] {
            let (own, ties) = (Documents::from(texts.to_vec()), parents.to_vec());
            let run = move |_: Body, t: &[AnyTensor]| {
                linear_attention(&t[0], &weights(&t[1], &t[2]), &shape(delta), &own, &ties)
            };
            let inputs = vec![
                Input::new("qkv", &[10, 29], 0.5),
                Input::new("decay", &[10, 4], 0.7),
                Input { shift: 0.5, ..Input::new("beta", &[10, 4], 0.2) },
            ];
            let case = Case { name: format!("{texts:?}, delta {delta}"), inputs, run: Box::new(run) };
            case.differentiates();
            case.agrees();
        }
    }
}

/// Texts of some chunks, as models have them.
#[test]
fn long_texts_agree() {
    let shape = LinearAttentionShape { columns: [0, 32, 64], key_dim: 16, value_dim: 8, ..shape(true) };
    let texts = Documents::from(vec![0..130, 131..200]);
    let run = move |_: Body, t: &[AnyTensor]| {
        linear_attention(&t[0], &weights(&t[1], &t[2]), &shape, &texts, &[None, Some(0)])
    };
    let inputs = vec![
        Input::new("qkv", &[200, 96], 0.25),
        Input::new("decay", &[200, 4], 0.4),
        Input { shift: 0.5, ..Input::new("beta", &[200, 4], 0.2) },
    ];
    Case { name: "long".into(), inputs, run: Box::new(run) }.agrees();
}

#[test]
fn wrong_shapes_are_errors() {
    let (qkv, of_heads) = (tensor("qkv", &[5, 29]), tensor("x", &[2, 20]));
    let texts = Documents::from(vec![0..5]);
    let run = |qkv: &AnyTensor, weights: &AnyTensor, texts: &Documents, parents: &[Option<usize>]| {
        linear_attention(qkv, weights, &shape(true), texts, parents).map(|_| ())
    };
    assert!(run(&qkv, &of_heads, &texts, &[]).is_ok());
    assert!(run(&tensor("qkv", &[5, 27]), &of_heads, &texts, &[]).is_err());
    assert!(run(&qkv, &tensor("x", &[2, 18]), &texts, &[]).is_err());
    assert!(run(&qkv, &of_heads, &Documents::from(vec![0..6, 0..1]), &[]).is_err());
    assert!(run(&qkv, &of_heads, &Documents::from(vec![0..3, 2..5]), &[]).is_err());
    assert!(run(&qkv, &of_heads, &texts, &[Some(0)]).is_err());
    assert!(run(&qkv, &of_heads, &texts, &[None, Some(0)]).is_err());
    let one = LinearAttentionShape { columns: [0, 4, 8], ..shape(true) };
    assert!(linear_attention(&qkv, &of_heads, &one, &texts, &[]).is_err());
}

/// Heads that no kernel has, in Burn's operations: values of one key head stand for themselves.
#[test]
fn wide_heads_are_computed() {
    let wide = |value_dim| LinearAttentionShape {
        key_heads: 1,
        heads: 1,
        key_dim: 4,
        value_dim,
        columns: [0, 4, 8],
        delta_rule: true,
    };
    let texts: Documents = std::iter::once(0..6).collect();
    let [qkv, weights] = [tensor("qkv", &[6, 308]), tensor("weights", &[2, 6])];
    let [qkv, weights] = [qkv, weights].map(|x| x.cast(burn::tensor::FloatDType::F32));
    let all = to_f64(&linear_attention(&qkv, &weights, &wide(300), &texts, &[]).unwrap());
    let some = to_f64(&linear_attention(&qkv, &weights, &wide(200), &texts, &[]).unwrap());
    let got: Vec<f64> = all.chunks(300).flat_map(|row| row[..200].to_vec()).collect();
    assert_close(&got, &some, 1e-5, "the first 200 values");
    let mut states = RecurrentStates::new(1);
    let got = states.linear_attention(&qkv, &weights, &wide(300), &texts).unwrap();
    assert_close(&to_f64(&got), &all, 1e-5, "from no state");
}

pub(crate) fn rows(x: &AnyTensor, pieces: &[Range<usize>]) -> AnyTensor {
    let x: Tensor<2> = x.rank().unwrap();
    let parts = pieces.iter().filter(|piece| !piece.is_empty());
    AnyTensor::new(Tensor::cat(parts.map(|piece| x.clone().narrow(0, piece.start, piece.len())).collect(), 0))
}

/// Two sequences piece by piece, which change places on the way, give what they give whole; and so does their convolution.
#[test]
fn sequences_go_on_from_their_states() {
    let cast = |x: AnyTensor| x.cast(burn::tensor::FloatDType::F32);
    let (x, kernel) = (tensor("x", &[11, 29]), tensor("kernel", &[29, 1, 3]));
    let [x, kernel, decay, beta] = [x, kernel, tensor("decay", &[11, 4]), tensor("beta", &[11, 4])].map(cast);
    let units = UnitHeads { count: 2, head_dim: 6, scales: [0.5, 2.0], eps: 1e-3 };
    for delta in [true, false] {
        let whole = Documents::from(vec![0..7, 7..11]);
        let qkv = conv_heads(&x, &kernel, None, Some(&units), &whole, &[]).unwrap();
        let want =
            to_f64(&linear_attention(&qkv, &weights(&decay, &beta), &shape(delta), &whole, &[]).unwrap());
        let (mut convolved, mut states) = (ConvCache::new(3, 2), RecurrentStates::new(2));
        let mut found = [Vec::<f64>::new(), Vec::new()];
        for step in [[0..4, 7..8], [4..5, 8..9], [5..5, 9..11], [5..7, 11..11]] {
            let lengths = [step[0].len(), step[1].len()];
            let documents = Documents::from(vec![0..lengths[0], lengths[0]..lengths[0] + lengths[1]]);
            let of = |x: &AnyTensor| rows(x, &step);
            let qkv = convolved.run_heads(&of(&x), &kernel, None, Some(&units), &documents).unwrap();
            let y = states
                .linear_attention(&qkv, &weights(&of(&decay), &of(&beta)), &shape(delta), &documents)
                .unwrap();
            let y = to_f64(&y);
            found[0].extend(&y[..12 * lengths[0]]);
            found[1].extend(&y[12 * lengths[0]..]);
            // Away and back again.
            states.reorder(&[1, 0]).unwrap();
            let mut back = states.split_off(1);
            back.append(states);
            states = back;
        }
        assert_eq!(states.bytes(), 2 * 4 * 4 * 4 * 3);
        assert_close(&found.concat(), &want, 1e-5, "piece by piece");
        assert!(states.reorder(&[2]).is_err());
        let all = weights(&decay, &beta);
        assert!(states.linear_attention(&x, &all, &shape(delta), &std::iter::once(0..11).collect()).is_err());
    }
}

#[test]
fn convolved_heads_differentiate() {
    for (documents, parents) in LAYOUTS {
        for (bias, units) in [(false, true), (true, false), (true, true)] {
            let units = units.then_some(UnitHeads { count: 2, head_dim: 3, scales: [0.5, 2.0], eps: 1e-2 });
            let (own, ties) = (Documents::from(documents.to_vec()), parents.to_vec());
            let run = move |_: Body, t: &[AnyTensor]| {
                conv_heads(&t[0], &t[1], t.get(2), units.as_ref(), &own, &ties)
            };
            let mut inputs = vec![Input::new("x", &[10, 8], 1.0), Input::new("kernel", &[8, 1, 3], 1.0)];
            inputs.extend(bias.then(|| Input::new("bias", &[8], 1.0)));
            let name = format!("{documents:?}, bias {bias}, units {}", units.is_some());
            let case = Case { name, inputs, run: Box::new(run) };
            case.differentiates();
            case.agrees();
        }
    }
    let units = UnitHeads { count: 3, head_dim: 3, scales: [1.0; 2], eps: 0.0 };
    let (x, kernel) = (tensor("x", &[4, 9]), tensor("kernel", &[9, 1, 2]));
    assert!(conv_heads(&x, &kernel, None, Some(&units), &Documents::from(vec![0..4]), &[]).is_err());
    assert!(conv_heads(&x, &kernel, None, None, &Documents::from(vec![0..5]), &[]).is_err());
}

/// Pieces of columns, of which one is read twice and one by nobody.
#[test]
fn split_columns_differentiate() {
    let run = |_: Body, t: &[AnyTensor]| {
        let [a, b, _]: [AnyTensor; 3] = split_columns(&t[0], &[3, 4, 2])?.try_into().unwrap();
        let (a, b): (Tensor<2>, Tensor<2>) = (a.rank()?, b.rank()?);
        Ok(AnyTensor::new(Tensor::cat(vec![a.clone() * a, b], 1)))
    };
    let case = Case { name: "split".into(), inputs: vec![Input::new("x", &[5, 9], 1.0)], run: Box::new(run) };
    case.differentiates();
    case.agrees();
    assert!(split_columns(&tensor("x", &[5, 9]), &[3, 5]).is_err());
}

#[test]
fn weights_of_heads_differentiate() {
    for learns in [true, false] {
        let run = |_: Body, t: &[AnyTensor]| {
            let (steps, learning) = (t[0].clone(), t.get(3).cloned());
            head_weights(&HeadSteps { steps, learning, bias: t[1].clone(), log_rate: t[2].clone() })
        };
        // Some are beyond the line.
        let mut inputs = vec![Input { scale: 9.0, ..Input::new("steps", &[7, 4], 1.0) }];
        inputs.extend([Input::new("bias", &[4], 1.0), Input::new("log_rate", &[4], 1.0)]);
        inputs.extend(learns.then(|| Input::new("learning", &[7, 4], 1.0)));
        let case = Case { name: format!("learns {learns}"), inputs, run: Box::new(run) };
        case.differentiates();
        case.agrees();
    }
    let of = |steps: &[usize], heads: usize| {
        let [bias, log_rate] = [(); 2].map(|()| tensor("numbers", &[heads]));
        head_weights(&HeadSteps { steps: tensor("steps", steps), learning: None, bias, log_rate })
    };
    assert!(of(&[3, 4], 4).is_ok());
    assert!(of(&[3, 4], 3).is_err());
}

#[test]
fn gated_norms_differentiate() {
    for gamma in [None, Some(4), Some(12)] {
        for before_gate in [true, false] {
            let run = move |_: Body, t: &[AnyTensor]| {
                let gamma = t.get(2).cloned();
                let norm = gamma.map(|gamma| GroupNorm { group: 4, gamma, eps: 1e-3, before_gate });
                gated_norm(&t[0], &t[1], norm.as_ref())
            };
            let mut inputs = vec![Input::new("x", &[6, 12], 1.0), Input::new("gate", &[6, 12], 1.0)];
            inputs.extend(gamma.map(|n| Input { shift: 1.0, ..Input::new("gamma", &[n], 0.3) }));
            let case =
                Case { name: format!("gamma {gamma:?}, before {before_gate}"), inputs, run: Box::new(run) };
            case.differentiates();
            case.agrees();
        }
    }
    let (x, gate) = (tensor("x", &[4, 9]), tensor("gate", &[4, 8]));
    assert!(gated_norm(&x, &gate, None).is_err());
}
