#![allow(clippy::unwrap_used, reason = "tests")]

mod bf16;
mod int8;
mod reference;

use super::*;
use crate::simd::{isa, with_isa};
use burnish_core::LinearPart::{self, Bias, LoraA, LoraB, LoraBBias};
use burnish_core::{Activation, Compute};
use proptest::prelude::*;
use reference::{Case, Kind, Want, row_norm, values};

/// Forward and every gradient of `case` against the f64 reference on each of `isas`.
fn compare(case: &Case, isas: &[Isa]) {
    let want = case.reference();
    isas.iter().for_each(|&isa| compare_with(&want, case, isa));
}

fn compare_with(want: &Want, case: &Case, isa: Isa) {
    with_isa(isa, || {
        let what = format!("{isa:?} {case:?}");
        let (out, grad) = case.run();
        close(&out.y, &want.y, &format!("{what}: y"));
        close_to(grad.dx.as_ref().unwrap(), &want.dx, want.dx_top, &format!("{what}: dx"));
        for (j, m) in case.magnitude_grads(&out).iter().enumerate() {
            assert_eq!(m.is_some(), case.has_magnitude(j));
            if let Some(m) = m {
                let want = &want.linears[j];
                close_to(m, &want.m, want.m_top, &format!("{what}: magnitude {j}"));
            }
        }
        if let Some(dgamma) = &grad.dgamma {
            close(dgamma, &want.dgamma, &format!("{what}: dgamma"));
        }
        assert_eq!(grad.dbeta.is_some(), case.kind == Kind::Layer(true), "{what}: dbeta");
        if let Some(dbeta) = &grad.dbeta {
            close(dbeta, &want.dbeta, &format!("{what}: dbeta"));
        }
        for (j, (g, w)) in grad.linears.iter().zip(&want.linears).enumerate() {
            close(g.weight.as_ref().unwrap(), &w.weight, &format!("{what}: weight {j}"));
            for (name, g, w) in [
                ("bias", g.found(Bias), &w.bias),
                ("a", g.found(LoraA), &w.a),
                ("b", g.found(LoraB), &w.b),
                ("b_bias", g.found(LoraBBias), &w.b_bias),
            ] {
                assert_eq!(g.is_some(), !w.is_empty(), "{what}: {name} {j} present");
                if let Some(g) = g {
                    close(g, w, &format!("{what}: {name} {j}"));
                }
            }
        }
    });
}

fn close(got: &[f32], want: &[f64], what: &str) {
    close_to(got, want, 0.0, what);
}

/// Within 1e-5 of the largest value, or of `top` where terms that large cancel.
fn close_to(got: &[f32], want: &[f64], top: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let top = want.iter().fold(top.max(1e-20), |m, x| m.max(x.abs()));
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!(
            (f64::from(g) - w).abs() <= 1e-5 * top,
            "{what}: element {i} is {g}, not {w} (largest {top})"
        );
    }
}

const KINDS: [Kind; 7] = [
    Kind::Plain,
    Kind::Norm,
    Kind::Gate,
    Kind::Layer(true),
    Kind::Layer(false),
    Kind::Act(Activation::GeluTanh, true),
    Kind::Act(Activation::Gelu, false),
];

const ACTIVATIONS: [Activation; 5] =
    [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Relu2];

#[test]
fn every_activation_on_every_isa() {
    for activation in ACTIVATIONS {
        for gated in [true, false] {
            for (tokens, rank) in [(5, 0), (70, 0), (70, 3)] {
                let kind = Kind::Act(activation, gated);
                compare(&Case { kind, ..Case::new(tokens, 37, &[9], rank) }, Isa::available());
            }
        }
    }
}

#[test]
fn activations_far_from_zero() {
    for &isa in Isa::available() {
        let x: Vec<f32> = (-130..=130).map(|i| i as f32 * 0.25).collect();
        for activation in ACTIVATIONS {
            let (one, compute) = ([1.0], Compute::Fp32);
            let layer = Linear { out: 1, weight: Weight::F32(&one), bias: None, low_rank: None, compute };
            let input = Input::Activated { x: &x, activation, gated: false };
            let y = with_isa(isa, || linears_forward(x.len(), 1, input, &[layer], None).y);
            for (x, y) in x.iter().zip(y) {
                let want = if activation == Activation::Gelu && x.abs() > 6.0 {
                    f64::from(x.max(0.0))
                } else {
                    reference::activated(activation, f64::from(*x)).0
                };
                let error = (f64::from(y) - want).abs();
                assert!(error < 5e-7 * (1.0 + want.abs()), "{isa:?} {activation:?} of {x}: {y}, not {want}");
            }
        }
    }
}

