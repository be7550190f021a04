//! Devices, contexts, memory and copies.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
use std::mem::MaybeUninit;
use std::slice;
use std::sync::{Arc, Mutex, OnceLock};

use crate::capture::Status;
use crate::code::{
    Code, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_SUPPORTED, SUCCESS,
    given, put,
};
use crate::counts::{self, RUNNING};
use crate::node::Kind;
use crate::stream::{self, Stream};
use crate::{capture, graph, lock, memory, variable};

/// The version of CUDA that this driver is of.
const VERSION: c_int = 12080;
/// Handle of the first device's context.
const CONTEXT: usize = 0x1000;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

fn devices() -> usize {
    variable("FAKE_CUDA_DEVICES", 1) as usize
}

fn known(device: c_int) -> Result<usize, Code> {
    usize::try_from(device).ok().filter(|&device| device < devices()).ok_or(INVALID_DEVICE)
}

/// The device of this thread's context.
pub(crate) fn current() -> Result<usize, Code> {
    CURRENT.get().checked_sub(CONTEXT).ok_or(INVALID_CONTEXT)
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> Code {
    counts::report_at_exit();
    if devices() == 0 { NO_DEVICE } else { SUCCESS }
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: &mut MaybeUninit<c_int>) -> Code {
    put(version, Ok(VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: &mut MaybeUninit<c_int>) -> Code {
    put(count, Ok(devices() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: &mut MaybeUninit<c_int>, ordinal: c_int) -> Code {
    put(device, known(ordinal).map(|_| ordinal))
}

/// Writes `text` and a zero to `room` bytes at `place`.
///
/// # Safety
/// There are so many bytes to write to.
unsafe fn text(place: *mut c_char, room: c_int, text: &str) -> Code {
    let room = usize::try_from(room).unwrap_or(0);
    if place.is_null() || room <= text.len() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller has `room` bytes there, and the text with its end is not longer.
    let place = unsafe { slice::from_raw_parts_mut(place.cast::<u8>(), text.len() + 1) };
    place[..text.len()].copy_from_slice(text.as_bytes());
    place[text.len()] = 0;
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, _device: c_int) -> Code {
    // SAFETY: the interface promises `room` bytes at `name`.
    unsafe { text(name, room, "Fake H100") }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, room: c_int, device: c_int) -> Code {
    // SAFETY: the interface promises `room` bytes at `id`.
    unsafe { text(id, room, &format!("0000:{:02x}:00.0", device + 1)) }
}

fn uuid(device: c_int) -> Result<[u8; 16], Code> {
    known(device).map(|device| [device as u8 + 1; 16])
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(place: &mut MaybeUninit<[u8; 16]>, device: c_int) -> Code {
    put(place, uuid(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(place: &mut MaybeUninit<[u8; 16]>, device: c_int) -> Code {
    put(place, uuid(device))
}

/// Threads of a block along x, y and z; not more than the first in all.
pub(crate) const MOST_THREADS: [u64; 3] = [1024, 1024, 64];
/// Blocks of a grid.
pub(crate) const MOST_BLOCKS: [u64; 3] = [i32::MAX as u64, 65_535, 65_535];
/// Bytes of shared memory of a block.
pub(crate) const MOST_SHARED: u64 = 232_448;

/// Which hardware the devices are: 80 is sm_80.
fn architecture() -> u64 {
    variable("FAKE_CUDA_ARCH", 90)
}

/// What an H100 (sm_90) answers, by the attributes' numbers; 0 for what nobody has asked for yet.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: &mut MaybeUninit<c_int>, attribute: c_uint, device: c_int) -> Code {
    let answer = match attribute {
        1 => MOST_THREADS[0] as c_int,                          // threads of a block
        2..=4 => MOST_THREADS[attribute as usize - 2] as c_int, // along its x, y and z
        5..=7 => MOST_BLOCKS[attribute as usize - 5] as c_int,  // blocks along a grid's
        8 => 49_152,                                            // shared memory of a block
        10 => 32,                                               // threads of a warp
        12 | 82 => 65_536,                                      // registers of a block, of a multiprocessor
        13 => 1_980_000,                                        // clock, kHz
        16 => 132,                                              // multiprocessors
        33 => device + 1,                                       // PCI bus
        36 => 2_619_000,                                        // memory clock, kHz
        37 => 5120,                                             // memory bus, bits
        38 => 52_428_800,                                       // second-level cache
        39 => 2048,                                             // threads of a multiprocessor
        41 | 89 | 115 | 127 => 1, // one address space; managed access; memory pools; tensor maps
        75 => (architecture() / 10) as c_int, // compute capability
        76 => (architecture() % 10) as c_int,
        81 => 233_472,              // shared memory of a multiprocessor
        97 => MOST_SHARED as c_int, // shared memory of a block that asks for more
        106 => 32,                  // blocks of a multiprocessor
        _ => 0,
    };
    put(value, known(device).map(|_| answer))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: &mut MaybeUninit<usize>, device: c_int) -> Code {
    put(bytes, known(device).map(|_| memory::capacity() as usize))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: &mut MaybeUninit<c_int>, device: c_int, peer: c_int) -> Code {
    put(can, known(device).and(known(peer)).map(|_| 1))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: &mut MaybeUninit<usize>, device: c_int) -> Code {
    put(context, known(device).map(|device| CONTEXT + device))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: &mut MaybeUninit<usize>) -> Code {
    put(context, Ok(CURRENT.get()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> Code {
    if context != 0 && !(CONTEXT..CONTEXT + devices()).contains(&context) {
        return INVALID_CONTEXT;
    }
    CURRENT.set(context);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: &mut MaybeUninit<c_int>) -> Code {
    put(device, current().map(|device| device as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Code {
    counts::one(&RUNNING.synchronizations);
    given(current().and_then(|device| {
        capture::refuse_device(device)?;
        stream::finish(device)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(_flags: c_uint) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(_context: usize, _flags: c_uint) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(
    least: &mut MaybeUninit<c_int>,
    greatest: &mut MaybeUninit<c_int>,
) -> Code {
    least.write(0);
    put(greatest, Ok(-5))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: &mut MaybeUninit<usize>, total: &mut MaybeUninit<usize>) -> Code {
    total.write(memory::capacity() as usize);
    put(free, current().map(|device| memory::capacity().saturating_sub(memory::used(device)) as usize))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: &mut MaybeUninit<u64>, bytes: usize) -> Code {
    let device = capture::refuse_unsafe().and_then(|()| current());
    put(address, device.and_then(|device| memory::allocate(device, bytes)))
}

/// The memory is there at once, outside captures; that it may be used only by work that comes after is not checked.
#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(place: &mut MaybeUninit<u64>, bytes: usize, on: usize) -> Code {
    let allocate = |stream: Arc<Stream>| {
        if capture::status(&stream) == Status::None {
            return memory::allocate(stream.device, bytes);
        }
        let (device, address) = (stream.device, memory::reserve(bytes)?);
        stream.take(Kind::Allocation(address), move |_| memory::fill_in(device, address, bytes))?;
        Ok(address)
    };
    put(place, stream::of(on).and_then(allocate))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> Code {
    if address == 0 {
        return SUCCESS;
    }
    if let Err(code) = capture::refuse_unsafe() {
        return given(Err(code));
    }
    if let Some(device) = memory::device_of(address) {
        let _ = stream::finish(device);
    }
    graph::freed(address);
    given(memory::free(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, on: usize) -> Code {
    let free = move |_: &Stream| memory::free(address);
    given(stream::of(on).and_then(|stream| stream.take(Kind::Free(address), free).map(drop)))
}

/// Page-locked memory of the host, by address: words, so that it is aligned.
static PINNED: Mutex<Option<HashMap<usize, Vec<u64>>>> = Mutex::new(None);

/// Whether the bytes at `address` are page-locked: copies of such bytes do not wait.
fn is_pinned(address: usize) -> bool {
    let all = lock(&PINNED);
    all.iter().flatten().any(|(&start, words)| (start..start + 8 * words.len()).contains(&address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocHost_v2(place: &mut MaybeUninit<usize>, bytes: usize) -> Code {
    if let Err(code) = capture::refuse_unsafe() {
        return given(Err(code));
    }
    let words = vec![0_u64; bytes.div_ceil(8).max(1)];
    let address = words.as_ptr().expose_provenance();
    lock(&PINNED).get_or_insert_default().insert(address, words);
    put(place, Ok(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(place: &mut MaybeUninit<usize>, bytes: usize, _flags: c_uint) -> Code {
    cuMemAllocHost_v2(place, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: usize) -> Code {
    given(
        capture::refuse_unsafe().and_then(|()| {
            lock(&PINNED).get_or_insert_default().remove(&address).map(drop).ok_or(INVALID_VALUE)
        }),
    )
}

/// Bytes of the host that a copy reads or writes.
#[derive(Clone, Copy)]
struct Host {
    address: usize,
    bytes: usize,
}

impl Host {
    /// # Safety
    /// The bytes are there and nobody writes to them.
    unsafe fn read(self) -> Vec<u8> {
        if self.bytes == 0 {
            return Vec::new();
        }
        // SAFETY: as the caller promises.
        unsafe { slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(self.address), self.bytes) }
            .to_vec()
    }

    /// # Safety
    /// The bytes are there and nobody else uses them.
    unsafe fn write(self, from: &[u8]) {
        if !from.is_empty() {
            // SAFETY: as the caller promises.
            unsafe {
                slice::from_raw_parts_mut(
                    std::ptr::with_exposed_provenance_mut::<u8>(self.address),
                    self.bytes,
                )
            }
            .copy_from_slice(from);
        }
    }
}

/// A piece of a copy between device memory and the host.
#[derive(Clone, Copy)]
struct Piece {
    device: u64,
    host: Host,
}

/// A copy in one piece.
fn one(device: u64, address: usize, bytes: usize) -> Vec<Piece> {
    vec![Piece { device, host: Host { address, bytes } }]
}

fn bytes(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.host.bytes).sum()
}

fn are_pinned(pieces: &[Piece]) -> bool {
    pieces.iter().all(|piece| is_pinned(piece.host.address))
}

/// Refuses to copy bytes that were page-locked when the copy was asked for, and are gone.
fn are_still(pinned: bool, pieces: &[Piece]) -> Result<(), Code> {
    if !pinned || are_pinned(pieces) {
        return Ok(());
    }
    counts::one(&RUNNING.faults);
    eprintln!("fake CUDA: a copy's page-locked bytes of the host were freed");
    Err(ILLEGAL_ADDRESS)
}

/// Copies to the device. Pageable bytes are taken before the call returns, page-locked ones when the stream is there, and
/// those of a captured copy, of either kind, at each launch.
fn upload(pieces: Vec<Piece>, on: &Stream) -> Result<(), Code> {
    let (kind, pinned) = (Kind::Upload(bytes(&pieces)), are_pinned(&pieces));
    if pinned || capture::status(on) != Status::None {
        let copy = move |_: &Stream| {
            are_still(pinned, &pieces)?;
            pieces.iter().try_for_each(|piece| {
                // SAFETY: the caller leaves page-locked bytes alone until the stream has read them, and those of a
                // captured copy until the last launch has.
                memory::write(piece.device, &unsafe { piece.host.read() })
            })
        };
        return on.take(kind, copy).map(drop);
    }
    // SAFETY: the caller's bytes are there during the call.
    let read = |piece: Piece| (piece.device, unsafe { piece.host.read() });
    let parts: Vec<_> = pieces.into_iter().map(read).collect();
    on.take(kind, move |_| parts.iter().try_for_each(|(to, bytes)| memory::write(*to, bytes))).map(drop)
}

/// What the host reads in place of what kernels that did nothing left: `FAKE_CUDA_ANSWER`.
fn answer() -> Option<f32> {
    static ANSWER: OnceLock<Option<f32>> = OnceLock::new();
    *ANSWER.get_or_init(|| std::env::var("FAKE_CUDA_ANSWER").ok()?.trim().parse().ok())
}

/// Copies to the host. Returns when pageable bytes are there; page-locked ones come when the stream is there, and those of
/// a captured copy, of either kind, at each launch.
fn download(pieces: Vec<Piece>, on: &Stream) -> Result<(), Code> {
    let (kind, pinned) = (Kind::Download(bytes(&pieces)), are_pinned(&pieces));
    let queued = on.take(kind, move |_| {
        are_still(pinned, &pieces)?;
        pieces.iter().try_for_each(|piece| {
            let mut bytes = memory::read(piece.device, piece.host.bytes)?;
            if let Some(answer) = answer() {
                bytes.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&answer.to_le_bytes()));
            }
            // SAFETY: the caller leaves page-locked bytes alone until the stream has written them, those of a captured
            // copy until the last launch has, and waits below for pageable ones.
            unsafe { piece.host.write(&bytes) };
            Ok(())
        })
    })?;
    if pinned || !queued {
        return Ok(());
    }
    counts::one(&RUNNING.synchronizations);
    on.wait();
    stream::sound(on.device)
}

fn within(to: u64, from: u64, bytes: usize, on: usize) -> Result<Arc<Stream>, Code> {
    let on = stream::of(on)?;
    on.take(Kind::Copy, move |_| memory::write(to, &memory::read(from, bytes)?))?;
    Ok(on)
}

/// The device's own stream, for a call that waits for it.
fn own() -> Result<Arc<Stream>, Code> {
    let on = stream::of(0)?;
    capture::refuse_unsafe()?;
    Ok(on)
}

fn waited(on: Arc<Stream>) -> Result<(), Code> {
    on.wait();
    stream::sound(on.device)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, address: usize, bytes: usize) -> Code {
    let pieces = one(to, address, bytes);
    given(own().and_then(|on| upload(pieces, &on).and_then(|()| waited(on))))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, address: usize, bytes: usize, on: usize) -> Code {
    given(stream::of(on).and_then(|on| upload(one(to, address, bytes), &on)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(address: usize, from: u64, bytes: usize) -> Code {
    let pieces = one(from, address, bytes);
    given(own().and_then(|on| download(pieces, &on).and_then(|()| waited(on))))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(address: usize, from: u64, bytes: usize, on: usize) -> Code {
    given(stream::of(on).and_then(|on| download(one(from, address, bytes), &on)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> Code {
    given(own().and_then(|_| within(to, from, bytes, 0)).and_then(waited))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, on: usize) -> Code {
    given(within(to, from, bytes, on).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    _to_context: usize,
    from: u64,
    _from_context: usize,
    bytes: usize,
    on: usize,
) -> Code {
    given(within(to, from, bytes, on).map(drop))
}

/// One side of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Side {
    x: usize,
    y: usize,
    kind: c_uint,
    host: usize,
    device: u64,
    array: usize,
    pitch: usize,
}

impl Side {
    const HOST: c_uint = 1;
    const DEVICE: c_uint = 2;

    fn row(&self, row: usize) -> usize {
        (self.y + row) * self.pitch + self.x
    }
}

/// A `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rows {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(rows: &Rows, on: usize) -> Code {
    let Rows { from, to, width, height } = *rows;
    let pieces = |device: Side, host: Side| {
        let piece = |row| Piece {
            device: device.device + device.row(row) as u64,
            host: Host { address: host.host + host.row(row), bytes: width },
        };
        (0..height).map(piece).collect()
    };
    given(stream::of(on).and_then(|on| match (from.kind, to.kind) {
        (Side::HOST, Side::DEVICE) => upload(pieces(to, from), &on),
        (Side::DEVICE, Side::HOST) => download(pieces(from, to), &on),
        (Side::DEVICE, Side::DEVICE) => {
            let copy = move |_: &Stream| {
                (0..height).try_for_each(|row| {
                    let bytes = memory::read(from.device + from.row(row) as u64, width)?;
                    memory::write(to.device + to.row(row) as u64, &bytes)
                })
            };
            on.take(Kind::Copy, copy).map(drop)
        }
        _ => Err(NOT_SUPPORTED),
    }))
}

fn set(to: u64, value: Vec<u8>, count: usize, on: usize) -> Result<Arc<Stream>, Code> {
    let on = stream::of(on)?;
    on.take(Kind::Set, move |_| memory::fill(to, count * value.len(), &value))?;
    Ok(on)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) -> Code {
    given(own().and_then(|_| set(to, vec![value], count, 0)).and_then(waited))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, on: usize) -> Code {
    given(set(to, vec![value], count, on).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, on: usize) -> Code {
    given(set(to, value.to_ne_bytes().to_vec(), count, on).map(drop))
}

/// Attributes of a pointer: only which device's memory it is (`CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`).
#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(place: *mut c_void, attribute: c_uint, address: u64) -> Code {
    const ORDINAL: c_uint = 9;
    match (attribute, memory::device_of(address)) {
        (ORDINAL, Some(device)) if !place.is_null() => {
            // SAFETY: the interface promises a C int at `place` for this attribute.
            unsafe { place.cast::<c_int>().write(device as c_int) };
            SUCCESS
        }
        _ => INVALID_VALUE,
    }
}
