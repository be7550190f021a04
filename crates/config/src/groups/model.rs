//! Which model, in which precision, on how many threads.

use std::path::PathBuf;

use crate::choice::ModelDtype;
use crate::table::options;

options! {
    /// The model, an adapter over it, and the machine.
    ModelOptions, "Model";
    /// Folder of the model in Hugging Face's format.
    Trl model_name_or_path: PathBuf = PathBuf::new();
    /// Folder of a PEFT adapter to load over the model; training goes on with it.
    Burnish adapter_name_or_path: Option<PathBuf> = None;
    /// Element type of the weights after loading; `auto` keeps the folder's.
    Trl dtype: ModelDtype = ModelDtype::Float32;
    /// Worker threads; by default one per core.
    Burnish threads: Option<usize> = None;
}

options! {
    /// What `merge` reads and writes.
    MergeTargetOptions, "Merge";
    /// Folder of the base model in Hugging Face's format.
    Trl model_name_or_path: PathBuf = PathBuf::new();
    /// Folder of the PEFT adapter to merge into it.
    Burnish adapter_name_or_path: PathBuf = PathBuf::new();
    /// Folder for the merged model.
    Transformers output_dir: PathBuf = PathBuf::new();
    /// Element type of the merged weights; `auto` keeps the base's.
    Trl dtype: ModelDtype = ModelDtype::Auto;
    /// Write into a folder that already holds files.
    Burnish overwrite_output_dir: bool = false;
    /// Worker threads; by default one per core.
    Burnish threads: Option<usize> = None;
}
