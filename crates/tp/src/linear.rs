//! A linear layer whose features are divided over ranks, made from Burn's.

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param,
};
use burn::nn;
use burn::tensor::{Device, Tensor, module};

use crate::parallelize::{self, Shard};
use crate::{Style, Tp, TpError};

/// A linear layer, whole or this rank's part of one: what `burn::nn::Linear` is in a module that is to be divided.
///
/// Made from Burn's by `into()` it is the same layer, and [`parallelize`](fn@crate::parallelize) divides it by a plan;
/// [`colwise`](Self::colwise) and [`rowwise`](Self::rowwise) divide one at once. [`forward`](Self::forward) is the whole
/// layer's then, with the collectives in it, so that a model's own forward stays as it is.
///
/// Attach adapters (`module.apply_lora(..)`) before dividing. Their factors are divided as PEFT's are, and run beside the
/// weight, never merged into it:
///
/// | | weight `[in, out]` | bias | `A` `[in, r]` | `B` `[r, out]` |
/// |---|---|---|---|---|
/// | column-parallel | columns | divided | whole | columns |
/// | row-parallel | rows | whole | rows | whole |
///
/// Every gradient is complete on the ranks that hold the tensor, so that any optimizer may step it as it is.
///
/// # Collectives
/// Every rank calls `forward`, and its backward, with the same layers in the same order. All-reduces in f32: of the input's
/// gradient (column-parallel) or of the output (row-parallel), and of an adapter's `[tokens, r]` in the same direction. The
/// first error is kept in [`Tp`]: results are zeros from then on, and [`Tp::check`] returns it.
#[derive(Module, Debug)]
pub struct Linear {
    sharding: Sharding,
    /// The weight, `[in, out]`, or this rank's part of it; with the adapter that was attached to it.
    pub weight: Param<Tensor<2>>,
    /// The bias, `[out]`, or this rank's part of it.
    pub bias: Option<Param<Tensor<1>>>,
}

impl From<nn::Linear> for Linear {
    fn from(linear: nn::Linear) -> Self {
        Self { sharding: Sharding(None), weight: linear.weight, bias: linear.bias }
    }
}

impl Linear {
    /// This rank's columns of a layer: its outputs are divided, its input is whole on every rank. Every rank calls it; the
    /// values are those of rank 0.
    ///
    /// # Errors
    /// If there are fewer outputs than ranks; if a rank fails.
    pub fn colwise(linear: nn::Linear, tp: &Tp) -> Result<Self, TpError> {
        parallelize::linear(linear, Style::Colwise, tp)
    }

    /// This rank's rows of a layer: its inputs are divided, as a column-parallel layer leaves them, its output is whole on
    /// every rank. Every rank calls it; the values are those of rank 0.
    ///
    /// # Errors
    /// If there are fewer inputs than ranks; if a rank fails.
    pub fn rowwise(linear: nn::Linear, tp: &Tp) -> Result<Self, TpError> {
        parallelize::linear(linear, Style::Rowwise, tp)
    }

    /// How it is divided; `None` if it is whole.
    #[must_use]
    pub fn style(&self) -> Option<Style> {
        self.sharding.0.as_ref().map(|shard| shard.style)
    }

    /// The layer's output.
    ///
    /// # Shapes
    /// - input: `[.., in]`, of a row-parallel layer `[.., this rank's in]`
    /// - output: `[.., out]`, of a column-parallel layer `[.., this rank's out]`
    ///
    /// # Panics
    /// If the input has another last dimension, or an adapter was attached to a layer that was divided already.
    #[must_use]
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let bias = self.bias.as_ref().map(Param::val);
        let Some(shard) = &self.sharding.0 else { return module::linear(input, self.weight.val(), bias) };
        let mut dims = input.dims();
        let x: Tensor<2> = input.reshape([-1, dims[D - 1] as i32]);
        let out = shard.forward(x, &self.weight, bias);
        dims[D - 1] = out.dims()[1];
        out.reshape(dims)
    }
}

/// How a layer is divided, if it is; a module without parameters.
#[derive(Clone, Debug)]
pub(crate) struct Sharding(pub(crate) Option<Shard>);

impl Module for Sharding {
    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn fork(self, _: &Device) -> Self {
        self
    }

    fn to_device(self, _: &Device) -> Self {
        self
    }

    fn train(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<V: ModuleVisitor>(&self, _: &mut V) {}

    fn map<M: ModuleMapper>(self, _: &mut M) -> Self {
        Self(parallelize::mapped(self.0))
    }
}

impl ModuleDisplayDefault for Sharding {
    fn content(&self, content: Content) -> Option<Content> {
        let style = self.0.as_ref().map_or_else(|| "whole".to_owned(), |shard| shard.style.to_string());
        content.add_formatted(&style).optional()
    }
}

impl ModuleDisplay for Sharding {}
