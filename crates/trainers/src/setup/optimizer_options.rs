//! The cost of a parameter to the rank that needs all of it, by which such parameters are dealt to ranks.

use burnish_core::Parameter;
use burnish_optim::{MuonOptions, UpdateRule};
use burnish_zero::OrthoCost;

/// What orthogonalising a parameter costs, if Muon takes it, or the pass over one that the rule needs whole: of its
/// logical shape, the same on every rank.
pub(crate) fn work(
    muon: Option<&MuonOptions>,
    rule: Option<&UpdateRule>,
    parameter: &Parameter,
) -> Option<OrthoCost> {
    let elements = parameter.elements();
    let whole = rule.is_some_and(|rule| rule.needs_whole(parameter));
    let pass = whole.then_some(OrthoCost { flops: elements as f64, elements });
    muon.and_then(|muon| OrthoCost::of(muon, parameter)).or(pass)
}
