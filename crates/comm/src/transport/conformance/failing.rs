//! Disagreement, silence and ends: an error on every rank, in time, that names ranks, operation and parameter.
//!
//! In each check the last rank does something else than the others. Alone there is nobody to differ from.

use std::time::{Duration, Instant};

use super::{Checked, Failure};
use crate::{Bucket, Call, CommError, Difference, Group, Mesh, Op, Reduction};

const NAME: &str = "model.layers.3.mlp.up_proj.weight";

fn all_reduce(group: &Group, elements: usize, reduction: Reduction, what: &str) -> Result<(), CommError> {
    group.all_reduce(Bucket::new(vec![1.0_f32; elements]), reduction, what).wait().map(drop)
}

fn usual(group: &Group) -> Result<(), CommError> {
    all_reduce(group, 12, Reduction::Sum, NAME)
}

/// The last rank makes `odd`, the others `usual`: every rank must name the difference, the ranks on the other side, the
/// operation and the parameter; and refuse to go on.
fn differ(
    checked: &Checked,
    difference: Difference,
    usual: impl Fn(&Group) -> Result<(), CommError>,
    odd: impl Fn(&Group) -> Result<(), CommError>,
) -> Result<(), Failure> {
    let group = checked.world.group();
    let (rank, last) = (group.rank(), group.size() - 1);
    if last == 0 {
        return Ok(());
    }
    checked.done("in step", all_reduce(&group, 5, Reduction::Sum, "before"))?;
    let result = if rank == last { odd(&group) } else { usual(&group) };
    let error = checked.fails("out of step", result)?;
    let CommError::Disagreement { rank: named, mine, theirs, .. } = &error else {
        return Err(checked.failure("the error", "a disagreement".to_owned(), error.to_string()));
    };
    checked.same("this rank", *named, rank)?;
    let ranks: Vec<usize> = theirs.iter().map(|(rank, _)| *rank).collect();
    let others: Vec<usize> = if rank == last { (0..last).collect() } else { vec![last] };
    checked.same("the ranks that differ", ranks, others)?;
    for (_, theirs) in theirs {
        checked.same("what differs", mine.difference(theirs), Some(difference))?;
    }
    names(checked, &error, mine)?;
    refuses(checked, &group)
}

fn names(checked: &Checked, error: &CommError, call: &Call) -> Result<(), Failure> {
    let text = error.to_string();
    let complete = text.contains(call.op.name()) && text.contains(&call.what) && text.contains(&call.axis);
    checked.holds("the message names operation, parameter and axis", complete, text)
}

fn refuses(checked: &Checked, group: &Group) -> Result<(), Failure> {
    let before = Instant::now();
    let error = checked.fails("after an error", group.channel("other").barrier("afterwards"))?;
    checked.holds("later calls are refused", matches!(error, CommError::Broken { .. }), &error)?;
    checked.holds("at once", before.elapsed() < Duration::from_secs(2), before.elapsed())?;
    checked.holds("the world knows why", checked.world.failure().is_some(), "no failure")
}

pub(super) fn another_op(checked: &Checked) -> Result<(), Failure> {
    differ(checked, Difference::Op, usual, |group| {
        let counts = vec![12; group.size()];
        group.all_gather_v(Bucket::new(vec![1.0_f32; 12]), &counts, NAME).wait().map(drop)
    })
}

pub(super) fn another_dtype(checked: &Checked) -> Result<(), Failure> {
    differ(checked, Difference::Dtype, usual, |group| {
        group.all_reduce(Bucket::new(vec![half::bf16::ONE; 12]), Reduction::Sum, NAME).wait().map(drop)
    })
}

pub(super) fn another_length(checked: &Checked) -> Result<(), Failure> {
    // so different that one side exchanges whole buckets and the other chunks
    differ(checked, Difference::Elements, usual, |group| all_reduce(group, 100_000, Reduction::Sum, NAME))
}

