//! A tensor's memory on a device, as collectives see it.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Element};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::future::{self, DynFut};
use burn_cubecl::cubecl::server::{Handle, ServerError};
use burn_cubecl::tensor::CubeTensor;
use burnish_comm::Bucket;
use burnish_comm::transport::{Aligned, DeviceError, DeviceMemory};
use burnish_ops::{AnyTensor, cube};

use crate::Number;

/// Contiguous memory of CubeCL's on a device.
///
/// CubeCL counts references to memory and writes in place only to what has one, so that a tensor whose memory is held
/// here keeps its elements. It has a queue per thread and orders them where one reads what another wrote, which covers
/// tensors that [`DeviceTensor::of`] another thread are made of. A transport has queues that CubeCL does not know: for it
/// there is [`address`](DeviceMemory::address).
pub(crate) struct DeviceTensor {
    client: Client,
    device: Device,
    cube: CubeDevice,
    ordinal: usize,
    handle: Handle,
    bytes: usize,
    place: Mutex<Place>,
}

/// Why memory cannot be had.
type Source = Arc<dyn Error + Send + Sync>;

/// Memory that nobody but CubeCL gets at.
#[derive(Debug, thiserror::Error)]
#[error("its memory has no addresses, as only CUDA's has")]
struct NoAddress;

/// Where the memory is for queues that CubeCL does not know.
enum Place {
    /// Not on a CUDA device: nobody but CubeCL gets at it.
    Elsewhere,
    /// What was queued when this began has to end first.
    Busy {
        end: DynFut<Result<(), ServerError>>,
        pinned: Result<Pinned, Source>,
    },
    Ready(Result<Pinned, Source>),
}

/// An address, and what keeps it right: CubeCL moves memory that nobody pins.
struct Pinned {
    address: u64,
    /// Held, not read.
    _memory: Box<dyn Any + Send>,
}

impl DeviceTensor {
    /// The memory of `tensor`, which is made contiguous; `None` if it has none on a device.
    pub(crate) fn of(tensor: &AnyTensor) -> Option<Self> {
        let elements = tensor.shape().iter().product::<usize>();
        if elements == 0 || tensor.is_on_host() {
            return None;
        }
        let device = tensor.device();
        let memory = cube::memory(tensor)?;
        let bytes = elements * memory.elem_size();
        let CubeTensor { client, handle, device: cube, .. } = memory;
        Some(Self::new(client, device, cube, handle, bytes))
    }

    fn new(client: Client, device: Device, cube: CubeDevice, handle: Handle, bytes: usize) -> Self {
        // Both are said to the device's thread now, so that later work is not waited for.
        let place = match cube {
            CubeDevice::Cuda(_) => Place::Busy { pinned: pin(&client, &handle), end: client.sync() },
            _ => Place::Elsewhere,
        };
        let ordinal = usize::from(cube.to_id().index_id);
        Self { client, device, cube, ordinal, handle, bytes, place: Mutex::new(place) }
    }

    /// The address, when everything that was queued before this was made is done.
    fn settled(&self) -> Result<u64, Source> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        *place = match std::mem::replace(&mut *place, Place::Elsewhere) {
            Place::Busy { end, pinned } => {
                let end = future::block_on(end).map_err(|error| Arc::new(error) as Source);
                Place::Ready(end.and(pinned))
            }
            other => other,
        };
        match &*place {
            Place::Ready(pinned) => pinned.as_ref().map(|pinned| pinned.address).map_err(Clone::clone),
            _ => Err(Arc::new(NoAddress)),
        }
    }

    /// The elements as a flat tensor.
    fn flat<E: Number>(&self) -> AnyTensor {
        let elements = self.bytes / size_of::<E>();
        let (client, cube) = (self.client.clone(), self.cube.clone());
        let dtype = <E as Element>::dtype();
        let shape = [elements].into();
        cube::tensor(CubeTensor::new_contiguous(client, cube, shape, self.handle.clone(), dtype))
    }

    fn lost(&self, source: Source) -> DeviceError {
        DeviceError::Lost { ordinal: self.ordinal, bytes: self.bytes, source }
    }
}

/// The elements of a bucket as a tensor, if they lie on `device` already.
pub(crate) fn adopted<E: Number>(bucket: &Bucket<E>, shape: &[usize], device: &Device) -> Option<AnyTensor> {
    let (memory, Range { start, end }) = bucket.device()?;
    let there = memory.as_any().downcast_ref::<DeviceTensor>().filter(|there| there.device == *device)?;
    let each = size_of::<E>();
    let whole = there.bytes.is_multiple_of(each) && start.is_multiple_of(each);
    whole.then(|| there.flat::<E>().piece(start / each..end / each, shape))
}

#[cfg(not(feature = "cuda"))]
fn pin(_: &Client, _: &Handle) -> Result<Pinned, Source> {
    Err(Arc::new(NoAddress))
}

#[cfg(feature = "cuda")]
fn pin(client: &Client, handle: &Handle) -> Result<Pinned, Source> {
    use burn_cubecl::cubecl::cuda::CudaRuntime;
    use cubecl_runtime::runtime::Runtime;

    let memory = client.get_resource::<<CudaRuntime as Runtime>::Server>(handle.clone());
    let memory = memory.map_err(|error| Arc::new(error) as Source)?;
    Ok(Pinned { address: memory.resource().ptr, _memory: Box::new(memory) })
}

impl DeviceMemory for DeviceTensor {
    fn ordinal(&self) -> usize {
        self.ordinal
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn to_host(&self) -> Result<Aligned, DeviceError> {
        let read = self.client.read_one(self.handle.clone());
        let read = read.map_err(|error| self.lost(Arc::new(error)))?;
        Ok(Aligned::copy_of(&read[..self.bytes]))
    }

    fn address(&self) -> Result<u64, DeviceError> {
        self.settled().map_err(|error| self.lost(error))
    }

    fn empty(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, DeviceError> {
        let handle = self.client.empty(bytes);
        let (client, device, cube) = (self.client.clone(), self.device.clone(), self.cube.clone());
        let new = Self::new(client, device, cube, handle, bytes);
        // Memory is taken by the device's thread: that there is none shows where it is pinned.
        if let Err(source) = new.settled() {
            return Err(DeviceError::Full { ordinal: self.ordinal, bytes, source });
        }
        Ok(Arc::new(new))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTensor({} bytes on {:?})", self.bytes, self.device)
    }
}
