//! Elements that lie on the device, as somebody else's memory, and stay there.

use std::any::Any;
use std::sync::Arc;

use burnish_comm::transport::{Aligned, DeviceError, DeviceMemory};
use burnish_comm::{Bucket, Gathered, Reduction, Wire, World};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use half::bf16;

use crate::{Result, counts};

/// Memory of cudarc's, used on a stream of its own.
#[derive(Debug)]
struct Cells {
    slice: CudaSlice<u8>,
    stream: Arc<CudaStream>,
}

impl Cells {
    fn error(&self, source: cudarc::driver::DriverError) -> DeviceError {
        DeviceError::Lost { ordinal: self.ordinal(), bytes: self.bytes(), source: Arc::new(source) }
    }
}

impl DeviceMemory for Cells {
    fn ordinal(&self) -> usize {
        self.stream.context().ordinal()
    }

    fn bytes(&self) -> usize {
        self.slice.len()
    }

    fn to_host(&self) -> std::result::Result<Aligned, DeviceError> {
        let mut host = Aligned::zeroed(self.bytes());
        let copied = self.stream.memcpy_dtoh(&self.slice, host.as_mut());
        copied.and_then(|()| self.stream.synchronize()).map_err(|error| self.error(error))?;
        Ok(host)
    }

    fn address(&self) -> std::result::Result<u64, DeviceError> {
        self.stream.synchronize().map_err(|error| self.error(error))?;
        Ok(self.slice.device_ptr(&self.stream).0)
    }