#[test]
fn ranks_tokens_and_dims_on_every_isa() {
    for (i, &rank) in [1, 8, 16, 17, 64].iter().enumerate() {
        for (j, &tokens) in [1, 13, 64, 65, 200].iter().enumerate() {
            let dim = [5, 16, 33, 100, 512][(i + j) % 5];
            let outs = [vec![7, 33], vec![16], vec![5, 1, 40]][(i + 2 * j) % 3].clone();
            let case = Case {
                kind: KINDS[(i + 3 * j) % KINDS.len()],
                bias: j % 2 == 0,
                ..Case::new(tokens, dim, &outs, rank)
            };
            compare(&case, Isa::available());
        }
    }
}

/// What backward reads, to the bit, and zeros.
#[test]
fn an_output_that_nobody_reads_is_not_made() {
    for &isa in Isa::available() {
        for kind in KINDS {
            for (tokens, rank, dropout) in [(13, 0, 0.0), (13, 8, 0.3), (150, 17, 0.0), (150, 5, 0.2)] {
                let case = Case { kind, dropout, residual: true, ..Case::new(tokens, 70, &[33, 40], rank) };
                let [read, unread] = with_isa(isa, || case.forwards());
                assert!(read.saved.t == unread.saved.t, "{isa:?} {case:?}");
                assert!(read.saved.rstd == unread.saved.rstd, "{isa:?} {case:?}");
                assert!(read.saved.z.iter().chain(&unread.saved.z).all(Option::is_none));
                assert!(unread.y.len() == read.y.len() && unread.y.iter().all(|y| *y == 0.0));
            }
        }
    }
}

#[test]
fn wide_layers_and_large_ranks() {
    for kind in KINDS {
        let case = Case { kind, ..Case::new(150, 300, &[512, 100], 200) };
        compare(&case, &[isa(), Isa::Portable]);
    }
}

#[test]
fn dropout_reaches_the_branch_alone() {
    for kind in KINDS {
        for (tokens, rank) in [(13, 8), (130, 17)] {
            let case = Case { kind, dropout: 0.3, ..Case::new(tokens, 70, &[33, 16], rank) };
            compare(&case, Isa::available());
        }
    }
}

#[test]
fn storage_types_and_no_branch() {
    for storage in [1, 2] {
        for tokens in [3, 90] {
            compare(&Case { storage, bias: true, ..Case::new(tokens, 50, &[40, 9], 0) }, Isa::available());
            compare(&Case { storage, ..Case::new(tokens, 37, &[64], 5) }, Isa::available());
        }
    }
}

#[test]
fn residual_is_added() {
    for tokens in [5, 100] {
        for rank in [0, 4] {
            let case = Case { residual: true, bias: true, ..Case::new(tokens, 300, &[40, 9], rank) };
            compare(&case, &[isa(), Isa::Portable]);
        }
    }
}

/// A group of layers too large for one pass of packed weights.
#[test]
fn several_passes() {
    for (kind, dropout) in [(Kind::Plain, 0.0), (Kind::Norm, 0.2)] {
        let case = Case { kind, dropout, residual: true, ..Case::new(70, 40, &[220_000], 3) };
        compare_forward_and_dx(&case);
        let case = Case { kind, dropout, ..Case::new(70, 3000, &[3000], 3) };
        compare_forward_and_dx(&case);
        // Of one layer two slices, the second with the next layers.
        let case = Case { kind, dropout, ..Case::new(70, 700, &[3300, 90, 200], 3) };
        compare_forward_and_dx(&case);
    }
}

/// The input's gradient in the place of the input is the gradient, bit for bit, with all others: of few and many rows, of
/// several passes over the columns, behind dropout, and where it has to be the input once more for `A`.
#[test]
fn in_place_is_the_same() {
    let kinds = [Kind::Gate, Kind::Act(Activation::GeluTanh, true), Kind::Act(Activation::Relu2, false)];
    for kind in kinds {
        for compute in [Compute::Fp32, Compute::Bf16] {
            for (tokens, dim, outs, rank) in
                [(1, 5, &[7][..], 3), (70, 40, &[33], 4), (70, 40, &[9, 20], 2), (40, 3000, &[3000], 3)]
            {
                for (dropout, bias) in [(0.0, true), (0.3, false)] {
                    let case = Case { kind, compute, dropout, bias, ..Case::new(tokens, dim, outs, rank) };
                    let (_, apart) = case.run_frozen();
                    let (grad, x) = case.run_in_place();
                    assert_eq!(grad.dx, None, "{case:?}");
                    assert_eq!(Some(&x), apart.dx.as_ref(), "{case:?}: dx");
                    assert_eq!(grad.linears, apart.linears, "{case:?}");
                }
            }
        }
    }
}

