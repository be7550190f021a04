//! A communicator of NCCL on a stream of its own, with buffers that come from and go to host memory.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use cudarc::nccl::sys;

use super::NcclError;
use super::staging::Wide;
use crate::Aligned;

/// Bytes of NCCL's identifier of a communicator.
pub(super) const ID: usize = 128;

/// Whether CUDA and NCCL can be loaded.
pub(super) fn present() -> Result<(), NcclError> {
    // SAFETY: loads a library and lets go of it; system libraries may be loaded at any time.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(NcclError::Missing { library: "CUDA driver", mend: "install NVIDIA's driver" });
    }
    // SAFETY: as above.
    if !unsafe { sys::is_culib_present() } {
        let mend = "install libnccl2 (libnccl.so.2 in the loader's path)";
        return Err(NcclError::Missing { library: "NCCL library", mend });
    }
    Ok(())
}

fn checked(function: &'static str, result: sys::ncclResult_t) -> Result<(), NcclError> {
    if result == sys::ncclResult_t::ncclSuccess || result == sys::ncclResult_t::ncclInProgress {
        return Ok(());
    }
    // SAFETY: NCCL gives a static string for every result.
    let text = unsafe { CStr::from_ptr(sys::ncclGetErrorString(result)) };
    Err(NcclError::Nccl { function, code: format!("{result:?}"), text: text.to_string_lossy().into_owned() })
}

fn cuda<T>(what: &'static str, result: Result<T, cudarc::driver::DriverError>) -> Result<T, NcclError> {
    result.map_err(|error| NcclError::cuda(what, error))
}

/// A new identifier, to be given to every rank of a communicator.
pub(super) fn identifier() -> Result<[u8; ID], NcclError> {
    let mut id = sys::ncclUniqueId { internal: [0; ID] };
    // SAFETY: NCCL writes the identifier.
    checked("ncclGetUniqueId", unsafe { sys::ncclGetUniqueId(&raw mut id) })?;
    Ok(id.internal.map(|byte| byte.cast_unsigned()))
}

/// What a native collective does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Native {
    /// Sum of all, to all.
    AllReduce(Wide),
    /// Sum of all, an equal part to each.
    ReduceScatter(Wide),
    /// Equal parts of all, to all.
    AllGather,
    /// The root's, to all.
    Broadcast(usize),
}

/// This rank in a communicator.
pub(super) struct Communicator {
    handle: sys::ncclComm_t,
    stream: Arc<CudaStream>,
    size: usize,
    aborted: bool,
}

