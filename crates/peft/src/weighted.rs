//! One adapter for a weighted sum of several.
//!
//! The sum is of the adapters' changes to the base, `sum_i w_i s_i B_i A_i`. The result has scale 1 whatever the
//! parts' scales were (a part's rsLoRA is in its `s_i`, and is not applied again), and biases of B count as they do in
//! forward, scaled.

use std::collections::{BTreeMap, BTreeSet};

use burnish_core::Dtype;
use burnish_core::random::Stream;
use burnish_weight_files::HostTensor;
use serde_json::{Map, Number, Value};

use crate::factor_sums::FactorSums;
use crate::merge::expect_shape;
use crate::spectral::{self, all_orthonormal, dot, eigen};
use crate::{
    AdapterTensors, Factor, InitWeights, LoraPlan, LoraSite, MatchReport, ModuleKind, PatternCount,
    PeftError, Targets,
};

/// An adapter in a sum.
#[derive(Clone, Copy, Debug)]
pub struct Weighted<'a> {
    /// Its sites.
    pub plan: &'a LoraPlan,
    /// Its values.
    pub tensors: &'a AdapterTensors,
    /// How often it counts; may be negative.
    pub weight: f64,
}

/// What rank a sum gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Combination {
    /// The factors side by side: the sum itself, of the sum of the ranks.
    Cat,
    /// The nearest adapter (in the Frobenius norm of the change) of the greatest of the parts' ranks: the sum itself
    /// where that has no higher rank. Adding factors instead, as PEFT's `linear` does, mixes the `B` of one part with
    /// the `A` of another.
    Linear,
    /// The nearest adapter of this rank.
    Svd {
        /// The rank; of a module at most its smaller dimension.
        rank: usize,
    },
    /// Factors summed each on their own, as PEFT does it: of parts of one rank.
    Factors(FactorSums),
    /// The nearest adapter of a rank to changes that are summed whole. Each of a module's is there in full for that,
    /// `[out, in]` in fp32.
    Changes {
        /// How they are summed.
        sums: FactorSums,
        /// The rank; of a module at most its smaller dimension.
        rank: usize,
    },
}

/// The weighted sum of adapters of one base, as an adapter: a plan with scale 1 everywhere, and fp32 values. A module
/// that a part does not adapt is not changed by it.
///
/// The nearest adapter of a rank is found through the factors alone, in `O((out + in) R^2)` for a sum of ranks `R`.
///
/// # Errors
/// No part, a weight that is not finite, a rank of zero, parts of different bases, and what has no sum: magnitudes
/// (`use_dora`), base parameters that trained along, factors that fit a changed base.
///
/// ```
/// use burnish_core::{Dtype, Registry};
/// use burnish_peft::{AdapterTensors, Combination, LoraConfig, ModuleInfo, ModuleKind, LoraPlan, Targets, Purpose, Weighted, add_weighted_adapter};
/// use burnish_weight_files::HostTensor;
///
/// let mut config = LoraConfig::new(2, 4.0);
/// config.target_modules = Some(Targets::List(vec!["proj".into()]));
/// let plan = LoraPlan::new(&config, Purpose::Create, "", &[ModuleInfo::new("proj", ModuleKind::Linear, 3, 4)], &Registry::new())?;
/// let mut tensors = AdapterTensors::default();
/// for p in plan.parameters() {
///     let values = vec![0.5; p.elements()];
///     tensors.parameters.insert(p.name.clone(), HostTensor::from_f32(&values, &p.shape, Dtype::F32)?);
/// }
/// let part = |weight| Weighted { plan: &plan, tensors: &tensors, weight };
/// let (sum, _) = add_weighted_adapter(&[part(1.0), part(-0.5)], Combination::Cat)?;
/// assert_eq!((sum.sites[0].rank, sum.sites[0].scale), (4, 1.0));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub fn add_weighted_adapter(
    parts: &[Weighted<'_>],
    how: Combination,
) -> Result<(LoraPlan, AdapterTensors), PeftError> {
    let Some(first) = parts.first() else {
        return Err(PeftError::BadValue { key: "adapters", got: "none".into(), expected: "at least one" });
    };
    if matches!(how, Combination::Svd { rank: 0 } | Combination::Changes { rank: 0, .. }) {
        return Err(PeftError::BadValue { key: "rank", got: "0".into(), expected: "at least 1" });
    }
    parts.iter().try_for_each(check)?;
    let tied = |part: &Weighted<'_>| part.plan.kept_tie.is_some();
    if parts.iter().any(|part| tied(part) != tied(first)) {
        let condition = "by some of the adapters in a weighted sum: a head that stays its embedding and one that does not have no sum";
        return Err(PeftError::Conflict { key: "ensure_weight_tying", condition });
    }
    let mut tensors = AdapterTensors::default();
    for (name, weight) in parts.iter().flat_map(|p| &p.tensors.base_weights) {
        let known = tensors.base_weights.entry(name.clone()).or_insert_with(|| weight.clone());
        if known != weight {
            let condition =
                "of adapters that replace it by different weights; their sum is not one of changes";
            return Err(PeftError::Conflict { key: "base_layer.weight", condition });
        }
    }
    // One configuration says for all modules whether B has a bias.
    let biased = parts.iter().any(|p| p.plan.config.lora_bias);
    let mut sites: Vec<LoraSite> = Vec::new();
    let mut known = BTreeSet::new();
    for site in parts.iter().flat_map(|p| &p.plan.sites) {
        if known.insert(site.module.as_str()) {
            if biased && site.kind == ModuleKind::Embedding {
                return Err(PeftError::Conflict { key: "lora_bias", condition: "on an embedding" });
            }
            let (sum, factors) = sum_of(site, parts, how, biased)?;
            sites.push(sum);
            tensors.parameters.extend(factors);
        }
    }
    Ok((planned(first.plan, sites), tensors))
}

