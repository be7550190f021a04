//! Against the formulas in f64, on every instruction set.

#![allow(clippy::single_range_in_vec_init, reason = "runs are ranges")]

use super::*;
use crate::simd::{Isa, with_isa};

fn wave(n: usize, by: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * by).sin()).collect()
}

fn close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(g) - w).abs() <= tolerance * w.abs().max(1.0), "{what}[{i}]: {g} is not {w}");
    }
}

#[test]
fn momentum_and_apply() {
    let n = 103;
    for &isa in Isa::available() {
        for (beta, nesterov) in [(0.95_f64, true), (0.95, false), (0.3, true)] {
            let step = MuonMomentum { beta, nesterov, grad_scale: 0.5 };
            let (mut m, mut p) = (vec![0.0; n], wave(n, 0.3));
            let mut want_m = vec![0.0_f64; n];
            let mut want_p: Vec<f64> = p.iter().map(|&x| x.into()).collect();
            for t in 1..=4 {
                let grad = wave(n, 0.7 * t as f32);
                let mut update = grad.clone();
                with_isa(isa, || {
                    muon_momentum(&mut m, &mut update, &step);
                    muon_apply(&mut p, &update, 0.99, 0.1);
                });
                for i in 0..n {
                    let g = 0.5 * f64::from(grad[i]);
                    want_m[i] = beta * want_m[i] + (1.0 - beta) * g;
                    let u = if nesterov { (1.0 - beta) * g + beta * want_m[i] } else { want_m[i] };
                    want_p[i] = 0.99 * want_p[i] - 0.1 * u;
                }
            }
            close(&m, &want_m, 1e-6, &format!("{isa:?} momentum"));
            close(&p, &want_p, 1e-6, &format!("{isa:?} parameter"));
        }
    }
}

/// A row's place among tasks and lanes does not change its bits, nor its noise.
#[test]
fn pieces_have_the_bits_of_the_whole() {
    let (rows, columns) = (37, 1000);
    let n = rows * columns;
    let step = MuonMomentum { beta: 0.95, nesterov: true, grad_scale: 1.0 };
    let noise = Stream::new(5, "w").at(3);
    let start: Vec<bf16> = wave(n, 0.11).into_iter().map(bf16::from_f32).collect();
    let (mut m, mut g) = (start.clone(), wave(n, 0.13));
    muon_momentum_bf16(&mut m, &mut g, &step, noise, &[0..n as u64]);
    // Rows 3..11 and 20..37, columns 17..700.
    let mut at = Vec::new();
    let mut runs = Vec::new();
    for row in (3..11).chain(20..37) {
        at.extend((17..700).map(|c| row * columns + c));
        runs.push((row * columns + 17) as u64..(row * columns + 700) as u64);
    }
    let mut part: Vec<bf16> = at.iter().map(|&i| start[i]).collect();
    let all = wave(n, 0.13);
    let mut part_g: Vec<f32> = at.iter().map(|&i| all[i]).collect();
    muon_momentum_bf16(&mut part, &mut part_g, &step, noise, &runs);
    assert!(at.iter().zip(&part).all(|(&i, p)| m[i].to_bits() == p.to_bits()));
    assert!(at.iter().zip(&part_g).all(|(&i, p)| g[i].to_bits() == p.to_bits()));
}

/// What bf16 rounded to nearest loses, chance keeps in the mean; and what needs no rounding is not touched.
#[test]
fn rounding_by_chance_has_the_right_mean() {
    let n = 1 << 16;
    let runs = [0..n as u64];
    for value in [1.002_f32, -0.300_7, 1e-20, 3.0] {
        let mut to = vec![bf16::ZERO; n];
        round_stochastically(&vec![value; n], &mut to, Stream::new(1, "x"), &runs);
        let mean = to.iter().map(|v| v.to_f64()).sum::<f64>() / n as f64;
        let ulp = f64::from(value.abs()) / 128.0;
        // A uniform choice between neighbours has a deviation of half a unit at most.
        assert!((mean - f64::from(value)).abs() < 4.0 * 0.5 * ulp / (n as f64).sqrt(), "{value}: {mean}");
        assert!(to.iter().all(|v| (v.to_f64() - f64::from(value)).abs() < ulp), "{value}: neighbours only");
    }
    let mut to = vec![bf16::ZERO; 2];
    round_stochastically(
        &[f32::INFINITY, f32::NAN],
        &mut to,
        Stream::new(1, "x"),
        std::slice::from_ref(&(7..9)),
    );
    assert!(to[0].is_infinite() && to[1].is_nan());
}

#[test]
fn rows_and_second_moments() {
    let (rows, columns) = (29, 1301);
    for &isa in Isa::available() {
        let values = wave(rows * columns, 0.17);
        let squares = with_isa(isa, || row_squares(&values, columns));
        for (row, sum) in values.chunks(columns).zip(&squares) {
            let want: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            assert!((sum / want - 1.0).abs() < 1e-6, "{isa:?}: {sum} is not {want}");
        }
        let factors: Vec<f32> = (0..rows).map(|i| i as f32 - 3.5).collect();
        let mut scaled = values.clone();
        with_isa(isa, || scale_rows(&mut scaled, columns, &factors));
        assert!((0..rows * columns).all(|i| scaled[i] == values[i] * factors[i / columns]));

        let (mut o, mut v) =
            (values.clone(), wave(rows * columns, 0.05).iter().map(|x| x * x).collect::<Vec<_>>());
        let old = v.clone();
        with_isa(isa, || muon_adapt(&mut o, &mut v, 0.9, 1e-8));
        let want_v: Vec<f64> = (0..o.len())
            .map(|i| 0.9 * f64::from(old[i]) + (1.0 - 0.9_f64) * f64::from(values[i]).powi(2))
            .collect();
        let want_o: Vec<f64> =
            (0..o.len()).map(|i| f64::from(values[i]) / (want_v[i].sqrt() + 1e-8)).collect();
        close(&v, &want_v, 1e-6, "second moment");
        close(&o, &want_o, 1e-6, "direction");
    }
    assert!(row_squares(&[], 0).is_empty() && row_squares(&[], 4).is_empty());
}
