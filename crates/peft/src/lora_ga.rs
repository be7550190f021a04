//! `LoraGa`: factors whose first step is nearest to that of the whole weight (LoRA-GA; Wang et al., arXiv:2407.05000): from the
//! leading singular triplets of its gradient.

use burnish_core::random::Stream;

use crate::eva::settings;
use crate::spectral::{Matrix, Triplets, factors};
use crate::{Decomposition, LoraConfig, LoraSite, PeftError};

/// Which of the `2 r` leading triplets A and B get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// A those with even numbers from one, B those with odd ones.
    ArBr,
    /// A the second half, B the first.
    A2rBr,
    /// A the first half, B the second.
    #[default]
    ArB2r,
    /// Both the same, of those that are counted out.
    Random,
}

/// What B is multiplied by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientScale {
    /// `out^(1/4) / gamma^(1/2)`.
    #[default]
    Stable,
    /// The weight's largest singular value over the largest that B has.
    WeightSvd,
    /// One over the adapter's scale, A too.
    GdScale,
    /// One.
    Unit,
}

/// Settings of `lora_ga`, PEFT's `lora_ga_config`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraGaConfig {
    /// Who gets which triplets.
    pub direction: Direction,
    /// What B is multiplied by.
    pub scale: GradientScale,
    /// `gamma` of [`GradientScale::Stable`].
    pub stable_gamma: f64,
}

impl Default for LoraGaConfig {
    fn default() -> Self {
        Self { direction: Direction::default(), scale: GradientScale::default(), stable_gamma: 16.0 }
    }
}

impl LoraGaConfig {
    /// The settings that a configuration has, PEFT's defaults where it says nothing.
    ///
    /// # Errors
    /// Names a key that it does not know, or whose value is none.
    pub fn of(config: &LoraConfig) -> Result<Self, PeftError> {
        let mut own = Self::default();
        settings(config, "lora_ga_config", |key, value| {
            match key {
                "direction" => {
                    own.direction = match value.as_str()? {
                        "ArBr" => Direction::ArBr,
                        "A2rBr" => Direction::A2rBr,
                        "ArB2r" => Direction::ArB2r,
                        "random" => Direction::Random,
                        _ => return None,
                    }
                }
                "scale" => {
                    own.scale = match value.as_str()? {
                        "stable" => GradientScale::Stable,
                        "weight_svd" => GradientScale::WeightSvd,
                        "gd_scale" => GradientScale::GdScale,
                        "unit" => GradientScale::Unit,
                        _ => return None,
                    }
                }
                "stable_gamma" => own.stable_gamma = value.as_f64().filter(|gamma| *gamma > 0.0)?,
                _ => return None,
            }
            Some(true)
        })?;
        Ok(own)
    }

    /// The factors of a weight `[out, in]` with that gradient; the rank is at most half of its smaller side.
    ///
    /// # Panics
    /// If `weight` or `gradient` is not `[out, in]` of the site.
    #[must_use]
    pub fn factors(self, site: &LoraSite, weight: &[f32], gradient: &[f32], seed: u64) -> Decomposition {
        let elements = site.out * site.input;
        assert!(weight.len() == elements && gradient.len() == elements, "lora_ga: both are [out, in]");
        let matrix = |values| Matrix { values, rows: site.out, columns: site.input };
        let stream = Stream::new(seed, &site.a_name);
        let start = |i: usize| f64::from(stream.normal(i as u64));
        let r = site.rank;
        let Triplets { mut left, values, mut right } = matrix(gradient).leading(2 * r, start);
        let (of_a, of_b): (Vec<usize>, Vec<usize>) = match self.direction {
            Direction::ArBr => (0..r).map(|i| (2 * i + 1, 2 * i)).unzip(),
            Direction::A2rBr => (0..r).map(|i| (r + i, i)).unzip(),
            Direction::ArB2r => (0..r).map(|i| (i, r + i)).unzip(),
            Direction::Random => {
                let order = Stream::new(seed, &site.b_name);
                let mut all: Vec<usize> = (0..2 * r).collect();
                all.sort_by(|&a, &b| order.normal(a as u64).total_cmp(&order.normal(b as u64)));
                all.truncate(r);
                (all.clone(), all)
            }
        };
        let (mut by_a, mut by_b) = (1.0, 1.0);
        match self.scale {
            GradientScale::Stable => by_b = (site.out as f64).powf(0.25) / self.stable_gamma.sqrt(),
            GradientScale::WeightSvd => {
                let largest = values[of_b[0]];
                if largest > 0.0 {
                    by_b = matrix(weight).leading(1, start).values[0] / largest;
                }
            }
            GradientScale::GdScale => (by_a, by_b) = (1.0 / site.scale, 1.0 / site.scale),
            GradientScale::Unit => {}
        }
        let take = |from: &mut Vec<Vec<f64>>, which: &[usize], by: &dyn Fn(usize) -> f64| {
            which.iter().map(|&i| from[i].iter().map(|x| x * by(i)).collect()).collect::<Vec<Vec<f64>>>()
        };
        let a = take(&mut right, &of_a, &|_| by_a);
        let b = take(&mut left, &of_b, &|i| values[i] * by_b);
        let (a, b) = factors(&b, &a, site.out);
        Decomposition { a, b }
    }
}