// SAFETY: NCCL's calls on a communicator may come from any thread, one at a time; a lane's thread owns it.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins the communicator `id` as member `me` of `size`. Waits for the others to do so.
    pub(super) fn new(
        stream: Arc<CudaStream>,
        id: &[u8; ID],
        size: usize,
        me: usize,
    ) -> Result<Self, NcclError> {
        cuda("taking the device", stream.context().bind_to_thread())?;
        let mut handle = ptr::null_mut();
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte.cast_signed() as c_char) };
        // SAFETY: NCCL writes the handle; the device's context is this thread's.
        checked("ncclCommInitRank", unsafe {
            sys::ncclCommInitRank(&raw mut handle, int(size), id, int(me))
        })?;
        Ok(Self { handle, stream, size, aborted: false })
    }

    fn stream(&self) -> sys::cudaStream_t {
        self.stream.cu_stream().cast()
    }

    /// Runs a collective of NCCL over `bytes`, giving `result` bytes; `watch` says when to give up.
    pub(super) fn native<E: From<NcclError>>(
        &mut self,
        native: Native,
        bytes: &[u8],
        result: usize,
        watch: impl FnMut() -> Result<(), E>,
    ) -> Result<Aligned, E> {
        let send = self.upload(bytes)?;
        let mut receive = self.allocate(result)?;
        if bytes.len().max(result) > 0 {
            let (from, _sent) = send.device_ptr(&self.stream);
            let (into, _received) = receive.device_ptr_mut(&self.stream);
            let (from, into) = (from as *const c_void, into as *mut c_void);
            let (comm, stream, sum) = (self.handle, self.stream(), sys::ncclRedOp_t::ncclSum);
            // SAFETY: both buffers live on this communicator's device until the work on its stream is complete:
            // `finish` waits for that, or leaks them; they hold the elements that are named.
            let (function, code) = unsafe {
                match native {
                    Native::AllReduce(wide) => {
                        let (kind, each) = kind(wide);
                        let count = bytes.len() / each;
                        ("ncclAllReduce", sys::ncclAllReduce(from, into, count, kind, sum, comm, stream))
                    }
                    Native::ReduceScatter(wide) => {
                        let (kind, each) = kind(wide);
                        let count = result / each;
                        (
                            "ncclReduceScatter",
                            sys::ncclReduceScatter(from, into, count, kind, sum, comm, stream),
                        )
                    }
                    Native::AllGather => {
                        let kind = sys::ncclDataType_t::ncclUint8;
                        ("ncclAllGather", sys::ncclAllGather(from, into, bytes.len(), kind, comm, stream))
                    }
                    Native::Broadcast(root) => {
                        let kind = sys::ncclDataType_t::ncclUint8;
                        (
                            "ncclBroadcast",
                            sys::ncclBroadcast(from, into, result, kind, int(root), comm, stream),
                        )
                    }
                }
            };
            checked(function, code)?;
        }
        let mut host = self.finish(vec![send], vec![(receive, result)], watch)?;
        Ok(host.pop().unwrap_or_else(|| Aligned::zeroed(0)))
    }

    /// Sends `send[m]` to each member m, and receives `receive[m]` bytes from it, all at once. Nothing goes to oneself.
    pub(super) fn exchange<E: From<NcclError>>(
        &mut self,
        send: &[&[u8]],
        receive: &[usize],
        watch: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<Aligned>, E> {
        let mut out = Vec::new();
        let mut into = Vec::new();
        for (bytes, &length) in send.iter().zip(receive) {
            out.push(self.upload(bytes)?);
            into.push((self.allocate(length)?, length));
        }
        let kind = sys::ncclDataType_t::ncclUint8;
        let (comm, stream) = (self.handle, self.stream());
        // SAFETY: no arguments.
        checked("ncclGroupStart", unsafe { sys::ncclGroupStart() })?;
        let mut step = Ok(());
        for member in 0..self.size {
            if !send[member].is_empty() {
                let (from, _sent) = out[member].device_ptr(&self.stream);
                // SAFETY: as in `native`.
                let code = unsafe {
                    sys::ncclSend(from as *const c_void, send[member].len(), kind, int(member), comm, stream)
                };
                step = step.and(checked("ncclSend", code));
            }
            let (buffer, length) = &mut into[member];
            if *length > 0 {
                let (to, _received) = buffer.device_ptr_mut(&self.stream);
                // SAFETY: as in `native`.
                let code =
                    unsafe { sys::ncclRecv(to as *mut c_void, *length, kind, int(member), comm, stream) };
                step = step.and(checked("ncclRecv", code));
            }
        }
        // SAFETY: ends the group that was started above, whatever became of its calls.
        let end = checked("ncclGroupEnd", unsafe { sys::ncclGroupEnd() });
        step.and(end)?;
        self.finish(out, into, watch)
    }

    fn upload(&self, bytes: &[u8]) -> Result<CudaSlice<u8>, NcclError> {
        if bytes.is_empty() {
            return self.allocate(0);
        }
        cuda("copying to the device", self.stream.clone_htod(bytes))
    }

    fn allocate(&self, bytes: usize) -> Result<CudaSlice<u8>, NcclError> {
        cuda("allocating on the device", self.stream.alloc_zeros::<u8>(bytes.max(1)))
    }

    /// Waits for the stream and copies the results to the host.
    fn finish<E: From<NcclError>>(
        &mut self,
        sent: Vec<CudaSlice<u8>>,
        received: Vec<(CudaSlice<u8>, usize)>,
        mut watch: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<Aligned>, E> {
        let step = self.complete(&mut watch);
        if let Err(error) = step {
            self.abort();
            // The device may still be at it.
            std::mem::forget((sent, received));
            return Err(error);
        }
        let mut host = Vec::new();
        for (buffer, length) in received {
            let mut bytes = Aligned::zeroed(length);
            if length > 0 {
                cuda(
                    "copying from the device",
                    self.stream.memcpy_dtoh(&buffer.slice(..length), bytes.as_mut()),
                )?;
            }
            host.push(bytes);
        }
        cuda("copying from the device", self.stream.synchronize())?;
        Ok(host)
    }

    fn complete<E: From<NcclError>>(&self, watch: &mut impl FnMut() -> Result<(), E>) -> Result<(), E> {
        let event = cuda("recording an event", self.stream.record_event(None))?;
        while !cuda("waiting for the device", event.try_is_complete())? {
            let mut state = sys::ncclResult_t::ncclSuccess;
            // SAFETY: NCCL writes the state.
            let asked = unsafe { sys::ncclCommGetAsyncError(self.handle, &raw mut state) };
            checked("ncclCommGetAsyncError", asked)?;
            checked("an operation under way", state)?;
            watch()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn abort(&mut self) {
        if !self.aborted {
            self.aborted = true;
            // SAFETY: the handle is a communicator's, and is not used any more. There is nothing to do about a failure.
            let _ = unsafe { sys::ncclCommAbort(self.handle) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.aborted {
            // SAFETY: nothing is under way, as every call was waited for; the handle is not used any more.
            let _ = unsafe { sys::ncclCommDestroy(self.handle) };
        }
    }
}

fn kind(wide: Wide) -> (sys::ncclDataType_t, usize) {
    match wide {
        Wide::F32 => (sys::ncclDataType_t::ncclFloat32, 4),
        Wide::F64 => (sys::ncclDataType_t::ncclFloat64, 8),
        Wide::U64 => (sys::ncclDataType_t::ncclUint64, 8),
    }
}

fn int(number: usize) -> i32 {
    i32::try_from(number).expect("invariant: ranks fit into 31 bits")
}
