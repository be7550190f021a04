//! `Corda`: factors of a weight seen through what its layer reads (CorDA; Yang et al., arXiv:2406.05223): of the singular
//! triplets of `W C`, `C` the covariance of the inputs, the leading ones or the last, brought back by the inverse of `C`.

use std::path::PathBuf;

use burnish_core::random::Stream;
use rayon::prelude::*;

use crate::cholesky::Cholesky;
use crate::eva::settings;
use crate::spectral::Matrix;
use crate::{Decomposition, LoraConfig, LoraSite, PeftError};

/// What is added to the covariance's diagonal, of its mean there.
const DAMPING: f64 = 0.01;

/// The way to a file of tensors from one of PyTorch's.
const PICKLED: &str = "PyTorch pickles it; name one that ends in .safetensors: `safetensors.torch.save_file(torch.load(FILE), NAME)` makes it of PEFT's";

/// Settings of `corda`, PEFT's `corda_config`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CordaConfig {
    /// The last triplets, which leave what the weight knows of the rows as it is (`kpm`), instead of the leading ones (`ipm`).
    pub keeps_knowledge: bool,
    /// The file of triplets: read where it is there, written otherwise.
    pub cache_file: Option<PathBuf>,
    /// The same of covariances.
    pub covariance_file: Option<PathBuf>,
}

impl CordaConfig {
    /// The settings that a configuration has, PEFT's defaults where it says nothing.
    ///
    /// # Errors
    /// Names a key that it does not know, or whose value is none: files that PyTorch pickles are not read, covariances are in f64.
    pub fn of(config: &LoraConfig) -> Result<Self, PeftError> {
        let mut own = Self::default();
        let mut pickled = None;
        settings(config, "corda_config", |key, value| {
            match key {
                "corda_method" => {
                    own.keeps_knowledge = match value.as_str()? {
                        "ipm" => false,
                        "kpm" => true,
                        _ => return None,
                    }
                }
                "verbose" | "prune_temporary_fields" => drop(value.as_bool()?),
                "use_float16_for_covariance" => return value.as_bool().map(|half| !half),
                "cache_file" | "covariance_file" if value.is_null() => {}
                "cache_file" | "covariance_file" => {
                    let path = PathBuf::from(value.as_str()?);
                    if path.extension().is_none_or(|end| end != "safetensors") {
                        pickled.get_or_insert((format!("corda_config.{key}"), value.to_string()));
                    }
                    let of = if key == "cache_file" { &mut own.cache_file } else { &mut own.covariance_file };
                    *of = Some(path);
                }
                _ => return None,
            }
            Some(true)
        })?;
        match pickled {
            Some((key, value)) => Err(PeftError::UnsupportedKey { key, value, mend: PICKLED }),
            None => Ok(own),
        }
    }
}

/// The covariance of a layer's inputs over rows, each divided by its largest element.
#[derive(Clone, Debug)]
pub struct Covariance {
    sums: Vec<f64>,
    width: usize,
    rows: f64,
}

impl Covariance {
    /// Of inputs of that width, before any row.
    #[must_use]
    pub fn new(width: usize) -> Self {
        Self { sums: vec![0.0; width * width], width, rows: 0.0 }
    }

    /// Takes the inputs `[tokens, width]` of a row of the data; whether that was possible: a row whose largest element is zero
    /// says nothing.
    #[must_use]
    pub fn add(&mut self, x: &[f32]) -> bool {
        let largest = f64::from(x.iter().copied().fold(f32::NEG_INFINITY, f32::max)).abs();
        if largest == 0.0 || !largest.is_finite() {
            return false;
        }
        let width = self.width;
        // Columns of inputs: a row of the sums is one column by all.
        let columns: Vec<Vec<f64>> = (0..width)
            .map(|c| x.iter().skip(c).step_by(width).map(|&x| f64::from(x) / largest).collect())
            .collect();
        self.sums.par_chunks_exact_mut(width).enumerate().for_each(|(i, row)| {
            for (to, column) in row[..=i].iter_mut().zip(&columns) {
                *to += crate::spectral::dot(&columns[i], column);
            }
        });
        self.rows += 1.0;
        true
    }

