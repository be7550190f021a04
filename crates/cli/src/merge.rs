//! `burnish merge`: an adapter folded into its base, or one made of several.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burnish_checkpoint::prepare_output_dir;
use burnish_config::MergeOptions;
use burnish_config::groups::MergeTargetOptions;
use burnish_core::{Dtype, Parameter, Quantization, Scheme};
use burnish_data::Tokenizer;
use burnish_models::{Model, ModelFolder, ModelPlan, Output, Tuning};
use burnish_ops::host_device;
use burnish_peft::{
    AdapterFolder, Combination, CombinationType, FactorSums, PeftError, Weighted, add_weighted_adapter,
    write_adapter,
};
use burnish_weight_files::FolderWriter;

use crate::refusal::{refusal, refuse};
use crate::sampled::{Lost, outputs};

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<MergeOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    let given = resolved.options.quantization.quantization();
    let options = resolved.options.merge;
    crate::use_threads(options.threads, None)?;
    let Some(adapter) = &options.adapter_name_or_path else { return several(&options) };
    let adapter = AdapterFolder::open(adapter)?;
    let mut folder = ModelFolder::open(&options.model_name_or_path)?.for_adapter(&adapter);
    if folder.spec().output == Output::Score && Tokenizer::is_in(folder.path()) {
        let pad = Tokenizer::from_folder(folder.path())?.pad_id();
        folder = pad.into_iter().fold(folder, ModelFolder::with_pad_token);
    }
    folder.notes().iter().for_each(crate::voice::note);
    let inputs = [folder.path(), adapter.path()];
    let mut planned = ModelPlan::new(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0)?;
    if let Some(quantization) = given {
        planned = planned.quantized(quantization, Dtype::F32)?;
    }
    // Experts in MXFP4 are exact in bfloat16: nothing of them is lost.
    let in_bits = |parameter: &Parameter| parameter.quantization.filter(|how| how.scheme != Scheme::Mxfp4);
    let held = planned.registry().iter().find_map(in_bits);
    let again = if options.requantize { Some(again(held)?) } else { None };
    prepare_output_dir(&options.output_dir, options.overwrite_output_dir, &inputs, &[])?;
    let model = planned.resident(&host_device())?.0;
    let dtype = options.dtype.0.unwrap_or_else(|| folder.stored_dtype());
    let mut writer = FolderWriter::in_place(&options.output_dir)?;
    match again {
        Some(quantization) => model.write_quantized(&folder, &mut writer, options.dtype.0, quantization)?,
        None => model.write_merged(&folder, &mut writer, dtype)?,
    }
    writer.commit()?;
    if let Some(held) = held {
        let before = outputs(&model.decoder)?;
        drop(model);
        let written = ModelFolder::open(&options.output_dir)?;
        let after = Model::load(&written, &Tuning::None, Dtype::F32, 0, &host_device())?;
        let lost = Lost::between(&before, &outputs(&after.decoder)?, after.decoder.spec().vocab);
        match again {
            Some(_) => crate::voice::note(format_args!(
                "quantised again, the merged model is not the adapter over its base: {lost}; without --requantize a \
                 dequantised folder is written, which differs by {dtype}'s rounding alone"
            )),
            None => crate::voice::note(format_args!(
                "the base was in {}, the merged model is in {dtype}: {lost}",
                held.scheme
            )),
        }
    }
    crate::voice::closing(format_args!(
        "merged {} into {} ({})",
        adapter.path().display(),
        options.output_dir.display(),
        again.map_or_else(|| dtype.to_string(), |quantization| quantization.scheme.to_string())
    ));
    Ok(ExitCode::SUCCESS)
}

/// One adapter of several over a base.
fn several(options: &MergeTargetOptions) -> anyhow::Result<ExitCode> {
    let named = options.weighted();
    let mut parts = Vec::with_capacity(named.len());
    let mut inputs = vec![options.model_name_or_path.clone()];
    for (path, weight) in &named {
        let adapter = AdapterFolder::open(path)?;
        let folder = ModelFolder::open(&options.model_name_or_path)?.for_adapter(&adapter);
        let planned = ModelPlan::new(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0)?;
        let plan = planned.plan().cloned().ok_or_else(|| refusal!(Internal, "an adapter without a plan"))?;
        let tensors = adapter.load(&plan)?;
        inputs.push(adapter.path().to_path_buf());
        parts.push((plan, tensors, *weight));
    }
    let weighted: Vec<Weighted<'_>> =
        parts.iter().map(|(plan, tensors, weight)| Weighted { plan, tensors, weight: *weight }).collect();
    let widest = parts.iter().flat_map(|(plan, ..)| &plan.sites).map(|site| site.rank).max().unwrap_or(1);
    let kind = options.combination_type;
    let rank = options.svd_rank.unwrap_or(widest);
    let sums = |what| FactorSums {
        what,
        density: options.density.unwrap_or(1.0),
        majority: options.majority_sign_method,
        seed: options.seed,
    };
    let how = match kind.sum() {
        Some(what) if kind.has_rank() => Combination::Changes { sums: sums(what), rank },
        Some(what) => Combination::Factors(sums(what)),
        None if kind == CombinationType::Cat => Combination::Cat,
        None => Combination::Svd { rank },
    };
    let (plan, tensors) = add_weighted_adapter(&weighted, how)?;
    let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
    prepare_output_dir(&options.output_dir, options.overwrite_output_dir, &inputs, &[])?;
    let mut writer = FolderWriter::in_place(&options.output_dir)?;
    write_adapter(&mut writer, &plan, |name| -> Result<_, PeftError> {
        Ok(tensors.parameters.get(name).or_else(|| tensors.base_weights.get(name)).cloned())
    })?;
    writer.commit()?;
    crate::voice::closing(format_args!(
        "made {} of {} adapters ({}, rank {})",
        options.output_dir.display(),
        named.len(),
        options.combination_type,
        plan.config.r
    ));
    Ok(ExitCode::SUCCESS)
}

/// How merged matrices are quantised again: as they were.
fn again(held: Option<Quantization>) -> anyhow::Result<Quantization> {
    match held {
        None => refuse!(
            MissingOption,
            "--requantize: the base is not quantised: say how it was held: --load_in_4bit or --load_in_8bit"
        ),
        Some(Quantization {
            scheme: scheme @ (Scheme::Int4 { .. } | Scheme::Mxfp4 | Scheme::Nvfp4), ..
        }) => {
            refuse!(
                QuantizedModel,
                "--requantize: {scheme} is read and not made: leave it out, and quantise the merged folder (burnish quantize)"
            )
        }
        Some(quantization) => Ok(quantization),
    }
}
