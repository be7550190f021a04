//! A device whose memory is full: one error that says what holds it and what would help, and life after it.

use anyhow::{Context as _, bail, ensure};
use burnish_device::DeviceKind;
use burnish_trainers::{Ranks, TrainError};

use crate::check::LeftOut;
use crate::run::Short;
use crate::{Check, Context};

/// What the run may still have.
#[cfg(feature = "cuda")]
const LEFT: u64 = 512 << 20;

fn full(context: &Context) -> anyhow::Result<String> {
    if context.kind != DeviceKind::Cuda {
        return Err(LeftOut(format!("memory of {} is not filled: it is the machine's", context.kind)).into());
    }
    let (model, data) = (context.data("examples/base")?, context.data("examples/data/sft-train.jsonl")?);
    let folder = tempfile::tempdir()?;
    let short = |rows: usize, output: &str| {
        let output = folder.path().join(output);
        let more = vec![
            format!("--per_device_train_batch_size={rows}"),
            "--gradient_checkpointing=false".to_owned(),
            "--packing=true".to_owned(),
            "--max_length=1024".to_owned(),
        ];
        Short { model: &model, data: &data, output: &output, steps: 1, more }
            .on(&Ranks::alone(), &context.device)
    };
    let held = fill(context)?;
    let failed = short(64, "full");
    drop(held);
    burnish_device::release(&context.device);
    let Err(error) = failed else { bail!("a run of 65536 tokens fitted beside what fills the device") };
    let Some(TrainError::OutOfMemory { table, mends, .. }) = error.downcast_ref::<TrainError>() else {
        bail!("expected that the device's memory is full, got: {error:#}");
    };
    ensure!(
        table.contains("weights") && table.contains("optimizer"),
        "the table lacks what holds memory: {table}"
    );
    ensure!(
        mends.iter().any(|mend| mend.contains("gradient_checkpointing")),
        "the mends lack recomputation: {mends:?}"
    );
    short(1, "after").context("a run that fits, after the device was full")?;
    Ok("one error with a table and mends; the next run trains".to_owned())
}

/// Tensors that leave little of the device's memory.
#[cfg(feature = "cuda")]
fn fill(context: &Context) -> anyhow::Result<Vec<burn::tensor::Tensor<1>>> {
    let free = || -> anyhow::Result<u64> {
        let all = burnish_device::cuda::gpus()?;
        all.first().map(|gpu| gpu.free).context("no GPU is visible")
    };
    let mut held = Vec::new();
    loop {
        let now = free()?;
        if now <= LEFT {
            return Ok(held);
        }
        let bytes = (now - LEFT).clamp(32 << 20, 4 << 30);
        held.push(burn::tensor::Tensor::<1>::zeros([bytes as usize / 4], &context.device));
        context.device.sync().map_err(|error| anyhow::anyhow!("filling the device: {error}"))?;
        ensure!(
            held.len() < 4096,
            "the device does not fill: {} tensors, {} bytes free",
            held.len(),
            free()?
        );
    }
}

#[cfg(not(feature = "cuda"))]
fn fill(_: &Context) -> anyhow::Result<Vec<burn::tensor::Tensor<1>>> {
    bail!("this build has no CUDA")
}

pub(crate) fn checks() -> Vec<Check> {
    vec![Check::new("memory", "a full device", full)]
}
