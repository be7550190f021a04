//! SGD with momentum, as `torch.optim.SGD`.

use burnish_core::{OptionFaults, Parameter};

use super::{Rule, Slot, Step, elements};
use crate::arguments::ArgumentReader;

/// `optim: sgd`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sgd {
    momentum: f64,
    dampening: f64,
    nesterov: bool,
}

impl Sgd {
    pub(crate) fn read(mut arguments: ArgumentReader<'_>) -> (Self, OptionFaults) {
        let momentum = arguments.at_least_0("momentum", 0.0);
        let dampening = arguments.number("dampening", 0.0, f64::is_finite, "a number");
        let nesterov = arguments.flag("nesterov", false);
        let holds = !nesterov || (momentum > 0.0 && dampening == 0.0);
        let what = "`nesterov` goes with a `momentum` above 0 and no `dampening`";
        arguments.rule(holds, what, "set momentum, or take nesterov out");
        (Self { momentum, dampening, nesterov }, arguments.finish())
    }
}

impl Rule for Sgd {
    fn slots(&self, _: &Parameter) -> Vec<Slot> {
        if self.momentum > 0.0 { vec![elements("momentum_buffer")] } else { Vec::new() }
    }

    fn adds_decay(&self) -> bool {
        true
    }

    fn direction(&self, step: &Step, _: &[usize], gradient: &mut [f32], state: &mut [&mut [f32]]) {
        let [buffer] = state else { return };
        let (momentum, new) = (self.momentum as f32, (1.0 - self.dampening) as f32);
        for (g, m) in gradient.iter_mut().zip(buffer.iter_mut()) {
            *m = if step.first { *g } else { *m * momentum + new * *g };
            *g = if self.nesterov { *g + momentum * *m } else { *m };
        }
    }
}
