//! The conformance suite of transports: checks that every rank of a world runs, the same for threads, MPI, TCP and
//! NCCL.
//!
//! A transport's tests run each of [`checks`] on every rank. Checks that [break](Check::breaks) the world leave its
//! transport refusing calls, so they need a world each (over processes: a launch each); the others may share one.
//!
//! ```
//! use burnish_comm::local;
//! use burnish_comm::transport::conformance;
//!
//! for check in conformance::checks() {
//!     for result in local::run(2, |world| check.run(world)) {
//!         result.unwrap().unwrap();
//!     }
//! }
//! ```

mod collectives;
mod failing;
mod order;
mod program;

use std::fmt;

use burnish_core::{Coded, Dtype, ErrorCode};
use half::{bf16, f16};

use crate::{CommError, Wire, World};

type Run = fn(&Checked) -> Result<(), Failure>;

/// One check, run by every rank of a world.
#[derive(Clone, Copy)]
pub struct Check {
    name: &'static str,
    breaks: bool,
    run: Run,
}

impl Check {
    const fn sound(name: &'static str, run: Run) -> Self {
        Self { name, breaks: false, run }
    }

    const fn breaking(name: &'static str, run: Run) -> Self {
        Self { name, breaks: true, run }
    }

    /// The check's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether the world is of no further use afterwards.
    #[must_use]
    pub const fn breaks(&self) -> bool {
        self.breaks
    }

    /// Runs this rank's part. All ranks of the world must run the same check.
    ///
    /// # Errors
    /// What this rank found to be otherwise than it must be.
    pub fn run(&self, world: World) -> Result<(), Failure> {
        (self.run)(&Checked { check: self.name, world })
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const CHECKS: &[Check] = &[
    Check::sound("collectives of float32", collectives::all::<f32>),
    Check::sound("collectives of bfloat16", collectives::all::<bf16>),
    Check::sound("collectives of float16", collectives::all::<f16>),
    Check::sound("collectives of float64", collectives::all::<f64>),
    Check::sound("collectives of bytes", collectives::all::<u8>),
    Check::sound("collectives of 64-bit words", collectives::all::<u64>),
    Check::sound("sums are in rank order and rounded once", collectives::exact_sums),
    Check::sound("what is no number stays none", collectives::not_a_number),
    Check::sound("maps follow their elements", collectives::maps),
    Check::sound("a shared bucket is not written to", collectives::shared),
    Check::sound("a barrier holds everybody", order::barrier),
    Check::sound("calls wait in any order", order::outstanding),
    Check::sound("channels are independent orders", order::channels),
    Check::sound("threads of a rank on channels", order::threads),
    Check::sound("a dropped handle disturbs nobody", order::dropped),
    Check::sound("groups along the axes of a mesh", order::mesh),
    Check::sound("traffic is counted", order::traffic),
    Check::sound("a random program", program::random),
    Check::breaking("another operation", failing::another_op),
    Check::breaking("another dtype", failing::another_dtype),
    Check::breaking("another number of elements", failing::another_length),
    Check::breaking("other counts of the same sum", failing::other_counts),
    Check::breaking("another reduction", failing::another_reduction),
    Check::breaking("another root", failing::another_root),
    Check::breaking("another axis", failing::another_axis),
    Check::breaking("another name", failing::another_name),
    Check::breaking("a call too few", failing::skipped),
    Check::breaking("another length between two", failing::another_pair_length),
    Check::breaking("a send met by a collective", failing::send_meets_barrier),
    Check::breaking("a rank is silent", failing::silent),
    Check::breaking("a rank ends", failing::ends),
    Check::breaking("a rank stops with a reason", failing::stops),
    Check::breaking("wrong arguments on one rank", failing::arguments),
    Check::breaking("wrong arguments on all ranks", failing::same_arguments),
];

/// All checks, sound ones first.
#[must_use]
pub const fn checks() -> &'static [Check] {
    CHECKS
}

/// A rank found something otherwise than it must be.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{check}, rank {rank} of {size} over {transport}: {what}: expected {expected}, got {got}")]
pub struct Failure {
    check: &'static str,
    rank: usize,
    size: usize,
    transport: &'static str,
    what: String,
    expected: String,
    got: String,
}

impl Coded for Failure {
    fn code(&self) -> ErrorCode {
        ErrorCode::Internal
    }
}

/// A world under a check.
struct Checked {
    check: &'static str,
    world: World,
}

impl Checked {
    fn failure(&self, what: &str, expected: String, got: String) -> Failure {
        Failure {
            check: self.check,
            rank: self.world.rank(),
            size: self.world.size(),
            transport: self.world.transport(),
            what: what.to_owned(),
            expected,
            got,
        }
    }

    /// `got` must be `expected`.
    fn same<T: PartialEq + fmt::Debug>(&self, what: &str, got: T, expected: T) -> Result<(), Failure> {
        if got == expected {
            return Ok(());
        }
        Err(self.failure(what, short(&expected), short(&got)))
    }

    /// Sums over the ranks, of values up to 2^4: the same bits where sums are taken in rank order, else as near as another
    /// order can bring them.
    fn sums<E: Wire>(&self, what: &str, got: &[E], expected: &[E]) -> Result<(), Failure> {
        let ranks = self.world.size() as f64;
        // two addends have one order
        if self.world.in_rank_order() || self.world.size() <= 2 || !E::DTYPE.is_float() {
            return self.same(what, got, expected);
        }
        let wide = if E::DTYPE == Dtype::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let own = match E::DTYPE {
            Dtype::Bf16 => 2.0_f64.powi(-7),
            Dtype::F16 => 2.0_f64.powi(-10),
            _ => wide,
        };
        let near = |(&got, &expected): (&E, &E)| {
            let (got, expected) = (got.to_f64(), expected.to_f64());
            (got - expected).abs() <= 16.0 * ranks * ranks * wide + own * expected.abs()
        };
        if got.len() == expected.len() && got.iter().zip(expected).all(near) {
            return Ok(());
        }
        Err(self.failure(what, format!("near {}", short(&expected)), short(&got)))
    }

    /// `fact` must hold.
    fn holds(&self, what: &str, fact: bool, got: impl fmt::Debug) -> Result<(), Failure> {
        if fact {
            return Ok(());
        }
        Err(self.failure(what, "it to hold".to_owned(), short(&got)))
    }

    /// The call must succeed.
    fn done<T>(&self, what: &str, result: Result<T, CommError>) -> Result<T, Failure> {
        result.map_err(|error| self.failure(what, "a result".to_owned(), error.to_string()))
    }

    /// The call must fail.
    fn fails<T>(&self, what: &str, result: Result<T, CommError>) -> Result<CommError, Failure> {
        match result {
            Ok(_) => Err(self.failure(what, "an error".to_owned(), "a result".to_owned())),
            Err(error) => Ok(error),
        }
    }
}

fn short(value: &impl fmt::Debug) -> String {
    let text = format!("{value:?}");
    if text.chars().count() > 400 { text.chars().take(400).chain("...".chars()).collect() } else { text }
}
