//! A failure of a template, with the line where it happened.

/// Why a template failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It does not parse.
    Syntax,
    /// It called `raise_exception`.
    Raised,
    /// It used a value that is not there.
    Undefined,
    /// Python would have raised a `TypeError`, `ValueError` or the like.
    Type,
    /// It passed one of the [`Bounds`](super::Bounds).
    Bound,
    /// The native stack of this thread does not do.
    Stack,
}

/// What went wrong in a template, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// 0 while unknown.
    pub(crate) line: u32,
}

/// A result of the engine.
pub(crate) type Outcome<T> = Result<T, Fault>;

impl Fault {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), line: 0 }
    }

    pub(crate) fn syntax(message: impl Into<String>, line: u32) -> Self {
        Self { kind: Kind::Syntax, message: message.into(), line }
    }

    /// Fills in the line unless an inner place has.
    pub(crate) fn at(mut self, line: u32) -> Self {
        if self.line == 0 {
            self.line = line;
        }
        self
    }

    /// The message with its line.
    pub(crate) fn describe(&self) -> String {
        match self.line {
            0 => self.message.clone(),
            line => format!("{} (template line {line})", self.message),
        }
    }
}

/// A [`Kind::Type`] fault.
pub(crate) fn wrong<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Fault::new(Kind::Type, message))
}
