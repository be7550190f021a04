//! Training state that survives.
//!
//! A checkpoint is logical: its keys are (parameter name, slot), its values whole tensors; padding is never stored, and
//! what is read does not depend on how many ranks wrote it. Any number of ranks write one, each its rows; any number read
//! one, each the rows it keeps. It appears by one rename, so after `kill -9` at any moment the last complete one loads.
//!
//! ```text
//! output_dir/checkpoint-100/
//!   adapter_model.safetensors, config.json, ...   what Transformers and PEFT expect, written by the caller
//!   trainer_state.json                            Transformers' schema; ours in stateful_callbacks.burnish
//!   state/index.json                              version, entries, checksums of every file; written last
//!   state/data-00002-00000.safetensors            optimizer slots, masters: `{name}/{slot}@{row}`; rank 2's first file
//! ```
//!
//! * [`CheckpointWriter`] saves, [`Checkpoint`] reads, [`latest`] and [`resume`] choose, [`rotate`] lets go.
//! * [`Saving`] is a save in the background.
//! * [`prepare_output_dir`] refuses a folder before training rather than at the first save; [`FolderLock`] keeps a second
//!   run out of it.
//! * A checkpoint says which [run](CheckpointWriter::run) wrote it: [`rotate`] removes those of one run only, [`set_aside`]
//!   keeps those of other runs under another name, and the newest of several runs is never chosen.
//!
//! ```
//! use burnish_checkpoint::{CheckpointWriter, TrainerState, latest, rotate};
//! use burnish_weight_files::HostTensor;
//!
//! let dir = tempfile::tempdir().unwrap();
//! for step in 1..=3 {
//!     let mut writer = CheckpointWriter::new(dir.path(), step).unwrap();
//!     let m = HostTensor::from_slice(&[step as f32], &[1]).unwrap();
//!     writer.tensor("w", "exp_avg", m.view()).unwrap();
//!     let mut state = TrainerState { global_step: step, ..Default::default() };
//!     state.set_burnish(serde_json::json!({"cursor": step * 8}));
//!     writer.trainer_state(&state).unwrap();
//!     writer.commit().unwrap();
//!     rotate(dir.path(), None, Some(2), None).unwrap();
//! }
//! let newest = latest(dir.path()).unwrap().checkpoint.unwrap();
//! assert_eq!(newest.step(), 3);
//! assert_eq!(newest.trainer_state().unwrap().burnish()["cursor"], 24);
//! assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
//! ```

mod error;
mod folder_lock;
mod index;
mod integrity;
mod output_dir;
mod reader;
mod resume;
mod saving;
mod trainer_state;
mod writer;
mod written;

pub use burnish_weight_files::{Attempt, HostTensor, Share, TensorView};
pub use error::{CheckpointError, Damage};
pub use folder_lock::{FolderLock, LockOwner};
pub use output_dir::prepare_output_dir;
pub use reader::Checkpoint;
pub use resume::{Latest, SetAside, latest, open_newest, resume, rotate, set_aside};
pub use saving::Saving;
pub use trainer_state::TrainerState;
pub use writer::{CheckpointWriter, path_of};
pub use written::Written;
