//! A value that autodiff does not keep: backward computes it again.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};

use crate::custom::{Host, on_backend};
use crate::{AnyTensor, OpsError};

/// A plain value on the tape whose gradient goes to `sink` as soon as it is there, and nowhere else.
///
/// `anchor` is a leaf that stands for it on the tape, of any shape; it gets no gradient.
///
/// # Errors
/// If the anchor is not a leaf that is tracked by plain autodiff.
pub(crate) fn sunk(
    anchor: &AnyTensor,
    value: AnyTensor,
    sink: impl FnOnce(AnyTensor) + Send + 'static,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "parameter";
    if !anchor.is_tracked() {
        return Err(OpsError::UntrackedInput { name: OP.to_owned() });
    }
    on_backend!(OP, &value, B => record_value::<B>(OP, anchor, value, Sink::new(sink)))
}

fn record_value<B: Host>(
    op: &'static str,
    anchor: &AnyTensor,
    value: AnyTensor,
    sink: Sink,
) -> Result<AnyTensor, OpsError> {
    let parent = B::tracked(anchor.clone()).ok_or(OpsError::Checkpointing { op })?.into_parts().1;
    let prepared = Backward::<B, 1>::prepare::<NoCheckpointing>(Recomputed, [parent]);
    let value = B::unwrap(value);
    Ok(B::wrap_tracked(match prepared.compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(sink, value),
        OpsKind::UnTracked(prepared) => prepared.finish(value),
    }))
}

/// What gives a value, now and in backward: the same both times.
pub type Value = Arc<dyn Fn() -> AnyTensor + Send + Sync>;

/// A value on the tape whose memory is free as soon as forward has used it: where backward needs it, `value` is asked
/// again, at the first use. Its gradient goes to `sink` as soon as it is there, and nowhere else.
///
/// `anchor` is a leaf that stands for it on the tape, of any shape; it gets no gradient.
///
/// Operations of Burn's that save the value itself instead of asking for it (`embedding`) keep it all the same.
///
/// # Errors
/// If the anchor is not a leaf that is tracked, or under Burn's own checkpointing.
pub fn recomputed(
    anchor: &AnyTensor,
    value: Value,
    sink: impl FnOnce(AnyTensor) + Send + 'static,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "recomputed";
    if !anchor.is_tracked() {
        return Err(OpsError::UntrackedInput { name: OP.to_owned() });
    }
    let out = value().plain();
    let sink = Sink::new(sink);
    on_backend!(OP, &out, B => record::<B>(OP, anchor, out, value, sink))
}

fn record<B: Host>(
    op: &'static str,
    anchor: &AnyTensor,
    out: AnyTensor,
    value: Value,
    sink: Sink,
) -> Result<AnyTensor, OpsError> {
    let parent = B::tracked(anchor.clone()).ok_or(OpsError::Checkpointing { op })?;
    let prepared = Backward::<B, 1>::prepare::<BalancedCheckpointing>(Recomputed, [parent.node()]);
    let prepared = prepared.memory_bound().retro_forward(Again::<B>(value, PhantomData)).parents([&parent]);
    let out = B::unwrap(out);
    let out = match prepared.stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(sink, out),
        OpsKind::UnTracked(prepared) => prepared.finish(out),
    };
    Ok(B::wrap_tracked(out))
}

/// Computes the value for backward.
struct Again<B>(Value, PhantomData<B>);

impl<B> fmt::Debug for Again<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Again")
    }
}

impl<B: Host> RetroForward for Again<B> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        states.save(out, B::unwrap((self.0)().plain()));
    }
}

type Take = Box<dyn FnOnce(AnyTensor) + Send>;

/// Where the gradient goes, once.
#[derive(Clone)]
struct Sink(Arc<Mutex<Option<Take>>>);

impl Sink {
    fn new(take: impl FnOnce(AnyTensor) + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(take)))))
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}

#[derive(Debug)]
struct Recomputed;

impl<B: Host> Backward<B, 1> for Recomputed {
    type State = Sink;

    fn backward(self, ops: Ops<Sink, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = grads.consume::<B>(&ops.node);
        let take = ops.state.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(take) = take {
            take(B::wrap(upstream));
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use burn::tensor::{Device, Tensor, module};

    use super::*;

    /// The gradients of a chain of layers whose weights are asked for in forward and again in backward, each for as long as
    /// it is used.
    #[test]
    fn weights_are_asked_for_again_in_backward() {
        let device = Device::flex();
        let weights: Vec<AnyTensor> = (0..3)
            .map(|layer| {
                let values = (0..16).map(|i| ((i * 5 + layer) % 7) as f32 * 0.1 - 0.3).collect();
                AnyTensor::from_elements(values, &[4, 4], &device)
            })
            .collect();
        let x = Tensor::<2>::ones([2, 4], &device).autodiff().require_grad();
        let run = |weight: &dyn Fn(usize) -> Tensor<2>| {
            (0..3).fold(x.clone(), |h, layer| module::linear(h, weight(layer), None).tanh()).sum()
        };
        let leaves: Vec<AnyTensor> = weights.iter().map(AnyTensor::leaf).collect();
        let plain = run(&|layer| leaves[layer].rank().unwrap());
        let mut expected = plain.clone().backward();

        let asked: Arc<Vec<AtomicUsize>> = Arc::new((0..3).map(|_| AtomicUsize::new(0)).collect());
        let found: Arc<Mutex<Vec<Option<AnyTensor>>>> = Arc::new(Mutex::new(vec![None; 3]));
        let again = run(&|layer| {
            let anchor = AnyTensor::new(Tensor::<1>::zeros([1], &device).autodiff().require_grad());
            let (count, weight, found) = (Arc::clone(&asked), weights[layer].clone(), Arc::clone(&found));
            let value = move || {
                count[layer].fetch_add(1, Ordering::Relaxed);
                weight.clone()
            };
            let sink = move |gradient| found.lock().unwrap()[layer] = Some(gradient);
            recomputed(&anchor, Arc::new(value), sink).unwrap().rank().unwrap()
        });
        assert!(asked.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        assert_eq!(again.clone().into_scalar::<f32>(), plain.into_scalar::<f32>());
        let gradients = again.backward();
        assert!(asked.iter().all(|count| count.load(Ordering::Relaxed) == 2));
        for (leaf, found) in leaves.iter().zip(found.lock().unwrap().iter()) {
            let expected = leaf.take_gradient(&mut expected).unwrap();
            assert_eq!(found.as_ref().unwrap().to_f32(), expected.to_f32());
        }
        assert_eq!(x.grad(&gradients).unwrap().to_data(), x.grad(&expected).unwrap().to_data());
    }
}
