//! Shares of published figures that kernels are assumed to reach, and seconds beside them: a predicted time's constants, each with its reason.

use burnish_device::Gpu;

/// Share of the dense peak of tensor cores that products reach. By `wgmma` 460 to 670 of an H200's 989 TFLOP/s in bf16, by layers
/// of a 0.6B, and there by `mma.sync`, which all others have, 320 to 410 (benches/runs/2026-11-26-h200-2).
pub(super) const fn products(gpu: Gpu) -> f64 {
    match gpu {
        Gpu::H200 | Gpu::H100 | Gpu::H100Pcie => 0.58,
        _ => 0.36,
    }
}
/// The same of f32 by other units: 29 of 67 TFLOP/s there.
pub(super) const UNITS: f64 = 0.43;
/// What the best of products reach, for the bound that no kernels go below: cuBLAS 65 to 80 % of an H100's 989 TFLOP/s at sizes of
/// thousands, by `wgmma`, where clocks fall under load.
pub(super) const BEST_PRODUCTS: f64 = 0.70;
/// The same of attention's products, between which softmax stands, all that are computed: by `wgmma` 402 TFLOP/s of an H200's forward
/// and 572 of its backward, by documents of 2048 tokens (benches/runs/2026-11-26-h200-3), of two forwards and a backward 490;
/// by `mma.sync` 247 to 327.
pub(super) const fn attention(gpu: Gpu) -> f64 {
    match gpu {
        Gpu::H200 | Gpu::H100 | Gpu::H100Pcie => 0.49,
        _ => 0.27,
    }
}
/// Share of the memory's bandwidth that streaming kernels reach; copies measure 85 to 92 % of what is published.
pub(super) const BANDWIDTH: f64 = 0.85;
/// Share of a link that large collectives reach: NCCL's bus bandwidth is about 80 % of NVLink's one direction.
pub(super) const LINK: f64 = 0.80;
/// Seconds that a launch takes, in which nothing else is counted: small kernels take 2 to 5 us on an H200 and the next one begins 1 to 2
/// us later; a step of 7169 launches takes 29 ms more than its bytes and products, a token of 399 recorded ones 1.5
/// (benches/runs/2026-11-27-h200).
pub(super) const LAUNCH: f64 = 4e-6;
/// Seconds of a collective beside its bytes: some launches, and a ring's hops.
pub(super) const COLLECTIVE: f64 = 20e-6;
/// Seconds of a wait of the host for the device.
pub(super) const WAIT: f64 = 20e-6;
