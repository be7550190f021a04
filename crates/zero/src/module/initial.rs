//! The values that ranks begin with.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Device};
use burnish_comm::{Bucket, CommError, Group, Wire};
use burnish_core::{Dtype, Registry};
use burnish_ops::{AnyTensor, Scalar};
use half::{bf16, f16};

use super::fill::Source;
use super::survey::digest;
use super::{Initial, ModuleError};
use crate::rows::{rows_of, rows_shape};

/// Gives rows of a module's values, the same on every rank.
pub(super) struct Loader<'a> {
    pub(super) registry: &'a Registry,
    pub(super) group: Group,
    pub(super) device: Device,
    pub(super) initial: Initial,
    pub(super) sources: HashMap<usize, Source>,
    /// Digests of the values, to be compared.
    pub(super) digests: Vec<(String, u64)>,
}

/// Burn's name of a dtype that a parameter can have.
pub(super) fn burn_dtype(dtype: Dtype) -> DType {
    match dtype {
        Dtype::Bf16 => DType::BF16,
        Dtype::F16 => DType::F16,
        _ => DType::F32,
    }
}

impl Loader<'_> {
    /// Some rows. Every rank asks for the same parameters in the same order.
    pub(super) fn rows(&mut self, index: usize, rows: Range<usize>) -> Result<AnyTensor, ModuleError> {
        match self.registry.at(index).precision.store {
            Dtype::Bf16 => self.typed::<bf16>(index, rows),
            Dtype::F16 => self.typed::<f16>(index, rows),
            _ => self.typed::<f32>(index, rows),
        }
    }

    fn typed<E: Scalar + Wire + Default>(
        &mut self,
        index: usize,
        rows: Range<usize>,
    ) -> Result<AnyTensor, ModuleError> {
        let parameter = self.registry.at(index);
        let source =
            self.sources.remove(&index).expect("invariant: every registered parameter was taken out once");
        let (all, row) = rows_of(&parameter.shape);
        let from_first = self.initial == Initial::FromRankZero && self.group.size() > 1;
        let bucket: Bucket<E> = if from_first && self.group.rank() != 0 {
            // Not even initialized here.
            drop(source);
            Bucket::new(vec![E::default(); all * row])
        } else {
            let value = source();
            let elements = value.elements::<E>().ok_or_else(|| ModuleError::LateDtype {
                parameter: parameter.name.clone(),
                got: value.to_data().dtype(),
                expected: burn_dtype(parameter.precision.store),
            })?;
            if self.initial == Initial::Verified {
                let mut hasher = blake3::Hasher::new();
                hasher.update(value.to_data().as_bytes());
                self.digests.push((parameter.name.clone(), digest(&hasher)));
            }
            Bucket::shared(Arc::new(elements))
        };
        let bucket = match from_first {
            true => self.group.broadcast(bucket, 0, &parameter.name).wait()?,
            false => bucket,
        };
        let values = match rows == (0..all) {
            true => bucket.into_vec(),
            false => bucket.as_slice()[rows.start * row..rows.end * row].to_vec(),
        };
        Ok(AnyTensor::from_elements(values, &rows_shape(&parameter.shape, rows.len()), &self.device))
    }
}

/// Compares digests over ranks that list the same names.
pub(super) fn compare(group: &Group, what: &str, digests: &[(String, u64)]) -> Result<(), ModuleError> {
    let mine = || digests.iter().map(|(_, digest)| *digest);
    let all = gather(group, mine().collect(), what)?;
    let at = |i: usize| -> Vec<usize> {
        let other = (0..group.size()).filter(|&rank| all[rank][i] != all[0][i]);
        other.filter_map(|member| group.global_rank(member)).collect()
    };
    for (i, (parameter, _)) in digests.iter().enumerate() {
        let ranks = at(i);
        if !ranks.is_empty() {
            return Err(ModuleError::Differs { parameter: parameter.clone(), ranks });
        }
    }
    Ok(())
}

fn gather(group: &Group, mine: Vec<u64>, what: &str) -> Result<Vec<Vec<u64>>, CommError> {
    let counts = vec![mine.len(); group.size()];
    let parts = group.all_gather_v(Bucket::new(mine), &counts, what).wait()?;
    Ok(parts.iter().map(<[u64]>::to_vec).collect())
}
