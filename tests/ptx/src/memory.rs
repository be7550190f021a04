//! Memory as a thread sees it: spaces and the windows of generic addresses.

use crate::space::Space;

/// Where generic addresses of a block's memory begin.
pub(crate) const SHARED: u64 = 0x7100_0000_0000;
/// Where generic addresses of a thread's memory begin.
pub(crate) const LOCAL: u64 = 0x7200_0000_0000;
/// Where generic addresses of the arguments begin.
pub(crate) const PARAM: u64 = 0x7300_0000_0000;
/// Bytes of each window.
const WINDOW: u64 = 1 << 32;

/// Bytes of a device that lie together.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    /// The device's address of the first.
    pub start: u64,
    /// How many.
    pub bytes: usize,
    /// Where the first lies in this process.
    pub data: *mut u8,
}

/// The memory of a device.
///
/// # Safety
/// An allocation that was given has its bytes, and nobody else uses them, until the launch is over.
pub unsafe trait GlobalMemory {
    /// The allocation that the address is in.
    fn allocation(&self, address: u64) -> Option<Allocation>;
}

/// The space of a generic address, and the address there.
pub(crate) fn specific(address: u64) -> (Space, u64) {
    for (base, space) in [(SHARED, Space::Shared), (LOCAL, Space::Local), (PARAM, Space::Param)] {
        if (base..base + WINDOW).contains(&address) {
            return (space, address - base);
        }
    }
    (Space::Global, address)
}

/// Where a space's addresses begin among the generic ones.
pub(crate) fn base(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED,
        Space::Local => LOCAL,
        Space::Param => PARAM,
        Space::Generic | Space::Global => 0,
    }
}

/// Allocations that were used last.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    known: [Option<Allocation>; 4],
    next: usize,
}

impl Recent {
    /// Where the `bytes` bytes at `address` lie in this process.
    pub(crate) fn find(&mut self, memory: &dyn GlobalMemory, address: u64, bytes: usize) -> Option<*mut u8> {
        let within = |allocation: &Allocation| {
            let at = address.checked_sub(allocation.start)?;
            let end = at.checked_add(bytes as u64)?;
            // SAFETY: `at` is within the allocation.
            (end <= allocation.bytes as u64).then(|| unsafe { allocation.data.add(at as usize) })
        };
        if let Some(place) = self.known.iter().flatten().find_map(within) {
            return Some(place);
        }
        let found = memory.allocation(address)?;
        let place = within(&found)?;
        self.known[self.next] = Some(found);
        self.next = (self.next + 1) % self.known.len();
        Some(place)
    }
}
