//! Small operations: columns in another order, bounds, norms of columns, scaled sums, held rows, xIELU.

use std::sync::Arc;

use burnish_ops::{
    AnyTensor, ColumnNorm, ColumnOrder, ConvCache, Rotary, clamp, gpu, held, norm_columns, permute_columns,
    scaled_sum, short_conv, xielu,
};

use crate::case::{Body, Case, Input, device, tensor, to_f64};

#[test]
fn columns_move_there_and_back() {
    let order = ColumnOrder::new(&[3, 0, 4, 2, 1]).unwrap();
    let x = tensor("x", &[2, 5]);
    let (got, from) = (to_f64(&permute_columns(&x, &order).unwrap()), to_f64(&x));
    let want: Vec<f64> = from.chunks(5).flat_map(|r| [r[3], r[0], r[4], r[2], r[1]]).collect();
    assert_eq!(got, want);
    let run = move |_: Body, t: &[AnyTensor]| permute_columns(&t[0], &order);
    let inputs = vec![Input::new("x", &[4, 5], 1.0)];
    let case = Case { name: "permute_columns".to_owned(), inputs, run: Box::new(run) };
    case.differentiates();
    case.agrees();
    for wrong in [&[0, 0, 1][..], &[0, 3, 1], &[1, 2, 3]] {
        assert_eq!(ColumnOrder::new(wrong), None);
    }
}

#[test]
fn scaled_sums_differentiate() {
    for (factor, residual) in [(0.37, true), (1.0, true), (2.5, false)] {
        let run = move |_: Body, t: &[AnyTensor]| scaled_sum(&t[0], factor, t.get(1));
        let mut inputs = vec![Input::new("x", &[4, 5], 1.0)];
        inputs.extend(residual.then(|| Input::new("residual", &[4, 5], 1.0)));
        let case = Case { name: format!("scaled_sum {factor}"), inputs, run: Box::new(run) };
        case.differentiates();
        case.agrees();
    }
}

#[test]
fn bounds_hold_and_differentiate() {
    let run = |_: Body, t: &[AnyTensor]| clamp(&t[0], 0.8);
    let case =
        Case { name: "clamp".to_owned(), inputs: vec![Input::new("x", &[6, 9], 1.0)], run: Box::new(run) };
    case.differentiates();
    case.agrees();
    let x = AnyTensor::from_elements(vec![0.5_f32, -0.5, 3.0, f32::NAN], &[1, 4], &device());
    let got = to_f64(&clamp(&x, 0.5).unwrap());
    assert!(got[..3] == [0.5, -0.5, 0.5] && got[3].is_nan(), "{got:?}");
}

