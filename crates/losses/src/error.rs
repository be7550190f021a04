//! What can be wrong with the options of a loss or with what it is given.

use burnish_ops::OpsError;

/// Every failure of the preference, reward and policy losses. Each message says what, where, expected, got, and the
/// mend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossError {
    /// A named option value that does not exist.
    #[error("`{option}`: unknown value `{got}`; use one of {expected}")]
    Unknown {
        /// The option.
        option: &'static str,
        /// The value given.
        got: String,
        /// All there are.
        expected: String,
    },
    /// An option outside its range.
    #[error("`{option}` is {got}; use {expected}")]
    Range {
        /// The option.
        option: &'static str,
        /// The value given.
        got: f64,
        /// The range, and why where it is not plain.
        expected: &'static str,
    },
    /// Two options that exclude each other.
    #[error("{what}; {mend}")]
    Conflict {
        /// The contradiction.
        what: &'static str,
        /// The mend.
        mend: &'static str,
    },
    /// No loss at all.
    #[error("`loss_type` is empty; name at least one loss, as `sigmoid`")]
    NoLoss,
    /// One weight per loss, or none at all.
    #[error(
        "`loss_weights` has {got} values for {expected} losses in `loss_type`; give one per loss or leave it out"
    )]
    Weights {
        /// Losses.
        expected: usize,
        /// Weights.
        got: usize,
    },
    /// A divergence that a loss has no form of.
    #[error(
        "`f_divergence_type` `{divergence}` has no form of the loss `{loss}`; use `reverse_kl` with it, or only \
         sigmoid, sigmoid_norm, hinge, ipo, exo_pair, robust, discopop or sft"
    )]
    Divergence {
        /// The divergence.
        divergence: &'static str,
        /// The loss.
        loss: &'static str,
    },
    /// A list of the wrong length.
    #[error("{what}: {got} values, expected {expected}; they belong to the same {of}")]
    Length {
        /// The list.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length it must have.
        expected: usize,
        /// What there must be one value per.
        of: &'static str,
    },
    /// Targets of a sequence that the micro-batch does not have.
    #[error(
        "sequence {sequence}: targets {start}..{end} of {targets}; sequences are ranges of the micro-batch's targets"
    )]
    Targets {
        /// Number of the sequence in the micro-batch.
        sequence: usize,
        /// First target.
        start: usize,
        /// One past the last.
        end: usize,
        /// Targets in the micro-batch.
        targets: usize,
    },
    /// Something the options ask for was not computed.
    #[error("sequence {sequence} has no {what}, which {because}; {mend}")]
    Missing {
        /// Number of the sequence (or pair) in the micro-batch.
        sequence: usize,
        /// What is missing.
        what: &'static str,
        /// The option that asks for it.
        because: &'static str,
        /// The mend.
        mend: &'static str,
    },
    /// A denominator that the micro-batch alone exceeds.
    #[error(
        "{what}: the step has {got}, this micro-batch alone {here}; count over all micro-batches and ranks"
    )]
    Denominator {
        /// What is counted.
        what: &'static str,
        /// The step's count.
        got: f64,
        /// The micro-batch's count.
        here: f64,
    },
    /// A tensor operation.
    #[error(transparent)]
    Ops(#[from] OpsError),
}

/// Fails unless `ok`.
pub(crate) fn range(
    ok: bool,
    option: &'static str,
    got: f64,
    expected: &'static str,
) -> Result<(), LossError> {
    if ok { Ok(()) } else { Err(LossError::Range { option, got, expected }) }
}

/// Fails when a micro-batch alone has more than the whole step.
pub(crate) fn within(what: &'static str, got: f64, here: f64) -> Result<(), LossError> {
    if here <= got { Ok(()) } else { Err(LossError::Denominator { what, got, here }) }
}
