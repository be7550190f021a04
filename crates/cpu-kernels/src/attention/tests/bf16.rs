//! Attention whose products are of bfloat16, against the f64 reference.

use super::case::{Case, Problem, cases};
use super::{for_each_path, pool, reference, widen};
use crate::attention::{AttentionGrad, AttentionOut, attention_backward, attention_forward};
use burnish_core::Compute;

fn problem(case: Case, seed: u64) -> Problem {
    Case { compute: Compute::Bf16, ..case }.problem(seed)
}

fn run(p: &Problem) -> (AttentionOut, AttentionGrad) {
    let (rotary, norm) = (p.rotary(), p.norm());
    let f = attention_forward(&p.qkv, &p.shape(), rotary.as_ref(), norm.as_ref());
    let g = attention_backward(&p.qkv, &p.shape(), rotary.as_ref(), norm.as_ref(), &f.out, &f.lse, &p.d_out);
    (f, g)
}

/// The length of the error over that of the result.
fn error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    assert!(got.iter().all(|x| x.is_finite()));
    let off: f64 = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum();
    (off / want.iter().map(|w| w * w).sum::<f64>().max(1e-12)).sqrt()
}

#[test]
fn forward_and_backward_are_near_the_reference() {
    for (i, case) in cases().into_iter().enumerate() {
        let p = problem(case, 17 * i as u64 + 1);
        let (rotary, norm, qkv) = (p.rotary(), p.norm(), widen(&p.qkv));
        let want = reference::forward(&qkv, &p.shape(), rotary.as_ref(), norm.as_ref());
        let slopes = reference::backward(&qkv, &p.shape(), rotary.as_ref(), norm.as_ref(), &widen(&p.d_out));
        for_each_path(|| {
            let (f, g) = run(&p);
            let off = error(&f.out, &want.out);
            assert!(off < 6e-3, "out of {:?}: {off}", p.case);
            // A log-sum-exp's error is one of the probabilities' logarithms, whatever its own size.
            let off = f.lse.iter().zip(&want.lse).map(|(&g, w)| (f64::from(g) - w).abs()).fold(0.0, f64::max);
            assert!(off < 2e-2, "lse of {:?}: {off}", p.case);
            // One visible key leaves queries and keys without a gradient but rounding's.
            let off = error(&g.dqkv, &slopes.dqkv);
            assert!(off < 1.5e-2, "dqkv of {:?}: {off}", p.case);
            if let (Some(q), Some(k)) = (&g.dq_norm, &g.dk_norm) {
                assert!(error(q, &slopes.dq_norm) < 3e-2, "dq_norm of {:?}", p.case);
                assert!(error(k, &slopes.dk_norm) < 3e-2, "dk_norm of {:?}", p.case);
            }
        });
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    for case in [
        Case::new(4, 2, 32, &[300, 41]).rotary(32).norm(),
        Case::new(2, 1, 16, &[2600]).rotary(16).norm(),
        Case::new(8, 4, 64, &[64; 9]).rotary(64),
        Case::new(3, 1, 34, &[77, 5]).window(9),
    ] {
        let p = problem(case, 3);
        let on = |threads| {
            pool(threads).install(|| {
                let (f, g) = run(&p);
                (f.out, f.lse, g.dqkv, g.dq_norm, g.dk_norm)
            })
        };
        let one = on(1);
        for threads in [2, 7, 16] {
            assert!(on(threads) == one, "{threads} threads differ from one: {:?}", p.case);
        }
    }
}
