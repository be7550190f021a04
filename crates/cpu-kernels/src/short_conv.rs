//! Gated short convolution (LFM2): `c * (sum over taps of kernel * (b * x) of earlier tokens + bias)`, per channel.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use crate::scratch::{Ptr, scratch, uninit};
use crate::simd::{Lanes, dispatch, isa};
use crate::tasks::tasks;

/// Channels of a task: their columns of all tokens.
const CHANNELS: usize = 64;

/// A convolution over flattened tokens.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv<'a> {
    /// `[tokens, 3 * channels]`: b, c, x.
    pub bcx: &'a [f32],
    /// `[taps, channels]`.
    pub kernel: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// For each tap the row that each token reads: `[taps][tokens]`; negative where there is none.
    pub rows: &'a [Vec<i32>],
}

/// Gradients of [`short_conv_forward`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShortConvGrad {
    /// `[tokens, 3 * channels]`.
    pub bcx: Vec<f32>,
    /// `[taps, channels]`.
    pub kernel: Vec<f32>,
    /// `[channels]`.
    pub bias: Vec<f32>,
}

impl ShortConv<'_> {
    /// Tokens and channels.
    fn sizes(&self) -> (usize, usize) {
        let taps = self.rows.len();
        assert!(
            taps > 0 && self.kernel.len().is_multiple_of(taps),
            "short conv: `kernel` is [taps, channels]"
        );
        let channels = self.kernel.len() / taps;
        let whole = channels > 0 && self.bcx.len().is_multiple_of(3 * channels);
        assert!(
            whole && self.bias.is_none_or(|b| b.len() == channels),
            "short conv: `bcx` is [tokens, 3 channels]"
        );
        let tokens = self.bcx.len() / (3 * channels);
        let inside = |rows: &Vec<i32>| rows.len() == tokens && rows.iter().all(|&row| row < tokens as i32);
        assert!(self.rows.iter().all(inside), "short conv: a row for each token and tap, inside the tokens");
        (tokens, channels)
    }
}

/// `[tokens, channels]`.
///
/// # Panics
/// When shapes do not fit.
#[must_use]
pub fn short_conv_forward(conv: &ShortConv<'_>) -> Vec<f32> {
    let ((tokens, channels), isa) = (conv.sizes(), isa());
    // SAFETY: the tasks cover every column.
    let mut y = unsafe { uninit(tokens * channels) };
    let to = Ptr(y.as_mut_ptr());
    tasks(channels.div_ceil(CHANNELS), |block| {
        let at = block * CHANNELS;
        // SAFETY: shapes were checked; the columns are this task's.
        unsafe { forward_columns(isa, conv, tokens, channels, at, (channels - at).min(CHANNELS), to.at(0)) };
    });
    y
}

/// The convolution of `row`'s columns at `c`, before its gate.
#[inline(always)]
unsafe fn convolved<S: Lanes>(
    conv: &ShortConv<'_>,
    channels: usize,
    row: usize,
    c: usize,
    mask: S::M,
) -> S::V {
    let mut sum = match conv.bias {
        Some(bias) => S::load_m(mask, bias.as_ptr().add(c)),
        None => S::splat(0.0),
    };
    for (tap, rows) in conv.rows.iter().enumerate() {
        let from = *rows.get_unchecked(row);
        if from >= 0 {
            let bcx = conv.bcx.as_ptr().add(from as usize * 3 * channels + c);
            let u = S::mul(S::load_m(mask, bcx), S::load_m(mask, bcx.add(2 * channels)));
            sum = S::fma(u, S::load_m(mask, conv.kernel.as_ptr().add(tap * channels + c)), sum);
        }
    }
    sum
}

#[inline(always)]
unsafe fn forward_body<S: Lanes>(
    conv: &ShortConv<'_>,
    tokens: usize,
    channels: usize,
    first: usize,
    n: usize,
    y: *mut f32,
) {
    for row in 0..tokens {
        let gate = conv.bcx.as_ptr().add((row * 3 + 1) * channels);
        let mut c = first;
        while c < first + n {
            let mask = S::mask((first + n - c).min(S::N));
            let out = convolved::<S>(conv, channels, row, c, mask);
            S::store_m(mask, y.add(row * channels + c), S::mul(S::load_m(mask, gate.add(c)), out));
            c += S::N;
        }
    }
}

