//! A mixture of experts' feed-forwards.

use burnish_core::{Compute, ExpertGate, LinearParts, LoraParts};

use crate::dispatch::dispatch;
use crate::{AnyTensor, OpsError, Routing};

const OP: &str = "experts";

/// A low-rank adapter on one layer of all experts, laid out as PEFT's `target_parameters`: `W[e] + scale * B[e] A[e]`.
#[derive(Clone, Debug)]
pub struct ExpertLowRank {
    /// `[experts * r, in]`: an expert's rows one after another.
    pub a: AnyTensor,
    /// `[out, r * experts]`: the columns of each rank by expert.
    pub b: AnyTensor,
    /// `alpha / r`, or `alpha / sqrt(r)`.
    pub scale: f32,
}

/// One layer of all experts.
#[derive(Clone, Debug)]
pub struct ExpertLayer {
    /// `[experts, out, in]`, in its stored dtype.
    pub weight: AnyTensor,
    /// `[experts, out]`.
    pub bias: Option<AnyTensor>,
    /// Its adapter.
    pub low_rank: Option<ExpertLowRank>,
}

impl ExpertLayer {
    /// The tensors that get gradients.
    #[must_use]
    pub fn parts(&self) -> LinearParts<&AnyTensor> {
        let lora = self.low_rank.as_ref();
        let lora = lora.map(|low| LoraParts { a: &low.a, b: &low.b, b_bias: None, magnitude: None });
        LinearParts { weight: &self.weight, bias: self.bias.as_ref(), lora }
    }

    /// The adapter's rank of each expert; 0 without one.
    pub(crate) fn rank(&self, experts: usize) -> usize {
        self.low_rank.as_ref().map_or(0, |low| low.a.shape()[0] / experts.max(1))
    }

    pub(crate) fn tensors(&self) -> impl Iterator<Item = AnyTensor> {
        self.parts().into_iter().map(|(_, tensor)| tensor.clone())
    }

    fn check(&self, what: [&'static str; 2], [experts, out, input]: [usize; 3]) -> Result<(), OpsError> {
        let shape = |what: &'static str, t: &AnyTensor, expected: Vec<usize>| {
            let got = t.shape();
            if got == expected { Ok(()) } else { Err(OpsError::Shape { op: OP, what, got, expected }) }
        };
        shape(what[0], &self.weight, vec![experts, out, input])?;
        if let Some(bias) = &self.bias {
            shape(what[1], bias, vec![experts, out])?;
        }
        let rows = self.rank(experts) * experts;
        if let Some(low) = &self.low_rank {
            shape("lora_A of experts", &low.a, vec![rows, input])?;
            shape("lora_B of experts", &low.b, vec![out, rows])?;
        }
        Ok(())
    }
}

/// The experts of a feed-forward.
#[derive(Clone, Debug)]
pub struct Experts {
    /// Gate and up, `[experts, 2 * inner, hidden]`, or up alone.
    pub gate_up: ExpertLayer,
    /// `[experts, hidden, inner]`.
    pub down: ExpertLayer,
    /// What stands between the layers.
    pub gate: ExpertGate,
    /// What the operands of products are on the CPU; on other devices that is the weight's dtype.
    pub compute: Compute,
    /// Elements of a stack in fewer bits that are widened together for a product on a GPU, if one matrix has not more:
    /// [`WIDENED_TOGETHER`] but for tests.
    pub widened_together: usize,
}

/// Elements of experts in fewer bits that a GPU widens together: 256 MiB in 16 bits.
pub const WIDENED_TOGETHER: usize = 1 << 27;

impl Experts {
    /// Experts, features of a token, features between the layers.
    pub(crate) fn sizes(&self) -> Result<[usize; 3], OpsError> {
        let shape = self.down.weight.shape();
        match shape[..] {
            [experts, hidden, inner] => Ok([experts, hidden, inner]),
            _ => Err(OpsError::Rank { expected: 3, shape }),
        }
    }

    /// Inputs of the operation, in order: tokens, weights, the parts of gate and up, those of the second layer.
    pub(crate) fn inputs(&self, x: &AnyTensor, routing: &Routing) -> Vec<AnyTensor> {
        let first = [x.clone(), routing.weights.clone()];
        first.into_iter().chain(self.gate_up.tensors()).chain(self.down.tensors()).collect()
    }

    /// Experts of each token, after all shapes have been compared.
    fn check(&self, x: &AnyTensor, routing: &Routing) -> Result<usize, OpsError> {
        let [tokens, hidden] = crate::check::matrix(x)?;
        let [each_of, each] = crate::check::matrix(&routing.weights)?;
        let [experts, out, inner] = self.sizes()?;
        let pair = |what: &'static str, got: [usize; 2], expected: [usize; 2]| {
            if got == expected {
                return Ok(());
            }
            Err(OpsError::Shape { op: OP, what, got: got.to_vec(), expected: expected.to_vec() })
        };
        pair("weights of tokens", [each_of, hidden], [tokens, out])?;
        pair("experts of tokens", [routing.experts.len(), each], [tokens * each, each])?;
        self.gate_up
            .check(["gate_up_proj", "gate_up_proj_bias"], [experts, self.gate.reads(inner), hidden])?;
        self.down.check(["down_proj", "down_proj_bias"], [experts, hidden, inner])?;
        match routing.experts.beyond(experts) {
            Some(got) => Err(OpsError::Index { op: OP, got, limit: experts }),
            None => Ok(each),
        }
    }
}

/// `sum over a token's experts of weight * down(gated(gate_up(x)))`, over exactly the rows that were routed.
///
/// # Shapes
/// - x: `[tokens, hidden]`, output: the same
///
/// # Errors
/// If shapes or dtypes do not fit, or there is no such expert.
pub fn experts(x: &AnyTensor, routing: &Routing, experts: &Experts) -> Result<AnyTensor, OpsError> {
    experts.check(x, routing)?;
    dispatch!([x, &experts.down.weight] => experts::experts(x, routing, experts))
}

/// [`experts()`] for the few tokens of a decoding step. Plain tensors only, nothing is recorded; equal up to rounding.
///
/// # Errors
/// As [`experts()`].
pub fn experts_decode(x: &AnyTensor, routing: &Routing, experts: &Experts) -> Result<AnyTensor, OpsError> {
    experts.check(x, routing)?;
    dispatch!([x, &experts.down.weight] => experts::experts_decode(x, routing, experts))
}
