//! What a wrapped module leaves: checkpoints at other layouts, whole modules, evaluation.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear};
use burn::tensor::{Device, Tensor};
use burnish_zero::comm::{Group, local};
use burnish_zero::module::{AnyTensor, Dtype, ModuleError, SavedRows, Wrap};
use burnish_zero::{Policy, Stage};

use super::STAGES;
use super::zoo::{self, DRAWING, Left, Run, Zoo, device, linear, loss};

pub(crate) fn empty() -> Left {
    Left { losses: Vec::new(), norms: Vec::new(), weights: BTreeMap::new(), slots: BTreeMap::new() }
}

/// Rows of what all ranks saved.
fn rows(saved: &[SavedRows], name: &str, slot: Option<&str>, rows: Range<usize>) -> Option<AnyTensor> {
    let mut parts: Vec<&SavedRows> = saved.iter().filter(|s| s.parameter == name && s.slot == slot).collect();
    parts.sort_by_key(|s| s.rows.start);
    let first = parts.first()?;
    let mut shape = first.tensor.shape();
    let row: usize = shape[1..].iter().product();
    let mut whole = Vec::new();
    for part in &parts {
        assert_eq!(part.rows.start * row, whole.len(), "every row of {name} once");
        whole.extend(part.tensor.to_f32());
    }
    shape[0] = rows.len();
    let values = whole[rows.start * row..rows.end * row].to_vec();
    let tensor = AnyTensor::from_elements(values, &shape, &Device::flex());
    let half = first.tensor.dtype() == Some(Dtype::Bf16);
    Some(if half { tensor.cast(burn::tensor::FloatDType::BF16) } else { tensor })
}

/// Two steps at one layout and two at another are four.
#[test]
fn training_goes_on_at_any_layout() {
    let whole = Run { micro_batches: 4, ..Run::new(Stage::Zero) }.alone();
    let layouts = [(Stage::Zero, false), (Stage::One, false), (Stage::Two, true), (Stage::Three, true)];
    for (from, to) in [(0, 3), (1, 2), (2, 0), (3, 1), (3, 3)] {
        let run = |(stage, blocks): (Stage, bool), ranks: usize| Run {
            blocks,
            micro_batches: 4 / ranks,
            ..Run::new(stage)
        };
        let before = run(layouts[from], 4);
        let saved = local::run(4, |world| {
            let mut model = before.wrapped(&world.group())?;
            let mut left = empty();
            for step in 0..2 {
                before.step(&mut model, &world.group(), step, &mut left)?;
            }
            assert_eq!(model.optimizer().steps(), 2);
            model.state()
        });
        let saved: Vec<SavedRows> = saved.into_iter().flat_map(|r| r.unwrap().unwrap()).collect();
        let after = run(layouts[to], 2);
        let left = local::run(2, |world| {
            let mut model = after.wrapped(&world.group())?;
            model.restore(2, |name, slot, of| Ok::<_, std::io::Error>(rows(&saved, name, slot, of)))?;
            let mut left = empty();
            for step in 2..4 {
                after.step(&mut model, &world.group(), step, &mut left)?;
            }
            after.finish(&model, &mut left)?;
            Ok::<_, ModuleError>(left)
        });
        for left in left {
            let mut left = left.unwrap().unwrap();
            left.slots.clone_from(&whole.slots);
            left.assert_close(&whole, &format!("{from} to {to}"));
        }
    }
}

#[test]
fn a_checkpoint_of_another_module_is_refused() {
    let run = Run::new(Stage::Two);
    let mut model = run.wrapped(&Group::alone()).unwrap();
    let none = model.restore(1, |_, _, _| Ok::<_, std::io::Error>(None));
    assert_eq!(
        none.unwrap_err().to_string(),
        "saved state has no rows 0..7 of `embed.weight`; was it saved for another module?"
    );
    let failed = model.restore(1, |_, _, _| Err::<Option<AnyTensor>, _>(std::io::Error::other("torn")));
    assert!(matches!(failed, Err(ModuleError::Restore { .. })));
    let wrong = model.restore(1, |_, slot, rows| {
        let wrong = AnyTensor::from_elements(vec![0.0_f32; rows.len()], &[rows.len()], &Device::flex());
        Ok::<_, std::io::Error>(slot.is_none().then_some(wrong))
    });
    assert!(wrong.unwrap_err().to_string().contains("`embed.weight`: the update has shape [7]"));
}