    fn empty(&self, bytes: usize) -> std::result::Result<Arc<dyn DeviceMemory>, DeviceError> {
        let full = |source| DeviceError::Full { ordinal: self.ordinal(), bytes, source: Arc::new(source) };
        // SAFETY: the transport writes all of it before anybody reads.
        let slice = unsafe { self.stream.alloc::<u8>(bytes) }.map_err(full)?;
        Ok(Arc::new(Self { slice, stream: Arc::clone(&self.stream) }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A rank's device, and what its own program does there.
struct Device {
    stream: Arc<CudaStream>,
}

impl Device {
    /// A bucket that is written by work that is still queued.
    fn bucket<E: Wire>(&self, values: &[E]) -> Result<Bucket<E>> {
        // the driver has no memory of no bytes
        if values.is_empty() {
            return Ok(Bucket::empty());
        }
        let slice = self.stream.clone_htod(bytemuck::cast_slice::<E, u8>(values))?;
        Ok(Bucket::on_device(Arc::new(Cells { slice, stream: Arc::clone(&self.stream) })))
    }

    /// The elements of a result that must lie on the device, by a copy of the program's own.
    fn read<E: Wire>(&self, bucket: &Bucket<E>) -> Result<Vec<E>> {
        let (memory, range) =
            bucket.device().ok_or("the result is on the host, expected it on the device")?;
        let cells = memory.as_any().downcast_ref::<Cells>().ok_or("the result is no memory of this kind")?;
        let bytes = self.stream.clone_dtoh(&cells.slice.slice(range))?;
        Ok(bytes.chunks_exact(size_of::<E>()).map(bytemuck::pod_read_unaligned).collect())
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Result<()> {
    if got == expected { Ok(()) } else { Err(format!("{what}: expected {expected:?}, got {got:?}").into()) }
}

/// Copies between host and device so far that are not this program's.
fn staged() -> (u64, u64) {
    counts::now().map_or((0, 0), |counts| (counts.host_to_device, counts.device_to_host))
}

pub(crate) fn run(world: &World) -> Result<()> {
    let stream = CudaContext::new(world.rank())?.new_stream()?;
    let device = Device { stream };
    stays(world, &device)?;
    moves(world, &device)?;
    falls_back(world, &device)
}

/// Whole calls between which nothing is copied to the host or from it. Ranks that are threads share the counts, so
/// barriers keep their own copies apart.
fn stays(world: &World, device: &Device) -> Result<()> {
    let (group, ranks) = (world.group(), world.size());
    let first = device.bucket(&vec![world.rank() as f32 + 1.0; 4096])?;
    let second = device.bucket(&vec![0.5_f64; 1000])?;
    let third = device.bucket(&[1_u64 << 40, 3])?;
    let parts: Vec<f32> = (0..ranks).flat_map(|rank| [rank as f32; 100]).collect();
    let fourth = device.bucket(&parts)?;
    let fifth = device.bucket(&[bf16::from_f32(world.rank() as f32); 33])?;
    group.barrier("before")?;
    let before = staged();
    let first = group.all_reduce(first, Reduction::Sum, "f32").wait()?;
    let second = group.all_reduce(second, Reduction::Sum, "f64").wait()?;
    let third = group.all_reduce(third, Reduction::Sum, "u64").wait()?;
    let fourth = group.reduce_scatter_v(fourth, &vec![100; ranks], Reduction::Sum, "parts").wait()?;
    let fifth = group.all_gather_v(fifth, &vec![33; ranks], "bf16").wait()?.concat();
    group.barrier("after")?;
    same("copies between host and device", staged(), before)?;
    group.barrier("counted")?;
    let sum: usize = (1..=ranks).sum();
    same("f32", device.read(&first)?, vec![sum as f32; 4096])?;
    same("f64", device.read(&second)?, vec![0.5 * ranks as f64; 1000])?;
    same("u64", device.read(&third)?, vec![(ranks as u64) << 40, 3 * ranks as u64])?;
    same("parts", device.read(&fourth)?, vec![(world.rank() * ranks) as f32; 100])?;
    let all: Vec<bf16> = (0..ranks).flat_map(|rank| [bf16::from_f32(rank as f32); 33]).collect();
    same("bf16", device.read(&fifth)?, all.clone())?;
    // what is looked at on the host is copied there
    same("bf16 on the host", fifth.as_slice(), &all[..])?;
    same("f32 on the host", first.into_vec(), vec![sum as f32; 4096])
}

/// What moves without arithmetic.
fn moves(world: &World, device: &Device) -> Result<()> {
    let (group, rank, ranks) = (world.group(), world.rank(), world.size());
    let mark = |from: usize, to: usize| (10 * from + to) as f32;
    let read = |parts: &Gathered<f32>, rank| device.read(&parts.take(rank));

    let counts: Vec<usize> = (0..ranks).map(|rank| rank + 1).collect();
    let uneven = device.bucket(&vec![rank as f32; rank + 1])?;
    let uneven = group.all_gather_v(uneven, &counts, "uneven").wait()?;
    for from in 0..ranks {
        same("uneven", read(&uneven, from)?, vec![from as f32; from + 1])?;
    }

    let mine: Vec<f32> = (0..ranks).flat_map(|to| vec![mark(rank, to); to + 1]).collect();
    let mine = device.bucket(&mine)?;
    let crossed = group.all_to_all_v(mine, &counts, &vec![rank + 1; ranks], "crossed").wait()?;
    for from in 0..ranks {
        same("crossed", read(&crossed, from)?, vec![mark(from, rank); rank + 1])?;
    }

    let root = ranks - 1;
    let told = device.bucket(&[rank as f32 + 7.0; 50])?;
    let told = group.broadcast(told, root, "told").wait()?;
    same("told", device.read(&told)?, vec![root as f32 + 7.0; 50])?;

    let part = device.bucket(&[rank as f32; 9])?;
    if let Some(parts) = group.gather(part, &vec![9; ranks], root, "gathered").wait()? {
        for from in 0..ranks {
            same("gathered", read(&parts, from)?, vec![from as f32; 9])?;
        }
    }

    if ranks > 1 {
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let sent = device.bucket(&[rank as f32; 64])?;
        let (memory, _) = sent.device().ok_or("a bucket on the device says that it is not")?;
        let memory = Arc::clone(memory);
        let sent = group.send(sent, next, "ring");
        let got = group.recv_like::<f32>(previous, 64, &memory, "ring").wait()?;
        sent.wait()?;
        same("ring", device.read(&got)?, vec![previous as f32; 64])?;
    }
    Ok(())
}

/// What NCCL does not reduce as burnish does goes by way of the host, with the right result.
fn falls_back(world: &World, device: &Device) -> Result<()> {
    let (group, rank, ranks) = (world.group(), world.rank(), world.size());
    let mean = device.bucket(&[rank as f32; 10])?;
    let mean = group.all_reduce(mean, Reduction::Mean, "mean").wait()?;
    same("mean", mean.into_vec(), vec![(0..ranks).sum::<usize>() as f32 / ranks as f32; 10])?;
    let most = device.bucket(&[rank as f32; 10])?;
    let most = group.all_reduce(most, Reduction::Max, "most").wait()?;
    same("most", most.into_vec(), vec![(ranks - 1) as f32; 10])?;
    let halves = device.bucket(&[bf16::from_f32(1.0); 10])?;
    let halves = group.all_reduce(halves, Reduction::Sum, "halves").wait()?;
    same("halves", halves.into_vec(), vec![bf16::from_f32(ranks as f32); 10])?;
    let counts: Vec<usize> = (0..ranks).map(|rank| 2 * rank).collect();
    let uneven = device.bucket(&vec![1.0_f32; counts.iter().sum()])?;
    let uneven = group.reduce_scatter_v(uneven, &counts, Reduction::Sum, "uneven").wait()?;
    same("uneven sums", uneven.into_vec(), vec![ranks as f32; 2 * rank])
}
