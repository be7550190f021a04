//! Tensor parallelism.

mod conjugates;
mod error;
mod handle;
mod heads;
mod placement;
mod split;
mod style;

pub use error::TpError;
pub use handle::Tp;
pub use heads::{HeadSplit, RankHeads};
pub use placement::{Gradient, Part, Placement};
pub use split::Split;
pub use style::Style;
