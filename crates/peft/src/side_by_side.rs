//! `SideBySide`: adapters of one base as one of their ranks' sum, in which each keeps its own columns.
//!
//! A token whose low-rank activations are zeros outside an adapter's columns has that adapter, one with zeros alone the
//! base (S-LoRA; Sheng et al. 2023, arXiv:2311.03285).

use std::collections::BTreeSet;
use std::ops::Range;

use crate::weighted::{Stack, planned};
use crate::{AdapterTensors, LoraPlan, LoraSite, ModuleKind, PeftError, Weighted};

/// Adapters side by side: scale 1, every site of one rank; rows of A and columns of B that an adapter does not use are
/// zeros.
#[derive(Clone, Debug)]
pub struct SideBySide {
    /// The sites, of the sum of the adapters' greatest ranks.
    pub plan: LoraPlan,
    /// fp32 factors.
    pub tensors: AdapterTensors,
    /// Of each adapter its part of the rank, in the order in which they were given.
    pub columns: Vec<Range<usize>>,
}

impl SideBySide {
    /// The adapters of these plans and values, all of one base.
    ///
    /// # Errors
    /// If there is none, they are of different bases, or values are missing. What [`check`](Self::check) refuses is not
    /// looked at again.
    pub fn new(adapters: &[(&LoraPlan, &AdapterTensors)]) -> Result<Self, PeftError> {
        let Some((first, _)) = adapters.first() else {
            return Err(PeftError::BadValue {
                key: "adapters",
                got: "none".into(),
                expected: "at least one",
            });
        };
        let (mut columns, mut rank) = (Vec::with_capacity(adapters.len()), 0);
        for (plan, _) in adapters {
            let own = Self::rank_of(plan);
            columns.push(rank..rank + own);
            rank += own;
        }
        let (mut sites, mut tensors) = (Vec::<LoraSite>::new(), AdapterTensors::default());
        let mut known = BTreeSet::new();
        for like in adapters.iter().flat_map(|(plan, _)| &plan.sites) {
            if !known.insert(like.module.as_str()) {
                continue;
            }
            let mut stack = Stack::default();
            for ((plan, tensors), columns) in adapters.iter().zip(&columns) {
                if let Some(site) = plan.site(&like.module) {
                    stack.add(site, like, &Weighted { plan, tensors, weight: 1.0 })?;
                }
                stack.pad(like, columns.end);
            }
            let (site, factors) = stack.into_site(like)?;
            sites.push(site);
            tensors.parameters.extend(factors);
        }
        Ok(Self { plan: planned(first, sites), tensors, columns })
    }

    /// The part of the rank that an adapter takes: its greatest.
    #[must_use]
    pub fn rank_of(plan: &LoraPlan) -> usize {
        plan.sites.iter().map(|site| site.rank).max().unwrap_or_default()
    }

    /// That an adapter, called `name` in the error, is linear in low-rank activations alone.
    ///
    /// # Errors
    /// [`PeftError::NotMixed`] if it is not LoRA or rsLoRA on linear layers.
    pub fn check(name: &str, plan: &LoraPlan) -> Result<(), PeftError> {
        let (config, sites) = (&plan.config, &plan.sites);
        let any = |is: fn(&LoraSite) -> bool| sites.iter().any(is);
        let reasons = [
            (config.method.is_some(), "peft_type"),
            (any(|site| site.magnitude_name.is_some()), "use_dora"),
            (any(|site| site.has_bias), "lora_bias"),
            (config.trainable_token_indices.is_some(), "trainable_token_indices"),
            (any(|site| site.kind.is_parameter()), "target_parameters"),
            (any(|site| site.kind != ModuleKind::Linear), "target_modules"),
            (plan.changes_base() || plan.starts_from_quantization(), "init_lora_weights"),
            (!plan.saved.is_empty(), "modules_to_save"),
            (plan.base_parameters().next().is_some(), "bias"),
            (sites.is_empty(), "target_modules"),
        ];
        let beside = config.beside_base().map(|beside| beside.key);
        let other = || reasons.into_iter().find(|(is, _)| *is).map(|(_, key)| key);
        match beside.or_else(other) {
            Some(key) => Err(PeftError::NotMixed { adapter: name.to_owned(), key }),
            None => Ok(()),
        }
    }
}
