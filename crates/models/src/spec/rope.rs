//! Rotary embedding tables for every `rope_type` of Transformers.
//!
//! Formulas: linear (kaiokendev), dynamic NTK (emozilla), llama3 (Meta's reference code), yarn (Peng et al.,
//! arXiv:2309.00071, section 3), longrope (Ding et al., arXiv:2402.13753).

use serde_json::{Map, Value};

use crate::ModelError;
use crate::spec::config::{CONFIG, ConfigFile, read};

/// How positions turn into angles.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f64,
    /// Dimensions of a head that rotate.
    pub dim: usize,
    /// Scaling.
    pub kind: RopeKind,
}

/// Scaling of the frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeKind {
    /// None.
    Default,
    /// Positions divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The base grows with the sequence beyond `original` positions.
    Dynamic {
        /// The scaling factor.
        factor: f64,
        /// Positions the model was trained on.
        original: f64,
    },
    /// Long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// The divisor.
        factor: f64,
        /// `low_freq_factor`.
        low: f64,
        /// `high_freq_factor`.
        high: f64,
        /// Positions the model was trained on.
        original: f64,
    },
    /// Interpolation by parts and a factor on attention.
    Yarn {
        /// The divisor.
        factor: f64,
        /// First and last rotated pair of the ramp.
        ramp: (f64, f64),
        /// Multiplies cosines and sines.
        attention: f64,
    },
    /// As without scaling over a whole head, but only its first pairs turn; positions divided by `factor` (Gemma 4).
    Proportional {
        /// Pairs that turn.
        pairs: usize,
        /// The divisor.
        factor: f64,
    },
    /// Per-dimension factors, one set up to `original` positions and one beyond.
    LongRope {
        /// Up to `original` positions.
        short: Vec<f64>,
        /// Beyond.
        long: Vec<f64>,
        /// Positions the model was trained on.
        original: f64,
        /// Multiplies cosines and sines, up to `original` positions and beyond.
        attention: [f64; 2],
    },
}

/// What a configuration's rotary embedding is without a word on it.
pub(crate) struct RopeDefaults {
    pub(crate) head_dim: usize,
    pub(crate) max_positions: usize,
    pub(crate) original_positions: usize,
    pub(crate) theta: f64,
    /// `partial_rotary_factor`; `None` where the family has none, and the key is ignored as in Transformers.
    pub(crate) partial: Option<f64>,
}

impl Rope {
    /// Reads `rope_parameters` (Transformers 5) or `rope_theta` + `rope_scaling` (before).
    pub(crate) fn read(config: &ConfigFile, defaults: &RopeDefaults) -> Result<Self, ModelError> {
        let scaling = config.get("rope_parameters").or_else(|| config.get("rope_scaling"));
        match scaling {
            None => Self::of(&Map::new(), config, defaults),
            Some(v) => {
                let map = v.as_object().ok_or_else(|| ModelError::Key {
                    file: CONFIG,
                    key: "rope_parameters".to_owned(),
                    got: v.to_string(),
                    expected: "an object",
                })?;
                Self::of(map, config, defaults)
            }
        }
    }

    /// From one object of `rope_parameters`, with what stands beside it.
    pub(crate) fn of(
        map: &Map<String, Value>,
        config: &ConfigFile,
        defaults: &RopeDefaults,
    ) -> Result<Self, ModelError> {
        from_map(map, config, defaults)
    }
}

fn not_a_part(got: f64) -> ModelError {
    ModelError::Key {
        file: CONFIG,
        key: "partial_rotary_factor".to_owned(),
        got: got.to_string(),
        expected: "a part of a head: a number from 0 to 1",
    }
}

