//! Slopes against finite differences and known derivatives.

use super::*;

/// Central differences in both variables.
fn check(name: &str, f: impl Fn(Dual, Dual) -> Dual) {
    for (x, y) in [(-1.7, 0.4), (0.3, 1.1), (2.2, -0.6), (-0.2, -3.0)] {
        let h = 1e-6;
        let value = |x: f64, y: f64| f(Dual::constant(x), Dual::constant(y)).value;
        let got = f(Dual::first(x), Dual::second(y));
        assert_eq!(got.value, value(x, y), "{name}");
        let want = [
            (value(x + h, y) - value(x - h, y)) / (2.0 * h),
            (value(x, y + h) - value(x, y - h)) / (2.0 * h),
        ];
        for i in 0..2 {
            assert!(
                (got.slope[i] - want[i]).abs() < 1e-7 * want[i].abs().max(1.0),
                "{name}: {got:?} {want:?}"
            );
        }
    }
}

#[test]
fn slopes_are_derivatives() {
    check("exp", |x, y| (x * y).exp() - y);
    check("square", |x, y| (x - y * 3.0).square());
    check("sigmoid", |x, y| (x * 2.0 - y).sigmoid() * y);
    check("log_sigmoid", |x, y| -(x + y * 0.5).log_sigmoid() + 2.0);
    check("relu", |x, y| (x - y - 0.1).relu());
    check("clamps", |x, y| (x * y).at_most(0.5).at_least(-0.5));
    check("min", |x, y| x.min(y * 0.7));
}

#[test]
fn corners() {
    assert_eq!(Dual::first(0.0).relu().slope, [0.0, 0.0]);
    assert_eq!(Dual::first(2.0).at_most(2.0).slope, [1.0, 0.0]);
    assert_eq!(Dual::first(2.0).at_least(2.0).slope, [1.0, 0.0]);
    assert_eq!(Dual::first(1.0).min(Dual::second(1.0)).slope, [0.5, 0.5]);
}

#[test]
fn far_from_zero() {
    for x in [-800.0, 800.0] {
        let d = Dual::first(x);
        assert!(d.log_sigmoid().value.is_finite() && d.log_sigmoid().slope[0].is_finite());
        assert!((0.0..=1.0).contains(&d.sigmoid().value));
    }
    assert_eq!(log_sigmoid(-800.0), -800.0);
}
