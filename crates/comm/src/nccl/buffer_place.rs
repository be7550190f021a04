//! Device memory that a call reads or writes.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::result::{memcpy_dtod_async, memcpy_dtoh_async, memcpy_htod_async};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::NcclError;
use crate::transport::{Aligned, Bytes, DeviceMemory};

/// Bytes on the device of a lane.
pub(super) enum Place {
    /// Memory of the lane's own, for elements that come from the host and go there.
    Own(CudaSlice<u8>),
    /// The caller's memory, from this byte on.
    Given(Arc<dyn DeviceMemory>, usize),
    /// No bytes.
    Nothing,
}

impl Place {
    /// The memory that `bytes` lie in, or a copy of them.
    pub(super) fn of(bytes: &Bytes, stream: &Arc<CudaStream>) -> Result<Self, NcclError> {
        if bytes.is_empty() {
            return Ok(Self::Nothing);
        }
        if let Some((memory, range)) = bytes.device()
            && memory.ordinal() == stream.context().ordinal()
        {
            return Ok(Self::Given(Arc::clone(memory), range.start));
        }
        let host = bytes.to_host()?;
        let own = Self::own(host.len(), stream)?;
        // SAFETY: the copy is queued behind the allocation on the same stream. The bytes are the request's, which
        // outlives the call; after an abort they are leaked with it.
        let copied = unsafe { memcpy_htod_async(own.address(stream)?, host, stream.cu_stream()) };
        copied.map_err(|error| NcclError::cuda("copying to the device", error))?;
        Ok(own)
    }

    /// Room for `bytes` bytes: like the caller's memory if there is some, else the lane's own.
    pub(super) fn room(
        bytes: usize,
        like: Option<&Arc<dyn DeviceMemory>>,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, NcclError> {
        match like {
            _ if bytes == 0 => Ok(Self::Nothing),
            Some(like) => Ok(Self::Given(like.empty(bytes)?, 0)),
            None => Self::own(bytes, stream),
        }
    }

    fn own(bytes: usize, stream: &Arc<CudaStream>) -> Result<Self, NcclError> {
        // SAFETY: all bytes are written, by a copy or by NCCL, before any is read.
        let slice = unsafe { stream.alloc::<u8>(bytes) };
        slice.map(Self::Own).map_err(|error| NcclError::allocation(stream.context().ordinal(), bytes, error))
    }

    /// The address on the device, for work on the lane's stream. Waits for what was queued on the caller's memory.
    pub(super) fn address(&self, stream: &CudaStream) -> Result<u64, NcclError> {
        match self {
            // Only the lane's stream ever uses it, so there is nothing to wait for.
            Self::Own(slice) => Ok(slice.device_ptr(stream).0),
            Self::Given(memory, start) => Ok(memory.address()? + *start as u64),
            Self::Nothing => Ok(0),
        }
    }

    /// The first `bytes` bytes, of which the stream's work is done: where they are, or copied to the host.
    pub(super) fn result(self, bytes: usize, stream: &CudaStream) -> Result<Bytes, NcclError> {
        match self {
            Self::Given(memory, start) => Ok(Bytes::on_device(memory).slice(start..start + bytes)),
            Self::Nothing => Ok(Bytes::empty()),
            Self::Own(slice) => {
                let mut host = Aligned::zeroed(bytes);
                let from = slice.device_ptr(stream).0;
                // SAFETY: the stream is waited for before the bytes are looked at or dropped.
                let copied = unsafe { memcpy_dtoh_async(host.as_mut(), from, stream.cu_stream()) };
                copied
                    .and_then(|()| stream.synchronize())
                    .map_err(|error| NcclError::cuda("copying from the device", error))?;
                Ok(host.freeze())
            }
        }
    }
}

/// Copies bytes of one place to another, on the stream.
pub(super) fn copy(
    (to, into): (u64, &Range<usize>),
    (from, out): (u64, &Range<usize>),
    stream: &CudaStream,
) -> Result<(), NcclError> {
    if out.is_empty() {
        return Ok(());
    }
    // SAFETY: both ranges lie in places that live until the stream's work is done, or are leaked.
    let copied = unsafe {
        memcpy_dtod_async(to + into.start as u64, from + out.start as u64, out.len(), stream.cu_stream())
    };
    copied.map_err(|error| NcclError::cuda("copying on the device", error))
}
