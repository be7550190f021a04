//! `DeepSpeed`: the schedules of DeepSpeed's configuration files, by the number of the step.
//!
//! DeepSpeed steps a schedule after the optimizer: the first step has the rate that the schedule starts from, and step `s`
//! that of iteration `s - 1`. What an argument that is not there says is what Transformers puts in for `auto`.

use std::f64::consts::PI;

use burnish_core::OptionFaults;

use super::ScheduleKind;
use crate::arguments::ArgumentReader;

/// One of the schedules, with its rates as shares of the peak.
///
/// # Source
/// DeepSpeed 0.19.8, `runtime/lr_schedules.py`; Transformers 5.23, `integrations/deepspeed.py`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum DeepSpeed {
    /// `WarmupLR` and `WarmupDecayLR`, from `low` to `high`.
    Warmup { warmup: Warmup, low: f64, high: f64, end: End },
    /// `WarmupCosineLR`, from `low` to 1 and down to `floor`.
    Cosine { warmup: Warmup, low: f64, floor: f64, total: Option<u64> },
    /// `OneCycle`.
    Cycle { low: f64, high: f64, rise: Half, fall: Half, decay: Option<(f64, f64)> },
    /// `LRRangeTest`.
    Range { low: f64, steps: u64, rate: f64, stairs: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Warmup {
    steps: Option<u64>,
    linear: bool,
}

/// What comes after warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Constant,
    /// Linear, to 0 at this step or the run's end.
    Linear(Option<u64>),
}

/// Half a cycle: its steps, and its stairs if it has any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Half {
    steps: f64,
    stairs: f64,
}

const AT_LEAST_0: &str = "a number that is at least 0";

impl DeepSpeed {
    /// The schedule of `kind`, which is DeepSpeed's, at a learning rate of `peak`.
    pub(super) fn read(
        kind: ScheduleKind,
        mut reader: ArgumentReader<'_>,
        peak: f64,
    ) -> (Self, OptionFaults) {
        let mut absolute = false;
        let mut rate = |reader: &mut ArgumentReader<'_>, name: &'static str| {
            let rate = reader.optional(name, |x| x >= 0.0 && x.is_finite(), AT_LEAST_0);
            absolute |= rate.is_some_and(|rate| rate > 0.0);
            rate.map(|rate| if peak > 0.0 { rate / peak } else { 0.0 })
        };
        let schedule = match kind {
            ScheduleKind::WarmupLr | ScheduleKind::WarmupDecayLr => {
                let low = rate(&mut reader, "warmup_min_lr").unwrap_or(0.0);
                let high = rate(&mut reader, "warmup_max_lr").unwrap_or(1.0);
                let end = if kind == ScheduleKind::WarmupLr {
                    End::Constant
                } else {
                    End::Linear(reader.count("total_num_steps"))
                };
                Self::Warmup { warmup: Warmup::read(&mut reader), low, high, end }
            }
            ScheduleKind::WarmupCosineLr => Self::Cosine {
                warmup: Warmup::read(&mut reader),
                low: reader.at_least_0("warmup_min_ratio", 0.0),
                floor: reader.at_least_0("cos_min_ratio", 0.0001),
                total: reader.count("total_num_steps"),
            },
            ScheduleKind::OneCycle => {
                let low = rate(&mut reader, "cycle_min_lr");
                let high = rate(&mut reader, "cycle_max_lr");
                let both = low.is_some() && high.is_some();
                reader.rule(both, "it asks for `cycle_min_lr` and `cycle_max_lr`", "give both");
                // It cycles Adam's first beta as well, unless it is told not to.
                let still = !reader.flag("cycle_momentum", true);
                reader.rule(still, "the optimizer's betas do not follow it", "set cycle_momentum to false");
                for name in ["cycle_min_mom", "cycle_max_mom", "decay_mom_rate"] {
                    reader.optional(name, |_| true, "a number");
                }
                let above = |x: f64| x > 0.0 && x.is_finite();
                let steps = reader.number("cycle_first_step_size", 2000.0, above, "a number above 0");
                let rise = Half { steps, stairs: reader.at_least_0("cycle_first_stair_count", 0.0) };
                let steps = reader.at_least_0("cycle_second_step_size", rise.steps);
                let fall = Half { steps, stairs: reader.at_least_0("cycle_second_stair_count", rise.stairs) };
                let decay =
                    (reader.at_least_0("decay_lr_rate", 0.0), reader.at_least_0("decay_step_size", 0.0));
                let decay = (decay.0 > 0.0 && decay.1 > 0.0).then_some(decay);
                Self::Cycle { low: low.unwrap_or(0.0), high: high.unwrap_or(1.0), rise, fall, decay }
            }
            _ => {
                let low = rate(&mut reader, "lr_range_test_min_lr");
                let low = low.unwrap_or_else(|| rate_of(1e-3, peak));
                let steps = reader.count("lr_range_test_step_size").unwrap_or(2000);
                reader.rule(steps > 0, "`lr_range_test_step_size` is at least 1", "raise it");
                let grows = reader.at_least_0("lr_range_test_step_rate", 1.0);
                Self::Range {
                    low,
                    steps: steps.max(1),
                    rate: grows,
                    stairs: reader.flag("lr_range_test_staircase", false),
                }
            }
        };
        reader.rule(
            peak > 0.0 || !absolute,
            "its rates are shares of learning_rate here, which is 0",
            "raise that",
        );
        (schedule, reader.finish())
    }

