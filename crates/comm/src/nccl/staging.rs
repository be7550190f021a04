//! Elements as NCCL adds them up: in the wide type, which NCCL's own half-precision sums are not.

use burnish_core::Dtype;
use half::{bf16, f16};

use crate::transport::Bytes;
use crate::{Reduction, Wire};

/// What NCCL adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wide {
    F32,
    F64,
    U64,
}

/// What NCCL adds up as it is, with nothing left to do before or after.
pub(super) fn direct(dtype: Dtype, reduction: Reduction) -> Option<Wide> {
    match (reduction, dtype) {
        (Reduction::Sum, Dtype::F32) => Some(Wide::F32),
        (Reduction::Sum | Reduction::SumF64, Dtype::F64) => Some(Wide::F64),
        (Reduction::Sum, Dtype::I64) => Some(Wide::U64),
        _ => None,
    }
}

/// The elements in the type that a sum is taken in; `None` for what NCCL does not reduce as burnish does.
pub(super) fn widen(dtype: Dtype, reduction: Reduction, bytes: &Bytes) -> Option<(Wide, Bytes)> {
    fn to_f32<E: Wire<Wide = f32>>(bytes: &Bytes) -> Bytes {
        Bytes::from_vec(bytes.elements::<E>().iter().map(|&value| value.widen()).collect::<Vec<f32>>())
    }
    fn to_f64<E: Wire>(bytes: &Bytes) -> Bytes {
        Bytes::from_vec(bytes.elements::<E>().iter().map(|&value| value.to_f64()).collect::<Vec<f64>>())
    }
    match (reduction, dtype) {
        (Reduction::Sum | Reduction::Mean, Dtype::F32) => Some((Wide::F32, bytes.clone())),
        (Reduction::Sum | Reduction::Mean, Dtype::Bf16) => Some((Wide::F32, to_f32::<bf16>(bytes))),
        (Reduction::Sum | Reduction::Mean, Dtype::F16) => Some((Wide::F32, to_f32::<f16>(bytes))),
        (Reduction::Sum | Reduction::Mean | Reduction::SumF64, Dtype::F64) => {
            Some((Wide::F64, bytes.clone()))
        }
        (Reduction::SumF64, Dtype::F32) => Some((Wide::F64, to_f64::<f32>(bytes))),
        (Reduction::SumF64, Dtype::Bf16) => Some((Wide::F64, to_f64::<bf16>(bytes))),
        (Reduction::SumF64, Dtype::F16) => Some((Wide::F64, to_f64::<f16>(bytes))),
        (Reduction::Sum, Dtype::I64) => Some((Wide::U64, bytes.clone())),
        _ => None,
    }
}

/// The sum as elements of `dtype`, rounded once; divided by `ranks` for a mean.
pub(super) fn narrow(dtype: Dtype, reduction: Reduction, wide: Wide, bytes: &Bytes, ranks: usize) -> Bytes {
    let divisor = if reduction == Reduction::Mean { ranks } else { 1 };
    fn from_f32<E: Wire<Wide = f32>>(bytes: &Bytes, divisor: usize) -> Bytes {
        let round = |&sum: &f32| E::narrow(if divisor == 1 { sum } else { E::divide(sum, divisor) });
        Bytes::from_vec(bytes.elements::<f32>().iter().map(round).collect::<Vec<E>>())
    }
    fn from_f64<E: Wire>(bytes: &Bytes, divisor: usize) -> Bytes {
        let round = |&sum: &f64| E::from_f64(if divisor == 1 { sum } else { sum / divisor as f64 });
        Bytes::from_vec(bytes.elements::<f64>().iter().map(round).collect::<Vec<E>>())
    }
    match (wide, dtype) {
        (Wide::F32, Dtype::Bf16) => from_f32::<bf16>(bytes, divisor),
        (Wide::F32, Dtype::F16) => from_f32::<f16>(bytes, divisor),
        (Wide::F32, _) => from_f32::<f32>(bytes, divisor),
        (Wide::F64, Dtype::F32) => from_f64::<f32>(bytes, divisor),
        (Wide::F64, Dtype::Bf16) => from_f64::<bf16>(bytes, divisor),
        (Wide::F64, Dtype::F16) => from_f64::<f16>(bytes, divisor),
        (Wide::F64, _) => from_f64::<f64>(bytes, divisor),
        (Wide::U64, _) => bytes.clone(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_survives_widening_and_means_are_rounded_once() {
        let values = Bytes::from_vec(vec![bf16::from_f32(1.0), bf16::from_f32(3.0)]);
        for reduction in [Reduction::Sum, Reduction::SumF64] {
            let (wide, bytes) = widen(Dtype::Bf16, reduction, &values).unwrap();
            let back = narrow(Dtype::Bf16, reduction, wide, &bytes, 2);
            assert_eq!(back.elements::<bf16>(), values.elements::<bf16>());
        }
        let (wide, bytes) = widen(Dtype::Bf16, Reduction::Mean, &values).unwrap();
        let mean = narrow(Dtype::Bf16, Reduction::Mean, wide, &bytes, 4);
        assert_eq!(mean.elements::<bf16>(), [bf16::from_f32(0.25), bf16::from_f32(0.75)]);
        assert_eq!(widen(Dtype::F32, Reduction::Max, &Bytes::empty()).map(|(wide, _)| wide), None);
        assert_eq!(widen(Dtype::U8, Reduction::Sum, &Bytes::empty()).map(|(wide, _)| wide), None);
    }
}
