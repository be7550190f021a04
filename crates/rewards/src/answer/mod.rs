//! The final answer of a text, and whether two of them are the same.
//!
//! Where an answer stands follows math-verify, which TRL's `accuracy_reward` uses: of a completion only a marked one counts
//! (`\boxed{..}`, or LaTeX within 50 characters after "answer"), of a solution also its last LaTeX formula, number or sum.
//! What an answer means is worked out here: numbers, fractions, percentages and formulas of `+ - * / ^`, roots and the usual
//! functions, with variables (compared by their values at fixed points); equations and inequalities; lists, sets, tuples,
//! intervals and unions; words. Not covered, and compared as text: matrices, complex numbers, integrals, sums and limits,
//! set-builder notation, systems that have to be solved.

mod boxed;
mod compare;
mod extract;
mod formula;
mod normal;
mod plain;
mod tokens;
mod value;

use compare::same;
use value::Value;

/// What was found in a text.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Its meaning, where it has one.
    value: Option<Value>,
    /// As written, after normalising.
    text: String,
}

impl Answer {
    /// The answer of a solution; `None` where there is none.
    pub(crate) fn of_solution(text: &str) -> Option<Self> {
        extract::of_solution(text)
    }

    /// The marked answer of a completion.
    pub(crate) fn of_completion(text: &str) -> Option<Self> {
        extract::of_completion(text)
    }

    /// What a completion says, read as a solution is: its marked answer, or its last formula or number.
    pub(crate) fn said_by(text: &str) -> Option<Self> {
        Self::of_completion(text).or_else(|| Self::of_solution(text))
    }

    /// Whether a completion's answer is this solution.
    pub(crate) fn is(&self, given: &Self) -> bool {
        let meaning = match (&self.value, &given.value) {
            (Some(solution), Some(given)) => same(solution, given),
            _ => false,
        };
        meaning || (!self.text.is_empty() && self.text == given.text)
    }
}
