//! A sampled completion, with what its loss needs.

use burnish_models::ModelError;
use serde::{Deserialize, Deserializer, Serialize};

/// A completion of a prompt; the same on all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// The prompt's row of the data set.
    pub row: usize,
    /// Its tokens, the one that ends it included.
    pub ids: Vec<u32>,
    /// Whether a token ended it; else it was cut off.
    pub ended: bool,
    /// Whether its tokens are in the loss.
    pub trains: bool,
    /// What each reward function said; nothing where it declined.
    pub rewards: Vec<Option<f64>>,
    /// How much better than others it is.
    pub advantage: f64,
    /// Its tokens' log-probabilities by the sampler; NaN where it could not say.
    #[serde(deserialize_with = "numbers")]
    pub sampling: Vec<f32>,
    /// The same by the policy at the start of the step, where the loss cannot take the current one.
    pub old: Option<Vec<f32>>,
    /// The same by the reference.
    pub reference: Option<Vec<f32>>,
}

impl Sampled {
    /// That what was computed of it is numbers; what a server said may be none.
    ///
    /// # Errors
    /// If it is not.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let computed = [&self.old, &self.reference].into_iter().flatten().flatten().map(|&lp| f64::from(lp));
        let rewards = self.rewards.iter().flatten().copied();
        match computed.chain(rewards).find(|value| !value.is_finite()) {
            None => Ok(()),
            Some(value) => {
                let what = format!("a completion of row {}", self.row + 1);
                Err(ModelError::ResultNotFinite { what, value })
            }
        }
    }

    /// Tokens in the loss.
    pub fn targets(&self) -> usize {
        if self.trains { self.ids.len() } else { 0 }
    }
}

/// JSON has no NaN: it is null.
fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
    let read = Vec::<Option<f32>>::deserialize(from)?;
    Ok(read.into_iter().map(|number| number.unwrap_or(f32::NAN)).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_to_the_bit() {
        let sampled = Sampled {
            row: 3,
            ids: vec![1, 2],
            ended: true,
            trains: true,
            rewards: vec![None, Some(0.1)],
            advantage: -1.0 / 3.0,
            sampling: vec![-(0.1_f32).sqrt(), f32::NAN],
            old: Some(vec![f32::MIN_POSITIVE, -1e-7]),
            reference: None,
        };
        let text = serde_json::to_string(&sampled).unwrap();
        let back: Sampled = serde_json::from_str(&text).unwrap();
        assert!(back.sampling[1].is_nan());
        let known = |s: &Sampled| Sampled { sampling: s.sampling[..1].to_vec(), ..s.clone() };
        assert_eq!(known(&back), known(&sampled));
    }
}
