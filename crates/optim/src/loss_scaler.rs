//! Dynamic loss scaling for gradients in half precision.

use serde::{Deserialize, Serialize};

/// A loss scale that halves on overflow and doubles after a time without one, with DeepSpeed's defaults
/// (`loss_scale_window` 1000, `hysteresis` 2, `min_loss_scale` 1, `initial_scale_power` 16). Part of a checkpoint.
///
/// ```
/// use burnish_optim::LossScaler;
/// let mut scaler = LossScaler::dynamic();
/// scaler.hysteresis = 1;
/// assert_eq!(scaler.scale(), 65536.0);
/// assert!(scaler.update(true));
/// assert_eq!(scaler.scale(), 32768.0);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScaler {
    scale: f32,
    /// Steps without overflow before the scale doubles.
    pub window: u64,
    /// Overflows that are waited for before the scale halves.
    pub hysteresis: u32,
    /// The scale does not fall below this.
    pub min_scale: f32,
    waits: Option<u32>,
    since_overflow: u64,
}

impl LossScaler {
    /// From 2^16.
    #[must_use]
    pub const fn dynamic() -> Self {
        Self { scale: 65536.0, window: 1000, hysteresis: 2, min_scale: 1.0, waits: None, since_overflow: 0 }
    }

    /// What the loss is multiplied by.
    #[must_use]
    pub const fn scale(&self) -> f32 {
        self.scale
    }

    /// Notes whether a step overflowed, which every rank must agree on. False when it did and the scale cannot fall
    /// any further: the run does not learn any more.
    pub fn update(&mut self, overflow: bool) -> bool {
        if !overflow {
            self.since_overflow += 1;
            if self.since_overflow.is_multiple_of(self.window.max(1)) {
                self.waits = None;
                self.scale *= 2.0;
            }
            return true;
        }
        self.since_overflow = 0;
        let waits = self.waits.unwrap_or(self.hysteresis);
        if waits > 1 {
            self.waits = Some(waits - 1);
            return true;
        }
        let could = self.scale > self.min_scale;
        self.scale = (self.scale / 2.0).max(self.min_scale);
        could
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sequences of DeepSpeed's dynamic scaler tests: none, all and some steps overflow.
    #[test]
    fn the_scale_follows_the_overflows() {
        let scaler = || LossScaler { window: 2, hysteresis: 1, ..LossScaler::dynamic() };
        let mut quiet = scaler();
        for step in 1..=10u32 {
            assert!(quiet.update(false));
            assert_eq!(quiet.scale(), 65536.0 * 2f32.powi(step as i32 / 2));
        }
        let mut loud = scaler();
        for step in 1..=16 {
            assert!(loud.update(true));
            assert_eq!(loud.scale(), 65536.0 / 2f32.powi(step));
        }
        assert_eq!(loud.scale(), 1.0);
        assert!(!loud.update(true), "at the least scale an overflow is the end");
        let mut some = scaler();
        let told: Vec<f32> = [false, true, false, false, true, false]
            .iter()
            .map(|&overflow| {
                assert!(some.update(overflow));
                some.scale() / 65536.0
            })
            .collect();
        assert_eq!(told, [1.0, 0.5, 0.5, 1.0, 0.5, 0.5]);
    }

    #[test]
    fn hysteresis_waits() {
        let mut scaler = LossScaler::dynamic();
        assert!(scaler.update(true));
        assert_eq!(scaler.scale(), 65536.0);
        assert!(scaler.update(true));
        assert_eq!(scaler.scale(), 32768.0);
    }
}
