//! The cost of orthogonalising a parameter, by which matrices are dealt to ranks.

use burnish_core::Parameter;
use burnish_optim::MuonOptions;
use burnish_zero::OrthoCost;

/// What orthogonalising a parameter costs, if Muon takes it: of its logical shape, the same on every rank.
pub(crate) fn work(muon: Option<&MuonOptions>, parameter: &Parameter) -> Option<OrthoCost> {
    OrthoCost::of(muon?, parameter)
}
