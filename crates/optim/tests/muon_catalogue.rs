//! What went wrong with Muon in other trainers, each by the number of its report (DeepSpeed's unless it says otherwise).

use burn::tensor::{DType, Device};
use burnish_core::{Dtype, Registry, Role};
use burnish_ops::{AnyTensor, NewtonSchulz, Stacked, accumulate, orthogonalize};
use burnish_optim::{
    AdamWOptions, LearningRates, LocalMatrices, MomentumDtype, MuonOptions, OptimError, Optimizer,
    OptimizerKind, Scale, Schedule, ScheduleKind, SlotScope, Variant,
};

use crate::store::{Store, normal, registry, rounded, slot, step_with, tensor};

const RATES: LearningRates = LearningRates { adam: 0.003, muon: 0.02 };
/// A fused projection, a weight, a norm and a bias.
const SHAPES: [&[usize]; 4] = [&[6, 4], &[4, 9], &[4], &[6]];

fn model(stored: Dtype) -> Registry {
    let mut registry = registry(&[
        (Role::Matrix, SHAPES[0], stored),
        (Role::Matrix, SHAPES[1], stored),
        (Role::Norm, SHAPES[2], stored),
        (Role::Bias, SHAPES[3], stored),
    ]);
    registry.get_mut("p0").unwrap().blocks = vec![4, 1, 1];
    registry
}

fn elements(i: usize) -> usize {
    SHAPES[i].iter().product()
}

fn start(stored: Dtype) -> Store {
    let dtype = if stored == Dtype::Bf16 { DType::BF16 } else { DType::F32 };
    Store::new((0..4).map(|i| rounded(&normal(&format!("w{i}"), elements(i)), SHAPES[i], dtype)))
}

fn new(stored: Dtype, options: MuonOptions) -> Optimizer {
    let registry = model(stored);
    let adam = AdamWOptions { weight_decay: options.weight_decay, ..AdamWOptions::default() };
    Optimizer::muon(&registry, &registry, options, adam, &|_| true).unwrap()
}

fn gradients(k: usize) -> Vec<(usize, AnyTensor)> {
    (0..4).map(|i| (i, tensor(&normal(&format!("g{i}/{k}"), elements(i)), SHAPES[i]))).collect()
}

fn here() -> LocalMatrices {
    LocalMatrices::new(&model(Dtype::F32))
}

fn train(
    optimizer: &mut Optimizer,
    store: &Store,
    steps: std::ops::Range<usize>,
    max_norm: Option<f64>,
) -> usize {
    let steps =
        steps.map(|k| step_with(optimizer, store, gradients(k), max_norm, RATES, &mut here()).unwrap());
    steps.map(|applied| applied.orthogonalised).sum()
}

fn bits(optimizer: &Optimizer, store: &Store) -> Vec<Vec<u32>> {
    let values = (0..4).map(|i| store.f32(i)).chain(optimizer.slots().into_iter().map(|s| s.tensor.to_f32()));
    values.map(|v| v.into_iter().map(f32::to_bits).collect()).collect()
}

fn saved(optimizer: &Optimizer) -> Slots {
    let copy = |t: &AnyTensor| AnyTensor::from_data(t.to_data(), &Device::flex());
    optimizer
        .slots()
        .iter()
        .map(|s| (s.parameter.clone(), s.slot.to_owned(), copy(&s.tensor.clone().into_tensor().unwrap())))
        .collect()
}

fn all_options() -> Vec<MuonOptions> {
    let mut all = Vec::new();
    for momentum_dtype in [MomentumDtype::F32, MomentumDtype::Bf16Stochastic] {
        for variant in [Variant::Muon, Variant::NorMuon, Variant::AdaMuon] {
            all.push(MuonOptions {
                momentum_dtype,
                variant,
                weight_decay: 0.1,
                seed: 5,
                ..MuonOptions::default()
            });
        }
    }
    all
}

fn dtypes(optimizer: &Optimizer) -> Vec<(String, &'static str, Option<Dtype>)> {
    optimizer.slots().into_iter().map(|s| (s.parameter, s.slot, s.tensor.dtype())).collect()
}

