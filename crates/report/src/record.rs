//! The metrics of one logging step: a line of `metrics.jsonl`.

use serde_json::{Map, Number, Value};

/// One number: a count is written without a decimal point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// A whole number, such as tokens or bytes.
    Count(u64),
    /// Any other number. Not-a-number and infinities are written as `null`, since JSON has no word for them.
    Real(f64),
}

impl Figure {
    /// The number as a float.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts beyond 2^53 do not occur in metrics")]
    pub fn value(self) -> f64 {
        match self {
            Self::Count(count) => count as f64,
            Self::Real(real) => real,
        }
    }
}

impl From<f64> for Figure {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<f32> for Figure {
    fn from(value: f32) -> Self {
        Self::Real(f64::from(value))
    }
}

impl From<u64> for Figure {
    fn from(value: u64) -> Self {
        Self::Count(value)
    }
}

impl From<usize> for Figure {
    fn from(value: usize) -> Self {
        Self::Count(value as u64)
    }
}

/// The numbers of one logging step, in the order in which they were added.
///
/// Names are TRL's where TRL has one: `loss`, `grad_norm`, `learning_rate`, `num_tokens`, `mean_token_accuracy`,
/// `entropy`, and the same with `eval_` in front. burnish adds `step_time` (seconds per optimizer step),
/// `tokens_per_second`, `peak_memory_bytes` (of the process) and on a GPU `device_memory_bytes` (taken from the driver)
/// with `device_memory_in_use_bytes` (in tensors).
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Optimizer steps done.
    pub step: u64,
    /// Passes over the data done.
    pub epoch: f64,
    figures: Vec<(String, Figure)>,
}

impl Record {
    /// A record without figures.
    #[must_use]
    pub fn new(step: u64, epoch: f64) -> Self {
        Self { step, epoch, figures: Vec::new() }
    }

    /// Adds a figure, or replaces the one of this name.
    pub fn set(&mut self, name: &str, figure: impl Into<Figure>) {
        let figure = figure.into();
        match self.figures.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = figure,
            None => self.figures.push((name.to_owned(), figure)),
        }
    }

    /// The record with one more figure.
    #[must_use]
    pub fn with(mut self, name: &str, figure: impl Into<Figure>) -> Self {
        self.set(name, figure);
        self
    }

    /// The figure of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|(known, _)| known == name).map(|(_, figure)| figure.value())
    }

    /// All figures, in order.
    pub fn figures(&self) -> impl Iterator<Item = (&str, Figure)> {
        self.figures.iter().map(|(name, figure)| (name.as_str(), *figure))
    }

    /// The values of all figures, and the epoch.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, f64)> {
        let epoch = std::iter::once(("epoch", self.epoch));
        self.figures().map(|(name, figure)| (name, figure.value())).chain(epoch)
    }

    /// The record as one line of JSON, without a line break.
    #[must_use]
    pub fn to_json(&self) -> String {
        let real = |value: f64| Number::from_f64(value).map_or(Value::Null, Value::Number);
        let mut object = Map::new();
        object.insert("step".into(), self.step.into());
        object.insert("epoch".into(), real(self.epoch));
        for (name, figure) in self.figures() {
            let value = match figure {
                Figure::Count(count) => count.into(),
                Figure::Real(value) => real(value),
            };
            object.insert(name.to_owned(), value);
        }
        Value::Object(object).to_string()
    }

    /// Reads a line. `null` becomes not-a-number; values that are not numbers are left out.
    #[must_use]
    pub fn from_json(line: &str) -> Option<Self> {
        let Value::Object(object) = serde_json::from_str(line).ok()? else { return None };
        let epoch = object.get("epoch").and_then(Value::as_f64).unwrap_or(f64::NAN);
        let mut record = Self::new(object.get("step")?.as_u64()?, epoch);
        for (name, value) in object.iter().filter(|(name, _)| *name != "step" && *name != "epoch") {
            match value {
                Value::Null => record.set(name, f64::NAN),
                Value::Number(number) => match (number.as_u64(), number.as_f64()) {
                    (Some(count), _) => record.set(name, count),
                    (None, Some(real)) => record.set(name, real),
                    (None, None) => {}
                },
                _ => {}
            }
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let record = Record::new(7, 0.25)
            .with("loss", 1.5f32)
            .with("num_tokens", u64::from(u32::MAX))
            .with("lr", 2e-5);
        assert_eq!(Record::from_json(&record.to_json()), Some(record));
    }

    #[test]
    fn numbers_that_are_none_become_null() {
        let record = Record::new(1, 0.0).with("loss", f64::NAN).with("grad_norm", f64::INFINITY);
        assert_eq!(record.to_json(), r#"{"step":1,"epoch":0.0,"loss":null,"grad_norm":null}"#);
        let read = Record::from_json(&record.to_json()).and_then(|read| read.get("loss"));
        assert!(read.is_some_and(f64::is_nan));
    }

    #[test]
    fn lines_that_are_no_records() {
        for line in ["", "{", "[]", "{\"loss\":1}", "{\"step\":-1}", "{\"step\":1.5}"] {
            assert_eq!(Record::from_json(line), None, "{line}");
        }
    }
}
