//! `MetricWindow`: sums of metrics between two log lines.

use std::time::Instant;

use burnish_comm::{Bucket, CommError, Group};
use burnish_losses::{MetricSums, Metrics};
use burnish_report::Record;
use serde_json::{Map, Value, json};

/// Sums since the last log line; part of a checkpoint, so that a resumed run logs the same lines.
#[derive(Debug)]
pub(crate) struct Window {
    loss: f64,
    steps: u64,
    tokens: u64,
    /// Elements of weights and gradients that travelled.
    moved: u64,
    tally: MetricSums,
    since: Instant,
}

/// The scalars of a step that are summed over ranks, in one call.
#[derive(Debug)]
pub(crate) struct Sums {
    /// This rank's part of the loss.
    pub(crate) loss: f64,
    /// Asked to stop; over ranks: whether any was.
    pub(crate) stop: bool,
    /// A save is written; over ranks: whether all have.
    pub(crate) written: bool,
    pub(crate) tally: MetricSums,
}

impl Sums {
    /// How many travel with these metrics.
    pub(crate) fn scalars(metrics: &Metrics) -> usize {
        3 + 2 * (1 + metrics.sums.len())
    }

    /// The sums over ranks; of the tally `loss` and `metrics`.
    pub(crate) fn over(&self, group: &Group, metrics: &Metrics) -> Result<Self, CommError> {
        let flag = |on: bool| f64::from(u8::from(on));
        let mut values = vec![self.loss, flag(self.stop), flag(self.written)];
        let (numerator, denominator) = self.tally.sums("loss").unwrap_or((0.0, 0.0));
        values.extend([numerator, denominator]);
        values.extend(metrics.sums_of(&self.tally));
        let sums = group.sum_f64(&values, "metrics")?;
        let mut tally = metrics.tally(&sums[5..], &least(group, metrics.extremes_of(&self.tally))?);
        if sums[4] != 0.0 {
            tally.add("loss", sums[3], sums[4]);
        }
        let (stop, written) = (sums[1] > 0.0, sums[2] == group.size() as f64);
        Ok(Self { loss: sums[0], stop, written, tally })
    }
}

/// The least of each value over the ranks.
fn least(group: &Group, own: Vec<f64>) -> Result<Vec<f64>, CommError> {
    if own.is_empty() || group.size() == 1 {
        return Ok(own);
    }
    let counts = vec![own.len(); group.size()];
    let words: Vec<u64> = own.iter().map(|value| value.to_bits()).collect();
    let all = group.all_gather_v(Bucket::new(words), &counts, "extremes of metrics").wait()?;
    let of = |rank: usize, at: usize| f64::from_bits(all.of(rank)[at]);
    Ok((0..own.len())
        .map(|at| (0..group.size()).map(|rank| of(rank, at)).fold(f64::INFINITY, f64::min))
        .collect())
}

impl Window {
    pub(crate) fn new() -> Self {
        Self { loss: 0.0, steps: 0, tokens: 0, moved: 0, tally: MetricSums::new(), since: Instant::now() }
    }

    pub(crate) fn add(&mut self, loss: f64, tokens: u64, tally: &MetricSums, moved: u64) {
        self.moved += moved;
        self.loss += loss;
        self.steps += 1;
        self.tokens += tokens;
        self.tally.merge(tally);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps == 0
    }

    /// Elements of weights and gradients that a step moved on average.
    pub(crate) fn moved(&self) -> f64 {
        self.moved as f64 / self.steps.max(1) as f64
    }

    /// Tokens per second so far.
    pub(crate) fn rate(&self) -> f64 {
        self.tokens as f64 / self.since.elapsed().as_secs_f64().max(1e-9)
    }

    /// Fills a record and starts over. The loss is the mean of the steps' losses, as Transformers logs it; metrics are
    /// over all that was counted (entropy and accuracy over target tokens), and left out where nothing was.
    pub(crate) fn close(&mut self, mut record: Record) -> Record {
        let seconds = self.since.elapsed().as_secs_f64();
        record.set("loss", self.loss / self.steps.max(1) as f64);
        for (name, mean) in self.tally.means().filter(|(name, _)| *name != "loss") {
            record.set(name, mean);
        }
        record.set("step_time", seconds / self.steps.max(1) as f64);
        record.set("tokens_per_second", self.tokens as f64 / seconds.max(1e-9));
        *self = Self::new();
        record
    }

    pub(crate) fn to_json(&self) -> Value {
        let sums: Map<String, Value> =
            self.tally.all_sums().map(|(name, (n, d))| (name.to_owned(), json!([n, d]))).collect();
        json!({"loss": self.loss, "steps": self.steps, "tokens": self.tokens, "moved": self.moved, "sums": sums})
    }

    pub(crate) fn from_json(value: &Value) -> Self {
        let mut window = Self::new();
        window.loss = value["loss"].as_f64().unwrap_or(0.0);
        window.steps = value["steps"].as_u64().unwrap_or(0);
        window.tokens = value["tokens"].as_u64().unwrap_or(0);
        window.moved = value["moved"].as_u64().unwrap_or(0);
        for (name, pair) in value["sums"].as_object().into_iter().flatten() {
            let part = |i: usize| pair[i].as_f64().unwrap_or(0.0);
            window.tally.add(name, part(0), part(1));
        }
        window
    }
}