/// What has a sum.
fn check(part: &Weighted<'_>) -> Result<(), PeftError> {
    let conflict = |key, condition| Err(PeftError::Conflict { key, condition });
    if !part.weight.is_finite() {
        let got = part.weight.to_string();
        return Err(PeftError::BadValue { key: "weight", got, expected: "a finite number" });
    }
    if part.plan.config.trainable_token_indices.is_some() {
        return conflict(
            "trainable_token_indices",
            "in a weighted sum: rows that replace others do not add up",
        );
    }
    part.plan.config.check_weights("part of a weighted sum")?;
    if part.plan.config.method.is_some() {
        let condition =
            "other than LORA in a weighted sum; merge the adapters into the base one after another";
        return conflict("peft_type", condition);
    }
    if part.plan.sites.iter().any(|s| s.magnitude_name.is_some()) {
        let condition =
            "in a weighted sum: magnitudes do not add up; merge the adapters into the base one after another";
        return conflict("use_dora", condition);
    }
    if part.plan.sites.iter().any(|s| s.kind.is_experts()) {
        let condition = "of experts in a weighted sum: their factors are stacked; merge the adapters into the base one after another";
        return conflict("target_parameters", condition);
    }
    part.plan.check_plain_base()?;
    if part.plan.changes_base() {
        let condition = "that changes the base (pissa, olora) in a weighted sum; convert the adapter to the original base first";
        return conflict("init_lora_weights", condition);
    }
    if part.plan.base_parameters().next().is_some() {
        let condition = "with base parameters that trained along in a weighted sum: whole weights do not add up as changes do";
        return conflict(if part.plan.saved.is_empty() { "bias" } else { "modules_to_save" }, condition);
    }
    Ok(())
}

/// A module's factors side by side, the weights and scales in A.
#[derive(Default)]
pub(crate) struct Stack {
    /// Rows of A, `[in]` each.
    a: Vec<Vec<f64>>,
    /// Columns of B, `[out]` each.
    b: Vec<Vec<f64>>,
    /// The sum of the scaled biases of B.
    bias: Option<Vec<f64>>,
    /// The greatest rank of a part.
    widest: usize,
}

