//! Lion (Chen et al. 2023), as bitsandbytes computes it.

use burnish_core::{OptionFaults, Parameter};

use super::{Rule, Slot, Step, eight_bits, elements};
use crate::AdamWOptions;
use crate::arguments::ArgumentReader;

/// `optim: lion_32bit`, `lion_8bit` and their paged names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Lion {
    beta1: f64,
    beta2: f64,
    eight_bits: bool,
}

impl Lion {
    pub(crate) fn read(
        arguments: ArgumentReader<'_>,
        adam: &AdamWOptions,
        eight_bits: bool,
    ) -> (Self, OptionFaults) {
        (Self { beta1: adam.beta1, beta2: adam.beta2, eight_bits }, arguments.finish())
    }
}

impl Rule for Lion {
    fn slots(&self, parameter: &Parameter) -> Vec<Slot> {
        let name = "exp_avg";
        vec![if self.eight_bits { eight_bits(name, true, parameter) } else { elements(name) }]
    }

    fn direction(&self, _: &Step, _: &[usize], gradient: &mut [f32], state: &mut [&mut [f32]]) {
        let [average] = state else { unreachable!("invariant: one slot") };
        let (b1, n1) = (self.beta1 as f32, (1.0 - self.beta1) as f32);
        let (b2, n2) = (self.beta2 as f32, (1.0 - self.beta2) as f32);
        for (g, m) in gradient.iter_mut().zip(average.iter_mut()) {
            let ahead = if self.eight_bits { *m * b1 + *g * n1 } else { g.mul_add(n1, *m * b1) };
            *m = g.mul_add(n2, *m * b2);
            // PyTorch's sign: 0 of 0.
            *g = if ahead > 0.0 {
                1.0
            } else if ahead < 0.0 {
                -1.0
            } else {
                0.0
            };
        }
    }
}
