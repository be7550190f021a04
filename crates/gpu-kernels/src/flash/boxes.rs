//! Heads' rows in boxes, as the hardware brings them to shared memory.

use cubecl_core::prelude::*;
use cubecl_core::zspace::{shape, strides};

use super::HeadRows;
use crate::wgmma::LINE;

/// Elements of sixteen bytes, at multiples of which all rows must begin.
const APART: usize = 8;

impl HeadRows {
    /// Whether they can be brought so.
    pub(super) fn has_boxes(&self) -> bool {
        [self.first, self.token, self.head].iter().all(|n| n.is_multiple_of(APART))
            && self.buffer.is_aligned(APART)
    }

    /// Boxes of a line by `rows` tokens of a head, zeros past the last token; coordinates are head, token and element.
    pub(super) fn boxes(&self, [heads, tokens, head_dim]: [usize; 3], rows: usize) -> TensorMapArg<Tiled> {
        let Self { buffer, first, token, head } = self;
        let handle = buffer.handle.clone().offset_start((first * buffer.dtype.bytes()) as u64);
        // The distance of heads is anything where there is one.
        let head = if heads == 1 { tokens * token } else { *head };
        // SAFETY: the heads lie in their buffer.
        let tensor = unsafe {
            TensorArg::from_raw_parts(handle, strides![head, *token, 1], shape![heads, tokens, head_dim])
        };
        TensorMapArg::new(TiledArgs { tile_size: shape![1, rows, LINE] }, tensor, buffer.dtype.elem())
            .with_swizzle(TensorMapSwizzle::B128)
            .with_prefetch(TensorMapPrefetch::B256)
    }
}
