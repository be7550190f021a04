//! Modules of one's own: wrapped, and the same on any number of ranks at every stage.

use burnish_zero::Stage;

#[path = "../examples/mlp.rs"]
mod mlp;

const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];

/// The example: it learns, and N ranks are one rank, at every stage.
#[test]
fn the_example_trains_as_on_one_rank() {
    let one = mlp::run(1, Stage::Zero).remove(0);
    let (first, last) = (one.losses[0], one.losses[one.losses.len() - 1]);
    assert!(last < 0.1 * first, "{first} -> {last}");
    for ranks in [1, 2, 4] {
        for stage in STAGES {
            for (rank, trained) in mlp::run(ranks, stage).into_iter().enumerate() {
                let what = format!("stage {stage} over {ranks}, rank {rank}");
                let close = |a: f64, b: f64| (a - b).abs() < 1e-4 * (1.0 + a.abs());
                assert!(one.losses.iter().zip(&trained.losses).all(|(&a, &b)| close(a, b)), "{what}");
                let weights = one.weight.iter().zip(&trained.weight);
                assert!(weights.into_iter().all(|(&a, &b)| close(a.into(), b.into())), "{what}");
                // f32: 4 bytes of weight and gradient, 8 of moments; what is sharded is near its share.
                let all = one.memory.weights;
                assert_eq!(one.memory.gradients, all);
                let parts = |sharded: bool| if sharded { ranks as u64 } else { 1 };
                let near = |bytes: u64, parts: u64| bytes.abs_diff(all / parts) <= all / 50;
                assert!(
                    near(trained.memory.weights, parts(stage >= Stage::Three)),
                    "{what}: {:?}",
                    trained.memory
                );
                assert!(near(trained.memory.gradients, parts(stage >= Stage::One)), "{what}");
                assert!(near(trained.memory.optimizer / 2, parts(stage >= Stage::One)), "{what}");
            }
        }
    }
}
