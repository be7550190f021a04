//! Operations that move or scale and compute nothing else: columns in another order, scaled sums, held rows.

use burnish_ops::{AnyTensor, ColumnOrder, held, permute_columns, scaled_sum};

use crate::case::{Body, Case, Input, tensor, to_f64};

#[test]
fn columns_move_there_and_back() {
    let order = ColumnOrder::new(&[3, 0, 4, 2, 1]).unwrap();
    let x = tensor("x", &[2, 5]);
    let (got, from) = (to_f64(&permute_columns(&x, &order).unwrap()), to_f64(&x));
    let want: Vec<f64> = from.chunks(5).flat_map(|r| [r[3], r[0], r[4], r[2], r[1]]).collect();
    assert_eq!(got, want);
    let run = move |_: Body, t: &[AnyTensor]| permute_columns(&t[0], &order);
    let inputs = vec![Input::new("x", &[4, 5], 1.0)];
    Case { name: "permute_columns".to_owned(), inputs, run: Box::new(run) }.differentiates();
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
