//! Writing a parameter outside the optimizer.

use burn::tensor::FloatDType;
use burnish_comm::Wire;
use burnish_core::Dtype;
use burnish_ops::AnyTensor;
use burnish_tensor_comm::tensor;

use super::typed::{by_dtype, cut, shared};
use super::{ShardedParams, expect, lock};
use crate::rows::rows_shape;
use crate::{GradReduction, ZeroError};

/// A parameter's whole value, to be changed and committed.
///
/// [`commit`](Self::commit) makes one rank's value that of all ranks. A guard that was changed and dropped changes
/// nothing, and [`ShardedParams::check`] reports it.
#[must_use = "a change is kept only by `commit`"]
pub struct WriteGuard<'a> {
    store: &'a ShardedParams,
    index: usize,
    value: AnyTensor,
    changed: bool,
}

impl ShardedParams {
    /// The whole value of the parameter at `index`, to be changed. Every rank calls it.
    ///
    /// # Errors
    /// If it rests in fewer bits; if gathering fails; the first error of this store.
    pub fn write(&self, index: usize) -> Result<WriteGuard<'_>, ZeroError> {
        let target = self.plan.placement(index).target;
        if self.plan.registry().at(target).quantization.is_some() {
            return Err(ZeroError::Quantized { parameter: self.name(target) });
        }
        let value = self.kept_error(self.value(index))?;
        Ok(WriteGuard { store: self, index: target, value, changed: false })
    }
}

impl WriteGuard<'_> {
    /// The value as it is in this guard.
    #[must_use]
    pub fn value(&self) -> &AnyTensor {
        &self.value
    }

    /// Puts another value in its place.
    ///
    /// # Errors
    /// If it has another shape or dtype.
    pub fn set(&mut self, value: AnyTensor) -> Result<(), ZeroError> {
        let rows = self.store.plan.placement(self.index).layout.all_rows();
        expect(self.store.plan.registry().at(self.index), "the written value", &value, rows)?;
        self.value = value.plain();
        self.changed = true;
        Ok(())
    }

    /// Changes the elements, in f32 and row-major order; they are then rounded to the stored dtype.
    pub fn edit(&mut self, change: impl FnOnce(&mut [f32])) {
        let mut values = self.value.to_f32();
        change(&mut values);
        self.value = by_dtype!(self.store.plan.registry().at(self.index).precision.store, E => {
            let values: Vec<E> = values.into_iter().map(<E as Wire>::narrow).collect();
            AnyTensor::from_elements(values, &self.value.shape(), &self.store.device)
        });
        self.changed = true;
    }

    /// Makes the value of rank `writer` that of all ranks, at rest and in what is read from now on. `refresh` gets this
    /// rank's rows in f32 if the parameter trains: the optimizer's master is to be replaced by them. Every rank calls it.
    ///
    /// # Errors
    /// If a rank fails; the first error of this store.
    pub fn commit(mut self, writer: usize, refresh: impl FnOnce(usize, AnyTensor)) -> Result<(), ZeroError> {
        let (store, index) = (self.store, self.index);
        self.changed = false;
        store.check_failure()?;
        let parameter = store.plan.registry().at(index);
        let layout = &store.plan.placement(index).layout;
        let whole = store.kept_error(by_dtype!(parameter.precision.store, E => {
            let what = format!("{}: write", parameter.name);
            store.step.broadcast(shared::<E>(&self.value), writer, &what).wait().map(|values| {
                tensor(values, &rows_shape(&parameter.shape, layout.all_rows()), &store.device)
            })
        }))?;
        let rows = |rows: std::ops::Range<usize>| {
            let range = rows.start * layout.row()..rows.end * layout.row();
            if rows == (0..layout.all_rows()) {
                return whole.clone();
            }
            cut(&whole, range, &rows_shape(&parameter.shape, rows.len()), &store.device)
        };
        store.keep(index, rows(store.plan.kept_rows(index, store.rank)));
        store.forget_gathered();
        if store.plan.placement(index).summed != GradReduction::Never {
            let own = rows(store.rows(index));
            refresh(index, if own.dtype() == Some(Dtype::F32) { own } else { own.cast(FloatDType::F32) });
        }
        Ok(())
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        if self.changed {
            lock(&self.store.uncommitted).push(self.store.name(self.index));
        }
    }
}

impl std::fmt::Debug for WriteGuard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "WriteGuard({}{})",
            self.store.name(self.index),
            if self.changed { ", changed" } else { "" }
        )
    }
}
