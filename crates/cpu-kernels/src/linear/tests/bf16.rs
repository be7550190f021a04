//! Products of bfloat16 operands: exact where rounding takes nothing, near the f64 reference elsewhere.

use super::*;

fn bf16(case: Case) -> Case {
    Case { compute: Compute::Bf16, ..case }
}

/// `got` is `want` but for `share` of its length as a vector; of `top` per element where larger terms cancel.
fn near(got: &[f32], want: &[f64], top: f64, share: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let length = want.iter().map(|w| w * w).sum::<f64>().max(top * top * want.len() as f64).sqrt();
    let error = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum::<f64>().sqrt();
    assert!(error <= share * length.max(1e-20), "{what}: off by {error:e} of {length:e}");
}

fn compare_near(case: &Case) {
    let want = case.reference();
    Isa::available().iter().for_each(|&isa| compare_near_with(&want, case, isa));
}

fn compare_near_with(want: &Want, case: &Case, isa: Isa) {
    with_isa(isa, || {
        let what = format!("{isa:?} {case:?}");
        let (out, grad) = case.run();
        near(&out.y, &want.y, 0.0, 8e-3, &format!("{what}: y"));
        near(grad.dx.as_ref().unwrap(), &want.dx, 0.0, 1e-2, &format!("{what}: dx"));
        for (j, m) in case.magnitude_grads(&out).iter().enumerate() {
            if let Some(m) = m {
                let want = &want.linears[j];
                near(m, &want.m, want.m_top, 1e-2, &format!("{what}: magnitude {j}"));
            }
        }
        if let Some(dgamma) = &grad.dgamma {
            near(dgamma, &want.dgamma, 0.0, 1e-2, &format!("{what}: dgamma"));
        }
        for (j, (g, w)) in grad.linears.iter().zip(&want.linears).enumerate() {
            near(g.weight.as_ref().unwrap(), &w.weight, 0.0, 1e-2, &format!("{what}: weight {j}"));
            for (name, g, w) in [
                ("bias", g.found(Bias), &w.bias),
                ("a", g.found(LoraA), &w.a),
                ("b", g.found(LoraB), &w.b),
                ("b_bias", g.found(LoraBBias), &w.b_bias),
            ] {
                assert_eq!(g.is_some(), !w.is_empty(), "{what}: {name} {j} present");
                if let Some(g) = g {
                    near(g, w, 0.0, 1e-2, &format!("{what}: {name} {j}"));
                }
            }
        }
    });
}

/// Whole numbers: the same bits as in fp32, forward and backward, with every tail, storage and dropout.
#[test]
fn whole_numbers_are_exact() {
    for &isa in Isa::available() {
        for (i, (tokens, dim, outs, rank)) in [
            (1, 1, vec![1], 1),
            (5, 5, vec![7, 33], 0),
            (13, 33, vec![5, 1, 40], 3),
            (64, 100, vec![16], 17),
            (65, 512, vec![70], 16),
            (66, 515, vec![9, 130], 63),
            (131, 600, vec![31], 8),
            (200, 37, vec![1100], 64),
        ]
        .into_iter()
        .enumerate()
        {
            for dropout in [0.0, 0.5] {
                let case = Case {
                    whole: true,
                    bias: i % 2 == 0,
                    residual: i % 3 == 0,
                    storage: i % 3,
                    dropout,
                    ..Case::new(tokens, dim, &outs, rank)
                };
                with_isa(isa, || {
                    let ((want, want_grad), (got, grad)) = (case.run(), bf16(case.clone()).run());
                    let what = format!("{isa:?} {case:?}");
                    assert!(got.y == want.y && got.saved.t == want.saved.t, "{what}");
                    assert!(grad.dx == want_grad.dx, "{what}: dx");
                    assert!(grad.linears == want_grad.linears, "{what}: parameters");
                });
            }
        }
    }
}

