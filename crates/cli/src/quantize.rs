//! `burnish quantize`: a model in fewer bits, as a folder.

use std::process::ExitCode;

use burnish_checkpoint::prepare_output_dir;
use burnish_config::QuantizeOptions;
use burnish_models::ModelFolder;
use burnish_weight_files::FolderWriter;

use crate::refusal::refuse;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<QuantizeOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    let options = resolved.options.target;
    let Some(quantization) = resolved.options.quantization.quantization() else {
        refuse!(MissingOption, "say how: --load_in_4bit or --load_in_8bit")
    };
    crate::use_threads(options.threads, None)?;
    let folder = ModelFolder::open(&options.model_name_or_path)?;
    folder.notes().iter().for_each(crate::voice::note);
    prepare_output_dir(&options.output_dir, options.overwrite_output_dir, &[folder.path()], &[])?;
    let mut writer = FolderWriter::in_place(&options.output_dir)?;
    folder.quantize_to(&mut writer, options.dtype.0, quantization)?;
    writer.commit()?;
    crate::voice::closing(format_args!(
        "quantised {} into {} ({})",
        folder.path().display(),
        options.output_dir.display(),
        quantization.quantization.scheme
    ));
    Ok(ExitCode::SUCCESS)
}
