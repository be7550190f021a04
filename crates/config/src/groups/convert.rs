//! Checkpoints to folders of other programs.

use std::path::PathBuf;

use crate::setting::ModelDtype;
use crate::table::options;

options! {
    /// What `convert` reads and writes.
    ConvertTargetOptions, "Convert";
    /// Checkpoint to export, or a run's output folder, whose newest complete checkpoint is exported.
    Burnish checkpoint: PathBuf = PathBuf::new();
    /// Folder for the export; by default beside the checkpoint, with `-export` after its name.
    Transformers output_dir: Option<PathBuf> = None;
    /// Element type of the exported weights; `auto` keeps the checkpoint's, `float32` takes the exact values of the
    /// optimizer's masters where it kept some.
    Trl dtype: ModelDtype = ModelDtype(None);
    /// Write into a folder that already holds files.
    Burnish overwrite_output_dir: bool = false;
}
