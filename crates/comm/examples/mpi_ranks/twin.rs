//! The same calls over MPI and over threads must give the same bits.

use std::error::Error;
use std::thread;

use burnish_comm::{Bucket, CommError, Group, Mesh, Reduction, Wire, World, local};
use half::{bf16, f16};

/// Sizes around every border: nothing, in the frame, beside it, several hops, more than one piece.
const SIZES: [usize; 6] = [0, 1, 800, 5_000, 40_000, 300_000];
const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::SumF64, Reduction::Mean, Reduction::Max, Reduction::Min];

/// Runs the calls over `world` and over as many threads, and compares what this rank got.
pub(crate) fn compare(world: &World) -> Result<(), Box<dyn Error>> {
    let over_mpi = transcript(world)?;
    let threads = local::run(world.size(), |world| transcript(&world));
    let over_threads = threads.into_iter().nth(world.rank()).ok_or("no thread for this rank")???;
    if over_mpi.len() != over_threads.len() {
        return Err(
            format!("{} results over mpi, {} over threads", over_mpi.len(), over_threads.len()).into()
        );
    }
    for ((name, mine), (_, theirs)) in over_mpi.iter().zip(&over_threads) {
        if mine != theirs {
            let at = mine.iter().zip(theirs).position(|(a, b)| a != b);
            return Err(format!("{name}: rank {} differs from byte {at:?} on", world.rank()).into());
        }
    }
    Ok(())
}

/// What a rank got from every call, by the call's name.
type Transcript = Vec<(String, Vec<u8>)>;

fn transcript(world: &World) -> Result<Transcript, CommError> {
    let mut out = Transcript::new();
    let group = world.group();
    for size in SIZES {
        calls::<f32>(&group, size, &mut out)?;
        calls::<bf16>(&group, size, &mut out)?;
        calls::<f16>(&group, size, &mut out)?;
        calls::<f64>(&group, size, &mut out)?;
        calls::<u8>(&group, size, &mut out)?;
        calls::<u64>(&group, size, &mut out)?;
    }
    if world.size().is_multiple_of(2) {
        let mesh = Mesh::new(world, &[("dp", world.size() / 2), ("tp", 2)])?;
        for axis in ["dp", "tp"] {
            calls::<f32>(&mesh.group(axis)?, 5_000, &mut out)?;
        }
    }
    out.extend(at_once(&group)?);
    out.extend(two_threads(&group)?);
    Ok(out)
}

/// Reproducible elements, other ones for each rank and call; sums of them round.
fn elements<E: Wire>(rank: usize, count: usize, seed: usize) -> Vec<E> {
    let mut state = (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed as u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / 65_536.0
    };
    (0..count).map(|_| E::from_f64(next())).collect()
}

/// Uneven counts, some of them nothing, that come to about `size` per rank.
fn counts(ranks: usize, size: usize) -> Vec<usize> {
    (0..ranks).map(|rank| if rank % 3 == 1 { 0 } else { size + 3 * rank }).collect()
}

fn calls<E: Wire>(group: &Group, size: usize, out: &mut Transcript) -> Result<(), CommError> {
    let (me, ranks) = (group.rank(), group.size());
    let name = |op: &str| format!("{op} {} x {size} on {}", E::DTYPE, group.axis());
    let mut keep = |op: &str, got: &[E]| out.push((name(op), bytemuck::cast_slice(got).to_vec()));
    let bucket = |count, seed| Bucket::new(elements::<E>(me, count, seed));

    for reduction in REDUCTIONS.into_iter().filter(|reduction| reduction.is_for(E::DTYPE)) {
        let sum = group.all_reduce(bucket(size, 1), reduction, "reduced").wait()?;
        keep(&format!("all_reduce {reduction}"), sum.as_slice());
        let counts = counts(ranks, size);
        let mine = bucket(counts.iter().sum(), 2);
        let part = group.reduce_scatter_v(mine, &counts, reduction, "scattered").wait()?;
        keep(&format!("reduce_scatter {reduction}"), part.as_slice());
    }
    let counts = counts(ranks, size);
    let all = group.all_gather_v(bucket(counts[me], 3), &counts, "gathered").wait()?;
    keep("all_gather", all.concat().as_slice());

    let to =
        |from: usize, to: usize| if (from + to).is_multiple_of(3) { 0 } else { size / 2 + from + 2 * to };
    let send: Vec<usize> = (0..ranks).map(|rank| to(me, rank)).collect();
    let receive: Vec<usize> = (0..ranks).map(|rank| to(rank, me)).collect();
    let all = group.all_to_all_v(bucket(send.iter().sum(), 4), &send, &receive, "exchanged").wait()?;
    keep("all_to_all", all.concat().as_slice());

    for root in 0..ranks {
        let sent = group.broadcast(bucket(size, 5 + root), root, "broadcast").wait()?;
        keep("broadcast", sent.as_slice());
        if let Some(all) = group.gather(bucket(counts[me], 6), &counts, root, "collected").wait()? {
            keep("gather", all.concat().as_slice());
        }
    }
    if ranks > 1 {
        let sent = group.send(bucket(size, 7), (me + 1) % ranks, "passed on");
        let got = group.recv::<E>((me + ranks - 1) % ranks, size, "passed on").wait()?;
        sent.wait()?;
        keep("recv", got.as_slice());
    }
    group.barrier("calls")
}

/// Many calls under way, waited for in the other order; some never.
fn at_once(group: &Group) -> Result<Transcript, CommError> {
    let mut pending = Vec::new();
    for call in 0..20 {
        let bucket = Bucket::new(elements::<f32>(group.rank(), 30_000, call));
        let started = group.all_reduce(bucket, Reduction::Sum, &format!("bucket {call}"));
        if call % 5 == 3 {
            drop(started);
        } else {
            pending.push((call, started));
        }
    }
    let mut out = Transcript::new();
    while let Some((call, started)) = pending.pop() {
        out.push((
            format!("all_reduce {call} of many"),
            bytemuck::cast_slice(started.wait()?.as_slice()).to_vec(),
        ));
    }
    Ok(out)
}

/// Two threads of each rank communicate at the same time, each on a channel of its own.
fn two_threads(group: &Group) -> Result<Transcript, CommError> {
    let repeat = |channel: &str, seed: usize| {
        let group = group.channel(channel);
        let mut bits = Vec::new();
        for call in 0..100 {
            let bucket = Bucket::new(elements::<f32>(group.rank(), 100 * (call % 7), seed + call));
            let sum = group.all_reduce(bucket, Reduction::Sum, "of a thread").wait()?;
            bits.extend_from_slice(bytemuck::cast_slice(sum.as_slice()));
        }
        Ok((format!("100 all_reduces on channel {channel}"), bits))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| repeat("other", 1_000));
        let mine = repeat("mine", 2_000);
        let other = other.join().expect("invariant: a panic has ended the process");
        Ok(vec![mine?, other?])
    })
}
