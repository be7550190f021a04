//! Graphs: work that streams captured, to be launched as a whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::capture::{self, Mode, Status};
use crate::code::{CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, Code, INVALID_VALUE, NOT_SUPPORTED, given, put};
use crate::counts::{self, RUNNING};
use crate::node::{Kind, Node};
use crate::stream::{self, Stream};
use crate::{driver, lock};

/// Handles: of a graph, which those of its nodes follow, and of executables.
static NEXT: AtomicUsize = AtomicUsize::new(0x4000_0000);

static GRAPHS: Mutex<BTreeMap<usize, Arc<[Node]>>> = Mutex::new(BTreeMap::new());
static EXECUTABLES: Mutex<Option<HashMap<usize, Arc<Executable>>>> = Mutex::new(None);

/// Memory that launches of graphs allocated and no call has freed.
static ALLOCATED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// A graph that can be launched.
struct Executable {
    nodes: Arc<[Node]>,
    /// The stream of the last launch, and how far it must come: a launch comes after those before, on any stream.
    last: Mutex<Option<(Arc<Stream>, u64)>>,
}

impl Executable {
    fn launch(&self, on: &Arc<Stream>) -> Result<(), Code> {
        stream::sound(on.device)?;
        {
            let mut allocated = lock(&ALLOCATED);
            let kept = |node: &Node| matches!(node.kind, Kind::Allocation(at) if allocated.contains(&at));
            if self.nodes.iter().any(kept) {
                return Err(INVALID_VALUE);
            }
            allocated.extend(self.nodes.iter().filter_map(|node| match node.kind {
                Kind::Allocation(address) => Some(address),
                _ => None,
            }));
        }
        counts::one(&RUNNING.graph_launches);
        for Node { kind, .. } in self.nodes.iter() {
            kind.count();
            if matches!(kind, Kind::Kernel(_)) {
                counts::one(&RUNNING.graph_kernels);
            }
        }
        let mut last = lock(&self.last);
        let before = last.take().filter(|(stream, _)| stream.handle != on.handle);
        let wait = before.map(|(stream, until)| {
            stream::work(move |_| {
                stream.wait_until(until);
                Ok(())
            })
        });
        let nodes = self.nodes.iter().map(|node| {
            let work = Arc::clone(&node.work);
            stream::work(move |on| work(on))
        });
        let until = on.queue(wait.into_iter().chain(nodes))?;
        *last = Some((Arc::clone(on), until));
        Ok(())
    }
}

/// Whether the memory at an address is a launched graph's.
pub(crate) fn allocated(address: u64) -> bool {
    lock(&ALLOCATED).contains(&address)
}

/// Has a launch's memory no longer be there for the graph.
pub(crate) fn freed(address: u64) {
    lock(&ALLOCATED).remove(&address);
}

fn graph(handle: usize) -> Result<Arc<[Node]>, Code> {
    lock(&GRAPHS).get(&handle).cloned().ok_or(INVALID_VALUE)
}

fn executable(handle: usize) -> Result<Arc<Executable>, Code> {
    lock(&EXECUTABLES).get_or_insert_default().get(&handle).cloned().ok_or(INVALID_VALUE)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(handle: usize, place: &mut MaybeUninit<c_int>) -> Code {
    if stream::is_own(handle) {
        // To ask is no use of the stream.
        let asked = driver::current().map(capture::is_implicit);
        let none = asked.and_then(|is| if is { Err(CAPTURE_IMPLICIT) } else { Ok(Status::None as c_int) });
        return put(place, none);
    }
    put(place, stream::of(handle).map(|on| capture::status(&on) as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(handle: usize, mode: c_uint) -> Code {
    if stream::is_own(handle) {
        return given(Err(CAPTURE_UNSUPPORTED));
    }
    given(stream::of(handle).and_then(|on| {
        stream::sound(on.device)?;
        capture::begin(&on, Mode::try_from(mode)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(handle: usize, place: &mut MaybeUninit<usize>) -> Code {
    place.write(0);
    let nodes = stream::of(handle).and_then(|on| capture::end(&on));
    put(
        place,
        nodes.map(|nodes| {
            counts::one(&RUNNING.graphs);
            let handle = NEXT.fetch_add(1 + nodes.len(), Ordering::Relaxed);
            lock(&GRAPHS).insert(handle, nodes.into());
            handle
        }),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(handle: usize) -> Code {
    given(lock(&GRAPHS).remove(&handle).map(drop).ok_or(INVALID_VALUE))
}

/// What is queued of its launches is still done.
#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(handle: usize) -> Code {
    given(lock(&EXECUTABLES).get_or_insert_default().remove(&handle).map(drop).ok_or(INVALID_VALUE))
}

/// # Safety
/// There is room for `count` handles at `nodes`, if it is not null.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphGetNodes(
    handle: usize,
    nodes: *mut usize,
    count: &mut MaybeUninit<usize>,
) -> Code {
    let of = match graph(handle) {
        Ok(of) => of.len(),
        Err(code) => return given(Err(code)),
    };
    if nodes.is_null() {
        return put(count, Ok(of));
    }
    // SAFETY: the caller says how much room there is.
    let room = unsafe { count.assume_init_read() };
    for at in 0..room {
        // SAFETY: as the caller promises.
        unsafe { nodes.add(at).write(if at < of { handle + 1 + at } else { 0 }) };
    }
    put(count, Ok(of.min(room)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetType(node: usize, kind: &mut MaybeUninit<c_int>) -> Code {
    let graphs = lock(&GRAPHS);
    let of = graphs.range(..node).next_back();
    put(kind, of.and_then(|(handle, nodes)| nodes.get(node - handle - 1)).map(number).ok_or(INVALID_VALUE))
}

fn number(node: &Node) -> c_int {
    node.kind.number()
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(
    place: &mut MaybeUninit<usize>,
    handle: usize,
    flags: c_ulonglong,
) -> Code {
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`: streams have none here.
    const PRIORITIES: c_ulonglong = 8;
    if flags & !PRIORITIES != 0 {
        return given(Err(NOT_SUPPORTED));
    }
    put(
        place,
        graph(handle).map(|nodes| {
            let handle = NEXT.fetch_add(1, Ordering::Relaxed);
            let executable = Executable { nodes, last: Mutex::new(None) };
            lock(&EXECUTABLES).get_or_insert_default().insert(handle, Arc::new(executable));
            handle
        }),
    )
}

/// There is nothing to bring to the device; launches do not need it either.
#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(handle: usize, on: usize) -> Code {
    given(executable(handle).and_then(|_| {
        let on = stream::of(on)?;
        capture::refuse(&on)?;
        stream::sound(on.device)
    }))
}

/// Graphs are not made nodes of graphs: a stream that is captured cannot launch one.
#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(handle: usize, on: usize) -> Code {
    given(executable(handle).and_then(|executable| {
        let on = stream::of(on)?;
        capture::refuse(&on)?;
        executable.launch(&on)
    }))
}

#[cfg(test)]
mod tests;
