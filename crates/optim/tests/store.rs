//! A model that is nothing but its parameters.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::tensor::{DType, Device, TensorData};
use burnish_core::random::Stream;
use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_ops::AnyTensor;
use burnish_optim::{
    AdamW, Applied, Gradients, LearningRates, MatrixGather, Optimizer, ParamStorage, SlotTensor, Unscale,
    all_here,
};

/// Values by parameter index.
pub(crate) struct Store(RefCell<BTreeMap<usize, AnyTensor>>);

impl Store {
    pub(crate) fn new(values: impl IntoIterator<Item = AnyTensor>) -> Self {
        Self(RefCell::new(values.into_iter().enumerate().collect()))
    }

    /// All values, in f32.
    pub(crate) fn f32(&self, index: usize) -> Vec<f32> {
        self.0.borrow()[&index].to_f32()
    }

    pub(crate) fn data(&self, index: usize) -> TensorData {
        self.0.borrow()[&index].to_data()
    }
}

impl ParamStorage for Store {
    fn take(&self, index: usize) -> AnyTensor {
        self.0.borrow_mut().remove(&index).unwrap()
    }

    fn put(&self, index: usize, value: AnyTensor) {
        assert!(self.0.borrow_mut().insert(index, value).is_none(), "put without take");
    }
}

pub(crate) fn tensor(values: &[f32], shape: &[usize]) -> AnyTensor {
    AnyTensor::from_data(TensorData::new(values.to_vec(), shape.to_vec()), &Device::flex())
}

pub(crate) fn tensor_f64(values: &[f64], shape: &[usize]) -> AnyTensor {
    AnyTensor::from_data(TensorData::new(values.to_vec(), shape.to_vec()), &Device::flex())
}

/// The values rounded to `dtype`, as a tensor of it.
pub(crate) fn rounded(values: &[f32], shape: &[usize], dtype: DType) -> AnyTensor {
    AnyTensor::from_data(
        TensorData::new(values.to_vec(), shape.to_vec()).convert_dtype(dtype),
        &Device::flex(),
    )
}

/// `count` standard normal values.
pub(crate) fn normal(name: &str, count: usize) -> Vec<f32> {
    (0..count).map(|i| Stream::new(11, name).normal(i as u64)).collect()
}

/// Trained parameters `p0`, `p1`, ... of these roles, shapes and stored dtypes.
pub(crate) fn registry(parameters: &[(Role, &[usize], Dtype)]) -> Registry {
    let mut registry = Registry::new();
    for (i, &(role, shape, dtype)) in parameters.iter().enumerate() {
        let mut parameter = Parameter::new(format!("p{i}"), shape, role, dtype);
        parameter.trainable = true;
        registry.add(parameter).unwrap();
    }
    registry
}

/// Gradients of one rank, ready for the step; `None` when they are not finite.
pub(crate) fn step(
    optimizer: &mut AdamW,
    store: &Store,
    gradients: Vec<AnyTensor>,
    max_norm: Option<f64>,
    lr: f64,
) -> Option<Applied> {
    let reduced = Gradients::summed(gradients.into_iter().enumerate().collect());
    match reduced.unscale(1.0, all_here::<std::convert::Infallible>).unwrap() {
        Unscale::Finite(unscaled) => Some(optimizer.step(unscaled.clip(max_norm), store, lr)),
        Unscale::Skipped { norm } => {
            assert!(!norm.is_finite());
            None
        }
    }
}

/// As [`step`], of an optimizer that may have a Muon half.
pub(crate) fn step_with<E: std::fmt::Debug>(
    optimizer: &mut Optimizer,
    store: &Store,
    gradients: Vec<(usize, AnyTensor)>,
    max_norm: Option<f64>,
    rates: LearningRates,
    assembly: &mut dyn MatrixGather<Error = E>,
) -> Option<Applied> {
    let reduced = Gradients::summed(gradients);
    match reduced.unscale(1.0, all_here::<std::convert::Infallible>).unwrap() {
        Unscale::Finite(unscaled) => {
            Some(optimizer.step(unscaled.clip(max_norm), store, assembly, rates).unwrap())
        }
        Unscale::Skipped { .. } => None,
    }
}

pub(crate) fn slot(slots: &[SlotTensor], parameter: &str, slot: &str) -> Option<Vec<f32>> {
    slots.iter().find(|s| s.parameter == parameter && s.slot == slot).map(|s| s.tensor.to_f32())
}

#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f64], relative: f64, floor: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let difference = (f64::from(g) - w).abs();
        assert!(
            difference <= relative * w.abs().max(floor),
            "{what} [{i}]: {g} is not {w}, by {difference:e}"
        );
    }
}
