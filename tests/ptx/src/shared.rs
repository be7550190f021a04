//! A block's memory, and who used it last.

use crate::fault::Wrong;
use crate::space::Space;

/// No thread.
const NONE: u32 = u32::MAX;
/// More than one thread.
const SEVERAL: u32 = u32::MAX - 1;

/// Who wrote and who read a byte, and between which barriers.
#[derive(Clone, Copy, Debug)]
struct Use {
    writer: u32,
    written: u32,
    reader: u32,
    read: u32,
}

/// The shared memory of a block.
#[derive(Debug)]
pub(crate) struct Shared {
    bytes: Vec<u8>,
    uses: Vec<Use>,
    /// Barriers so far, from 1.
    epoch: u32,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// Both at once, which is no race with others that do the same.
    Atomic,
}

impl Shared {
    pub(crate) fn new(bytes: usize) -> Self {
        let fresh = Use { writer: NONE, written: 0, reader: NONE, read: 0 };
        Self { bytes: vec![0xcd; bytes], uses: vec![fresh; bytes], epoch: 1 }
    }

    /// All of it, as a new block finds it.
    pub(crate) fn forget(&mut self) {
        self.bytes.fill(0xcd);
        self.uses.fill(Use { writer: NONE, written: 0, reader: NONE, read: 0 });
        self.epoch = 1;
    }

    /// All threads have met.
    pub(crate) fn barrier(&mut self) {
        self.epoch += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes at an address, used by a thread. Threads of a warp are in step, but what they exchange through memory
    /// needs a barrier (`bar.warp.sync`) all the same, which this does not look for: lanes of one warp do not race.
    pub(crate) fn at(
        &mut self,
        address: u64,
        bytes: usize,
        thread: u32,
        access: Access,
    ) -> Result<&mut [u8], Wrong> {
        let start = usize::try_from(address)
            .ok()
            .filter(|start| start.checked_add(bytes).is_some_and(|end| end <= self.bytes.len()));
        let Some(start) = start else {
            return Err(Wrong::Address { space: Space::Shared, address, bytes });
        };
        let epoch = self.epoch;
        let other = |known: u32| known != NONE && (known == SEVERAL || known / 32 != thread / 32);
        for (at, used) in self.uses[start..start + bytes].iter_mut().enumerate() {
            let race = |with: u32| Err(Wrong::Race { address: address + at as u64, with });
            if used.written == epoch && other(used.writer) && access != Access::Atomic {
                return race(used.writer);
            }
            if access == Access::Write && used.read == epoch && other(used.reader) {
                return race(used.reader);
            }
            match access {
                Access::Read => {
                    used.reader = match used.read == epoch && other(used.reader) {
                        true => SEVERAL,
                        false => thread,
                    };
                    used.read = epoch;
                }
                Access::Write => (used.writer, used.written) = (thread, epoch),
                Access::Atomic => {}
            }
        }
        Ok(&mut self.bytes[start..start + bytes])
    }
}
