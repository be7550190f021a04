//! `Launch`: a grid of blocks of a kernel.

use crate::block::Block;
use crate::fault::Fault;
use crate::memory::GlobalMemory;
use crate::module::Kernel;

/// Instructions of a warp after which a launch is taken to have no end.
const MOST: u64 = 1 << 34;

/// A kernel with its arguments.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// What runs.
    pub kernel: &'a Kernel,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Bytes of shared memory beyond what the kernel declares.
    pub shared: usize,
    /// The bytes of each argument.
    pub arguments: &'a [Vec<u8>],
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Instructions of warps.
    pub instructions: u64,
    /// Products of matrices (`wmma`, `mma`) among them.
    pub products: u64,
    /// Bytes that threads read from the device's memory.
    pub read: u64,
    /// Bytes that they wrote there.
    pub written: u64,
    /// Atomic sums of floats in the device's memory, whose order is the hardware's.
    pub atomic_sums: u64,
}

impl Statistics {
    /// Adds another launch's.
    pub fn add(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.products += other.products;
        self.read += other.read;
        self.written += other.written;
        self.atomic_sums += other.atomic_sums;
    }
}

impl Launch<'_> {
    /// Runs all blocks, one after the other.
    ///
    /// # Errors
    /// What a thread did that none may; what was written before stays.
    pub fn run(&self, memory: &dyn GlobalMemory) -> Result<Statistics, Fault> {
        let mut statistics = Statistics::default();
        let mut block = Block::new(self, memory, MOST);
        for z in 0..self.grid[2] {
            for y in 0..self.grid[1] {
                for x in 0..self.grid[0] {
                    statistics.add(block.run([x, y, z])?);
                }
            }
        }
        Ok(statistics)
    }

    /// The arguments, each at the place of its parameter.
    pub(crate) fn parameters(&self) -> Vec<u8> {
        let end = self.kernel.parameters.iter().map(|&(at, bytes)| at + bytes).max().unwrap_or(0);
        let mut all = vec![0; end];
        for (&(at, bytes), argument) in self.kernel.parameters.iter().zip(self.arguments) {
            let bytes = bytes.min(argument.len());
            all[at..at + bytes].copy_from_slice(&argument[..bytes]);
        }
        all
    }
}
