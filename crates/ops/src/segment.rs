//! The segment: a piece of a model run without a graph in forward and again, under autodiff, in backward.
//!
//! Activation recomputation, sharded weights that are gathered twice, and chunked heads are this one operation: it
//! saves its inputs and, where that is asked for, what attention gave. Its weights come from a [`Weights`] source, so that
//! a resident and a sharded model run the same code.

use std::cell::Cell;
use std::sync::Arc;

use crate::custom::apply;
use crate::kept::Keeping;
use crate::{AnyTensor, OpsError};

/// Where a segment's weights come from and where their gradients go.
pub trait Weights: Send + Sync {
    /// The weights, whole and plain. Called once in forward and once in backward, on the same thread order on every
    /// rank, so an implementation may communicate.
    fn gather(&self) -> Vec<AnyTensor>;
    /// Which of them get gradients.
    fn trainable(&self) -> Vec<bool>;
    /// Takes the gradient of weight `index`.
    fn sink(&self, index: usize, gradient: AnyTensor);
}

/// The source of a segment that has no weights.
#[derive(Clone, Copy, Debug)]
pub struct NoWeights;

impl Weights for NoWeights {
    fn gather(&self) -> Vec<AnyTensor> {
        Vec::new()
    }

    fn trainable(&self) -> Vec<bool> {
        Vec::new()
    }

    fn sink(&self, _: usize, _: AnyTensor) {}
}

/// What a segment computes, from its inputs and its weights.
pub type Run = Arc<dyn Fn(&[AnyTensor], &[AnyTensor]) -> Result<AnyTensor, OpsError> + Send + Sync>;

/// Runs a segment. Without tracked inputs it is just `run`. Segments may lie in segments; the weights of an inner one
/// are then gathered once more.
///
/// `run` must be a function of its arguments: it is called again in backward (randomness is counted, see
/// `burnish_core::random`).
///
/// # Errors
/// [`OpsError::UntrackedInput`] when it trains weights and no input is tracked while `training`;
/// [`OpsError::CapturedTracked`] when its closure holds a tracked tensor of the outer graph (Burn would deadlock).
pub fn segment(
    name: &str,
    inputs: &[AnyTensor],
    weights: Arc<dyn Weights>,
    training: bool,
    run: Run,
) -> Result<AnyTensor, OpsError> {
    segment_keeping(name, inputs, weights, training, false, run)
}

/// A [`segment()`] that with `keeps` saves the outputs of its attention too, which then is not computed again: beside its inputs
/// `heads * head_dim` elements a token, in their dtype, and a sum of each head in f32. Its gradients have the same bits.
///
/// # Errors
/// As [`segment()`].
pub fn segment_keeping(
    name: &str,
    inputs: &[AnyTensor],
    weights: Arc<dyn Weights>,
    training: bool,
    keeps: bool,
    run: Run,
) -> Result<AnyTensor, OpsError> {
    let trains = training && weights.trainable().contains(&true);
    if trains && !inputs.iter().any(AnyTensor::is_tracked) && !Forward::runs() {
        return Err(OpsError::UntrackedInput { name: name.to_owned() });
    }
    let owned = name.to_owned();
    apply("segment", inputs, move |plain, wanted| {
        let recorded = wanted.contains(&true);
        let (forward, again) = (Forward::enter(recorded), Again::enter(false));
        let keeping = recorded.then(|| Keeping::first(keeps));
        let out = run(plain, &weights.gather())?;
        let kept = keeping.map(Keeping::end);
        drop((forward, again));
        if out.is_tracked() {
            return Err(OpsError::CapturedTracked { name: owned });
        }
        let saved: Vec<AnyTensor> = plain.to_vec();
        let wanted = wanted.to_vec();
        let again = move || kept.map(|kept| Keeping::again(keeps, kept));
        let back = move |upstream| backward(&saved, &wanted, (&*weights, trains), (&run, again), &upstream);
        Ok((out, Box::new(back)))
    })
}

thread_local! {
    static FORWARD: Cell<bool> = const { Cell::new(false) };
    static AGAIN: Cell<bool> = const { Cell::new(false) };
}

/// Whether a segment runs again on this thread, in backward: nobody reads the values of what it will return.
#[must_use]
pub fn runs_again() -> bool {
    AGAIN.get()
}

/// While a segment runs again in backward, and not a segment in it forward.
struct Again {
    before: bool,
}

impl Again {
    fn enter(again: bool) -> Self {
        Self { before: AGAIN.replace(again) }
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        AGAIN.set(self.before);
    }
}

/// While a recorded segment runs forward: the segments inside it see plain inputs, and are recorded when backward runs
/// it again.
struct Forward {
    before: bool,
}

impl Forward {
    fn enter(recorded: bool) -> Self {
        Self { before: FORWARD.replace(recorded || FORWARD.get()) }
    }

    fn runs() -> bool {
        FORWARD.get()
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        FORWARD.set(self.before);
    }
}

fn backward(
    saved: &[AnyTensor],
    wanted: &[bool],
    (weights, trains): (&dyn Weights, bool),
    (run, keeping): (&Run, impl FnOnce() -> Option<Keeping>),
    upstream: &AnyTensor,
) -> Vec<Option<AnyTensor>> {
    let inputs: Vec<AnyTensor> =
        saved.iter().zip(wanted).map(|(x, &w)| if w { x.leaf() } else { x.untracked() }).collect();
    let trainable: Vec<bool> = weights.trainable().iter().map(|&t| t && trains).collect();
    let gathered: Vec<AnyTensor> =
        weights.gather().into_iter().zip(&trainable).map(|(w, &t)| if t { w.leaf() } else { w }).collect();
    let (again, keeping) = (Again::enter(true), keeping());
    let out = run(&inputs, &gathered)
        .unwrap_or_else(|e| unreachable!("invariant: a segment that ran in forward runs in backward: {e}"));
    drop((again, keeping));
    let mut found = vec![None; inputs.len()];
    // An output that nothing wanted reaches is a constant: no graph to walk.
    if out.is_tracked() {
        let mut gradients = seed(&out, upstream).backward();
        for ((found, input), _) in found.iter_mut().zip(&inputs).zip(wanted).filter(|&(_, &w)| w) {
            *found = input.take_gradient(&mut gradients);
        }
        for (index, weight) in gathered.iter().enumerate().filter(|&(i, _)| trainable[i]) {
            if let Some(gradient) = weight.take_gradient(&mut gradients) {
                weights.sink(index, gradient);
            }
        }
    }
    // An input that does not reach the output has a zero gradient.
    found
        .into_iter()
        .zip(saved)
        .zip(wanted)
        .map(|((g, t), &w)| w.then(|| g.unwrap_or_else(|| AnyTensor::new(t.carrier().zeros_like()))))
        .collect()
}

/// A scalar whose gradient with respect to `out` is `upstream`: d/dy sum(y * g) = g, without touching y's values.
fn seed(out: &AnyTensor, upstream: &AnyTensor) -> burn::tensor::Tensor<1> {
    let upstream = upstream.clone();
    let scalar = apply("seed", std::slice::from_ref(out), move |plain, _| {
        let device = plain[0].device();
        let zero = AnyTensor::new(burn::tensor::Tensor::<1>::zeros([1], &device));
        Ok((zero, Box::new(move |_| vec![Some(upstream)])))
    });
    scalar.map(|s| s.carrier()).unwrap_or_else(|e| unreachable!("invariant: one tracked input: {e}"))
}