pub(super) fn other_counts(checked: &Checked) -> Result<(), Failure> {
    let scatter = |group: &Group, counts: &[usize]| {
        let bucket = Bucket::new(vec![1.0_f32; counts.iter().sum()]);
        group.reduce_scatter_v(bucket, counts, Reduction::Sum, NAME).wait().map(drop)
    };
    let even = vec![4; checked.world.size()];
    let mut uneven = even.clone();
    uneven[0] += 1;
    uneven[checked.world.size() - 1] -= 1;
    differ(checked, Difference::Counts, |group| scatter(group, &even), |group| scatter(group, &uneven))
}

pub(super) fn another_reduction(checked: &Checked) -> Result<(), Failure> {
    differ(checked, Difference::Reduction, usual, |group| all_reduce(group, 12, Reduction::Max, NAME))
}

pub(super) fn another_root(checked: &Checked) -> Result<(), Failure> {
    let from =
        |root| move |group: &Group| group.broadcast(Bucket::new(vec![0_u8; 9]), root, NAME).wait().map(drop);
    differ(checked, Difference::Root, from(0), from(checked.world.size() - 1))
}

pub(super) fn another_axis(checked: &Checked) -> Result<(), Failure> {
    let mesh = checked.done("mesh", Mesh::new(&checked.world, &[("dp", checked.world.size())]))?;
    let dp = checked.done("dp", mesh.group("dp"))?;
    differ(checked, Difference::Axis, usual, |_| usual(&dp))
}

pub(super) fn another_name(checked: &Checked) -> Result<(), Failure> {
    differ(checked, Difference::What, usual, |group| {
        all_reduce(group, 12, Reduction::Sum, "model.layers.4.mlp.up_proj.weight")
    })
}

pub(super) fn skipped(checked: &Checked) -> Result<(), Failure> {
    differ(
        checked,
        Difference::What,
        |group| {
            usual(group)?;
            all_reduce(group, 12, Reduction::Sum, "the next")
        },
        |group| all_reduce(group, 12, Reduction::Sum, "the next"),
    )
}

/// Only two ranks take part in the call that fails; the others learn of it at their next.
fn pair(
    checked: &Checked,
    first: impl Fn(&Group) -> Result<(), CommError>,
    last: impl Fn(&Group) -> Result<(), CommError>,
) -> Result<(), Failure> {
    let group = checked.world.group();
    if group.size() == 1 {
        return Ok(());
    }
    let result = match group.rank() {
        0 => first(&group).and_then(|()| group.barrier("afterwards")),
        rank if rank + 1 == group.size() => last(&group).and_then(|()| group.barrier("afterwards")),
        _ => group.barrier("afterwards"),
    };
    let error = checked.fails("every rank", result)?;
    checked.holds("the message names the parameter", error.to_string().contains(NAME), error.to_string())?;
    refuses(checked, &group)
}

pub(super) fn another_pair_length(checked: &Checked) -> Result<(), Failure> {
    let last = checked.world.size() - 1;
    pair(
        checked,
        |group| group.send(Bucket::new(vec![1.0_f32; 8]), last, NAME).wait(),
        |group| group.recv::<f32>(0, 9, NAME).wait().map(drop),
    )
}

pub(super) fn send_meets_barrier(checked: &Checked) -> Result<(), Failure> {
    let last = checked.world.size() - 1;
    pair(
        checked,
        |group| group.send(Bucket::new(vec![1.0_f32; 8]), last, NAME).wait(),
        |group| group.barrier(NAME),
    )
}

