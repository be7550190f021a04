//! A router's choice of experts on the tape, and the auxiliary loss that balances it.

mod balance;
pub(crate) mod choice;
mod token_experts;

pub use balance::RouterBalance;
pub(crate) use balance::Share;
pub use token_experts::TokenExperts;

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Device, FloatDType, TensorData};
use burnish_core::RouterRule;

use crate::{AnyTensor, OpsError, apply};

pub(crate) const OP: &str = "route";

/// Which experts tokens go to.
#[derive(Clone, Debug)]
pub struct Routing {
    /// `[tokens, per_token]`: what experts' outputs are multiplied by.
    pub weights: AnyTensor,
    /// The experts of each token.
    pub experts: TokenExperts,
}

impl Routing {
    /// The same to one who has these experts alone, counted from the first of them.
    #[must_use]
    pub fn to(&self, own: &Range<usize>) -> Self {
        Self { weights: self.weights.clone(), experts: self.experts.to(own) }
    }
}

/// A layer's share of the loss that balances experts, of a choice on the host.
fn share(experts: usize, values: &[f32], chosen: &[u32], texts: &[f32], device: &Device) -> Share {
    let (mut counts, mut probabilities) = (vec![0.0_f64; experts], vec![0.0_f64; experts]);
    let mut own = vec![0.0; experts];
    let each = chosen.len() / texts.len().max(1);
    for ((row, chosen), &texts) in values.chunks_exact(experts).zip(chosen.chunks(each.max(1))).zip(texts) {
        let texts = f64::from(texts);
        chosen.iter().for_each(|&e| counts[e as usize] += texts);
        choice::softmax(row, &mut own);
        probabilities.iter_mut().zip(&own).for_each(|(to, p)| *to += texts * f64::from(*p));
    }
    let dtype = if crate::on_host(device) { DType::F64 } else { DType::F32 };
    let tensor =
        |sums: Vec<f64>| AnyTensor::from_data(TensorData::new(sums, [experts]).convert_dtype(dtype), device);
    let [counts, probabilities] = [counts, probabilities].map(tensor);
    Share { tokens: texts.iter().copied().map(f64::from).sum(), counts, probabilities }
}

/// The experts of each token and their weights.
///
/// The choice is made where the logits lie by a kernel, or else on the host, which reads them.
///
/// # Shapes
/// - logits: `[tokens, experts]`; bias: `[experts]`, which chooses and does not weigh
///
/// # Errors
/// If shapes do not fit, a token has more experts than there are, or `balance` counts the texts of other tokens.
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
    let texts = balance.and_then(|(balance, _)| balance.texts()).cloned();
    if let Some(texts) = texts.as_ref().filter(|texts| texts.len() != tokens) {
        return Err(OpsError::Shape {
            op: OP,
            what: "texts",
            got: vec![texts.len()],
            expected: vec![tokens],
        });
    }
    #[cfg(feature = "cube")]
    if let Some(routing) = crate::gpu::router::route(logits, bias, rule, balance) {
        return routing;
    }
    let mut chosen = Arc::default();
    let (rule, balance) = (*rule, balance.map(|(balance, layer)| (balance.clone(), layer)));
    let texts = texts.unwrap_or_else(|| Arc::new(vec![1.0; if balance.is_some() { tokens } else { 0 }]));
    let weights = apply(OP, std::slice::from_ref(logits), |plain, _| {
        let (device, dtype) = (plain[0].device(), plain[0].burn_dtype());
        let values = plain[0].to_f32();
        let found = choice::route(experts, &rule, &values, bias.map(AnyTensor::to_f32).as_deref());
        chosen = Arc::new(found.experts);
        if let Some((balance, layer)) = &balance {
            // The loss is of the choice without a correction, as Transformers has it.
            let plain = || bias.map(|_| choice::route(experts, &rule, &values, None).experts);
            balance.note(*layer, || {
                share(experts, &values, plain().as_ref().unwrap_or(&chosen), &texts, &device)
            });
        }
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let weights = TensorData::new(found.weights, [tokens, each]).convert_dtype(wide);
        let weights = AnyTensor::from_data(weights, &device);
        let (chosen, float) =
            (chosen.clone(), if wide == DType::F64 { FloatDType::F64 } else { FloatDType::F32 });
        let backward = move |upstream: AnyTensor| {
            let pulls = balance.as_ref().and_then(|(balance, _)| balance.pull()).map(|pull| pull.to_f32());
            let pull = pulls.as_ref().map(|p| choice::RouterPull { probability: p, tokens: &texts });
            let upstream = upstream.to_f32();
            let gradient = choice::route_backward(experts, &rule, &values, &chosen, Some(&upstream), pull);
            let gradient = TensorData::new(gradient, [tokens, experts]);
            let gradient = AnyTensor::from_data(gradient, &device);
            vec![Some(if gradient.burn_dtype() == dtype { gradient } else { gradient.cast(float) })]
        };
        Ok((weights, Box::new(backward)))
    })?;
    Ok(Routing { weights, experts: chosen.into() })
}
