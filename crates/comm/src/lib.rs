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
//! A launched program has [`World::from_env`] in place of [`local::run`] and is otherwise the same: torchrun, Open MPI and
//! Slurm are understood ([`launch`]). [`Mesh`] arranges ranks along named axes. What authors of transports need is in
//! [`transport`].
#![cfg_attr(docsrs, feature(doc_cfg))]

mod bucket;
mod call;
mod error;
mod gathered;
mod group;
pub mod launch;
pub mod local;
mod mesh;
#[cfg(unix)]
pub mod mpi;
#[cfg(all(feature = "cuda", unix))]
pub mod nccl;
mod pending;
mod reduction;
pub mod tcp;
mod traffic;
pub mod transport;
mod wire;
mod world;

pub use bucket::{Bucket, Piece};
pub use call::{Call, Difference, Op};
pub use error::CommError;
pub use gathered::Gathered;
pub use group::Group;
pub use mesh::Mesh;
pub use pending::Pending;
pub use reduction::Reduction;
pub use traffic::{Traffic, TrafficKey, TrafficRow};
pub use wire::Wire;
pub use world::{DEADLINE, JoinError, World};
