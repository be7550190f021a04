//! AdEMAMix (Pagliardini et al. 2024), as bitsandbytes computes it.

use burnish_core::{OptionFaults, Parameter};

use super::rmsprop::square_average;
use super::{Rule, Slot, Step, eight_bits, elements};
use crate::AdamWOptions;
use crate::arguments::ArgumentReader;

/// `optim: ademamix`, `ademamix_8bit` and their paged names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AdEmaMix {
    betas: [f64; 3],
    alpha: f64,
    eps: f64,
    /// Steps in which `alpha` grows to itself.
    t_alpha: Option<u64>,
    /// Steps in which the slow decay grows from the fast one's to itself.
    t_beta3: Option<u64>,
    eight_bits: bool,
}

impl AdEmaMix {
    pub(crate) fn read(
        mut arguments: ArgumentReader<'_>,
        adam: &AdamWOptions,
        eight_bits: bool,
    ) -> (Self, OptionFaults) {
        let betas = [
            arguments.share("beta1", adam.beta1),
            arguments.share("beta2", adam.beta2),
            arguments.share("beta3", 0.9999),
        ];
        let alpha = arguments.at_least_0("alpha", 5.0);
        let eps = arguments.at_least_0("eps", adam.eps);
        let t_alpha = arguments.count("t_alpha").filter(|&steps| steps > 0);
        let t_beta3 = arguments.count("t_beta3").filter(|&steps| steps > 0);
        (Self { betas, alpha, eps, t_alpha, t_beta3, eight_bits }, arguments.finish())
    }

    /// The weight of the slow average and its decay, in step `number`.
    fn slow(&self, number: u64) -> (f64, f64) {
        let number = number as f64;
        let alpha = match self.t_alpha {
            Some(steps) => (number * self.alpha / steps as f64).min(self.alpha),
            None => self.alpha,
        };
        let [beta1, _, beta3] = self.betas;
        let beta3 = match self.t_beta3 {
            Some(steps) => {
                let (fast, slow, share) = (beta1.ln(), beta3.ln(), number / steps as f64);
                ((fast * slow) / ((1.0 - share) * slow + share * fast)).exp().min(beta3)
            }
            None => beta3,
        };
        (alpha, beta3)
    }
}

impl Rule for AdEmaMix {
    fn slots(&self, parameter: &Parameter) -> Vec<Slot> {
        let slot = |name, signed| match self.eight_bits {
            true => eight_bits(name, signed, parameter),
            false => elements(name),
        };
        vec![slot("exp_avg", true), slot("exp_avg_slow", true), slot("exp_avg_sq", false)]
    }

    fn direction(&self, step: &Step, _: &[usize], gradient: &mut [f32], state: &mut [&mut [f32]]) {
        let [fast, slow, second] = state else { unreachable!("invariant: three slots") };
        let [beta1, beta2, _] = self.betas;
        let (alpha, beta3) = self.slow(step.number);
        let number = step.number as i32;
        let correction = (1.0 - beta1.powi(number)) as f32;
        let root = (1.0 - beta2.powi(number)).sqrt() as f32;
        let [b1, b2, b3] = [beta1, beta2, beta3].map(|b| b as f32);
        let [n1, n2, n3] = [beta1, beta2, beta3].map(|b| (1.0 - b) as f32);
        let (alpha, eps) = (alpha as f32, self.eps as f32);
        for (i, g) in gradient.iter_mut().enumerate() {
            fast[i] = g.mul_add(n1, fast[i] * b1);
            slow[i] = g.mul_add(n3, slow[i] * b3);
            second[i] = square_average(second[i], b2, *g, n2);
            *g = (fast[i] / correction + alpha * slow[i]) / (second[i].sqrt() / root + eps);
        }
    }
}
