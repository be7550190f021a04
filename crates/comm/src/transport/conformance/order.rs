//! Calls side by side: outstanding ones, channels, threads, dropped handles, groups.

use std::time::{Duration, Instant};

use burnish_core::Dtype;

use super::collectives::{reduced, values};
use super::{Checked, Failure};
use crate::{Bucket, Group, Mesh, Op, Pending, Reduction};

pub(super) fn barrier(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let step = Duration::from_millis(20);
    let before = Instant::now();
    checked.done("first", group.barrier("first"))?;
    std::thread::sleep(step * group.rank() as u32);
    checked.done("second", group.barrier("second"))?;
    let slowest = step * (group.size() - 1) as u32;
    checked.holds("no rank passes before the slowest comes", before.elapsed() >= slowest, before.elapsed())
}

const SIZES: [usize; 3] = [7, 3000, 12_345];

fn start(group: &Group, salt: usize) -> Pending<Bucket<f32>> {
    let elements = SIZES[salt % SIZES.len()];
    let mine = Bucket::new(values::<f32>(salt, group.rank(), elements));
    group.all_reduce(mine, Reduction::Sum, &format!("call {salt}"))
}

fn finish(
    checked: &Checked,
    group: &Group,
    salt: usize,
    pending: Pending<Bucket<f32>>,
) -> Result<(), Failure> {
    let what = format!("call {salt}");
    let got = checked.done(&what, pending.wait())?.into_vec();
    let elements = SIZES[salt % SIZES.len()];
    let of_ranks: Vec<Vec<f32>> = (0..group.size()).map(|rank| values(salt, rank, elements)).collect();
    let expected: Vec<f32> = (0..elements)
        .map(|index| {
            let column: Vec<f32> = of_ranks.iter().map(|values| values[index]).collect();
            reduced(&column, Reduction::Sum)
        })
        .collect();
    checked.sums(&what, &got, &expected)
}

pub(super) fn outstanding(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let mut started: Vec<_> = (0..9).map(|salt| (salt, start(&group, salt))).collect();
    // every rank in an order of its own
    started.rotate_left(group.rank() % 9);
    if group.rank() % 2 == 1 {
        started.reverse();
    }
    for (salt, pending) in started {
        finish(checked, &group, salt, pending)?;
    }
    let pending = start(&group, 9);
    let until = Instant::now() + checked.world.deadline();
    while !pending.ready() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    checked.holds("a call that is asked for gets ready", pending.ready(), "not ready at the deadline")?;
    finish(checked, &group, 9, pending)
}

pub(super) fn channels(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let (gather, reduce) = (group.channel("gather"), group.channel("reduce"));
    // ranks take the two channels in different orders
    for round in 0..4 {
        let (first, second) =
            if group.rank().is_multiple_of(2) { (&gather, &reduce) } else { (&reduce, &gather) };
        let salt = |channel: &Group| 10 * round + usize::from(std::ptr::eq(channel, &reduce));
        let (a, b) = (start(first, salt(first)), start(second, salt(second)));
        finish(checked, &group, salt(second), b)?;
        finish(checked, &group, salt(first), a)?;
    }
    // a handle made again is the same channel
    let again = start(&group.channel("gather"), 99);
    finish(checked, &group, 99, again)
}

pub(super) fn threads(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..3)
            .map(|thread| {
                let channel = group.channel(&format!("thread {thread}"));
                scope.spawn(move || {
                    for round in 0..20 {
                        let salt = 100 * thread + round;
                        let pending = start(&channel, salt);
                        finish(checked, &channel, salt, pending)?;
                    }
                    Ok(())
                })
            })
            .collect();
        running.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => Err(checked.failure("a thread", "an end".to_owned(), "a panic".to_owned())),
        })
    })
}

pub(super) fn dropped(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let counts: Vec<usize> = (0..group.size()).collect();
    for round in 0..5 {
        // each rank drops others, some all at once
        for salt in 0..4 {
            let pending = start(&group, salt);
            if (salt + group.rank() + round).is_multiple_of(3) {
                drop(pending);
            } else {
                finish(checked, &group, salt, pending)?;
            }
        }
        let part = Bucket::new(values::<u8>(1, group.rank(), group.rank()));
        drop(group.all_gather_v(part, &counts, "dropped by all"));
        if group.size() > 1 {
            let next = (group.rank() + 1) % group.size();
            let before = (group.rank() + group.size() - 1) % group.size();
            drop(group.send(Bucket::new(vec![1_u64]), next, "dropped"));
            drop(group.recv::<u64>(before, 1, "dropped"));
        }
    }
    let pending = start(&group, 5);
    finish(checked, &group, 5, pending)?;
    // the last ones are completed when the world goes
    drop(start(&group, 1));
    drop(start(&group, 2));
    Ok(())
}

pub(super) fn mesh(checked: &Checked) -> Result<(), Failure> {
    let (rank, size) = (checked.world.rank(), checked.world.size());
    let inner = if size.is_multiple_of(2) { 2 } else { 1 };
    let mesh = checked.done("mesh", Mesh::new(&checked.world, &[("dp", size / inner), ("tp", inner)]))?;
    let (dp, tp) = (checked.done("dp", mesh.group("dp"))?, checked.done("tp", mesh.group("tp"))?);
    checked.same("dp", (dp.rank(), dp.size(), dp.axis()), (rank / inner, size / inner, "dp"))?;
    checked.same("tp", (tp.rank(), tp.size(), tp.axis()), (rank % inner, inner, "tp"))?;
    for round in 0..3 {
        let sum = checked.done("dp", dp.sum_f64(&[rank as f64], "ranks"))?;
        let of_column: usize = (0..size / inner).map(|place| place * inner + rank % inner).sum();
        checked.same("the sum over dp", sum, vec![of_column as f64])?;
        let mine = Bucket::new(vec![rank as u64; round]);
        let all = checked.done("tp", tp.all_gather_v(mine, &vec![round; inner], "ranks").wait())?;
        for member in 0..inner {
            let of_member = vec![(rank - rank % inner + member) as u64; round];
            checked.same("a part of tp", all.of(member), of_member.as_slice())?;
        }
        checked.done("world", mesh.world().barrier("all axes"))?;
    }
    Ok(())
}

pub(super) fn traffic(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let size = group.size();
    group.clear_traffic();
    for round in 1..3 {
        let counts: Vec<usize> = (0..size).map(|rank| rank * round).collect();
        let total: usize = counts.iter().sum();
        let bucket = Bucket::new(vec![1.0_f32; total]);
        let mine = group.reduce_scatter_v(bucket, &counts, Reduction::Sum, "counted").wait();
        let mine = checked.done("reduce_scatter", mine)?;
        checked.done("all_gather", group.channel("gather").all_gather_v(mine, &counts, "counted").wait())?;
        checked.done("scalars", group.sum_f64(&[0.0; 5], "counted"))?;
    }
    let triangle = (size * (size - 1) / 2) as u64;
    let traffic = group.traffic();
    for (op, dtype, calls, elements) in [
        (Op::ReduceScatter, Dtype::F32, 2, 3 * triangle),
        (Op::AllGather, Dtype::F32, 2, 3 * triangle),
        (Op::AllReduce, Dtype::F64, 2, 10),
    ] {
        let row = traffic.of(op, dtype);
        checked.same(&format!("{op} of {dtype}"), (row.calls, row.elements), (calls, elements))?;
    }
    checked.same("kinds of calls", traffic.rows().count(), 3)
}
