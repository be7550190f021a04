//! Equality of parsed answers, numeric within a tolerance, otherwise structural.

use super::formula::{Formula, Point};
use super::value::{Relation, Value};

/// Whether a given value is the solution's. Not symmetric: `5` and `x = 5` are the same, and an equation that is not solved for
/// a variable is not its right side.
pub(super) fn same(solution: &Value, given: &Value) -> bool {
    let (solution, given) = (shortened(solution), shortened(given));
    if is_equation(&given) && !is_equation(&solution) {
        return same(&solution, last_side(&given));
    }
    if is_assignment(&solution) && !is_equation(&given) {
        return same(last_side(&solution), &given);
    }
    match (&solution, &given) {
        (Value::Formula(solution), Value::Formula(given)) => same_formula(solution, given),
        (Value::Relation(left, relations), Value::Relation(right, others)) => {
            same_relation(left, relations, right, others)
        }
        (Value::Interval(bounds, closed), Value::Interval(others, also_closed)) => {
            closed == also_closed && same(&bounds[0], &others[0]) && same(&bounds[1], &others[1])
        }
        (Value::Union(parts), Value::Union(others)) => in_any_order(parts, others),
        (Value::Union(_) | Value::Relation(..), _) | (_, Value::Union(_) | Value::Relation(..)) => false,
        (solution, given) => same_several(solution, given),
    }
}

/// A chain of equations from a name to a value as one equation.
fn shortened(value: &Value) -> Value {
    match value {
        Value::Relation(sides, relations) if sides.len() > 2 && is_assignment(value) => Value::Relation(
            [sides.first(), sides.last()].into_iter().flatten().cloned().collect(),
            relations[..1].to_vec(),
        ),
        other => other.clone(),
    }
}

fn is_equation(value: &Value) -> bool {
    matches!(value, Value::Relation(_, relations) if relations.iter().all(|&relation| relation == Relation::Equal))
}

fn is_assignment(value: &Value) -> bool {
    let names_only = |side: &Value| matches!(side, Value::Formula(formula) if formula.word().is_some());
    is_equation(value) && matches!(value, Value::Relation(sides, _) if sides.first().is_some_and(names_only))
}

fn last_side(value: &Value) -> &Value {
    match value {
        Value::Relation(sides, _) => sides.last().unwrap_or(value),
        other => other,
    }
}

/// Sets in any order; whatever has an order, in it. One value is a set of one, and a pair may be written as an open interval.
fn same_several(solution: &Value, given: &Value) -> bool {
    let parts = |value: &Value| match value {
        Value::Set(parts) => Some((parts.clone(), false)),
        Value::Tuple(parts) => Some((parts.clone(), true)),
        Value::Interval(bounds, [false, false]) => Some((bounds.to_vec(), true)),
        Value::Interval(..) => None,
        other => Some((vec![other.clone()], false)),
    };
    match (parts(solution), parts(given)) {
        (Some((solution, true)), Some((given, _))) => {
            solution.len() == given.len()
                && solution.iter().zip(&given).all(|(solution, given)| same(solution, given))
        }
        (Some((solution, false)), Some((given, _))) => in_any_order(&solution, &given),
        _ => false,
    }
}

fn in_any_order(solution: &[Value], given: &[Value]) -> bool {
    let distinct = |values: &[Value]| {
        let mut kept: Vec<Value> = Vec::new();
        for value in values {
            if !kept.iter().any(|other| same(other, value)) {
                kept.push(value.clone());
            }
        }
        kept
    };
    let (solution, mut left) = (distinct(solution), distinct(given));
    solution.len() == left.len()
        && solution.iter().all(|value| {
            let found = left.iter().position(|given| same(value, given));
            found.map(|at| left.swap_remove(at)).is_some()
        })
}

fn same_relation(left: &[Value], relations: &[Relation], right: &[Value], others: &[Relation]) -> bool {
    if let ([a, b], [c, d], [relation], [other]) = (left, right, relations, others)
        && let [Value::Formula(a), Value::Formula(b), Value::Formula(c), Value::Formula(d)] = [a, b, c, d]
    {
        return (relation == other && same_difference(*relation, [a, b], [c, d]))
            || (relation.turned() == *other && same_difference(*relation, [a, b], [d, c]));
    }
    left.len() == right.len()
        && relations == others
        && left.iter().zip(right).all(|(left, right)| same(left, right))
}

/// Whether both differences vanish together, and have one sign if that matters: one is a multiple of the other.
fn same_difference(relation: Relation, left: [&Formula; 2], right: [&Formula; 2]) -> bool {
    let names = |sides: [&Formula; 2]| {
        sides
            .iter()
            .flat_map(|side| side.names())
            .map(str::to_owned)
            .collect::<std::collections::BTreeSet<_>>()
    };
    if names(left) != names(right) {
        return false;
    }
    let mut ratio: Option<f64> = None;
    for point in POINTS {
        let difference = |[a, b]: [&Formula; 2]| a.at(point) - b.at(point);
        let (left, right) = (difference(left), difference(right));
        let here = left / right;
        if left.is_nan() && right.is_nan() {
            continue;
        }
        if !here.is_finite() || ratio.is_some_and(|ratio| !close(ratio, here, 1e-9)) {
            return false;
        }
        ratio = Some(here);
    }
    let symmetric = matches!(relation, Relation::Equal | Relation::Unequal);
    ratio.is_some_and(|ratio| symmetric || ratio > 0.0)
}

/// Where formulas with variables are compared.
const POINTS: [Point; 4] = [Point(0), Point(1), Point(2), Point(3)];

fn same_formula(solution: &Formula, given: &Formula) -> bool {
    if let (Some(left), Some(right)) = (solution.word(), given.word())
        && left == right
    {
        return true;
    }
    if solution.names().is_empty() && given.names().is_empty() {
        return same_number(solution, given);
    }
    let mut compared = false;
    for point in POINTS {
        let (left, right) = (solution.at(point), given.at(point));
        if left.is_nan() && right.is_nan() {
            continue;
        }
        if !(left == right || close(left, right, 1e-9)) {
            return false;
        }
        compared = true;
    }
    compared
}

/// A percentage of a whole number is also that number. A decimal number is the other one rounded to six places, unless that
/// one is whole; numbers without decimals must be equal.
fn same_number(solution: &Formula, given: &Formula) -> bool {
    if let (Some(left), Some(right)) = (solution.whole_or_percent(), given.whole_or_percent()) {
        return left == right;
    }
    let (exact, other) = (solution.exact(), given.exact());
    if let (Some(exact), Some(other)) = (exact, other)
        && exact == other
    {
        return true;
    }
    let point = Point(0);
    let (left, right) = (solution.at(point), given.at(point));
    if solution.is_decimal() || given.is_decimal() {
        let whole = |formula: &Formula, value: Option<super::formula::Ratio>| {
            !formula.is_decimal() && value.is_some_and(super::formula::Ratio::is_whole)
        };
        let rounded = |x: f64| (x * 1e6).round_ties_even();
        return !whole(solution, exact) && !whole(given, other) && rounded(left) == rounded(right);
    }
    if exact.is_some() && other.is_some() {
        return false;
    }
    left == right || close(left, right, 1e-12)
}

fn close(left: f64, right: f64, tolerance: f64) -> bool {
    left.is_finite()
        && right.is_finite()
        && (left - right).abs() <= tolerance * left.abs().max(right.abs()).max(1.0)
}
