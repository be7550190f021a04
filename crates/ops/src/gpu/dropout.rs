//! Dropout masks made on the device: the bits of [`burnish_core::random::dropout_bits`].

use burn::tensor::{DType, Device, Int, IntDType, Tensor, TensorData};
use burnish_core::random::{dropout_row, dropout_threshold};

use crate::Dropout;

/// All 32 bits of a word.
const WORD: i64 = 0xffff_ffff;

/// `x` behind its dropout, whose first row is row `first` of the dropout's.
pub(super) fn dropped(dropout: &Dropout, x: Tensor<2>, first: usize) -> Tensor<2> {
    #[cfg(feature = "cube")]
    if let Some(y) = super::kernels::dropped(dropout, &x, first) {
        return y;
    }
    let ([tokens, dim], device, dtype) = (x.dims(), x.device(), x.dtype());
    x * mask(dropout, [first, tokens, dim], (&device, dtype), int_dtype(&device))
}

/// The dtype that the device has for integers.
fn int_dtype(device: &Device) -> IntDType {
    match Tensor::<1, Int>::empty([1], device).dtype() {
        DType::I64 => IntDType::I64,
        _ => IntDType::I32,
    }
}

/// What multiplies rows `first..first + tokens` of an input: 0 or `1 / (1 - p)`, `[tokens, dim]`.
///
/// `int` is the dtype that words are mixed in, I32 (whose arithmetic wraps on devices) or I64.
#[must_use]
pub fn mask(
    dropout: &Dropout,
    [first, tokens, dim]: [usize; 3],
    (device, dtype): (&Device, DType),
    int: IntDType,
) -> Tensor<2> {
    let rows = &dropout.rows[first..first + tokens];
    let keys: Vec<i32> = rows.iter().map(|&row| dropout_row(dropout.key, row) as i32).collect();
    let words = Words(int);
    let upload = |values: Vec<i32>, shape: [usize; 2]| -> Tensor<2, Int> {
        let values = Tensor::<2, Int>::from_data(TensorData::new(values, shape), (device, DType::I32));
        words.unsigned(values.cast(int)).expand([tokens, dim])
    };
    // A column's part is short: it is made on the host.
    let columns: Vec<i32> = (0..dim as u32)
        .map(|c| dropout.first_column.wrapping_add(c).wrapping_mul(0x9E37_79B9) as i32)
        .collect();
    let bits = upload(keys, [tokens, 1]).bitwise_xor(upload(columns, [1, dim]));
    let kept = words.at_least(words.mix(bits), dropout_threshold(dropout.p));
    kept.float().cast(dtype) * (1.0 / (1.0 - dropout.p))
}

/// 32-bit words in tensors of a signed dtype: in I32 as two's complement, in I64 as what they are.
#[derive(Clone, Copy)]
struct Words(IntDType);

impl Words {
    fn narrow(self) -> bool {
        self.0 == IntDType::I32
    }

    fn scalar(self, word: u32) -> i64 {
        if self.narrow() { i64::from(word as i32) } else { i64::from(word) }
    }

    fn unsigned(self, x: Tensor<2, Int>) -> Tensor<2, Int> {
        if self.narrow() { x } else { x.bitwise_and_scalar(WORD) }
    }

    /// `burnish_core::random::mix32`.
    fn mix(self, x: Tensor<2, Int>) -> Tensor<2, Int> {
        let x = self.fold(x, 16);
        let x = self.fold(self.times(x, 0x7feb_352d), 15);
        self.fold(self.times(x, 0x846c_a68b), 16)
    }

    /// `x ^ (x >> by)`: the sign that a signed shift brings in is cut off.
    fn fold(self, x: Tensor<2, Int>, by: u32) -> Tensor<2, Int> {
        let shifted =
            x.clone().bitwise_right_shift_scalar(by as i64).bitwise_and_scalar((1_i64 << (32 - by)) - 1);
        x.bitwise_xor(shifted)
    }

    fn times(self, x: Tensor<2, Int>, factor: u32) -> Tensor<2, Int> {
        if self.narrow() {
            return x * self.scalar(factor);
        }
        // In halves of the factor, so that no product leaves 63 bits.
        let (high, low) = (i64::from(factor >> 16), i64::from(factor & 0xffff));
        let high = (x.clone() * high).bitwise_and_scalar(0xffff_i64) * 0x1_0000_i64;
        (x * low + high).bitwise_and_scalar(WORD)
    }

    /// `x >= threshold`, unsigned.
    fn at_least(self, x: Tensor<2, Int>, threshold: u32) -> Tensor<2, burn::tensor::Bool> {
        const SIGN: u32 = 1 << 31;
        if self.narrow() {
            let threshold = self.scalar(threshold ^ SIGN);
            return x.bitwise_xor_scalar(self.scalar(SIGN)).greater_equal_elem(threshold);
        }
        x.greater_equal_elem(self.scalar(threshold))
    }
}
