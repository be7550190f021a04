//! `Course`: a schedule that the number of the step decides alone.

use std::f64::consts::PI;

use burnish_core::OptionFaults;

use super::ScheduleKind;
use super::deepspeed::DeepSpeed;
use crate::Arguments;
use crate::arguments::ArgumentReader;

/// A share of the peak by step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Course {
    Constant,
    ConstantWithWarmup,
    Linear,
    Cosine { cycles: f64, floor: f64 },
    Restarts { cycles: f64 },
    Polynomial { end: f64, power: f64, peak: f64 },
    InverseSqrt { timescale: Option<f64> },
    CosineFromFirst { cycles: f64, floor: f64, first: Option<f64> },
    Stable { stable: Option<u64>, decay: u64, rise: Shape, fall: Shape, floor: f64, cycles: f64 },
    DeepSpeed(DeepSpeed),
}

/// How a phase of `warmup_stable_decay` goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    Linear,
    Cosine,
    OneMinusRoot,
}

const SHAPES: [(&str, Shape); 3] =
    [("linear", Shape::Linear), ("cosine", Shape::Cosine), ("1-sqrt", Shape::OneMinusRoot)];

impl Course {
    /// The course of `kind` with `lr_scheduler_kwargs`, and what is wrong with those.
    pub(super) fn read(kind: ScheduleKind, arguments: &Arguments, peak: f64) -> (Self, OptionFaults) {
        let none = Arguments::default();
        let arguments = if kind.reads_arguments() { arguments } else { &none };
        let mut reader = arguments.reader("lr_scheduler_kwargs", format!("lr_scheduler_type: {kind}"));
        let course = match kind {
            ScheduleKind::Constant => Self::Constant,
            ScheduleKind::ConstantWithWarmup => Self::ConstantWithWarmup,
            ScheduleKind::Linear => Self::Linear,
            ScheduleKind::Cosine => Self::Cosine { cycles: cycles(&mut reader, 0.5), floor: 0.0 },
            ScheduleKind::CosineWithRestarts => Self::Restarts { cycles: cycles(&mut reader, 1.0) },
            ScheduleKind::Polynomial => {
                let end = reader.at_least_0("lr_end", 1e-7);
                let power = reader.at_least_0("power", 1.0);
                let above = peak > end;
                reader.rule(above, "`lr_end` is below learning_rate", "raise learning_rate or lower lr_end");
                Self::Polynomial { end, power, peak }
            }
            ScheduleKind::InverseSqrt => {
                let timescale =
                    reader.optional("timescale", |x| x > 0.0 && x.is_finite(), "a number above 0");
                Self::InverseSqrt { timescale }
            }
            ScheduleKind::CosineWithMinLr => {
                let cycles = cycles(&mut reader, 0.5);
                Self::Cosine { cycles, floor: floor(&mut reader, peak) }
            }
            ScheduleKind::CosineWarmupWithMinLr => {
                let cycles = cycles(&mut reader, 0.5);
                let floor = floor(&mut reader, peak);
                let first = reader.optional("warmup_lr_rate", |x| x >= 0.0, "a number that is at least 0");
                Self::CosineFromFirst { cycles, floor, first }
            }
            ScheduleKind::WarmupStableDecay => {
                let decay = reader.count("num_decay_steps");
                let mend = "say how many steps the decay at the end takes";
                reader.rule(decay.is_some(), "it asks for `num_decay_steps`", mend);
                let stable = reader.count("num_stable_steps");
                let words = SHAPES.map(|(word, _)| word);
                let rise = SHAPES[reader.word("warmup_type", &words, 0)].1;
                let fall = SHAPES[reader.word("decay_type", &words, 1)].1;
                let floor = reader.at_least_0("min_lr_ratio", 0.0);
                let cycles = cycles(&mut reader, 0.5);
                Self::Stable { stable, decay: decay.unwrap_or(0), rise, fall, floor, cycles }
            }
            ScheduleKind::WarmupLr
            | ScheduleKind::WarmupDecayLr
            | ScheduleKind::WarmupCosineLr
            | ScheduleKind::OneCycle
            | ScheduleKind::LrRangeTest => {
                let (schedule, faults) = DeepSpeed::read(kind, reader, peak);
                return (Self::DeepSpeed(schedule), faults);
            }
            ScheduleKind::ReduceLrOnPlateau | ScheduleKind::Greedy => {
                unreachable!("invariant: adaptive schedules are not a course")
            }
        };
        (course, reader.finish())
    }

