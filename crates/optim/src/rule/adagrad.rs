//! Adagrad, as `torch.optim.Adagrad`.

use burnish_core::{OptionFaults, Parameter};

use super::{Rule, Slot, Step, elements};
use crate::arguments::ArgumentReader;

/// `optim: adagrad`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Adagrad {
    lr_decay: f64,
    eps: f64,
}

impl Adagrad {
    pub(crate) fn read(mut arguments: ArgumentReader<'_>) -> (Self, OptionFaults) {
        let lr_decay = arguments.at_least_0("lr_decay", 0.0);
        let eps = arguments.at_least_0("eps", 1e-10);
        (Self { lr_decay, eps }, arguments.finish())
    }
}

impl Rule for Adagrad {
    fn slots(&self, _: &Parameter) -> Vec<Slot> {
        vec![elements("sum")]
    }

    fn adds_decay(&self) -> bool {
        true
    }

    fn direction(&self, step: &Step, _: &[usize], gradient: &mut [f32], state: &mut [&mut [f32]]) {
        let [sum] = state else { unreachable!("invariant: one slot") };
        let eps = self.eps as f32;
        let share = (1.0 / (1.0 + (step.number - 1) as f64 * self.lr_decay)) as f32;
        for (g, sum) in gradient.iter_mut().zip(sum.iter_mut()) {
            *sum += *g * *g;
            *g = share * *g / (sum.sqrt() + eps);
        }
    }
}
