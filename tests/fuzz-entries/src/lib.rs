//! Fuzz entries: functions of bytes from outside, one for each reader of them.
//!
//! `fuzz/` runs them under libFuzzer; `tests/replay.rs` runs them on the corpus that is kept in `fuzz/corpus`. An entry takes
//! any bytes. What it may do is return; a panic, an allocation beyond [`memory::MOST`] and a wait are faults.

mod adapter;
mod checkpoint;
mod columns;
mod data_card;
mod gguf;
mod given;
mod hub;
pub mod memory;
mod messages;
#[cfg(feature = "burn")]
mod model;
#[cfg(feature = "burn")]
mod options;
mod rewards;
#[cfg(feature = "burn")]
mod rollout;
mod rows;
mod template;
mod tokenizer;
mod weights;

/// An entry: what takes bytes, under its name.
pub type Entry = (&'static str, fn(&[u8]));

/// Every entry; its name is that of its target, and of its folder of the corpus.
pub const ENTRIES: &[Entry] = &[
    ("adapter", adapter::read),
    ("checkpoint", checkpoint::read),
    ("columns", columns::read),
    ("data_card", data_card::read),
    ("gguf", gguf::read),
    ("hub", hub::read),
    ("messages", messages::read),
    #[cfg(feature = "burn")]
    ("model", model::read),
    #[cfg(feature = "burn")]
    ("options", options::read),
    ("rewards", rewards::read),
    #[cfg(feature = "burn")]
    ("rollout", rollout::read),
    ("rows", rows::read),
    ("template", template::read),
    ("tokenizer", tokenizer::read),
    ("weights", weights::read),
];

/// Runs the entry called `name` within its bound on memory.
///
/// # Panics
/// Where the entry does, or there is none of this name.
pub fn run(name: &str, bytes: &[u8]) {
    let found = ENTRIES.iter().find(|(known, _)| *known == name);
    let (_, entry) = found.unwrap_or_else(|| panic!("no entry is called {name}"));
    memory::bounded(|| entry(bytes));
}
