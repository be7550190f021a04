//! Memory that kernels of the tests run on.

use std::cell::RefCell;

use ptx::{Allocation, Fault, GlobalMemory, Launch, Module, Statistics};

/// Allocations behind addresses of their own.
#[derive(Default)]
pub(crate) struct Device(RefCell<Vec<(u64, Vec<u8>)>>);

// SAFETY: what is allocated stays where it is, and the tests use it between launches only.
unsafe impl GlobalMemory for Device {
    fn allocation(&self, address: u64) -> Option<Allocation> {
        let mut all = self.0.borrow_mut();
        let (start, bytes) =
            all.iter_mut().find(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&address))?;
        Some(Allocation { start: *start, bytes: bytes.len(), data: bytes.as_mut_ptr() })
    }
}

/// Numbers that lie in memory as they are.
pub(crate) trait Plain: Copy {
    fn bytes(self) -> Vec<u8>;
    fn of(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($ty:ty),*) => {
        $(impl Plain for $ty {
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }

            fn of(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        })*
    };
}

plain!(f32, u32, u16);

impl Device {
    /// Numbers in new memory; where.
    pub(crate) fn put<T: Plain>(&self, values: &[T]) -> u64 {
        let mut all = self.0.borrow_mut();
        let address = 0x6600_0000_0000 + 0x10_0000 * (all.len() as u64 + 1);
        all.push((address, values.iter().flat_map(|value| value.bytes()).collect()));
        address
    }

    /// The numbers at an address.
    pub(crate) fn get<T: Plain>(&self, address: u64, count: usize) -> Vec<T> {
        let all = self.0.borrow();
        let (_, bytes) = all.iter().find(|(start, _)| *start == address).unwrap();
        bytes.chunks(size_of::<T>()).take(count).map(T::of).collect()
    }

    pub(crate) fn run(
        &self,
        module: &Module,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        arguments: &[Vec<u8>],
    ) -> Result<Statistics, Fault> {
        let kernel = module.kernel(kernel).unwrap();
        Launch { kernel, grid, block, shared: 0, arguments }.run(self)
    }
}

/// A module without variables.
pub(crate) fn kernel(text: &str) -> Module {
    Module::read(text, &mut |_| unreachable!("no variables")).unwrap()
}
