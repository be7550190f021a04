//! The selective scan: kernels against Burn's operations in f64, those against differences.

use burn::tensor::{DType, FloatDType};
use burnish_core::Dtype;
use burnish_ops::{AnyTensor, Documents, RecurrentStates, SelectiveScan, selective_scan};

use crate::case::{Body, Case, HALF, Input, assert_close, tensor, to_f64};
use crate::linear_attention::{LAYOUTS, rows};

fn scan(t: &[AnyTensor]) -> SelectiveScan {
    let [x, steps, log_rates, b, c, skip] = [0, 1, 2, 3, 4, 5].map(|i| t[i].clone());
    SelectiveScan { x, steps, log_rates, b, c, skip }
}

fn inputs(tokens: usize, channels: usize, states: usize) -> Vec<Input> {
    vec![
        Input::new("x", &[tokens, channels], 1.0),
        // Some nearly stand still, none is where the softplus becomes a line: differences would see that.
        Input { shift: -1.0, ..Input::new("steps", &[tokens, channels], 2.0) },
        Input { shift: -0.5, ..Input::new("log_rates", &[channels, states], 0.7) },
        Input::new("b", &[tokens, states], 1.0),
        Input::new("c", &[tokens, states], 1.0),
        Input { shift: 1.0, ..Input::new("skip", &[channels], 0.5) },
    ]
}

#[test]
fn scans_differentiate_within_texts() {
    for (texts, parents) in LAYOUTS {
        for (channels, states) in [(3, 1), (5, 5)] {
            let (own, ties) = (Documents::from(texts.to_vec()), parents.to_vec());
            let run = move |_: Body, t: &[AnyTensor]| selective_scan(&scan(t), &own, &ties);
            let name = format!("{texts:?}, {states} states");
            let case = Case { name, inputs: inputs(10, channels, states), run: Box::new(run) };
            case.differentiates();
            case.agrees();
        }
    }
}

/// Texts of some chunks and channels of some vectors, as models have them.
#[test]
fn long_texts_agree() {
    let texts = Documents::from(vec![0..40, 41..75]);
    let run = move |_: Body, t: &[AnyTensor]| selective_scan(&scan(t), &texts, &[None, Some(0)]);
    Case { name: "long".into(), inputs: inputs(75, 70, 16), run: Box::new(run) }.agrees();
}