    /// The share of the peak that step `step` (from 0) has.
    pub(super) fn factor(&self, step: u64, warmup: u64, total: u64) -> f64 {
        let risen = step as f64 / warmup.max(1) as f64;
        let rises = step < warmup;
        let after = total.saturating_sub(warmup).max(1) as f64;
        // Of what comes after warm-up.
        let progress = step.saturating_sub(warmup) as f64 / after;
        match *self {
            Self::Constant => 1.0,
            Self::DeepSpeed(schedule) => schedule.factor(step, warmup, total),
            Self::CosineFromFirst { first, .. } if rises => match first {
                None => (step as f64 + 1.0) / (warmup as f64).max(1.0),
                Some(first) => first + (1.0 - first) * step as f64 / warmup.saturating_sub(1).max(1) as f64,
            },
            Self::Stable { rise, floor, .. } if rises => {
                let factor = match rise {
                    Shape::Linear => risen,
                    Shape::Cosine => 0.5 * (1.0 - (PI * risen).cos()),
                    Shape::OneMinusRoot => 1.0 - (1.0 - risen).sqrt(),
                };
                (factor * (1.0 - floor) + floor).max(0.0)
            }
            _ if rises => risen,
            Self::ConstantWithWarmup => 1.0,
            Self::Linear => total.saturating_sub(step) as f64 / after,
            Self::Cosine { cycles, floor } => {
                let factor = 0.5 * (1.0 + (PI * cycles * 2.0 * progress).cos());
                (factor * (1.0 - floor) + floor).max(0.0)
            }
            Self::Restarts { .. } if progress >= 1.0 => 0.0,
            Self::Restarts { cycles } => (0.5 * (1.0 + (PI * ((cycles * progress) % 1.0)).cos())).max(0.0),
            Self::Polynomial { end, peak, .. } if step > total || peak == 0.0 => {
                if peak == 0.0 {
                    1.0
                } else {
                    end / peak
                }
            }
            Self::Polynomial { end, power, peak } => {
                let left = 1.0 - progress;
                ((peak - end) * left.powf(power) + end) / peak
            }
            Self::InverseSqrt { timescale } => {
                let otherwise = if warmup == 0 { 10_000.0 } else { warmup as f64 };
                let timescale = timescale.unwrap_or(otherwise);
                let shift = timescale - warmup as f64;
                1.0 / ((step as f64 + shift) / timescale).sqrt()
            }
            Self::CosineFromFirst { cycles, floor, .. } => {
                let progress = (step as f64 - warmup as f64 + 1.0) / after;
                let factor = 0.5 * (1.0 + (PI * cycles * 2.0 * progress).cos());
                (factor * (1.0 - floor) + floor).max(0.0)
            }
            Self::Stable { stable, decay, fall, floor, cycles, .. } => {
                // Transformers counts down below 0 where warm-up and decay are longer than the run.
                let until = match stable {
                    Some(stable) => warmup as i64 + stable as i64,
                    None => total as i64 - decay as i64,
                };
                let step = step as i64;
                if step < until {
                    return 1.0;
                }
                if step >= until + decay as i64 {
                    return floor;
                }
                let progress = (step - until) as f64 / decay.max(1) as f64;
                let factor = match fall {
                    Shape::Linear => 1.0 - progress,
                    Shape::Cosine => 0.5 * (1.0 + (PI * cycles * 2.0 * progress).cos()),
                    Shape::OneMinusRoot => 1.0 - progress.sqrt(),
                };
                (factor * (1.0 - floor) + floor).max(0.0)
            }
        }
    }
}

fn cycles(reader: &mut ArgumentReader<'_>, default: f64) -> f64 {
    reader.number("num_cycles", default, |x| x > 0.0 && x.is_finite(), "a number above 0")
}

/// The lowest share of the peak: of `min_lr` and `min_lr_rate` exactly one is there.
fn floor(reader: &mut ArgumentReader<'_>, peak: f64) -> f64 {
    let rate = reader.optional("min_lr", |x| x >= 0.0, "a number that is at least 0");
    let share = reader.optional("min_lr_rate", |x| x >= 0.0, "a number that is at least 0");
    let one = rate.is_some() != share.is_some();
    reader.rule(one, "it asks for `min_lr` or `min_lr_rate`", "give exactly one of the two");
    match (rate, share) {
        (_, Some(share)) => share,
        (Some(rate), None) if peak > 0.0 => rate / peak,
        _ => 0.0,
    }
}
