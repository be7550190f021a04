//! Speed and memory of a device: training of model shapes, decoding, the head alone, attention alone.
//!
//! Each row says what bounds it. Shares of the peak are of dense bf16 products; the work of a token is
//! `6 (N - N_embed) + 12 L h d T` (PaLM, arXiv:2204.02311, appendix B, as torchtitan counts it), of frozen weights a third
//! less, as no gradient of theirs is made.

mod attention;
mod decode;
mod head;
mod shape;
mod train;

use std::fmt;
use std::time::Instant;

use anyhow::{Context as _, Result};
use burn::tensor::Device;
use burnish_device::Gpu;
use serde_json::json;

use crate::Context;

pub use shape::Shape;
use shape::Written;

/// A line of the benchmarks' table.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What was run.
    pub name: String,
    /// Seconds of one repetition: the median.
    pub seconds: f64,
    /// Tokens of one repetition.
    pub tokens: f64,
    /// Floating-point operations of one repetition.
    pub work: f64,
    /// Share of the device's bf16 peak, where that is known.
    pub share: Option<f64>,
    /// The most bytes of the device's memory that were taken.
    pub memory: Option<u64>,
    /// Tokens of a second that the plan predicts for the device, where that is known.
    pub predicted: Option<f64>,
    /// What bounds it.
    pub bound: String,
}

impl Measured {
    fn new(
        context: &Context,
        name: impl Into<String>,
        [seconds, tokens, work]: [f64; 3],
        bound: &str,
    ) -> Self {
        let share = gpu(context).map(|gpu| work / seconds / gpu.figures().bf16);
        let memory = burnish_device::memory(&context.device).map(|held| held.reserved);
        Self {
            name: name.into(),
            seconds,
            tokens,
            work,
            share,
            memory,
            predicted: None,
            bound: bound.to_owned(),
        }
    }

    /// As a line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        json!({
            "program": "burnish",
            "bench": self.name,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens / self.seconds,
            "tflops": self.work / self.seconds / 1e12,
            "share_of_bf16_peak": self.share,
            "device_memory_bytes": self.memory,
            "predicted_tokens_per_second": self.predicted,
            "bound": self.bound,
        })
        .to_string()
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.share.map_or_else(|| "      ".to_owned(), |share| format!("{:5.1}%", 100.0 * share));
        let memory = self.memory.map_or_else(String::new, |bytes| format!("{:.2} GB", bytes as f64 / 1e9));
        let planned = self.predicted.map_or_else(String::new, |rate| format!("(plan {rate:.0})"));
        write!(
            f,
            "{:44} {:>10.2} ms {:>10.0} tok/s {planned} {share} {memory:>10}  {}",
            self.name,
            1e3 * self.seconds,
            self.tokens / self.seconds,
            self.bound
        )
    }
}

/// The GPU, where it is one that is known.
#[cfg(feature = "cuda")]
fn gpu(context: &Context) -> Option<Gpu> {
    if context.kind != burnish_device::DeviceKind::Cuda {
        return None;
    }
    let gpus = burnish_device::cuda::gpus().ok()?;
    Gpu::of_driver(&gpus.first()?.name)
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: &Context) -> Option<Gpu> {
    None
}

/// The median time of `repeats` calls after one that compiles and tunes; `work` ends with the device's work done.
fn median(device: &Device, repeats: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut timed = || -> Result<f64> {
        let begun = Instant::now();
        work()?;
        device.sync().map_err(|error| anyhow::anyhow!("the device failed: {error}"))?;
        Ok(begun.elapsed().as_secs_f64())
    };
    timed().context("warming up")?;
    let mut all = (0..repeats.max(1)).map(|_| timed()).collect::<Result<Vec<_>>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}

type Bench = (String, Box<dyn Fn(&Context, &mut Written) -> Result<Measured>>);

/// All of them.
fn benches(context: &Context) -> Vec<Bench> {
    let mut all = head::benches(context.quick);
    all.extend(attention::benches(context));
    all.extend(decode::benches(context.quick));
    all.extend(train::benches(context.quick));
    all
}

/// Their names.
#[must_use]
pub fn names(context: &Context) -> Vec<String> {
    benches(context).into_iter().map(|(name, _)| name).collect()
}

/// Runs the benchmarks whose name holds `only`, and hands each line to `say`; how many ran. One that fails is said and
/// does not stop the others. Models have `layers` blocks where that is said; operations are counted of all.
///
/// # Errors
/// If a line cannot be written.
pub fn run(
    context: &Context,
    only: Option<&str>,
    layers: Option<usize>,
    say: &mut dyn FnMut(&Measured) -> std::io::Result<()>,
) -> Result<usize> {
    let (mut ran, mut models) = (0, Written { layers, last: None });
    for (name, bench) in
        benches(context).into_iter().filter(|(name, _)| only.is_none_or(|part| name.contains(part)))
    {
        burnish_device::release(&context.device);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench(context, &mut models))) {
            Ok(Ok(measured)) => say(&measured).context("cannot write a row")?,
            Ok(Err(error)) => println!("{name:44} FAILED: {error:#}"),
            Err(_) => println!("{name:44} FAILED: panicked"),
        }
        ran += 1;
    }
    Ok(ran)
}