/// Of two runs of groups with columns between and behind them: shared gains and each group's own, with and without bias,
/// turned first or not.
#[test]
fn norms_of_columns_are_burn_s_and_differentiate() {
    let (tokens, d) = (5, 6);
    let angles: Vec<f32> = (0..tokens * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    let positions = Arc::new((0..tokens as u32).rev().collect());
    let rotary = Rotary::new(Arc::new(angles), positions, 4);
    for own in [false, true] {
        for (centered, beta) in [(false, false), (true, false), (true, true)] {
            for turned in [false, true] {
                let rotary = turned.then(|| rotary.clone());
                let run = move |body: Body, t: &[AnyTensor]| {
                    let bias = |at: usize| beta.then(|| t[at].clone());
                    let (first, second) = (t[1].clone(), t[2].clone());
                    let norms = [
                        ColumnNorm { first: 1, groups: 3, width: d, gamma: first, beta: bias(3) },
                        ColumnNorm { first: 20, groups: 2, width: d, gamma: second, beta: bias(4) },
                    ];
                    let norm = if body == Body::Gpu { gpu::norm_columns } else { norm_columns };
                    norm(&t[0], &norms, centered, 1e-3, rotary.as_ref())
                };
                let gains = |groups: usize| if own { vec![groups, d] } else { vec![d] };
                let (first, second) = (gains(3), gains(2));
                let mut inputs = vec![
                    Input::new("x", &[tokens, 35], 1.0),
                    Input { shift: 1.0, ..Input::new("first", &first, 0.3) },
                    Input { shift: 1.0, ..Input::new("second", &second, 0.3) },
                ];
                if beta {
                    inputs.extend([Input::new("bias", &first, 0.3), Input::new("second_bias", &second, 0.3)]);
                }
                let name =
                    format!("norm_columns own {own}, centered {centered}, beta {beta}, turned {turned}");
                let case = Case { name, inputs, run: Box::new(run) };
                case.differentiates();
                case.agrees();
            }
        }
    }
    // Gains of a frozen matrix keep their file's dtype.
    let narrow = Input { dtype: burn::tensor::DType::BF16, ..Input::new("gamma", &[2, 3], 0.3) }.values();
    let wide = narrow.clone().convert_dtype(burn::tensor::DType::F32);
    let of = |gains| {
        let gamma = AnyTensor::from_data(gains, &device());
        let norm = ColumnNorm { first: 1, groups: 2, width: 3, gamma, beta: None };
        to_f64(&norm_columns(&tensor("x", &[4, 8]), &[norm], true, 1e-3, None).unwrap())
    };
    assert_eq!(of(narrow), of(wide));
    let norm = |first: usize, gamma: &[usize]| {
        let norm = ColumnNorm { first, groups: 2, width: 3, gamma: tensor("gamma", gamma), beta: None };
        norm_columns(&tensor("x", &[4, 8]), &[norm], false, 1e-3, None)
    };
    assert!(norm(2, &[3]).is_ok() && norm(3, &[3]).is_err() && norm(2, &[4]).is_err());
}

#[test]
fn xielu_differentiates() {
    let run = |_: Body, t: &[AnyTensor]| xielu(&t[0], &t[1], &t[2]);
    let inputs = vec![
        Input::new("x", &[5, 7], 2.0),
        Input { shift: 0.3, ..Input::new("alpha_p", &[1], 0.5) },
        Input { shift: -0.8, ..Input::new("alpha_n", &[1], 0.5) },
    ];
    let case = Case { name: "xielu".to_owned(), inputs, run: Box::new(run) };
    case.differentiates();
    case.agrees();
    let one = |alpha: f32| AnyTensor::from_elements(vec![alpha], &[1], &device());
    let x = AnyTensor::from_elements(vec![2.0_f32, 0.0, -3.0, -0.25], &[1, 4], &device());
    let got = to_f64(&xielu(&x, &one(0.0), &one(100.0)).unwrap());
    // softplus(0) = ln 2; below zero the slope is 100.5. Of zero all that is left is small, and right all the same.
    let small = f64::from(-1e-6_f32).exp_m1();
    let want = [
        4.0 * 2f64.ln() + 1.0,
        small * 100.5,
        ((-3f64).exp() + 2.0) * 100.5 - 1.5,
        ((-0.25f64).exp_m1() + 0.25) * 100.5 - 0.125,
    ];
    assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-5 * w.abs()), "{got:?}");
    assert!(xielu(&x, &x, &one(0.0)).is_err());
}

#[test]
fn short_convolutions_differentiate_within_documents() {
    type Layout = (&'static [std::ops::Range<usize>], &'static [Option<usize>]);
    let layouts: [Layout; 3] = [
        (&[0..9], &[]),
        (&[4..9, 1..3, 9..9, 9..10], &[]),
        (&[0..4, 4..6, 6..10], &[None, Some(0), Some(0)]),
    ];
    for (documents, parents) in layouts {
        for bias in [false, true] {
            let (own, ties) = (documents.to_vec(), parents.to_vec());
            let run = move |_: Body, t: &[AnyTensor]| short_conv(&t[0], &t[1], t.get(2), &own, &ties);
            let mut inputs = vec![Input::new("bcx", &[10, 12], 1.0), Input::new("kernel", &[4, 1, 3], 1.0)];
            inputs.extend(bias.then(|| Input::new("bias", &[4], 1.0)));
            let case = Case { name: format!("short_conv {documents:?} {bias}"), inputs, run: Box::new(run) };
            case.differentiates();
            case.agrees();
        }
    }
    assert!(short_conv(&tensor("bcx", &[4, 11]), &tensor("k", &[4, 1, 3]), None, &[], &[]).is_err());
}