/// As [`compare`] without the base weights' gradients, on the fastest path.
fn compare_forward_and_dx(case: &Case) {
    let (out, grad) = case.run_frozen();
    let want = case.reference_frozen();
    close(&out.y, &want.y, &format!("{case:?}: y"));
    close_to(grad.dx.as_ref().unwrap(), &want.dx, want.dx_top, &format!("{case:?}: dx"));
    for (got, want) in grad.linears.iter().zip(&want.linears) {
        close(got.found(LoraA).unwrap(), &want.a, &format!("{case:?}: a"));
        close(got.found(LoraB).unwrap(), &want.b, &format!("{case:?}: b"));
    }
    if let Some(dgamma) = &grad.dgamma {
        close(dgamma, &want.dgamma, &format!("{case:?}: dgamma"));
    }
}

/// The directional derivative of the fused inputs, by central differences in f64 of the reference's
/// forward and by the kernel's backward.
#[test]
fn finite_differences_of_the_fused_inputs() {
    for kind in KINDS {
        let case = Case { kind, ..Case::new(9, 21, &[10, 6], 3) };
        let (_, grad) = case.run();
        let (dx, dy) = (grad.dx.unwrap(), case.dy());
        let direction = values(dx.len(), 99);
        let along = |h: f64| -> f64 {
            let y = case.shifted(&direction, h);
            y.iter().zip(&dy).map(|(y, d)| y * f64::from(*d)).sum()
        };
        let want = (along(1e-5) - along(-1e-5)) / 2e-5;
        let got: f64 = dx.iter().zip(&direction).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        assert!((got - want).abs() < 1e-5 * want.abs().max(1.0), "{kind:?}: {got} is not {want}");
    }
}

fn all_bits(case: &Case) -> Vec<u32> {
    let (out, grad) = case.run();
    let mut all = vec![out.y, grad.dx.unwrap()];
    all.extend(grad.dgamma);
    all.extend(grad.dbeta);
    for g in grad.linears {
        all.extend(g.into_iter().filter_map(|(_, gradient)| gradient));
    }
    all.iter().flatten().map(|x| x.to_bits()).collect()
}

#[test]
fn same_bits_with_any_number_of_threads() {
    for case in [
        Case { kind: Kind::Norm, bias: true, dropout: 0.1, ..Case::new(300, 100, &[40, 16], 8) },
        Case { kind: Kind::Gate, ..Case::new(515, 33, &[65], 4) },
        Case { magnitude: Some(true), dropout: 0.1, ..Case::new(300, 100, &[40, 16], 8) },
        Case { kind: Kind::Plain, ..Case::new(40, 64, &[64, 64], 4) },
        Case { kind: Kind::Layer(true), ..Case::new(300, 100, &[40, 16], 8) },
        Case { kind: Kind::Act(Activation::Gelu, false), ..Case::new(515, 33, &[65], 4) },
    ] {
        let bits = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| all_bits(&case))
        };
        let one = bits(1);
        assert!(one == bits(2) && one == bits(3) && one == bits(2), "{case:?}");
    }
}

/// Columns (few tokens) and rows (many) are two schedules of one sum.
#[test]
fn a_token_has_the_same_output_in_any_batch() {
    let case = Case { kind: Kind::Norm, bias: true, ..Case::new(200, 100, &[40, 16], 8) };
    let (whole, _) = case.run();
    for tokens in [1, 30, 65] {
        let (part, _) = case.first(tokens).run();
        assert_eq!(part.y, whole.y[..tokens * 56], "{tokens} tokens");
    }
}

