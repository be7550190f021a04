//! From the words after a command's name, and the file they name, to its options.

use std::collections::BTreeMap;

use crate::checks::Checks;
use crate::command::Command;
use crate::fault::{ConfigError, Fault};
use crate::foreign;
use crate::invocation::{Invocation, Resolved};
use crate::nearest::{elsewhere, nearest};
use crate::source::{self, Written};
use crate::table::Mismatch;

/// Reads flags and file, sets options and checks rules; `required` options have to be there.
pub(crate) fn parse<C: Command>(words: &[String], required: &[&str]) -> Result<Invocation<C>, ConfigError> {
    let entries = C::entries();
    let mut faults = Vec::new();
    let flags = source::flags(words, &entries, &mut faults);
    if flags.help {
        return Ok(Invocation::Help(C::help()));
    }
    let mut written = Vec::new();
    if let Some(path) = &flags.config {
        written = source::file(path, &mut faults);
    }
    written.extend(flags.written);

    let mut options = C::default();
    let mut given = BTreeMap::new();
    for Written { name, raw, origin } in &written {
        let meant = source::canonical(name);
        if let Some(entry) = entries.iter().find(|entry| entry.name == meant) {
            match options.set(entry.name, raw) {
                Some(Ok(())) => {
                    given.insert(entry.name, origin.clone());
                }
                Some(Err(Mismatch { expected })) => faults.push(Fault::Type {
                    origin: origin.clone(),
                    name: entry.name,
                    expected,
                    got: raw.to_string(),
                }),
                None => unreachable!("invariant: every entry of a command can be set"),
            }
        } else if let Some((name, foreign)) = foreign::find(meant) {
            if !foreign.takes(raw) {
                faults.push(Fault::Refused {
                    origin: origin.clone(),
                    name,
                    got: raw.to_string(),
                    reason: foreign.reason,
                });
            }
        } else if let Some((name, of)) = elsewhere(meant) {
            faults.push(Fault::Elsewhere { origin: origin.clone(), name, of, command: C::NAME });
        } else {
            faults.push(Fault::Unknown {
                origin: origin.clone(),
                name: name.clone(),
                nearest: nearest(meant, &entries),
            });
        }
    }

    let mut notes = Vec::new();
    let values = options.values();
    let mut checks = Checks::new(&given, &values, &mut faults, &mut notes);
    for name in required {
        checks.required(name, &entries);
    }
    options.check(&mut checks);
    if faults.is_empty() {
        Ok(Invocation::Run(Resolved { options, given, notes }))
    } else {
        Err(ConfigError { command: C::NAME, faults })
    }
}
