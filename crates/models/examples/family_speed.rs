//! Times a training step of every family beside one of Llama's of the same size, on the CPU.
//!
//! ```text
//! cargo run --release -p burnish-models --example family_speed -- [NAME]... [--layers 8] [--rows 2] [--rounds 5] [--folders FOLDER]
//! ```
//!
//! Each configuration in FOLDER (the crate's recorded models, of which there is one for each `model_type`) is taken at one
//! shape with random weights: hidden 512, 8 heads of 64, vocabulary 8192, rows of 512 tokens, a feed-forward of three
//! matrices of 1408 or of two of 2112. A step is forward and backward with everything kept, of a LoRA on all layers (rank
//! 16) or of all weights; the optimizer's update is the same for every family and left out. Llama's step is taken right
//! before and after each, and the ratio is that of floating-point operations per second, the median over the rounds.
//! Prints one line of JSON for each configuration and kind of step: `tokens_per_s`, and the `ratio` to Llama by the clock
//! and by the seconds that threads ran (`cpu_ratio`; Linux), which other programs on the machine hardly change.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;
use burnish_core::Role;
use burnish_core::random::Stream;
use burnish_losses::{TokenLossOptions, chunked_nll};
use burnish_models::{
    Blueprint, ConfigFile, Decoder, GatedDelta, LearnedPositions, LocalParams, Mode, Spec, Tokens,
};
use burnish_ops::{AnyTensor, Parameters};
use burnish_peft::{LoraConfig, Purpose};

const HIDDEN: usize = 512;
const HEADS: usize = 8;
const VOCAB: usize = 8192;
const LENGTH: usize = 512;
const LORA: &str = r#"{"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": "all-linear"}"#;

/// A family's spec at the shape that all are compared at.
fn scaled(mut spec: Spec, layers: usize) -> Spec {
    (spec.vocab, spec.hidden, spec.heads, spec.head_dim) = (VOCAB, HIDDEN, HEADS, HIDDEN / HEADS);
    spec.ends = HIDDEN;
    spec.intermediate = if spec.gated() { 1408 } else { 2112 };
    // One key head stays one: some have no other layout.
    spec.kv_heads = if spec.kv_heads == 1 { 1 } else { HEADS };
    (spec.attention_scale, spec.max_positions) = ((spec.head_dim as f32).powf(-0.5), 2 * LENGTH);
    spec.initializer_range = 0.02;
    if !spec.slopes.is_empty() {
        spec.slopes = (1..=HEADS).map(|head| 2f32.powi(-(head as i32))).collect();
    }
    if let Some(positions) = &mut spec.positions {
        *positions = LearnedPositions { count: 2 * LENGTH, ..*positions };
    }
    if let Some(delta) = &mut spec.delta {
        let dim = HIDDEN / HEADS;
        *delta = GatedDelta { key_heads: HEADS, value_heads: HEADS, key_dim: dim, value_dim: dim, ..*delta };
    }
    for rope in &mut spec.ropes {
        (rope.dim, rope.kind) = (spec.head_dim, burnish_models::RopeKind::Default);
    }
    let own = std::mem::take(&mut spec.layers);
    spec.layers = own.iter().copied().cycle().take(layers).collect();
    for layer in &mut spec.layers {
        // A window as long as the rows: the same work.
        layer.window = layer.window.map(|_| LENGTH);
    }
    spec
}

struct Case {
    decoder: Decoder,
    parameters: Arc<LocalParams>,
    /// Floating-point operations of a step for a token.
    operations: f64,
}

impl Case {
    fn new(spec: &Spec, lora: bool, device: &Device) -> Result<Self, Box<dyn Error>> {
        let mut blueprint = Blueprint::new(spec.clone())?;
        if lora {
            let config = LoraConfig::from_json(LORA)?;
            blueprint.attach(&config, Purpose::Create, spec.family.model_type())?;
        } else {
            blueprint.train_all();
        }
        let registry = blueprint.registry().clone();
        let (mut values, mut weights): (Vec<AnyTensor>, _) = (Vec::new(), 0);
        for parameter in registry.iter() {
            let elements: usize = parameter.shape.iter().product();
            if parameter.shape.len() == 2 && matches!(parameter.role, Role::Matrix | Role::Head) {
                weights += elements;
            }
            let target = parameter.alias_of.as_ref().and_then(|name| registry.index_of(name));
            if let Some(target) = target {
                values.push(values[target].clone());
                continue;
            }
            let stream = Stream::new(7, &parameter.name);
            let center = if parameter.role == Role::Norm { 1.0 } else { 0.0 };
            let drawn = (0..elements as u64).map(|i| center + 0.02 * stream.normal(i)).collect();
            values.push(AnyTensor::from_elements::<f32>(drawn, &parameter.shape, device));
        }
        let attending = spec.layers.iter().filter(|layer| !layer.conv).count();
        let attention = 2 * LENGTH * HIDDEN * attending;
        let operations = (if lora { 4 } else { 6 } * weights + 3 * attention) as f64;
        let parameters = Arc::new(LocalParams::new(registry, values));
        Ok(Self { decoder: blueprint.into_decoder(parameters.clone()), parameters, operations })
    }

