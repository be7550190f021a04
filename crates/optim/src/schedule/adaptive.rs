//! `Adaptive`: a rate that follows a metric, as `ReduceLROnPlateau` of PyTorch and `GreedyLR` of Transformers move it.

use std::collections::VecDeque;

use burnish_core::OptionFaults;
use serde::{Deserialize, Serialize};

use super::ScheduleKind;
use crate::Arguments;

/// What an adaptive schedule remembers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScheduleState {
    rate: f64,
    /// `None` before the first observation and after a reset.
    best: Option<f64>,
    bad: u64,
    good: u64,
    cooling: u64,
    warming: u64,
    /// Times at the lowest rate before [`ScheduleKind::Greedy`] starts again.
    until_reset: i64,
    /// Observations in the window that are averaged, and their running sum.
    window: VecDeque<f64>,
    sum: f64,
}

/// The rules of one, and where it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Adaptive {
    greedy: bool,
    peak: f64,
    larger: bool,
    factor: f64,
    patience: u64,
    threshold: f64,
    relative: bool,
    cooldown: u64,
    warmup: u64,
    lowest: f64,
    highest: f64,
    eps: f64,
    /// Observations that are averaged.
    window: Option<usize>,
    reset_after: i64,
    state: ScheduleState,
}

impl Adaptive {
    /// With `lr_scheduler_kwargs`, and what is wrong with those.
    pub(super) fn read(kind: ScheduleKind, arguments: &Arguments, peak: f64) -> (Self, OptionFaults) {
        let greedy = kind == ScheduleKind::Greedy;
        let mut reader = arguments.reader("lr_scheduler_kwargs", format!("lr_scheduler_type: {kind}"));
        let larger = reader.word("mode", &["min", "max"], 0) == 1;
        let factor = reader.share("factor", if greedy { 0.95 } else { 0.1 });
        let patience = reader.count("patience").unwrap_or(10);
        let threshold = reader.at_least_0("threshold", if greedy { 1e-6 } else { 1e-4 });
        let relative = reader.word("threshold_mode", &["rel", "abs"], usize::from(greedy)) == 0;
        let cooldown = reader.count("cooldown").unwrap_or(0);
        let lowest = reader.at_least_0("min_lr", if greedy { 1e-3 } else { 0.0 });
        let eps = reader.at_least_0("eps", 1e-8);
        let (mut warmup, mut highest, mut window, mut reset_after) = (0, f64::INFINITY, None, 0);
        if greedy {
            warmup = reader.count("warmup").unwrap_or(0);
            highest = reader.at_least_0("max_lr", 1.0);
            // It would print; the rate is in the log.
            reader.flag("verbose", false);
            let smooth = reader.flag("smooth", false);
            let size = reader.count("window_size").unwrap_or(50);
            reader.rule(size >= 1, "`window_size` is at least 1", "raise it");
            window = smooth.then_some(size.max(1) as usize);
            reset_after = reader.count("reset_start").unwrap_or(500) as i64;
        }
        let state = ScheduleState { rate: peak, until_reset: reset_after, ..ScheduleState::default() };
        let adaptive = Self {
            greedy,
            peak,
            larger,
            factor,
            patience,
            threshold,
            relative,
            cooldown,
            warmup,
            lowest,
            highest,
            eps,
            window,
            reset_after,
            state,
        };
        (adaptive, reader.finish())
    }

    pub(super) fn rate(&self) -> f64 {
        self.state.rate
    }

    pub(super) fn state(&self) -> &ScheduleState {
        &self.state
    }

    pub(super) fn restore(&mut self, state: ScheduleState) {
        self.state = state;
    }

    fn improves(&self, metric: f64) -> bool {
        let worst = if self.larger { f64::NEG_INFINITY } else { f64::INFINITY };
        let best = self.state.best.unwrap_or(worst);
        match (self.larger, self.relative) {
            (false, true) => metric < best * (1.0 - self.threshold),
            (false, false) => metric < best - self.threshold,
            (true, true) => metric > best * (1.0 + self.threshold),
            (true, false) => metric > best + self.threshold,
        }
    }

    pub(super) fn observe(&mut self, metric: f64) {
        if self.greedy { self.observe_greedily(metric) } else { self.observe_plateau(metric) }
    }

    fn observe_plateau(&mut self, metric: f64) {
        if self.improves(metric) {
            self.state.best = Some(metric);
            self.state.bad = 0;
        } else {
            self.state.bad += 1;
        }
        if self.state.cooling > 0 {
            self.state.cooling -= 1;
            self.state.bad = 0;
        }
        if self.state.bad > self.patience {
            self.lower();
            self.state.cooling = self.cooldown;
            self.state.bad = 0;
        }
    }

    fn observe_greedily(&mut self, metric: f64) {
        let metric = match self.window {
            Some(size) => self.averaged(metric, size),
            None => metric,
        };
        let waits = if self.state.cooling > 0 { &mut self.state.cooling } else { &mut self.state.warming };
        if *waits > 0 {
            *waits -= 1;
            (self.state.bad, self.state.good) = (0, 0);
            return;
        }
        if self.improves(metric) {
            self.state.best = Some(metric);
            self.state.bad = 0;
            self.state.good += 1;
        } else {
            self.state.bad += 1;
            self.state.good = 0;
        }
        if self.state.good > self.patience {
            let raised = (self.state.rate / self.factor).min(self.highest);
            if raised - self.state.rate > self.eps {
                self.state.rate = raised;
            }
            self.state.until_reset = self.reset_after;
            self.state.warming = self.warmup;
            self.state.good = 0;
        } else if self.state.bad > self.patience {
            self.lower();
            // A reset leaves these at 0, and they are set behind it all the same.
            self.state.cooling = self.cooldown;
            self.state.bad = 0;
        }
    }

    fn averaged(&mut self, metric: f64, size: usize) -> f64 {
        self.state.window.push_back(metric);
        self.state.sum += metric;
        if self.state.window.len() > size
            && let Some(oldest) = self.state.window.pop_front()
        {
            self.state.sum -= oldest;
        }
        self.state.sum / self.state.window.len() as f64
    }

    fn lower(&mut self) {
        let lowered = (self.state.rate * self.factor).max(self.lowest);
        if self.state.rate - lowered > self.eps {
            self.state.rate = lowered;
        }
        if self.greedy && self.state.rate <= self.lowest {
            self.state.until_reset -= 1;
            if self.state.until_reset <= 0 {
                self.state = ScheduleState {
                    rate: self.peak,
                    until_reset: self.reset_after,
                    ..ScheduleState::default()
                };
            }
        }
    }
}
