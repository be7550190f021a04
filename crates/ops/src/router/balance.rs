//! [`RouterBalance`]: the auxiliary loss that balances a router's experts.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use burn::tensor::{DType, Tensor};

use crate::gpu::{over_rows, sum_rows};
use crate::{AnyTensor, all_joined};

/// The auxiliary loss of Switch Transformers (Fedus et al., arXiv:2101.03961) over all layers of one pass, as
/// Transformers computes it: `experts * sum over experts of (tokens that go there) * (mean probability)`, both over the
/// tokens of all layers.
///
/// A layer's gradient needs the counts of all layers, which forward has before backward begins; so routers note them
/// here, where their logits lie, and pull on their probabilities in backward. One is of one pass.
#[derive(Debug)]
pub struct RouterBalance {
    experts: usize,
    coefficient: f32,
    /// In how many texts each token is, where one is in several.
    texts: OnceLock<Arc<Vec<f32>>>,
    noted: Mutex<Noted>,
}

#[derive(Debug)]
struct Noted {
    layers: Vec<Option<Share>>,
    /// What the loss adds to the gradient of each expert's probability, once backward has begun.
    pull: Option<AnyTensor>,
}

/// What one layer's router did.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// Tokens, as often as texts have them.
    pub(crate) tokens: f64,
    /// `[experts]`: how many of these each got.
    pub(crate) counts: AnyTensor,
    /// `[experts]`: sums of probabilities, in the same dtype.
    pub(crate) probabilities: AnyTensor,
}

impl RouterBalance {
    /// Of the routers of `layers` blocks over `experts` experts; the loss is multiplied by `coefficient` where it pulls.
    #[must_use]
    pub fn new(layers: usize, experts: usize, coefficient: f32) -> Self {
        let noted = Noted { layers: vec![None; layers], pull: None };
        Self { experts, coefficient, texts: OnceLock::new(), noted: Mutex::new(noted) }
    }

    /// Says in how many texts each token of the pass is, `[tokens]`, where a prompt is computed once for several texts: it
    /// counts once for each of them.
    pub fn count_texts(&self, texts: Vec<f32>) {
        self.texts.get_or_init(|| Arc::new(texts));
    }

    /// In how many texts each token is, where one is in several.
    pub(crate) fn texts(&self) -> Option<&Arc<Vec<f32>>> {
        self.texts.get()
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A layer's share; what a block that runs once more says is known.
    pub(crate) fn note(&self, layer: usize, share: impl FnOnce() -> Share) {
        if let Some(slot) = self.noted().layers.get_mut(layer).filter(|slot| slot.is_none()) {
            *slot = Some(share());
        }
    }

    /// The sum over all layers of what each noted, over the number of their tokens, which it says too; `None` where there was none.
    fn mean(&self, noted: &Noted, of: fn(&Share) -> &AnyTensor) -> Option<(Tensor<1>, f64)> {
        let shares: Vec<&Share> = noted.layers.iter().flatten().filter(|share| share.tokens > 0.0).collect();
        let tokens = shares.iter().map(|share| share.tokens).sum::<f64>();
        if shares.is_empty() {
            return None;
        }
        let all = all_joined(shares.iter().map(|&s| of(s).clone()).collect(), &[shares.len(), self.experts]);
        let sum = over_rows(all.rank().expect("invariant: two dimensions were asked for"));
        Some((sum / tokens, tokens))
    }

    /// The loss without its coefficient; 0 of a pass without tokens. Where routers chose on a device it waits for that.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let noted = self.noted();
        let means =
            self.mean(&noted, |share| &share.counts).zip(self.mean(&noted, |share| &share.probabilities));
        let sum = |((counts, _), (probabilities, _)): ((Tensor<1>, f64), (Tensor<1>, f64))| {
            let both = (counts * probabilities).unsqueeze();
            let sum = sum_rows(both, false).into_data().convert::<f64>().try_into_vec::<f64>();
            sum.expect("invariant: converted to f64")[0]
        };
        self.experts as f64 * means.map_or(0.0, sum)
    }

    /// What the loss times its coefficient adds to the gradient of each expert's probability at every token, `[experts]` in f32.
    pub(crate) fn pull(&self) -> Option<AnyTensor> {
        let mut noted = self.noted();
        if noted.pull.is_none() && self.coefficient != 0.0 {
            let (counts, tokens) = self.mean(&noted, |share| &share.counts)?;
            let factor = f64::from(self.coefficient) * self.experts as f64 / tokens;
            noted.pull = Some(AnyTensor::new((counts * factor).cast(DType::F32)));
        }
        noted.pull.clone()
    }
}
