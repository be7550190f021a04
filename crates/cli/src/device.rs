//! The device that `--device` names.

use burn::tensor::Device;
use burnish_config::{DeviceChoice, RankOptions};
use burnish_device::{DeviceError, Kind, best, open};
use burnish_trainers::Ranks;

/// The kind that a choice means here, and the number of this process's device. `note` hears why a GPU is left idle.
pub(crate) fn kind(choice: DeviceChoice, note: &mut dyn FnMut(&str)) -> Result<(Kind, usize), DeviceError> {
    let kind = match choice {
        DeviceChoice::Cpu => Kind::Cpu,
        DeviceChoice::Cuda => Kind::Cuda,
        DeviceChoice::Wgpu => Kind::Wgpu,
        DeviceChoice::Auto => {
            let (kind, lacks) = best();
            if let Some(lacks) = lacks {
                note(&format!("computing on the CPU, because: {lacks}"));
            }
            kind
        }
    };
    // A launcher starts one process for each device.
    let local = std::env::var("LOCAL_RANK").ok().and_then(|rank| rank.trim().parse().ok());
    let ordinal = match kind {
        Kind::Cuda => local.unwrap_or(0),
        Kind::Cpu | Kind::Wgpu => 0,
    };
    Ok((kind, ordinal))
}

/// The ranks of a run, and its device: of several ranks in this process, the first one's. A note is said once, by the lead.
pub(crate) fn with_ranks(choice: DeviceChoice, options: &RankOptions) -> anyhow::Result<(Ranks, Device)> {
    let mut notes = Vec::new();
    let (kind, ordinal) = kind(choice, &mut |note| notes.push(note.to_owned()))?;
    // What the device lacks is said before the other ranks are waited for.
    let device = open(kind, ordinal)?;
    let ranks = Ranks::of(options, kind)?;
    if ranks.lead() {
        notes.iter().for_each(|note| eprintln!("note: {note}"));
    }
    Ok((ranks, device))
}
