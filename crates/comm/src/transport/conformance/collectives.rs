//! Every collective, for every wire type, against sums written out here.

use std::sync::Arc;

use burnish_core::Dtype;
use half::bf16;

use super::{Checked, Failure};
use crate::transport::chunk;
use crate::{Bucket, Piece, Reduction, Wire};

/// Element `index` of rank `rank`: small fractions with full mantissas, so that the order of sums shows.
pub(super) fn value<E: Wire>(salt: usize, rank: usize, index: usize) -> E {
    let mixed = (salt * 31 + rank * 7919 + index * 104_729) as u32;
    let mixed = mixed.wrapping_mul(2_654_435_761) >> 8;
    if E::DTYPE.is_float() {
        // up to 2^-4 .. 2^4 in size, either sign
        let size = f64::from(1 << (mixed % 9)) / 16.0;
        E::from_f64((f64::from(mixed) / f64::from(1 << 23) - 1.0) * size)
    } else {
        E::from_f64(f64::from(mixed % 251))
    }
}

pub(super) fn values<E: Wire>(salt: usize, rank: usize, elements: usize) -> Vec<E> {
    (0..elements).map(|index| value(salt, rank, index)).collect()
}

/// The reduction of one element over the ranks, written out plainly.
pub(super) fn reduced<E: Wire>(of_ranks: &[E], reduction: Reduction) -> E {
    let ranks = of_ranks.len();
    let in_double = of_ranks.iter().map(|x| x.to_f64());
    match reduction {
        Reduction::SumF64 => E::from_f64(in_double.reduce(|a, b| a + b).unwrap_or(0.0)),
        Reduction::Max => E::from_f64(in_double.fold(f64::NEG_INFINITY, f64::max)),
        Reduction::Min => E::from_f64(in_double.fold(f64::INFINITY, f64::min)),
        Reduction::Sum | Reduction::Mean => {
            let divide = reduction == Reduction::Mean;
            if !E::DTYPE.is_float() || E::DTYPE.bytes() == 8 {
                let sum = in_double.reduce(|a, b| a + b).unwrap_or(0.0);
                return E::from_f64(if divide { sum / ranks as f64 } else { sum });
            }
            let sum = of_ranks.iter().map(|x| x.to_f64() as f32).reduce(|a, b| a + b).unwrap_or(0.0);
            E::from_f64(f64::from(if divide { sum / ranks as f32 } else { sum }))
        }
    }
}

/// Ways to deal elements to ranks: even, everything at one end, holes, growing.
pub(super) fn deals(size: usize) -> Vec<Vec<usize>> {
    let mut deals = vec![
        (0..size).map(|rank| chunk(1000, size, rank).len()).collect(),
        vec![0; size],
        vec![1; size],
        (0..size).map(|rank| if rank == size / 2 { 0 } else { 17 + rank }).collect(),
        (0..size).map(|rank| rank * rank * 5).collect(),
    ];
    for only in [0, size - 1] {
        let mut counts = vec![0; size];
        counts[only] = 301;
        deals.push(counts);
    }
    deals
}

const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::SumF64, Reduction::Mean, Reduction::Max, Reduction::Min];

pub(super) fn all<E: Wire>(checked: &Checked) -> Result<(), Failure> {
    all_reduce::<E>(checked)?;
    parts::<E>(checked)?;
    rooted::<E>(checked)?;
    pairs::<E>(checked)
}

fn all_reduce<E: Wire>(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let (rank, size) = (group.rank(), group.size());
    // few elements, fewer than ranks, blocks and a rest, more than one hop's worth; at last chunks of several pieces
    let pieces = if E::DTYPE == Dtype::F32 && size <= 4 { size * 1_100_003 } else { 0 };
    for (salt, elements) in [0, 1, size - 1, size + 1, 1027, 40_001, pieces].into_iter().enumerate() {
        for reduction in REDUCTIONS {
            if !reduction.is_for(E::DTYPE) || (elements > 1_000_000 && reduction != Reduction::Mean) {
                continue;
            }
            let what = format!("all_reduce of {elements}, {reduction}");
            let mine = Bucket::new(values::<E>(salt, rank, elements));
            let got = checked.done(&what, group.all_reduce(mine, reduction, &what).wait())?.into_vec();
            checked.same(&format!("{what}: length"), got.len(), elements)?;
            let step = if elements > 1_000_000 { 911 } else { 1 };
            for index in (0..elements).step_by(step) {
                let of_ranks: Vec<E> = (0..size).map(|rank| value(salt, rank, index)).collect();
                checked.sums(
                    &format!("{what}, element {index}"),
                    &got[index..=index],
                    &[reduced(&of_ranks, reduction)],
                )?;
            }
        }
    }
    Ok(())
}