#[test]
fn what_rests_in_16_bits_gives_what_its_numbers_do_and_gradients_in_its_dtype() {
    let texts = Documents::from(vec![0..20, 21..24]);
    for (dtype, stored) in [(DType::BF16, Dtype::Bf16), (DType::F16, Dtype::F16)] {
        let found = |wide: bool| {
            let of = |(at, input): (usize, Input)| {
                let dtype = if at == 2 || at == 5 { DType::F32 } else { dtype };
                let values = Input { dtype, ..input }.values();
                let values = if wide { values.convert_dtype(DType::F32) } else { values };
                AnyTensor::from_data(values, &crate::case::device()).leaf()
            };
            let leaves: Vec<AnyTensor> = inputs(24, 19, 4).into_iter().enumerate().map(of).collect();
            let y = selective_scan(&scan(&leaves), &texts, &[]).unwrap();
            assert_eq!(y.dtype(), Some(Dtype::F32));
            let mut gradients = y.rank::<2>().unwrap().powi_scalar(2).sum().backward();
            let gradients = leaves.iter().map(|leaf| leaf.take_gradient(&mut gradients).unwrap());
            (to_f64(&y.plain()), gradients.collect::<Vec<_>>())
        };
        let ((got, of_got), (want, of_want)) = (found(false), found(true));
        assert_eq!(got, want);
        for (at, (got, want)) in of_got.iter().zip(&of_want).enumerate() {
            let parameter = at == 2 || at == 5;
            assert_eq!(got.dtype(), Some(if parameter { Dtype::F32 } else { stored }), "input {at}");
            assert_close(&to_f64(got), &to_f64(want), HALF, &format!("{dtype:?}, gradient of input {at}"));
        }
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let all = || -> Vec<AnyTensor> {
        inputs(5, 3, 4)
            .iter()
            .map(|input| AnyTensor::from_data(input.values(), &crate::case::device()))
            .collect()
    };
    let texts = Documents::from(vec![0..5]);
    assert!(selective_scan(&scan(&all()), &texts, &[]).is_ok());
    for (at, shape) in [
        (0, &[5, 2][..]),
        (0, &[15]),
        (1, &[4, 3]),
        (2, &[2, 4]),
        (2, &[3, 0]),
        (2, &[12]),
        (3, &[5, 3]),
        (4, &[6, 4]),
        (5, &[4]),
    ] {
        let mut spoiled = all();
        spoiled[at] = tensor("spoiled", shape);
        assert!(selective_scan(&scan(&spoiled), &texts, &[]).is_err(), "input {at} as {shape:?}");
        assert!(
            RecurrentStates::new(1).selective_scan(&scan(&spoiled), &texts).is_err(),
            "input {at} as {shape:?}"
        );
    }
    let run = |texts: Vec<std::ops::Range<usize>>, parents: &[Option<usize>]| {
        selective_scan(&scan(&all()), &texts.into(), parents).is_ok()
    };
    assert!(run(vec![0..3, 3..5], &[None, Some(0)]));
    assert!(!run(vec![0..6], &[]) && !run(vec![0..3, 2..5], &[]) && !run(vec![0..5], &[Some(0)]));
    assert!(!run(vec![0..5], &[None, Some(0)]));
}

/// Two sequences piece by piece, which change places on the way, give what they give whole.
#[test]
fn sequences_go_on_from_their_states() {
    let cast =
        |input: &Input| AnyTensor::from_data(input.values(), &crate::case::device()).cast(FloatDType::F32);
    let all: Vec<AnyTensor> = inputs(11, 19, 5).iter().map(cast).collect();
    let want = to_f64(&selective_scan(&scan(&all), &Documents::from(vec![0..7, 7..11]), &[]).unwrap());
    let mut states = RecurrentStates::new(2);
    let mut found = [Vec::<f64>::new(), Vec::new()];
    for step in [[0..4, 7..8], [4..5, 8..9], [5..5, 9..11], [5..6, 11..11], [6..7, 11..11]] {
        let lengths = [step[0].len(), step[1].len()];
        let texts = Documents::from(vec![0..lengths[0], lengths[0]..lengths[0] + lengths[1]]);
        let own = |(at, x): (usize, &AnyTensor)| if at == 2 || at == 5 { x.clone() } else { rows(x, &step) };
        let part: Vec<AnyTensor> = all.iter().enumerate().map(own).collect();
        let y = to_f64(&states.selective_scan(&scan(&part), &texts).unwrap());
        found[0].extend(&y[..19 * lengths[0]]);
        found[1].extend(&y[19 * lengths[0]..]);
        // Away and back again.
        states.reorder(&[1, 0]).unwrap();
        let mut back = states.split_off(1);
        back.append(states);
        states = back;
    }
    assert_eq!(states.bytes(), 2 * 5 * 19 * 4);
    assert_close(&found.concat(), &want, 1e-6, "piece by piece");
    assert!(states.reorder(&[2]).is_err());
    assert!(states.selective_scan(&scan(&all), &std::iter::once(0..11).collect()).is_err());
    // States of another width than the scan's.
    let other: Vec<AnyTensor> = inputs(11, 19, 4).iter().map(cast).collect();
    assert!(states.selective_scan(&scan(&other), &Documents::from(vec![0..7, 7..11])).is_err());
    // Of a scan in f64, which no kernel computes.
    let wide: Vec<AnyTensor> = all.iter().map(|x| x.cast(FloatDType::F64)).collect();
    let y =
        RecurrentStates::new(2).selective_scan(&scan(&wide), &Documents::from(vec![0..7, 7..11])).unwrap();
    assert_close(&to_f64(&y), &want, 1e-6, "in f64");
}
