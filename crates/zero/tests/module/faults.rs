//! What is refused, and how it is said.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear};
use burn::tensor::{Device, Int, Tensor};
use burnish_zero::comm::{Group, local};
use burnish_zero::module::{Initial, ModuleError, Role, Wrap};
use burnish_zero::{Policy, Stage, ZeroError};

use super::zoo::{Layer, Run, Zoo, device, linear, loss, loss_by_blocks};

fn three() -> Wrap {
    Wrap::new(Policy { persist_below: 0, ..Policy::new(Stage::Three) })
}

fn refused(wrap: Wrap) -> String {
    wrap.over(&Group::alone(), Zoo::new(&device())).unwrap_err().to_string()
}

#[test]
fn patterns_that_match_nothing_are_refused() {
    let paths = r#"["embed", "layers", "head", "norm", "scale", "unused", "sometimes"]"#;
    assert_eq!(
        refused(three().block("layers.2")),
        format!("block `layers.2` matches no parameter; the paths begin with {paths}")
    );
    assert!(refused(three().role("layer.*", Role::Norm)).starts_with("role `layer.*` matches no parameter"));
    assert!(refused(three().leave("stats")).starts_with("left parameters `stats` matches no parameter"));
}

#[test]
fn blocks_in_blocks_are_refused() {
    assert_eq!(
        refused(three().block("layers.*").block("layers.1.up")),
        "blocks `layers.1` and `layers.1.up` both hold `layers.1.up.weight`; a block must not lie in another"
    );
}

#[test]
fn a_module_that_does_not_train_is_refused() {
    let plain = Wrap::stage(Stage::One).over(&Group::alone(), Zoo::new(&Device::flex()));
    assert!(plain.unwrap_err().to_string().starts_with("none of the module's 31 float parameters requires"));
    let frozen = Wrap::stage(Stage::One).over(&Group::alone(), Zoo::new(&device()).no_grad());
    assert!(matches!(frozen, Err(ModuleError::Frozen { parameters: 31 })), "{frozen:?}");
}

#[derive(Module, Debug)]
struct Normed {
    layers: Vec<Linear>,
    last: (Linear, BatchNorm),
}

/// Running statistics would move twice.
#[test]
fn batch_normalisation_in_a_block_is_refused() {
    let normed = || Normed {
        layers: vec![linear(2, 2, &device())],
        last: (linear(2, 2, &device()), BatchNormConfig::new(2).init(&device())),
    };
    assert!(three().block("layers.*").over(&Group::alone(), normed()).is_ok());
    let error = three().block("last").over(&Group::alone(), normed()).unwrap_err().to_string();
    assert!(error.starts_with("block `last` has an enabled training flag at `last.1.training`"), "{error}");
    let group = burn::module::ParamGroup::from_path("last.1.training");
    let quiet = three().block("last").over(&Group::alone(), normed().freeze_group(group));
    assert!(quiet.is_ok(), "{quiet:?}");
}

#[test]
fn a_dtype_that_does_not_travel_is_refused_unless_it_is_left() {
    #[derive(Module, Debug)]
    struct Wide {
        wide: Param<Tensor<1>>,
        linear: Linear,
    }
    let wide = || Wide {
        wide: Param::from_tensor(Tensor::zeros([3], (&device(), burn::tensor::DType::F64))),
        linear: linear(2, 2, &device()),
    };
    let error = three().over(&Group::alone(), wide()).unwrap_err().to_string();
    assert!(error.starts_with("parameter `wide` is F64, expected F32, BF16 or F16"), "{error}");
    let model = three().leave("wide").over(&Group::alone(), wide()).unwrap();
    assert_eq!(model.registry().len(), 2);
    assert_eq!(model.module().unwrap().wide.val().dims(), [3]);
}

#[test]
fn a_late_parameter_of_another_dtype_is_refused() {
    #[derive(Module, Debug)]
    struct Late {
        w: Param<Tensor<1>>,
    }
    let init = |device: &Device, grad| {
        Tensor::<1>::zeros([4], (device, burn::tensor::DType::BF16)).set_require_grad(grad)
    };
    let late = || Late { w: Param::uninitialized(ParamId::new(), init, device(), true, [4].into()) };
    let error = three().over(&Group::alone(), late()).unwrap_err().to_string();
    assert!(
        error.contains("`w` was not initialized yet and was taken for F32") && error.contains("but is BF16"),
        "{error}"
    );
    let early = late();
    early.w.val();
    assert!(three().over(&Group::alone(), early).is_ok());
}

