//! `Beginning`: whose checkpoints are in the output folder, before a run writes its first.

use burnish_checkpoint::set_aside;
use burnish_weight_files::Attempt;

use crate::TrainError;
use crate::rank::resumed::Resumed;
use crate::setup::Setup;

/// The run's name, and what is said before its first step.
#[derive(Default)]
pub(crate) struct Beginning {
    /// What its checkpoints call it; one that goes on keeps the name.
    pub(crate) run_name: String,
    pub(crate) notes: Vec<String>,
}

impl Beginning {
    /// Names the run, refuses a checkpoint of another one, and on the lead sets checkpoints aside that are not its own.
    pub(crate) fn of(setup: &Setup, resumed: Option<&Resumed>, leads: bool) -> Result<Self, TrainError> {
        let [_, nonce] = Attempt::fresh().to_words();
        let mut begun = Self { run_name: format!("{nonce:016x}"), notes: Vec::new() };
        if let Some(resumed) = resumed {
            if let Some(name) = resumed.checkpoint.run() {
                name.clone_into(&mut begun.run_name);
            }
            begun.notes.extend(resumed.skipped.iter().map(|why| format!("skipped a checkpoint: {why}")));
            let different = setup.differences(&resumed.ours()["facts"])?;
            if let Some((what, then, now)) = different.forbidden {
                return Err(resumed.other_run(what, then, now));
            }
            if !different.said.is_empty() {
                let path = resumed.path();
                let said = different.said.join("; ");
                begun.notes.push(format!("{}: saved with other options: {said}", path.display()));
            }
        }
        if leads {
            let mut inputs = setup.inputs();
            let resumed_path = resumed.map(Resumed::path);
            inputs.extend(resumed_path.as_deref());
            let (dir, done) = (setup.output_dir(), resumed.map(Resumed::step));
            if let Some(moved) = set_aside(&dir, &begun.run_name, done, &inputs)? {
                begun.notes.push(format!(
                    "{} of {}: not of this run; moved to {}",
                    moved.names.join(", "),
                    dir.display(),
                    moved.folder.display()
                ));
            }
        }
        Ok(begun)
    }
}
