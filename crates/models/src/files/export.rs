//! A model's files, written by one rank or by several that each have some rows.

use std::borrow::Cow;
use std::ops::Range;

use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_peft::{
    AllottedRanks, Change, ChangeSite, Factor, LoraPlan, LoraSite, ModuleKind, write_adapter_rows,
};
use burnish_weight_files::{FolderWriter, HostTensor};

use crate::decoder::adapter::copy_name;
use crate::files::folder::ModelFolder;
use crate::files::load::Initial;
use crate::{ModelError, Names};

/// Where an [`Exporter`] takes values: this rank's rows of each parameter.
pub trait RowSource {
    /// This rank's rows (along dim 0) of the parameter at `index`, ascending; each row is some rank's, exactly once.
    fn rows(&self, index: usize) -> Vec<Range<usize>>;
    /// Those rows, one after another.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&self, index: usize) -> Result<HostTensor, ModelError>;
    /// What the encoder of virtual tokens gives ([`Decoder::encoded_prompt`](crate::Decoder::encoded_prompt)), on the rank that
    /// writes it.
    ///
    /// # Errors
    /// If it cannot be read.
    fn encoded_prompt(&self) -> Result<Option<HostTensor>, ModelError> {
        Ok(None)
    }
    /// What training has made of the adapter's ranks.
    fn allotted(&self) -> Option<&AllottedRanks> {
        None
    }
}

/// Knows the names, shapes and dtypes of a model's files, and holds no values.
#[derive(Clone, Debug)]
pub struct Exporter {
    pub(crate) registry: Registry,
    pub(crate) plan: Option<LoraPlan>,
    pub(crate) base: usize,
    pub(crate) initial: Initial,
    pub(crate) names: Names,
}

impl Exporter {
    /// The parameters, of their global shapes.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The stored dtype of trained matrices (fp32 when nothing of the base trains).
    #[must_use]
    pub fn trained_dtype(&self) -> Dtype {
        self.registry.trainable().find(|p| p.shape.len() == 2).map_or(Dtype::F32, |p| p.precision.store)
    }

    /// Whether a parameter goes into the files: of an adapter what trains, and what is drawn once beside it (VeRA).
    #[must_use]
    pub fn writes(&self, parameter: &Parameter) -> bool {
        !self.is_adapter() || parameter.trainable || parameter.role == Role::Adapter
    }

    /// Whether the files have a parameter as it trains.
    #[must_use]
    pub fn keeps(&self, parameter: &Parameter) -> bool {
        self.plan.as_ref().is_none_or(|plan| plan.in_files(&parameter.name))
    }

    /// Whether the model's own files are an adapter's.
    #[must_use]
    pub fn is_adapter(&self) -> bool {
        self.plan.is_some()
    }

    /// Writes the adapter as PEFT does, for the folder's base also where training changed it ([`LoraPlan::exported`]). All
    /// ranks call it.
    ///
    /// # Errors
    /// If a file cannot be written. Without an adapter nothing is written.
    pub fn adapter(&self, writer: &mut FolderWriter, source: &dyn RowSource) -> Result<(), ModelError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let find = |name: &str| -> Option<(usize, &Parameter)> {
            let index = self.registry.index_of(&copy_name(name)).or_else(|| self.registry.index_of(name))?;
            Some((index, self.registry.at(index))).filter(|(_, p)| self.writes(p))
        };
        let joined = |name: &str| Joined::of(plan, name);
        let left = |name: &str| Left::of(plan, source.allotted()?, name);
        let files = match source.allotted() {
            Some(ranks) => plan.exported().with_ranks(ranks),
            None => plan.exported(),
        };
        let encoded = plan.encoder.as_ref().and(plan.prompt.as_ref());
        let is_encoded = |name: &str| encoded.is_some_and(|prompt| prompt.name == name);
        let values = if encoded.is_some() { source.encoded_prompt()? } else { None };
        write_adapter_rows(
            writer,
            &files,
            |name, _| match is_encoded(name) {
                true => Some(Dtype::F32),
                false => find(name).map(|(_, p)| p.precision.store),
            },
            |name, _| match (find(name), joined(name)) {
                (None, _) if is_encoded(name) => values.iter().map(|values| 0..values.shape[0]).collect(),
                (None, _) => Vec::new(),
                (Some((index, _)), None) => match left(name) {
                    Some(left) => left.rows(source.rows(index)),
                    None => source.rows(index),
                },
                (Some((index, _)), Some(joined)) => joined.rows(source.rows(index)),
            },
            |name, _, _| -> Result<_, ModelError> {
                let unknown = || ModelError::UnknownParameter { name: name.to_owned() };
                if is_encoded(name) {
                    return Ok(Cow::Borrowed(values.as_ref().map_or(&[], |values| &values.bytes)));
                }
                let (index, _) = find(name).ok_or_else(unknown)?;
                if let Some(left) = left(name) {
                    let rows = source.rows(index);
                    let none = rows.iter().all(Range::is_empty);
                    return Ok(Cow::Owned(if none {
                        Vec::new()
                    } else {
                        left.of_rows(&source.read(index)?, &rows)
                    }));
                }
                let own = source.read(index)?;
                match joined(name) {
                    Some(joined) if !own.bytes.is_empty() => {
                        let rows = source.rows(index);
                        Ok(Cow::Owned(joined.join(&own, &rows, &self.initial)?.bytes))
                    }
                    _ => Ok(Cow::Owned(own.bytes)),
                }
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
        folder.write(writer, &self.registry, self.base, dtype, false, rows, |index| {
            self.original(index, source)
        })
    }

    /// A base parameter's rows without what an initialisation took from them.
    fn original(&self, index: usize, source: &dyn RowSource) -> Result<HostTensor, ModelError> {
        let own = source.read(index)?;
        let site = self.plan.as_ref().filter(|p| p.changes_base()).and_then(|p| {
            let site = p.site(self.registry.at(index).name.strip_suffix(".weight")?)?;
            Some(site).filter(|s| s.kind != ModuleKind::Embedding)
        });
        let (Some(site), false) = (site, own.bytes.is_empty()) else { return Ok(own) };
        let unknown = || ModelError::UnknownParameter { name: site.a_name.clone() };
        let start = self.initial.get(&site.module).ok_or_else(unknown)?;
        let mut values = own.to_f32();
        let width = site.shape(Factor::A)[1];
        let mut rest = values.as_mut_slice();
        for rows in source.rows(index) {
            let (now, after) = rest.split_at_mut(rows.len() * width);
            start.give_back(site, rows, now);
            rest = after;
        }
        Ok(HostTensor::from_f32(&values, &own.shape, own.dtype)?)
    }
}

/// What is left of a parameter of AdaLoRA's whose ranks were allocated.
struct Left<'a> {
    kept: &'a [bool],
    /// Whether they are its columns (of B).
    columns: bool,
}

