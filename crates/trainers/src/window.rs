//! What accumulates between two log lines.

use std::time::Instant;

use burnish_comm::{CommError, Group};
use burnish_losses::Tally;
use burnish_report::Record;
use serde_json::{Value, json};

/// Sums since the last log line; part of a checkpoint, so that a resumed run logs the same lines.
#[derive(Debug)]
pub(crate) struct Window {
    loss: f64,
    steps: u64,
    tokens: u64,
    /// Elements of weights and gradients that travelled.
    moved: u64,
    tally: Tally,
    since: Instant,
}

const SUMS: [&str; 2] = ["entropy", "mean_token_accuracy"];
/// What travels between ranks once a step, or once an evaluation.
const TRAVELS: [&str; 3] = ["loss", SUMS[0], SUMS[1]];

/// The scalars of a step that are summed over ranks, in one call.
#[derive(Debug)]
pub(crate) struct Sums {
    /// This rank's part of the loss.
    pub(crate) loss: f64,
    /// Asked to stop; over ranks: whether any was.
    pub(crate) stop: bool,
    /// A save is written; over ranks: whether all have.
    pub(crate) written: bool,
    pub(crate) tally: Tally,
}

impl Sums {
    /// How many travel.
    pub(crate) const SCALARS: usize = 3 + 2 * TRAVELS.len();

    pub(crate) fn over(&self, group: &Group) -> Result<Self, CommError> {
        let flag = |on: bool| f64::from(u8::from(on));
        let mut values = vec![self.loss, flag(self.stop), flag(self.written)];
        for name in TRAVELS {
            let (numerator, denominator) = self.tally.sums(name).unwrap_or((0.0, 0.0));
            values.extend([numerator, denominator]);
        }
        let sums = group.sum_f64(&values, "metrics")?;
        let mut tally = Tally::new();
        for (name, pair) in TRAVELS.iter().zip(sums[3..].chunks(2)) {
            tally.add(name, pair[0], pair[1]);
        }
        let (stop, written) = (sums[1] > 0.0, sums[2] == group.size() as f64);
        Ok(Self { loss: sums[0], stop, written, tally })
    }
}

impl Window {
    pub(crate) fn new() -> Self {
        Self { loss: 0.0, steps: 0, tokens: 0, moved: 0, tally: Tally::new(), since: Instant::now() }
    }

    pub(crate) fn add(&mut self, loss: f64, tokens: u64, tally: &Tally, moved: u64) {
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

    /// Fills a record and starts over. The loss is the mean of the steps' losses, as Transformers logs it; entropy
    /// and accuracy are over all target tokens.
    pub(crate) fn close(&mut self, mut record: Record) -> Record {
        let seconds = self.since.elapsed().as_secs_f64();
        record.set("loss", self.loss / self.steps.max(1) as f64);
        for name in SUMS {
            record.set(name, self.tally.mean(name).unwrap_or(0.0));
        }
        record.set("step_time", seconds / self.steps.max(1) as f64);
        record.set("tokens_per_second", self.tokens as f64 / seconds.max(1e-9));
        *self = Self::new();
        record
    }

    pub(crate) fn to_json(&self) -> Value {
        let sums: Vec<Value> = SUMS
            .iter()
            .map(|n| self.tally.sums(n).map_or(json!([0.0, 0.0]), |(a, b)| json!([a, b])))
            .collect();
        json!({"loss": self.loss, "steps": self.steps, "tokens": self.tokens, "moved": self.moved, "sums": sums})
    }

    pub(crate) fn from_json(value: &Value) -> Self {
        let mut window = Self::new();
        window.loss = value["loss"].as_f64().unwrap_or(0.0);
        window.steps = value["steps"].as_u64().unwrap_or(0);
        window.tokens = value["tokens"].as_u64().unwrap_or(0);
        window.moved = value["moved"].as_u64().unwrap_or(0);
        for (i, name) in SUMS.iter().enumerate() {
            let part = |j: usize| value["sums"][i][j].as_f64().unwrap_or(0.0);
            window.tally.add(name, part(0), part(1));
        }
        window
    }
}
