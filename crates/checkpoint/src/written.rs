//! The second phase of saving: the lead folds the parts of all ranks and makes the checkpoint visible.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burnish_weight_files::FinishedFolder;
use serde_json::Value;

use crate::CheckpointError;
use crate::index::{self, Entries, FileSum, Index, Part, rows_of};

/// A checkpoint to which this rank has written all that it will. Dropping the lead's gives it up.
#[derive(Debug)]
#[must_use = "there is no checkpoint before the lead's commit"]
pub struct Written {
    pub(crate) folder: FinishedFolder,
    pub(crate) step: u64,
    pub(crate) slots: Value,
    pub(crate) run: Option<String>,
}

impl Written {
    /// The step that was saved.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Makes the checkpoint visible and returns its folder. The lead's commit does it, when all ranks have finished: it
    /// folds their parts, checks that all rows of all tensors are there, and renames once. It reads no data. On other
    /// ranks there is nothing to do.
    ///
    /// # Errors
    /// If a rank did not finish or saved something else, a tensor lacks rows or has some twice, another run wrote the same
    /// checkpoint meanwhile, or the disk refuses. What was there before is then still there.
    pub fn commit(self) -> Result<PathBuf, CheckpointError> {
        let Self { folder, step, slots, run } = self;
        let path = folder.target().to_path_buf();
        let Some(mut gathered) = folder.gather()? else { return Ok(path) };
        let mut entries = Entries::new();
        for (rank, note) in gathered.notes().iter().enumerate() {
            let other = |reason: String| CheckpointError::OtherPart { rank, reason };
            let part: Part = serde_json::from_value(note.clone()).map_err(|e| other(e.to_string()))?;
            if part.step != step {
                return Err(other(format!("step {} instead of {step}", part.step)));
            }
            fold(&mut entries, part.entries)?;
        }
        check(&mut entries)?;
        let file = |f: &burnish_weight_files::FilePart| {
            (f.name.clone(), FileSum { bytes: f.bytes, blake3: None, pieces: f.pieces.clone() })
        };
        let files = gathered.files().iter().map(file).collect::<BTreeMap<_, _>>();
        let index = Index { version: index::VERSION, step, run, slots, entries, files };
        let text = index::seal(&index).expect("invariant: every field serialises to JSON");
        gathered.file(index::FILE, &text)?;
        Ok(gathered.commit()?)
    }
}

/// Adds a rank's rows to those of the ranks before it.
fn fold(all: &mut Entries, part: Entries) -> Result<(), CheckpointError> {
    for (name, slots) in part {
        let known = all.entry(name.clone()).or_default();
        for (slot, entry) in slots {
            match known.get_mut(&slot) {
                None => drop(known.insert(slot, entry)),
                Some(so_far) if so_far.dtype == entry.dtype && so_far.shape == entry.shape => {
                    so_far.chunks.extend(entry.chunks);
                }
                Some(so_far) => {
                    return Err(CheckpointError::Pieces {
                        name,
                        slot,
                        shape: so_far.shape.clone(),
                        fault: "another dtype or shape on another rank",
                        row: entry.chunks.first().map_or(0, |c| c.rows[0]),
                    });
                }
            }
        }
    }
    Ok(())
}

/// Sorts every tensor's blocks and checks that they make it up.
fn check(entries: &mut Entries) -> Result<(), CheckpointError> {
    for (name, slots) in entries {
        for (slot, entry) in slots {
            entry.chunks.sort_by_key(|c| c.rows);
            let fault = |fault, row| CheckpointError::Pieces {
                name: name.clone(),
                slot: slot.clone(),
                shape: entry.shape.clone(),
                fault,
                row,
            };
            let mut next = 0;
            for chunk in &entry.chunks {
                if chunk.rows[0] > next {
                    break;
                }
                if chunk.rows[0] < next {
                    return Err(fault("rows given twice", chunk.rows[0]));
                }
                next = chunk.rows[1];
            }
            if next != rows_of(&entry.shape) {
                return Err(fault("rows never given", next));
            }
        }
    }
    Ok(())
}
