//! The selective scan of Mamba-1 (Gu and Dao, arXiv:2312.00752): of each channel a state that forgets, and learns from each
//! token, by steps that the token chooses.

use crate::dispatch::dispatch;
use crate::recurrent_states::RecurrentStates;
use crate::{AnyTensor, Documents, OpsError};

pub(crate) const OP: &str = "selective_scan";

/// What a selective scan reads of tokens and channels.
#[derive(Clone, Debug)]
pub struct SelectiveScan {
    /// What channels hear, `[tokens, channels]`.
    pub x: AnyTensor,
    /// How far each token steps, with its bias but before its softplus: `[tokens, channels]`.
    pub steps: AnyTensor,
    /// The logarithm of how fast each number of a state is forgotten (`A_log`), `[channels, states]`.
    pub log_rates: AnyTensor,
    /// What of a token enters each number of the states, `[tokens, states]`.
    pub b: AnyTensor,
    /// What of each number of the states is read, `[tokens, states]`.
    pub c: AnyTensor,
    /// What of `x` is added to the output (`D`), `[channels]`.
    pub skip: AnyTensor,
}

/// Lengths of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) tokens: usize,
    pub(crate) channels: usize,
    /// Numbers of a channel's state.
    pub(crate) states: usize,
}

impl SelectiveScan {
    /// In the order of the fields.
    pub(crate) fn inputs(&self) -> [&AnyTensor; 6] {
        let Self { x, steps, log_rates, b, c, skip } = self;
        [x, steps, log_rates, b, c, skip]
    }

    fn map(&self, of: impl Fn(&AnyTensor) -> AnyTensor) -> Self {
        let [x, steps, log_rates, b, c, skip] = self.inputs().map(of);
        Self { x, steps, log_rates, b, c, skip }
    }

    pub(crate) fn check(&self) -> Result<Sizes, OpsError> {
        let [tokens, channels] = crate::check::matrix(&self.x)?;
        let [rows, states] = crate::check::matrix(&self.log_rates)?;
        let shape =
            |what, x: &AnyTensor, expected: &[usize]| crate::check::shape(OP, what, x.shape(), expected);
        shape("steps", &self.steps, &[tokens, channels])?;
        if rows != channels || channels == 0 || states == 0 {
            let (got, expected) = (vec![rows, states], vec![channels.max(1), states.max(1)]);
            return Err(OpsError::Shape { op: OP, what: "log_rates", got, expected });
        }
        shape("b", &self.b, &[tokens, states])?;
        shape("c", &self.c, &[tokens, states])?;
        shape("skip", &self.skip, &[channels])?;
        Ok(Sizes { tokens, channels, states })
    }
}

/// What each token reads of its text's states: with `dt = softplus(steps)` a number `n` of a channel's state becomes
/// `exp(-dt exp(log_rates[n])) h[n] + dt b[n] x`, and the output is `sum(c[n] h[n]) + skip x`. Texts begin from nothing, or from
/// what the one that they continue left (`parents`, each before its own).
///
/// Arithmetic is f32, whatever the inputs rest in. Gradients of `x`, `steps`, `b` and `c` have the dtype of each, those of
/// `log_rates` and `skip` are f32.
///
/// # Shapes
/// - those of [`SelectiveScan`]'s fields
/// - output: `[tokens, channels]`, f32; rows outside every text are zeros
///
/// # Errors
/// If shapes do not fit, or a text lies outside the rows, over another, or continues one that comes later.
pub fn selective_scan(
    scan: &SelectiveScan,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    let sizes = scan.check()?;
    crate::texts::check(OP, texts, parents, sizes.tokens)?;
    dispatch!(scan.inputs() => selective_scan::selective_scan(scan, sizes, texts, parents))
}

impl RecurrentStates {
    /// [`selective_scan`] of new rows, each sequence's behind what it has said; plain tensors.
    ///
    /// # Errors
    /// As [`selective_scan`], or if there is not one range of rows per sequence.
    pub fn selective_scan(&mut self, scan: &SelectiveScan, texts: &Documents) -> Result<AnyTensor, OpsError> {
        let sizes = scan.check()?;
        crate::texts::check(OP, texts, &[], sizes.tokens)?;
        let states = self.before(OP, texts, sizes.states * sizes.channels, &scan.x.device())?;
        let (y, states) = stepped(&scan.map(AnyTensor::plain), sizes, texts, states)?;
        self.keep(&states)?;
        Ok(y)
    }
}

fn stepped(
    scan: &SelectiveScan,
    sizes: Sizes,
    texts: &Documents,
    states: AnyTensor,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    dispatch!(scan.inputs() => selective_scan::stepped(scan, sizes, texts, states))
}
