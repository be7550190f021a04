//! Weights of heads of linear attention: how much of a state each token keeps, and how much of it is learned.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::{elements, sums};

/// Beyond it a softplus is the line that it comes near to, as torch has it.
const LINE: f32 = 20.0;

/// What heads give, `[tokens, heads]` in one dtype, and their numbers `[heads]` in f32.
#[derive(Clone, Copy, Debug)]
pub struct HeadSteps<'a> {
    /// How far a token steps, before its bias and softplus.
    pub steps: &'a Buffer,
    /// How much of it is learned, before a sigmoid; as far as it steps where there is none.
    pub learning: Option<&'a Buffer>,
    /// Added to steps.
    pub bias: &'a Buffer,
    /// The logarithm of what is forgotten by a step.
    pub log_rate: &'a Buffer,
}

impl HeadSteps<'_> {
    fn check(&self) {
        let Self { steps, learning, bias, log_rate } = self;
        assert!(
            bias.len > 0 && steps.len.is_multiple_of(bias.len) && log_rate.len == bias.len,
            "invariant: steps are [tokens, heads]"
        );
        assert!(
            learning.is_none_or(|learning| (learning.len, learning.dtype) == (steps.len, steps.dtype)),
            "invariant: learning is as steps are"
        );
    }
}

/// `[2, tokens, heads]` in f32: the logarithm of what is kept, `-softplus(steps + bias) exp(log_rate)`, then how much is learned,
/// `sigmoid(learning)` or the softplus. One launch over `tokens heads` elements.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn head_weights(client: &Client, of: HeadSteps<'_>) -> Buffer {
    of.check();
    let (n, heads) = (of.steps.len, of.bias.len);
    let weights = Buffer::empty(client, 2 * n, FloatType::F32);
    if n > 0 {
        let (count, dim) = elements::launch(client, n);
        weigh::launch(
            client,
            count,
            dim,
            address(&[&weights]),
            of.steps.arg(1),
            of.learning.unwrap_or(of.steps).arg(1),
            of.bias.arg(1),
            of.log_rate.arg(1),
            weights.arg(1),
            n,
            heads,
            of.learning.is_some(),
            of.steps.dtype.elem(),
        );
    }
    weights
}

/// Below it a logarithm of one and a number is summed: the logarithms of devices have few digits near one.
const SMALL: f32 = 0.0625;

/// The softplus of a number.
#[cube]
pub(crate) fn softplus(x: f32) -> f32 {
    let e = min(x, f32::new(LINE)).exp();
    // e - e^2 / 2 + e^3 / 3 and so on.
    let mut sum = f32::new(comptime!(1.0 / 7.0));
    #[unroll]
    for term in 1..7usize {
        sum = f32::new(comptime!(1.0 / (7 - term) as f32)) - e * sum;
    }
    select(x > LINE, x, select(e < SMALL, e * sum, (1.0f32 + e).ln()))
}

/// One over one and the exponential of minus a number.
#[cube]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + (-x).exp())
}

#[cube(launch, address_type = "dynamic")]
fn weigh<I: Float>(
    steps: &[I],
    learning: &[I],
    bias: &[f32],
    log_rate: &[f32],
    weights: &mut [f32],
    n: usize,
    heads: usize,
    #[comptime] learns: bool,
    #[define(I)] _of_x: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    let head = i % heads;
    let step = softplus(f32::cast_from(steps[i]) + bias[head]);
    weights[i] = -(step * log_rate[head].exp());
    if comptime!(learns) {
        weights[n + i] = sigmoid(f32::cast_from(learning[i]));
    } else {
        weights[n + i] = step;
    }
}

/// The gradients of what [`head_weights`] got.
#[derive(Clone, Debug)]
pub struct HeadStepsGrad {
    /// `[tokens, heads]`, in their dtype.
    pub steps: Buffer,
    /// The same, where there is one.
    pub learning: Option<Buffer>,
    /// `[heads]` in f32, where it is wanted.
    pub bias: Option<Buffer>,
    /// `[heads]` in f32, where it is wanted.
    pub log_rate: Option<Buffer>,
}

/// The gradients of what [`head_weights`] got, from that of the weights, `[2, tokens, heads]` in f32. One launch, and sums over tokens
/// where those of the numbers of heads are wanted.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn head_weights_backward(
    client: &Client,
    of: HeadSteps<'_>,
    dy: &Buffer,
    wants_numbers: bool,
) -> HeadStepsGrad {
    of.check();
    let (n, heads) = (of.steps.len, of.bias.len);
    assert_eq!(dy.len, 2 * n, "invariant: dy is [2, tokens, heads]");
    let steps = Buffer::empty(client, n, of.steps.dtype);
    let learning = of.learning.map(|learning| Buffer::empty(client, n, learning.dtype));
    let none = Buffer::empty(client, 1, of.steps.dtype);
    // Of bias and rate, before their sums; one number stands for each where they are not wanted.
    let [of_bias, of_rate] =
        [(); 2].map(|()| Buffer::empty(client, if wants_numbers { n } else { 1 }, FloatType::F32));
    if n > 0 {
        let (count, dim) = elements::launch(client, n);
        weigh_backward::launch(
            client,
            count,
            dim,
            address(&[dy]),
            of.steps.arg(1),
            of.learning.unwrap_or(of.steps).arg(1),
            of.bias.arg(1),
            of.log_rate.arg(1),
            dy.arg(1),
            steps.arg(1),
            learning.as_ref().unwrap_or(&none).arg(1),
            of_bias.arg(1),
            of_rate.arg(1),
            n,
            heads,
            of.learning.is_some(),
            wants_numbers,
            of.steps.dtype.elem(),
        );
    }
    let sum = |numbers: &Buffer| wants_numbers.then(|| sums::over_rows(client, numbers, heads));
    HeadStepsGrad { bias: sum(&of_bias), log_rate: sum(&of_rate), steps, learning }
}

#[cube(launch, address_type = "dynamic")]
fn weigh_backward<I: Float>(
    steps: &[I],
    learning: &[I],
    bias: &[f32],
    log_rate: &[f32],
    dy: &[f32],
    of_steps: &mut [I],
    of_learning: &mut [I],
    of_bias: &mut [f32],
    of_rate: &mut [f32],
    n: usize,
    heads: usize,
    #[comptime] learns: bool,
    #[comptime] wants_numbers: bool,
    #[define(I)] _of_x: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= n {
        terminate!();
    }
    let head = i % heads;
    let x = f32::cast_from(steps[i]) + bias[head];
    let rate = log_rate[head].exp();
    let mut of_step = -(dy[i] * rate);
    if comptime!(learns) {
        let share = sigmoid(f32::cast_from(learning[i]));
        of_learning[i] = I::cast_from(dy[n + i] * share * (1.0f32 - share));
    } else {
        of_step += dy[n + i];
    }
    let of_x = of_step * sigmoid(x);
    of_steps[i] = I::cast_from(of_x);
    if comptime!(wants_numbers) {
        of_bias[i] = of_x;
        of_rate[i] = -(dy[i] * softplus(x) * rate);
    }
}
