//! Checkpoints that one device writes and another goes on from.

use burn::tensor::Device;
use burnish_trainers::Ranks;

use crate::run::{Short, compare};
use crate::{Check, Context};

/// Three steps on one device and three on another, against six on the processor.
fn check(name: &str, lora: bool, first_here: bool) -> Check {
    Check::new("resume", name, move |context: &Context| {
        let fixtures = context.fixtures()?;
        let folder = tempfile::tempdir()?;
        let mut common: Vec<&str> =
            vec!["--save_strategy=steps", "--save_steps=3", "--lr_scheduler_type=constant", "--bf16=false"];
        if lora {
            common.extend(["--use_peft=true", "--lora_r=4", "--lora_dropout=0.1"]);
        }
        let short = |output: &str, steps: usize, more: &[&str], device: &Device| {
            let more = common.iter().chain(more).map(|&word| word.to_owned()).collect();
            let output = folder.path().join(output);
            let short = Short {
                model: &fixtures.join("models/llama"),
                data: &fixtures.join("data/prompt_completion.jsonl"),
                output: &output,
                steps,
                more,
            };
            short.on(&Ranks::alone(), device)
        };
        let cpu = Device::flex();
        let whole = short("whole", 6, &[], &cpu)?;
        let (first, second) = if first_here { (&context.device, &cpu) } else { (&cpu, &context.device) };
        short("parts", 3, &[], first)?;
        let resumed =
            short("parts", 6, &["--resume_from_checkpoint=true", "--overwrite_output_dir=false"], second)?;
        let bound = context.tolerance().run;
        let worst = compare(&resumed.records, &whole.records, &["loss", "grad_norm"], bound)?;
        Ok(format!(
            "{worst:.1e} from one run on the CPU over {} steps, bound {bound:.0e}",
            whole.records.len()
        ))
    })
}

pub(crate) fn checks() -> Vec<Check> {
    vec![
        check("written here, resumed on the CPU, full", false, true),
        check("written on the CPU, resumed here, full", false, false),
        check("written here, resumed on the CPU, LoRA", true, true),
        check("written on the CPU, resumed here, LoRA", true, false),
    ]
}
