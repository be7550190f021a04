//! A random sequence of calls, the same on all ranks, each checked.

use burnish_core::random::Stream;
use half::bf16;

use super::collectives::{reduced, value, values};
use super::{Checked, Failure};
use crate::{Bucket, Reduction};

const CALLS: u64 = 120;

pub(super) fn random(checked: &Checked) -> Result<(), Failure> {
    let group = checked.world.group();
    let (rank, size) = (group.rank(), group.size());
    for call in 0..CALLS {
        let stream = Stream::new(17, "program").at(call);
        let pick = |index: u64, below: usize| stream.word(index) as usize % below;
        let counts: Vec<usize> = (0..size)
            .map(|rank| if pick(2 * rank as u64 + 10, 4) == 0 { 0 } else { pick(2 * rank as u64 + 11, 3000) })
            .collect();
        let (total, start) = (counts.iter().sum::<usize>(), counts[..rank].iter().sum::<usize>());
        let salt = call as usize;
        let what = format!("call {call} with {counts:?}");
        let column = |index: usize| -> Vec<bf16> { (0..size).map(|rank| value(salt, rank, index)).collect() };
        match pick(0, 5) {
            0 => {
                let mine = Bucket::new(values::<bf16>(salt, rank, total));
                let got = checked.done(&what, group.all_reduce(mine, Reduction::Mean, &what).wait())?;
                let expected: Vec<bf16> =
                    (0..total).map(|index| reduced(&column(index), Reduction::Mean)).collect();
                checked.sums(&what, got.as_slice(), &expected)?;
            }
            1 => {
                let mine = Bucket::new(values::<bf16>(salt, rank, total));
                let got = group.reduce_scatter_v(mine, &counts, Reduction::Sum, &what).wait();
                let expected: Vec<bf16> = (start..start + counts[rank])
                    .map(|index| reduced(&column(index), Reduction::Sum))
                    .collect();
                checked.sums(&what, checked.done(&what, got)?.as_slice(), &expected)?;
            }
            2 => {
                let mine = Bucket::new(values::<f32>(salt, rank, counts[rank]));
                let got = checked.done(&what, group.all_gather_v(mine, &counts, &what).wait())?;
                let expected: Vec<f32> =
                    (0..size).flat_map(|from| values::<f32>(salt, from, counts[from])).collect();
                checked.same(&what, got.concat().into_vec(), expected)?;
            }
            3 => {
                let root = pick(1, size);
                let mine = Bucket::new(values::<u8>(salt, rank, total));
                let got = checked.done(&what, group.broadcast(mine, root, &what).wait())?;
                checked.same(&what, got.into_vec(), values::<u8>(salt, root, total))?;
            }
            _ => {
                // what goes from a to b depends on a + b, so that both know it
                let send: Vec<usize> = (0..size).map(|to| counts[(rank + to) % size]).collect();
                let mine: Vec<u64> = (0..size).flat_map(|to| values::<u64>(to, rank, send[to])).collect();
                let got = group.all_to_all_v(Bucket::new(mine), &send, &send, &what).wait();
                let got = checked.done(&what, got)?;
                for (from, &count) in send.iter().enumerate() {
                    checked.same(&what, got.of(from), values::<u64>(rank, from, count).as_slice())?;
                }
            }
        }
    }
    Ok(())
}