/// #7746: a bf16 run had a bf16 momentum until it was resumed, and an fp32 one after.
#[test]
fn ds_7746_the_momentums_dtype_is_the_declared_one_before_and_after_a_resume() {
    for stored in [Dtype::F32, Dtype::Bf16] {
        for options in all_options() {
            let (mut whole, whole_store) = (new(stored, options), start(stored));
            train(&mut whole, &whole_store, 0..6, Some(1.0));

            let (mut first, store) = (new(stored, options), start(stored));
            train(&mut first, &store, 0..3, Some(1.0));
            let before = dtypes(&first);
            assert!(before.iter().any(|(_, slot, _)| *slot == "momentum_buffer"));
            for (parameter, slot, dtype) in &before {
                assert_eq!(first.declared(parameter, slot).map(|d| d.dtype), *dtype, "{slot} of {parameter}");
            }
            let mut second = new(stored, options);
            second.restore(first.steps(), saved(&first)).unwrap();
            assert_eq!(dtypes(&second), before);
            train(&mut second, &store, 3..6, Some(1.0));
            assert_eq!(dtypes(&second), before);
            assert_eq!(bits(&second, &store), bits(&whole, &whole_store), "{stored}, {options:?}");
            assert_eq!(second.steps(), 6);
        }
    }
}

/// #7746, #8608: a file that does not fit is refused, whole, and nothing of the run is changed.
#[test]
fn ds_7746_another_dtype_is_never_taken_silently() {
    let options = MuonOptions { variant: Variant::NorMuon, ..MuonOptions::default() };
    let (mut optimizer, store) = (new(Dtype::F32, options), start(Dtype::F32));
    train(&mut optimizer, &store, 0..2, None);
    let (before, good) = (bits(&optimizer, &store), saved(&optimizer));
    let at = |slot: &str| good.iter().position(|(p, s, _)| p == "p1" && s == slot).unwrap();
    let mut refuse = |change: &dyn Fn(&mut Slots)| {
        let mut slots = good.clone();
        change(&mut slots);
        let error = optimizer.restore(99, slots).unwrap_err();
        assert_eq!((optimizer.steps(), bits(&optimizer, &store)), (2, before.clone()), "{error}");
        error
    };
    let momentum = at("momentum_buffer");
    let error = refuse(&|slots| slots[momentum].2 = rounded(&[0.0; 36], SHAPES[1], DType::BF16));
    assert!(
        matches!(&error, OptimError::SlotDtype { parameter, got: Some(Dtype::Bf16), expected: Dtype::F32, .. } if parameter == "p1"),
        "{error}"
    );
    let error = refuse(&|slots| slots[momentum].1 = "exp_avg".to_owned());
    assert!(matches!(&error, OptimError::UnknownSlot { slot, .. } if slot == "exp_avg"), "{error}");
    let error = refuse(&|slots| drop(slots.remove(momentum)));
    assert!(matches!(&error, OptimError::MissingSlot { slot: "momentum_buffer", .. }), "{error}");
    let error = refuse(&|slots| drop(slots.remove(at("second_momentum_buffer"))));
    assert!(matches!(&error, OptimError::MissingSlot { slot: "second_momentum_buffer", .. }), "{error}");
    let error = refuse(&|slots| slots[at("second_momentum_buffer")].2 = tensor(&[0.0; 36], SHAPES[1]));
    assert!(matches!(&error, OptimError::SlotShape { expected, .. } if *expected == [4]), "{error}");
    // A slot of the AdamW half that is wrong leaves the Muon half alone too.
    let error = refuse(&|slots| slots.retain(|(p, s, _)| !(p == "p2" && s == "exp_avg")));
    assert!(matches!(&error, OptimError::MissingSlot { slot: "exp_avg", .. }), "{error}");
}

