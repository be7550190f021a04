//! The one mechanism by which burnish records operations on Burn's autodiff tape.
//!
//! [`apply`] takes any number of inputs, runs a forward on plain tensors and records a backward closure with the
//! tracked inputs as parents. Segments, fused kernels and collectives are all built on it, so no operation names a
//! backend of its own.

use std::fmt;
use std::sync::{Arc, Mutex};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, BackendTensor, DispatchKindConversion, DispatchTensor};

use crate::{AnyTensor, OpsError};

/// Runs what is generic over the backend of a tensor, with that; an error where it is not compiled in.
macro_rules! on_backend {
    ($op:expr, $tensor:expr, $backend:ident => $run:expr) => {{
        #[cfg(feature = "flex")]
        if $crate::custom::has_backend::<burn::backend::Flex>($tensor) {
            type $backend = burn::backend::Flex;
            return $run;
        }
        #[cfg(feature = "cube")]
        if $crate::custom::has_backend::<burn::backend::Cube>($tensor) {
            type $backend = burn::backend::Cube;
            return $run;
        }
        Err($crate::custom::no_backend($op, $tensor))
    }};
}
pub(crate) use on_backend;

/// From the output's gradient to one gradient per input (`None` where it was not wanted).
pub type BackwardFn = Box<dyn FnOnce(AnyTensor) -> Vec<Option<AnyTensor>> + Send>;

/// How many tracked inputs one operation may have.
pub const MOST_INPUTS: usize = 24;

/// Runs `forward` on the plain inputs; when any input is tracked, records its backward. When none is, the output is not
/// either: it lies on autodiff's device where an input does ([`AnyTensor::untracked`]).
///
/// `forward` gets the inputs outside autodiff and, per input, whether its gradient is wanted. The backward closure
/// returns one entry per input and must fill those that were wanted.
///
/// # Errors
/// Whatever `forward` returns; too many tracked inputs; [`OpsError::NoBackend`] for tracked inputs on a device whose
/// backend is not compiled in; a tensor under Burn's own checkpointing.
pub fn apply(
    op: &'static str,
    inputs: &[AnyTensor],
    forward: impl FnOnce(&[AnyTensor], &[bool]) -> Result<(AnyTensor, BackwardFn), OpsError>,
) -> Result<AnyTensor, OpsError> {
    let wanted: Vec<bool> = inputs.iter().map(AnyTensor::is_tracked).collect();
    let got = wanted.iter().filter(|&&w| w).count();
    if got > MOST_INPUTS {
        return Err(OpsError::TooManyInputs { op, got, most: MOST_INPUTS });
    }
    let plain: Vec<AnyTensor> = inputs.iter().map(AnyTensor::plain).collect();
    // Said before anything is computed.
    if let Some((tensor, _)) = plain.iter().zip(&wanted).find(|(_, wanted)| **wanted)
        && !is_compiled(tensor)
    {
        return Err(no_backend(op, tensor));
    }
    let (out, backward) = forward(&plain, &wanted)?;
    drop(plain);
    if !wanted.contains(&true) {
        // What nothing is wanted of goes on standing beside what is tracked in Burn's own operations.
        let beside = inputs.iter().any(|input| input.device().is_autodiff());
        return Ok(if beside { out.untracked() } else { out });
    }
    on_backend!(op, &out, B => record::<B>(op, inputs, &wanted, out, backward))
}

/// Whether operations on this plain tensor can be recorded in this build.
fn is_compiled(tensor: &AnyTensor) -> bool {
    #[cfg(feature = "flex")]
    if has_backend::<burn::backend::Flex>(tensor) {
        return true;
    }
    #[cfg(feature = "cube")]
    if has_backend::<burn::backend::Cube>(tensor) {
        return true;
    }
    let _ = tensor;
    false
}

/// What an operation on this tensor says where its device's backend is not compiled in.
pub(crate) fn no_backend(op: &'static str, tensor: &AnyTensor) -> OpsError {
    let device = format!("{:?}", tensor.device());
    // As Burn prints them: CUDA and WebGPU are kinds of its `Cube`.
    let features = [("Flex", "flex"), ("Cuda", "cuda"), ("Cube", "wgpu")];
    let feature = features.iter().find(|(name, _)| device.contains(name));
    OpsError::NoBackend {
        op,
        feature: feature.map_or("flex`, `cuda` or `wgpu", |(_, feature)| *feature),
        device,
    }
}

#[cfg(any(feature = "flex", feature = "cube"))]
pub(crate) fn has_backend<B: Backend>(tensor: &AnyTensor) -> bool
where
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor.clone().dispatch()).is_ok()
}