    /// The mean over rows, `[width, width]`.
    pub(crate) fn mean(&self) -> Vec<f64> {
        let n = self.width;
        let at = |i: usize, j: usize| self.sums[i.max(j) * n + i.min(j)] / self.rows;
        (0..n).flat_map(|i| (0..n).map(move |j| at(i, j))).collect()
    }

    /// Of such a mean.
    pub(crate) fn of_mean(sums: Vec<f64>, width: usize) -> Self {
        Self { sums, width, rows: 1.0 }
    }

    /// The triplets of `weight` `[out, in]`; `None` where the covariance is none of numbers.
    ///
    /// # Panics
    /// If `weight` is not `[out, in]` of the site.
    #[must_use]
    pub fn triplets(
        mut self,
        site: &LoraSite,
        config: &CordaConfig,
        weight: &[f32],
        seed: u64,
    ) -> Option<CordaTriplets> {
        assert_eq!(weight.len(), site.out * site.input, "corda: `weight` is [out, in]");
        let n = self.width;
        self.sums = self.mean();
        let mean = (0..n).map(|i| self.sums[i * n + i]).sum::<f64>() / n as f64;
        (0..n).for_each(|i| self.sums[i * n + i] += mean * DAMPING);
        let covariance = &self.sums;
        let mut product = vec![0.0_f32; site.out * n];
        product.par_chunks_exact_mut(n).zip(weight.par_chunks_exact(n)).for_each(|(to, w)| {
            let w: Vec<f64> = w.iter().map(|&w| w.into()).collect();
            // The covariance is symmetric.
            for (to, row) in to.iter_mut().zip(covariance.chunks_exact(n)) {
                *to = crate::spectral::dot(&w, row) as f32;
            }
        });
        let matrix = Matrix { values: &product, rows: site.out, columns: n };
        let stream = Stream::new(seed, &site.a_name);
        let start = |i: usize| f64::from(stream.normal(i as u64));
        let mut triplets = if config.keeps_knowledge {
            matrix.trailing(site.rank, start)
        } else {
            matrix.leading(site.rank, start)
        };
        triplets.right = Cholesky::new(self.sums, n)?.solve_all(&triplets.right);
        let across = |columns: &[Vec<f64>], rows: usize| {
            (0..rows).flat_map(|row| columns.iter().map(move |column| column[row] as f32)).collect()
        };
        Some(CordaTriplets {
            values: triplets.values.iter().map(|&value| value as f32).collect(),
            left: across(&triplets.left, site.out),
            right: across(&triplets.right, site.input),
        })
    }
}

/// Singular triplets of a weight seen through a covariance, brought back; as the file of them has them.
#[derive(Clone, Debug, PartialEq)]
pub struct CordaTriplets {
    /// Singular values, `[r]`.
    pub(crate) values: Vec<f32>,
    /// `[out, r]`.
    pub(crate) left: Vec<f32>,
    /// `[in, r]`.
    pub(crate) right: Vec<f32>,
}

impl CordaTriplets {
    /// The factors of a site, of as many triplets as its rank.
    #[must_use]
    pub fn factors(&self, site: &LoraSite) -> Decomposition {
        let rank = self.values.len();
        let root = |at: usize| (f64::from(self.values[at]) / site.scale).sqrt();
        let roots: Vec<f64> = (0..rank).map(root).collect();
        let b = self.left.iter().zip(roots.iter().cycle()).map(|(&x, root)| (f64::from(x) * root) as f32);
        let of = |at: usize| self.right.iter().skip(at).step_by(rank).map(move |&x| (f64::from(x), at));
        let a = (0..rank).flat_map(of).map(|(x, at)| (x * roots[at]) as f32);
        Decomposition { a: a.collect(), b: b.collect() }
    }
}
