//! The largest score of each head.
#![allow(clippy::single_range_in_vec_init, reason = "one document")]

use super::case::{Case, Problem, cases};
use super::{assert_close, for_each_path, pool, reference, widen};
use crate::attention::{AttentionShape, attention_forward, attention_forward_peaks};

fn peaks(p: &Problem) -> Vec<f32> {
    attention_forward_peaks(&p.qkv, &p.shape(), p.rotary().as_ref(), p.norm().as_ref()).1
}

#[test]
fn peaks_equal_the_reference_and_outputs_do_not_change() {
    for_each_path(|| {
        for (i, case) in cases().into_iter().enumerate() {
            let p = case.problem(29 * i as u64 + 3);
            let (rotary, norm) = (p.rotary(), p.norm());
            let (out, got) = attention_forward_peaks(&p.qkv, &p.shape(), rotary.as_ref(), norm.as_ref());
            let plain = attention_forward(&p.qkv, &p.shape(), rotary.as_ref(), norm.as_ref());
            assert!(out.out == plain.out && out.lse == plain.lse, "{:?}", p.case);
            let want = reference::peaks(&widen(&p.qkv), &p.shape(), rotary.as_ref(), norm.as_ref());
            assert_close(&format!("peaks of {:?}", p.case), &got, &want, 2e-6);
        }
    });
}

/// Small integers, whose products every order of sums gives exactly.
fn whole(mut p: Problem) -> Problem {
    p.qkv.iter_mut().for_each(|x| *x = (*x * 4.0).round());
    p
}

#[test]
fn peaks_are_exact() {
    let visible = [
        Case::new(4, 2, 16, &[70, 33, 1]).gaps(2),
        Case::new(4, 1, 16, &[70, 33]).window(5),
        Case::new(6, 2, 64, &[1500]).window(1100),
        Case::new(4, 2, 16, &[1300, 40]).softcap(30.0),
        Case::new(4, 2, 16, &[1300, 40]).slopes(),
    ];
    for_each_path(|| {
        for case in visible.clone() {
            let p = whole(case.problem(11));
            let got = peaks(&p);
            let want = reference::peaks(&widen(&p.qkv), &p.shape(), None, None);
            assert_eq!(got.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), want, "{:?}", p.case);
        }
    });
}

#[test]
fn hidden_pairs_do_not_count() {
    // Rows of q | k | v of one dimension pair; every key but the first of each document is seen too late or too early.
    let row = |q: f32, k: f32| [q, 0.0, k, 0.0, 0.0, 0.0];
    let rows = [row(1.0, 2.0), row(1.0, 3.0), row(0.0, 50.0), row(-1.0, 70.0), row(90.0, 1.0)];
    let qkv = rows.concat();
    let peak = |window, documents: &[std::ops::Range<usize>]| {
        let shape = AttentionShape {
            heads: 1,
            kv_heads: 1,
            head_dim: 2,
            scale: 1.0,
            softcap: None,
            slopes: &[],
            sinks: &[],
            window,
            documents,
            parents: &[],
            compute: Default::default(),
        };
        attention_forward_peaks(&qkv, &shape, None, None).1
    };
    assert_eq!(peak(None, &[0..2]), [3.0]);
    assert_eq!(peak(None, &[0..3]), [3.0]);
    // The last row sees all, and only itself.
    assert_eq!(peak(None, &[0..5]), [6300.0]);
    assert_eq!(peak(Some(1), &[0..5]), [90.0]);
    assert_eq!(peak(None, &[0..2, 2..4, 4..5]), [90.0]);
    assert_eq!(peak(None, &[3..4]), [-70.0]);
    assert_eq!(peak(None, &[]), [f32::NEG_INFINITY]);
}

#[test]
fn peaks_do_not_depend_on_threads() {
    for case in [Case::new(4, 2, 32, &[300, 41]).rotary(32).norm(), Case::new(8, 4, 64, &[64; 9]).rotary(64)]
    {
        let p = case.problem(3);
        let one = pool(1).install(|| peaks(&p));
        for threads in [2, 3, 16] {
            assert!(pool(threads).install(|| peaks(&p)) == one, "{threads} threads differ on {:?}", p.case);
        }
    }
}

#[test]
fn what_is_not_finite_shows() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut p = Case::new(4, 2, 8, &[40]).problem(8);
        // The second key head's key of row 3: seen by the last two query heads.
        p.qkv[3 * 64 + 5 * 8] = bad;
        let got = peaks(&p);
        assert!(got[..2].iter().all(|x| x.is_finite()) && got[2..].iter().all(|x| x.is_nan()), "{got:?}");
    }
}
