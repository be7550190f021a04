//! Captures and launches, by the calls of a program.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;
use std::sync::{MutexGuard, Once};

use super::*;
use crate::code::{
    CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURE_UNJOINED, CAPTURE_UNMATCHED,
    CAPTURE_WRONG_THREAD, CAPTURED_EVENT, ILLEGAL_ADDRESS, ILLEGAL_STATE, SUCCESS,
};

unsafe extern "C" {
    fn cuCtxSetCurrent(context: usize) -> Code;
    fn cuCtxSynchronize() -> Code;
    fn cuEventCreate(event: *mut usize, flags: c_uint) -> Code;
    fn cuEventQuery(event: usize) -> Code;
    fn cuEventRecord(event: usize, on: usize) -> Code;
    fn cuEventSynchronize(event: usize) -> Code;
    fn cuLaunchKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        on: usize,
        arguments: *const *const c_void,
        extra: usize,
    ) -> Code;
    fn cuMemAllocAsync(address: *mut u64, bytes: usize, on: usize) -> Code;
    fn cuMemAllocHost_v2(place: *mut usize, bytes: usize) -> Code;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Code;
    fn cuMemFreeAsync(address: u64, on: usize) -> Code;
    fn cuMemFreeHost(place: usize) -> Code;
    fn cuMemFree_v2(address: u64) -> Code;
    fn cuMemcpyDtoHAsync_v2(place: usize, from: u64, bytes: usize, on: usize) -> Code;
    fn cuMemcpyDtoH_v2(place: usize, from: u64, bytes: usize) -> Code;
    fn cuMemcpyHtoDAsync_v2(to: u64, place: usize, bytes: usize, on: usize) -> Code;
    fn cuMemcpyHtoD_v2(to: u64, place: usize, bytes: usize) -> Code;
    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, on: usize) -> Code;
    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> Code;
    fn cuModuleLoadData(module: *mut usize, image: *const c_void) -> Code;
    fn cuStreamCreate(stream: *mut usize, flags: c_uint) -> Code;
    fn cuStreamDestroy_v2(stream: usize) -> Code;
    fn cuStreamQuery(stream: usize) -> Code;
    fn cuStreamSynchronize(stream: usize) -> Code;
    fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) -> Code;
}

/// Calls the driver, with the code that comes of it.
macro_rules! call {
    ($function:ident($($argument:expr),*)) => {{
        // SAFETY: the arguments are of the test, which lets them be until the work is done.
        #[allow(unused_unsafe, reason = "some are safe")]
        unsafe { $function($($argument),*) }
    }};
}

/// Calls the driver, which must not fail.
macro_rules! run {
    ($function:ident($($argument:expr),*)) => {
        assert_eq!(call!($function($($argument),*)), SUCCESS, stringify!($function))
    };
}

const GLOBAL: c_uint = 0;
const LOCAL: c_uint = 1;
const RELAXED: c_uint = 2;
const COUNT: usize = 64;
const BYTES: usize = 4 * COUNT;

/// `y[i] = a x[i] + y[i]` in a block of 64 threads.
const SCALED_SUM: &str = r"
.version 8.8
.target sm_90a
.address_size 64
.visible .entry scaled_sum_0(.param .u64 x, .param .u64 y, .param .f32 a)
.maxntid 64, 1, 1
{
    .reg .f32 %f<5>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [a];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd3, %rd5;
    add.s64 %rd7, %rd4, %rd5;
    ld.global.nc.f32 %f2, [%rd6];
    ld.global.f32 %f3, [%rd7];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%rd7], %f4;
    ret;
}
";