    /// The share of the peak that step `step` (from 0) has, in a run of `total` steps whose `warmup_steps` are `warmup`.
    pub(super) fn factor(&self, step: u64, warmup: u64, total: u64) -> f64 {
        let iteration = step.checked_sub(1);
        match *self {
            Self::Warmup { warmup: own, low, high, end } => {
                let Some(at) = iteration else { return low };
                let steps = own.steps_of(warmup);
                let share = own.risen(at, steps).unwrap_or_else(|| match end {
                    End::Constant => 1.0,
                    End::Linear(last) => {
                        let last = last.unwrap_or(total) as f64;
                        ((last - at as f64) / (last - steps as f64).max(1.0)).max(0.0)
                    }
                });
                low + (high - low) * share
            }
            Self::Cosine { warmup: own, low, floor, total: last } => {
                let Some(at) = iteration else { return 0.0 };
                let steps = own.steps_of(warmup);
                if let Some(share) = own.risen(at, steps) {
                    return low + share * (1.0 - low);
                }
                let after = last.unwrap_or(total).saturating_sub(steps).max(1) as f64;
                let progress = ((at - steps + 1) as f64 / after).min(1.0);
                (floor + (1.0 - floor) * ((1.0 + (PI * progress).cos()) / 2.0)).max(0.0)
            }
            Self::Cycle { low, high, rise, fall, decay } => {
                let Some(at) = iteration else { return low };
                let whole = rise.steps + fall.steps;
                if (at as f64) < whole {
                    return low + (high - low) * height(step as f64, rise, fall);
                }
                match decay {
                    Some((rate, every)) => low / (1.0 + rate * ((at as f64 - whole + 1.0) / every)),
                    None => low,
                }
            }
            Self::Range { low, steps, rate, stairs } => {
                if step == 0 {
                    return low;
                }
                let passed = step as f64 / steps as f64;
                low * (1.0 + rate * if stairs { passed.floor() } else { passed })
            }
        }
    }
}

/// A rate as a share of the peak.
fn rate_of(rate: f64, peak: f64) -> f64 {
    if peak > 0.0 { rate / peak } else { 0.0 }
}

impl Warmup {
    fn read(reader: &mut ArgumentReader<'_>) -> Self {
        Self {
            steps: reader.count("warmup_num_steps"),
            linear: reader.word("warmup_type", &["log", "linear"], 0) == 1,
        }
    }

    /// Its steps where the run warms up for `warmup`; never fewer than two, whose logarithm is not 0. (DeepSpeed before 0.19.6
    /// took 0 so too, and refuses it since.)
    fn steps_of(&self, warmup: u64) -> u64 {
        self.steps.unwrap_or(warmup).max(2)
    }

    /// How far it has come at iteration `at`; `None` once it is done.
    fn risen(&self, at: u64, steps: u64) -> Option<f64> {
        let (at, steps) = (at as f64, steps as f64);
        (at < steps).then(|| if self.linear { at / steps } else { (at + 1.0).ln() / steps.ln() })
    }
}

/// How high a cycle is, from 0 to 1, `at` steps after the first cycle's start.
fn height(at: f64, rise: Half, fall: Half) -> f64 {
    let whole = rise.steps + fall.steps;
    let (cycles, top) = (at / whole, rise.steps / whole);
    let x = 1.0 + cycles - (1.0 + cycles).floor();
    let (share, stairs) =
        if x <= top { (x / top, rise.stairs) } else { ((x - 1.0) / (top - 1.0), fall.stairs) };
    if stairs == 0.0 {
        return share;
    }
    let at = at % whole;
    let position =
        if at <= rise.steps { at * stairs / rise.steps } else { (whole - at) * stairs / fall.steps };
    position.floor() / stairs
}
