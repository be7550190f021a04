//! Ranks that work together: typed buckets, collectives with fingerprints and deadlines.
//!
//! A rank is a thread ([`local`]) or a process. Its [`World`] gives [`Group`]s; a group's calls take a [`Bucket`] by value
//! and give a [`Pending`] result. Three promises:
//!
//! * **Typed.** A bucket has one element type, known to the compiler. Nothing is promoted.
//! * **The same bits.** Sums are taken in rank order, in fp32 (double for `f64`), and rounded once.
//! * **Nothing hangs.** Each call carries a fingerprint ([`Call`]) and a deadline. Disagreement, silence or the end of a
//!   rank is an error on every rank that names ranks, operation and parameter.
//!
//! ```
//! use burnish_comm::{Bucket, Reduction, local};
//!
//! let parts = local::run(3, |world| {
//!     let group = world.group();
//!     // gradients of 4 elements, of which rank 0 owns two, rank 1 none, rank 2 two
//!     let counts = [2, 0, 2];
//!     let gradients = Bucket::new(vec![0.5_f32, 1.0, 1.5, 2.0]);
//!     let mine = group.reduce_scatter_v(gradients, &counts, Reduction::Mean, "gradients").wait()?;
//!     let all = group.all_gather_v(mine, &counts, "gradients").wait()?;
//!     Ok::<_, burnish_comm::CommError>(all.concat().into_vec())
//! });
//! for part in parts {
//!     assert_eq!(part.unwrap().unwrap(), [0.5, 1.0, 1.5, 2.0]);
//! }
//! ```
//!
//! Writing a transport: one that moves messages between pairs implements [`Link`] and gets every collective from
//! [`Linked`]; one with collectives of its own implements [`Transport`].

mod bucket;
mod bytes;
mod call;
pub mod conformance;
mod device_memory;
mod error;
mod fault;
mod group;
mod inbox;
mod link;
mod linked;
pub mod local;
mod mesh;
#[cfg(unix)]
pub mod mpi;
#[cfg(all(feature = "cuda", unix))]
pub mod nccl;
mod parts;
mod pending;
mod reduction;
pub mod tcp;
mod traffic;
mod transport;
mod wire;
mod world;

pub use bucket::{Bucket, Piece};
pub use bytes::{Aligned, Bytes};
pub use call::{Call, Difference, Op};
pub use device_memory::{DeviceError, DeviceMemory};
pub use error::CommError;
pub use fault::{Fault, FaultPlan, Faulty};
pub use group::Group;
pub use inbox::Inbox;
pub use link::{HEADER, Kind, Link, Message};
pub use linked::Linked;
pub use mesh::Mesh;
pub use parts::Parts;
pub use pending::Pending;
pub use reduction::Reduction;
pub use traffic::{Traffic, TrafficKey, TrafficRow};
pub use transport::{Members, Outcome, Payload, Request, Transport, Work, chunk};
pub use wire::Wire;
pub use world::{DEADLINE, World};
