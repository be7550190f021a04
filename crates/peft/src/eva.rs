//! `Eva`: ranks and vectors of adapters from what their layers read (EVA; Paischer et al., arXiv:2410.07170): incremental
//! principal components (Ross et al. 2008) of each layer's inputs, of all layers' those with the most variance.
//!
//! Batches go on until the vectors that are wanted stand still; layers that read the same share one decomposition.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::spectral::{Matrix, Triplets, dot};
use crate::{LoraConfig, PeftError};

/// Settings of `eva`, PEFT's `eva_config`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvaConfig {
    /// A layer may get that many times its rank; 1 leaves ranks as they are.
    pub rho: f64,
    /// The cosine of a vector before and after a batch at which it stands still.
    pub tau: f64,
    /// Whether inputs of tokens with [`Self::label_mask_value`] for a label are left out.
    pub use_label_mask: bool,
    /// The label of tokens that are not learned.
    pub label_mask_value: i64,
    /// Whether vectors are divided by the roots of their singular values.
    pub whiten: bool,
    /// Whether alphas follow ranks, so that scales stay.
    pub adjust_scaling_factors: bool,
}

impl Default for EvaConfig {
    fn default() -> Self {
        Self {
            rho: 2.0,
            tau: 0.99,
            use_label_mask: true,
            label_mask_value: -100,
            whiten: false,
            adjust_scaling_factors: true,
        }
    }
}

/// The settings of a start, key by key; `take` says whether it knows a key and its value.
pub(crate) fn settings(
    config: &LoraConfig,
    name: &'static str,
    mut take: impl FnMut(&str, &Value) -> Option<bool>,
) -> Result<(), PeftError> {
    let none = Map::new();
    let own = config.rest.get(name).and_then(Value::as_object).unwrap_or(&none);
    for (key, value) in own {
        if take(key, value) != Some(true) {
            let (key, value) = (format!("{name}.{key}"), value.to_string());
            let mend = "take the key out, or give it a value that PEFT's class for it has";
            return Err(PeftError::UnsupportedKey { key, value, mend });
        }
    }
    Ok(())
}

impl EvaConfig {
    /// The settings that a configuration has, PEFT's defaults where it says nothing.
    ///
    /// # Errors
    /// Names a key that it does not know, or whose value is none.
    pub fn of(config: &LoraConfig) -> Result<Self, PeftError> {
        let mut own = Self::default();
        settings(config, "eva_config", |key, value| {
            match key {
                "rho" => own.rho = value.as_f64().filter(|rho| *rho >= 1.0)?,
                "tau" => own.tau = value.as_f64().filter(|tau| (0.0..=1.0).contains(tau))?,
                "use_label_mask" => own.use_label_mask = value.as_bool()?,
                "label_mask_value" => own.label_mask_value = value.as_i64()?,
                "whiten" => own.whiten = value.as_bool()?,
                "adjust_scaling_factors" => own.adjust_scaling_factors = value.as_bool()?,
                _ => return None,
            }
            Some(true)
        })?;
        Ok(own)
    }
}

/// Principal components of rows that come in batches.
struct Components {
    count: usize,
    tau: f64,
    /// Rows seen.
    seen: f64,
    mean: Vec<f64>,
    /// Sums of squares about the mean.
    squares: Vec<f64>,
    vectors: Vec<Vec<f64>>,
    values: Vec<f64>,
    still: Vec<bool>,
}

impl Components {
    fn new(count: usize, tau: f64) -> Self {
        let (mean, squares, vectors, values) = Default::default();
        Self { count, tau, seen: 0.0, mean, squares, vectors, values, still: vec![false; count] }
    }

    /// Takes a batch of rows into account; too few say nothing.
    fn fit(&mut self, x: &[f32], width: usize) {
        let rows = x.len() / width.max(1);
        if rows < self.count || width < self.count {
            return;
        }
        let n = rows as f64;
        let mut mean = vec![0.0; width];
        for row in x.chunks_exact(width) {
            mean.iter_mut().zip(row).for_each(|(m, x)| *m += f64::from(*x));
        }
        mean.iter_mut().for_each(|m| *m /= n);
        let mut squares = vec![0.0; width];
        let mut stacked: Vec<f32> = Vec::with_capacity((self.count + rows + 1) * width);
        for (vector, value) in self.vectors.iter().zip(&self.values) {
            stacked.extend(vector.iter().map(|v| (v * value) as f32));
        }
        for row in x.chunks_exact(width) {
            for ((x, m), s) in row.iter().zip(&mean).zip(&mut squares) {
                let apart = f64::from(*x) - m;
                *s += apart * apart;
                stacked.push(apart as f32);
            }
        }
        let first = self.seen == 0.0;
        let total = self.seen + n;
        if first {
            (self.mean, self.squares) = (mean, squares);
        } else {
            let between = self.seen * n / total;
            for at in 0..width {
                let apart = self.mean[at] - mean[at];
                stacked.push((between.sqrt() * apart) as f32);
                self.squares[at] += squares[at] + between * apart * apart;
                self.mean[at] = (self.mean[at] * self.seen + mean[at] * n) / total;
            }
        }
        self.seen = total;
        let matrix = Matrix { values: &stacked, rows: stacked.len() / width, columns: width };
        // Whatever it starts from, the leading vectors are found.
        let start = |i: usize| ((i as f64 + 1.0) * 12.9898).sin() * 43_758.545_3 % 1.0;
        let Triplets { values, right, .. } = matrix.leading(self.count, start);
        let mut vectors = right;
        for vector in &mut vectors {
            let largest = vector.iter().fold(0.0_f64, |top, &x| if x.abs() > top.abs() { x } else { top });
            if largest < 0.0 {
                vector.iter_mut().for_each(|x| *x = -*x);
            }
        }
        if !first {
            self.still = vectors.iter().zip(&self.vectors).map(|(a, b)| dot(a, b) >= self.tau).collect();
        }
        (self.vectors, self.values) = (vectors, values);
    }

