//! `burnish convert`: a checkpoint as a folder that Transformers or PEFT loads.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burnish_checkpoint::{Checkpoint, prepare_output_dir, resume};
use burnish_config::ConvertOptions;
use burnish_core::Dtype;
use burnish_weight_files::{FolderWriter, HostTensor, TensorSpec};
use serde_json::{Map, Value};

use crate::refusal::{refusal, refuse};

/// Slots that hold a parameter exactly where the model's file holds it rounded.
const EXACT: [&str; 2] = ["master", "value"];
/// What PEFT puts before the names of an adapter's parameters.
const PEFT: &str = "base_model.model.";

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<ConvertOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    let options = resolved.options.convert;
    let checkpoint = open(&options.checkpoint)?;
    let output = options.output_dir.unwrap_or_else(|| beside(checkpoint.path()));
    prepare_output_dir(&output, options.overwrite_output_dir, &[checkpoint.path()], &[])?;
    let exported = export(&checkpoint, &output, options.dtype.0)?;
    crate::voice::closing(format_args!(
        "exported {} to {} ({exported})",
        checkpoint.path().display(),
        output.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// The checkpoint, or the newest complete one of a run's output folder.
fn open(path: &Path) -> anyhow::Result<Checkpoint> {
    let named = path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("checkpoint-"));
    if named || path.join("state").is_dir() {
        return Ok(Checkpoint::open(path)?);
    }
    let (checkpoint, skipped) = resume(path)?;
    for (_, why) in skipped {
        crate::voice::note(why);
    }
    Ok(checkpoint)
}

fn beside(checkpoint: &Path) -> PathBuf {
    let mut name = checkpoint.file_name().unwrap_or_default().to_os_string();
    name.push("-export");
    checkpoint.with_file_name(name)
}

/// Writes the folder; says in words what it holds.
fn export(checkpoint: &Checkpoint, output: &Path, dtype: Option<Dtype>) -> anyhow::Result<String> {
    let weights = checkpoint.weights()?;
    let weight_files: Vec<String> =
        weights.files().filter_map(|f| Some(f.file_name()?.to_str()?.to_owned())).collect();
    let adapter = weight_files.iter().any(|f| f.starts_with("adapter_model"));
    let stem = if adapter { "adapter_model" } else { "model" };

    let named = if adapter { "adapter_config.json" } else { "config.json" };
    if !checkpoint.files().any(|f| f == named) {
        refuse!(
            NotAModel,
            "`{}` has weights but no {named}; copy it there from the model that was trained",
            checkpoint.path().display()
        );
    }

    let mut specs = Vec::new();
    for name in weights.names() {
        let info = weights.info(name)?;
        // Integers and wider floats (buffers) are no weights.
        let converts = info.dtype.is_float() && info.dtype != Dtype::F64;
        specs.push(TensorSpec::new(name, dtype.filter(|_| converts).unwrap_or(info.dtype), &info.shape));
    }
    let mut exact = 0;
    let mut writer = FolderWriter::in_place(output)?;
    writer.tensors_from::<anyhow::Error>(stem, &specs, |spec| {
        let (tensor, is_exact) = value(checkpoint, spec)?;
        exact += usize::from(is_exact);
        Ok(Cow::Owned(tensor.bytes))
    })?;
    let config = |name: &str| name == "config.json" && !adapter;
    for name in checkpoint.files() {
        let other = name.contains('/')
            || name == "trainer_state.json"
            || name.ends_with(".safetensors")
            || name.ends_with(".safetensors.index.json");
        match dtype.filter(|_| config(name)) {
            _ if other => {}
            Some(dtype) => {
                let text = checkpoint.file(name)?;
                let mut json: Map<String, Value> = serde_json::from_slice(&text).map_err(|error| {
                    let folder = checkpoint.path().display();
                    refusal!(BadModelConfig, "`{name}` of `{folder}` cannot be read: {error}")
                })?;
                json.remove("torch_dtype");
                json.insert("dtype".to_owned(), dtype.name().into());
                writer.json(name, &Value::Object(json))?;
            }
            None => writer.file(name, &checkpoint.file(name)?)?,
        }
    }
    writer.commit()?;
    let what = if adapter { "PEFT adapter" } else { "Hugging Face model" };
    let kept = if exact > 0 { format!(", {exact} tensors from exact values") } else { String::new() };
    Ok(match dtype {
        Some(dtype) => format!("{what}, {dtype}{kept}"),
        None => format!("{what}, dtypes kept"),
    })
}

/// A tensor of the model's file in the dtype to be written, rounded at most once; and whether it is the exact value that
/// the file holds rounded.
fn value(checkpoint: &Checkpoint, spec: &TensorSpec) -> anyhow::Result<(HostTensor, bool)> {
    let stored = checkpoint.weights()?.info(&spec.name)?.dtype;
    if stored == spec.dtype {
        // A slot beside a file in full precision says the same.
        return Ok((checkpoint.weight_rows(&spec.name, &spec.shape, 0..spec.rows())?, false));
    }
    let names = parameters(&spec.name);
    let exact = names.iter().flat_map(|n| EXACT.map(|slot| (n, slot)));
    let (tensor, is_exact) = match { exact }.find(|(name, slot)| checkpoint.contains(name, slot)) {
        Some((name, slot)) => (checkpoint.read_as(name, slot, Dtype::F32, &spec.shape)?, true),
        None => (checkpoint.weight_rows(&spec.name, &spec.shape, 0..spec.rows())?, false),
    };
    let cast = tensor.cast(spec.dtype);
    if spec.dtype == Dtype::F16 {
        let lost =
            tensor.to_f32().iter().zip(cast.to_f32()).any(|(was, is)| was.is_finite() && !is.is_finite());
        if lost {
            refuse!(
                NotFinite,
                "`{}` has values that float16 cannot hold; export to bfloat16 or float32",
                spec.name
            );
        }
    }
    Ok((cast, is_exact))
}

/// The parameters that a tensor of the file may be: its own name in a model; in an adapter PEFT's prefix is gone, and what
/// is trained beside the adapter (modules to save, biases of adapted modules) has a name of its own.
fn parameters(tensor: &str) -> Vec<String> {
    let mut names = vec![tensor.to_owned()];
    if let Some(name) = tensor.strip_prefix(PEFT) {
        names.extend([name.to_owned(), format!("modules_to_save.{name}"), name.replace(".base_layer.", ".")]);
    }
    names
}
