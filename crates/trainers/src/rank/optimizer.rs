//! The optimizer that options describe: its halves, their rates, and where whole matrices meet.

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
        let muon = options.muon.muon(&options.training);
        let matrices = self.plan.logical_matrices(self.dp.rank(), self.tp.rank());
        // At stage 0 every data-parallel rank has all of it: the ranks that share layers meet among themselves.
        let group = match self.plan.policy().stage {
            Stage::Zero => self.tp.group(),
            _ => &self.world,
        };
        let most = self.plan.policy().bucket_elements;
        let exchange = MatrixAllToAll::new(group, &self.device, matrices, most)?;
        let adam = options.training.adamw();
        let optimizer = match muon {
            None => Optimizer::adamw(&local, adam),
            Some(muon) => Optimizer::muon(&local, global, muon, adam, &|index| exchange.owns(index))?,
        };
        Ok((optimizer, exchange))
    }
}