/// An input so wide that the forward goes over it in slices, the last one of them no whole block: the sums are those of few
/// tokens, which are made at once, to the bit; with dropout, under a magnitude and behind every kind of input.
#[test]
fn slices_of_a_wide_input_add_up() {
    for (i, compute) in [Compute::Fp32, Compute::Bf16].into_iter().enumerate() {
        let dim = [2500, 5001][i];
        for (kind, rank, dropout, magnitude) in [
            (Kind::Gate, 3, 0.0, None),
            (Kind::Norm, 17, 0.2, None),
            (Kind::Layer(true), 0, 0.0, None),
            (Kind::Gate, 5, 0.0, Some(true)),
        ] {
            let (outs, bias) = (if kind == Kind::Gate { vec![900, 33] } else { vec![2000, 1000] }, true);
            let residual = kind != Kind::Norm;
            let case =
                Case { kind, compute, bias, residual, dropout, magnitude, ..Case::new(70, dim, &outs, rank) };
            let (total, [whole, unread]) = (outs.iter().sum::<usize>(), case.forwards());
            let [few, _] = case.first(40).forwards();
            assert!(few.y == whole.y[..40 * total], "{case:?}: y");
            assert!(whole.saved.t == unread.saved.t, "{case:?}: t");
            assert!(whole.saved.rstd == unread.saved.rstd, "{case:?}: rstd");
        }
    }
    for kind in [Kind::Gate, Kind::Norm] {
        let (dropout, magnitude) = (0.3, Some(true));
        let case = Case { kind, dropout, magnitude, residual: true, ..Case::new(5, 2500, &[2000, 1000], 3) };
        compare_forward_and_dx(&case);
    }
}

/// Decoding sums along vectors: the same values up to rounding, and the same bits in any batch.
#[test]
fn decoding_agrees_and_a_token_keeps_its_bits() {
    for (i, &isa) in Isa::available().iter().enumerate() {
        // The last, and its rank, in blocks of which one is not whole.
        for (j, dim) in [5, 16, 33, 100, 700].into_iter().enumerate() {
            let case = Case {
                kind: KINDS[(i + 3 * j) % KINDS.len()],
                bias: j % 2 == 0,
                residual: j % 3 != 0,
                storage: (i + j) % 3,
                magnitude: (j % 2 == 1).then_some(false),
                ..Case::new(70, dim, &[7, 33, 301], [0, 1, 17, 0, 300][j])
            };
            let decode = |tokens: usize| with_isa(isa, || case.first(tokens).decode());
            let (whole, want) = (decode(32), case.reference());
            for tokens in [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 17, 31] {
                assert_eq!(decode(tokens), whole[..tokens * 341], "{isa:?} {case:?}: {tokens} tokens");
            }
            close(&whole, &want.y[..32 * 341], &format!("{isa:?} {case:?}"));
            close(&decode(70), &want.y, &format!("{isa:?} {case:?}: many tokens"));
        }
    }
    // Dropout belongs to the packed path.
    let dropped = Case { dropout: 0.3, ..Case::new(4, 40, &[9], 3) };
    assert_eq!(dropped.decode(), dropped.run().0.y);
}

#[test]
fn only_what_is_wanted() {
    let case = Case { kind: Kind::Norm, bias: true, ..Case::new(70, 20, &[12, 8], 3) };
    let (out, full) = case.run();
    for bits in 0_u32..128 {
        let on = |i: u32| bits >> i & 1 == 1;
        let parts = [LinearPart::Weight, Bias, LoraA, LoraB, LoraBBias];
        let asked: Vec<LinearPart> = (2..).zip(parts).filter(|&(i, _)| on(i)).map(|(_, part)| part).collect();
        let wanted = Wanted {
            dx: on(0),
            dgamma: on(1),
            dbeta: false,
            linears: vec![LinearParts::of(&asked), LinearParts::of(&[])],
        };
        let grad = case.backward(&out.saved, &wanted);
        assert!(grad.dx == full.dx.clone().filter(|_| on(0)));
        assert!(grad.dgamma == full.dgamma.clone().filter(|_| on(1)));
        let (g, f) = (&grad.linears[0], &full.linears[0]);
        for (i, part) in (2..).zip(parts) {
            assert!(g.found(part) == f.found(part).filter(|_| on(i)));
        }
        assert!(grad.linears[1].iter().all(|(_, gradient)| gradient.is_none()));
    }
}

