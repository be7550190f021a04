//! The devices of a process, and whose each is.

use burn::tensor::Device;

/// Devices that the ranks of this process compute on: one for all, or one for each.
#[derive(Clone, Debug)]
pub(crate) struct Devices(Vec<Device>);

impl Devices {
    /// All ranks on one.
    pub(crate) fn one(device: &Device) -> Self {
        Self(vec![device.clone()])
    }

    /// A device for each of so many ranks, in their order.
    pub(crate) fn each(devices: Vec<Device>) -> Self {
        Self(devices)
    }

    /// A rank's device with its place.
    pub(crate) fn of(&self, rank: usize) -> (usize, &Device) {
        let place = rank % self.0.len();
        (place, &self.0[place])
    }
}
