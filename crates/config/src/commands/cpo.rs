//! `burnish cpo`: preference optimisation without a reference: CPO, SimPO, AlphaPO.

use crate::checks::Checks;
use crate::groups::{CpoLossOptions, PreferenceRowOptions};
use crate::trainer::{TrainerOptions, trainer};

trainer! {
    /// Options of `burnish cpo`.
    CpoOptions, "cpo", "Teach a model to prefer chosen completions, without a reference (CPO, SimPO, AlphaPO)",
    default { training.learning_rate: 1e-6, training.router_aux_loss_coef: Some(0.0) }, {
        /// Rows to tokens.
        preparation: PreferenceRowOptions,
        /// The loss.
        loss: CpoLossOptions,
    }
}

impl CpoOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        self.run_options().rules_by_rows(checks);
        self.loss.rules(checks);
    }
}