#[test]
fn no_tokens() {
    let case = Case { kind: Kind::Norm, bias: true, ..Case::new(0, 20, &[12, 8], 3) };
    let (out, grad) = case.run();
    assert!(out.y.is_empty() && grad.dx.unwrap().is_empty());
    assert!(grad.linears[0].weight.as_ref().unwrap().iter().all(|&x| x == 0.0));
    assert!(grad.dgamma.unwrap().iter().all(|&x| x == 0.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Any shape agrees with the reference.
    #[test]
    fn any_shape(
        tokens in 1_usize..140, dim in 1_usize..90, outs in proptest::collection::vec(1_usize..70, 1..4),
        rank in 0_usize..40, kind in 0_usize..KINDS.len(), bias: bool, dropout in prop_oneof![Just(0.0_f32), 0.05_f32..0.6],
        storage in 0_usize..3, residual: bool, portable: bool, magnitude: bool,
    ) {
        let magnitude = magnitude.then_some(true);
        let case = Case {
            kind: KINDS[kind], bias, dropout, storage, residual, magnitude, ..Case::new(tokens, dim, &outs, rank)
        };
        compare(&case, &[if portable { Isa::Portable } else { isa() }]);
    }
}

#[test]
fn magnitudes_scale_rows_with_and_without_dropout() {
    let all = Isa::available();
    for (i, kind) in KINDS.into_iter().enumerate() {
        for (tokens, rank) in [(5, 3), (64, 8), (130, 17)] {
            let case = Case { kind, ..Case::new(tokens, 70, &[33, 16, 9], rank) };
            let (storage, bias) = (i, tokens == 130);
            // Where the output alone must do, there is neither bias nor residual.
            compare(&Case { storage, magnitude: Some(false), ..case.clone() }, all);
            let kept = Case { storage, bias, magnitude: Some(true), ..case };
            compare(&kept, all);
            compare(&Case { residual: true, ..kept.clone() }, all);
            compare(&Case { dropout: 0.3, residual: bias, ..kept }, all);
        }
    }
}

fn large_with_magnitude() -> Case {
    Case { magnitude: Some(true), ..Case::new(70, 40, &[220_000], 3) }
}

#[test]
fn magnitudes_scale_rows_of_a_large_layer() {
    compare_forward_and_dx(&large_with_magnitude());
}

#[test]
fn magnitudes_scale_rows_of_a_large_layer_after_a_norm_with_dropout() {
    compare_forward_and_dx(&Case { kind: Kind::Norm, dropout: 0.2, ..large_with_magnitude() });
}

/// A magnitude that is the norm changes nothing, to the bit.
#[test]
fn a_magnitude_equal_to_the_norm_is_no_change() {
    let values = |n, seed| values(n, seed);
    let (x, w, a) = (values(7 * 40, 1), values(9 * 40, 2), values(2 * 40, 3));
    let b = vec![0.0; 9 * 2];
    let norm: Vec<f32> =
        squared_row_norms(9, 40, Weight::F32(&w), 2, &a, &b, 2.0).iter().map(|n| n.sqrt() as f32).collect();
    let run = |magnitude| {
        let low = LowRank { rank: 2, a: &a, b: &b, b_bias: None, scale: 2.0, dropout: None, magnitude };
        let (weight, compute) = (Weight::F32(&w), Compute::Fp32);
        let layer = Linear { out: 9, weight, bias: None, low_rank: Some(low), compute };
        linears_forward(7, 40, Input::Plain(&x), &[layer], None).y
    };
    for keep in [false, true] {
        assert_eq!(run(Some(Magnitude { m: &norm, norm: &norm, keep })), run(None));
    }
}

#[test]
fn norms_of_rows_and_columns() {
    for &isa in Isa::available() {
        with_isa(isa, || {
            for (rows, columns, rank) in [(1, 5, 1), (57, 33, 3), (200, 1030, 40), (120, 64, 0)] {
                let (w, a, b) =
                    (values(rows * columns, 1), values(rank * columns, 2), values(rows * rank, 3));
                let narrow: Vec<_> = w.iter().map(|&x| half::bf16::from_f32(x)).collect();
                let wide: Vec<f32> = narrow.iter().map(|x| x.to_f32()).collect();
                for (weight, w) in [(Weight::F32(&w), &w), (Weight::Bf16(&narrow), &wide)] {
                    let got = squared_row_norms(rows, columns, weight, rank, &a, &b, 0.7);
                    for (o, got) in got.iter().enumerate() {
                        let want = row_norm(w, &a, &b, (o, columns, rank), 0.7);
                        assert!((got.sqrt() - want).abs() < 1e-6 * want, "{isa:?} row {o}: {got} {want}");
                    }
                    // The same matrix as a table: A is [rank, rows] there, B [columns, rank].
                    let (table_a, table_b) = (transpose(&b, rank), transpose(&a, columns));
                    let got = squared_column_norms(rows, columns, weight, rank, &table_a, &table_b, 0.7);
                    let (t, ta, tb) = (transpose(w, columns), &table_a, &table_b);
                    for (c, got) in got.iter().enumerate() {
                        let want = row_norm(&t, ta, tb, (c, rows, rank), 0.7);
                        assert!((got.sqrt() - want).abs() < 1e-6 * want, "{isa:?} column {c}: {got} {want}");
                    }
                }
            }
        });
    }
}

/// `[rows, columns]` to `[columns, rows]`.
fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns.max(1);
    (0..values.len()).map(|i| values[i % rows * columns + i / rows]).collect()
}
