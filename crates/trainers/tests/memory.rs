//! A run's heap against its plan. Counts what is allocated, so it is a process of its own and runs one case at a time.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::Device;
use burnish_config::{Command, PlanOptions, SftOptions};
use burnish_trainers::{Ranks, RunPlan, Sft, Stop, Trainer};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout, passed on.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
            PEAK.fetch_max(live, Ordering::Relaxed);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's block and layout, passed on.
        unsafe { System.dealloc(block, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The heap's height over what was there before the ranks began, and the plan's sum over the ranks.
fn measure(root: &Path, model: &Path, ranks: usize, more: &[&str]) -> (f64, f64, String) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data/text.jsonl");
    let out = root.join("out");
    let mut words: Vec<String> = [
        "--model_name_or_path",
        &model.display().to_string(),
        "--dataset_name",
        &data.display().to_string(),
        "--output_dir",
        &out.display().to_string(),
        "--overwrite_output_dir",
        "--random_weights",
        "--packing",
        "--packing_strategy=wrapped",
        "--max_length=128",
        "--per_device_train_batch_size=4",
        "--max_steps=3",
        "--save_strategy=no",
        "--disable_tqdm=true",
        "--report_to=none",
        "--stage3_param_persistence_threshold=2000",
        "--reduce_bucket_size=200000",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend(more.iter().map(|w| (*w).to_owned()));
    words.push(format!("--nproc={ranks}"));
    let plan = RunPlan::new(&PlanOptions::parse(words.clone()).unwrap().run().unwrap().options).unwrap();
    let planned: u64 = plan.memory.iter().map(|m| m.peak() + plan.activations).sum();
    let options = SftOptions::parse(words).unwrap().run().unwrap().options;
    let run = Sft::prepare(options, &Ranks::threads(ranks), &Device::flex(), &mut |_| ()).unwrap();
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    run.run(&Ranks::threads(ranks), &Stop::never()).unwrap();
    let peak = PEAK.load(Ordering::Relaxed) - before;
    (peak as f64, planned as f64, plan.to_string())
}

fn main() {
    let root = tempfile::tempdir().unwrap();
    let model = root.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
    for entry in std::fs::read_dir(fixture).unwrap().map(|e| e.unwrap()) {
        std::fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    let path = model.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value) in [
        ("hidden_size", 256),
        ("intermediate_size", 704),
        ("num_hidden_layers", 6),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 32),
    ] {
        config[key] = value.into();
    }
    std::fs::write(&path, config.to_string()).unwrap();
    let mut wrong = 0;
    // A plan says "at most": it adds up heights that need not come at the same moment, within a rank (activations fall
    // while gradients rise, most without recomputation) and between ranks. One rank with recomputation has them together.
    for (ranks, least, more) in [
        (1, 0.95, vec![]),
        (1, 0.8, vec!["--no_gradient_checkpointing"]),
        (2, 0.75, vec!["--zero_stage=0"]),
        (2, 0.75, vec!["--zero_stage=1"]),
        (2, 0.75, vec!["--zero_stage=2"]),
        (2, 0.7, vec!["--zero_stage=3"]),
        (2, 0.7, vec!["--zero_stage=3", "--dtype=bfloat16"]),
        (2, 0.7, vec!["--zero_stage=2", "--no_gradient_checkpointing"]),
        (4, 0.6, vec!["--zero_stage=3"]),
    ] {
        let (peak, planned, table) = measure(root.path(), &model, ranks, &more);
        let ratio = peak / planned;
        println!(
            "{ranks} ranks {more:?}: peak {:.2} MB, planned {:.2} MB, {ratio:.3}",
            peak / 1e6,
            planned / 1e6
        );
        if !(least..=1.05).contains(&ratio) {
            println!("{table}");
            wrong += 1;
        }
    }
    assert_eq!(wrong, 0, "{wrong} runs do not keep to their plans");
}
