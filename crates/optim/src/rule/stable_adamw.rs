//! StableAdamW (Wortsman et al. 2023), as torch-optimi computes it.

use burnish_core::{OptionFaults, Parameter};

use super::rmsprop::square_average;
use super::{Rule, Slot, Step, elements};
use crate::AdamWOptions;
use crate::arguments::ArgumentReader;

/// `optim: stable_adamw`: AdamW whose rate is divided, tensor by tensor, by the root of the mean of `g² / v` where that
/// is above 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StableAdamW {
    options: AdamWOptions,
    /// The rate that `weight_decay` is relative to, with `decouple_lr`.
    full_rate: Option<f64>,
}

impl StableAdamW {
    /// `lr` is the highest learning rate.
    pub(crate) fn read(
        mut arguments: ArgumentReader<'_>,
        options: &AdamWOptions,
        lr: f64,
    ) -> (Self, OptionFaults) {
        let decoupled = arguments.flag("decouple_lr", false);
        let full = arguments.number("max_lr", lr, |x| x > 0.0 && x.is_finite(), "a number above 0");
        let rule = Self { options: *options, full_rate: (decoupled && full > 0.0).then_some(full) };
        (rule, arguments.finish())
    }
}

/// The decay of a moving average that needs no correction of its bias afterwards.
fn debiased(beta: f64, number: u64) -> f64 {
    let power = beta.powi(number as i32);
    (power - beta) / (power - 1.0)
}

impl Rule for StableAdamW {
    fn slots(&self, _: &Parameter) -> Vec<Slot> {
        vec![elements("exp_avg"), elements("exp_avg_sq")]
    }

    /// The mean of a tensor.
    fn of_tensor(&self) -> bool {
        true
    }

    /// Weight decay follows the tensor's own rate.
    fn takes_value(&self) -> bool {
        self.options.weight_decay != 0.0
    }

    fn decoupled(&self, _: &Step) -> f64 {
        0.0
    }

    fn direction(&self, step: &Step, _: &[usize], gradient: &mut [f32], state: &mut [&mut [f32]]) {
        let [first, second, value @ ..] = state else { unreachable!("invariant: two slots") };
        let AdamWOptions { beta1, beta2, eps, .. } = self.options;
        let new = (1.0 - debiased(beta1, step.number)) as f32;
        let keep = debiased(beta2, step.number);
        let (keep, fresh) = (keep as f32, (1.0 - keep) as f32);
        let floor = (eps * eps) as f32;
        let mut squares = 0.0_f64;
        for (g, (m, v)) in gradient.iter().zip(first.iter_mut().zip(second.iter_mut())) {
            *m += new * (*g - *m);
            *v = square_average(*v, keep, *g, fresh);
            squares += f64::from(*g * *g / v.max(floor));
        }
        let rms = (squares / gradient.len().max(1) as f64).sqrt();
        let share = (1.0 / rms.max(1.0)) as f32;
        let decay = (step.weight_decay / self.full_rate.unwrap_or(1.0)) as f32;
        for (i, g) in gradient.iter_mut().enumerate() {
            let decayed = value.first().map_or(0.0, |value| decay * value[i]);
            *g = share * (first[i] / (second[i].sqrt() + eps as f32) + decayed);
        }
    }
}
