//! Initialisations that are made of the base weight: those that take from it (PiSSA, OLoRA), with adapters that fit the original
//! base again, and the one that gives back what quantising it lost (LoftQ).
//!
//! Training runs on `W - s B0 A0` with factors that start at `B0`, `A0`. A file with those factors would need that
//! changed base; what is written instead adds to the original one: `W - s B0 A0 + s B A = W + s [B | -B0] [A ; A0]`,
//! an adapter of twice the rank (PEFT's `path_initial_model_for_weight_conversion`).

use std::collections::BTreeMap;
use std::ops::Range;

use burnish_core::random::Stream;
use burnish_weight_files::HostTensor;
use serde_json::{Map, Number, Value};

use crate::spectral::{Matrix, factors};
use crate::{AdapterTensors, Factor, Init, InitWeights, LoraPlan, LoraSite, ModuleKind, PeftError};

/// Factors taken from a base weight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decomposition {
    /// `[rank, in]`.
    pub a: Vec<f32>,
    /// `[out, rank]`.
    pub b: Vec<f32>,
}

/// The factors that `init` takes from `weight` `[out, in]`, widened; `None` where it takes nothing (embeddings start as with
/// `true`, but for MiCA). For LoftQ `weight` is what quantising the base weight lost, which `s B A` then is nearest to: PEFT
/// leaves the scale out, and starts so with `lora_alpha` equal to the rank alone.
///
/// Singular vectors have a sign: the largest element of each column of B is positive (PiSSA), the diagonal of R is
/// (OLoRA). What is random (`pissa_niter_N`) is a function of the seed and the site's name.
///
/// # Panics
/// If `weight` is not `[out, in]` of the site.
#[must_use]
pub fn decompose(site: &LoraSite, init: &InitWeights, weight: &[f32], seed: u64) -> Option<Decomposition> {
    let embedding = site.kind == ModuleKind::Embedding;
    let init = init.method().filter(|&i| i.reads_base() && (!embedding || i == Init::Mica))?;
    assert_eq!(weight.len(), site.out * site.input, "decompose: `weight` is [out, in]");
    let w = Matrix { values: weight, rows: site.out, columns: site.input };
    let rank = site.rank;
    let stream = Stream::new(seed, &site.a_name);
    let start = |i: usize| f64::from(stream.normal(i as u64));
    let (left, right) = match init {
        Init::Mica => {
            // Of an embedding the transpose has A's columns for each token.
            let (rows, least) = (if embedding { site.input } else { site.out }, w.trailing(rank, start));
            let left = if embedding { least.right } else { least.left };
            let a = vec![0.0; rank * (site.out * site.input / rows)];
            return Some(Decomposition { a, b: factors(&left, &Vec::new(), rows).1 });
        }
        Init::Olora => w.leading_qr(rank),
        Init::Pissa { iterations: Some(n) } => w.randomised(rank, n, start).halved(site.scale),
        Init::Pissa { iterations: None } | Init::Loftq => w.leading(rank, start).halved(site.scale),
        _ => return None,
    };
    let (a, b) = factors(&left, &right, site.out);
    Some(Decomposition { a, b })
}

impl Decomposition {
    /// Takes `s B A` from some rows of the weight they were made of, in place: what the base keeps.
    pub fn take_from(&self, site: &LoraSite, rows: Range<usize>, weight: &mut [f32]) {
        self.add(site, rows, weight, -site.scale as f32);
    }

    /// Gives back what [`Self::take_from`] took: up to rounding, the original weight.
    pub fn give_back(&self, site: &LoraSite, rows: Range<usize>, weight: &mut [f32]) {
        self.add(site, rows, weight, site.scale as f32);
    }

    fn add(&self, site: &LoraSite, rows: Range<usize>, weight: &mut [f32], s: f32) {
        let b = &self.b[rows.start * site.rank..rows.end * site.rank];
        let mut product = vec![0.0_f32; site.input];
        for (w, b) in weight.chunks_exact_mut(site.input).zip(b.chunks_exact(site.rank)) {
            product.fill(0.0);
            for (&b, a) in b.iter().zip(self.a.chunks_exact(site.input)) {
                product.iter_mut().zip(a).for_each(|(p, a)| *p += b * a);
            }
            w.iter_mut().zip(&product).for_each(|(w, p)| *w += s * p);
        }
    }
}

impl LoraPlan {
    /// Whether files hold more than the trained factors: see [`Self::exported`].
    #[must_use]
    pub fn changes_base(&self) -> bool {
        self.config.init_lora_weights.method().is_some_and(Init::changes_base)
    }

    /// Whether linear layers start from rows of the data.
    #[must_use]
    pub fn starts_from_rows(&self) -> bool {
        self.config.init_lora_weights.method().is_some_and(Init::reads_rows)
    }

    /// Whether linear layers start from what quantising their weights lost.
    #[must_use]
    pub fn starts_from_quantization(&self) -> bool {
        self.config.init_lora_weights.method() == Some(Init::Loftq)
    }