fn from_map(
    map: &Map<String, Value>,
    config: &ConfigFile,
    defaults: &RopeDefaults,
) -> Result<Rope, ModelError> {
    let &RopeDefaults { head_dim, max_positions, original_positions, .. } = defaults;
    let number = |key: &str| read(map.get(key).filter(|v| !v.is_null()), key, "a number", Value::as_f64);
    let require = |key: &str| {
        number(key)?.ok_or_else(|| ModelError::Key {
            file: CONFIG,
            key: format!("rope_parameters.{key}"),
            got: "missing".to_owned(),
            expected: "a number",
        })
    };
    let theta = match number("rope_theta")? {
        Some(theta) => theta,
        None => config.f64("rope_theta")?.unwrap_or(defaults.theta),
    };
    let partial = match (defaults.partial, number("partial_rotary_factor")?) {
        (None, _) => 1.0,
        (Some(_), Some(partial)) => partial,
        (Some(default), None) => config.f64("partial_rotary_factor")?.unwrap_or(default),
    };
    let positive = |key: &str, value: f64| {
        let got = value.to_string();
        let key = format!("rope_parameters.{key}");
        let expected = "a positive number";
        let fine = value > 0.0 && value.is_finite();
        if fine { Ok(()) } else { Err(ModelError::Key { file: CONFIG, key, got, expected }) }
    };
    positive("rope_theta", theta)?;
    if !(0.0..=1.0).contains(&partial) {
        return Err(not_a_part(partial));
    }
    if let Some(factor) = number("factor")? {
        positive("factor", factor)?;
    }
    let kind = map.get("rope_type").or_else(|| map.get("type")).and_then(Value::as_str);
    // The part of a head that turns counts pairs there, which lie as if all did.
    let partial = if kind == Some("proportional") { 1.0 } else { partial };
    let dim = (head_dim as f64 * partial) as usize;
    let original = match number("original_max_position_embeddings")? {
        Some(o) => o,
        None => config.f64("original_max_position_embeddings")?.unwrap_or(original_positions as f64),
    };
    let kind = match kind {
        None | Some("default") => RopeKind::Default,
        Some("proportional") => {
            let part = number("partial_rotary_factor")?.unwrap_or(1.0);
            if !(0.0..=1.0).contains(&part) {
                return Err(not_a_part(part));
            }
            let pairs = (part * head_dim as f64 / 2.0).floor() as usize;
            RopeKind::Proportional { pairs, factor: number("factor")?.unwrap_or(1.0) }
        }
        Some("linear") => RopeKind::Linear { factor: require("factor")? },
        Some("dynamic") => RopeKind::Dynamic { factor: require("factor")?, original: max_positions as f64 },
        Some("llama3") => RopeKind::Llama3 {
            factor: require("factor")?,
            low: require("low_freq_factor")?,
            high: require("high_freq_factor")?,
            original,
        },
        // The first configurations of Phi-3 say `yarn` and mean longrope.
        Some("yarn") if !map.contains_key("short_factor") => {
            let factor = match number("factor")? {
                Some(f) => f,
                None => max_positions as f64 / original,
            };
            let (fast, slow) = (number("beta_fast")?.unwrap_or(32.0), number("beta_slow")?.unwrap_or(1.0));
            let truncate = map.get("truncate").and_then(Value::as_bool).unwrap_or(true);
            let mscale = |scale: f64, m: f64| if scale <= 1.0 { 1.0 } else { 0.1 * m * scale.ln() + 1.0 };
            let attention = match (number("attention_factor")?, number("mscale")?, number("mscale_all_dim")?)
            {
                (Some(a), _, _) => a,
                (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => {
                    mscale(factor, m) / mscale(factor, all)
                }
                _ => mscale(factor, 1.0),
            };
            let correction = |rotations: f64| {
                dim as f64 * (original / (rotations * std::f64::consts::TAU)).ln() / (2.0 * theta.ln())
            };
            let (mut low, mut high) = (correction(fast), correction(slow));
            if truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
            if low == high {
                high += 0.001;
            }
            RopeKind::Yarn { factor, ramp: (low, high), attention }
        }
        Some("longrope" | "su" | "yarn") => {
            let list = |key: &str| {
                map.get(key)
                    .and_then(Value::as_array)
                    .map(|a| a.iter().filter_map(Value::as_f64).collect::<Vec<_>>())
                    .filter(|l| l.len() == dim / 2)
                    .ok_or_else(|| ModelError::Key {
                        file: CONFIG,
                        key: format!("rope_parameters.{key}"),
                        got: map.get(key).map_or_else(|| "missing".to_owned(), ToString::to_string),
                        expected: "one number per rotated pair",
                    })
            };
            let factor = match number("factor")? {
                Some(f) => f,
                None => max_positions as f64 / original,
            };
            let attention = match number("attention_factor")? {
                Some(a) => a,
                None if factor <= 1.0 => 1.0,
                None => (1.0 + factor.ln() / original.ln()).sqrt(),
            };
            RopeKind::LongRope {
                short: list("short_factor")?,
                long: list("long_factor")?,
                original,
                attention: [attention; 2],
            }
        }
        Some(other) => {
            return Err(ModelError::Unsupported {
                key: "rope_type".to_owned(),
                got: other.to_owned(),
                supported: "default, linear, dynamic, llama3, yarn, longrope, proportional",
            });
        }
    };
    Ok(Rope { theta, dim, kind })
}

impl Rope {
    /// Inverse frequencies and the attention factor for a batch whose longest sequence has `length` positions.
    #[must_use]
    pub fn frequencies(&self, length: usize) -> (Vec<f64>, f64) {
        let d = self.dim as f64;
        let base = |theta: f64| -> Vec<f64> {
            (0..self.dim / 2).map(|i| 1.0 / theta.powf(2.0 * i as f64 / d)).collect()
        };
        match &self.kind {
            RopeKind::Default => (base(self.theta), 1.0),
            RopeKind::Linear { factor } => (base(self.theta).iter().map(|f| f / factor).collect(), 1.0),
            RopeKind::Proportional { pairs, factor } => {
                let all = base(self.theta).into_iter().enumerate();
                (all.map(|(i, f)| if i < *pairs { f / factor } else { 0.0 }).collect(), 1.0)
            }
            RopeKind::Dynamic { factor, original } => {
                let length = (length as f64).max(*original);
                let grown = (factor * length / original) - (factor - 1.0);
                (base(self.theta * grown.powf(d / (d - 2.0))), 1.0)
            }
            RopeKind::Llama3 { factor, low, high, original } => {
                let scaled = base(self.theta).into_iter().map(|f| {
                    let wavelength = std::f64::consts::TAU / f;
                    if wavelength > original / low {
                        f / factor
                    } else if wavelength < original / high {
                        f
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                });
                (scaled.collect(), 1.0)
            }
            RopeKind::Yarn { factor, ramp: (low, high), attention } => {
                let scaled = base(self.theta).into_iter().enumerate().map(|(i, f)| {
                    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * ramp + f * (1.0 - ramp)
                });
                (scaled.collect(), *attention)
            }
            RopeKind::LongRope { short, long, original, attention } => {
                let beyond = length as f64 > *original;
                let factors = if beyond { long } else { short };
                let scaled = base(self.theta).iter().zip(factors).map(|(f, s)| f / s).collect();
                (scaled, attention[usize::from(beyond)])
            }
        }
    }

    /// Whether frequencies change with the length of the sequence.
    #[must_use]
    pub fn depends_on_length(&self) -> bool {
        matches!(self.kind, RopeKind::Dynamic { .. } | RopeKind::LongRope { .. })
    }

    /// `[length, dim]`: cosines, then sines, of positions `0..length`, in f32 as Transformers computes them.
    #[must_use]
    pub fn table(&self, length: usize) -> Vec<f32> {
        self.table_for(0..length, length)
    }

    /// The rows of `positions` in a batch whose longest sequence has `length` positions.
    #[must_use]
    pub fn table_for(&self, positions: std::ops::Range<usize>, length: usize) -> Vec<f32> {
        let (frequencies, attention) = self.narrow_frequencies(length);
        let mut table = Vec::with_capacity(positions.len() * self.dim);
        self.rows(&frequencies, attention, positions, &mut table);
        table
    }

    /// [`Self::frequencies`] in f32.
    pub(crate) fn narrow_frequencies(&self, length: usize) -> (Vec<f32>, f32) {
        let (frequencies, attention) = self.frequencies(length);
        (frequencies.into_iter().map(|f| f as f32).collect(), attention as f32)
    }

    /// Appends the rows of `positions` to `table`.
    pub(crate) fn rows(
        &self,
        frequencies: &[f32],
        attention: f32,
        positions: std::ops::Range<usize>,
        table: &mut Vec<f32>,
    ) {
        for p in positions {
            let angles = frequencies.iter().map(|f| p as f32 * f);
            table.extend(angles.clone().map(|a| a.cos() * attention));
            table.extend(angles.map(|a| a.sin() * attention));
        }
    }
}
