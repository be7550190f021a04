//! Forward and backward of whole documents.

use super::case::{Case, Problem, cases};
use super::{assert_close, for_each_path, pool, reference, widen};
use crate::attention::{AttentionGrad, AttentionOut, attention_backward, attention_forward};

fn forward(p: &Problem) -> AttentionOut {
    attention_forward(&p.qkv, &p.shape(), p.rotary().as_ref(), p.norm().as_ref())
}

fn backward(p: &Problem, f: &AttentionOut) -> AttentionGrad {
    let (rotary, norm) = (p.rotary(), p.norm());
    attention_backward(&p.qkv, &p.shape(), rotary.as_ref(), norm.as_ref(), &f.out, &f.lse, &p.d_out)
}

fn check(case: Case, seed: u64) {
    let p = case.problem(seed);
    let (rotary, norm) = (p.rotary(), p.norm());
    let qkv = widen(&p.qkv);
    let want = reference::forward(&qkv, &p.shape(), rotary.as_ref(), norm.as_ref());
    let slopes = reference::backward(&qkv, &p.shape(), rotary.as_ref(), norm.as_ref(), &widen(&p.d_out));
    let label = |what: &str| format!("{what} of {:?}", p.case);
    for_each_path(|| {
        let got = forward(&p);
        assert_close(&label("out"), &got.out, &want.out, 2e-6);
        assert_close(&label("lse"), &got.lse, &want.lse, 2e-6);
        let grad = backward(&p, &got);
        assert_close(&label("dqkv"), &grad.dqkv, &slopes.dqkv, 4e-6);
        assert_eq!(grad.dq_norm.is_some(), p.case.norm);
        assert_eq!(grad.d_sinks.is_some(), !p.case.sinks.is_empty());
        if let Some(sinks) = &grad.d_sinks {
            assert_close(&label("d_sinks"), sinks, &slopes.d_sinks, 4e-6);
        }
        if let (Some(q), Some(k)) = (&grad.dq_norm, &grad.dk_norm) {
            assert_close(&label("dq_norm"), q, &slopes.dq_norm, 4e-6);
            assert_close(&label("dk_norm"), k, &slopes.dk_norm, 4e-6);
        }
    });
}

#[test]
fn forward_and_backward_equal_the_reference() {
    for (i, case) in cases().into_iter().enumerate() {
        check(case, 17 * i as u64 + 1);
    }
}

#[test]
fn reference_gradient_equals_finite_differences() {
    let p = Case::new(4, 2, 6, &[5, 3]).rotary(4).softcap(1.5).window(3).norm().sinks().gaps(1).problem(5);
    let (rotary, norm, d_out) = (p.rotary(), p.norm(), widen(&p.d_out));
    let mut x = widen(&p.qkv);
    let want = reference::backward(&x, &p.shape(), rotary.as_ref(), norm.as_ref(), &d_out);
    let loss = |x: &[f64]| -> f64 {
        let f = reference::forward(x, &p.shape(), rotary.as_ref(), norm.as_ref());
        f.out.iter().zip(&d_out).map(|(a, b)| a * b).sum()
    };
    for i in 0..x.len() {
        let (old, step) = (x[i], 1e-5);
        x[i] = old + step;
        let up = loss(&x);
        x[i] = old - step;
        let slope = (up - loss(&x)) / (2.0 * step);
        x[i] = old;
        assert!((slope - want.dqkv[i]).abs() < 1e-7, "dqkv[{i}]: {slope} against {}", want.dqkv[i]);
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    for case in [
        Case::new(4, 2, 32, &[300, 41]).rotary(32).norm(),
        Case::new(2, 1, 16, &[2600]).rotary(16).norm(),
        Case::new(8, 4, 64, &[64; 9]).rotary(64),
    ] {
        let p = case.problem(3);
        let run = |threads| {
            pool(threads).install(|| {
                let f = forward(&p);
                let g = backward(&p, &f);
                (f.out, f.lse, g.dqkv, g.dq_norm, g.dk_norm)
            })
        };
        let one = run(1);
        for threads in [2, 3, 16] {
            assert!(run(threads) == one, "{threads} threads differ from one on {:?}", p.case);
        }
    }
}

#[test]
fn rows_outside_documents_are_zero() {
    let p = Case::new(2, 1, 8, &[10, 7]).rotary(8).norm().gaps(2).problem(9);
    let f = forward(&p);
    let g = backward(&p, &f);
    let inside = |t: usize| p.case.documents.iter().any(|d| d.contains(&t));
    for t in (0..p.case.rows).filter(|&t| !inside(t)) {
        assert!(f.out[t * 16..(t + 1) * 16].iter().all(|&x| x == 0.0));
        assert!(g.dqkv[t * 32..(t + 1) * 32].iter().all(|&x| x == 0.0));
    }
}

#[test]
fn a_long_document_equals_the_reference_at_its_end() {
    // The last queries of a long document see every block of keys; the f64 reference of those rows alone is cheap.
    let n = 9000;
    let p = Case::new(2, 1, 16, &[n]).rotary(16).problem(77);
    let got = forward(&p);
    let whole = widen(&p.qkv);
    let rotary = p.rotary();
    for t in [4095, 4096, 5000, n - 1] {
        let want = reference::last_row(&whole[..(t + 1) * 64], &p.shape(), rotary.as_ref());
        assert_close("out", &got.out[t * 32..(t + 1) * 32], &want, 2e-6);
    }
}

#[test]
#[should_panic(expected = "overlap")]
fn overlapping_documents_are_refused() {
    let mut case = Case::new(1, 1, 4, &[4, 4]);
    case.documents[1] = 3..8;
    forward(&case.problem(1));
}
