//! Packing of buckets from parameters and back: by slices in host memory, on the device elsewhere.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Device, FloatDType, Tensor};
use burnish_comm::{Bucket, Gathered, Wire};
use burnish_core::Dtype;
use burnish_ops::{AnyTensor, joined, on_host};
use burnish_quant::Quantized;
use burnish_tensor_comm::tensors;

use super::kept;
use super::typed::{Number, elements, shared};
use crate::bucket::{BucketPlan, Piece};
use crate::rows::rows_shape;
use crate::{Plan, ZeroError};

/// Elements of some values, one behind the other.
pub(super) fn part<E: Number>(pieces: Vec<(AnyTensor, Range<usize>)>, device: &Device) -> Bucket<E> {
    let all = pieces.iter().map(|(_, range)| range.len()).sum();
    if on_host(device) || all == 0 {
        let mut part = Vec::with_capacity(all);
        for (value, range) in pieces {
            part.extend_from_slice(&elements::<E>(&value)[range]);
        }
        return Bucket::new(part);
    }
    shared(&joined(pieces, &[all]))
}

/// The parameters of a bucket, whole, from every rank's part of it.
pub(super) fn wholes<E: Number>(
    plan: &Plan,
    bucket: &BucketPlan,
    parts: &Gathered<E>,
    device: &Device,
) -> Vec<(usize, AnyTensor)> {
    let there = (!on_host(device)).then(|| tensors(parts, device));
    let whole = |piece: &Piece| {
        let shape = rows_shape(&plan.registry().at(piece.parameter).shape, piece.layout.all_rows());
        let value = match &there {
            Some(parts) => assembled(piece, parts, &shape),
            None => AnyTensor::from_elements(bucket.whole(piece, |rank| parts.of(rank)), &shape, device),
        };
        (piece.parameter, value)
    };
    bucket.pieces.iter().map(whole).collect()
}

/// The parameters of a bucket that goes as bytes, whole, as they rest.
pub(super) fn packed_wholes(
    plan: &Plan,
    bucket: &BucketPlan,
    parts: &Gathered<u8>,
    device: &Device,
) -> Result<Vec<(usize, AnyTensor)>, ZeroError> {
    let whole = |piece: &Piece| {
        let parameter = plan.registry().at(piece.parameter);
        let quantization = parameter.quantization.expect("invariant: it goes as it rests");
        let of: Vec<&[u8]> = (0..piece.layout.ranks()).map(|rank| piece.of(rank, parts.of(rank))).collect();
        let whole = Quantized::from_bytes(quantization, parameter.as_matrix(1)[1], &of);
        let whole =
            whole.map_err(|source| ZeroError::Received { parameter: parameter.name.clone(), source })?;
        Ok((piece.parameter, kept::read(&Arc::new(whole), parameter, device)))
    };
    bucket.pieces.iter().map(whole).collect()
}

/// One parameter whole, from flat parts.
fn assembled(piece: &Piece, parts: &[AnyTensor], shape: &[usize]) -> AnyTensor {
    let of = |(rank, part): (usize, &AnyTensor)| {
        let start = piece.offsets[rank];
        (part.clone(), start..start + piece.layout.elements(rank).len())
    };
    joined(parts.iter().enumerate().map(of).collect(), shape)
}

/// The gradients `whole` of a bucket's pieces, in f32, in the bucket's order and the wire's type; one that is absent
/// counts as zeros.
pub(super) fn gradients<E: Number>(
    bucket: &BucketPlan,
    whole: &[Option<AnyTensor>],
    device: &Device,
) -> Bucket<E> {
    if !on_host(device) {
        return packed(bucket, whole, device);
    }
    let values: Vec<_> = whole.iter().map(|w| w.as_ref().map(elements::<f32>)).collect();
    let at = |piece: &Piece| {
        let position = bucket.pieces.iter().position(|p| p.parameter == piece.parameter);
        position.and_then(|p| values[p].as_deref())
    };
    Bucket::new(bucket.pack(at, append::<E>))
}

/// Appends f32 values in the wire's type.
fn append<E: Number>(out: &mut Vec<E>, values: &[f32]) {
    if <E as Wire>::DTYPE == Dtype::F32 {
        out.extend_from_slice(bytemuck::cast_slice(values));
    } else {
        out.extend(values.iter().map(|&x| E::narrow(x)));
    }
}