/// A document sees itself alone, one that continues another sees that too, and a cache gives what the whole does.
#[test]
fn short_convolutions_stay_in_their_documents_and_continue() {
    let (bcx, kernel, bias) = (tensor("bcx", &[11, 6]), tensor("kernel", &[2, 1, 3]), tensor("bias", &[2]));
    let values = to_f64(&bcx);
    let rows = |ranges: &[std::ops::Range<usize>]| {
        let of: Vec<f32> =
            ranges.iter().flat_map(|r| &values[6 * r.start..6 * r.end]).map(|&x| x as f32).collect();
        let count = of.len() / 6;
        AnyTensor::from_elements(of, &[count, 6], &device())
    };
    let conv = |x: &AnyTensor, documents: &[std::ops::Range<usize>], parents: &[Option<usize>]| {
        to_f64(&short_conv(x, &kernel, Some(&bias), documents, parents).unwrap())
    };
    let (first, second) = (conv(&rows(&[0..7]), &[0..7], &[]), conv(&rows(&[7..11]), &[0..4], &[]));
    assert_eq!(conv(&bcx, &[0..7, 7..11], &[]), [first.clone(), second.clone()].concat());
    // The first text once more, cut after its fifth token.
    assert_eq!(conv(&rows(&[0..7]), &[0..5, 5..7], &[None, Some(0)]), first);
    let mut cache = ConvCache::new(3, 2);
    let mut found = [Vec::<f64>::new(), Vec::new()];
    for step in [[0..4, 7..8], [4..5, 8..9], [5..5, 9..11], [5..7, 11..11]] {
        let lengths = [step[0].len(), step[1].len()];
        let documents = [0..lengths[0], lengths[0]..lengths[0] + lengths[1]];
        let y = to_f64(&cache.run(&rows(&step), &kernel, Some(&bias), &documents.to_vec().into()).unwrap());
        found[0].extend(&y[..2 * lengths[0]]);
        found[1].extend(&y[2 * lengths[0]..]);
        // Away and back again.
        cache.reorder(&[1, 0]).unwrap();
        let other = cache.split_off(1);
        let mut back = other;
        back.append(cache);
        cache = back;
    }
    for (got, want) in found.iter().zip([first, second]) {
        assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-6), "{got:?}, not {want:?}");
        assert_eq!(got.len(), want.len());
    }
    assert!(cache.reorder(&[2]).is_err());
}

#[test]
fn a_held_row_or_column_gets_no_gradient() {
    for (dim, index) in [(0, 2), (1, 1)] {
        let x = tensor("x", &[3, 4]).leaf();
        let y = held(&x, dim, index).unwrap().rank::<2>().unwrap();
        assert_eq!(to_f64(&AnyTensor::new(y.clone().inner())), to_f64(&x));
        let mut gradients = y.sum().backward();
        let gradient = x.take_gradient(&mut gradients).unwrap().to_f32();
        for (i, g) in gradient.iter().enumerate() {
            let at = if dim == 0 { i / 4 } else { i % 4 };
            assert_eq!(*g, if at == index { 0.0 } else { 1.0 }, "{dim} {i}");
        }
    }
    assert!(held(&tensor("x", &[3, 4]), 1, 4).is_err());
}

#[test]
fn tensors_of_nothing_keep_their_shape() {
    for shape in [vec![0], vec![0, 3], vec![3, 0], vec![2, 0, 4]] {
        let none = AnyTensor::from_elements(Vec::<f32>::new(), &shape, &device());
        let cast = none.cast(burn::tensor::FloatDType::BF16);
        assert_eq!([none.shape(), cast.shape()], [shape.clone(), shape]);
    }
}
