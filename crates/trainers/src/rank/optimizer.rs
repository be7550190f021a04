//! The optimizer that options describe: its halves, their rates, and where whole matrices meet.

use burnish_core::Parameter;
use burnish_optim::Optimizer;
use burnish_zero::{MatrixAllToAll, Stage};

use crate::TrainError;
use crate::rank::Rank;

impl Rank<'_> {
    /// The optimizer of this rank, and how it gets whole matrices. Every rank calls it.
    pub(crate) fn optimizer(&self) -> Result<(Optimizer, MatrixAllToAll), TrainError> {
        let options = &self.setup.options;
        let local = self.plan.local_registry(self.dp.rank());
        let global = self.exporter.registry();
        let muon = options.muon.muon(&options.training, options.model.compute());
        let matrices = self.plan.logical_matrices(self.dp.rank(), self.axes.all.rank());
        // At stage 0 every data-parallel rank has all of it: the ranks that share layers meet among themselves.
        let group = match self.plan.policy().stage {
            Stage::Zero => self.axes.all.group(),
            _ => &self.world,
        };
        let most = self.plan.policy().bucket_elements;
        let exchange = MatrixAllToAll::new(group, &self.device, matrices, most)?;
        let adam = options.training.adamw();
        let owned = |index: usize| exchange.owns(index);
        let optimizer = match (muon, options.training.rule()) {
            (Some(muon), _) => Optimizer::muon(&local, global, muon, adam, &owned)?,
            (None, Some(rule)) => Optimizer::ruled(&local, global, rule, adam.weight_decay, &owned),
            (None, None) => Optimizer::adamw(&local, adam),
        };
        let factor = |p: &Parameter| options.training.loraplus_factor(&p.name, p.shape.len());
        Ok((optimizer.with_rates(&factor), exchange))
    }
}