fn sum_of(
    like: &LoraSite,
    parts: &[Weighted<'_>],
    how: Combination,
    biased: bool,
) -> Result<(LoraSite, BTreeMap<String, HostTensor>), PeftError> {
    if let Combination::Factors(sums) = how {
        return sum_of_factors(like, parts, sums, biased);
    }
    if let Combination::Changes { sums, rank } = how {
        return sum_of_changes(like, parts, (sums, rank), biased);
    }
    let bias = biased.then(|| vec![0.0; like.out]);
    let mut stack = Stack { a: Vec::new(), b: Vec::new(), bias, widest: 0 };
    for part in parts {
        if let Some(site) = part.plan.site(&like.module) {
            stack.add(site, like, part)?;
        }
    }
    let most = like.shape(Factor::A)[1].min(like.shape(Factor::B)[0]);
    match how {
        Combination::Cat | Combination::Factors(_) | Combination::Changes { .. } => {}
        Combination::Linear => stack.compress(stack.widest.min(most)),
        Combination::Svd { rank } => stack.compress(rank.min(most)),
    }
    stack.into_site(like)
}

/// A module's factors summed each on their own, with the roots of weights and scales on both.
fn sum_of_factors(
    like: &LoraSite,
    parts: &[Weighted<'_>],
    sums: FactorSums,
    biased: bool,
) -> Result<(LoraSite, BTreeMap<String, HostTensor>), PeftError> {
    let conflict = |key, condition| Err(PeftError::Conflict { key, condition });
    check_sums(sums, biased)?;
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for part in parts {
        let Some(site) = part.plan.site(&like.module) else { continue };
        if (site.kind, site.out, site.input) != (like.kind, like.out, like.input) {
            let (expected, got) = (vec![like.out, like.input], vec![site.out, site.input]);
            return Err(PeftError::Shape { name: site.base_weight(), expected, got });
        }
        if site.rank != like.rank {
            return conflict("combination_type", "other than cat and svd on adapters of several ranks");
        }
        let value = |factor: Factor| -> Result<Vec<f32>, PeftError> {
            let name = site.name(factor);
            let tensor = part.tensors.parameters.get(name);
            let tensor = tensor.ok_or_else(|| PeftError::MissingBase { name: name.to_owned() })?;
            expect_shape(name, tensor, &site.shape(factor))?;
            Ok(tensor.to_f32())
        };
        let weight = part.weight * site.scale;
        let root = weight.abs().sqrt();
        // The sign is on one side, or two would cancel.
        a.push((value(Factor::A)?, if weight < 0.0 { -root } else { root }));
        b.push((value(Factor::B)?, root));
    }
    let mut site = like.clone();
    (site.alpha, site.scale, site.dropout) = (site.rank as f64, 1.0, 0.0);
    let mut factors = BTreeMap::new();
    for (factor, of) in [(Factor::A, a), (Factor::B, b)] {
        let name = site.name(factor).to_owned();
        let sum = HostTensor::from_f32(&sums.of(&of, &name), &site.shape(factor), Dtype::F32)?;
        factors.insert(name, sum);
    }
    Ok((site, factors))
}

/// What sums of factors and of changes have in common.
fn check_sums(sums: FactorSums, biased: bool) -> Result<(), PeftError> {
    if biased {
        let condition = "in a sum of factors or of pruned changes: use cat or svd";
        return Err(PeftError::Conflict { key: "lora_bias", condition });
    }
    if !(0.0..=1.0).contains(&sums.density) {
        let (got, expected) = (sums.density.to_string(), "a number from 0 to 1");
        return Err(PeftError::BadValue { key: "density", got, expected });
    }
    Ok(())
}

/// A module's changes summed whole, and the nearest factors of a rank to that.
fn sum_of_changes(
    like: &LoraSite,
    parts: &[Weighted<'_>],
    (sums, rank): (FactorSums, usize),
    biased: bool,
) -> Result<(LoraSite, BTreeMap<String, HostTensor>), PeftError> {
    check_sums(sums, biased)?;
    let (columns, rows) = (like.shape(Factor::A)[1], like.shape(Factor::B)[0]);
    let mut changes = Vec::with_capacity(parts.len());
    for part in parts {
        let Some(site) = part.plan.site(&like.module) else { continue };
        let mut one = Stack { a: Vec::new(), b: Vec::new(), bias: None, widest: 0 };
        one.add(site, like, &Weighted { weight: 1.0, ..*part })?;
        changes.push((one.product(rows, columns), part.weight));
    }
    let sum = sums.of(&changes, &like.module);
    drop(changes);
    let mut site = like.clone();
    let rank = rank.min(rows).min(columns);
    (site.rank, site.alpha, site.scale, site.dropout) = (rank, rank as f64, 1.0, 0.0);
    let start = Stream::new(sums.seed, &site.a_name);
    let nearest = spectral::Matrix { values: &sum, rows, columns }
        .leading(rank, |at| f64::from(start.normal(at as u64)));
    let (left, right) = nearest.halved(1.0);
    let (a, b) = spectral::factors(&left, &right, rows);
    let mut factors = BTreeMap::new();
    for (factor, values) in [(Factor::A, a), (Factor::B, b)] {
        let tensor = HostTensor::from_f32(&values, &site.shape(factor), Dtype::F32)?;
        factors.insert(site.name(factor).to_owned(), tensor);
    }
    Ok((site, factors))
}

impl Stack {
    /// The site like `like` that has these factors, and them.
    pub(crate) fn into_site(
        self,
        like: &LoraSite,
    ) -> Result<(LoraSite, BTreeMap<String, HostTensor>), PeftError> {
        let to = like.shape(Factor::B)[0];
        let rank = self.a.len();
        let mut site = like.clone();
        (site.rank, site.alpha, site.scale, site.dropout) = (rank, rank as f64, 1.0, 0.0);
        site.has_bias = self.bias.is_some();
        site.b_bias_name = site.has_bias.then(|| format!("{}.lora_B.bias", site.module));
        let narrow = |values: Vec<f64>| values.into_iter().map(|x| x as f32).collect::<Vec<_>>();
        let a = narrow(self.a.concat());
        let b = narrow((0..to).flat_map(|o| self.b.iter().map(move |column| column[o])).collect());
        let mut factors = BTreeMap::new();
        let mut put = |factor: Factor, values: Vec<f32>| -> Result<(), PeftError> {
            let tensor = HostTensor::from_f32(&values, &site.shape(factor), Dtype::F32)?;
            factors.insert(site.name(factor).to_owned(), tensor);
            Ok(())
        };
        put(Factor::A, a)?;
        put(Factor::B, b)?;
        if let Some(bias) = self.bias {
            put(Factor::BBias, narrow(bias))?;
        }
        Ok((site, factors))
    }

    /// Zeros up to a rank.
    pub(crate) fn pad(&mut self, like: &LoraSite, rank: usize) {
        self.a.resize(rank, vec![0.0; like.shape(Factor::A)[1]]);
        self.b.resize(rank, vec![0.0; like.shape(Factor::B)[0]]);
    }

    /// `B A`, `[rows, columns]`.
    fn product(&self, rows: usize, columns: usize) -> Vec<f32> {
        let mut out = Vec::with_capacity(rows * columns);
        let mut sum = vec![0.0; columns];
        for row in 0..rows {
            sum.fill(0.0);
            for (a, b) in self.a.iter().zip(&self.b) {
                sum.iter_mut().zip(a).for_each(|(s, a)| *s += b[row] * a);
            }
            out.extend(sum.iter().map(|&x| x as f32));
        }
        out
    }

    pub(crate) fn add(
        &mut self,
        site: &LoraSite,
        like: &LoraSite,
        part: &Weighted<'_>,
    ) -> Result<(), PeftError> {
        if (site.kind, site.out, site.input) != (like.kind, like.out, like.input) {
            let (name, expected, got) =
                (site.base_weight(), vec![like.out, like.input], vec![site.out, site.input]);
            return Err(PeftError::Shape { name, expected, got });
        }
        let value = |factor: Factor| -> Result<Vec<f64>, PeftError> {
            let name = site.name(factor);
            let tensor = part.tensors.parameters.get(name);
            let tensor = tensor.ok_or_else(|| PeftError::MissingBase { name: name.to_owned() })?;
            expect_shape(name, tensor, &site.shape(factor))?;
            Ok(tensor.to_f32().into_iter().map(f64::from).collect())
        };
        let scale = part.weight * site.scale;
        let (a, b) = (value(Factor::A)?, value(Factor::B)?);
        let from = site.shape(Factor::A)[1];
        self.a.extend(a.chunks_exact(from.max(1)).map(|row| row.iter().map(|x| scale * x).collect()));
        self.b.extend((0..site.rank).map(|k| b.iter().skip(k).step_by(site.rank).copied().collect()));
        self.widest = self.widest.max(site.rank);
        if let Some(sum) = self.bias.as_mut().filter(|_| site.has_bias) {
            sum.iter_mut().zip(value(Factor::BBias)?).for_each(|(s, x)| *s += scale * x);
        }
        Ok(())
    }

    /// The nearest factors of `rank`, where there are more: `B A = Q_b (R_b R_a^T) Q_a^T`, and the leading singular
    /// triplets of the small matrix in between.
    fn compress(&mut self, rank: usize) {
        let n = self.a.len();
        if n <= rank {
            return;
        }
        let (left, right) = (all_orthonormal(self.b.clone()), all_orthonormal(self.a.clone()));
        // R[i][k] = q_i . x_k
        let triangle = |q: &[Vec<f64>], x: &[Vec<f64>]| -> Vec<Vec<f64>> {
            q.iter().map(|q| x.iter().map(|x| dot(q, x)).collect()).collect()
        };
        let (rb, ra) = (triangle(&left, &self.b), triangle(&right, &self.a));
        let core = triangle(&rb, &ra);
        // Its right singular vectors are eigenvectors of the Gram matrix of its columns.
        let columns: Vec<Vec<f64>> = (0..n).map(|j| core.iter().map(|row| row[j]).collect()).collect();
        let gram = (0..n * n).map(|i| dot(&columns[i / n], &columns[i % n])).collect();
        let (_, vectors) = eigen(gram, n);
        let mix = |of: &[Vec<f64>], by: &dyn Fn(usize) -> f64| {
            let mut sum = vec![0.0; of[0].len()];
            for (k, vector) in of.iter().enumerate() {
                let f = by(k);
                sum.iter_mut().zip(vector).for_each(|(s, v)| *s += f * v);
            }
            sum
        };
        (self.a, self.b) = (0..rank)
            .map(|c| {
                let v = |k: usize| vectors[k * n + c];
                // s u, of the small matrix
                let image = mix(&columns, &v);
                let root = dot(&image, &image).sqrt().sqrt();
                let by = |k: usize| if root > 0.0 { image[k] / root } else { 0.0 };
                (mix(&right, &|k| root * v(k)), mix(&left, &by))
            })
            .unzip();
    }
}

/// The plan of a sum.
pub(crate) fn planned(first: &LoraPlan, sites: Vec<LoraSite>) -> LoraPlan {
    let mut plan = first.clone();
    let config = &mut plan.config;
    config.r = sites.iter().map(|s| s.rank).max().unwrap_or(config.r);
    config.lora_alpha = config.r.into();
    config.use_rslora = false;
    config.lora_dropout = Number::from_f64(0.0).unwrap_or_else(|| 0.into());
    config.lora_bias = sites.iter().any(|s| s.has_bias);
    config.init_lora_weights = InitWeights::Flag(true);
    let modules: Vec<String> = sites.iter().map(|s| s.module.clone()).collect();
    config.target_modules = Some(Targets::List(modules.clone()));
    (config.exclude_modules, config.layers_to_transform, config.layers_pattern) = (None, None, None);
    let other = sites.iter().filter(|s| s.rank != config.r);
    let ranks: Map<String, Value> = other.map(|s| (s.module.clone(), s.rank.into())).collect();
    (config.rank_pattern, config.alpha_pattern) = (ranks.clone(), ranks);
    let patterns = modules
        .iter()
        .map(|m| PatternCount { key: "target_modules", pattern: m.clone(), modules: vec![m.clone()] })
        .collect();
    plan.report = MatchReport { matched: modules, excluded: Vec::new(), patterns };
    plan.sites = sites;
    plan
}
