//! `burnish export`: a model or an adapter as a GGUF file, compared with its source before it is kept.

use std::path::Path;
use std::process::ExitCode;

use burnish_config::ExportOptions;
use burnish_config::groups::ExportTargetOptions;
use burnish_config::values::ExportFormat;
use burnish_core::Dtype;
use burnish_gguf::{GgufWriter, OutType};
use burnish_models::{AdapterByExpert, GgufAdapterExport, GgufExport, ModelFolder, TensorError};
use burnish_peft::AdapterFolder;
use burnish_weight_files::FolderWriter;

use crate::refusal::refuse;
use crate::sampled::{Lost, outputs};

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let words = crate::first_as("model_name_or_path", words);
    let Some(resolved) = crate::options::<ExportOptions>(&words)? else { return Ok(ExitCode::SUCCESS) };
    let options = resolved.options.export;
    crate::use_threads(options.threads, None)?;
    let output = &options.output_file;
    if output.is_dir() && options.format == ExportFormat::Gguf {
        refuse!(
            CannotWrite,
            "output_file: {} is a folder; name the file in it, such as model.gguf",
            output.display()
        );
    }
    if output.exists() && !options.overwrite_output_file {
        refuse!(
            OutputExists,
            "output_file: {} is there already; --overwrite_output_file replaces it",
            output.display()
        );
    }
    let adapter = options.adapter_name_or_path.as_ref().map(AdapterFolder::open).transpose()?;
    let mut folder = ModelFolder::open(&options.model_name_or_path)?;
    if let Some(adapter) = &adapter {
        folder = folder.for_adapter(adapter);
    }
    folder.notes().iter().for_each(crate::voice::note);
    match &adapter {
        Some(adapter) if options.format == ExportFormat::PerExpert => by_expert(&options, &folder, adapter),
        Some(adapter) if options.adapter_only => alone(&options, folder, adapter),
        adapter => whole(&options, folder, adapter.as_ref()),
    }
}

/// A model, with an adapter folded in.
fn whole(
    options: &ExportTargetOptions,
    folder: ModelFolder,
    adapter: Option<&AdapterFolder>,
) -> anyhow::Result<ExitCode> {
    let sixteen = if folder.stored_dtype() == Dtype::F16 { OutType::F16 } else { OutType::Bf16 };
    let out = options.outtype.0.unwrap_or(sixteen);
    let name = name_of(adapter.map_or(&options.model_name_or_path, AdapterFolder::path));
    let export = GgufExport::new(folder, adapter, out)?;
    export.notes().iter().for_each(crate::voice::note);
    let pre = options.tokenizer_pre.as_deref();
    let writer = export.write(&options.output_file, &name, pre)?;
    let back = export.read_back(writer.unfinished_path())?;
    let tensors = export.compare(&back)?;
    let before = outputs(export.source())?;
    export.check()?;
    let after = outputs(back.decoder())?;
    back.check()?;
    let vocab = export.source().spec().vocab;
    drop(back);
    keep(writer, options, out, &tensors, &Lost::between(&before, &after, vocab))
}

/// An adapter beside its base.
fn alone(
    options: &ExportTargetOptions,
    folder: ModelFolder,
    adapter: &AdapterFolder,
) -> anyhow::Result<ExitCode> {
    let out = options.outtype.0.unwrap_or(OutType::F32);
    let export = GgufAdapterExport::new(folder, adapter, out)?;
    let writer = export.write(&options.output_file, &name_of(adapter.path()))?;
    let (decoder, tensors) = export.read_back(writer.unfinished_path())?;
    let (before, after) = (outputs(export.source())?, outputs(&decoder)?);
    export.check()?;
    let lost = Lost::between(&before, &after, decoder.spec().vocab);
    keep(writer, options, out, &tensors, &lost)
}

/// An adapter with factors of each expert, as a folder.
fn by_expert(
    options: &ExportTargetOptions,
    folder: &ModelFolder,
    adapter: &AdapterFolder,
) -> anyhow::Result<ExitCode> {
    let dtype = match options.outtype.0 {
        Some(OutType::F16) => Dtype::F16,
        Some(OutType::Bf16) => Dtype::Bf16,
        _ => Dtype::F32,
    };
    let export = AdapterByExpert::new(folder, adapter)?;
    let mut writer = if options.overwrite_output_file {
        FolderWriter::replacing(&options.output_file)?
    } else {
        FolderWriter::new_folder(&options.output_file)?
    };
    export.write(&mut writer, dtype)?;
    let worst = export.compare(&writer, dtype)?;
    writer.commit()?;
    crate::voice::note(format_args!(
        "read back: what {} adds differs most from the adapter's, by {:.1e} of its size",
        worst.name, worst.relative
    ));
    crate::voice::closing(format_args!(
        "exported the adapter to {} ({dtype})",
        options.output_file.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Gives the file its name, unless it says something else than its source.
fn keep(
    writer: GgufWriter,
    options: &ExportTargetOptions,
    out: OutType,
    tensors: &TensorError,
    lost: &Lost,
) -> anyhow::Result<ExitCode> {
    let (relative, bound) = (lost.relative, logits_bound(out));
    if relative > bound || relative.is_nan() {
        refuse!(
            ExportDiffers,
            "the written file's logits are not the model's ({lost}; {relative:.2} of their spread, expected at most \
             {bound}): the file is not kept"
        );
    }
    writer.commit()?;
    let what = if options.adapter_only { "the adapter" } else { "the model" };
    let of_tensors = match tensors.relative {
        0.0 => "every tensor is as its source".to_owned(),
        relative => {
            format!(
                "the tensor that differs most is {} (by {:.2} % of its size)",
                tensors.name,
                relative * 100.0
            )
        }
    };
    crate::voice::note(format_args!("read back: {lost}; {of_tensors}"));
    crate::voice::closing(format_args!("exported {what} to {} ({out})", options.output_file.display()));
    Ok(ExitCode::SUCCESS)
}

/// The most that a type's rounding makes of logits, of their spread: unrelated ones lie 1.4 apart.
fn logits_bound(out: OutType) -> f64 {
    match out {
        OutType::F32 => 1e-3,
        OutType::F16 | OutType::Bf16 => 0.1,
        OutType::Q8_0 => 0.3,
        OutType::Q4_0 | OutType::Q4KM => 0.9,
    }
}

/// What a folder is called; of one in the hub's cache the repository's name.
fn name_of(path: &Path) -> String {
    let named = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let parent = path.parent();
    let of_hub = parent.filter(|parent| parent.ends_with("snapshots")).and_then(Path::parent).and_then(named);
    let of_hub = of_hub.and_then(|name| Some(name.rsplit("--").next()?.to_owned()));
    let resolved = || std::path::absolute(path).ok().as_deref().and_then(named);
    of_hub.or_else(|| named(path)).or_else(resolved).unwrap_or_else(|| "model".to_owned())
}
