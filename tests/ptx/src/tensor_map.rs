//! `TensorMap`: a box of a tensor in device memory, as `cuTensorMapEncodeTiled` describes it.

/// The bytes of a `CUtensorMap`.
pub const TENSOR_MAP_BYTES: usize = 128;

/// A tensor and the box of it that one copy moves; the first dimension is the one whose elements lie together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Bytes of an element.
    pub element: u8,
    /// Where the tensor begins.
    pub address: u64,
    /// Elements along each dimension.
    pub size: Vec<u64>,
    /// Bytes from one to the next along each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of the box along each dimension.
    pub boxed: Vec<u32>,
    /// 0 for none, and 1, 2, 3 for pieces of 16 bytes exchanged within 32, 64, 128 bytes.
    pub swizzle: u8,
}

impl TensorMap {
    /// As the bytes that a kernel is given; in an order of this interpreter.
    #[must_use]
    pub fn encode(&self) -> [u8; TENSOR_MAP_BYTES] {
        let mut out = [0; TENSOR_MAP_BYTES];
        out[0] = self.element;
        out[1] = self.size.len() as u8;
        out[2] = self.swizzle;
        out[8..16].copy_from_slice(&self.address.to_le_bytes());
        for (at, &size) in self.size.iter().enumerate() {
            out[16 + 8 * at..24 + 8 * at].copy_from_slice(&size.to_le_bytes());
        }
        for (at, &stride) in self.strides.iter().enumerate() {
            out[56 + 8 * at..64 + 8 * at].copy_from_slice(&stride.to_le_bytes());
        }
        for (at, &boxed) in self.boxed.iter().enumerate() {
            out[96 + 4 * at..100 + 4 * at].copy_from_slice(&boxed.to_le_bytes());
        }
        out
    }

    /// From [`Self::encode`]'s bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let long = |at: usize| {
            let mut value = [0; 8];
            value.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(value)
        };
        let rank = bytes[1] as usize;
        Self {
            element: bytes[0],
            address: long(8),
            size: (0..rank).map(|at| long(16 + 8 * at)).collect(),
            strides: (0..rank.saturating_sub(1)).map(|at| long(56 + 8 * at)).collect(),
            boxed: (0..rank).map(|at| (long(96 + 4 * at) & 0xffff_ffff) as u32).collect(),
            swizzle: bytes[2],
        }
    }

    /// Bytes of a box.
    pub(crate) fn bytes(&self) -> usize {
        self.boxed.iter().map(|&n| n as usize).product::<usize>() * self.element as usize
    }

    /// The place of byte `at` of a box that begins at shared address `start`.
    pub(crate) fn place(&self, start: u64, at: u64) -> u64 {
        let address = start + at;
        let mask = (1 << self.swizzle) - 1;
        address ^ ((address >> 7) & mask) << 4
    }

    /// The device's address of an element of the box at `corner`; nothing outside the tensor.
    pub(crate) fn source(&self, corner: &[i64], element: usize) -> Option<u64> {
        let mut left = element;
        let mut address = self.address;
        for (at, &boxed) in self.boxed.iter().enumerate() {
            let index = corner[at] + (left % boxed as usize) as i64;
            left /= boxed as usize;
            if index < 0 || index as u64 >= self.size[at] {
                return None;
            }
            let stride = if at == 0 { u64::from(self.element) } else { self.strides[at - 1] };
            address += index as u64 * stride;
        }
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::TensorMap;

    #[test]
    fn a_box_goes_there_and_back() {
        let map = TensorMap {
            element: 4,
            address: 0x6600_0000_0000,
            size: vec![10, 7, 3],
            strides: vec![48, 480],
            boxed: vec![4, 2, 1],
            swizzle: 3,
        };
        let map = TensorMap::decode(&map.encode());
        assert_eq!((map.bytes(), map.size.len()), (32, 3));
        assert_eq!(map.source(&[8, 6, 2], 0), Some(0x6600_0000_0000 + 32 + 6 * 48 + 2 * 480));
        assert_eq!(map.source(&[8, 6, 2], 2), None);
        assert_eq!(map.source(&[8, 6, 2], 4), None);
        // Row 1 of 128 bytes exchanges its first two pieces.
        assert_eq!([map.place(1024, 0), map.place(1024, 128), map.place(1024, 144)], [1024, 1168, 1152]);
    }
}
