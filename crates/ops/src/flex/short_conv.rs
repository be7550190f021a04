//! [`crate::short_conv()`] on CPU kernels.

use std::sync::Arc;

use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use crate::{AnyTensor, OpsError, apply};

/// The convolution; `rows` are what each tap of each token reads.
pub(crate) fn short_conv(
    bcx: &AnyTensor,
    kernel: &AnyTensor,
    bias: Option<&AnyTensor>,
    rows: &Arc<Vec<Vec<i32>>>,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "short_conv";
    let ([tokens, width], shape) = (crate::check::matrix(bcx)?, kernel.shape());
    let (channels, taps) = (shape[0], shape[2]);
    let inputs: Vec<AnyTensor> = [bcx, kernel].into_iter().chain(bias).cloned().collect();
    apply(OP, &inputs, |plain, wanted| {
        let bcx = Host::f32_of(OP, "bcx", &plain[0])?;
        // Small, and in whichever dtype they are stored.
        let (kernel, bias) = (transposed(&plain[1].to_f32(), channels), plain.get(2).map(AnyTensor::to_f32));
        let (rows, wanted) = (rows.clone(), wanted.to_vec());
        let conv = kernels::ShortConv { bcx: bcx.f32(), kernel: &kernel, bias: bias.as_deref(), rows: &rows };
        let y = kernels::short_conv_forward(&conv);
        let backward = move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let conv =
                kernels::ShortConv { bcx: bcx.f32(), kernel: &kernel, bias: bias.as_deref(), rows: &rows };
            let found = kernels::short_conv_backward(&conv, dy.f32());
            let all = [
                tensor(found.bcx, &[tokens, width]),
                tensor(transposed(&found.kernel, taps), &[channels, 1, taps]),
                tensor(found.bias, &[channels]),
            ];
            all.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
        };
        Ok((tensor(y, &[tokens, channels]), Box::new(backward)))
    })
}

/// `[rows, columns]` as `[columns, rows]`.
pub(super) fn transposed(x: &[f32], rows: usize) -> Vec<f32> {
    let columns = x.len() / rows.max(1);
    (0..columns).flat_map(|c| (0..rows).map(move |r| x[r * columns + c])).collect()
}
