//! Ranks that fail or diverge inside forward and backward: the first error is kept, zeros follow, nothing hangs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burnish_comm::local::{links, run, run_worlds};
use burnish_comm::transport::{Fault, FaultPlan, Faulty};
use burnish_comm::{CommError, Op, World};
use burnish_ops::AnyTensor;
use burnish_tp::{Tp, TpError};

use crate::block::{Block, Sizes, step};

const SIZES: Sizes = Sizes { hidden: 8, heads: 4, kv_heads: 2, head_dim: 4, inner: 6, rank: 2 };

fn faulty(ranks: usize, plan: &FaultPlan) -> Vec<World> {
    let links = links(ranks).into_iter().map(|link| Faulty::new(link, plan.clone()));
    links
        .map(|link| World::over(Box::new(link)).with_deadline(Duration::from_secs(2)).with_checksums())
        .collect()
}

/// Calls of a step: two sums forward (0, 1), two where forward is repeated (2, 3) and two backward (4, 5) in turns, the
/// partial sums and the norm. A fault in any of them ends the step with an error on every rank.
#[test]
fn a_fault_at_any_call_is_told_on_every_rank() {
    let block = Arc::new(Block::new(SIZES, 3));
    std::thread::scope(|scope| {
        for fault in [Fault::Vanish, Fault::Drop, Fault::Corrupt] {
            for call in 0..8 {
                let block = &block;
                scope.spawn(move || one_fault(block, fault, call));
            }
        }
    });
}

fn one_fault(block: &Arc<Block>, fault: Fault, call: u64) {
    let begun = Instant::now();
    let ends = run_worlds(faulty(3, &FaultPlan::new(1).at(1, call, fault)), |world| {
        let tp = Tp::new(&world.group());
        let error = step(block, &tp, 1, true).map(drop).unwrap_err();
        // kept, and told again; nothing is posted any more
        assert_eq!(tp.check().unwrap_err().to_string(), error.to_string());
        tp.group().clear_traffic();
        let x = AnyTensor::from_elements(vec![1.0_f32; 4], &[2, 2], &Device::flex());
        assert_eq!(tp.reduce_from_tp(&x, "after").unwrap().to_f32(), [0.0; 4]);
        assert!(tp.sum_partial(&mut []).is_err() && tp.sum_f64(&[1.0], "after").is_err());
        assert_eq!(tp.group().traffic().rows().count(), 0);
        error
    });
    for (rank, end) in ends.into_iter().enumerate() {
        let error = end.unwrap();
        let case = format!("{fault:?} at call {call}, rank {rank}: {error}");
        assert!(matches!(error, TpError::Comm(_)), "{case}");
        assert!(case.contains("rank 1"), "{case}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{fault:?} at call {call}");
}

/// A rank that takes another layer is an error that names both, without waiting for the deadline.
#[test]
fn ranks_in_different_layers_disagree() {
    let begun = Instant::now();
    let ends = run(2, |world| {
        let tp = Tp::new(&world.group());
        let x = AnyTensor::from_elements(vec![1.0_f32; 4], &[2, 2], &Device::flex()).leaf();
        let what = ["layers.0.mlp.down_proj", "layers.1.mlp.down_proj"][tp.rank()];
        let y = tp.reduce_from_tp(&tp.copy_to_tp(&x, "layers.0.mlp.up_proj").unwrap(), what).unwrap();
        assert_eq!(y.to_f32(), [0.0; 4]);
        // backward goes on without the others, to its end
        let mut gradients = y.rank::<2>().unwrap().sum().backward();
        assert_eq!(x.take_gradient(&mut gradients).unwrap().to_f32(), [0.0; 4]);
        assert_eq!(tp.group().traffic().calls(Op::AllReduce), 1);
        tp.check().unwrap_err()
    });
    for end in ends {
        let error = end.unwrap();
        let message = error.to_string();
        assert!(matches!(error, TpError::Comm(CommError::Disagreement { .. })), "{message}");
        assert!(message.contains("layers.0.mlp.down_proj: output"), "{message}");
        assert!(message.contains("layers.1.mlp.down_proj: output"), "{message}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// A rank that panics before its backward: the others end theirs and name it.
#[test]
fn a_rank_that_panics_is_named_by_the_others() {
    let ends = run(3, |world| {
        let tp = Tp::new(&world.group());
        let x = AnyTensor::from_elements(vec![1.0_f32; 4], &[2, 2], &Device::flex()).leaf();
        let y = tp.reduce_from_tp_add(&tp.copy_to_tp(&x, "up").unwrap(), &x, "down").unwrap();
        assert!(tp.rank() != 2, "the third rank gives up");
        let mut gradients = y.rank::<2>().unwrap().sum().backward();
        assert!(x.take_gradient(&mut gradients).is_some());
        tp.check().unwrap_err().to_string()
    });
    for (rank, end) in ends.into_iter().enumerate() {
        let message = if rank == 2 { end.unwrap_err().to_string() } else { end.unwrap() };
        assert!(message.contains("the third rank gives up"), "{message}");
    }
}