pub(super) fn silent(checked: &Checked) -> Result<(), Failure> {
    let deadline = Duration::from_millis(700);
    let group = checked.world.group().with_deadline(deadline);
    let (rank, last) = (group.rank(), group.size() - 1);
    if last == 0 {
        return Ok(());
    }
    checked.done("in step", checked.world.group().barrier("before"))?;
    if rank == last {
        std::thread::sleep(deadline * 3);
        let error = checked.fails("the silent rank", usual(&group))?;
        return checked.holds(
            "it learns what it missed",
            error.to_string().contains(NAME),
            error.to_string(),
        );
    }
    let before = Instant::now();
    let error = checked.fails("the waiting ranks", usual(&group))?;
    let waited = before.elapsed();
    // the first to give up tells the others, which may be a moment earlier than their own deadline
    match &error {
        CommError::Silent { ranks, .. } => {
            checked.same("the silent ranks", ranks.clone(), vec![last])?;
            checked.holds("not before the deadline", waited >= deadline, waited)?;
        }
        CommError::Failed { .. } => {}
        other => return Err(checked.failure("the error", "silence".to_owned(), other.to_string())),
    }
    let text = error.to_string();
    let complete = text.contains("all_reduce")
        && text.contains(NAME)
        && text.contains(&format!("rank {last} is silent"));
    checked.holds("the message names rank, operation and parameter", complete, text)?;
    checked.holds("in time", waited < deadline * 2, waited)?;
    refuses(checked, &group)
}

pub(super) fn ends(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let last = group.size() - 1;
    let in_step = group.barrier("before");
    if group.rank() == last {
        checked.done("in step", in_step)?;
        return Ok(());
    }
    let before = Instant::now();
    // another rank may see it first, and say so while this one is still in the barrier
    let error = checked.fails("the others", in_step.and_then(|()| usual(&group)))?;
    let text = error.to_string();
    let complete = text.contains("all_reduce")
        && text.contains(NAME)
        && text.contains(&format!("rank {last} has ended"));
    checked.holds("the message names rank, operation and parameter", complete, &text)?;
    checked.holds(
        "long before the deadline",
        before.elapsed() < checked.world.deadline() / 2,
        before.elapsed(),
    )?;
    refuses(checked, &group)
}

pub(super) fn stops(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let last = group.size() - 1;
    let in_step = group.barrier("before");
    if group.rank() == last {
        checked.done("in step", in_step)?;
        checked.world.fail("no space left on device");
        return refuses(checked, &group);
    }
    let error = checked.fails("the others", in_step.and_then(|()| usual(&group)))?;
    let text = error.to_string();
    let names_it = matches!(&error, CommError::Failed { failed, .. } if *failed == last)
        || text.contains(&format!("rank {last} failed"));
    let complete = names_it && text.contains("no space left on device");
    checked.holds("the message names rank and reason", complete, &text)?;
    refuses(checked, &group)
}

pub(super) fn arguments(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let last = group.size() - 1;
    let counts = vec![2; group.size()];
    let elements = if group.rank() == last { 3 } else { 2 };
    let pending = group.all_gather_v(Bucket::new(vec![0.0_f32; elements]), &counts, NAME);
    let error = checked.fails("every rank", pending.wait())?;
    let own = matches!(error, CommError::Elements { op: Op::AllGather, expected: 2, got: 3, .. });
    checked.same("the fault is this rank's own", own, group.rank() == last)?;
    checked.holds("the message names the parameter", error.to_string().contains(NAME), error.to_string())?;
    refuses(checked, &group)
}

pub(super) fn same_arguments(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let size = group.size();
    // every rank has the fault itself, so its own or another's report of it may come first
    let outcomes = [
        group.all_to_all_v(Bucket::new(vec![1_u64]), &[], &vec![0; size], NAME).wait().map(drop),
        group.broadcast(Bucket::new(vec![1_u8]), size, NAME).wait().map(drop),
        group.all_reduce(Bucket::new(vec![1_u8]), Reduction::Sum, NAME).wait().map(drop),
        group.send(Bucket::new(vec![1_u8]), group.rank(), NAME).wait(),
    ];
    for (outcome, expected) in outcomes.into_iter().zip(["counts", "member", "no sum", "member"]) {
        let text = checked.fails(expected, outcome)?.to_string();
        checked.holds(expected, text.contains(expected) && text.contains(NAME), &text)?;
    }
    refuses(checked, &group)
}
