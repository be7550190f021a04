//! Optimizers with declared state, and the step as a pipeline of types.
//!
//! A step is `Reduced -> Unscaled or Skipped -> Clipped -> Applied`: each arrow consumes the state before it,
//! so clipping cannot come after the update and a skipped step changes nothing. An optimizer declares its slots and
//! their dtypes ([`SlotSpec`]); a file or a gradient of another dtype never changes them.
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
mod error;
mod loss_scaler;
mod rates;
mod schedule;
mod slot;
mod step;

pub use adamw::{AdamW, AdamWOptions};
pub use assembly::{Assembly, Here};
pub use error::OptimError;
pub use loss_scaler::LossScaler;
pub use rates::Rates;
pub use schedule::{Schedule, ScheduleKind};
pub use slot::{Declared, Held, SlotSpec, SlotTensor};
pub use step::{Applied, Clipped, Gradients, Masters, Reduced, Unscale, Unscaled, all_here};