/// [`gradients`] that lie on a device.
fn packed<E: Number>(bucket: &BucketPlan, whole: &[Option<AnyTensor>], device: &Device) -> Bucket<E> {
    let mut pieces = Vec::new();
    for part in 0..bucket.parts() {
        for (piece, whole) in bucket.pieces.iter().zip(whole) {
            let range = piece.layout.elements(part);
            pieces.push(match whole {
                Some(whole) => (whole.clone(), range),
                None => {
                    let zeros = Tensor::<1>::zeros([range.len()], (device, DType::F32));
                    (AnyTensor::new(zeros), 0..range.len())
                }
            });
        }
    }
    let all = joined(pieces, &[bucket.elements()]);
    shared(&match <E as Wire>::DTYPE {
        Dtype::Bf16 => all.cast(FloatDType::BF16),
        Dtype::F16 => all.cast(FloatDType::F16),
        _ => all,
    })
}

/// `whole` with other elements in `range`.
pub(super) fn written<E: Number>(whole: AnyTensor, range: Range<usize>, values: &AnyTensor) -> AnyTensor {
    if whole.is_on_host() {
        let values = elements::<E>(values);
        return whole.edited::<E>(|whole| whole[range].copy_from_slice(&values));
    }
    replaced(&whole, range, values)
}

fn replaced(whole: &AnyTensor, range: Range<usize>, values: &AnyTensor) -> AnyTensor {
    let shape = whole.shape();
    let all = shape.iter().product();
    let (before, after) = (0..range.start, range.end..all);
    joined(vec![(whole.clone(), before), (values.clone(), 0..range.len()), (whole.clone(), after)], &shape)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use burnish_core::Split;
    use proptest::prelude::*;

    use super::*;
    use crate::bucket::{Purpose, fill};
    use crate::rows::by_rows;

    fn tensor(shape: &[usize], from: usize) -> AnyTensor {
        let values = (from..).take(shape.iter().product()).map(|i| i as f32).collect();
        AnyTensor::from_elements(values, shape, &Device::flex())
    }

    proptest! {
        /// What tensors do on a device is what slices do on the host.
        #[test]
        fn a_device_packs_and_unpacks_as_the_host(
            world in 1usize..5,
            shapes in prop::collection::vec(prop::collection::vec(1usize..7, 1..3), 1..5),
            absent in prop::collection::vec(any::<bool>(), 5),
        ) {
            let device = Device::flex();
            let mut loads = vec![0; world];
            let items: Vec<_> = shapes
                .iter()
                .enumerate()
                .map(|(i, shape)| (i, Dtype::F32, by_rows(shape, |rows, row| Split::by_load(rows, row, &mut loads).unwrap())))
                .collect();
            let values: Vec<AnyTensor> = shapes.iter().enumerate().map(|(i, s)| tensor(s, 100 * i + 1)).collect();
            let there: Vec<Option<AnyTensor>> =
                values.into_iter().zip(&absent).map(|(value, absent)| (!absent).then_some(value)).collect();
            let host: Vec<Option<Vec<f32>>> =
                there.iter().map(|v| v.as_ref().map(AnyTensor::to_f32)).collect();
            for bucket in fill("unit", Purpose::Reduce, 40, items) {
                let whole: Vec<_> = bucket.pieces.iter().map(|p| there[p.parameter].clone()).collect();
                let wire = packed::<f32>(&bucket, &whole, &device);
                let expected: Vec<f32> =
                    bucket.pack(|piece| host[piece.parameter].as_deref(), Vec::extend_from_slice);
                prop_assert_eq!(wire.as_slice(), &expected);
                let by_slice = gradients::<f32>(&bucket, &whole, &device);
                prop_assert_eq!(by_slice.as_slice(), &expected);
                let mut start = 0;
                let parts: Vec<AnyTensor> = bucket
                    .counts()
                    .into_iter()
                    .map(|count| {
                        start += count;
                        let part = expected[start - count..start].to_vec();
                        AnyTensor::from_elements(part, &[count], &device)
                    })
                    .collect();
                for piece in &bucket.pieces {
                    let shape = &shapes[piece.parameter];
                    let whole = assembled(piece, &parts, shape);
                    let zeros = vec![0.0; shape.iter().product()];
                    prop_assert_eq!(&whole.shape(), shape);
                    prop_assert_eq!(&whole.to_f32(), host[piece.parameter].as_ref().unwrap_or(&zeros));
                    let range = piece.layout.elements(world - 1);
                    let rows = tensor(&[range.len()], 7000);
                    let by_slice = written::<f32>(whole.clone(), range.clone(), &rows);
                    prop_assert_eq!(replaced(&whole, range, &rows).to_f32(), by_slice.to_f32());
                }
            }
        }
    }
}
