//! Tiles that the hardware brings to shared memory, box by box of a tensor (TMA), for which one unit asks; barriers in shared
//! memory say that a tile is there, and that its place is free.

use cubecl_core as cubecl;
use cubecl_core::prelude::barrier::Barrier;
use cubecl_core::prelude::*;

use crate::mma::Eight;
use crate::wgmma::{LINE, Tile, WIDTH};

/// Bytes of a barrier.
pub(crate) const BARRIER: usize = 8;

/// Begins a barrier's first phase, which so many arrivals end.
#[cube]
pub(crate) fn init(barrier: u32, #[comptime] arrivals: usize) {
    gpu_asm!(
        "mbarrier.init.shared::cta.b64 [{barrier}], {arrivals};",
        barrier = in(_) barrier,
        arrivals = const arrivals,
    );
}

/// What was begun is known to the hardware that copies.
#[cube]
pub(crate) fn publish() {
    gpu_asm!("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;");
}

/// Arrives at a barrier if `arrives` is not 0, without a branch: the plane goes on together.
#[cube]
pub(crate) fn arrive(barrier: u32, arrives: u32) {
    gpu_asm!(
        "{{\n.reg .pred arrives;\nsetp.ne.u32 arrives, {arrives}, 0;\n",
        "@arrives mbarrier.arrive.shared::cta.b64 _, [{barrier}];\n}}",
        arrives = in(_) arrives,
        barrier = in(_) barrier,
    );
}

/// Arrives at a barrier, and announces bytes that end its phase.
#[cube]
pub(crate) fn announce(barrier: u32, #[comptime] bytes: usize) {
    gpu_asm!(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {bytes};",
        barrier = in(_) barrier,
        bytes = const bytes,
    );
}

/// Waits for the end of a barrier's phase, of which `parity` is whether it is an odd one.
#[cube]
pub(crate) fn pass(barrier: u32, parity: u32) {
    gpu_asm!(
        "{{\n.reg .pred over;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 over, [{barrier}], {parity};\n",
        "@over bra done;\nbra again;\ndone:\n}}",
        barrier = in(_) barrier,
        parity = in(_) parity,
    );
}

/// Begins to bring a tile: rows or columns from `across` on and what they are summed over from `depth` on.
#[cube]
pub(crate) fn bring<E: Float>(
    from: &TensorMap<E, Tiled>,
    barrier: &Barrier,
    into: &mut [Eight<E>],
    at: usize,
    batch: usize,
    across: usize,
    depth: usize,
    #[comptime] tile: Tile,
) {
    let mut line = depth as i32;
    let mut element = across as i32;
    if comptime!(tile.along) {
        line = across as i32;
        element = depth as i32;
    }
    #[unroll]
    for number in 0..comptime!(tile.boxes()) {
        let at = at + comptime!(number * tile.lines() * WIDTH);
        let element = element + comptime!((number * LINE) as i32);
        barrier.tma_load_3d(
            from,
            &mut into[at..at + comptime!(tile.lines() * WIDTH)],
            batch as i32,
            line,
            element,
        );
    }
}
