//! `Memory`: bytes in use, reserved and largest so far of a device.

use burn::tensor::Device;

/// Bytes of a device's memory that this process has, on the calling thread's stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// In tensors that live.
    pub in_use: u64,
    /// Taken from the driver: tensors, padding, and pages kept for the next ones.
    pub reserved: u64,
}

/// What this process holds of the device's memory; `None` on the CPU, whose memory is the process's.
#[must_use]
pub fn memory(device: &Device) -> Option<Memory> {
    let usage = device.memory_pool_usage()?;
    Some(Memory { in_use: usage.bytes_in_use, reserved: usage.bytes_reserved })
}

/// Gives pages that hold no tensor back to the driver. Between phases that need memory of different shapes.
pub fn release(device: &Device) {
    device.memory_cleanup();
}
