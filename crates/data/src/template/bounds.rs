//! Bounds on what rendering a template may cost: a template comes from a model folder and is outside input.

use std::cell::Cell;

use super::jinja::fault::{Fault, Kind, Outcome};

/// What one rendering may use. A template that asks for more fails with an error that names the bound.
///
/// The defaults allow a conversation of tens of thousands of messages and end a template without end in about a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a template's source.
    pub source_bytes: usize,
    /// Levels of brackets and blocks in the source, and terms of one chained expression.
    pub nesting: usize,
    /// Steps: about one for each expression, eight for each loop turn and macro call, two for each element of a list that is
    /// made, and each 16 bytes
    /// of text that are made; so memory is bounded too.
    pub steps: u64,
    /// Bytes of one text, the rendered conversation among them.
    pub text_bytes: usize,
    /// Calls of macros inside one another.
    pub calls: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { source_bytes: 1 << 20, nesting: 100, steps: 20_000_000, text_bytes: 64 << 20, calls: 250 }
    }
}

/// What is used of the bounds while a template renders.
pub(super) struct Meter {
    bounds: Bounds,
    steps: Cell<u64>,
    calls: Cell<u32>,
    /// Where this thread's stack was when rendering began.
    base: usize,
    /// Bytes of stack that rendering may use.
    stack: usize,
}

impl Meter {
    pub(super) fn new(bounds: Bounds, stack: usize) -> Self {
        Self { bounds, steps: Cell::new(0), calls: Cell::new(0), base: here(), stack }
    }

    /// Counts steps.
    pub(super) fn spend(&self, steps: u64) -> Outcome<()> {
        let used = self.steps.get().saturating_add(steps);
        self.steps.set(used);
        if used > self.bounds.steps {
            return Err(over(&format!("more than {} steps", self.bounds.steps)));
        }
        Ok(())
    }

    /// Counts the elements of a list before it is made.
    pub(super) fn elements(&self, count: usize) -> Outcome<()> {
        self.spend((count as u64).saturating_mul(2).saturating_add(1))
    }

    /// Counts text before it is made.
    pub(super) fn text(&self, bytes: usize) -> Outcome<()> {
        if bytes > self.bounds.text_bytes {
            return Err(over(&format!("a text of more than {} bytes", self.bounds.text_bytes)));
        }
        self.spend(bytes as u64 / 16 + 1)
    }

    /// Counts text before it is put behind what is there.
    pub(super) fn grow(&self, before: usize, bytes: usize) -> Outcome<()> {
        if before + bytes > self.bounds.text_bytes {
            return self.text(before + bytes);
        }
        self.spend(bytes as u64 / 16)
    }

    /// One more level of evaluation.
    pub(super) fn deeper(&self) -> Outcome<()> {
        if self.base.abs_diff(here()) > self.stack {
            return Err(Fault::new(Kind::Stack, "it nests too deeply"));
        }
        self.spend(1)
    }

    /// Runs a call of a macro.
    pub(super) fn call<T>(&self, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let calls = self.calls.get() + 1;
        if calls > self.bounds.calls {
            return Err(over(&format!("macros that call each other {} deep", self.bounds.calls)));
        }
        self.calls.set(calls);
        let out = body();
        self.calls.set(calls - 1);
        out
    }
}

fn over(what: &str) -> Fault {
    Fault::new(Kind::Bound, format!("it asks for {what}"))
}

/// About where this thread's stack is.
#[inline(never)]
fn here() -> usize {
    let mark = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&mark)).addr()
}
