//! The selective scan of Mamba-1 (Gu and Dao, arXiv:2312.00752), forward and backward.
//!
//! Per channel and token `h = exp(dt A) h + dt b x` for each number of its state, with `dt = softplus(steps)` and
//! `A = -exp(log_rates)`, and the output is `c h + skip x`. A vector has channels beside each other and walks the texts token
//! by token.

mod shape;

mod vector;

mod forward;

mod backward;

#[cfg(test)]
mod tests;

pub use backward::{SelectiveScanGrad, selective_scan_backward};
pub use forward::selective_scan_forward;
pub use shape::SelectiveScan;