/// #8608: a converter that knows only AdamW's slots. State is by name and logical shape, and says what it is.
#[test]
fn ds_8608_state_is_logical_and_declared() {
    let options = MuonOptions { variant: Variant::AdaMuon, ..MuonOptions::default() };
    let (mut optimizer, store) = (new(Dtype::Bf16, options), start(Dtype::Bf16));
    assert!(optimizer.slots().is_empty(), "nothing is kept before the first step");
    train(&mut optimizer, &store, 0..1, None);
    let schema: Vec<_> = optimizer.schema().into_iter().map(|s| (s.name, s.dtype)).collect();
    let names = ["master", "exp_avg", "exp_avg_sq", "momentum_buffer", "second_momentum_buffer"];
    assert_eq!(schema, names.map(|n| (n.to_owned(), Dtype::F32)));
    let mut found = Vec::new();
    for s in optimizer.slots() {
        let index: usize = s.parameter[1..].parse().unwrap();
        assert_eq!(s.tensor.shape(), SHAPES[index]);
        let declared = optimizer.declared(&s.parameter, s.slot).unwrap();
        assert_eq!((Some(declared.dtype), declared.held), (s.tensor.dtype(), s.held));
        found.push((index, s.slot, s.held));
    }
    found.sort_by_key(|&(index, slot, _)| (index, slot));
    let rows = |index, slots: [&'static str; 3]| slots.map(|s| (index, s, SlotScope::Rows));
    let matrix = |i| {
        [
            (i, "master", SlotScope::Rows),
            (i, "momentum_buffer", SlotScope::Rows),
            (i, "second_momentum_buffer", SlotScope::Whole),
        ]
    };
    let adam = |i| rows(i, ["exp_avg", "exp_avg_sq", "master"]);
    assert_eq!(found, [matrix(0), matrix(1), adam(2), adam(3)].concat());
    assert_eq!(optimizer.declared("p0", "exp_avg"), None);
    assert_eq!(optimizer.declared("p2", "momentum_buffer"), None);
    assert_eq!(optimizer.declared("p9", "master"), None);
}

type Slots = Vec<(String, String, AnyTensor)>;

/// How many of the singular values matter: `(Σσ²)² / Σσ⁴`.
fn spread(values: &[f32], rows: usize) -> f64 {
    let columns = values.len() / rows;
    let gram = |i: usize, j: usize| -> f64 {
        (0..columns).map(|c| f64::from(values[i * columns + c]) * f64::from(values[j * columns + c])).sum()
    };
    let trace: f64 = (0..rows).map(|i| gram(i, i)).sum();
    let square: f64 =
        (0..rows).flat_map(|i| (0..rows).map(move |j| (i, j))).map(|(i, j)| gram(i, j).powi(2)).sum();
    trace * trace / square
}

/// #8441: without sharding, the default, Muon was SGD. #7807: under it, a slice of each matrix was orthogonalised (the
/// layouts' tests hold every layout to the bits of this one).
#[test]
fn ds_8441_one_rank_orthogonalises_too() {
    // One direction some twenty times stronger than the others.
    let (rows, columns) = (4, 9);
    let mut g = normal("noise", rows * columns);
    for (i, x) in g.iter_mut().enumerate() {
        *x = 0.5 * *x + ((i / columns + 1) as f32) * ((i % columns) as f32 - 3.7);
    }
    assert!(spread(&g, rows) < 1.05, "{}", spread(&g, rows));
    let options = MuonOptions::default();
    let (mut optimizer, store) = (new(Dtype::F32, options), start(Dtype::F32));
    let before = store.f32(1);
    let mut all = gradients(0);
    all[1].1 = tensor(&g, SHAPES[1]);
    let applied = step_with(&mut optimizer, &store, all, None, RATES, &mut here()).unwrap();
    assert_eq!((applied.parameters, applied.orthogonalised), (4, 4), "three blocks and one matrix");
    let change: Vec<f32> = store.f32(1).iter().zip(&before).map(|(a, b)| a - b).collect();
    assert!(spread(&change, rows) > 3.3, "{}", spread(&change, rows));
    // And it is what the operation gives, times rate and scale.
    let stack = Stacked { tensor: tensor(&g, SHAPES[1]), blocks: vec![rows] };
    let o = orthogonalize(vec![stack], &NewtonSchulz::default()).unwrap()[0].to_f32();
    let factor = RATES.muon * Scale::MatchRmsAdamw.factor(rows, columns);
    for (c, o) in change.iter().zip(o) {
        assert!((f64::from(*c) + factor * f64::from(o)).abs() < 1e-5, "{c} {o}");
    }
}

/// #8461, #8526: flat partitions have one dimension and took the path without Newton–Schulz.
#[test]
fn ds_8461_nothing_of_one_dimension_reaches_muon() {
    let registry = registry(&[
        (Role::Matrix, &[24], Dtype::F32),
        (Role::Matrix, &[6, 4], Dtype::F32),
        (Role::Expert, &[3, 2, 4], Dtype::F32),
        (Role::Expert, &[24], Dtype::F32),
        (Role::Adapter, &[24], Dtype::F32),
        (Role::Adapter, &[2, 4], Dtype::F32),
        (Role::Embedding, &[9, 4], Dtype::F32),
        (Role::Head, &[9, 4], Dtype::F32),
        (Role::Router, &[3, 4], Dtype::F32),
    ]);
    for adapters in [false, true] {
        let options = MuonOptions { adapters, ..MuonOptions::default() };
        let optimizer =
            Optimizer::muon(&registry, &registry, options, AdamWOptions::default(), &|_| true).unwrap();
        let muon: Vec<_> = optimizer
            .assignment()
            .iter()
            .filter(|a| a.kind == OptimizerKind::Muon)
            .map(|a| a.parameter.as_str())
            .collect();
        assert_eq!(muon, if adapters { vec!["p1", "p2", "p5"] } else { vec!["p1", "p2"] });
        let text = optimizer.assignment().to_string();
        assert!(text.contains("not a matrix"), "{text}");
        assert_eq!(text.contains("adapters are left to AdamW"), !adapters, "{text}");
    }
}

/// #8438: sharded shapes of nothing, no parameter for Muon, and a run of plain AdamW.
#[test]
fn ds_8438_nothing_for_muon_is_an_error() {
    let adapters = registry(&[(Role::Adapter, &[2, 4], Dtype::F32), (Role::Norm, &[4], Dtype::F32)]);
    let muon = |local: &Registry, global: &Registry| {
        Optimizer::muon(local, global, MuonOptions::default(), AdamWOptions::default(), &|_| true)
    };
    let error = muon(&adapters, &adapters).unwrap_err();
    assert!(matches!(error, OptimError::NothingForMuon { trained: 2, adapters: 1 }), "{error}");
    assert!(error.to_string().contains("use adamw"), "{error}");
    let frozen = Registry::new();
    assert!(matches!(muon(&frozen, &frozen).unwrap_err(), OptimError::NothingForMuon { trained: 0, .. }));

    // Logical shapes decide: a rank with no rows of a matrix has it assigned all the same.
    let global = model(Dtype::F32);
    let mut local = global.clone();
    for name in ["p0", "p1"] {
        local.get_mut(name).unwrap().shape[0] = 0;
    }
    assert_eq!(muon(&local, &global).unwrap().assignment().count(OptimizerKind::Muon), (2, 60));
    // Logical shapes that are not matrices are not.
    assert!(matches!(muon(&local, &local).unwrap_err(), OptimError::Blocks { .. }));
    let mut odd = model(Dtype::F32);
    odd.get_mut("p0").unwrap().blocks = vec![4, 1];
    let error = muon(&odd, &odd).unwrap_err().to_string();
    assert!(error.contains("`p0` of shape [6, 4] is stacked of [4, 1] rows, expected 6 rows"), "{error}");
}

/// #8439, #7776, Megatron-LM #5394: the clip divided the orthogonalised update.
#[test]
fn ds_8439_the_clip_comes_first() {
    let changes = |max_norm: Option<f64>, steps: usize| {
        let (mut optimizer, store) = (new(Dtype::F32, MuonOptions::default()), start(Dtype::F32));
        train(&mut optimizer, &store, 0..steps, max_norm);
        let before = start(Dtype::F32);
        (0..2)
            .map(|i| store.f32(i).iter().zip(before.f32(i)).map(|(a, b)| a - b).collect())
            .collect::<Vec<Vec<f32>>>()
    };
    let close = |a: &[Vec<f32>], b: &[Vec<f32>]| {
        a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| (a - b).abs() < 1e-5)
    };
    // The first step's update is of one gradient, and orthogonalising forgets how large it is.
    let free = changes(None, 1);
    for max_norm in [10.0, 1.0, 0.01, 1e-6] {
        assert!(close(&changes(Some(max_norm), 1), &free), "{max_norm}");
    }
    // Later ones are mixtures, in which a clipped gradient weighs less: as if it had come smaller.
    let clipped = changes(Some(1.0), 3);
    assert!(!close(&clipped, &changes(None, 3)));
    let (mut optimizer, store) = (new(Dtype::F32, MuonOptions::default()), start(Dtype::F32));
    for k in 0..3 {
        let norm = gradients(k)
            .iter()
            .flat_map(|(_, g)| g.to_f32())
            .map(|x| f64::from(x).powi(2))
            .sum::<f64>()
            .sqrt();
        let smaller = gradients(k).into_iter().map(|(i, g)| {
            let g: Vec<f32> = g.to_f32().into_iter().map(|x| (f64::from(x) / (norm + 1e-6)) as f32).collect();
            (i, tensor(&g, SHAPES[i]))
        });
        step_with(&mut optimizer, &store, smaller.collect(), None, RATES, &mut here()).unwrap();
    }
    let before = start(Dtype::F32);
    let scaled: Vec<Vec<f32>> =
        (0..2).map(|i| store.f32(i).iter().zip(before.f32(i)).map(|(a, b)| a - b).collect()).collect();
    assert!(close(&clipped, &scaled));
}

