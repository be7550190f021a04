//! A model's files, written by one rank or by several that each have some rows.

use std::borrow::Cow;
use std::ops::Range;

use burnish_core::{Dtype, Parameter, Registry};
use burnish_peft::{Plan, write_adapter_rows};
use burnish_store::{FolderWriter, HostTensor};

use crate::ModelError;
use crate::adapter::copy_name;
use crate::folder::ModelFolder;

/// Where an [`Exporter`] takes values: this rank's rows of each parameter.
pub trait RowSource {
    /// This rank's rows (along dim 0) of the parameter at `index`; each row is some rank's, exactly once.
    fn rows(&self, index: usize) -> Range<usize>;
    /// Those rows.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&self, index: usize) -> Result<HostTensor, ModelError>;
}

/// Knows the names, shapes and dtypes of a model's files, and holds no values.
#[derive(Clone, Debug)]
pub struct Exporter {
    pub(crate) registry: Registry,
    pub(crate) plan: Option<Plan>,
    pub(crate) base: usize,
}

impl Exporter {
    /// The stored dtype of trained matrices (fp32 when nothing of the base trains).
    #[must_use]
    pub fn trained_dtype(&self) -> Dtype {
        self.registry.trainable().find(|p| p.shape.len() == 2).map_or(Dtype::F32, |p| p.precision.store)
    }

    /// Whether the model's own files are an adapter's.
    #[must_use]
    pub fn is_adapter(&self) -> bool {
        self.plan.is_some()
    }

    /// Writes the adapter as PEFT does. All ranks call it.
    ///
    /// # Errors
    /// If a file cannot be written. Without an adapter nothing is written.
    pub fn adapter(&self, writer: &mut FolderWriter, source: &dyn RowSource) -> Result<(), ModelError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let find = |name: &str| -> Option<(usize, &Parameter)> {
            let index = self.registry.index_of(&copy_name(name)).or_else(|| self.registry.index_of(name))?;
            Some((index, self.registry.at(index))).filter(|(_, p)| p.trainable)
        };
        write_adapter_rows(
            writer,
            plan,
            |name, _| find(name).map(|(_, p)| p.precision.store),
            |name, _| find(name).map_or(0..0, |(index, _)| source.rows(index)),
            |name, _, _| -> Result<_, ModelError> {
                let unknown = || ModelError::UnknownParameter { name: name.to_owned() };
                let (index, _) = find(name).ok_or_else(unknown)?;
                Ok(Cow::Owned(source.read(index)?.bytes))
            },
        )
    }

    /// Writes the base parameters as a full model folder in `dtype`, without folding an adapter in. All ranks call it.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn full(
        &self,
        folder: &ModelFolder,
        writer: &mut FolderWriter,
        dtype: Dtype,
        source: &dyn RowSource,
    ) -> Result<(), ModelError> {
        let rows = |index: usize| source.rows(index);
        folder.write(writer, &self.registry, self.base, dtype, false, rows, |index, _| source.read(index))
    }
}
