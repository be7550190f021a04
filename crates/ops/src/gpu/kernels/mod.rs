//! Bodies by kernels of burnish's own, on CubeCL's devices: each is `None` where a kernel does not compute it (another
//! device, f64), and its caller then computes it in Burn's operations.

mod adamw;
mod adapters;
mod conv_heads;
mod dropout;
mod expert_rows;
mod few_places;
mod few_rows;
mod flash;
mod gate;
mod gated_norm;
mod gemm;
mod grouped;
mod head_weights;
mod heads;
mod linear_attention;
mod logits;
mod norm;
mod pages;
mod product;
mod router;
mod rows;
mod selective_scan;
mod sums;
mod text_plans;

pub(super) use adamw::adam_steps;
pub(super) use adapters::{AdapterGradient, Adapters, Narrow, narrow};
pub(crate) use conv_heads::DeviceRows;
pub(super) use conv_heads::conv_heads;
pub(super) use dropout::dropped;
pub(super) use expert_rows::{
    ExpertGateBackward, ExpertRows, expert_gate, expert_gate_backward, sorts_experts, weighed_places,
};
pub(super) use few_places::{FewFinish, FewPlaces, few_places, few_places_by_codes};
pub(super) use few_rows::few_rows;
pub(crate) use flash::Plans;
pub(super) use flash::{Flash, FlashInput};
pub(super) use gate::{gate, gate_backward};
pub(super) use gated_norm::gated_norm;
pub(super) use gemm::{gemm, gemm_beside, multiplies};
pub(super) use grouped::{Beside, GROUP_ROWS, Groups, Stack, multiply_groups, sum_groups};
pub(super) use head_weights::head_weights;
pub(super) use heads::{Placing, place_heads, place_heads_backward};
pub(super) use linear_attention::{linear_attention, linear_attention_stepped};
pub(super) use logits::{logit_gradient, logit_parts};
pub(super) use norm::{rms_norm, rms_norm_backward};
pub(super) use pages::{Pools, attend_pages, copy_pages, duplicate_pages, words, write_pages};
pub(super) use product::product;
pub(super) use router::{choose_experts, choose_experts_backward, count_experts, probability_sums};
pub(super) use rows::{Places, gather_rows, scatter_rows};
pub(super) use selective_scan::{selective_scan, selective_scan_stepped};
pub(super) use sums::{accumulate, over_rows, sum_rows, sums_of_squares};
pub(crate) use text_plans::TextPlans;

use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::AnyTensor;

/// A kernel's output as the tensor that was asked for.
fn of_rank<const D: usize>(tensor: &AnyTensor) -> Tensor<D> {
    tensor.rank().expect("invariant: an output has the shape that was asked for")
}

/// A plan, and its words where a device has them.
#[derive(Debug)]
struct OnDevice<P> {
    plan: Arc<P>,
    words: Tensor<1, Int>,
}

impl<P> Clone for OnDevice<P> {
    fn clone(&self) -> Self {
        Self { plan: Arc::clone(&self.plan), words: self.words.clone() }
    }
}

impl<P> OnDevice<P> {
    fn new(plan: P, words: impl FnOnce(&P) -> &[u32], device: &Device) -> Self {
        let words = integers(words(&plan).iter().map(|word| word.cast_signed()).collect(), device);
        Self { plan: Arc::new(plan), words }
    }
}

/// Integers of 32 bits, whatever the device's default is.
pub(super) fn integers(values: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), (device, DType::I32))
}
