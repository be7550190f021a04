//! A model or an adapter as a file of other programs.

use std::path::PathBuf;

use burnish_gguf::OutType;

use crate::choice::{Auto, ExportFormat};
use crate::table::options;

options! {
    /// What `export` reads and writes.
    ExportTargetOptions, "Export";
    /// Folder of the model in Hugging Face's format.
    Trl model_name_or_path: PathBuf = PathBuf::new();
    /// The branch, tag or commit of model_name_or_path, where that is a name of the Hub; a folder has one revision.
    Trl model_revision: String = "main".into();
    /// Folder of a PEFT adapter that is folded into the model.
    Burnish adapter_name_or_path: Option<PathBuf> = None;
    /// Write the adapter alone, for use beside a file of the model (llama.cpp's `--lora`).
    Burnish adapter_only: bool = false;
    /// What is written: gguf, or per_expert, an adapter's folder with factors of each expert as vLLM reads them.
    Burnish format: ExportFormat = ExportFormat::Gguf;
    /// The file, of per_expert the folder; it gets this name when what it holds has been compared with the model.
    Burnish output_file: PathBuf = PathBuf::new();
    /// What matrices are stored as, by llama.cpp's names; `auto` takes f16 where the folder has float16 and bf16 elsewhere, f32
    /// for an adapter.
    Burnish outtype: Auto<OutType> = Auto(None);
    /// llama.cpp's name of how the tokenizer cuts texts before it merges (`tokenizer.ggml.pre`); found out where it is one of
    /// gpt-2, smollm, llama-bpe, dbrx, qwen2, qwen35, gpt-4o and tekken.
    Burnish tokenizer_pre: Option<String> = None;
    /// Replace a file that is there.
    Burnish overwrite_output_file: bool = false;
    /// Worker threads; by default one per core.
    Burnish threads: Option<usize> = None;
}
