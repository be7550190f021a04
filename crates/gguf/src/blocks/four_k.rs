//! `Q4_K`.

use super::groups::{self, BLOCK, GROUP, Search};

const BYTES: usize = 144;

pub(super) fn encode(values: &[f32], bytes: &mut [u8]) {
    for (values, bytes) in values.as_chunks::<BLOCK>().0.iter().zip(bytes.as_chunks_mut::<BYTES>().0) {
        let codes = groups::encode(values, bytes, &Search { most: 15, first: -1.0, steps: 20 });
        let pairs = codes.as_chunks::<{ 2 * GROUP }>().0.iter();
        for (codes, bytes) in pairs.zip(bytes[16..].as_chunks_mut::<GROUP>().0) {
            for at in 0..GROUP {
                bytes[at] = codes[at] | codes[at + GROUP] << 4;
            }
        }
    }
}

pub(super) fn decode(bytes: &[u8], values: &mut [f32]) {
    for (values, bytes) in values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(bytes.as_chunks::<BYTES>().0) {
        for (group, values) in values.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
            let (scale, minimum) = groups::of_group(bytes, group);
            let (codes, shift) = (&bytes[16 + group / 2 * GROUP..], group % 2 * 4);
            for (value, code) in values.iter_mut().zip(codes) {
                *value = scale * f32::from(code >> shift & 15) - minimum;
            }
        }
    }
}
