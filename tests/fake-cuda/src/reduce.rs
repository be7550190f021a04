//! Sums and the like over what the ranks gave.

/// Bytes of an element of an `ncclDataType_t`.
pub(crate) fn width(kind: u32) -> Option<usize> {
    Some(match kind {
        0 | 1 => 1,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        6 | 9 => 2,
        _ => return None,
    })
}

/// `ncclSum`, `ncclProd`, `ncclMax`, `ncclMin`, `ncclAvg` by their numbers.
macro_rules! reduced {
    ($parts:expr, $operation:expr, $read:expr, $write:expr, $add:expr, $multiply:expr, $divide:expr) => {{
        let parts = $parts;
        let mut result = Vec::with_capacity(parts[0].len());
        let read = $read;
        let element = size_of_val(&$write(read(&[0; 8])));
        for start in (0..parts[0].len()).step_by(element) {
            let mut values = parts.iter().rev().map(|part| read(&part[start..start + element]));
            let first = values.next()?;
            let sum = values.fold(first, |sum, value| match $operation {
                1 => $multiply(sum, value),
                2 => {
                    if value > sum {
                        value
                    } else {
                        sum
                    }
                }
                3 => {
                    if value < sum {
                        value
                    } else {
                        sum
                    }
                }
                _ => $add(sum, value),
            });
            let sum = if $operation == 4 { $divide(sum, parts.len()) } else { sum };
            result.extend_from_slice(&$write(sum));
        }
        Some(result)
    }};
}

/// The reduction of equal parts, from the last to the first. `None` for a type that has none.
pub(crate) fn reduce(kind: u32, operation: u32, parts: &[Vec<u8>]) -> Option<Vec<u8>> {
    macro_rules! of {
        ($type:ty, $add:expr, $multiply:expr) => {
            reduced!(
                parts,
                operation,
                |bytes: &[u8]| {
                    let mut own = [0; size_of::<$type>()];
                    own.copy_from_slice(&bytes[..size_of::<$type>()]);
                    <$type>::from_le_bytes(own)
                },
                |value: $type| value.to_le_bytes(),
                $add,
                $multiply,
                |sum: $type, ranks: usize| sum / ranks as $type
            )
        };
    }
    match kind {
        0 => of!(i8, i8::wrapping_add, i8::wrapping_mul),
        1 => of!(u8, u8::wrapping_add, u8::wrapping_mul),
        2 => of!(i32, i32::wrapping_add, i32::wrapping_mul),
        3 => of!(u32, u32::wrapping_add, u32::wrapping_mul),
        4 => of!(i64, i64::wrapping_add, i64::wrapping_mul),
        5 => of!(u64, u64::wrapping_add, u64::wrapping_mul),
        7 => of!(f32, |a: f32, b: f32| a + b, |a: f32, b: f32| a * b),
        8 => of!(f64, |a: f64, b: f64| a + b, |a: f64, b: f64| a * b),
        _ => None,
    }
}