/// The whole module comes back on every rank, is Burn's own again, and gives what the ranks' evaluation gives.
#[test]
fn the_whole_module_comes_back() {
    for stage in STAGES {
        let run = Run { blocks: stage == Stage::Three, ..Run::new(stage) };
        let losses = local::run(3, |world| {
            let zoo = Zoo::new(&device());
            let ids = (zoo.embed.weight.id, zoo.layers[0].up.weight.id);
            let mut model = run.wrap().over(&world.group(), zoo)?;
            run.step(&mut model, &world.group(), 0, &mut empty())?;
            let whole = model.module()?;
            assert_eq!((whole.embed.weight.id, whole.layers[0].up.weight.id).0, ids.0);
            assert_eq!(whole.layers[0].up.weight.id, ids.1);
            assert!(whole.layers[0].up.weight.is_require_grad());
            assert!(!whole.layers[0].frozen.weight.is_require_grad());
            assert_eq!(whole.layers[1].gate.dims(), [1, 2, 4, 1]);
            assert_eq!(whole.layers[1].scale.val().into_data(), whole.scale.val().into_data());
            let alone = loss(&whole.valid(), 0..4, 4.0);
            let pass = model.evaluation()?;
            let ranks =
                if run.blocks { zoo::loss_by_blocks(&pass, 0..4, 4.0) } else { loss(&pass, 0..4, 4.0) };
            assert!(!ranks.is_autodiff());
            assert!(matches!(
                pass.finish(Tensor::<1>::ones([1], &device()).require_grad().backward()),
                Err(ModuleError::Evaluation)
            ));
            Ok::<_, ModuleError>((alone.into_scalar::<f32>(), ranks.into_scalar::<f32>()))
        });
        for rank in losses {
            let (alone, ranks) = rank.unwrap().unwrap();
            assert_eq!(alone, ranks, "stage {stage}");
        }
    }
}

#[derive(Module, Debug)]
struct Noisy {
    inward: Linear,
    batch: BatchNorm,
    dropout: Dropout,
}

impl Noisy {
    fn new(device: &Device) -> Self {
        Self {
            inward: linear(3, 4, device),
            batch: BatchNormConfig::new(4).init(device),
            dropout: DropoutConfig::new(0.5).init(),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.dropout.forward(self.batch.forward(self.inward.forward(x).unsqueeze_dim::<3>(2)).squeeze_dim(2))
    }
}

/// Outside blocks, dropout and batch normalisation are Burn's: on in training, off in evaluation, with running statistics
/// that stay.
#[test]
fn training_flags_and_running_statistics_are_the_modules_own() {
    let _drawing = DRAWING.lock();
    let device = device();
    let policy = Policy { persist_below: 0, ..Policy::new(Stage::Three) };
    let ranks = local::run(2, |world| {
        let device = device.clone();
        let mut model = Wrap::new(policy.clone()).over(&world.group(), Noisy::new(&device))?;
        assert!(model.registry().get("batch.running_mean").is_none());
        let x = Tensor::<2>::full([5, 3], 1.0 + world.rank() as f32, &device);
        let pass = model.micro_batch(true)?;
        assert!(pass.dropout.training.is_enabled());
        let loss = pass.forward(x.clone()).square().mean();
        pass.backward(loss)?;
        model.step(0.1)?;
        let mean = |noisy: &Noisy| noisy.batch.running_mean.value_sync().into_data();
        let kept = mean(&model.module()?);
        assert!(kept.iter::<f32>().any(|m| m != 0.0), "{kept:?}");
        let pass = model.evaluation()?;
        assert!(!pass.dropout.training.is_enabled());
        let one = pass.forward(x.clone().inner());
        assert_eq!(one.to_data(), pass.forward(x.inner()).into_data());
        assert_eq!(mean(&pass), kept);
        Ok::<_, ModuleError>(())
    });
    ranks.into_iter().for_each(|rank| rank.unwrap().unwrap());
}
