//! `Q5_K`.

use super::groups::{self, BLOCK, GROUP, Search};

const BYTES: usize = 176;
/// Where the fifth bits lie, a byte for each place in a group and a bit for each group; and the other four.
const PARTS: (usize, usize) = (16, 48);

pub(super) fn encode(values: &[f32], bytes: &mut [u8]) {
    for (values, bytes) in values.as_chunks::<BLOCK>().0.iter().zip(bytes.as_chunks_mut::<BYTES>().0) {
        let codes = groups::encode(values, bytes, &Search { most: 31, first: -0.5, steps: 15 });
        bytes[PARTS.0..].fill(0);
        for (group, codes) in codes.as_chunks::<GROUP>().0.iter().enumerate() {
            for (at, code) in codes.iter().enumerate() {
                bytes[PARTS.0 + at] |= (code >> 4) << group;
                bytes[PARTS.1 + group / 2 * GROUP + at] |= (code & 15) << (group % 2 * 4);
            }
        }
    }
}

pub(super) fn decode(bytes: &[u8], values: &mut [f32]) {
    for (values, bytes) in values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(bytes.as_chunks::<BYTES>().0) {
        for (group, values) in values.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
            let (scale, minimum) = groups::of_group(bytes, group);
            for (at, value) in values.iter_mut().enumerate() {
                let low = bytes[PARTS.1 + group / 2 * GROUP + at] >> (group % 2 * 4) & 15;
                let code = low | (bytes[PARTS.0 + at] >> group & 1) << 4;
                *value = scale * f32::from(code) - minimum;
            }
        }
    }
}
