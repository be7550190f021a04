//! Gradients over a frozen embedding: equal to those under a trained one, and blocks below all that trains are not
//! recomputed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burnish_core::{Dtype, Registry};
use burnish_models::{ForwardContext, LocalParams, Mode, ModelFolder, ModelPlan, Tokens, Tuning};
use burnish_ops::{AnyTensor, Parameters};
use burnish_peft::LoraConfig;

use crate::recordings::{device, fixtures};

const MODES: [Mode; 2] =
    [Mode::Train { recompute: false, dropout: None }, Mode::Train { recompute: true, dropout: None }];

/// Parameters that count how often each is read.
struct Counted {
    of: Arc<LocalParams>,
    reads: Vec<AtomicUsize>,
    gathers: bool,
}

impl Parameters for Counted {
    fn registry(&self) -> &Registry {
        self.of.registry()
    }

    fn read(&self, index: usize) -> AnyTensor {
        self.reads[index].fetch_add(1, Ordering::Relaxed);
        self.of.read(index)
    }

    fn gathers(&self, _: usize) -> bool {
        self.gathers
    }

    fn accumulate(&self, index: usize, gradient: AnyTensor) {
        self.of.accumulate(index, gradient);
    }
}

/// The adapter's gradients by name, and how often each parameter was read.
type Found = (Vec<(String, Vec<f32>)>, Vec<(String, usize)>);

/// A pass over `base` with an adapter of these keys, whose `B` is not zero.
fn trained(base: &str, keys: &str, mode: Mode, gathers: bool) -> Found {
    let json =
        format!(r#"{{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "init_lora_weights": false, {keys}}}"#);
    let config = LoraConfig::from_json(&json).unwrap();
    let folder = ModelFolder::open(fixtures().join(base)).unwrap();
    let planned = ModelPlan::new(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 5).unwrap();
    let (model, resident) = planned.resident(&device()).unwrap();
    let reads = resident.registry().iter().map(|_| AtomicUsize::new(0)).collect();
    let counted = Arc::new(Counted { of: resident.clone(), reads, gathers });
    let pass = ForwardContext::new(counted.clone(), mode, true);
    let tokens = Tokens::from_sequences(&[vec![3, 1, 4, 1, 5], vec![9, 2]]);
    let hidden = model.decoder.hidden(&tokens, &pass).unwrap().rank::<2>().unwrap();
    let loss = AnyTensor::new((hidden.clone() * hidden).sum());
    pass.backward(&loss).unwrap();
    let names = || resident.registry().iter().map(|p| p.name.clone());
    let gradients = names()
        .enumerate()
        .filter_map(|(index, name)| Some((name, resident.take_gradient(index)?.to_f32())))
        .filter(|(name, _)| name.contains("lora_"))
        .collect();
    let reads = counted.reads.iter().map(|count| count.load(Ordering::Relaxed));
    (gradients, names().zip(reads).collect())
}

#[test]
fn gradients_are_those_under_a_trained_embedding() {
    for base in ["llama", "gemma3", "qwen3", "gpt2", "cohere", "mixtral"] {
        for targets in [r#""all-linear""#, r#"".*mlp.*|.*o_proj|.*w2""#] {
            if targets != r#""all-linear""# && !["llama", "gemma3", "qwen3", "cohere"].contains(&base) {
                continue;
            }
            let embedding = if base == "gpt2" { "wte" } else { "embed_tokens" };
            for mode in MODES {
                let keys = format!(r#""target_modules": {targets}"#);
                let (alone, _) = trained(base, &keys, mode, false);
                let (beside, _) =
                    trained(base, &format!(r#"{keys}, "modules_to_save": ["{embedding}"]"#), mode, false);
                assert!(
                    !alone.is_empty() && alone.iter().all(|(_, g)| g.iter().any(|x| *x != 0.0)),
                    "{base}"
                );
                assert_eq!(alone, beside, "{base}, {targets}, {mode:?}");
            }
        }
    }
}

#[test]
fn blocks_below_all_that_is_trained_run_once() {
    for base in ["llama", "qwen3"] {
        let upper = r#""target_modules": ["q_proj", "o_proj", "up_proj"], "layers_to_transform": [1]"#;
        let (tape, _) = trained(base, upper, MODES[0], false);
        let (again, reads) = trained(base, upper, MODES[1], false);
        assert_eq!(tape, again, "{base}");
        assert!(again.iter().all(|(name, _)| name.contains("layers.1.")), "{base}");
        let of = |block: &str| -> Vec<usize> {
            let name = |name: &str| name.contains(block) && !name.contains("lora_");
            reads.iter().filter(|(n, _)| name(n)).map(|(_, count)| *count).collect()
        };
        assert!(!of("layers.0.").is_empty() && of("layers.0.").iter().all(|&count| count == 1), "{reads:?}");
        assert!(of("layers.1.").iter().all(|&count| count == 2), "{reads:?}");
        // Where reading communicates every block is read as planned.
        let (gathered, reads) = trained(base, upper, MODES[1], true);
        assert_eq!(tape, gathered, "{base}");
        let blocks = reads.iter().filter(|(name, _)| name.contains("layers."));
        assert!(blocks.clone().all(|(_, count)| *count == 2), "{reads:?}");
        // All blocks train: each is computed again.
        let (_, reads) = trained(base, r#""target_modules": "all-linear""#, MODES[1], false);
        let blocks = reads.iter().filter(|(name, _)| name.contains("layers."));
        assert!(blocks.clone().count() > 0 && blocks.clone().all(|(_, count)| *count == 2), "{reads:?}");
    }
}
