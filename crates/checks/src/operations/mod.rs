//! Every operation against its reference body.

mod attention;
mod codes;
mod dispatcher;
mod experts;
mod head;
mod linear_attention;
mod linears;
mod optimizer;
mod rows;
mod selective_scan;
mod streams;

use std::ops::Range;

use burn::tensor::{DType, Tensor};
use burnish_device::DeviceKind;
use burnish_ops::{AnyTensor, OpsError};

use crate::case::{Case, Input};
use crate::check::LeftOut;
use crate::{Check, Tolerance};

/// Which bound a case is held to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// Sums and elementwise arithmetic.
    Plain,
    /// The same from tensors at rest in bf16.
    PlainHalf,
    /// Products in f32.
    Product,
    /// Products with bf16 weights.
    Half,
    /// Products of bf16 activations, which the processor's kernels take in f32 only.
    HalfActivations,
    /// A few products in f32, one of what the other gave: each adds what it rounds.
    Chained,
    /// Many products after each other.
    Iterated,
}

impl Bound {
    /// That of products with weights of a dtype.
    pub(crate) fn of(dtype: DType) -> Self {
        if dtype == DType::F32 { Self::Product } else { Self::Half }
    }

    /// That of products one of what the other gave, with weights of a dtype.
    pub(crate) fn chained(dtype: DType) -> Self {
        if dtype == DType::F32 { Self::Chained } else { Self::Half }
    }

    fn value(self, tolerance: &Tolerance) -> f64 {
        match self {
            Self::Plain | Self::PlainHalf => tolerance.plain,
            Self::Product => tolerance.product,
            Self::Chained => 3.0 * tolerance.product,
            Self::Half | Self::HalfActivations | Self::Iterated => tolerance.half,
        }
    }
}

/// The check of a case.
pub(crate) fn check(name: impl Into<String>, bound: Bound, case: impl Fn() -> Case + 'static) -> Check {
    Check::new("operation", name, move |context| {
        match bound {
            Bound::HalfActivations if context.kind == DeviceKind::Cpu => {
                return Err(LeftOut("activations are f32 on the processor".to_owned()).into());
            }
            Bound::PlainHalf | Bound::Half | Bound::HalfActivations => context.has_half()?,
            Bound::Plain | Bound::Product | Bound::Chained | Bound::Iterated => {}
        }
        case().compare(&context.device, bound.value(&context.tolerance()))
    })
}

pub(crate) fn checks() -> Vec<Check> {
    let mut all = linears::checks();
    all.extend(attention::checks());
    all.extend(head::checks());
    all.extend(rows::checks());
    all.extend(streams::checks());
    all.extend(experts::checks());
    all.extend(dispatcher::checks());
    all.extend(linear_attention::checks());
    all.extend(selective_scan::checks());
    all.extend(optimizer::checks());
    all.extend(codes::checks());
    all
}

/// An operation whose reference is itself in f64.
fn itself(inputs: Vec<Input>, run: impl Fn(&[AnyTensor]) -> Result<AnyTensor, OpsError> + 'static) -> Case {
    Case { inputs, run: Box::new(move |_, t| run(t)) }
}

/// A dtype's name in the table.
pub(crate) fn name_of(dtype: DType) -> &'static str {
    if dtype == DType::F32 { "f32" } else { "bf16" }
}

/// Rows of a matrix, piece behind piece.
fn rows_of(x: &AnyTensor, pieces: &[Range<usize>]) -> Result<AnyTensor, OpsError> {
    let x = x.rank::<2>()?;
    let rows = pieces.iter().filter(|piece| !piece.is_empty());
    let rows = rows.map(|piece| x.clone().narrow(0, piece.start, piece.len())).collect();
    Ok(AnyTensor::new(Tensor::cat(rows, 0)))
}

/// The rows of each sequence in order, sequence behind sequence.
fn one_behind_the_other<const N: usize>(sequences: [Vec<Tensor<2>>; N]) -> AnyTensor {
    AnyTensor::new(Tensor::cat(sequences.into_iter().flatten().collect(), 0))
}
