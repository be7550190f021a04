//! `burnish convert`: a checkpoint as a folder of other programs.

use crate::checks::Checks;
use crate::command::command;
use crate::groups::ConvertTargetOptions;

command! {
    /// Options of `burnish convert`.
    ConvertOptions, "convert", "Export a checkpoint to a Hugging Face model folder or a PEFT adapter folder",
    needs ["checkpoint"], {
        /// What is read and written.
        convert: ConvertTargetOptions,
    }
}

impl ConvertOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        checks.folder("checkpoint", &self.convert.checkpoint, "");
        if self.convert.output_dir.as_ref() == Some(&self.convert.checkpoint) {
            checks.conflict("output_dir", "the checkpoint", "name another folder for the export");
        }
    }
}
