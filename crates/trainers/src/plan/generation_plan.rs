//! `GenerationPlan`: what `generate` holds on each rank, and on a GPU by its name how long a batch takes.

use std::fmt;

use burnish_config::GenerateOptions;
use burnish_core::{Dtype, Parameter};
use burnish_device::DeviceKind;
use burnish_models::{BlockSizes, DecodingSize, GenerationConfig, ModelFolder, ModelPlan, Texts, Tuning};
use burnish_peft::AdapterFolder;
use burnish_report::bytes;
use serde_json::{Value, json};

use crate::TrainError;
use crate::plan::device_overhead::{DeviceOverhead, largest_widened};
use crate::plan::roofline::{Decoding, Lines, Passes, Roofline};
use crate::ranks::expert_sharding;

/// The plan of a batch of prompts that are continued together.
#[derive(Clone, Debug)]
pub struct GenerationPlan {
    /// Elements of all parameters.
    pub elements: usize,
    /// Prompts of a batch on each rank that has rows of its own.
    pub sequences: usize,
    /// Tokens of a prompt, and new ones: as many, where no prompt is known.
    pub tokens: (usize, usize),
    /// Bytes of weights on the rank with most.
    pub weights: u64,
    /// Bytes of keys and values of a batch.
    pub cache: u64,
    /// What a GPU's memory holds beside that, where the options name one.
    pub overhead: Option<DeviceOverhead>,
    /// The time of a batch, where the options name a GPU that is known.
    pub roofline: Option<Roofline>,
}

impl GenerationPlan {
    /// The plan of these options. Reads the model's configuration and the headers of its files.
    ///
    /// # Errors
    /// If the model or the adapter does not fit.
    pub fn new(options: &GenerateOptions) -> Result<Self, TrainError> {
        let model = &options.model;
        let folder = ModelFolder::open(&model.model_name_or_path)?;
        let adapter = model.adapter_name_or_path.as_ref().map(AdapterFolder::open).transpose()?;
        let folder = adapter.iter().fold(folder, ModelFolder::named_as_in);
        let tuning = adapter.as_ref().map_or(Tuning::None, Tuning::Adapter);
        let ranks = options.ranks.ranks();
        ranks.whole_groups(ranks.nproc).map_err(|(key, size)| TrainError::ModelParallelSize {
            key,
            size,
            world: ranks.nproc,
        })?;
        let mut planned = ModelPlan::new(&folder, &tuning, Dtype::F32, 0)?
            .computing(model.compute())
            .sharing_experts(expert_sharding(&ranks));
        if let Some(quantization) = options.quantization.quantization() {
            planned = planned.quantized(quantization, model.dtype.0.unwrap_or(Dtype::F32))?;
        }
        let parallel = planned.divided(ranks.tp_size)?;
        let local = parallel.local_registry(planned.registry(), 0);
        let held = |p: &Parameter| {
            let rows = p.shape.first().copied().unwrap_or(1);
            p.stored_bytes(rows, p.elements() / rows.max(1)) as u64
        };
        let own = || planned.registry().iter().zip(local.iter()).filter(|(p, _)| p.alias_of.is_none());
        let config = GenerationConfig::read(folder.path(), folder.config())?;
        let length = options.generation.max_new_tokens.or(config.max_new_tokens).unwrap_or(256);
        let sequences = match options.prompts.prompt.0 {
            Some(_) => 1,
            None => options.prompts.per_device_eval_batch_size,
        };
        let spec = folder.spec();
        // Keys and values are f32.
        let keys = |sizes: BlockSizes| sizes.kv_heads.div_ceil(ranks.tp_size) * sizes.head_dim;
        let keys: usize = (0..spec.layers.len()).map(|layer| keys(spec.sizes(layer))).sum();
        let positions = sequences * (planned.virtual_tokens() + 2 * length);
        let (weights, cache) = (own().map(|(_, p)| held(p)).sum(), (8 * positions * keys) as u64);
        let overhead = (model.device.kind() == Some(DeviceKind::Cuda)).then(|| {
            let widened = 2 * largest_widened(&local);
            DeviceOverhead::new(spec, sequences, sequences * length, ranks.tp_size, widened)
        });
        let mut plan = Self {
            elements: own().map(|(p, _)| p.elements()).sum(),
            sequences,
            tokens: (length, length),
            weights,
            cache,
            overhead,
            roofline: None,
        };
        plan.roofline = model.device.gpu().map(|gpu| {
            let texts = Texts { texts: sequences, tokens: length, before: 0, targets: sequences };
            let mut work = Passes::new(Lines::new(gpu, model.compute()), texts, spec.vocab);
            let own = &options.generation;
            let filtered = [own.top_p, own.min_p, own.repetition_penalty].iter().any(Option::is_some)
                || own.top_k.is_some();
            let of = Decoding { prompts: sequences, sequences, prompt: length, length, filtered };
            work.decode((&planned, &parallel), of, 1);
            let mut size = DecodingSize::default();
            size.add(sequences * length, sequences, sequences);
            (1..length).for_each(|_| size.add(sequences, sequences, 0));
            let moved = planned.forecast_decoding(&parallel, &size);
            let mut lines = work.finish();
            lines.collectives("activations, moved", moved.traffic(), ranks.tp_size);
            let groups = ranks.nproc / ranks.tp_size;
            Roofline {
                gpu,
                tokens: ("new tokens", (groups * sequences * length) as u64),
                ranks: ranks.nproc,
                lines: lines.finish(),
                memory: plan.at_most(),
            }
        });
        Ok(plan)
    }

    /// Bytes of a rank at most.
    fn at_most(&self) -> u64 {
        let held = self.weights + self.cache;
        held + self.overhead.map_or(0, |overhead| overhead.beside(held))
    }

    /// The plan as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "parameters": self.elements,
            "sequences": self.sequences,
            "prompt_tokens": self.tokens.0,
            "new_tokens": self.tokens.1,
            "weights": self.weights,
            "cache": self.cache,
            "at_most": self.at_most(),
            "roofline": self.roofline.as_ref().map(Roofline::to_json),
        })
    }
}

/// The table of `burnish plan generate`.
impl fmt::Display for GenerationPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prompt, length) = self.tokens;
        writeln!(
            f,
            "{} parameters; {} prompts of {prompt} tokens at once, each with {length} new ones\n",
            burnish_report::count(self.elements as u64),
            self.sequences
        )?;
        writeln!(f, "per rank                            most")?;
        let mut line = |name: &str, value: u64| writeln!(f, "{name:30} {:>10}", bytes(value));
        line("weights", self.weights)?;
        line("keys and values", self.cache)?;
        if let Some(overhead) = self.overhead {
            line("beside tensors, about", overhead.beside(self.weights + self.cache))?;
        }
        line("all together, at most", self.at_most())?;
        self.roofline.as_ref().map_or(Ok(()), |roofline| write!(f, "\n{roofline}"))
    }
}
