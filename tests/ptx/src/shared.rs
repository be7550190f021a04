//! A block's memory, and who used it last.

use crate::fault::Wrong;
use crate::order::Order;
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
    /// Where warps also meet at barriers in memory.
    order: Option<Ordered>,
}

/// What is known beside [`Use`] where warps meet at barriers in memory.
#[derive(Debug)]
struct Ordered {
    order: Order,
    warps: usize,
    /// When each warp read each byte last, or 0.
    reads: Vec<u32>,
}

impl Ordered {
    fn new(warps: usize, bytes: usize) -> Self {
        Self { order: Order::new(warps), warps, reads: vec![0; warps * bytes] }
    }

    /// An access of a byte; the thread that it races with.
    fn access(&mut self, at: usize, used: &mut Use, thread: u32, access: Access) -> Option<u32> {
        let Self { order, warps, reads } = self;
        let warp = (thread / 32) as usize;
        let unseen = |other: usize, when: u32| when != 0 && !order.has_seen(warp, other, when);
        if access == Access::Atomic {
            return None;
        }
        if unseen((used.writer / 32) as usize, used.written) {
            return Some(used.writer);
        }
        let reads = &mut reads[at * *warps..(at + 1) * *warps];
        if access == Access::Read {
            reads[warp] = order.now();
            return None;
        }
        if let Some(reader) = (0..*warps).find(|&reader| unseen(reader, reads[reader])) {
            return Some(32 * reader as u32);
        }
        (used.writer, used.written) = (thread, order.now());
        None
    }
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
    /// Of a block of `warps` warps, which meet at barriers in memory too if it is `ordered`.
    pub(crate) fn new(bytes: usize, warps: usize, ordered: bool) -> Self {
        let fresh = Use { writer: NONE, written: 0, reader: NONE, read: 0 };
        let order = ordered.then(|| Ordered::new(warps, bytes));
        Self { bytes: vec![0xcd; bytes], uses: vec![fresh; bytes], epoch: 1, order }
    }

    /// All of it, as a new block finds it.
    pub(crate) fn forget(&mut self) {
        self.bytes.fill(0xcd);
        self.uses.fill(Use { writer: NONE, written: 0, reader: NONE, read: 0 });
        self.epoch = 1;
        if let Some(ordered) = &mut self.order {
            *ordered = Ordered::new(ordered.warps, self.bytes.len());
        }
    }

    /// A warp arrives at a barrier in memory.
    pub(crate) fn arrive(&mut self, warp: u32, barrier: u64) {
        if let Some(ordered) = &mut self.order {
            ordered.order.arrive(warp as usize, barrier);
        }
    }

    /// A warp has found a phase of a barrier in memory to be over.
    pub(crate) fn pass(&mut self, warp: u32, barrier: u64) {
        if let Some(ordered) = &mut self.order {
            ordered.order.pass(warp as usize, barrier);
        }
    }

    /// All threads have met.
    pub(crate) fn barrier(&mut self) {
        self.epoch += 1;
        if let Some(ordered) = &mut self.order {
            ordered.order.meet();
        }
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
            if let Some(ordered) = &mut self.order {
                match ordered.access(start + at, used, thread, access) {
                    Some(with) => return race(with),
                    None => continue,
                }
            }
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
