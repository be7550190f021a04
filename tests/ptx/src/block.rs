//! A block: its warps in turn, from barrier to barrier.

use crate::fault::{Fault, Wrong};
use crate::launch::{Launch, Statistics};
use crate::memory::{self, GlobalMemory, Recent};
use crate::shared::{Access, Shared};
use crate::space::Space;
use crate::warp::{Stop, Warp};

/// Turns of all warps in which some wait for a barrier in memory, after which they are taken to wait for ever.
const TURNS: u32 = 1 << 20;

/// What the threads of a block share.
pub(crate) struct Commons<'a> {
    pub(crate) launch: &'a Launch<'a>,
    memory: &'a dyn GlobalMemory,
    recent: Recent,
    pub(crate) shared: Shared,
    parameters: Vec<u8>,
    pub(crate) place: [u32; 3],
    pub(crate) statistics: Statistics,
    /// Instructions of a warp at most.
    pub(crate) most: u64,
}

/// Runs the blocks of a launch.
pub(crate) struct Block<'a> {
    commons: Commons<'a>,
    warps: Vec<Warp>,
}

impl<'a> Block<'a> {
    pub(crate) fn new(launch: &'a Launch<'a>, memory: &'a dyn GlobalMemory, most: u64) -> Self {
        let threads: u32 = launch.block.iter().product();
        let bytes = launch.kernel.shared + launch.shared;
        let shared =
            Shared::new(bytes, threads.div_ceil(32) as usize, launch.kernel.has_barriers_in_memory());
        let commons = Commons {
            launch,
            memory,
            recent: Recent::default(),
            shared,
            parameters: launch.parameters(),
            place: [0; 3],
            statistics: Statistics::default(),
            most,
        };
        let warps = (0..threads.div_ceil(32)).map(|warp| Warp::new(launch, warp, threads)).collect();
        Self { commons, warps }
    }

    pub(crate) fn run(&mut self, place: [u32; 3]) -> Result<Statistics, Fault> {
        let Self { commons, warps } = self;
        commons.place = place;
        commons.statistics = Statistics::default();
        commons.shared.forget();
        warps.iter_mut().for_each(Warp::begin);
        let fault = |kernel: &str, line, thread: [u32; 3], what| Fault {
            kernel: kernel.to_owned(),
            line,
            block: place,
            thread,
            what,
        };
        let kernel = commons.launch.kernel;
        let mut idle = 0;
        loop {
            let (mut waiting, mut turns) = (0, 0);
            for warp in warps.iter_mut() {
                match warp.run(commons) {
                    Ok(Stop::Barrier) => waiting += 1,
                    Ok(Stop::Turn) => turns += 1,
                    Ok(Stop::End) => {}
                    Err((at, lane, what)) => {
                        let line = kernel.code[at].line as usize;
                        return Err(fault(&kernel.name, line, warp.thread(commons.launch, lane), what));
                    }
                }
            }
            if turns > 0 {
                idle += 1;
                if idle > TURNS {
                    return Err(fault(&kernel.name, 0, [0; 3], Wrong::Barrier));
                }
                continue;
            }
            idle = 0;
            if waiting == 0 {
                return Ok(commons.statistics);
            }
            commons.shared.barrier();
            for warp in warps.iter_mut() {
                warp.release();
            }
        }
    }
}

impl Commons<'_> {
    /// The bytes at an address of a space, for a thread. `local` is the thread's own memory.
    pub(crate) fn bytes<'b>(
        &'b mut self,
        space: Space,
        address: u64,
        bytes: usize,
        thread: u32,
        access: Access,
        local: &'b mut [u8],
    ) -> Result<&'b mut [u8], Wrong> {
        let (space, address) = match space {
            Space::Generic => memory::specific(address),
            space => (space, address),
        };
        if address & (bytes as u64 - 1) != 0 {
            return Err(Wrong::Alignment { space, address, bytes });
        }
        let missing = || Wrong::Address { space, address, bytes };
        let within = |all: &'b mut [u8]| {
            let start = usize::try_from(address).ok()?;
            all.get_mut(start..start.checked_add(bytes)?)
        };
        match space {
            Space::Shared => self.shared.at(address, bytes, thread, access),
            Space::Local => within(local).ok_or_else(missing),
            Space::Param => within(&mut self.parameters).ok_or_else(missing),
            Space::Global | Space::Generic => {
                match access {
                    Access::Read => self.statistics.read += bytes as u64,
                    Access::Write => self.statistics.written += bytes as u64,
                    Access::Atomic => {
                        self.statistics.read += bytes as u64;
                        self.statistics.written += bytes as u64;
                    }
                }
                let place = self.recent.find(self.memory, address, bytes).ok_or_else(missing)?;
                // SAFETY: `GlobalMemory` promises that the bytes are there and nobody else's until the launch is over,
                // and `&mut self` that no other slice of them is in use.
                Ok(unsafe { std::slice::from_raw_parts_mut(place, bytes) })
            }
        }
    }
}