/// #8443, #8600: momentum and Newton–Schulz once per micro-batch.
#[test]
fn ds_8443_once_per_step_whatever_the_accumulation() {
    let (mut one, one_store) = (new(Dtype::F32, MuonOptions::default()), start(Dtype::F32));
    let (mut four, four_store) = (new(Dtype::F32, MuonOptions::default()), start(Dtype::F32));
    let (steps, mut count) = (3, 0);
    for k in 0..steps {
        // Quarters add up exactly.
        let quarter = || {
            gradients(k).into_iter().map(|(i, g)| {
                (i, tensor(&g.to_f32().iter().map(|x| x * 0.25).collect::<Vec<_>>(), SHAPES[i]))
            })
        };
        let mut sum: Vec<Option<AnyTensor>> = vec![None; 4];
        for (i, g) in (0..4).flat_map(|_| quarter()) {
            sum[i] = Some(accumulate(sum[i].take(), g));
        }
        let summed = sum.into_iter().flatten().enumerate().collect();
        count +=
            step_with(&mut four, &four_store, summed, Some(1.0), RATES, &mut here()).unwrap().orthogonalised;
        train(&mut one, &one_store, k..k + 1, Some(1.0));
    }
    assert_eq!(count, steps * 4, "steps times matrices");
    assert_eq!(bits(&four, &four_store), bits(&one, &one_store));
}

