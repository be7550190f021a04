//! `RunDevice`: what `device` says of a run: a kind of device, or to a plan a GPU by its name.

use burnish_core::{Choice, alternatives};
use burnish_device::{DeviceKind, Gpu};

use crate::checks::Checks;
use crate::raw::Raw;
use crate::value::{OptionValue, ValueKind};

/// What a run computes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunDevice {
    /// A GPU that is ready, else the processor.
    #[default]
    Auto,
    /// Such a device.
    Kind(DeviceKind),
    /// This GPU, which is not there: to plan for it.
    Planned(Gpu),
}

const KINDS: &[&str] = <DeviceKind as Choice>::WORDS;
const GPUS: &[&str] = <Gpu as Choice>::WORDS;
const WORDS: [&str; KINDS.len() + GPUS.len()] = {
    let mut words = [""; KINDS.len() + GPUS.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = if at < KINDS.len() { KINDS[at] } else { GPUS[at - KINDS.len()] };
        at += 1;
    }
    words
};

impl RunDevice {
    /// The kind of device, where that is said.
    #[must_use]
    pub fn kind(self) -> Option<DeviceKind> {
        match self {
            Self::Auto => None,
            Self::Kind(kind) => Some(kind),
            Self::Planned(_) => Some(DeviceKind::Cuda),
        }
    }

    /// The GPU that a plan is for.
    #[must_use]
    pub fn gpu(self) -> Option<Gpu> {
        match self {
            Self::Planned(gpu) => Some(gpu),
            Self::Auto | Self::Kind(_) => None,
        }
    }

    /// A GPU by its name is for a plan alone.
    pub(crate) fn rules(self, checks: &mut Checks<'_>) {
        let holds = self.gpu().is_none() || checks.plans();
        checks.range(
            "device",
            holds,
            "auto, cpu, cuda or wgpu: a GPU's name is for `burnish plan`, cuda runs on it",
        );
    }
}

impl std::fmt::Display for RunDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Kind(kind) => kind.name(),
            Self::Planned(gpu) => gpu.name(),
        })
    }
}

impl OptionValue for RunDevice {
    const KIND: ValueKind = ValueKind::AutoOr(&WORDS);

    fn expected() -> String {
        format!("auto, {}; to `burnish plan` also {}", alternatives(KINDS), alternatives(GPUS))
    }

    fn read(raw: &Raw) -> Option<Self> {
        let Raw::Text(text) = raw else { return None };
        if text == "auto" {
            return Some(Self::Auto);
        }
        DeviceKind::from_word(text).map(Self::Kind).or_else(|| Gpu::from_word(text).map(Self::Planned))
    }

    fn write(&self) -> Raw {
        Raw::Text(self.to_string())
    }
}
