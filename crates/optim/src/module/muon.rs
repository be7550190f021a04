//! Muon as Burn's optimizer of one matrix.

use burn::tensor::{Device, Tensor};
use burn_optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};

use super::record::{moved, put, put_step, take, take_step};
use super::tensor::{finite, flat, shaped};
use crate::MuonOptions;
use crate::muon::{self, MASTER, MOMENTUM, Matrix, SECOND};

/// Muon of one named matrix, whose orientation it knows.
#[derive(Clone, Debug)]
pub(super) struct Muon {
    options: MuonOptions,
    matrix: Matrix,
}

impl Muon {
    pub(super) fn new(options: MuonOptions, matrix: Matrix) -> Self {
        Self { options, matrix }
    }
}

/// A matrix' state.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    step: u64,
    kept: muon::State,
}

impl Optimizer for Muon {
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
        let (options, matrix) = (&self.options, &self.matrix);
        let update = state.kept.momentum(options, matrix, gradient, 1.0, || matrix.all(), state.step);
        let direction = muon::directions(options, vec![(matrix, &mut state.kept, update)]).remove(0);
        let value = state.kept.apply(options, value, &direction, lr);
        (shaped(&value, shape), Some(state))
    }

    fn to_device<const D: usize>(state: State, device: &Device) -> State {
        let State { step, kept: muon::State { master, momentum, second } } = state;
        let [master, momentum, second] = [master, momentum, second].map(|slot| moved(slot, device));
        State { step, kept: muon::State { master, momentum, second } }
    }
}

impl RecordState for State {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        put_step(out, prefix, self.step);
        put(out, prefix, MASTER, self.kept.master.as_ref());
        put(out, prefix, MOMENTUM, self.kept.momentum.as_ref());
        put(out, prefix, SECOND, self.kept.second.as_ref());
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let step = take_step(src, prefix)?;
        let [master, momentum, second] =
            [MASTER, MOMENTUM, SECOND].map(|slot| take(src, prefix, slot, device));
        momentum.is_some().then_some(Self { step, kept: muon::State { master, momentum, second } })
    }
}
