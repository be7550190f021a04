//! Metrics: sums over micro-batches, ranks and steps until they are logged.

pub(crate) mod metric_window;
