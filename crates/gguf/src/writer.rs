//! `GgufWriter`: a file written tensor by tensor, under a name of its own until it is done.

use std::path::Path;

use burnish_weight_files::UnfinishedFile;

use crate::reader::{ALIGNMENT, MAGIC, VERSION};
use crate::value::write_text;
use crate::{GgufError, TensorType, Value};

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its shape, row-major: the last dim is that of a row.
    pub shape: Vec<usize>,
    /// How its elements will be stored.
    pub stored: TensorType,
}

impl TensorSpec {
    /// Bytes that it takes; `None` where its rows do not fill blocks.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        let row = self.shape.last().copied().unwrap_or(1);
        self.stored.bytes(row)?.checked_mul(self.shape.iter().rev().skip(1).product())
    }
}

/// A file that is being written. Dropped before [`GgufWriter::commit`], nothing of it stays.
pub struct GgufWriter {
    file: UnfinishedFile,
    tensors: Vec<TensorSpec>,
    next: usize,
}

impl GgufWriter {
    /// Begins a file with its metadata and the tensors that will follow, in this order.
    ///
    /// # Errors
    /// If it cannot be written.
    ///
    /// # Panics
    /// If a tensor's rows do not fill its blocks.
    pub fn create(
        path: impl AsRef<Path>,
        metadata: &[(String, Value)],
        tensors: Vec<TensorSpec>,
    ) -> Result<Self, GgufError> {
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            write_text(key, &mut header);
            header.extend((value.value_type() as u32).to_le_bytes());
            value.write(&mut header);
        }
        let mut begin = 0_u64;
        for tensor in &tensors {
            write_text(&tensor.name, &mut header);
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|&dim| header.extend((dim as u64).to_le_bytes()));
            header.extend(tensor.stored.number().to_le_bytes());
            header.extend(begin.to_le_bytes());
            let bytes = tensor.bytes().expect("invariant: a tensor's rows fill its blocks") as u64;
            begin = (begin + bytes).next_multiple_of(ALIGNMENT.1);
        }
        header.resize(header.len().next_multiple_of(ALIGNMENT.1 as usize), 0);
        let mut file = UnfinishedFile::create(path)?;
        file.write(&header)?;
        Ok(Self { file, tensors, next: 0 })
    }

    /// Writes the next tensor's bytes.
    ///
    /// # Errors
    /// If they are not as many as it takes, or cannot be written.
    ///
    /// # Panics
    /// If all are written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        let tensor = &self.tensors[self.next];
        let expected = tensor.bytes().unwrap_or_default();
        if bytes.len() != expected {
            return Err(GgufError::Length { name: tensor.name.clone(), expected, got: bytes.len() });
        }
        self.next += 1;
        self.file.write(bytes)?;
        let rest = bytes.len().next_multiple_of(ALIGNMENT.1 as usize) - bytes.len();
        Ok(self.file.write(&[0; ALIGNMENT.1 as usize][..rest])?)
    }

    /// Where it lies until it is committed.
    #[must_use]
    pub fn unfinished_path(&self) -> &Path {
        self.file.unfinished_path()
    }

    /// Brings everything to the disk, so that [`Self::unfinished_path`] can be read.
    ///
    /// # Errors
    /// If it cannot be written.
    ///
    /// # Panics
    /// If a tensor is missing.
    pub fn finish(&mut self) -> Result<(), GgufError> {
        assert_eq!(self.next, self.tensors.len(), "invariant: every tensor is written");
        Ok(self.file.sync()?)
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn commit(mut self) -> Result<(), GgufError> {
        self.finish()?;
        Ok(self.file.commit()?)
    }
}
