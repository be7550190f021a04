//! Names and facts shared by every burnish crate. No tensors, no files, no ranks.
//!
//! * [`Parameter`] and [`Registry`]: what a model consists of, by Hugging Face name, before storage exists.
//! * [`Dtype`] and [`Precision`]: the four dtypes of a parameter, never conflated.
//! * [`Layout`]: how a logical tensor lies over the ranks of a mesh axis.
//! * [`random`]: randomness as a function of (seed, name, index), so that results do not depend on
//!   ranks, threads or the number of micro-batches.
//!
//! ```
//! use burnish_core::{Dtype, Parameter, Registry, Role};
//!
//! let mut registry = Registry::new();
//! registry.add(Parameter::new("model.norm.weight", &[64], Role::Norm, Dtype::F32)).unwrap();
//! assert_eq!(registry.get("model.norm.weight").unwrap().elements(), 64);
//! ```

mod dtype;
mod layout;
mod parameter;
pub mod random;
mod registry;

pub use dtype::{Dtype, Precision, UnknownDtype};
pub use layout::Layout;
pub use parameter::{Parameter, Role};
pub use registry::{Registry, RegistryError};
