//! Fresh factors: every value is a function of (seed, parameter name, index in the logical tensor), so a rank fills
//! just its slice and replicated factors need no broadcast.
//!
//! Distributions are PEFT's (`tuners/lora/layer.py`, `reset_lora_parameters`); the values are ours.

use std::ops::Range;

use burnish_core::random::Stream;

use crate::{Factor, InitWeights, LoraSite, ModuleKind};

/// How one factor is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Law {
    Zero,
    /// Uniform in `(-bound, bound)`.
    Uniform(f64),
    /// Normal with this standard deviation.
    Normal(f64),
}

/// A factor's distribution: (kaiming uniform with `a = sqrt 5`, which is U(-1/sqrt(in), 1/sqrt(in)); zero) for `true`,
/// (N(0, 1/r²); zero) for `gaussian`, both random for `false`; of an embedding (zero; N(0, 1)), for `false` both N(0, 1).
fn law(site: &LoraSite, factor: Factor, init: &InitWeights) -> Law {
    let uniform = |fan_in: usize| Law::Uniform(1.0 / (fan_in as f64).sqrt());
    let identity = *init != InitWeights::Flag(false);
    let gaussian = matches!(init, InitWeights::Named(_));
    match (site.kind, factor) {
        (ModuleKind::Embedding, Factor::A) if identity => Law::Zero,
        (ModuleKind::Embedding, _) => Law::Normal(1.0),
        (_, Factor::A) if gaussian => Law::Normal(1.0 / site.rank as f64),
        (_, Factor::A) => uniform(site.input),
        _ if identity => Law::Zero,
        (_, Factor::B | Factor::BBias) => uniform(site.rank),
    }
}

/// The values at `range` of a fresh factor (indices into the row-major logical tensor).
///
/// ```
/// use burnish_peft::{Factor, InitWeights, LoraConfig, ModuleInfo, ModuleKind, Plan, Use, fresh};
/// let modules = [ModuleInfo::new("q_proj", ModuleKind::Linear, 64, 16)];
/// let mut config = LoraConfig::new(4, 8.0);
/// config.target_modules = Some(burnish_peft::Targets::List(vec!["q_proj".into()]));
/// let plan = Plan::new(&config, Use::Create, "llama", &modules, &Default::default()).unwrap();
/// let a = fresh(&plan.sites[0], Factor::A, &config.init_lora_weights, 42, 0..64);
/// assert!(a.iter().all(|x| x.abs() <= 0.25));
/// assert!(fresh(&plan.sites[0], Factor::B, &config.init_lora_weights, 42, 0..256).iter().all(|&x| x == 0.0));
/// ```
#[must_use]
pub fn fresh(
    site: &LoraSite,
    factor: Factor,
    init: &InitWeights,
    seed: u64,
    range: Range<usize>,
) -> Vec<f32> {
    let stream = Stream::new(seed, site.name(factor));
    match law(site, factor, init) {
        Law::Zero => vec![0.0; range.len()],
        Law::Uniform(bound) => {
            range.map(|i| ((2.0 * f64::from(stream.uniform(i as u64)) - 1.0) * bound) as f32).collect()
        }
        Law::Normal(std) => range.map(|i| (f64::from(stream.normal(i as u64)) * std) as f32).collect(),
    }
}
