//! Paths that are looked at.

use std::path::PathBuf;

use crate::table::options;

options! {
    /// A path that is looked at.
    InspectTargetOptions, "Inspect";
    /// A model, adapter, checkpoint, output folder, file of tensors (safetensors or GGUF), or data set.
    Burnish path: PathBuf = PathBuf::new();
    /// Print JSON.
    Burnish json: bool = false;
    /// List every tensor.
    Burnish tensors: bool = false;
}
