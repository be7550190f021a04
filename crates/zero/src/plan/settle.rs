//! Every parameter has one storage and one unit.

use burnish_core::{Dtype, Registry};

use crate::{PlanError, Unit};

/// For each parameter the one whose storage it is.
pub(super) fn targets(registry: &Registry) -> Result<Vec<usize>, PlanError> {
    let mut targets: Vec<usize> = Vec::with_capacity(registry.len());
    for (index, parameter) in registry.iter().enumerate() {
        let fault = |field, dtype| PlanError::Dtype { parameter: parameter.name.clone(), field, got: dtype };
        for (field, dtype) in [("store", parameter.precision.store), ("reduce", parameter.precision.reduce)] {
            if !matches!(dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16) {
                return Err(fault(field, dtype));
            }
        }
        // A registry holds a tied parameter only after its target.
        let target = match parameter.alias_of.as_deref().and_then(|name| registry.index_of(name)) {
            Some(first) => targets[first],
            None => index,
        };
        let other = registry.at(target);
        if other.shape != parameter.shape || other.trainable != parameter.trainable {
            return Err(PlanError::Tied {
                parameter: parameter.name.clone(),
                target: other.name.clone(),
                got: (parameter.shape.clone(), parameter.trainable),
                expected: (other.shape.clone(), other.trainable),
            });
        }
        targets.push(target);
    }
    Ok(targets)
}

/// Units over targets, each in the first unit that lists it, and the unit of each target.
pub(super) fn settle(
    registry: &Registry,
    units: Vec<Unit>,
    targets: &[usize],
) -> Result<(Vec<Unit>, Vec<usize>), PlanError> {
    let mut listed = vec![None; registry.len()];
    let mut unit_of = vec![None; registry.len()];
    let mut settled = Vec::with_capacity(units.len());
    for (number, unit) in units.iter().enumerate() {
        let mut parameters = Vec::with_capacity(unit.parameters.len());
        for &index in &unit.parameters {
            if index >= registry.len() {
                return Err(PlanError::Index { unit: unit.name.clone(), index, parameters: registry.len() });
            }
            if let Some(first) = listed[index].replace(number) {
                let first: &Unit = &units[first];
                return Err(PlanError::Twice {
                    parameter: registry.at(index).name.clone(),
                    first: first.name.clone(),
                    second: unit.name.clone(),
                });
            }
            let target = targets[index];
            if unit_of[target].is_none() {
                unit_of[target] = Some(number);
                parameters.push(target);
            }
        }
        settled.push(Unit { parameters, ..unit.clone() });
    }
    let unit_of = (0..registry.len())
        .map(|index| {
            *unit_of[targets[index]].get_or_insert_with(|| {
                settled.push(Unit::root(registry.at(index).name.clone(), vec![targets[index]]));
                settled.len() - 1
            })
        })
        .collect();
    Ok((settled, unit_of))
}
