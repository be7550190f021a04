//! Events: points in the work of streams.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::capture::{self, Point};
use crate::code::{Code, INVALID_HANDLE, NOT_READY, given, put};
use crate::counts::{self, RUNNING};
use crate::{driver, lock, stream};

#[derive(Default)]
struct State {
    recorded: u64,
    reached: u64,
    device: usize,
    /// Where a capture recorded it, if one was the last to do so.
    captured: Option<Point>,
    /// The time of the stream when it came there, in nanoseconds.
    at: Option<u64>,
}

#[derive(Default)]
struct Event {
    state: Mutex<State>,
    changed: Condvar,
}

impl Event {
    /// Waits until the record number `record` is reached.
    fn wait(&self, record: u64) {
        let mut state = lock(&self.state);
        while state.reached < record {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

static EVENTS: Mutex<Option<HashMap<usize, Arc<Event>>>> = Mutex::new(None);
static NEXT: AtomicUsize = AtomicUsize::new(0x100_0000);

fn of(handle: usize) -> Result<Arc<Event>, Code> {
    lock(&EVENTS).get_or_insert_default().get(&handle).cloned().ok_or(INVALID_HANDLE)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: &mut MaybeUninit<usize>, _flags: c_uint) -> Code {
    put(
        event,
        driver::current().map(|_| {
            let handle = NEXT.fetch_add(1, Ordering::Relaxed);
            lock(&EVENTS).get_or_insert_default().insert(handle, Arc::default());
            handle
        }),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(handle: usize) -> Code {
    given(lock(&EVENTS).get_or_insert_default().remove(&handle).map(drop).ok_or(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(handle: usize, on: usize) -> Code {
    given(of(handle).and_then(|event| {
        let on = stream::of(on)?;
        let captured = capture::point(&on)?;
        let record = {
            let mut state = lock(&event.state);
            state.device = on.device;
            state.captured = captured;
            if state.captured.is_some() {
                return Ok(());
            }
            state.recorded += 1;
            state.recorded
        };
        let reach = stream::work(move |on| {
            let mut state = lock(&event.state);
            state.reached = state.reached.max(record);
            state.at = Some(on.time());
            event.changed.notify_all();
            Ok(())
        });
        on.queue([reach]).map(drop)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(handle: usize) -> Code {
    given(of(handle).and_then(|event| {
        let state = lock(&event.state);
        capture::refuse_event(state.captured.as_ref())?;
        capture::refuse_unsafe()?;
        stream::sound(state.device)?;
        if state.reached == state.recorded { Ok(()) } else { Err(NOT_READY) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(handle: usize) -> Code {
    counts::one(&RUNNING.synchronizations);
    given(of(handle).and_then(|event| {
        let record = {
            let state = lock(&event.state);
            capture::refuse_event(state.captured.as_ref())?;
            capture::refuse_unsafe()?;
            state.recorded
        };
        event.wait(record);
        let device = lock(&event.state).device;
        stream::sound(device)
    }))
}

/// The stream waits for what is recorded now; later records of the event are not its concern.
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(on: usize, handle: usize, _flags: c_uint) -> Code {
    given(of(handle).and_then(|event| {
        let on = stream::of(on)?;
        let record = {
            let state = lock(&event.state);
            if capture::join(&on, state.captured.as_ref())? {
                return Ok(());
            }
            state.recorded
        };
        let wait = stream::work(move |_| {
            event.wait(record);
            Ok(())
        });
        on.queue([wait]).map(drop)
    }))
}

fn elapsed(start: usize, end: usize) -> Result<f32, Code> {
    let reached = |handle| {
        let event = of(handle)?;
        let state = lock(&event.state);
        capture::refuse_event(state.captured.as_ref())?;
        state.at.ok_or(INVALID_HANDLE)
    };
    // A microsecond more: nothing takes no time.
    Ok((reached(end)?.saturating_sub(reached(start)?) + 1000) as f32 / 1e6)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: &mut MaybeUninit<f32>, start: usize, end: usize) -> Code {
    put(milliseconds, elapsed(start, end))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: &mut MaybeUninit<f32>, start: usize, end: usize) -> Code {
    put(milliseconds, elapsed(start, end))
}
