//! Every operation against its reference body.

mod attention;
mod head;
mod linears;
mod optimizer;
mod rows;

use burn::tensor::DType;
use burnish_device::DeviceKind;

use crate::case::Case;
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
    /// Many products after each other.
    Iterated,
}

impl Bound {
    /// That of products with weights of a dtype.
    pub(crate) fn of(dtype: DType) -> Self {
        if dtype == DType::F32 { Self::Product } else { Self::Half }
    }

    fn value(self, tolerance: &Tolerance) -> f64 {
        match self {
            Self::Plain | Self::PlainHalf => tolerance.plain,
            Self::Product => tolerance.product,
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
            Bound::Plain | Bound::Product | Bound::Iterated => {}
        }
        case().compare(&context.device, bound.value(&context.tolerance()))
    })
}

pub(crate) fn checks() -> Vec<Check> {
    let mut all = linears::checks();
    all.extend(attention::checks());
    all.extend(head::checks());
    all.extend(rows::checks());
    all.extend(optimizer::checks());
    all
}

/// A dtype's name in the table.
pub(crate) fn name_of(dtype: DType) -> &'static str {
    if dtype == DType::F32 { "f32" } else { "bf16" }
}
