//! The device that `--device` names.

use burn::tensor::Device;
use burnish_comm::launch::local_rank;
use burnish_config::groups::RankOptions;
use burnish_device::{DeviceKind, best, open};
use burnish_trainers::Ranks;

/// The kind that a choice means here, and the number of this process's device. `note` hears why a GPU is left idle.
pub(crate) fn kind(
    choice: Option<DeviceKind>,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<(DeviceKind, usize)> {
    let kind = match choice {
        Some(kind) => kind,
        None => {
            let (kind, lacks) = best();
            if let Some(lacks) = lacks {
                note(&format!("computing on the CPU, because: {lacks}"));
            }
            kind
        }
    };
    if let Some(fault) = burnish_device::amx_fault().filter(|_| kind == DeviceKind::Cpu) {
        note(&format!("products of bfloat16 are AVX-512's, because: {fault}"));
    }
    // A launcher starts one process for each device.
    let local = local_rank()?;
    let ordinal = match kind {
        DeviceKind::Cuda => local.unwrap_or(0),
        DeviceKind::Cpu | DeviceKind::Wgpu => 0,
    };
    Ok((kind, ordinal))
}

/// The ranks of a run, its device and of what kind that is: of several ranks in this process, the first one's. A note is said once, by the lead.
pub(crate) fn with_ranks(
    choice: Option<DeviceKind>,
    options: &RankOptions,
) -> anyhow::Result<(Ranks, Device, DeviceKind)> {
    let mut notes = Vec::new();
    let (kind, ordinal) = kind(choice, &mut |note| notes.push(note.to_owned()))?;
    // What the device lacks is said before the other ranks are waited for.
    let device = open(kind, ordinal)?;
    let ranks = Ranks::of(options, kind)?;
    if ranks.lead() {
        notes.iter().for_each(crate::voice::note);
    }
    Ok((ranks, device, kind))
}