/// The driver for one test: captures look at all of a process.
struct Driver(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Driver {
    /// On a device: 0, or one that the test breaks.
    fn of(device: usize) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        static DEVICES: Once = Once::new();
        let held = lock(&ONE);
        // SAFETY: nothing but Rust's library looks at the environment of this process, and that waits.
        DEVICES.call_once(|| unsafe { std::env::set_var("FAKE_CUDA_DEVICES", "3") });
        run!(cuCtxSetCurrent(0x1000 + device));
        Self(held)
    }

    fn stream(&self) -> usize {
        let mut stream = 0;
        run!(cuStreamCreate(&raw mut stream, 1));
        stream
    }

    fn event(&self) -> usize {
        let mut event = 0;
        run!(cuEventCreate(&raw mut event, 0));
        event
    }

    fn kernel(&self) -> usize {
        let (mut module, mut function) = (0, 0);
        let (text, name) = (CString::new(SCALED_SUM).unwrap(), c"scaled_sum_0");
        run!(cuModuleLoadData(&raw mut module, text.as_ptr().cast()));
        run!(cuModuleGetFunction(&raw mut function, module, name.as_ptr()));
        function
    }

    /// So many floats on the device.
    fn floats(&self, value: f32) -> u64 {
        let mut address = 0;
        run!(cuMemAlloc_v2(&raw mut address, BYTES));
        self.put(address, value);
        address
    }

    fn put(&self, address: u64, value: f32) {
        let values = [value; COUNT];
        run!(cuMemcpyHtoD_v2(address, values.as_ptr().expose_provenance(), BYTES));
    }

    /// What they all are.
    fn get(&self, address: u64) -> f32 {
        let mut values = [f32::NAN; COUNT];
        run!(cuMemcpyDtoH_v2(values.as_mut_ptr().expose_provenance(), address, BYTES));
        assert!(values.iter().all(|value| value.to_bits() == values[0].to_bits()), "{values:?}");
        values[0]
    }
}

/// Launches the kernel on so many blocks; what it is given is gone when this returns.
fn sum(kernel: usize, blocks: c_uint, x: u64, y: u64, a: f32, on: usize) -> Code {
    let arguments = [(&raw const x).cast::<c_void>(), (&raw const y).cast(), (&raw const a).cast()];
    call!(cuLaunchKernel(kernel, blocks, 1, 1, 64, 1, 1, 0, on, arguments.as_ptr(), 0))
}

fn begin(on: usize) {
    run!(cuStreamBeginCapture_v2(on, GLOBAL));
}

fn end(on: usize) -> Result<usize, Code> {
    let mut graph = MaybeUninit::new(1);
    let code = cuStreamEndCapture(on, &mut graph);
    // SAFETY: it was written before the call.
    let graph = unsafe { graph.assume_init() };
    assert_eq!(graph == 0, code != SUCCESS);
    if code == SUCCESS { Ok(graph) } else { Err(code) }
}

fn status_of(on: usize) -> Result<c_int, Code> {
    let mut status = MaybeUninit::new(-1);
    match cuStreamIsCapturing(on, &mut status) {
        // SAFETY: it was written before the call.
        SUCCESS => Ok(unsafe { status.assume_init() }),
        code => Err(code),
    }
}

fn instantiated(graph: usize) -> usize {
    let mut executable = MaybeUninit::new(0);
    run!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    run!(cuGraphDestroy(graph));
    // SAFETY: it was written before the call.
    unsafe { executable.assume_init() }
}

/// The types of a graph's nodes.
fn types(graph: usize) -> Vec<c_int> {
    let mut count = MaybeUninit::new(0);
    run!(cuGraphGetNodes(graph, null_mut(), &mut count));
    // SAFETY: it was written before the call.
    let known = unsafe { count.assume_init() };
    // Room for one more, which there is not.
    let mut nodes = vec![1; known + 1];
    count.write(known + 1);
    run!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    // SAFETY: it was written above.
    assert_eq!((unsafe { count.assume_init() }, nodes.pop()), (known, Some(0)));
    let type_of = |node| {
        let mut kind = MaybeUninit::new(-1);
        run!(cuGraphNodeGetType(node, &mut kind));
        // SAFETY: it was written before the call.
        unsafe { kind.assume_init() }
    };
    nodes.into_iter().map(type_of).collect()
}

