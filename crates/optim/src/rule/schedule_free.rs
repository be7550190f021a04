//! Schedule-free SGD, AdamW and RAdam (Defazio et al. 2024), as the package `schedulefree` computes them.

use burnish_core::{OptionFaults, Parameter};

use super::rmsprop::square_average;
use super::{Rule, Run, Slot, Step, elements};
use crate::AdamWOptions;
use crate::arguments::ArgumentReader;

/// What is made schedule-free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Sgd,
    AdamW,
    RAdam,
}

/// `optim: schedule_free_adamw`, `schedule_free_radam`, `schedule_free_sgd`.
///
/// What trains is `y`, between the iterate `z` of the base and the average `x` of all `z`; `x` is what is evaluated and
/// saved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScheduleFree {
    base: Base,
    options: AdamWOptions,
    warmup_steps: u64,
    /// The power of the step in the average's weights.
    r: f64,
    /// The power of the highest rate in the average's weights.
    weight_lr_power: f64,
}

impl ScheduleFree {
    pub(crate) fn read(
        mut arguments: ArgumentReader<'_>,
        base: Base,
        options: &AdamWOptions,
        warmup_steps: u64,
    ) -> (Self, OptionFaults) {
        let r = arguments.number("r", 0.0, f64::is_finite, "a number");
        let weight_lr_power = arguments.number("weight_lr_power", 2.0, f64::is_finite, "a number");
        // The package's momentum, which Transformers leaves as it is.
        let beta1 = if base == Base::Sgd { 0.9 } else { options.beta1 };
        let above = beta1 > 0.0;
        arguments.rule(above, "adam_beta1 is above 0", "raise adam_beta1");
        let options = AdamWOptions { beta1, ..*options };
        let warmup_steps = if base == Base::RAdam { 0 } else { warmup_steps };
        (Self { base, options, warmup_steps, r, weight_lr_power }, arguments.finish())
    }

    /// How long the average of squares effectively is, and RAdam's rectification of the rate.
    fn rectified(&self, number: u64) -> (f64, f64) {
        let beta2 = self.options.beta2;
        let power = beta2.powi(number as i32);
        let longest = 2.0 / (1.0 - beta2) - 1.0;
        let length = longest - 2.0 * number as f64 * power / (1.0 - power);
        let share = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length);
        (length, if length > 4.0 { share.sqrt() } else { 0.0 })
    }

    /// The rate of step `number` under warm-up or rectification.
    fn rate(&self, number: u64, lr: f64) -> f64 {
        match self.base {
            Base::RAdam => lr * self.rectified(number).1,
            _ if number <= self.warmup_steps => lr * (number as f64 / self.warmup_steps as f64),
            _ => lr,
        }
    }
}

impl Rule for ScheduleFree {
    fn slots(&self, _: &Parameter) -> Vec<Slot> {
        let mut slots = vec![elements("z")];
        if self.base != Base::Sgd {
            slots.push(elements("exp_avg_sq"));
        }
        slots
    }

    fn begins_as_value(&self, slot: &str) -> bool {
        slot == "z"
    }

    fn direction(&self, step: &Step, _: &[usize], gradient: &mut [f32], state: &mut [&mut [f32]]) {
        let [_, second] = state else { return };
        let AdamWOptions { beta2, eps, .. } = self.options;
        let (keep, new) = (beta2 as f32, (1.0 - beta2) as f32);
        let correction = (1.0 - beta2.powi(step.number as i32)) as f32;
        let adapts = self.base == Base::AdamW || self.rectified(step.number).0 > 4.0;
        for (g, v) in gradient.iter_mut().zip(second.iter_mut()) {
            *v = square_average(*v, keep, *g, new);
            if adapts {
                *g /= (*v / correction).sqrt() + eps as f32;
            }
        }
    }

    fn update(
        &self,
        step: &Step,
        shape: &[usize],
        value: &mut [f32],
        gradient: &mut [f32],
        state: &mut [&mut [f32]],
    ) {
        self.direction(step, shape, gradient, state);
        let [z, ..] = state else { unreachable!("invariant: z is always there") };
        let (rate, share) = (self.rate(step.number, step.lr), step.run.share);
        let towards = (rate * (self.options.beta1 * (1.0 - share) - 1.0)) as f32;
        let (rate, decay) = (rate as f32, step.weight_decay as f32);
        for (g, (y, z)) in gradient.iter().zip(value.iter_mut().zip(z.iter_mut())) {
            let g = decay.mul_add(*y, *g);
            *y = lerp(*y, *z, share as f32) + towards * g;
            *z -= rate * g;
        }
    }

    fn count(&self, run: &mut Run, number: u64, lr: f64) {
        run.highest = run.highest.max(self.rate(number, lr));
        let weight = (number as f64).powf(self.r) * run.highest.powf(self.weight_lr_power);
        run.weights += weight;
        run.share = if run.weights == 0.0 { 0.0 } else { weight / run.weights };
    }

    fn averages(&self) -> bool {
        true
    }

    fn averaged(&self, value: &mut [f32], state: &[&[f32]]) {
        let weight = (1.0 - 1.0 / self.options.beta1) as f32;
        for (y, z) in value.iter_mut().zip(state[0]) {
            *y = lerp(*y, *z, weight);
        }
    }
}

/// `torch.lerp`.
fn lerp(from: f32, to: f32, weight: f32) -> f32 {
    if weight.abs() < 0.5 { from + weight * (to - from) } else { to - (to - from) * (1.0 - weight) }
}
