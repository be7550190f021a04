//! AdamW as Burn's optimizer of one tensor.

use burn::tensor::{Device, Tensor};
use burn_optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burnish_ops::AdamState;

use super::record::{moved, put, put_step, take, take_step};
use super::tensor::{finite, flat, shaped};
use crate::AdamWOptions;
use crate::adam::{Kept, Step};

/// AdamW over whatever it is given, all of it with the options' weight decay.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdamW {
    options: AdamWOptions,
}

impl AdamW {
    pub(super) fn new(options: AdamWOptions) -> Self {
        Self { options }
    }
}

/// A parameter's state.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    step: u64,
    kept: Kept,
}

impl Optimizer for AdamW {
    type State<const D: usize> = State;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<State>,
    ) -> (Tensor<D>, Option<State>) {
        let (shape, value) = (tensor.dims(), flat(tensor));
        let Some(gradient) = finite(flat(grad)) else {
            return (shaped(&value, shape), state);
        };
        let mut state = state.unwrap_or_default();
        state.step += 1;
        let step = Step { number: state.step, lr, grad_scale: 1.0, decays: true };
        let mut stepped = step.update(&self.options, vec![(state.kept, value, gradient)]);
        let (kept, value) = stepped.pop().expect("invariant: one for one");
        (shaped(&value, shape), Some(State { kept, ..state }))
    }

    fn to_device<const D: usize>(state: State, device: &Device) -> State {
        let State { step, kept: Kept { master, moments } } = state;
        let moments = moments.map(|AdamState { exp_avg, exp_avg_sq }| {
            let here = |t| moved(Some(t), device).expect("invariant: there is one");
            AdamState { exp_avg: here(exp_avg), exp_avg_sq: here(exp_avg_sq) }
        });
        State { step, kept: Kept { master: moved(master, device), moments } }
    }
}

impl RecordState for State {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        put_step(out, prefix, self.step);
        put(out, prefix, "master", self.kept.master.as_ref());
        put(out, prefix, "exp_avg", self.kept.moments.as_ref().map(|m| &m.exp_avg));
        put(out, prefix, "exp_avg_sq", self.kept.moments.as_ref().map(|m| &m.exp_avg_sq));
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let step = take_step(src, prefix)?;
        let master = take(src, prefix, "master", device);
        let exp_avg = take(src, prefix, "exp_avg", device)?;
        let exp_avg_sq = take(src, prefix, "exp_avg_sq", device)?;
        Some(Self { step, kept: Kept { master, moments: Some(AdamState { exp_avg, exp_avg_sq }) } })
    }
}
