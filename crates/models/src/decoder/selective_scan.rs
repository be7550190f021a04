//! Mamba's selective scan (Gu and Dao, arXiv:2312.00752): of each channel a state that forgets, learns and is read as tokens say,
//! by steps and directions that are made of what a convolution gave.

use burnish_ops::{
    AnyTensor, Documents, OpsError, SelectiveScan, conv_heads, gated_norm, rms_norm, selective_scan,
    split_columns,
};

use crate::Spec;
use crate::decoder::block::SelectiveSteps;
use crate::decoder::layers::NormTensors;
use crate::decoder::ssd::Tensors;
use crate::decoder::state_cache::{Behind, Kernel};
use crate::spec::{SelectiveScanSpec, SsdSpec};

fn sizes(spec: &Spec) -> (SsdSpec, SelectiveScanSpec) {
    let sizes = spec.ssd.expect("invariant: a block with a state space has its sizes");
    (sizes, sizes.selective.expect("invariant: values are convolved apart in Mamba alone"))
}

/// Values and gates `[tokens, channels]`, as the layer gives them.
pub(crate) fn values_and_gates(x: &AnyTensor, spec: &Spec) -> Result<[AnyTensor; 2], OpsError> {
    let width = sizes(spec).0.width();
    Ok(split_columns(x, &[width; 2])?.try_into().expect("invariant: a piece for each width"))
}

/// What steps are made of `[tokens, step_rank]`, and directions in and out `[tokens, state]`, normed where they are.
pub(crate) fn steps_and_directions(
    x: &AnyTensor,
    norms: Option<[&NormTensors; 3]>,
    spec: &Spec,
) -> Result<[AnyTensor; 3], OpsError> {
    let (SsdSpec { state, .. }, own) = sizes(spec);
    let pieces = split_columns(x, &[own.step_rank, state, state])?;
    let [steps, within, out]: [AnyTensor; 3] = pieces.try_into().expect("invariant: a piece for each width");
    let (Some(norms), Some(eps)) = (norms, own.norm_eps) else { return Ok([steps, within, out]) };
    let [of_steps, of_in, of_out] = norms.map(|norm| &norm.gamma);
    Ok([rms_norm(&steps, of_steps, eps)?, rms_norm(&within, of_in, eps)?, rms_norm(&out, of_out, eps)?])
}

/// Values `[tokens, channels]`, convolved; f32.
pub(crate) fn convolved(
    values: &AnyTensor,
    (kernel, bias): Kernel<'_>,
    documents: &Documents,
    behind: Behind<'_>,
) -> Result<AnyTensor, OpsError> {
    match behind {
        Behind::Texts { parents } => conv_heads(values, kernel, bias, None, documents, parents),
        Behind::Said(cache) => cache.convolve(values, (kernel, bias), documents),
    }
}

/// The scan of convolved values through gates: `[tokens, channels]`.
pub(crate) fn scanned(
    read: &SelectiveSteps<'_, AnyTensor>,
    ssd: &Tensors,
    documents: &Documents,
    behind: Behind<'_>,
) -> Result<AnyTensor, OpsError> {
    let SelectiveSteps { values, gates, steps, directions: [within, out] } = *read;
    let scan = SelectiveScan {
        x: values.clone(),
        steps: steps.clone(),
        log_rates: ssd.log_rate.clone(),
        b: within.clone(),
        c: out.clone(),
        skip: ssd.skip.clone(),
    };
    let y = match behind {
        Behind::Texts { parents } => selective_scan(&scan, documents, parents)?,
        Behind::Said(cache) => cache.scan(&scan, documents)?,
    };
    gated_norm(&y, gates, None)
}
