//! Losses as numerator, denominator and metrics.
//!
//! A loss never divides by what one micro-batch or one rank happens to hold: it is given the denominator of the whole
//! step, and metrics travel as sums until the step is over ([`Tally`]). All token losses run on one fused
//! log-probability head (`burnish_ops::head_loss`), so no `[tokens, vocab]` tensor exists.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use burnish_losses::{TokenLoss, token_loss};
//! use burnish_ops::{AnyTensor, HeadOptions, Linear};
//!
//! let device = Device::flex();
//! let hidden = AnyTensor::new(Tensor::<2>::ones([3, 4], &device)).leaf();
//! let head = Linear::new(AnyTensor::new(Tensor::<2>::zeros([7, 4], &device)));
//! // All logits are equal: each token costs ln 7.
//! let out =
//!     token_loss(TokenLoss::Nll, &hidden, &head, None, &vec![0, 3, 6].into(), HeadOptions::default(), 3.0).unwrap();
//! assert!((out.loss.to_f32()[0] - 7f32.ln()).abs() < 1e-6);
//! assert_eq!(out.tally.mean("mean_token_accuracy"), Some(1.0 / 3.0)); // the first maximum is token 0
//! ```

mod chunked_nll;
mod tally;
mod token_loss;

pub use chunked_nll::{CHUNK_TOKENS, chunked_nll};
pub use tally::Tally;
pub use token_loss::{LossOutput, TokenLoss, UnknownLoss, token_loss};
