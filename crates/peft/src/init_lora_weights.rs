//! Fresh factors: every value is a function of (seed, parameter name, index in the logical tensor), so a rank fills
//! just its slice and replicated factors need no broadcast.
//!
//! Distributions are PEFT's (`tuners/lora/layer.py`, `reset_lora_parameters`); the values are ours.

use std::ops::Range;

use burnish_core::random::Stream;

use crate::spectral::all_orthonormal;
use crate::{Factor, Init, InitWeights, LoraSite, ModuleKind, PeftError};

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
fn law(site: &LoraSite, factor: Factor, init: Init) -> Law {
    let uniform = |fan_in: usize| Law::Uniform(1.0 / (fan_in as f64).sqrt());
    let identity = init != Init::Random;
    let gaussian = init == Init::Gaussian;
    match (site.kind, factor) {
        (ModuleKind::Embedding, Factor::A) if identity => Law::Zero,
        (ModuleKind::Embedding, _) => Law::Normal(1.0),
        (_, Factor::A) if gaussian => Law::Normal(1.0 / site.rank as f64),
        (ModuleKind::ExpertsTurned(_), Factor::A) => uniform(site.out),
        (_, Factor::A) => uniform(site.input),
        _ if identity => Law::Zero,
        (_, Factor::B | Factor::BBias | Factor::Magnitude) => uniform(site.rank * site.kind.matrices()),
    }
}

/// The values at `range` of a fresh factor (indices into the row-major logical tensor).
///
/// `orthogonal`: with an orthogonal `Q` `[r, r]` and normal `X` `[in, r/2]`, `Y` `[r/2, out]`,
/// `A = (X Q[0::2])^T / 10` and `B = Y^T Q[1::2] / 10`, so that `B A = 0` in exact arithmetic.
///
/// ```
/// use burnish_peft::{Factor, InitWeights, LoraConfig, ModuleInfo, ModuleKind, LoraPlan, Purpose, init_lora_weights};
/// let modules = [ModuleInfo::new("q_proj", ModuleKind::Linear, 64, 16)];
/// let mut config = LoraConfig::new(4, 8.0);
/// config.target_modules = Some(burnish_peft::Targets::List(vec!["q_proj".into()]));
/// let plan = LoraPlan::new(&config, Purpose::Create, "llama", &modules, &Default::default()).unwrap();
/// let a = init_lora_weights(&plan.sites[0], Factor::A, &config.init_lora_weights, 42, 0..64).unwrap();
/// assert!(a.iter().all(|x| x.abs() <= 0.25));
/// assert!(init_lora_weights(&plan.sites[0], Factor::B, &config.init_lora_weights, 42, 0..256).unwrap().iter().all(|&x| x == 0.0));
/// ```
///
/// # Errors
/// [`PeftError::NeedsBase`] where values come from the base weight: of magnitudes, and of the factors that
/// [`crate::decompose`] makes.
pub fn init_lora_weights(
    site: &LoraSite,
    factor: Factor,
    init: &InitWeights,
    seed: u64,
    range: Range<usize>,
) -> Result<Vec<f32>, PeftError> {
    let needs_base = || PeftError::NeedsBase { name: site.name(factor).to_owned() };
    let init = init.method().ok_or_else(needs_base)?;
    let embedding = site.kind == ModuleKind::Embedding;
    if factor == Factor::Magnitude || (init.reads_base() && (!embedding || init == Init::Mica)) {
        return Err(needs_base());
    }
    if init == Init::Orthogonal && !embedding {
        return Ok(orthogonal(site, factor, seed, range));
    }
    let stream = Stream::new(seed, site.name(factor));
    Ok(match law(site, factor, init) {
        Law::Zero => vec![0.0; range.len()],
        Law::Uniform(bound) => {
            range.map(|i| ((2.0 * f64::from(stream.uniform(i as u64)) - 1.0) * bound) as f32).collect()
        }
        Law::Normal(std) => range.map(|i| (f64::from(stream.normal(i as u64)) * std) as f32).collect(),
    })
}

/// The `orthogonal` initialisation of a linear layer's factor.
fn orthogonal(site: &LoraSite, factor: Factor, seed: u64, range: Range<usize>) -> Vec<f32> {
    let r = site.rank;
    let normal = |stream: &Stream, i: usize| f64::from(stream.normal(i as u64));
    let rotation = Stream::new(seed, &format!("{}.orthogonal", site.module));
    // Rows of Q, and the half that this factor takes.
    let q = all_orthonormal((0..r).map(|j| (0..r).map(|i| normal(&rotation, j * r + i)).collect()).collect());
    let q: Vec<&Vec<f64>> = q.iter().skip(usize::from(factor == Factor::B)).step_by(2).collect();
    let stream = Stream::new(seed, site.name(factor));
    // Of A, element (i, c); of B, element (c, i): the sum over j of normal(c, j) Q_j[i].
    let element = |i: usize, c: usize| -> f64 {
        let sum: f64 = q.iter().enumerate().map(|(j, q)| normal(&stream, c * q.len() + j) * q[i]).sum();
        sum / 10.0
    };
    range
        .map(|at| {
            let (row, column) =
                if factor == Factor::A { (at / site.input, at % site.input) } else { (at % r, at / r) };
            element(row, column) as f32
        })
        .collect()
}
