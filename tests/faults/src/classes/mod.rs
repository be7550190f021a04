//! The classes of faults.

mod adapters;
mod caches;
mod checkpoints;
mod configs;
mod disks;
mod environment;
mod families;
mod models;
mod numbers;
mod options;
mod pairs;
mod ranks;
mod rewards;
mod rollouts;
mod rows;
mod signals;
mod strangers;
mod templates;
mod tokenizers;
mod views;

use anyhow::Result;

use crate::lab::Lab;
use crate::random::Random;
use crate::verdict::Outcome;

/// Attempts of one kind. Those below `written` are written down one by one, the others are drawn.
pub(crate) struct Class {
    pub(crate) name: &'static str,
    pub(crate) written: fn(&Lab) -> usize,
    pub(crate) drawn: usize,
    pub(crate) attempt: fn(&Lab, usize, &mut Random) -> Result<Outcome>,
}

pub(crate) const CLASSES: [Class; 21] = [
    Class { name: "models", written: models::written, drawn: 1100, attempt: models::attempt },
    Class { name: "adapters", written: |_| 0, drawn: 500, attempt: adapters::attempt },
    Class { name: "scalings", written: |_| 0, drawn: 150, attempt: adapters::scaling },
    Class { name: "families", written: families::written, drawn: 500, attempt: families::attempt },
    Class { name: "tokenizers", written: tokenizers::written, drawn: 300, attempt: tokenizers::attempt },
    Class { name: "rows", written: rows::written, drawn: 700, attempt: rows::attempt },
    Class { name: "pairs", written: pairs::written, drawn: 150, attempt: pairs::attempt },
    Class { name: "templates", written: templates::written, drawn: 600, attempt: templates::attempt },
    Class { name: "options", written: options::written, drawn: 1400, attempt: options::attempt },
    Class { name: "configs", written: configs::written, drawn: 300, attempt: configs::attempt },
    Class { name: "checkpoints", written: checkpoints::written, drawn: 450, attempt: checkpoints::attempt },
    Class { name: "caches", written: caches::written, drawn: 0, attempt: caches::attempt },
    Class { name: "disks", written: disks::written, drawn: 60, attempt: disks::attempt },
    Class { name: "environment", written: environment::written, drawn: 0, attempt: environment::attempt },
    Class { name: "rewards", written: rewards::written, drawn: 0, attempt: rewards::attempt },
    Class { name: "rollouts", written: rollouts::written, drawn: 150, attempt: rollouts::attempt },
    Class { name: "signals", written: signals::written, drawn: 60, attempt: signals::attempt },
    Class { name: "numbers", written: numbers::written, drawn: 120, attempt: numbers::attempt },
    Class { name: "ranks", written: ranks::written, drawn: 30, attempt: ranks::attempt },
    Class { name: "views", written: views::written, drawn: 600, attempt: views::attempt },
    Class { name: "strangers", written: strangers::written, drawn: 60, attempt: strangers::attempt },
];
