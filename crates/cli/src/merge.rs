//! `burnish merge`: an adapter folded into its base.

use std::process::ExitCode;

use burnish_checkpoint::prepare_output_dir;
use burnish_config::MergeOptions;
use burnish_core::Dtype;
use burnish_data::Tokenizer;
use burnish_models::{Model, ModelFolder, Output, Tuning};
use burnish_ops::host_device;
use burnish_peft::AdapterFolder;
use burnish_weight_files::FolderWriter;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<MergeOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    let options = resolved.options.merge;
    crate::use_threads(options.threads)?;
    let adapter = AdapterFolder::open(&options.adapter_name_or_path)?;
    let mut folder = ModelFolder::open(&options.model_name_or_path)?.for_adapter(&adapter.config);
    if folder.spec().output == Output::Score && folder.path().join("tokenizer.json").is_file() {
        let pad = Tokenizer::from_folder(folder.path())?.pad_id();
        folder = pad.into_iter().fold(folder, ModelFolder::with_pad_token);
    }
    folder.notes().iter().for_each(crate::voice::note);
    let inputs = [folder.path(), adapter.path()];
    prepare_output_dir(&options.output_dir, options.overwrite_output_dir, &inputs, &[])?;
    let model = Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0, &host_device())?;
    let dtype = options.dtype.0.unwrap_or_else(|| folder.stored_dtype());
    let mut writer = FolderWriter::in_place(&options.output_dir)?;
    model.write_merged(&folder, &mut writer, dtype)?;
    writer.commit()?;
    crate::voice::closing(format_args!(
        "merged {} into {} ({dtype})",
        adapter.path().display(),
        options.output_dir.display()
    ));
    Ok(ExitCode::SUCCESS)
}
