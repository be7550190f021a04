//! Optimizers with declared state, and the step as a pipeline of types.
//!
//! A step is `Reduced -> Unscaled or Skipped -> Clipped -> Applied`: each arrow consumes the state before it,
//! so clipping cannot come after the update and a skipped step changes nothing. An optimizer declares its slots and
//! their dtypes ([`SlotSpec`]); a file or a gradient of another dtype never changes them.
//!
//! [`Optimizer`] is AdamW alone, or Muon for matrices ([`MuonOptions`]) and AdamW for the rest. Which is which goes by
//! role ([`Assignment`]). Matrices may lie in pieces over ranks: an [`Assembly`] brings them together.
//!
//! ```
//! use burnish_optim::Schedule;
//! let schedule = Schedule::new("linear".parse().unwrap(), 2e-5, 10, 100);
//! assert_eq!(schedule.rate(0), 0.0);
//! assert_eq!(schedule.rate(10), 2e-5);
//! assert_eq!(schedule.rate(100), 0.0);
//! ```

mod adamw;
mod assembly;
mod assignment;
mod error;
mod loss_scaler;
mod muon;
mod optimizer;
mod rates;
mod schedule;
mod slot;
mod step;

pub use adamw::{AdamW, AdamWOptions};
pub use assembly::{Assembly, Here};
pub use assignment::{Assigned, Assignment, Half};
pub use error::OptimError;
pub use loss_scaler::LossScaler;
pub use muon::{MomentumDtype, MuonOptions, Scale, Variant};
pub use optimizer::Optimizer;
pub use rates::Rates;
pub use schedule::{Schedule, ScheduleKind};
pub use slot::{Declared, Held, SlotSpec, SlotTensor};
pub use step::{Applied, Clipped, Gradients, Masters, Reduced, Unscale, Unscaled, all_here};
