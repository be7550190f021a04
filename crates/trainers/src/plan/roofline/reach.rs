//! Shares of published figures that kernels are assumed to reach, and seconds beside them: a predicted time's constants, each with its reason.

/// Share of the dense peak that products reach: 200 to 318 of an H200's 989 TFLOP/s in bf16, 29 of its 67 in f32, by layers of a
/// 0.6B (benches/runs/2026-11-26-h200). cuBLAS reaches 65 to 80 % there, by `wgmma`.
pub(super) const PRODUCTS: f64 = 0.27;
/// The same of attention's products, between which softmax stands: FlashAttention-2 reaches 35 % of an H100's peak
/// (arXiv:2407.08608).
pub(super) const ATTENTION: f64 = 0.35;
/// Share of the memory's bandwidth that streaming kernels reach; copies measure 85 to 92 % of what is published.
pub(super) const BANDWIDTH: f64 = 0.85;
/// Share of a link that large collectives reach: NCCL's bus bandwidth is about 80 % of NVLink's one direction.
pub(super) const LINK: f64 = 0.80;
/// Seconds that a launch takes, in which nothing else is counted: what the queue, a driver's call and the start of a grid take,
/// measured beside an H200.
pub(super) const LAUNCH: f64 = 10e-6;
/// Seconds of a collective beside its bytes: some launches, and a ring's hops.
pub(super) const COLLECTIVE: f64 = 20e-6;
/// Seconds of a wait of the host for the device.
pub(super) const WAIT: f64 = 20e-6;
