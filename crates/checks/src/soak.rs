//! Many steps in flat memory (Burn's issues 5212 and 4792).

use burnish_device::{DeviceKind, memory};
use burnish_trainers::Ranks;

use crate::run::Short;
use crate::{Check, Context};

/// Steps after which pools and caches have what they need.
const WARM: usize = 50;

/// How much more may be held at the end than after warming up.
const GROWTH: f64 = 1.02;

fn soak(context: &Context) -> anyhow::Result<String> {
    let (model, data) = (context.data("examples/base")?, context.data("examples/data/sft-train.jsonl")?);
    let folder = tempfile::tempdir()?;
    let steps = if context.quick { 60 } else { 500 };
    let mut more =
        vec!["--use_peft=true", "--lora_r=8", "--learning_rate=1e-3", "--packing=true", "--max_length=256"];
    if context.kind == DeviceKind::Wgpu {
        // WebGPU has no bf16.
        more.push("--bf16=false");
    }
    let short = Short {
        model: &model,
        data: &data,
        output: &folder.path().join("out"),
        steps,
        more: more.into_iter().map(str::to_owned).collect(),
    };
    let done = short.on(&Ranks::alone(), &context.device)?;
    let key = if memory(&context.device).is_some() { "device_memory_bytes" } else { "peak_memory_bytes" };
    let held = |step: usize| {
        let record = done.records.iter().find(|record| record.step == step as u64);
        record.and_then(|record| record.get(key))
    };
    let (Some(early), Some(late)) = (held(WARM), held(steps)) else {
        anyhow::bail!("{key} was not logged at steps {WARM} and {steps}");
    };
    anyhow::ensure!(
        late <= early * GROWTH,
        "{key} grew from {early:.0} after {WARM} steps to {late:.0} after {steps}; allowed {GROWTH} times"
    );
    let losses = [done.records.first(), done.records.last()]
        .map(|r| r.and_then(|r| r.get("loss")).unwrap_or(f64::NAN));
    anyhow::ensure!(losses[1] < losses[0], "the loss went from {} to {}", losses[0], losses[1]);
    Ok(format!("{:.1} MB after {WARM} steps, {:.1} after {steps}", early / 1e6, late / 1e6))
}

pub(crate) fn checks() -> Vec<Check> {
    vec![Check::new("memory", "many steps hold no more than few", soak)]
}
