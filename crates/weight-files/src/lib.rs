//! Tensor files at rest.
//!
//! * [`HostTensor`] and [`TensorView`]: dtype, shape, bytes.
//! * [`WeightFolder`]: a Hugging Face or PEFT folder (one safetensors file, or shards behind an index), read whole,
//!   by slice, or where it lies in the mapped file.
//! * [`FolderWriter`], [`UnfinishedFile`], [`write_atomic`]: files that are there whole or not at all, through temporary files, fsync and
//!   rename; equal values give byte-identical files, whatever the number of ranks that write them.
//! * [`Filesystem`]: the seam at which tests fill the disk.
//!
//! ```
//! use burnish_core::Dtype;
//! use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};
//!
//! let root = tempfile::tempdir().unwrap();
//! let w = HostTensor::from_f32(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], Dtype::Bf16).unwrap();
//! let mut writer = FolderWriter::in_place(root.path()).unwrap();
//! writer.tensors("model", &[("w".to_owned(), w.view())]).unwrap();
//! writer.commit().unwrap();
//!
//! let folder = WeightFolder::open(root.path()).unwrap();
//! assert_eq!(folder.info("w").unwrap().shape, [2, 3]);
//! assert_eq!(folder.read_slice("w", 1, 1..2).unwrap().to_f32(), [2.0, 5.0]);
//! ```

mod atomic;
mod attempt;
mod block_scaled;
mod commit;
mod error;
mod file;
mod filesystem;
mod folder;
mod header;
mod partial;
mod shard;
mod slice;
mod sums;
mod tensor;
mod unfinished_file;
mod writer;

pub use atomic::{write_atomic, write_atomic_on};
pub use attempt::{Attempt, Share};
pub use block_scaled::ScaleLayout;
pub use commit::{FilePart, FinishedFolder, GatheredFolder};
pub use error::{HeaderFault, WeightFileError};
pub use file::read_at;
pub use filesystem::{Disk, FileOut, Filesystem, FullDisk};
pub use folder::{TensorInfo, WeightFolder, nearest};
pub use header::TensorSpec;
pub use partial::{clean_unfinished, is_unfinished, remove_folder};
pub use sums::{LEAF, Piece, leaf_sum};
pub use tensor::{Element, HostTensor, TensorView};
pub use unfinished_file::UnfinishedFile;
pub use writer::{FolderWriter, MAX_SHARD_SIZE, Placement, sorted};