dispatch! {
    /// # Safety
    /// `conv` was checked; columns `first..first + n` are below `channels`, `y` is `[tokens, channels]`.
    unsafe fn forward_columns = forward_body [] [] (
        conv: &ShortConv<'_>, tokens: usize, channels: usize, first: usize, n: usize, y: *mut f32
    )
}

/// Gradients from `dy` `[tokens, channels]`.
///
/// # Panics
/// When shapes do not fit.
#[must_use]
pub fn short_conv_backward(conv: &ShortConv<'_>, dy: &[f32]) -> ShortConvGrad {
    let ((tokens, channels), isa) = (conv.sizes(), isa());
    assert_eq!(dy.len(), tokens * channels, "short conv: `dy` is [tokens, channels]");
    // SAFETY: the tasks cover every column.
    let mut bcx = unsafe { uninit(conv.bcx.len()) };
    let (mut kernel, mut bias) = (vec![0.0; conv.kernel.len()], vec![0.0; channels]);
    let to = [Ptr(bcx.as_mut_ptr()), Ptr(kernel.as_mut_ptr()), Ptr(bias.as_mut_ptr())];
    tasks(channels.div_ceil(CHANNELS), |block| {
        let at = block * CHANNELS;
        let n = (channels - at).min(CHANNELS);
        scratch(tokens * n, |du| {
            // SAFETY: shapes were checked; the columns are this task's, and `du` holds them.
            unsafe {
                std::ptr::write_bytes(du, 0, tokens * n);
                let to = to.map(|to| to.at(0));
                backward_columns(isa, conv, tokens, channels, at, n, dy.as_ptr(), du, to);
            }
        });
    });
    ShortConvGrad { bcx, kernel, bias }
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
unsafe fn backward_body<S: Lanes>(
    conv: &ShortConv<'_>,
    tokens: usize,
    channels: usize,
    first: usize,
    n: usize,
    dy: *const f32,
    du: *mut f32,
    [d_bcx, d_kernel, d_bias]: [*mut f32; 3],
) {
    for row in 0..tokens {
        let (at, mut c) = ((row * 3 + 1) * channels, first);
        while c < first + n {
            let mask = S::mask((first + n - c).min(S::N));
            let (d, gate) =
                (S::load_m(mask, dy.add(row * channels + c)), S::load_m(mask, conv.bcx.as_ptr().add(at + c)));
            S::store_m(mask, d_bcx.add(at + c), S::mul(d, convolved::<S>(conv, channels, row, c, mask)));
            let d_out = S::mul(d, gate);
            for (tap, rows) in conv.rows.iter().enumerate() {
                let from = *rows.get_unchecked(row);
                if from >= 0 {
                    let bcx = conv.bcx.as_ptr().add(from as usize * 3 * channels + c);
                    let u = S::mul(S::load_m(mask, bcx), S::load_m(mask, bcx.add(2 * channels)));
                    let (own, sum) = (tap * channels + c, du.add(from as usize * n + c - first));
                    let old = S::load_m(mask, d_kernel.add(own));
                    S::store_m(mask, d_kernel.add(own), S::fma(d_out, u, old));
                    let k = S::load_m(mask, conv.kernel.as_ptr().add(own));
                    S::store_m(mask, sum, S::fma(d_out, k, S::load_m(mask, sum)));
                }
            }
            S::store_m(mask, d_bias.add(c), S::add(S::load_m(mask, d_bias.add(c)), d_out));
            c += S::N;
        }
    }
    for row in 0..tokens {
        let (at, mut c) = (row * 3 * channels, first);
        while c < first + n {
            let mask = S::mask((first + n - c).min(S::N));
            let (b, x) = (at + c, at + 2 * channels + c);
            let du = S::load_m(mask, du.add(row * n + c - first));
            S::store_m(mask, d_bcx.add(b), S::mul(du, S::load_m(mask, conv.bcx.as_ptr().add(x))));
            S::store_m(mask, d_bcx.add(x), S::mul(du, S::load_m(mask, conv.bcx.as_ptr().add(b))));
            c += S::N;
        }
    }
}

dispatch! {
    /// # Safety
    /// `conv` was checked; columns `first..first + n` are below `channels`; `dy` is `[tokens, channels]`, `du`
    /// `[tokens, n]` of zeros, the gradients of the shapes of [`ShortConvGrad`], those of kernel and bias zeros.
    unsafe fn backward_columns = backward_body [] [] (
        conv: &ShortConv<'_>, tokens: usize, channels: usize, first: usize, n: usize, dy: *const f32, du: *mut f32,
        to: [*mut f32; 3]
    )
}
