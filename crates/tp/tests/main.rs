//! N ranks equal one.
