//! zero
mod bucket;
mod error;
mod partition;
mod plan;
mod policy;
mod unit;
mod window;
pub use bucket::{BucketPlan, Piece, Purpose};
pub use error::PlanError;
pub use partition::Partition;
pub use plan::{Collective, Memory, Placement, Plan, Residency, Summed, TrafficRow};
pub use policy::{Policy, ReduceWhen, Stage, UnknownStage};
pub use unit::Unit;
