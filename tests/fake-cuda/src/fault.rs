//! What goes wrong on purpose, by `FAKE_NCCL_FAULT`:
//!
//! * `init:RANK`: that rank of every communicator cannot join it.
//! * `async:RANK:N`: the rank's operation number N (from 0) never completes, and its communicator reports an error.
//! * `hang:RANK:N`: the rank's operation number N never begins, without a word.
//! * `stop:RANK:N`: as `hang`, and the whole process is stopped (`SIGSTOP`).

use std::ffi::c_int;

/// What is wrong with an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Init,
    Async,
    Hang,
    Stop,
}

/// The fault of `rank`'s operation number `operation`; `None` as the number means joining.
pub(crate) fn of(rank: usize, operation: Option<u64>) -> Option<Fault> {
    let text = std::env::var("FAKE_NCCL_FAULT").ok()?;
    let mut parts = text.split(':');
    let kind = match parts.next()? {
        "init" => Fault::Init,
        "async" => Fault::Async,
        "hang" => Fault::Hang,
        "stop" => Fault::Stop,
        _ => return None,
    };
    let who: usize = parts.next()?.parse().ok()?;
    let number = parts.next().and_then(|number| number.parse().ok());
    (who == rank && number == operation).then_some(kind)
}

unsafe extern "C" {
    fn raise(signal: c_int) -> c_int;
}

/// Stops the process, as somebody from outside might.
pub(crate) fn stop() {
    const SIGSTOP: c_int = 19;
    // SAFETY: sends a signal to this process, which has no handler for it.
    unsafe {
        raise(SIGSTOP);
    }
}