fn parts<E: Wire>(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let (rank, size) = (group.rank(), group.size());
    for (salt, counts) in deals(size).into_iter().enumerate() {
        let total: usize = counts.iter().sum();
        let start: usize = counts[..rank].iter().sum();
        for reduction in REDUCTIONS.into_iter().filter(|reduction| reduction.is_for(E::DTYPE)) {
            let what = format!("reduce_scatter of {counts:?}, {reduction}");
            let mine = Bucket::new(values::<E>(salt, rank, total));
            let got = group.reduce_scatter_v(mine, &counts, reduction, &what).wait();
            let expected: Vec<E> = (start..start + counts[rank])
                .map(|index| {
                    let of_ranks: Vec<E> = (0..size).map(|rank| value(salt, rank, index)).collect();
                    reduced(&of_ranks, reduction)
                })
                .collect();
            checked.sums(&what, checked.done(&what, got)?.as_slice(), expected.as_slice())?;
        }

        let what = format!("all_gather of {counts:?}");
        let mine = Bucket::new(values::<E>(salt, rank, counts[rank]));
        let got = checked.done(&what, group.all_gather_v(mine, &counts, &what).wait())?;
        checked.same(&format!("{what}: ranks"), got.ranks(), size)?;
        for (from, &count) in counts.iter().enumerate() {
            checked.same(&what, got.of(from), values::<E>(salt, from, count).as_slice())?;
        }
        let whole: Vec<E> = (0..size).flat_map(|from| values::<E>(salt, from, counts[from])).collect();
        checked.same(&what, got.concat().into_vec(), whole)?;

        // rank a sends counts[(a + b) % size] elements to rank b, and finds them in the middle of its bucket
        let send: Vec<usize> = (0..size).map(|to| counts[(rank + to) % size]).collect();
        let what = format!("all_to_all of {counts:?}");
        let mine: Vec<E> = (0..size).flat_map(|to| values::<E>(salt + to, rank, send[to])).collect();
        let got = group.all_to_all_v(Bucket::new(mine), &send, &send, &what).wait();
        let got = checked.done(&what, got)?;
        for (from, &count) in send.iter().enumerate() {
            checked.same(&what, got.of(from), values::<E>(salt + rank, from, count).as_slice())?;
        }
    }
    Ok(())
}

fn rooted<E: Wire>(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let (rank, size) = (group.rank(), group.size());
    for root in 0..size {
        for elements in [0, 3, 5000] {
            let what = format!("broadcast of {elements} from {root}");
            let mine = Bucket::new(values::<E>(elements, rank, elements));
            let got = checked.done(&what, group.broadcast(mine, root, &what).wait())?;
            checked.same(&what, got.as_slice(), values::<E>(elements, root, elements).as_slice())?;
        }
        for counts in deals(size) {
            let what = format!("gather of {counts:?} to {root}");
            let mine = Bucket::new(values::<E>(root, rank, counts[rank]));
            let got = checked.done(&what, group.gather(mine, &counts, root, &what).wait())?;
            checked.same(&format!("{what}: at the root only"), got.is_some(), rank == root)?;
            for (from, part) in got.iter().flat_map(|parts| parts.iter().enumerate()) {
                checked.same(&what, part, values::<E>(root, from, counts[from]).as_slice())?;
            }
        }
    }
    Ok(())
}

fn pairs<E: Wire>(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let (rank, size) = (group.rank(), group.size());
    if size == 1 {
        return Ok(());
    }
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    for elements in [0, 1, 9000] {
        let what = format!("{elements} around the ring");
        let sent = group.send(Bucket::new(values::<E>(elements, rank, elements)), next, &what);
        let got = checked.done(&what, group.recv::<E>(before, elements, &what).wait())?;
        checked.done(&what, sent.wait())?;
        checked.same(&what, got.as_slice(), values::<E>(elements, before, elements).as_slice())?;
    }
    Ok(())
}

