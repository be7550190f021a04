//! Your own Burn module on many ranks.

mod error;
mod fill;
mod initial;
mod pass;
mod survey;
mod wrap;
mod wrapped;

pub use burnish_core::{Dtype, Role};
pub use burnish_ops::{AnyTensor, OpsError};

pub use error::ModuleError;
pub use pass::Pass;
pub use wrap::{Initial, Reduce, Wrap};
pub use wrapped::{SavedRows, Stepped, Wrapped};
