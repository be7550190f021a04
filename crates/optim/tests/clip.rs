//! `torch.nn.utils.clip_grad_norm_`, and the loss scale.

use burnish_core::{Dtype, Role};
use burnish_optim::{AdamW, AdamWOptions, Gradients, Unscale, all_here};

use crate::golden::{cases, number, numbers};
use crate::store::{Store, assert_close, registry, slot, step, tensor};

/// The norm is one f64 sum here, an f32 norm of f32 norms there: a few units of 6e-8.
const RELATIVE: f64 = 1e-6;

/// A first moment without decay is the gradient that the update saw.
const SHOWS_GRADIENT: AdamWOptions =
    AdamWOptions { beta1: 0.0, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: true };

#[test]
fn recorded_norms() {
    for (i, (file, case)) in cases("clip.json", |_| Ok(())).into_iter().enumerate() {
        let name = format!("{} case {i}", file.display());
        let gradients: Vec<Vec<f64>> = case["gradients"].as_array().unwrap().iter().map(numbers).collect();
        let shapes: Vec<Vec<usize>> = gradients.iter().map(|g| vec![g.len()]).collect();
        let parameters: Vec<_> = shapes.iter().map(|s| (Role::Matrix, s.as_slice(), Dtype::F32)).collect();
        let mut optimizer = AdamW::new(&registry(&parameters), SHOWS_GRADIENT);
        let tensors = |values: &[Vec<f64>]| -> Vec<_> {
            values
                .iter()
                .map(|g| tensor(&g.iter().map(|&x| x as f32).collect::<Vec<_>>(), &[g.len()]))
                .collect()
        };
        let store = Store::new(tensors(&gradients));
        let max_norm = Some(number(&case["max_norm"]));
        let applied = step(&mut optimizer, &store, tensors(&gradients), max_norm, 0.0).unwrap();
        let norm = number(&case["norm"]);
        assert!(
            (applied.grad_norm - norm).abs() <= RELATIVE * norm,
            "{name}: {} is not {norm}",
            applied.grad_norm
        );
        let slots = optimizer.slots();
        for (p, want) in case["clipped"].as_array().unwrap().iter().enumerate() {
            let got = slot(&slots, &format!("p{p}"), "exp_avg").unwrap();
            assert_close(&got, &numbers(want), RELATIVE, 0.0, &format!("{name}, tensor {p}"));
        }
    }
}

fn seen_gradient(loss_scale: f32, max_norm: Option<f64>) -> (f64, Vec<f32>) {
    let mut optimizer = AdamW::new(&registry(&[(Role::Matrix, &[2], Dtype::F32)]), SHOWS_GRADIENT);
    let store = Store::new([tensor(&[0.0, 0.0], &[2])]);
    let gradient = tensor(&[3.0 * loss_scale, -4.0 * loss_scale], &[2]);
    let reduced = Gradients::summed(vec![(0, gradient)]);
    let Ok(Unscale::Finite(unscaled)) = reduced.unscale(loss_scale, all_here::<()>) else { panic!("finite") };
    let norm = unscaled.norm();
    optimizer.step(unscaled.clip(max_norm), &store, 0.1);
    (norm, slot(&optimizer.slots(), "p0", "exp_avg").unwrap())
}

#[test]
fn without_a_limit_nothing_is_clipped() {
    for max_norm in [None, Some(0.0), Some(5.1)] {
        assert_eq!(seen_gradient(1.0, max_norm), (5.0, vec![3.0, -4.0]), "{max_norm:?}");
    }
}

#[test]
fn the_loss_scale_is_divided_out_before_the_norm() {
    assert_eq!(seen_gradient(1024.0, None), (5.0, vec![3.0, -4.0]));
    assert_eq!(seen_gradient(1024.0, Some(1.0)), seen_gradient(1.0, Some(1.0)));
    // 1 / (5 + 1e-6) of the gradient, to f32's 6e-8.
    assert_close(
        &seen_gradient(1.0, Some(1.0)).1,
        &[3.0 / 5.000_001, -4.0 / 5.000_001],
        1.2e-7,
        0.0,
        "clipped",
    );
}

/// The norm is of all ranks' rows: whatever `sum` makes of this rank's squares.
#[test]
fn the_norm_is_of_all_ranks_and_may_fail() {
    let summed = || Gradients::summed(vec![(4, tensor(&[6.0], &[1])), (7, tensor(&[4.0], &[1]))]);
    let Ok(Unscale::Finite(unscaled)) = summed().unscale(2.0, |squares| {
        assert_eq!(squares, [(4, 36.0), (7, 16.0)]);
        all_here::<()>(squares).map(|sum| 4.0 * sum)
    }) else {
        panic!("finite")
    };
    assert_eq!(unscaled.norm(), 52f64.sqrt());
    assert_eq!(summed().unscale(1.0, |_| Err("lost a rank")).unwrap_err(), "lost a rank");
}
