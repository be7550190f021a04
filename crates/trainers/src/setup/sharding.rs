//! The sharding plan that options describe: owners of rows.

use burnish_config::groups::RankOptions;
use burnish_core::{Parameter, Registry};
use burnish_zero::{OrthoCost, Plan, Unit};

use crate::TrainError;

/// The plan that options describe, for the parameters and units of a model.
///
/// # Errors
/// If a dtype cannot travel.
pub(crate) fn sharding_plan(
    registry: &Registry,
    units: Vec<(String, Vec<usize>)>,
    ranks: usize,
    options: &RankOptions,
    work: impl Fn(usize, &Parameter) -> Option<OrthoCost>,
) -> Result<Plan, TrainError> {
    let last = units.len().saturating_sub(1);
    let unit = |(at, (name, parameters)): (usize, (String, Vec<usize>))| {
        // The embedding and the head: used outside the blocks, or at both ends when tied.
        if at == 0 || at == last { Unit::root(name, parameters) } else { Unit::block(name, parameters) }
    };
    let units = units.into_iter().enumerate().map(unit).collect();
    Ok(Plan::with_owners(registry, units, ranks, options.policy(), work)?)
}
