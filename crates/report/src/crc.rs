//! Checksums of record files: CRC-32C (Castagnoli) as TensorFlow has it, CRC-32 (IEEE 802.3) as Weights & Biases has it.

/// CRC-32C's reflected polynomial.
const CASTAGNOLI: [u32; 256] = table(0x82f6_3b78);
/// CRC-32's.
const IEEE: [u32; 256] = table(0xedb8_8320);

const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ polynomial } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

fn sum(table: &[u32; 256], parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().copied().flatten();
    !bytes.fold(!0, |crc: u32, byte| crc >> 8 ^ table[((crc ^ u32::from(*byte)) & 0xff) as usize])
}

/// The CRC-32 of `parts`, one after another.
pub(crate) fn crc32(parts: &[&[u8]]) -> u32 {
    sum(&IEEE, parts)
}

/// The CRC-32C as stored: rotated and shifted, so that a checksum over data that holds checksums stays a good one
/// (TensorFlow, `core/lib/hash/crc32c.h`).
pub(crate) fn masked_crc32c(bytes: &[u8]) -> u32 {
    sum(&CASTAGNOLI, &[bytes]).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4; the check values of both polynomials.
    #[test]
    fn known_values() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, crc) in [
            ([0u8; 32].as_slice(), 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (b"123456789", 0xe306_9283),
        ] {
            assert_eq!(sum(&CASTAGNOLI, &[bytes]), crc);
        }
        assert_eq!(crc32(&[b"1234", b"56789"]), 0xcbf4_3926);
    }
}