impl<'a> Left<'a> {
    fn of(plan: &LoraPlan, ranks: &'a AllottedRanks, name: &str) -> Option<Self> {
        let pattern = ranks.pattern.as_ref()?;
        let singular = |site: &&ChangeSite| matches!(site.change, Change::Singular { .. });
        plan.changes.iter().filter(singular).find_map(|site| {
            let part = site.parts.iter().position(|part| part.name == name)?;
            Some(Self { kept: pattern.get(&site.parts[2].name)?, columns: part == 1 })
        })
    }

    /// The rows of the file that whoever has `rows` writes.
    fn rows(&self, rows: Vec<Range<usize>>) -> Vec<Range<usize>> {
        if self.columns {
            return rows;
        }
        let before = |at: usize| self.kept[..at].iter().filter(|&&kept| kept).count();
        let rows = rows.into_iter().map(|rows| before(rows.start)..before(rows.end));
        rows.filter(|rows| !rows.is_empty()).collect()
    }

    /// The bytes of those, of the values of `rows`.
    fn of_rows(&self, own: &HostTensor, rows: &[Range<usize>]) -> Vec<u8> {
        let element = own.dtype.bytes();
        let width = own.bytes.len() / own.shape[0].max(1);
        let numbers = rows.iter().cloned().flatten();
        let mut bytes = Vec::new();
        for (row, values) in numbers.zip(own.bytes.chunks_exact(width.max(1))) {
            if self.columns {
                let columns = values.chunks_exact(element).zip(self.kept).filter(|(_, kept)| **kept);
                columns.for_each(|(value, _)| bytes.extend_from_slice(value));
            } else if self.kept[row] {
                bytes.extend_from_slice(values);
            }
        }
        bytes
    }
}

/// A factor that is written together with its initial value: `[A ; A0]` or `[B | -B0]`.
struct Joined<'a> {
    site: &'a LoraSite,
    factor: Factor,
}

impl<'a> Joined<'a> {
    fn of(plan: &'a LoraPlan, name: &str) -> Option<Self> {
        let sites = if plan.changes_base() { plan.sites.as_slice() } else { &[] };
        sites.iter().find_map(|site| {
            let factor = [Factor::A, Factor::B].into_iter().find(|&f| site.name(f) == name)?;
            Some(Self { site, factor })
        })
    }

    /// The rows that whoever has `rows` writes: `A0` goes to the rank with the last row of `A`.
    fn rows(&self, mut rows: Vec<Range<usize>>) -> Vec<Range<usize>> {
        let rank = self.site.rank;
        if self.factor == Factor::A
            && let Some(last) = rows.last_mut().filter(|last| last.start < last.end && last.end == rank)
        {
            last.end = 2 * rank;
        }
        rows
    }

    fn join(
        &self,
        own: &HostTensor,
        rows: &[Range<usize>],
        initial: &Initial,
    ) -> Result<HostTensor, ModelError> {
        let (site, rank) = (self.site, self.site.rank);
        let unknown = || ModelError::UnknownParameter { name: site.name(self.factor).to_owned() };
        let start = match site.kind {
            // Its base is as it was: rows and columns of zeros bring the rank to that of the others.
            ModuleKind::Embedding => None,
            _ => Some(initial.get(&site.module).ok_or_else(unknown)?),
        };
        let values = own.to_f32();
        if self.factor == Factor::A {
            let mut all = values;
            if rows.last().is_some_and(|last| last.end == rank) {
                let width = site.shape(Factor::A)[1];
                all.extend(start.map_or_else(|| vec![0.0; rank * width], |s| s.a.clone()));
            }
            let width = site.shape(Factor::A)[1];
            let shape = [all.len() / width, width];
            return Ok(HostTensor::from_f32(&all, &shape, own.dtype)?);
        }
        let mut all = Vec::with_capacity(2 * values.len());
        for (row, at) in values.chunks_exact(rank).zip(rows.iter().cloned().flatten()) {
            all.extend_from_slice(row);
            match &start {
                Some(s) => all.extend(s.b[at * rank..(at + 1) * rank].iter().map(|b| -b)),
                None => all.resize(all.len() + rank, 0.0),
            }
        }
        Ok(HostTensor::from_f32(&all, &[values.len() / rank, 2 * rank], own.dtype)?)
    }
}
