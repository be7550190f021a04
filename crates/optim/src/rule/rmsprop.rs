//! RMSprop, as `torch.optim.RMSprop` and bitsandbytes compute it.

use burnish_core::{OptionFaults, Parameter};

use super::{Rule, Slot, Step, eight_bits, elements};
use crate::arguments::ArgumentReader;

/// `optim: rmsprop`, and bitsandbytes' names of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RmsProp {
    alpha: f64,
    eps: f64,
    momentum: f64,
    centered: bool,
    eight_bits: bool,
}

impl RmsProp {
    pub(crate) fn read(mut arguments: ArgumentReader<'_>) -> (Self, OptionFaults) {
        let alpha = arguments.share("alpha", 0.99);
        let eps = arguments.at_least_0("eps", 1e-8);
        let momentum = arguments.at_least_0("momentum", 0.0);
        let centered = arguments.flag("centered", false);
        (Self { alpha, eps, momentum, centered, eight_bits: false }, arguments.finish())
    }

    /// Its state in blocks of bytes.
    pub(crate) fn read_eight_bits(mut arguments: ArgumentReader<'_>) -> (Self, OptionFaults) {
        let alpha = arguments.share("alpha", 0.99);
        let eps = arguments.at_least_0("eps", 1e-8);
        (Self { alpha, eps, momentum: 0.0, centered: false, eight_bits: true }, arguments.finish())
    }
}

impl Rule for RmsProp {
    fn slots(&self, parameter: &Parameter) -> Vec<Slot> {
        if self.eight_bits {
            // bitsandbytes keeps the first state of every optimizer with a sign.
            return vec![eight_bits("square_avg", true, parameter)];
        }
        let mut slots = vec![elements("square_avg")];
        slots.extend(self.centered.then(|| elements("grad_avg")));
        slots.extend((self.momentum > 0.0).then(|| elements("momentum_buffer")));
        slots
    }

    fn adds_decay(&self) -> bool {
        true
    }

    fn direction(&self, _: &Step, _: &[usize], gradient: &mut [f32], state: &mut [&mut [f32]]) {
        let (alpha, new) = (self.alpha as f32, (1.0 - self.alpha) as f32);
        let (eps, momentum) = (self.eps as f32, self.momentum as f32);
        let (square, rest) = state.split_first_mut().expect("invariant: the first slot is always there");
        let (mean, buffer) = rest.split_at_mut(usize::from(self.centered));
        for (i, g) in gradient.iter_mut().enumerate() {
            square[i] = square_average(square[i], alpha, *g, new);
            let variance = match mean {
                [mean] => {
                    // `lerp`: a step towards the gradient.
                    mean[i] += new * (*g - mean[i]);
                    square[i] - mean[i] * mean[i]
                }
                _ => square[i],
            };
            let direction = *g / (variance.sqrt() + eps);
            *g = match buffer {
                [buffer] => {
                    buffer[i] = buffer[i] * momentum + direction;
                    buffer[i]
                }
                _ => direction,
            };
        }
    }
}

/// `average * keep + new * g * g`, in the order and with the roundings of PyTorch's `mul_` and `addcmul_`.
pub(super) fn square_average(average: f32, keep: f32, g: f32, new: f32) -> f32 {
    (new * g).mul_add(g, average * keep)
}