    /// A step.
    fn step(&self, tokens: &Tokens) -> Result<Time, Box<dyn Error>> {
        let (start, ran) = (Instant::now(), thread_seconds());
        let pass = self.decoder.pass(Mode::Train { recompute: false, dropout: None });
        let hidden = self.decoder.hidden(tokens, &pass)?;
        let hidden = self.decoder.final_norm(&hidden, &pass)?;
        let head = self.decoder.head(&pass, &tokens.rows)?;
        let options =
            TokenLossOptions { head: self.decoder.head_options(1.0), ..TokenLossOptions::default() };
        let out = chunked_nll(hidden, &head, tokens.ids.to_vec(), &options)?;
        if !out.loss.to_f32()[0].is_finite() {
            return Err("the loss is not a number".into());
        }
        pass.backward(&out.loss)?;
        let time = Time { clock: start.elapsed().as_secs_f64(), ran: thread_seconds() - ran };
        for index in 0..self.parameters.registry().len() {
            drop(self.parameters.take_gradient(index));
        }
        Ok(time)
    }
}

/// Seconds by the clock, and those that this process' threads ran.
#[derive(Clone, Copy)]
struct Time {
    clock: f64,
    ran: f64,
}

/// Seconds that the threads of this process have run; 0 where the system does not say.
fn thread_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of = |task: std::fs::DirEntry| -> Option<f64> {
        let told = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some(told.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
    };
    tasks.filter_map(of).sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut layers, mut rows, mut rounds) = (8, 2, 5);
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut names = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--layers" => layers = value()?.parse()?,
            "--rows" => rows = value()?.parse()?,
            "--rounds" => rounds = value()?.parse()?,
            "--folders" => folders = value()?.into(),
            _ => names.push(argument),
        }
    }
    if names.is_empty() {
        let entries = std::fs::read_dir(&folders)?.collect::<Result<Vec<_>, _>>()?;
        names = entries
            .iter()
            .filter(|e| e.path().join("expected.json").is_file())
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
    }
    let device = Device::flex();
    let spec = |name: &str| -> Result<Spec, Box<dyn Error>> {
        Ok(scaled(Spec::from_config(&ConfigFile::read(&folders.join(name))?)?, layers))
    };
    let ids = |row: usize| (0..LENGTH).map(|i| ((row * 7919 + i * 31 + 5) % VOCAB) as u32).collect();
    let tokens = Tokens::from_sequences(&(0..rows).map(ids).collect::<Vec<Vec<u32>>>());
    for lora in [true, false] {
        let llama = Case::new(&spec("llama")?, lora, &device)?;
        let mut seen: Vec<Spec> = Vec::new();
        for name in &names {
            let spec = spec(name)?;
            // Folders that differ in what the shape here overrides are one.
            if seen.contains(&spec) {
                continue;
            }
            let case = Case::new(&spec, lora, &device)?;
            seen.push(spec);
            case.step(&tokens)?;
            let mut before = llama.step(&tokens)?;
            let (mut ratios, mut cpu_ratios, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rounds {
                let own = case.step(&tokens)?;
                let after = llama.step(&tokens)?;
                let more = case.operations / llama.operations;
                ratios.push(more * f64::midpoint(before.clock, after.clock) / own.clock);
                cpu_ratios.push(more * f64::midpoint(before.ran, after.ran) / own.ran);
                seconds.push(own.clock);
                before = after;
            }
            let per_second = (rows * LENGTH) as f64 / median(seconds);
            let step = if lora { "lora" } else { "full" };
            println!(
                "{{\"folder\": \"{name}\", \"step\": \"{step}\", \"layers\": {layers}, \"tokens_per_s\": {per_second:.0}, \
                 \"ratio\": {:.3}, \"cpu_ratio\": {:.3}}}",
                median(ratios),
                median(cpu_ratios),
            );
        }
    }
    Ok(())
}
