//! Long work that is under way, for whoever shows it: what is read, tokenised, written and compared counts itself here, and
//! a program that has somebody to tell looks at [`under_way`] from time to time.
//!
//! ```
//! use burnish_core::work::{Unit, Work, under_way};
//!
//! let work = Work::begin("reading model", Unit::Bytes, 10);
//! work.advance(4);
//! let seen = under_way().into_iter().find(|seen| seen.what == "reading model").unwrap();
//! assert_eq!((seen.done, seen.total), (4, 10));
//! drop(work);
//! assert!(under_way().iter().all(|seen| seen.what != "reading model"));
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What work is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of files or memory.
    Bytes,
    /// Rows of a data set.
    Rows,
    /// Tensors or layers.
    Tensors,
}

/// Work that is under way until it is dropped.
#[derive(Debug)]
pub struct Work(Arc<Counted>);

/// Work as it is seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// What is done, as a participle with its object: `tokenising rows.jsonl`.
    pub what: String,
    /// What it is counted in.
    pub unit: Unit,
    /// How much is done.
    pub done: u64,
    /// How much there is; 0 where nobody knows.
    pub total: u64,
    /// Since when.
    pub elapsed: Duration,
}

#[derive(Debug)]
struct Counted {
    what: String,
    unit: Unit,
    done: AtomicU64,
    total: u64,
    began: Instant,
}

static UNDER_WAY: Mutex<Vec<Arc<Counted>>> = Mutex::new(Vec::new());

impl Work {
    /// Begins; `total` is 0 where nobody knows how much there is.
    pub fn begin(what: impl Into<String>, unit: Unit, total: u64) -> Self {
        let counted =
            Counted { what: what.into(), unit, done: AtomicU64::new(0), total, began: Instant::now() };
        let counted = Arc::new(counted);
        UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner).push(counted.clone());
        Self(counted)
    }

    /// So much more is done.
    pub fn advance(&self, by: u64) {
        self.0.done.fetch_add(by, Ordering::Relaxed);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut all = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| !Arc::ptr_eq(other, &self.0));
    }
}

/// All work of this process that is under way, in the order in which it began. What several threads (ranks) do under one
/// name is one work: their counts together, since the first began.
#[must_use]
pub fn under_way() -> Vec<UnderWay> {
    let mut seen: Vec<UnderWay> = Vec::new();
    for own in UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let (done, total) = (own.done.load(Ordering::Relaxed), own.total);
        match seen.iter_mut().find(|seen| seen.what == own.what && seen.unit == own.unit) {
            Some(known) => {
                known.done += done;
                known.total += total;
            }
            None => seen.push(UnderWay {
                what: own.what.clone(),
                unit: own.unit,
                done,
                total,
                elapsed: own.began.elapsed(),
            }),
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_do_the_same_are_one_work() {
        let ranks = [3, 5].map(|rows| Work::begin("tokenising by ranks", Unit::Rows, rows));
        ranks[0].advance(1);
        ranks[1].advance(4);
        let own = || under_way().into_iter().filter(|seen| seen.what == "tokenising by ranks");
        assert_eq!(own().map(|seen| (seen.done, seen.total)).collect::<Vec<_>>(), [(5, 8)]);
        let [first, second] = ranks;
        drop(first);
        assert_eq!(own().map(|seen| (seen.done, seen.total)).collect::<Vec<_>>(), [(4, 5)]);
        drop(second);
        assert_eq!(own().count(), 0);
    }
}
