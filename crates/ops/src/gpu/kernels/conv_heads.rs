//! A convolution, SiLU and heads of unit length.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn::tensor::{DType, Device};
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::conv_heads::{ConvRows, Kernel, OP, UnitHeads};
use crate::cube::{Inputs, launch, launch_all};
use crate::gpu::to;
use crate::{AnyTensor, OpsError, apply};

/// [`ConvRows`] in a device's memory: the rows that tokens read, and who reads each row, which backward asks for.
#[derive(Debug)]
struct Words {
    rows: kernels::Buffer,
    readers: OnceLock<kernels::ConvReaders>,
}

/// The words of [`ConvRows`] on the first device that asked for them.
#[derive(Debug, Default)]
pub(crate) struct DeviceRows(Mutex<Option<(Device, Arc<Words>)>>);

impl ConvRows {
    fn words(&self, client: &kernels::Client, device: &Device) -> Arc<Words> {
        let mut held = self.on_device.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((on, words)) = &*held
            && on == device
        {
            return words.clone();
        }
        let rows = self.rows.iter().flatten().map(|row| row.cast_unsigned()).collect();
        let rows = kernels::Buffer::of_words(client, rows);
        let words = Arc::new(Words { rows, readers: OnceLock::new() });
        *held = Some((device.clone(), words.clone()));
        words
    }

    fn readers<'w>(&self, client: &kernels::Client, words: &'w Words) -> &'w kernels::ConvReaders {
        words.readers.get_or_init(|| {
            kernels::ConvReaders::of_rows(client, &self.rows.concat(), self.rows[0].len(), self.of)
        })
    }
}

/// See [`crate::conv_heads()`]; `None` where no kernel computes it.
pub(in crate::gpu) fn conv_heads(
    x: &AnyTensor,
    (kernel, bias): Kernel<'_>,
    units: Option<&UnitHeads>,
    rows: &Arc<ConvRows>,
) -> Option<Result<AnyTensor, OpsError>> {
    let inputs: Vec<AnyTensor> = [x, kernel].into_iter().chain(bias).cloned().collect();
    Inputs::of(&inputs.iter().collect::<Vec<_>>())?;
    let &[all, channels] = x.shape().as_slice() else { return None };
    let (taps, tokens) = (rows.rows.len(), rows.rows[0].len());
    if tokens == 0 || channels == 0 || x.burn_dtype() == DType::F16 {
        return None;
    }
    let (device, rows) = (x.plain().device(), rows.clone());
    let UnitHeads { count, head_dim, scales, eps } =
        units.copied().unwrap_or(UnitHeads { count: 0, head_dim: 1, scales: [1.0; 2], eps: 0.0 });
    let shape = kernels::ConvHeadsShape { tokens, channels, taps, head_dim, unit_heads: count };
    Some(apply(OP, &inputs, move |plain, wanted| {
        let dtype = plain[0].burn_dtype();
        let by_tap = to(plain[1].rank::<3>()?, DType::F32).reshape([channels, taps]).transpose();
        let bias = plain.get(2).map(|bias| Ok::<_, OpsError>(to(bias.rank::<1>()?, DType::F32)));
        let (by_tap, bias) = (AnyTensor::new(by_tap), bias.transpose()?.map(AnyTensor::new));
        let saved: Vec<AnyTensor> = [plain[0].clone(), by_tap].into_iter().chain(bias).collect();
        let biased = saved.len() > 2;
        let read = |all: &[AnyTensor]| {
            Inputs::of(&all.iter().collect::<Vec<_>>()).expect("invariant: on one of CubeCL's devices")
        };
        let [y] = launch(read(&saved), [(&[tokens, channels], DType::F32)], |client, b| {
            let (bias, words) = (biased.then(|| &b[2]), rows.words(client, &device));
            [kernels::conv_heads(client, &b[0], &b[1], bias, &words.rows, shape, scales, eps)]
        });
        let wanted = wanted.to_vec();
        let of_weights = wanted[1..].contains(&true);
        let backward = move |upstream: AnyTensor| {
            let mut outputs = vec![(vec![all, channels], dtype)];
            if of_weights {
                outputs.push((vec![taps, channels], DType::F32));
                outputs.extend(biased.then(|| (vec![channels], DType::F32)));
            }
            let upstream = AnyTensor::new(to(of_rank::<2>(&upstream), DType::F32));
            let read: Vec<AnyTensor> = saved.into_iter().chain([upstream]).collect();
            let read = Inputs::of(&read.iter().collect::<Vec<_>>());
            let read = read.expect("invariant: on one of CubeCL's devices");
            let made = launch_all(read, outputs, |client, b| {
                let (bias, words) = (biased.then(|| &b[2]), rows.words(client, &device));
                let dy = b.last().expect("invariant: dy is the last");
                let (x, kernel, readers) = (&b[0], &b[1], rows.readers(client, &words));
                let found = kernels::conv_heads_backward(
                    client,
                    x,
                    kernel,
                    bias,
                    &words.rows,
                    readers,
                    dy,
                    shape,
                    scales,
                    eps,
                    of_weights,
                );
                [Some(found.x), found.kernel, found.bias].into_iter().flatten().collect()
            });
            let mut made = made.into_iter();
            let of_x = made.next();
            let of_kernel = made
                .next()
                .map(|by_tap| AnyTensor::new(of_rank::<2>(&by_tap).transpose().reshape([channels, 1, taps])));
            let all = [of_x, of_kernel, made.next()].into_iter().zip(wanted);
            all.map(|(gradient, wanted)| gradient.filter(|_| wanted)).collect()
        };
        Ok((y, Box::new(backward)))
    }))
}
