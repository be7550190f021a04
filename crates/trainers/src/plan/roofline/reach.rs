//! Shares of published figures that kernels are assumed to reach, and seconds beside them: a predicted time's constants, each with its reason.

/// Share of the dense peak of tensor cores that products reach: 200 to 318 of an H200's 989 TFLOP/s in bf16, by layers of a
/// 0.6B (benches/runs/2026-11-26-h200).
pub(super) const PRODUCTS: f64 = 0.27;
/// The same of f32 by other units: 29 of 67 TFLOP/s there.
pub(super) const UNITS: f64 = 0.43;
/// What the best of products reach, for the bound that no kernels go below: cuBLAS 65 to 80 % of an H100's 989 TFLOP/s at sizes of
/// thousands, by `wgmma`, where clocks fall under load.
pub(super) const BEST_PRODUCTS: f64 = 0.70;
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