/// Values for which another order, another width or a second rounding gives other bits.
pub(super) fn exact_sums(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let (rank, size) = (group.rank(), group.size());

    // fp32: 1 and then 2^-24 each, which vanishes in that order and would not in another
    for elements in [3, 30_000] {
        let mine = vec![if rank == 0 { 1.0_f32 } else { 2.0_f32.powi(-24) }; elements];
        let got = group.all_reduce(Bucket::new(mine), Reduction::Sum, "rank order").wait();
        let got = checked.done("rank order", got)?.into_vec();
        if checked.world.in_rank_order() {
            checked.same("rank order", got, vec![1.0; elements])?;
        }

        let mine = vec![if rank == 0 { 1.0_f32 } else { 2.0_f32.powi(-24) }; elements];
        let got = group.all_reduce(Bucket::new(mine), Reduction::SumF64, "in double").wait();
        let sum = (1.0 + (size - 1) as f64 * 2.0_f64.powi(-24)) as f32;
        checked.same("in double", checked.done("in double", got)?.into_vec(), vec![sum; elements])?;

        // bf16: 1 and then 2^-8 each, which rounds away if every sum is rounded
        let mine = vec![if rank == 0 { bf16::ONE } else { bf16::from_f32(2.0_f32.powi(-8)) }; elements];
        let got = group.all_reduce(Bucket::new(mine), Reduction::Sum, "one rounding").wait();
        let sum = bf16::from_f32(1.0 + (size - 1) as f32 * 2.0_f32.powi(-8));
        checked.same("one rounding", checked.done("one rounding", got)?.into_vec(), vec![sum; elements])?;
    }
    let sums = checked.done("scalars", group.sum_f64(&[1.0, 2.0_f64.powi(-53) * rank as f64], "scalars"))?;
    let second = (1..size).fold(0.0, |sum, rank| sum + 2.0_f64.powi(-53) * rank as f64);
    checked.same("scalars", sums, vec![size as f64, second])
}

pub(super) fn not_a_number(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    for reduction in REDUCTIONS {
        for elements in [4, 20_000] {
            let mut mine = vec![group.rank() as f32; elements];
            if group.rank() == group.size() / 2 {
                mine[elements - 1] = f32::NAN;
                mine[0] = f32::INFINITY;
            }
            let what = format!("{reduction} of {elements}");
            let got = group.all_reduce(Bucket::new(mine), reduction, &what).wait();
            let got = checked.done(&what, got)?.into_vec();
            checked.holds(
                &what,
                got[elements - 1].is_nan() && !got[1].is_nan(),
                (got[elements - 1], got[1]),
            )?;
            if reduction != Reduction::Min {
                checked.same(&what, got[0], f32::INFINITY)?;
            }
        }
    }
    Ok(())
}

pub(super) fn maps(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let (rank, size) = (group.rank(), group.size());
    let piece = |parameter: &str, range| Piece { parameter: parameter.to_owned(), range };
    let elements = 10 * size;
    let map: Arc<[Piece]> = Arc::new([piece("a", 0..7), piece("b", 7..elements)]);
    let bucket = || Bucket::new(vec![1.0_f32; elements]).with_map(Arc::clone(&map));
    let got = checked.done("all_reduce", group.all_reduce(bucket(), Reduction::Sum, "map").wait())?;
    checked.same("the map after all_reduce", got.map(), Some(&map))?;
    checked.same("a parameter", got.of("a"), Some(&[size as f32; 7][..]))?;
    let counts = vec![10; size];
    let got = group.reduce_scatter_v(bucket(), &counts, Reduction::Sum, "map").wait();
    let got = checked.done("reduce_scatter", got)?;
    let lengths = (got.of("a").map(<[f32]>::len), got.of("b").map(<[f32]>::len));
    let expected = if rank == 0 { (Some(7), Some(3)) } else { (None, Some(10)) };
    checked.same("the parameters of a part", lengths, expected)
}

pub(super) fn shared(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    for elements in [5, 50_000] {
        let held: Arc<Vec<f32>> = Arc::new(values(1, group.rank(), elements));
        let bucket = Bucket::shared(Arc::clone(&held) as Arc<dyn AsRef<[f32]> + Send + Sync>);
        let sum = checked.done("sum", group.all_reduce(bucket, Reduction::Sum, "shared").wait())?;
        checked.same("the sum's length", sum.len(), elements)?;
        checked.same("what others hold", &*held, &values(1, group.rank(), elements))?;
    }
    Ok(())
}