#[test]
fn every_input_storage_and_part_on_every_isa() {
    for (i, kind) in KINDS.into_iter().enumerate() {
        let case = Case {
            kind,
            bias: i % 2 == 0,
            residual: i % 3 == 0,
            storage: i % 3,
            ..Case::new([70, 200, 33][i % 3], [70, 129, 515][(i + 1) % 3], &[33, 16, 90], [17, 8, 0][i % 3])
        };
        compare_near(&bf16(case.clone()));
        compare_near(&bf16(Case { dropout: 0.3, ..case.clone() }));
        for keep in [false, true] {
            let magnitude = Some(keep);
            let kept = Case { magnitude, bias: false, residual: false, ..case.clone() };
            compare_near(&bf16(kept.clone()));
            if keep {
                compare_near(&bf16(Case { dropout: 0.3, ..kept }));
            }
        }
    }
}

/// The instruction and its emulation differ by the order of two sums at most.
#[test]
fn every_isa_gives_the_same_to_rounding() {
    let fp32 = Case { kind: Kind::Norm, bias: true, ..Case::new(150, 300, &[130, 70], 16) };
    let case = bf16(fp32.clone());
    let (want, want_grad) = with_isa(Isa::EmulatedAmx, || case.run());
    for &isa in Isa::available() {
        let (got, grad) = with_isa(isa, || case.run());
        if !isa.has_bf16_dots() {
            let (want, want_grad) = with_isa(isa, || fp32.run());
            assert!(got.y == want.y && grad.dx == want_grad.dx, "{isa:?} has no products of bfloat16");
            continue;
        }
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        // A norm's last bit may decide a rounding: 2^-8 of few elements.
        near(&got.y, &wide(&want.y), 0.0, 1e-4, &format!("{isa:?}: y"));
        near(&grad.dx.unwrap(), &wide(want_grad.dx.as_ref().unwrap()), 0.0, 1e-4, &format!("{isa:?}: dx"));
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    let case = bf16(Case { kind: Kind::Gate, bias: true, ..Case::new(700, 96, &[200, 64], 8) });
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| case.run())
    };
    let (one, one_grad) = run(1);
    for threads in [2, 5] {
        let (out, grad) = run(threads);
        assert!(out.y == one.y && grad.dx == one_grad.dx && grad.linears == one_grad.linears, "{threads}");
    }
}

#[test]
fn a_token_has_the_same_output_in_any_batch() {
    let case = bf16(Case { kind: Kind::Norm, bias: true, ..Case::new(200, 100, &[40, 16], 8) });
    let (whole, _) = case.run();
    for tokens in [1, 30, 65] {
        let (part, _) = case.first(tokens).run();
        assert_eq!(part.y, whole.y[..tokens * 56], "{tokens} tokens");
    }
}

#[test]
#[should_panic(expected = "layers of one group have one `compute`")]
fn a_group_of_two_kinds_is_refused() {
    let w = [0.0; 4];
    let layer = |compute| Linear { out: 2, weight: Weight::F32(&w), bias: None, low_rank: None, compute };
    let layers = [layer(Compute::Fp32), layer(Compute::Bf16)];
    let _ = linears_forward(1, 2, Input::Plain(&[0.0; 2]), &layers, None);
}

/// Decoding from bfloat16 multiplies pairs where they lie: near the reference, a token's bits whatever its batch, and exact
/// on whole numbers. An odd depth has no pairs, other storage no bfloat16: both are decoded in fp32.
#[test]
fn decoding_is_near_and_a_token_keeps_its_bits() {
    for &isa in Isa::available() {
        // The last in blocks of which one is not whole, of pairs too.
        for (j, dim) in [2, 5, 34, 100, 700].into_iter().enumerate() {
            for storage in 0..3 {
                let case = bf16(Case {
                    kind: KINDS[j % KINDS.len()],
                    bias: j % 2 == 0,
                    storage,
                    ..Case::new(32, dim, &[7, 33, 301], [0, 1, 17][j % 3])
                });
                let decode = |case: &Case| with_isa(isa, || case.decode());
                let (whole, want) = (decode(&case), case.reference());
                near(&whole, &want.y, 0.0, 8e-3, &format!("{isa:?} {case:?}"));
                for tokens in [1, 3, 8, 17] {
                    assert_eq!(
                        decode(&case.first(tokens)),
                        whole[..tokens * 341],
                        "{isa:?} {case:?}: {tokens}"
                    );
                }
                let whole = Case { whole: true, kind: KINDS[0], ..case };
                let exact = Case { compute: Compute::Fp32, ..whole.clone() };
                assert_eq!(decode(&whole), decode(&exact), "{isa:?} {whole:?}");
            }
        }
    }
}
