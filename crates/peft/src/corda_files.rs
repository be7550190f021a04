//! Files of CorDA's covariances and triplets, under PEFT's names, as safetensors: read where they are there, written otherwise.

use std::path::Path;

use burnish_core::Dtype;
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};

use crate::{CordaConfig, CordaTriplets, Covariance, LoraSite, PeftError};

/// What triplets of a module are called behind its name.
const TRIPLETS: [&str; 3] = ["eigens.S_WC", "eigens.U_WC", "eigens.V_WC"];

impl CordaConfig {
    /// The triplets of the file, if it is there; none of them is of rows that are read now.
    ///
    /// # Errors
    /// If it is damaged, lacks a module, or has other shapes.
    pub fn kept_triplets(&self, sites: &[LoraSite]) -> Result<Option<Vec<CordaTriplets>>, PeftError> {
        let Some(file) = open(self.cache_file.as_deref())? else { return Ok(None) };
        let of = |site: &LoraSite| {
            let read = |part: &str, shape: &[usize]| {
                let tensor = read(&file, &format!("{}.{part}", site.module), shape)?;
                Ok::<_, PeftError>(tensor.to_f32())
            };
            let [values, left, right] = TRIPLETS;
            Ok(CordaTriplets {
                values: read(values, &[site.rank])?,
                left: read(left, &[site.out, site.rank])?,
                right: read(right, &[site.input, site.rank])?,
            })
        };
        sites.iter().map(of).collect::<Result<_, _>>().map(Some)
    }

    /// The covariances of the file, if it is there.
    ///
    /// # Errors
    /// As [`kept_triplets`](Self::kept_triplets).
    pub fn kept_covariances(&self, sites: &[LoraSite]) -> Result<Option<Vec<Covariance>>, PeftError> {
        let Some(file) = open(self.covariance_file.as_deref())? else { return Ok(None) };
        let of = |site: &LoraSite| {
            let tensor = read(&file, &site.module, &[site.input, site.input])?;
            let mean = match tensor.dtype {
                Dtype::F64 => tensor.as_slice::<f64>()?.into_owned(),
                _ => tensor.to_f32().into_iter().map(f64::from).collect(),
            };
            Ok(Covariance::of_mean(mean, site.input))
        };
        sites.iter().map(of).collect::<Result<_, _>>().map(Some)
    }

    /// Writes triplets, where a file is named.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_triplets(&self, sites: &[LoraSite], triplets: &[CordaTriplets]) -> Result<(), PeftError> {
        let Some(path) = &self.cache_file else { return Ok(()) };
        let mut tensors = Vec::with_capacity(3 * sites.len());
        for (site, own) in sites.iter().zip(triplets) {
            let rank = own.values.len();
            let parts = [
                (&own.values, vec![rank]),
                (&own.left, vec![site.out, rank]),
                (&own.right, vec![site.input, rank]),
            ];
            for (part, (values, shape)) in TRIPLETS.iter().zip(parts) {
                let tensor = HostTensor::from_slice(values.as_slice(), &shape)?;
                tensors.push((format!("{}.{part}", site.module), tensor));
            }
        }
        write(path, &tensors)
    }

    /// Writes covariances, where a file is named.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_covariances(&self, sites: &[LoraSite], covariances: &[Covariance]) -> Result<(), PeftError> {
        let Some(path) = &self.covariance_file else { return Ok(()) };
        let of = |(site, own): (&LoraSite, &Covariance)| {
            let tensor = HostTensor::from_slice(&own.mean(), &[site.input, site.input])?;
            Ok((site.module.clone(), tensor))
        };
        let tensors = sites.iter().zip(covariances).map(of).collect::<Result<Vec<_>, PeftError>>()?;
        write(path, &tensors)
    }
}

fn open(path: Option<&Path>) -> Result<Option<WeightFolder>, PeftError> {
    match path.filter(|path| path.exists()) {
        Some(path) => Ok(Some(WeightFolder::open(path)?)),
        None => Ok(None),
    }
}

fn read(file: &WeightFolder, name: &str, shape: &[usize]) -> Result<HostTensor, PeftError> {
    let tensor = file.read(name)?;
    if tensor.shape != shape {
        let (name, expected, got) = (name.to_owned(), shape.to_vec(), tensor.shape);
        return Err(PeftError::Shape { name, expected, got });
    }
    if let Some((at, value)) = tensor.not_finite() {
        let got = format!("{value} at element {at} of `{name}`");
        return Err(PeftError::BadValue { key: "corda_config", got, expected: "files of numbers" });
    }
    Ok(tensor)
}

fn write(path: &Path, tensors: &[(String, HostTensor)]) -> Result<(), PeftError> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut writer = FolderWriter::in_place(folder)?.max_shard_size(u64::MAX);
    let views: Vec<_> = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.view())).collect();
    writer.tensors(&stem, &views)?;
    writer.commit()?;
    Ok(())
}
