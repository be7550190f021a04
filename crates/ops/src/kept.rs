//! [`kept`]: what attention gave in a segment's first run, which then need not compute it when it runs again.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Values in the order in which they were made.
pub(crate) type Kept = VecDeque<Box<dyn Any + Send>>;

enum Run {
    First,
    Again,
}

/// A segment that runs.
struct Frame {
    run: Run,
    attention: bool,
    kept: Kept,
}

thread_local! {
    /// The segments that run on this thread and are recorded, inner ones last.
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// `make`, or what it made in the first run of the segment that runs again, if that is to keep it. It has to be called for the same values
/// in the same order in both runs.
///
/// # Errors
/// As `make`.
///
/// # Panics
/// If it is not.
pub(crate) fn kept<T: Clone + Send + 'static, E>(make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let Some(mut frame) = FRAMES.with_borrow_mut(Vec::pop) else { return make() };
    let value = match frame.run {
        _ if !frame.attention => kept(make),
        // An outer segment's values are what an inner one's first run makes.
        Run::First => kept(make).inspect(|value| frame.kept.push_back(Box::new(value.clone()))),
        Run::Again => {
            let value = frame.kept.pop_front().and_then(|value| value.downcast::<T>().ok());
            Ok(*value.expect("invariant: both runs of a segment ask for the same values"))
        }
    };
    FRAMES.with_borrow_mut(|frames| frames.push(frame));
    value
}

/// While a recorded segment runs.
pub(crate) struct Keeping {
    depth: usize,
}

impl Keeping {
    /// For the first time; whether it keeps what attention gives.
    pub(crate) fn first(attention: bool) -> Self {
        Self::enter(Frame { run: Run::First, attention, kept: Kept::new() })
    }

    /// Again, with what the first time kept.
    pub(crate) fn again(attention: bool, kept: Kept) -> Self {
        Self::enter(Frame { run: Run::Again, attention, kept })
    }

    fn enter(frame: Frame) -> Self {
        FRAMES.with_borrow_mut(|frames| {
            frames.push(frame);
            Self { depth: frames.len() - 1 }
        })
    }

    /// What was kept.
    pub(crate) fn end(self) -> Kept {
        FRAMES.with_borrow_mut(Vec::pop).map_or_else(Kept::new, |frame| frame.kept)
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        FRAMES.with_borrow_mut(|frames| frames.truncate(self.depth));
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::{AnyTensor, NoWeights, OpsError, segment_keeping};

    /// Two values a run, the second in an inner segment that keeps its own, or nothing.
    #[test]
    fn values_are_made_in_the_first_run_alone() {
        for inner_keeps in [false, true] {
            let made: Arc<[AtomicUsize; 2]> = Arc::default();
            let value = |at: usize| {
                let made = made.clone();
                move || {
                    kept(|| {
                        made[at].fetch_add(1, Ordering::Relaxed);
                        Ok::<_, OpsError>(AnyTensor::new(Tensor::<1>::full(
                            [1],
                            2.0 + at as f32,
                            &Device::flex(),
                        )))
                    })
                }
            };
            let (first, second) = (value(0), value(1));
            let times = |x: &AnyTensor, y: AnyTensor| -> Result<AnyTensor, OpsError> {
                let y = if x.is_tracked() { y.untracked() } else { y };
                Ok(AnyTensor::new(x.rank::<1>()? * y.rank::<1>()?))
            };
            let run: crate::Run = Arc::new(move |inputs, _| {
                let x = times(&inputs[0], first()?)?;
                let second = second.clone();
                let run: crate::Run = Arc::new(move |inputs, _| times(&inputs[0], second()?));
                segment_keeping("inner", &[x], Arc::new(NoWeights), true, inner_keeps, run)
            });
            let x = AnyTensor::new(Tensor::<1>::ones([1], &Device::flex())).leaf();
            let y = segment_keeping("outer", std::slice::from_ref(&x), Arc::new(NoWeights), true, true, run);
            let y = y.unwrap();
            assert_eq!(y.to_f32(), [6.0]);
            let mut gradients = y.rank::<1>().unwrap().backward();
            assert_eq!(x.take_gradient(&mut gradients).unwrap().to_f32(), [6.0]);
            // An inner one that keeps nothing makes its value when it runs again itself.
            let inner = if inner_keeps { 1 } else { 2 };
            let made = [&made[0], &made[1]].map(|made| made.load(Ordering::Relaxed));
            assert_eq!(made, [1, inner]);
            assert!(FRAMES.with_borrow(Vec::is_empty));
        }
    }
}
