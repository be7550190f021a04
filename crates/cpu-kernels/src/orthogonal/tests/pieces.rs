//! Gram, polynomial and application apart, as ranks call them.

use super::*;

/// `x` cut along the side that is not `side`, `at` the bounds.
fn slices_of(
    x: &[f32],
    rows: usize,
    columns: usize,
    side: Side,
    at: &[usize],
) -> Vec<(Vec<f32>, usize, usize)> {
    at.windows(2)
        .map(|w| match side {
            Side::Columns => (x[w[0] * columns..w[1] * columns].to_vec(), w[1] - w[0], columns),
            Side::Rows => {
                let cut =
                    (0..rows).flat_map(|i| x[i * columns + w[0]..i * columns + w[1]].to_vec()).collect();
                (cut, rows, w[1] - w[0])
            }
        })
        .collect()
}

/// The whole from slices.
fn joined(slices: &[(Vec<f32>, usize, usize)], side: Side) -> Vec<f32> {
    match side {
        Side::Columns => slices.iter().flat_map(|s| s.0.clone()).collect(),
        Side::Rows => (0..slices[0].1)
            .flat_map(|i| slices.iter().flat_map(move |s| s.0[i * s.2..(i + 1) * s.2].to_vec()))
            .collect(),
    }
}

/// Every rank's part of the iteration, with sums over the ranks in between.
fn together(slices: &mut [(Vec<f32>, usize, usize)], m: usize, side: Side, c: &Coefficients) {
    let mut top = slices.iter().map(|s| largest(&s.0).unwrap()).fold(0.0, f32::max);
    for leg in c.gram_legs() {
        let mut r = vec![0.0; m * m];
        for (x, rows, columns) in slices.iter() {
            let mut part = vec![f32::NAN; m * m];
            gram(x, *rows, *columns, side, top, &mut part);
            r.iter_mut().zip(part).for_each(|(r, p)| *r += p);
        }
        let mut q = vec![f32::NAN; m * m];
        polynomial_of_gram(&r, m, c, leg, &mut q).unwrap();
        for (x, rows, columns) in slices.iter_mut() {
            let whole = x.clone();
            apply(&q, &whole, *rows, *columns, side, top, x);
        }
        top = 1.0;
    }
}

#[test]
fn slices_on_ranks_give_the_whole() {
    let many = Coefficients::new([both()[1].triples(), &[[1.875, -1.25, 0.375]; 7]].concat(), 1.02);
    for c in [both().to_vec(), vec![many]].concat() {
        for (rows, columns, side) in [(40, 100, Side::Rows), (100, 40, Side::Columns), (33, 33, Side::Rows)] {
            let (m, n) = side.of(rows, columns);
            for scale in [1.0, 1e-20, 1e20] {
                let x: Vec<f32> = values(rows * columns, 21).iter().map(|x| x * scale).collect();
                let want = run(&x, rows, columns, &c, Form::Gram);
                // One rank: the same bits.
                let mut one = slices_of(&x, rows, columns, side, &[0, n]);
                together(&mut one, m, side, &c);
                assert_eq!(joined(&one, side), want);
                // Uneven and empty slices.
                let mut three = slices_of(&x, rows, columns, side, &[0, 5, 5, n]);
                together(&mut three, m, side, &c);
                let want: Vec<f64> = want.into_iter().map(f64::from).collect();
                let gap = gap(&joined(&three, side), &want);
                assert!(gap < 1e-4, "{rows} x {columns} times {scale:e}: off by {gap}");
            }
        }
    }
}

/// The Gram side may be the long one (only the slices' side is free): the same matrix comes out.
#[test]
fn gram_of_the_long_side() {
    let (rows, columns) = (60, 20);
    let x = values(rows * columns, 22);
    let c = Coefficients::keller(5);
    let want: Vec<f64> = run(&x, rows, columns, &c, Form::Gram).into_iter().map(f64::from).collect();
    let mut slices = slices_of(&x, rows, columns, Side::Rows, &[0, 11, columns]);
    together(&mut slices, rows, Side::Rows, &c);
    let gap = gap(&joined(&slices, Side::Rows), &want);
    assert!(gap < 1e-4, "off by {gap}");
}

#[test]
fn gram_is_the_scaled_product() {
    for (rows, columns) in [(3, 700), (40, 33), (65, 64)] {
        let x = values(rows * columns, 23);
        let factor = f64::from(distributed::power(largest(&x).unwrap()));
        let mut r = vec![f32::NAN; rows * rows];
        gram(&x, rows, columns, Side::Rows, largest(&x).unwrap(), &mut r);
        let want: Vec<f64> = (0..rows * rows)
            .map(|e| {
                let row = |i: usize| x[i * columns..(i + 1) * columns].iter().map(|x| f64::from(*x) * factor);
                row(e / rows).zip(row(e % rows)).map(|(a, b)| a * b).sum()
            })
            .collect();
        let top = want.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
        assert!(gap(&r, &want) < 1e-6 * top);
        // The norm that divides: to 1e-6.
        let trace: f64 = (0..rows).map(|i| f64::from(r[i * rows + i])).sum();
        let square = factor * factor * x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        assert!((trace / square - 1.0).abs() < 1e-6);
        assert!((0..rows * rows).all(|e| r[e].to_bits() == r[e % rows * rows + e / rows].to_bits()));
    }
}

#[test]
fn a_bad_trace_is_refused_and_zero_stays_zero() {
    let c = Coefficients::keller(5);
    let mut q = vec![1.0; 4];
    for bad in [-1.0, f32::NAN, f32::INFINITY] {
        let error = polynomial_of_gram(&[bad, 0.0, 0.0, 0.0], 2, &c, 0..5, &mut q).unwrap_err();
        assert!(matches!(error, OrthogonalError::BadTrace { order: 2, .. }));
    }
    polynomial_of_gram(&[0.0; 4], 2, &c, 0..5, &mut q).unwrap();
    assert_eq!(q, [0.0; 4]);
    polynomial_of_gram(&[1.0, 0.0, 0.0, 1.0], 2, &c, 0..0, &mut q).unwrap();
    assert_eq!(q, [1.0, 0.0, 0.0, 1.0]);
    let mut out = vec![1.0; 6];
    gram(&[0.0; 6], 2, 3, Side::Rows, 0.0, &mut q);
    apply(&q, &[0.0; 6], 2, 3, Side::Rows, 0.0, &mut out);
    assert_eq!((q, out), (vec![0.0; 4], vec![0.0; 6]));
}

#[test]
fn powers_bring_magnitudes_to_one() {
    for top in [1.0, 1.5, 1e-20, 1e20, f32::MIN_POSITIVE] {
        assert!((1.0..2.0).contains(&(top * distributed::power(top))), "{top:e}");
    }
    assert!(f32::MAX * distributed::power(f32::MAX) < 4.0);
    assert!(f32::from_bits(1) * distributed::power(f32::from_bits(1)) > 1e-8);
}