/// #7713: a scheduler wrote one rate over both.
#[test]
fn ds_7713_the_rates_keep_their_ratio_under_every_schedule() {
    for kind in
        [ScheduleKind::Linear, ScheduleKind::Cosine, ScheduleKind::Constant, ScheduleKind::ConstantWithWarmup]
    {
        let schedule = Schedule::new(kind, 1.0, 3, 20);
        let adam_alone = Schedule::new(kind, RATES.adam, 3, 20);
        for step in 0..=20 {
            let rates = RATES * schedule.factor(step);
            assert_eq!(rates.adam, adam_alone.rate(step), "{kind:?}, step {step}: as without Muon");
            let off = rates.muon * RATES.adam - rates.adam * RATES.muon;
            assert!(off.abs() <= 1e-15 * rates.muon, "{kind:?}, step {step}: {rates:?}");
        }
    }
    // And each half uses its own.
    let (mut optimizer, store) = (new(Dtype::F32, MuonOptions::default()), start(Dtype::F32));
    let before: Vec<_> = (0..4).map(|i| store.f32(i)).collect();
    step_with(
        &mut optimizer,
        &store,
        gradients(0),
        None,
        LearningRates { adam: 0.0, muon: 0.1 },
        &mut here(),
    )
    .unwrap();
    let same: Vec<bool> = (0..4).map(|i| store.f32(i) == before[i]).collect();
    assert_eq!(same, [false, false, true, true]);
    let (mut optimizer, store) = (new(Dtype::F32, MuonOptions::default()), start(Dtype::F32));
    step_with(
        &mut optimizer,
        &store,
        gradients(0),
        None,
        LearningRates { adam: 0.1, muon: 0.0 },
        &mut here(),
    )
    .unwrap();
    let same: Vec<bool> = (0..4).map(|i| store.f32(i) == before[i]).collect();
    assert_eq!(same, [true, true, false, false]);
}

