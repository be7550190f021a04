//! AdamW with its moments in blocks of bytes, as bitsandbytes' `AdamW8bit`.

use burnish_core::{OptionFaults, Parameter};

use super::rmsprop::square_average;
use super::{Rule, Slot, Step, eight_bits};
use crate::AdamWOptions;
use crate::arguments::ArgumentReader;

/// `optim: adamw_bnb_8bit` and its other names. With moments in f32 the rule is [`AdamW`](crate::AdamW)'s, which is fused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Adam {
    options: AdamWOptions,
}

impl Adam {
    pub(crate) fn read(arguments: ArgumentReader<'_>, options: &AdamWOptions) -> (Self, OptionFaults) {
        (Self { options: *options }, arguments.finish())
    }
}

impl Rule for Adam {
    fn slots(&self, parameter: &Parameter) -> Vec<Slot> {
        vec![eight_bits("exp_avg", true, parameter), eight_bits("exp_avg_sq", false, parameter)]
    }

    fn direction(&self, step: &Step, _: &[usize], gradient: &mut [f32], state: &mut [&mut [f32]]) {
        let [first, second] = state else { unreachable!("invariant: two slots") };
        let AdamWOptions { beta1, beta2, eps, .. } = self.options;
        let number = step.number as i32;
        let root = (1.0 - beta2.powi(number)).sqrt() as f32;
        let scale = (1.0 / (1.0 - beta1.powi(number))) as f32;
        let (b1, n1, b2, n2) = (beta1 as f32, (1.0 - beta1) as f32, beta2 as f32, (1.0 - beta2) as f32);
        let eps = eps as f32;
        for (g, (m, v)) in gradient.iter_mut().zip(first.iter_mut().zip(second.iter_mut())) {
            *m = g.mul_add(n1, *m * b1);
            *v = square_average(*v, b2, *g, n2);
            *g = scale * *m / (v.sqrt() / root + eps);
        }
    }
}
