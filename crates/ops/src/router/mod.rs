//! A router's choice of experts on the tape, and the auxiliary loss that balances it.

pub(crate) mod choice;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, FloatDType, TensorData};
use burnish_core::{ELSEWHERE, RouterRule};

use crate::kept::{Kind, kept};
use crate::{AnyTensor, OpsError, apply};

const OP: &str = "route";

/// Which experts tokens go to.
#[derive(Clone, Debug)]
pub struct Routing {
    /// `[tokens, per_token]`: what experts' outputs are multiplied by.
    pub weights: AnyTensor,
    /// `[tokens, per_token]`: experts, the best first; [`ELSEWHERE`] for one that another rank has.
    pub experts: Arc<Vec<u32>>,
}

impl Routing {
    /// The same to one who has these experts alone, counted from the first of them.
    #[must_use]
    pub fn to(&self, own: &Range<usize>) -> Self {
        let at = |&e: &u32| if own.contains(&(e as usize)) { e - own.start as u32 } else { ELSEWHERE };
        Self { weights: self.weights.clone(), experts: Arc::new(self.experts.iter().map(at).collect()) }
    }
}

/// The auxiliary loss of Switch Transformers (Fedus et al., arXiv:2101.03961) over all layers of one pass, as
/// Transformers computes it: `experts * sum over experts of (tokens that go there) * (mean probability)`, both over the
/// tokens of all layers.
///
/// A layer's gradient needs the counts of all layers, which forward has before backward begins; so routers note them
/// here and pull on their probabilities in backward.
#[derive(Debug)]
pub struct RouterBalance {
    experts: usize,
    coefficient: f32,
    layers: Mutex<Vec<Option<Share>>>,
}

/// What one layer's router did.
#[derive(Clone, Debug)]
struct Share {
    tokens: usize,
    /// Tokens that each expert got.
    counts: Vec<f64>,
    /// Sums of probabilities.
    probabilities: Vec<f64>,
}

impl RouterBalance {
    /// Of the routers of `layers` blocks over `experts` experts; the loss is multiplied by `coefficient` where it pulls.
    #[must_use]
    pub fn new(layers: usize, experts: usize, coefficient: f32) -> Self {
        Self { experts, coefficient, layers: Mutex::new(vec![None; layers]) }
    }

    /// A layer's share; the same once more where a block is recomputed.
    fn note(&self, layer: usize, logits: &[f32], chosen: &[u32]) {
        let experts = self.experts;
        let mut share = Share {
            tokens: logits.len() / experts,
            counts: vec![0.0; experts],
            probabilities: vec![0.0; experts],
        };
        for &e in chosen {
            share.counts[e as usize] += 1.0;
        }
        let mut own = vec![0.0; experts];
        for row in logits.chunks_exact(experts) {
            choice::softmax(row, &mut own);
            share.probabilities.iter_mut().zip(&own).for_each(|(to, p)| *to += f64::from(*p));
        }
        if let Some(slot) = self.known().get_mut(layer) {
            *slot = Some(share);
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Vec<Option<Share>>> {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts and sums of probabilities of all layers, each over the number of tokens; `None` where there was no token.
    fn means(&self) -> Option<(f64, Vec<f64>, Vec<f64>)> {
        let layers = self.known();
        let tokens: usize = layers.iter().flatten().map(|share| share.tokens).sum();
        let mut means = (tokens as f64, vec![0.0; self.experts], vec![0.0; self.experts]);
        for share in layers.iter().flatten() {
            for e in 0..self.experts {
                means.1[e] += share.counts[e] / tokens as f64;
                means.2[e] += share.probabilities[e] / tokens as f64;
            }
        }
        (tokens > 0).then_some(means)
    }

    /// The loss without its coefficient; 0 of a pass without tokens.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let sum = |(_, counts, probabilities): (f64, Vec<f64>, Vec<f64>)| -> f64 {
            counts.iter().zip(&probabilities).map(|(f, p)| f * p).sum()
        };
        self.experts as f64 * self.means().map_or(0.0, sum)
    }

    /// What the loss times its coefficient adds to the gradient of each expert's probability at every token.
    fn pull(&self) -> Option<Vec<f32>> {
        let (tokens, counts, _) = self.means()?;
        let factor = f64::from(self.coefficient) * self.experts as f64 / tokens;
        (self.coefficient != 0.0).then(|| counts.iter().map(|f| (factor * f) as f32).collect())
    }
}

/// The experts of each token and their weights.
///
/// The choice is made on the host, where experts' rows are gathered: on another device the logits are read.
///
/// # Shapes
/// - logits: `[tokens, experts]`; bias: `[experts]`, which chooses and does not weigh
///
/// # Errors
/// If shapes do not fit, or a token has more experts than there are.
pub fn route(
    logits: &AnyTensor,
    bias: Option<&AnyTensor>,
    rule: &RouterRule,
    balance: Option<(&Arc<RouterBalance>, usize)>,
) -> Result<Routing, OpsError> {
    let [tokens, experts] = crate::check::matrix(logits)?;
    let each = rule.per_token;
    if each == 0 || each > experts {
        return Err(OpsError::Index { op: OP, got: each, limit: experts + 1 });
    }
    if let Some(bias) = bias.filter(|bias| bias.shape() != [experts]) {
        return Err(OpsError::Shape { op: OP, what: "bias", got: bias.shape(), expected: vec![experts] });
    }
    let mut chosen = Arc::default();
    let (rule, balance) = (*rule, balance.map(|(balance, layer)| (balance.clone(), layer)));
    let weights = apply(OP, std::slice::from_ref(logits), |plain, _| {
        let (device, dtype) = (plain[0].device(), plain[0].burn_dtype());
        let choose = || {
            let values = plain[0].to_f32();
            let found = choice::route(experts, &rule, &values, bias.map(AnyTensor::to_f32).as_deref());
            Ok::<_, OpsError>((Arc::new(values), Arc::new(found.experts), found.weights))
        };
        // On the host the logits cost more to keep than to make again.
        let (values, found, weights) =
            if plain[0].is_on_host() { choose() } else { kept(Kind::Choice, choose) }?;
        chosen = found;
        if let Some((balance, layer)) = &balance {
            // The loss is of the choice without a correction, as Transformers has it.
            let plain = bias.map(|_| choice::route(experts, &rule, &values, None).experts);
            balance.note(*layer, &values, plain.as_ref().unwrap_or(&chosen));
        }
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let weights = TensorData::new(weights, [tokens, each]).convert_dtype(wide);
        let (chosen, float) =
            (chosen.clone(), if wide == DType::F64 { FloatDType::F64 } else { FloatDType::F32 });
        let backward = move |upstream: AnyTensor| {
            let pulls = balance.as_ref().and_then(|(balance, _)| balance.pull());
            let all = vec![true; tokens];
            let pull = pulls.as_ref().map(|p| choice::RouterPull { probability: p, tokens: &all });
            let upstream = upstream.to_f32();
            let gradient = choice::route_backward(experts, &rule, &values, &chosen, Some(&upstream), pull);
            let gradient = TensorData::new(gradient, [tokens, experts]);
            let gradient = AnyTensor::from_data(gradient, &device);
            vec![Some(if gradient.burn_dtype() == dtype { gradient } else { gradient.cast(float) })]
        };
        Ok((AnyTensor::from_data(weights, &plain[0].device()), Box::new(backward)))
    })?;
    Ok(Routing { weights, experts: chosen })
}