fn counted(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

#[test]
fn kernels_of_a_graph_run_at_each_launch_and_not_before() {
    let driver = Driver::of(0);
    let (kernel, on) = (driver.kernel(), driver.stream());
    let (x, y, z) = (driver.floats(1.0), driver.floats(10.0), driver.floats(100.0));
    let counts = || [&RUNNING.launches, &RUNNING.graphs, &RUNNING.graph_launches, &RUNNING.graph_kernels];
    let before = counts().map(counted);
    begin(on);
    assert_eq!(status_of(on), Ok(1));
    assert_eq!(sum(kernel, 1, x, y, 3.0, on), SUCCESS);
    assert_eq!(sum(kernel, 1, y, z, 2.0, on), SUCCESS);
    let graph = end(on).unwrap();
    assert_eq!(status_of(on), Ok(0));
    assert_eq!(types(graph), [0, 0]);
    let executable = instantiated(graph);
    run!(cuGraphUpload(executable, on));
    run!(cuStreamSynchronize(on));
    assert_eq!((driver.get(y), driver.get(z)), (10.0, 100.0));
    for (input, expected) in [(1.0, (13.0, 126.0)), (2.0, (19.0, 164.0)), (-5.0, (4.0, 172.0))] {
        driver.put(x, input);
        run!(cuGraphLaunch(executable, on));
        run!(cuStreamSynchronize(on));
        assert_eq!((driver.get(y), driver.get(z)), expected);
    }
    let more: Vec<_> = counts().map(counted).iter().zip(before).map(|(now, before)| now - before).collect();
    assert_eq!(more, [6, 1, 3, 6]);
    // Launches that are queued are done, also without the executable.
    run!(cuGraphLaunch(executable, on));
    run!(cuGraphExecDestroy(executable));
    run!(cuStreamSynchronize(on));
    assert_eq!(driver.get(z), 150.0);
}

#[test]
fn launches_on_several_streams_come_one_after_the_other() {
    let driver = Driver::of(0);
    let (kernel, first, second) = (driver.kernel(), driver.stream(), driver.stream());
    let (x, y) = (driver.floats(1.0), driver.floats(0.0));
    begin(first);
    // y = x + y and y = y + y: of two launches at a time the result would be another.
    assert_eq!(sum(kernel, 1, x, y, 1.0, first), SUCCESS);
    assert_eq!(sum(kernel, 1, y, y, 1.0, first), SUCCESS);
    let executable = instantiated(end(first).unwrap());
    for _ in 0..5 {
        run!(cuGraphLaunch(executable, first));
        run!(cuGraphLaunch(executable, second));
    }
    run!(cuStreamSynchronize(second));
    assert_eq!(driver.get(y), 2046.0);
}

#[test]
fn copies_of_a_graph_read_and_write_the_host_at_each_launch() {
    let driver = Driver::of(0);
    let on = driver.stream();
    let (x, y, z) = (driver.floats(0.0), driver.floats(0.0), driver.floats(0.0));
    let mut pinned = 0;
    run!(cuMemAllocHost_v2(&raw mut pinned, BYTES));
    let floats = std::ptr::with_exposed_provenance_mut::<f32>(pinned);
    let mut pageable = [0.0_f32; COUNT];
    let place = pageable.as_mut_ptr();
    let before = counted(&RUNNING.host_to_device_bytes);
    begin(on);
    run!(cuMemcpyHtoDAsync_v2(x, pinned, BYTES, on));
    run!(cuMemsetD32Async(y, 2.0_f32.to_bits(), COUNT, on));
    run!(cuMemcpyDtoHAsync_v2(place.expose_provenance(), x, BYTES, on));
    assert_eq!(status_of(on), Ok(1));
    let graph = end(on).unwrap();
    assert_eq!(types(graph), [1, 2, 1]);
    assert_eq!(counted(&RUNNING.host_to_device_bytes), before);
    let executable = instantiated(graph);
    for value in [5.0, 6.0] {
        for at in 0..COUNT {
            // SAFETY: there are so many floats, and no copy of them is under way.
            unsafe { floats.add(at).write(value) };
        }
        driver.put(y, 0.0);
        run!(cuGraphLaunch(executable, on));
        run!(cuStreamSynchronize(on));
        // SAFETY: no copy to it is under way.
        assert_eq!((driver.get(x), driver.get(y), unsafe { place.read() }), (value, 2.0, value));
    }
    assert_eq!(driver.get(z), 0.0);
    run!(cuMemFreeHost(pinned));
}

#[test]
fn what_might_wait_fails_and_makes_a_capture_invalid() {
    let driver = Driver::of(0);
    let (kernel, x, other, event) = (driver.kernel(), driver.floats(1.0), driver.stream(), driver.event());
    let mut place = 0_usize;
    run!(cuMemAllocHost_v2(&raw mut place, BYTES));
    run!(cuEventRecord(event, other));
    run!(cuEventSynchronize(event));
    let calls: [&(dyn Fn(usize) -> Code + Sync); 10] = [
        &|on| call!(cuStreamSynchronize(on)),
        &|on| call!(cuStreamQuery(on)),
        &|_| call!(cuCtxSynchronize()),
        &|_| call!(cuEventQuery(event)),
        &|_| call!(cuEventSynchronize(event)),
        &|_| call!(cuMemAlloc_v2(&mut 0, BYTES)),
        &|_| call!(cuMemFree_v2(x)),
        &|_| call!(cuMemAllocHost_v2(&mut 0, BYTES)),
        &|_| call!(cuMemFreeHost(place)),
        &|_| call!(cuMemcpyHtoD_v2(x, place, BYTES)),
    ];
    for (number, wrong) in calls.iter().enumerate() {
        for elsewhere in [false, true] {
            let on = driver.stream();
            begin(on);
            let code = if elsewhere {
                let there = || {
                    run!(cuCtxSetCurrent(0x1000));
                    wrong(on)
                };
                std::thread::scope(|scope| scope.spawn(there).join().unwrap())
            } else {
                wrong(on)
            };
            assert_eq!(code, CAPTURE_UNSUPPORTED, "call {number}");
            assert_eq!(status_of(on), Ok(2));
            assert_eq!(sum(kernel, 1, x, x, 1.0, on), CAPTURE_INVALIDATED);
            assert_eq!(end(on), Err(CAPTURE_INVALIDATED));
            // The stream is as any other now.
            assert_eq!(sum(kernel, 1, x, x, 0.0, on), SUCCESS);
            run!(cuStreamSynchronize(on));
            run!(cuStreamDestroy_v2(on));
        }
    }
    // What only other streams do is theirs.
    let on = driver.stream();
    begin(on);
    let mut address = 0;
    run!(cuMemAllocAsync(&raw mut address, BYTES, other));
    run!(cuMemFreeAsync(address, other));
    run!(cuStreamSynchronize(other));
    assert_eq!(stream::of(on).unwrap().push(|| Ok(())), Err(CAPTURE_UNSUPPORTED));
    assert_eq!(end(on), Err(CAPTURE_INVALIDATED));
    assert_eq!(driver.get(x), 1.0);
}

#[test]
fn modes_say_who_must_not_wait() {
    let driver = Driver::of(0);
    let on = driver.stream();
    let elsewhere = |wrong: fn() -> Code| {
        std::thread::scope(|scope| {
            let there = scope.spawn(move || {
                run!(cuCtxSetCurrent(0x1000));
                wrong()
            });
            there.join().unwrap()
        })
    };
    let allocate = || call!(cuMemAlloc_v2(&mut 0, BYTES));
    run!(cuStreamBeginCapture_v2(on, LOCAL));
    assert_eq!(elsewhere(allocate), SUCCESS);
    assert_eq!(allocate(), CAPTURE_UNSUPPORTED);
    assert_eq!(end(on), Err(CAPTURE_INVALIDATED));
    run!(cuStreamBeginCapture_v2(on, RELAXED));
    assert_eq!(allocate(), SUCCESS);
    // What waits for the capture itself cannot be.
    assert_eq!(call!(cuCtxSynchronize()), CAPTURE_UNSUPPORTED);
    assert_eq!(end(on), Err(CAPTURE_INVALIDATED));
    assert_eq!(cuStreamBeginCapture_v2(on, 3), INVALID_VALUE);
}

#[test]
fn events_order_the_streams_of_one_capture_only() {
    let driver = Driver::of(0);
    let (kernel, x, y) = (driver.kernel(), driver.floats(1.0), driver.floats(0.0));
    let (on, other) = (driver.stream(), driver.stream());
    let (outside, fork, join) = (driver.event(), driver.event(), driver.event());
    run!(cuEventRecord(outside, other));
    // A second stream comes into the capture and its work back to the first.
    begin(on);
    run!(cuEventRecord(fork, on));
    run!(cuStreamWaitEvent(other, fork, 0));
    assert_eq!(status_of(other), Ok(1));
    assert_eq!(sum(kernel, 1, x, y, 1.0, other), SUCCESS);
    run!(cuEventRecord(join, other));
    run!(cuStreamWaitEvent(on, join, 0));
    assert_eq!(sum(kernel, 1, y, x, 1.0, on), SUCCESS);
    let graph = end(on).unwrap();
    assert_eq!((status_of(other), types(graph)), (Ok(0), vec![0, 0]));
    run!(cuGraphLaunch(instantiated(graph), on));
    run!(cuStreamSynchronize(on));
    assert_eq!((driver.get(x), driver.get(y)), (2.0, 1.0));
    // What was recorded in a capture is no point of a stream's work.
    assert_eq!(call!(cuEventQuery(join)), CAPTURED_EVENT);
    assert_eq!(call!(cuStreamWaitEvent(on, join, 0)), CAPTURE_ISOLATION);
    run!(cuEventRecord(join, on));
    run!(cuEventSynchronize(join));
    for wrong in [cuEventQuery, cuEventSynchronize] {
        begin(on);
        run!(cuEventRecord(fork, on));
        assert_eq!(call!(wrong(fork)), CAPTURED_EVENT);
        assert_eq!(end(on), Err(CAPTURE_INVALIDATED));
    }
    // Nor can it come after work of another time.
    begin(on);
    assert_eq!(call!(cuStreamWaitEvent(on, outside, 0)), CAPTURE_ISOLATION);
    assert_eq!(call!(cuStreamWaitEvent(on, outside, 0)), CAPTURE_INVALIDATED);
    assert_eq!(end(on), Err(CAPTURE_INVALIDATED));
    // Work of the second stream that nothing comes after.
    begin(on);
    run!(cuEventRecord(fork, on));
    run!(cuStreamWaitEvent(other, fork, 0));
    assert_eq!(sum(kernel, 1, x, y, 1.0, other), SUCCESS);
    assert_eq!(end(on), Err(CAPTURE_UNJOINED));
    assert_eq!(status_of(other), Ok(0));
    // Two captures.
    begin(on);
    run!(cuStreamBeginCapture_v2(other, GLOBAL));
    run!(cuEventRecord(fork, on));
    assert_eq!(call!(cuStreamWaitEvent(other, fork, 0)), CAPTURE_MERGE);
    assert_eq!((end(on), end(other)), (Err(CAPTURE_INVALIDATED), Err(CAPTURE_INVALIDATED)));
}

#[test]
fn memory_of_a_graph_is_there_from_launch_to_free() {
    let driver = Driver::of(0);
    let (kernel, on, x) = (driver.kernel(), driver.stream(), driver.floats(1.0));
    let mut address = 0;
    begin(on);
    run!(cuMemAllocAsync(&raw mut address, BYTES, on));
    run!(cuMemsetD32Async(address, 4.0_f32.to_bits(), COUNT, on));
    assert_eq!(sum(kernel, 1, address, x, 1.0, on), SUCCESS);
    let graph = end(on).unwrap();
    assert_eq!(types(graph), [10, 2, 0]);
    let executable = instantiated(graph);
    for expected in [5.0, 9.0] {
        run!(cuGraphLaunch(executable, on));
        assert_eq!(cuGraphLaunch(executable, on), INVALID_VALUE);
        run!(cuStreamSynchronize(on));
        assert_eq!((driver.get(x), driver.get(address)), (expected, 4.0));
        run!(cuMemFreeAsync(address, on));
    }
    // A graph that frees its own.
    begin(on);
    run!(cuMemAllocAsync(&raw mut address, BYTES, on));
    run!(cuMemFreeAsync(address, on));
    let graph = end(on).unwrap();
    assert_eq!(types(graph), [10, 11]);
    let executable = instantiated(graph);
    run!(cuGraphLaunch(executable, on));
    run!(cuGraphLaunch(executable, on));
    run!(cuStreamSynchronize(on));
    // It cannot free what no graph has allocated.
    begin(on);
    assert_eq!(call!(cuMemFreeAsync(x, on)), INVALID_VALUE);
    assert_eq!(end(on), Err(CAPTURE_INVALIDATED));
}

#[test]
fn a_device_s_own_stream_is_no_part_of_captures() {
    let driver = Driver::of(0);
    let x = driver.floats(1.0);
    assert_eq!(cuStreamBeginCapture_v2(0, GLOBAL), CAPTURE_UNSUPPORTED);
    // Streams that wait for it and it for them.
    let mut on = 0;
    run!(cuStreamCreate(&raw mut on, 0));
    begin(on);
    assert_eq!(status_of(0), Err(CAPTURE_IMPLICIT));
    assert_eq!(status_of(on), Ok(1));
    assert_eq!(call!(cuMemsetD32Async(x, 0, COUNT, 0)), CAPTURE_IMPLICIT);
    assert_eq!(end(on), Err(CAPTURE_INVALIDATED));
    // And those that do not.
    let on = driver.stream();
    begin(on);
    run!(cuMemsetD32Async(x, 2.0_f32.to_bits(), COUNT, 0));
    assert_eq!(status_of(0), Ok(0));
    assert_eq!(types(end(on).unwrap()), [0; 0]);
    assert_eq!(driver.get(x), 2.0);
}

#[test]
fn captures_end_where_they_began_and_handles_are_known() {
    let driver = Driver::of(0);
    let (on, other, event) = (driver.stream(), driver.stream(), driver.event());
    assert_eq!(end(on), Err(ILLEGAL_STATE));
    begin(on);
    assert_eq!(cuStreamBeginCapture_v2(on, GLOBAL), ILLEGAL_STATE);
    let there = std::thread::spawn(move || end(on));
    assert_eq!(there.join().unwrap(), Err(CAPTURE_WRONG_THREAD));
    let graph = end(on).unwrap();
    begin(on);
    run!(cuEventRecord(event, on));
    run!(cuStreamWaitEvent(other, event, 0));
    assert_eq!(end(other), Err(CAPTURE_UNMATCHED));
    assert_eq!(end(on), Err(CAPTURE_INVALIDATED));
    begin(on);
    assert_eq!(call!(cuStreamDestroy_v2(on)), CAPTURE_UNSUPPORTED);
    run!(cuStreamDestroy_v2(on));
    let executable = instantiated(graph);
    let mut place = MaybeUninit::new(0);
    assert_eq!(cuGraphDestroy(graph), INVALID_VALUE);
    assert_eq!(cuGraphInstantiateWithFlags(&mut place, graph, 0), INVALID_VALUE);
    assert_eq!(cuGraphNodeGetType(graph + 1, &mut MaybeUninit::new(0)), INVALID_VALUE);
    assert_eq!(cuGraphLaunch(graph, other), INVALID_VALUE);
    begin(other);
    assert_eq!(cuGraphLaunch(executable, other), CAPTURE_UNSUPPORTED);
    assert_eq!(end(other), Err(CAPTURE_INVALIDATED));
    run!(cuGraphLaunch(executable, other));
    run!(cuGraphExecDestroy(executable));
    assert_eq!(cuGraphExecDestroy(executable), INVALID_VALUE);
    assert_eq!(cuGraphUpload(executable, other), INVALID_VALUE);
}

#[test]
fn a_fault_of_a_graph_s_kernel_is_the_device_s() {
    let driver = Driver::of(1);
    let (kernel, on) = (driver.kernel(), driver.stream());
    let (x, y) = (driver.floats(1.0), driver.floats(0.0));
    begin(on);
    assert_eq!(sum(kernel, 2, x, y, 1.0, on), SUCCESS);
    let executable = instantiated(end(on).unwrap());
    run!(cuStreamSynchronize(on));
    let before = counted(&RUNNING.faults);
    run!(cuGraphLaunch(executable, on));
    assert_eq!(call!(cuStreamSynchronize(on)), ILLEGAL_ADDRESS);
    assert_eq!(counted(&RUNNING.faults), before + 1);
    assert_eq!(cuGraphLaunch(executable, on), ILLEGAL_ADDRESS);
}

#[test]
fn a_copy_of_a_graph_does_not_read_what_was_freed() {
    let driver = Driver::of(2);
    let (on, x) = (driver.stream(), driver.floats(1.0));
    let mut place = 0;
    run!(cuMemAllocHost_v2(&raw mut place, BYTES));
    begin(on);
    run!(cuMemcpyHtoDAsync_v2(x, place, BYTES, on));
    let executable = instantiated(end(on).unwrap());
    run!(cuMemFreeHost(place));
    run!(cuGraphLaunch(executable, on));
    assert_eq!(call!(cuStreamSynchronize(on)), ILLEGAL_ADDRESS);
}
