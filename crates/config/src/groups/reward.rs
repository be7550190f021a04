//! The loss of a reward model.

use burnish_losses::Reward;

use crate::checks::Checks;
use crate::table::options;

options! {
    /// The loss over pairs of texts.
    RewardLossOptions, "Reward";
    /// Weight of (chosen + rejected)^2, which keeps rewards around 0; its paper has 0.01.
    Trl center_rewards_coefficient: Option<f64> = None;
    /// Train without the model's and the adapter's dropout.
    Trl disable_dropout: bool = true;
}

impl RewardLossOptions {
    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        checks.owner(Reward::faults(self.center_rewards_coefficient));
    }
}
