//! Another folder's model to compare a policy with.

use std::path::Path;

use burnish_core::{Dtype, Parameter};
use burnish_data::Tokenizer;
use burnish_models::{ModelFolder, Planned, Tuning};
use burnish_tp::Tp;

use crate::TrainError;
use crate::frozen::Frozen;

/// A model that is not the policy's start, checked against it.
pub(crate) struct ReferenceFolder {
    pub(crate) folder: ModelFolder,
    /// Whether it moves towards the policy: then it is stored and sharded as what trains.
    pub(crate) moves: bool,
    pub(crate) frozen: Frozen,
}

impl ReferenceFolder {
    /// Opens the folder. Its ids stand for the tokens of `tokenizer`; with `moves` its parameters are those of `policy`.
    ///
    /// # Errors
    /// If they do not, or a file is missing or damaged.
    pub(crate) fn open(
        path: &Path,
        moves: bool,
        tokenizer: &Tokenizer,
        policy: &ModelFolder,
    ) -> Result<Self, TrainError> {
        let folder = ModelFolder::open(path)?;
        let other = |what: String| TrainError::OtherTokens { path: path.to_path_buf(), what };
        if let Some((id, text)) = tokenizer.first_unlike(&Tokenizer::from_folder(path)?) {
            return Err(other(format!("id {id} is {text:?} in the policy's, and is not there")));
        }
        let (vocab, ids) = (folder.spec().vocab, tokenizer.ids());
        if vocab < ids {
            return Err(other(format!("the model knows {vocab} ids, and the tokenizer has {ids}")));
        }
        let opened = Self { folder, moves, frozen: Frozen::default() };
        if moves {
            let (theirs, ours) =
                (opened.planned(Dtype::F32)?, Planned::new(policy, &Tuning::Full, Dtype::F32, 0)?);
            let of = |p: Option<&Parameter>| {
                p.map_or_else(|| "nothing more".to_owned(), |p| format!("`{}` {:?}", p.name, p.shape))
            };
            let (theirs, ours) = (theirs.registry(), ours.registry());
            for index in 0..theirs.len().max(ours.len()) {
                let [got, expected] = [theirs, ours].map(|r| of((index < r.len()).then(|| r.at(index))));
                if got != expected {
                    return Err(TrainError::OtherShapes { path: path.to_path_buf(), got, expected });
                }
            }
        }
        Ok(opened)
    }

    /// Its parameters: in `trained` where they move, frozen and as they are stored otherwise.
    pub(crate) fn planned(&self, trained: Dtype) -> Result<Planned<'_>, TrainError> {
        let tuning = if self.moves { Tuning::Full } else { Tuning::None };
        Ok(Planned::new(&self.folder, &tuning, trained, 0)?)
    }

    /// The same divided over the ranks of `tp`.
    pub(crate) fn planned_over(&self, trained: Dtype, tp: &Tp) -> Result<Planned<'_>, TrainError> {
        let planned = self.planned(trained)?;
        Ok(if tp.size() == 1 { planned } else { planned.over(tp)? })
    }
}
