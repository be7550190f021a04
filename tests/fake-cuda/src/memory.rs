//! Device memory: bytes of this process, behind addresses that only this library understands.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use crate::code::{Code, ILLEGAL_ADDRESS, INVALID_VALUE, OUT_OF_MEMORY};
use crate::counts::{self, RUNNING};
use crate::{lock, variable};

/// Where the addresses begin: not a place that a program maps.
const FIRST: u64 = 0x6600_0000_0000;
/// What addresses are multiples of.
const ALIGNMENT: u64 = 512;
/// Up to here new memory is filled with [`FRESH`]; larger memory is not touched before it is used.
const FILLED: usize = 1 << 20;
/// What memory holds that nobody has written to: no number that looks right.
const FRESH: u8 = 0xCD;

struct Allocation {
    device: usize,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Memory {
    next: u64,
    allocations: BTreeMap<u64, Allocation>,
    used: HashMap<usize, u64>,
}

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

fn with<T>(action: impl FnOnce(&mut Memory) -> T) -> T {
    action(lock(&MEMORY).get_or_insert_with(|| Memory { next: FIRST, ..Memory::default() }))
}

/// Bytes of each device.
pub(crate) fn capacity() -> u64 {
    variable("FAKE_CUDA_MEMORY", 16 << 30)
}

/// Bytes of a device that are taken.
pub(crate) fn used(device: usize) -> u64 {
    with(|memory| memory.used.get(&device).copied().unwrap_or(0))
}

pub(crate) fn allocate(device: usize, bytes: usize) -> Result<u64, Code> {
    let address = reserve(bytes)?;
    fill_in(device, address, bytes)?;
    Ok(address)
}

/// An address for so much memory, which is not there yet.
pub(crate) fn reserve(bytes: usize) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    if bytes as u64 > capacity() {
        return Err(OUT_OF_MEMORY);
    }
    with(|memory| {
        let address = memory.next;
        // The gap lets no range reach from one allocation into the next.
        memory.next += (bytes as u64).div_ceil(ALIGNMENT) * ALIGNMENT + ALIGNMENT;
        Ok(address)
    })
}

/// Puts new memory at an address that was reserved for it.
pub(crate) fn fill_in(device: usize, address: u64, bytes: usize) -> Result<(), Code> {
    with(|memory| {
        let used = memory.used.entry(device).or_default();
        if used.checked_add(bytes as u64).is_none_or(|sum| sum > capacity()) {
            return Err(OUT_OF_MEMORY);
        }
        *used += bytes as u64;
        let bytes_of = if bytes <= FILLED { vec![FRESH; bytes] } else { vec![0; bytes] };
        memory.allocations.insert(address, Allocation { device, bytes: bytes_of });
        counts::one(&RUNNING.allocations);
        let now = RUNNING.allocated_bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        RUNNING.peak_bytes.fetch_max(now, Ordering::Relaxed);
        Ok(())
    })
}

pub(crate) fn free(address: u64) -> Result<(), Code> {
    with(|memory| {
        let freed = memory.allocations.remove(&address).ok_or(INVALID_VALUE)?;
        let bytes = freed.bytes.len() as u64;
        if let Some(used) = memory.used.get_mut(&freed.device) {
            *used -= bytes;
        }
        RUNNING.allocated_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    })
}

/// The device of the memory at `address`.
pub(crate) fn device_of(address: u64) -> Option<usize> {
    with(|memory| memory.allocations.range(..=address).next_back().map(|(_, allocation)| allocation.device))
}

/// Gives the `bytes` bytes at `address` to `action`, if they lie in one allocation. Everything else waits meanwhile.
fn at<T>(address: u64, bytes: usize, action: impl FnOnce(&mut [u8]) -> T) -> Result<T, Code> {
    with(|memory| {
        let found = memory.allocations.range_mut(..=address).next_back();
        let place = found.and_then(|(start, allocation)| {
            let start = usize::try_from(address - start).ok()?;
            allocation.bytes.get_mut(start..start.checked_add(bytes)?)
        });
        match place {
            Some(place) => Ok(action(place)),
            None => {
                counts::one(&RUNNING.faults);
                eprintln!("fake CUDA: {bytes} bytes at {address:#x} are not allocated");
                Err(ILLEGAL_ADDRESS)
            }
        }
    })
}

pub(crate) fn read(address: u64, bytes: usize) -> Result<Vec<u8>, Code> {
    if bytes == 0 { Ok(Vec::new()) } else { at(address, bytes, |place| place.to_vec()) }
}

pub(crate) fn write(address: u64, bytes: &[u8]) -> Result<(), Code> {
    if bytes.is_empty() { Ok(()) } else { at(address, bytes.len(), |place| place.copy_from_slice(bytes)) }
}

/// Writes `value` over and over to `bytes` bytes, which are a multiple of its length.
pub(crate) fn fill(address: u64, bytes: usize, value: &[u8]) -> Result<(), Code> {
    if bytes == 0 {
        return Ok(());
    }
    at(address, bytes, |place| place.chunks_exact_mut(value.len()).for_each(|one| one.copy_from_slice(value)))
}

/// All memory of all devices, for a launch that nothing else runs beside.
struct Locked<'a>(RefCell<&'a mut Memory>);

// SAFETY: the memory is locked as long as the launch runs, and its allocations stay where they are.
unsafe impl ptx::GlobalMemory for Locked<'_> {
    fn allocation(&self, address: u64) -> Option<ptx::Allocation> {
        let mut memory = self.0.borrow_mut();
        let (&start, allocation) = memory.allocations.range_mut(..=address).next_back()?;
        let bytes = &mut allocation.bytes;
        Some(ptx::Allocation { start, bytes: bytes.len(), data: bytes.as_mut_ptr() })
    }
}

/// Runs a kernel. Everything else that uses memory waits meanwhile.
pub(crate) fn run(launch: &ptx::Launch<'_>) -> Result<ptx::Statistics, ptx::Fault> {
    with(|memory| launch.run(&Locked(RefCell::new(memory))))
}
