//! [`crate::conv_heads()`] on CPU kernels.

use std::sync::Arc;

use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use super::short_conv::transposed;
use crate::conv_heads::{ConvRows, Kernel, OP, UnitHeads};
use crate::{AnyTensor, OpsError, apply};

/// What the kernels read.
struct Call {
    x: Host,
    /// `[taps, channels]`.
    kernel: Vec<f32>,
    bias: Option<Vec<f32>>,
    rows: Arc<ConvRows>,
    head_dim: usize,
    scales: Vec<f32>,
    eps: f32,
}

impl Call {
    fn conv(&self) -> kernels::ConvHeads<'_> {
        kernels::ConvHeads {
            x: self.x.f32(),
            kernel: &self.kernel,
            bias: self.bias.as_deref(),
            rows: &self.rows.rows,
            head_dim: self.head_dim,
            scales: &self.scales,
            eps: self.eps,
        }
    }
}

/// See [`crate::conv_heads()`].
pub(crate) fn conv_heads(
    x: &AnyTensor,
    (kernel, bias): Kernel<'_>,
    units: Option<&UnitHeads>,
    rows: Arc<ConvRows>,
) -> Result<AnyTensor, OpsError> {
    let ([all, channels], taps, tokens) = (crate::check::matrix(x)?, rows.rows.len(), rows.rows[0].len());
    let (head_dim, eps) = units.map_or((1, 0.0), |units| (units.head_dim, units.eps));
    let scales = units.map_or(Vec::new(), |units| {
        (0..units.count).map(|head| units.scales[2 * head / units.count]).collect()
    });
    let inputs: Vec<AnyTensor> = [x, kernel].into_iter().chain(bias).cloned().collect();
    apply(OP, &inputs, move |plain, wanted| {
        let x = Host::f32_of(OP, "x", &plain[0])?;
        // Small, and in whichever dtype they are stored.
        let (kernel, bias) = (transposed(&plain[1].to_f32(), channels), plain.get(2).map(AnyTensor::to_f32));
        let call = Call { x, kernel, bias, rows, head_dim, scales, eps };
        let y = kernels::conv_heads_forward(&call.conv());
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let of_weights = wanted[1..].contains(&true);
            let found = kernels::conv_heads_backward(&call.conv(), dy.f32(), of_weights);
            let of = |at: usize, values: Vec<f32>, shape: &[usize]| {
                wanted.get(at).is_some_and(|wanted| *wanted).then(|| tensor(values, shape))
            };
            let of_kernel = if of_weights { transposed(&found.kernel, taps) } else { Vec::new() };
            let gradients = [
                of(0, found.x, &[all, channels]),
                of(1, of_kernel, &[channels, 1, taps]),
                of(2, found.bias, &[channels]),
            ];
            gradients.into_iter().take(wanted.len()).collect()
        };
        Ok((tensor(y, &[tokens, channels]), Box::new(backward)))
    })
}
