//! An operation on a device whose backend is not compiled in says so, and which feature compiles it.
//!
//! Burn has its CPU backend here and this crate, built without default features, has not:
//! `cargo test -p burnish-ops --no-default-features --test no_backend`. With the feature the same operation runs.

use burn::tensor::{Device, Tensor};
use burnish_ops::{AnyTensor, OpsError, rms_norm};

fn normed(tracked: bool) -> Result<AnyTensor, OpsError> {
    let device = Device::flex();
    let x = AnyTensor::new(Tensor::<2>::ones([2, 4], &device));
    let gamma = AnyTensor::new(Tensor::<1>::ones([4], &device));
    rms_norm(&if tracked { x.leaf() } else { x }, &gamma, 1e-6)
}

#[test]
#[cfg(not(feature = "flex"))]
fn what_is_to_be_recorded_is_refused_with_the_feature_that_is_missing() {
    let error = normed(true).expect_err("no backend to record on");
    assert!(
        matches!(&error, OpsError::NoBackend { op: "rms_norm", device, feature: "flex" } if device.contains("Flex")),
        "{error:?}"
    );
    let said = error.to_string();
    assert!(said.contains("Flex") && said.contains("build with its feature `flex`"), "{said}");
    assert!(!said.contains("checkpointing"), "{said}");
}

#[test]
#[cfg(feature = "flex")]
fn what_is_compiled_is_recorded() {
    assert!(normed(true).expect("a backend").is_tracked());
}

#[test]
fn what_is_not_recorded_runs_on_burns_operations() {
    let y = normed(false).expect("no backend is asked for").to_f32();
    assert!(y.iter().all(|y| (y - 1.0).abs() < 1e-5), "{y:?}");
}