    /// The plan of the files: that of an adapter of twice the rank for the original base where the initialisation
    /// [changed it](Self::changes_base), this one otherwise. Magnitudes stay, since the adapted weight is the same. One that
    /// started [from a quantised base](Self::starts_from_quantization) is any adapter of it (PEFT would quantise once more), but
    /// where that base is [its own](Self::own_quantization): there PEFT has to.
    #[must_use]
    pub fn exported(&self) -> Self {
        let mut plan = self.clone();
        if self.starts_from_quantization() && self.own_quantization().is_none() {
            plan.config.init_lora_weights = InitWeights::Flag(true);
            plan.config.rest.insert("loftq_config".into(), Value::Object(Map::new()));
        }
        if !self.changes_base() {
            return plan;
        }
        // alpha / r and alpha / sqrt(r) are to stay.
        let factor = if plan.config.use_rslora { std::f64::consts::SQRT_2 } else { 2.0 };
        let times = |n: &Number| match n.as_u64() {
            Some(whole) if factor == 2.0 => (2 * whole).into(),
            _ => n.as_f64().and_then(|x| Number::from_f64(factor * x)).unwrap_or_else(|| n.clone()),
        };
        let all = |map: &Map<String, Value>, change: &dyn Fn(&Number) -> Number| {
            let of = |v: &Value| if let Value::Number(n) = v { Value::Number(change(n)) } else { v.clone() };
            map.iter().map(|(k, v)| (k.clone(), of(v))).collect::<Map<_, _>>()
        };
        let config = &mut plan.config;
        config.init_lora_weights = InitWeights::Flag(true);
        for settings in ["corda_config", "lora_ga_config"] {
            config.rest.insert(settings.into(), Value::Null);
        }
        config.r *= 2;
        config.lora_alpha = times(&config.lora_alpha);
        config.rank_pattern =
            all(&config.rank_pattern, &|n| n.as_u64().map_or_else(|| n.clone(), |r| (2 * r).into()));
        config.alpha_pattern = all(&config.alpha_pattern, &times);
        for site in &mut plan.sites {
            site.rank *= 2;
            site.alpha *= factor;
        }
        plan
    }

    /// What linear layers started from, of the tensors of [`Self::exported`] where the initialisation changed the base: the other
    /// half of each factor.
    ///
    /// # Errors
    /// If a tensor is missing or not of the exported shape.
    pub fn initial_part(
        &self,
        exported: &AdapterTensors,
    ) -> Result<BTreeMap<String, Decomposition>, PeftError> {
        let mut all = BTreeMap::new();
        for site in self.sites.iter().filter(|site| site.kind != ModuleKind::Embedding && self.changes_base())
        {
            let read = |factor: Factor, doubled: [usize; 2]| {
                let name = site.name(factor).to_owned();
                match exported.parameters.get(&name) {
                    Some(tensor) if tensor.shape == doubled => Ok(tensor.to_f32()),
                    Some(tensor) => {
                        Err(PeftError::Shape { name, expected: doubled.to_vec(), got: tensor.shape.clone() })
                    }
                    None => Err(PeftError::MissingBase { name }),
                }
            };
            let rank = site.rank;
            let a = read(Factor::A, [2 * rank, site.input])?.split_off(rank * site.input);
            let b = read(Factor::B, [site.out, 2 * rank])?;
            let b = b.chunks_exact(2 * rank).flat_map(|row| row[rank..].iter().map(|b| -b)).collect();
            all.insert(site.module.clone(), Decomposition { a, b });
        }
        Ok(all)
    }

    /// From the tensors of [`Self::exported`] to those that train: the leading half of each factor.
    ///
    /// # Errors
    /// If a tensor is not of the exported shape.
    pub fn trained_part(&self, exported: AdapterTensors) -> Result<AdapterTensors, PeftError> {
        let mut tensors = exported;
        if !self.changes_base() {
            return Ok(tensors);
        }
        for site in &self.sites {
            for factor in [Factor::A, Factor::B] {
                let Some(tensor) = tensors.parameters.get_mut(site.name(factor)) else { continue };
                let [rows, columns] = [site.shape(factor)[0], site.shape(factor)[1]];
                let doubled =
                    if factor == Factor::A { vec![2 * rows, columns] } else { vec![rows, 2 * columns] };
                if tensor.shape != doubled {
                    let name = site.name(factor).to_owned();
                    return Err(PeftError::Shape { name, expected: doubled, got: tensor.shape.clone() });
                }
                let width = doubled[1] * tensor.dtype.bytes();
                let taken = columns * tensor.dtype.bytes();
                let bytes = tensor
                    .bytes
                    .chunks_exact(width)
                    .take(rows)
                    .flat_map(|row| &row[..taken])
                    .copied()
                    .collect();
                *tensor = HostTensor { dtype: tensor.dtype, shape: vec![rows, columns], bytes };
            }
        }
        Ok(tensors)
    }
}