/// A placeholder says what it is and what to do, as often as it is used.
#[test]
fn a_sharded_parameter_cannot_be_used_by_mistake() {
    let mut model = three().block("layers.*").over(&Group::alone(), Zoo::new(&device())).unwrap();
    for _ in 0..2 {
        let pass = model.micro_batch(true).unwrap();
        assert!(!pass.layers[0].up.weight.is_initialized());
        assert_eq!(pass.layers[0].up.weight.lazy_shape().to_vec(), [6, 8]);
        let panic = catch_unwind(AssertUnwindSafe(|| loss(&pass, 0..2, 2.0))).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert_eq!(
            message,
            "parameter `layers.0.scale` has no value here: its rows are with the ranks; run its block with \
             `Pass::block`, or read it with `Wrapped::read`"
        );
        drop(pass);
        assert!(matches!(model.micro_batch(true), Err(ModuleError::Unfinished)));
        assert!(matches!(model.step(0.1), Err(ModuleError::Unfinished)));
        model.discard().unwrap();
    }
    assert!(matches!(model.step(0.1), Err(ModuleError::NoGradients)));
    let pass = model.micro_batch(true).unwrap();
    let loss = loss_by_blocks(&pass, 0..2, 2.0);
    pass.backward(loss).unwrap();
    model.step(0.1).unwrap();
}

#[test]
fn what_is_no_block_does_not_run_as_one() {
    let mut model = three().block("layers.*").over(&Group::alone(), Zoo::new(&device())).unwrap();
    let pass = model.micro_batch(true).unwrap();
    let x = || Tensor::<2>::ones([2, 6], &device());
    let outside = pass.block(&pass.sometimes, x(), |l: &Linear, x| l.forward(x)).unwrap_err();
    assert!(
        outside
            .to_string()
            .starts_with("`sometimes.weight` was run as a block, but this parameter is not in a")
    );
    let both = (pass.layers[0].up.clone(), pass.layers[1].up.clone());
    let several = pass.block(&both, x(), |l: &(Linear, Linear), x| l.0.forward(x)).unwrap_err();
    assert!(several.to_string().contains("it has parameters of several blocks"), "{several}");
    let strange = linear(6, 6, &device());
    let strange = pass.block(&strange, x(), |l: &Linear, x| l.forward(x)).unwrap_err();
    assert!(strange.to_string().contains("it has no parameters of a block"), "{strange}");
    // Part of a block is one, and what goes in need not be on the tape.
    let up = pass.block(&pass.layers[1].up, x(), |l: &Linear, x| l.forward(x)).unwrap();
    assert!(up.is_tracked());
    let captured = up.clone();
    let held = pass.block(&pass.layers[1].up, x(), move |l: &Linear, x| l.forward(x) + captured.clone());
    assert!(held.unwrap_err().to_string().contains("captured a tracked tensor"));
    pass.backward(up.sum()).unwrap();
    let error = model.read("layers.0.nothing").unwrap_err().to_string();
    assert!(error.starts_with("no parameter at `layers.0.nothing`; the paths begin with"), "{error}");
}

/// Ranks with other modules learn which parameter differs, on every rank.
#[test]
fn ranks_with_other_modules_are_refused() {
    let frozen_on_one = local::run(3, |world| {
        let mut zoo = Zoo::new(&device());
        if world.rank() == 1 {
            zoo.layers[1].down = zoo.layers[1].down.clone().no_grad();
        }
        three().block("layers.*").over(&world.group(), zoo).map(|_| ()).unwrap_err()
    });
    for error in frozen_on_one {
        let error = error.unwrap();
        assert!(
            matches!(&error, ModuleError::Zero(ZeroError::Plans { parameter: Some(p), .. }) if p == "layers.1.down.weight"),
            "{error}"
        );
    }
    let other_constant = local::run(2, |world| {
        let mut zoo = Zoo::new(&device());
        if world.rank() == 1 {
            zoo.table =
                Param::initialized(ParamId::new(), Tensor::<1, Int>::from_ints([3, 1, 4, 1, 6], &device()));
        }
        three().over(&world.group(), zoo).map(|_| ()).unwrap_err().to_string()
    });
    for error in other_constant {
        assert!(error.unwrap().starts_with("`table` has other values on ranks [1] than on rank 0"));
    }
}

#[test]
fn other_values_are_refused_where_they_must_be_equal() {
    for stage in super::STAGES {
        let run = Run { blocks: stage == Stage::Three, ..Run::new(stage) };
        let errors = local::run(3, |world| {
            let mut zoo = Zoo::new(&device());
            if world.rank() == 2 {
                let layer: &mut Layer = &mut zoo.layers[1];
                layer.half = layer.half.clone().map(|t| (t.inner() * 2.0).autodiff().require_grad());
            }
            run.wrap()
                .initial(Initial::Verified)
                .over(&world.group(), zoo)
                .map(|_| ())
                .unwrap_err()
                .to_string()
        });
        for error in errors {
            let error = error.unwrap();
            assert!(
                error.starts_with("`layers.1.half` has other values on ranks [2] than on rank 0"),
                "{error}"
            );
        }
    }
}