/// A backend whose float primitives convert to and from dispatch tensors, with and without autodiff.
pub(crate) trait Host: Backend {
    fn wrap(primitive: FloatTensor<Self>) -> AnyTensor;
    fn unwrap(tensor: AnyTensor) -> FloatTensor<Self>;
    fn tracked(tensor: AnyTensor) -> Option<FloatTensor<Autodiff<Self>>>;
    fn wrap_tracked(primitive: FloatTensor<Autodiff<Self>>) -> AnyTensor;
}

macro_rules! host {
    ($backend:ty) => {
        impl Host for $backend {
            fn wrap(primitive: FloatTensor<Self>) -> AnyTensor {
                AnyTensor::from_dispatch(<DispatchTensor as DispatchKindConversion<Self>>::from_backend(
                    BackendTensor::Float(primitive),
                ))
            }
            fn unwrap(tensor: AnyTensor) -> FloatTensor<Self> {
                <DispatchTensor as DispatchKindConversion<Self>>::try_into_backend(tensor.dispatch())
                    .expect("invariant: an operation keeps its inputs' backend")
                    .float()
            }
            fn tracked(tensor: AnyTensor) -> Option<FloatTensor<Autodiff<Self>>> {
                let tensor =
                    <DispatchTensor as DispatchKindConversion<Autodiff<Self, NoCheckpointing>>>::try_into_backend(
                        tensor.dispatch(),
                    )
                    .ok()?;
                Some(tensor.float())
            }
            fn wrap_tracked(primitive: FloatTensor<Autodiff<Self>>) -> AnyTensor {
                AnyTensor::from_dispatch(
                    <DispatchTensor as DispatchKindConversion<Autodiff<Self, NoCheckpointing>>>::from_backend(
                        BackendTensor::Float(primitive),
                    ),
                )
            }
        }
    };
}
#[cfg(feature = "flex")]
host!(burn::backend::Flex);
#[cfg(feature = "cube")]
host!(burn::backend::Cube);

fn record<B: Host>(
    op: &'static str,
    inputs: &[AnyTensor],
    wanted: &[bool],
    out: AnyTensor,
    backward: BackwardFn,
) -> Result<AnyTensor, OpsError> {
    let mut slots = Vec::new();
    let mut guards = Vec::new();
    for (slot, input) in inputs.iter().enumerate().filter(|&(i, _)| wanted[i]) {
        slots.push(slot);
        let tracked = B::tracked(input.clone()).ok_or(OpsError::Checkpointing { op })?;
        guards.push(tracked.into_parts().1);
    }
    let state = State { op, slots, backward: Arc::new(Mutex::new(Some(backward))) };
    macro_rules! arity {
        ($($n:literal)*) => {
            match guards.len() {
                $($n => Ok(finish::<B, $n>(guards, state, out)),)*
                got => unreachable!("invariant: 1 to {MOST_INPUTS} inputs, checked by `apply`, not {got}"),
            }
        };
    }
    arity!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24)
}

fn finish<B: Host, const N: usize>(guards: Vec<NodeGuard>, state: State, out: AnyTensor) -> AnyTensor {
    let guards: [NodeGuard; N] =
        guards.try_into().unwrap_or_else(|_| unreachable!("invariant: the match above counted them"));
    let out = B::unwrap(out);
    let out = match Backward::<B, N>::prepare::<NoCheckpointing>(Recorded, guards).compute_bound().stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(state, out),
        OpsKind::UnTracked(prep) => prep.finish(out),
    };
    B::wrap_tracked(out)
}

#[derive(Clone)]
struct State {
    op: &'static str,
    slots: Vec<usize>,
    backward: Arc<Mutex<Option<BackwardFn>>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.op, self.slots)
    }
}

#[derive(Debug)]
struct Recorded;

impl<B: Host, const N: usize> Backward<B, N> for Recorded {
    type State = State;

    fn backward(self, ops: Ops<State, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let upstream = grads.consume::<B>(&ops.node);
        let State { op, slots, backward } = ops.state;
        let backward = backward
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
            .expect("invariant: Burn consumes a step once");
        let mut gradients = backward(B::wrap(upstream));
        for (parent, slot) in ops.parents.into_iter().zip(slots) {
            if let Some(parent) = parent {
                let gradient = gradients[slot].take().unwrap_or_else(|| {
                    unreachable!("invariant: {op} returns every wanted gradient ({slot})")
                });
                grads.register::<B>(parent.id, B::unwrap(gradient));
            }
        }
    }
}