    /// What of the variance each vector has.
    fn ratios(&self) -> impl Iterator<Item = f64> {
        let all: f64 = self.squares.iter().sum();
        self.values.iter().map(move |s| if all > 0.0 { s * s / all } else { 0.0 })
    }
}

/// The decompositions of all layers, and who gets which rank.
pub struct Eva {
    config: EvaConfig,
    /// Of each layer the one whose decomposition it takes: itself, or the first that reads the same.
    owner: Vec<usize>,
    most: Vec<usize>,
    budget: usize,
    components: BTreeMap<usize, Components>,
    done: BTreeMap<usize, bool>,
    ranks: Vec<usize>,
}

impl Eva {
    /// Over layers of these ranks, in the model's order; those with the same number in `inputs` read the same.
    #[must_use]
    pub fn new(config: EvaConfig, ranks: &[usize], inputs: &[u64]) -> Self {
        let first = |at: usize| inputs.iter().position(|input| *input == inputs[at]).unwrap_or(at);
        let owner: Vec<usize> = (0..ranks.len()).map(first).collect();
        let wanted = |at: usize| (ranks[at] as f64 * config.rho).round_ties_even() as usize;
        let group = |of: usize| (0..ranks.len()).filter(move |&at| inputs[at] == inputs[of]);
        let most: Vec<usize> = (0..ranks.len()).map(|at| group(at).map(wanted).max().unwrap_or(0)).collect();
        let own = owner.iter().copied().collect::<std::collections::BTreeSet<_>>();
        let components = own.iter().map(|&at| (at, Components::new(most[at], config.tau))).collect();
        let done = own.iter().map(|&at| (at, false)).collect();
        let budget = ranks.iter().sum();
        Self { config, owner, ranks: most.clone(), most, budget, components, done }
    }

    /// The most vectors that a layer may get: it needs as many inputs, and as many tokens in a batch.
    #[must_use]
    pub fn most(&self, layer: usize) -> usize {
        self.most[layer]
    }

    /// Whether another batch is needed; [`Self::wants`] says for which layers.
    pub fn goes_on(&mut self) -> bool {
        for (at, components) in &self.components {
            let still = components.still.iter().take(self.ranks[*at]).all(|&still| still);
            self.done.insert(*at, still);
        }
        self.done.values().any(|done| !done)
    }

    /// Whether the inputs of a layer are to be fitted.
    #[must_use]
    pub fn wants(&self, layer: usize) -> bool {
        self.done.get(&layer) == Some(&false)
    }

    /// Takes the inputs `[tokens, width]` of a layer in a batch.
    pub fn fit(&mut self, layer: usize, x: &[f32], width: usize) {
        if let Some(components) = self.components.get_mut(&layer) {
            components.fit(x, width);
        }
    }

    /// Whether every layer has vectors.
    #[must_use]
    pub fn has_all(&self) -> bool {
        self.components.values().all(|own| !own.vectors.is_empty())
    }

    /// Gives ranks to layers by the variance of their vectors, when a batch is over.
    pub fn redistribute(&mut self) {
        if !self.has_all() {
            return;
        }
        // Layers with a decomposition of their own, then those that take another's, by what they read.
        let layers = 0..self.owner.len();
        let mut order: Vec<usize> = layers.clone().filter(|&at| self.owner[at] == at).collect();
        let others: Vec<usize> = order
            .iter()
            .flat_map(|&own| layers.clone().filter(move |&at| at != own).map(move |at| (own, at)))
            .filter(|&(own, at)| self.owner[at] == own)
            .map(|(_, at)| at)
            .collect();
        order.extend(&others);
        let mut all: Vec<(f64, usize)> = Vec::new();
        for &at in &order {
            let ratios = self.components[&self.owner[at]].ratios();
            all.extend(ratios.take(self.most[at]).map(|ratio| (ratio, at)));
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.ranks.fill(0);
        all.iter().take(self.budget).for_each(|&(_, at)| self.ranks[at] += 1);
        for at in others {
            let own = self.owner[at];
            if self.ranks[own] < self.ranks[at] {
                self.ranks.swap(own, at);
            }
        }
    }

    /// The rank of each layer, and its A `[rank, in]`.
    #[must_use]
    pub fn finish(self) -> Vec<(usize, Vec<f32>)> {
        let of = |at: usize| {
            let own = &self.components[&self.owner[at]];
            let vectors = own.vectors.iter().zip(&own.values).take(self.ranks[at]);
            let a = vectors.flat_map(|(vector, value)| {
                let by = if self.config.whiten { value.sqrt() } else { 1.0 };
                vector.iter().map(move |x| (x / by) as f32)
            });
            (self.ranks[at], a.collect())
        };
        (0..self.owner.len()).map(of).collect()
    }
}