/// DeepSpeed 0.19.8: a step with an overflow was folded into the momentum and then skipped.
#[test]
fn ds_overflow_a_skipped_step_leaves_the_momentum_untouched() {
    for options in all_options() {
        let (mut clean, clean_store) = (new(Dtype::Bf16, options), start(Dtype::Bf16));
        let (mut other, other_store) = (new(Dtype::Bf16, options), start(Dtype::Bf16));
        for k in 0..3 {
            for (i, spoil) in [(0, f32::INFINITY), (1, f32::NAN), (3, f32::NEG_INFINITY)] {
                let before = bits(&other, &other_store);
                let mut all = gradients(k);
                let mut values = all[i].1.to_f32();
                values[2] = spoil;
                all[i].1 = tensor(&values, SHAPES[i]);
                assert_eq!(step_with(&mut other, &other_store, all, Some(1.0), RATES, &mut here()), None);
                assert_eq!(bits(&other, &other_store), before);
            }
            train(&mut clean, &clean_store, k..k + 1, Some(1.0));
            train(&mut other, &other_store, k..k + 1, Some(1.0));
            assert_eq!(bits(&other, &other_store), bits(&clean, &clean_store));
        }
        assert_eq!(other.steps(), 3);
    }
}

/// Flattening discarded the groups that do not decay.
#[test]
fn ds_groups_norms_and_biases_do_not_decay_and_matrices_do_by_the_unadjusted_rate() {
    let options = MuonOptions { weight_decay: 0.5, ..MuonOptions::default() };
    let (mut optimizer, store) = (new(Dtype::F32, options), start(Dtype::F32));
    let before: Vec<_> = (0..4).map(|i| store.f32(i)).collect();
    let zero = (0..4).map(|i| (i, tensor(&vec![0.0; elements(i)], SHAPES[i]))).collect();
    step_with(&mut optimizer, &store, zero, Some(1.0), RATES, &mut here()).unwrap();
    let shrink = (1.0 - RATES.muon * 0.5) as f32;
    for (i, before) in before[..2].iter().enumerate() {
        let want: Vec<f32> = before.iter().map(|w| w * shrink).collect();
        assert_eq!(store.f32(i), want, "no gradient, no update: decay alone");
    }
    assert_eq!((store.f32(2), store.f32(3)), (before[2].clone(), before[3].clone()));
}

/// The AdamW half is AdamW: the same bits with and without Muon beside it, and alone.
#[test]
fn adamw_is_what_it_was() {
    let registry = model(Dtype::Bf16);
    let options = AdamWOptions { weight_decay: 0.1, ..AdamWOptions::default() };
    let mut muon = Optimizer::muon(&registry, &registry, MuonOptions::default(), options, &|_| true).unwrap();
    let (mut plain, mut alone) =
        (Optimizer::adamw(&registry, options), burnish_optim::AdamW::new(&registry, options));
    let stores = [(); 3].map(|()| start(Dtype::Bf16));
    let rates = LearningRates::both(0.01);
    for k in 0..3 {
        let a = step_with(&mut plain, &stores[0], gradients(k), Some(1.0), rates, &mut here()).unwrap();
        assert_eq!(a.orthogonalised, 0);
        let all = gradients(k).into_iter().map(|(_, g)| g).collect();
        assert_eq!(Some(a), crate::store::step(&mut alone, &stores[1], all, Some(1.0), 0.01));
        step_with(&mut muon, &stores[2], gradients(k), Some(1.0), rates, &mut here()).unwrap();
    }
    for i in 0..4 {
        assert_eq!(stores[0].f32(i), stores[1].f32(i));
    }
    for i in 2..4 {
        assert_eq!(stores[2].f32(i), stores[1].f32(i));
        for s in ["master", "exp_avg", "exp_avg_sq"] {
            let name = format!("p{i}");
            assert_eq!(slot(&muon.slots(), &name, s), slot(&alone.slots(), &name, s), "{s} of {name}");
        }
    }
    assert_eq!(plain.assignment().count(OptimizerKind::AdamW), (4, 70));
    assert!(plain.muon_options().is_none());
}
