//! A matrix and its transpose get the same update: what counts is which fan is which, not how the weight lies.

use burnish_core::{Dtype, Orientation, Registry, Role};
use burnish_optim::{
    AdamWOptions, LearningRates, LocalMatrices, MuonOptions, OptimError, Optimizer, Scale, Variant,
};

use crate::store::{Store, normal, registry, slot, step_with, tensor};

const OUT: usize = 8;
const IN: usize = 3;
const RATES: LearningRates = LearningRates { adam: f64::NAN, muon: 0.02 };

/// `[rows, columns]` as `[columns, rows]`.
fn turned(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    (0..values.len()).map(|i| values[(i % rows) * columns + i / rows]).collect()
}

/// The weight as Hugging Face has it, or as Burn's `Linear`.
fn one(shape: &[usize], orientation: Orientation) -> Registry {
    let mut registry = registry(&[(Role::Matrix, shape, Dtype::F32)]);
    registry.get_mut("p0").unwrap().orientation = orientation;
    registry
}

fn all_options() -> impl Iterator<Item = MuonOptions> {
    [Scale::MatchRmsAdamw, Scale::Original, Scale::Spectral].into_iter().flat_map(|scale| {
        [Variant::Muon, Variant::NorMuon, Variant::AdaMuon].into_iter().map(move |variant| MuonOptions {
            scale,
            variant,
            weight_decay: 0.1,
            ..MuonOptions::default()
        })
    })
}

fn muon(registry: &Registry, options: MuonOptions) -> Optimizer {
    Optimizer::muon(registry, registry, options, AdamWOptions::default(), &|_| true).unwrap()
}

fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_transposed_weight_gets_the_same_update() {
    for options in all_options() {
        for blocks in [vec![], vec![5, 3]] {
            let mut upright = one(&[OUT, IN], Orientation::OutIn);
            let mut turned_over = one(&[IN, OUT], Orientation::InOut);
            for registry in [&mut upright, &mut turned_over] {
                registry.get_mut("p0").unwrap().blocks = blocks.clone();
            }
            let (mut a, mut b) = (muon(&upright, options), muon(&turned_over, options));
            let start = normal("w", OUT * IN);
            let (x, y) = (
                Store::new([tensor(&start, &[OUT, IN])]),
                Store::new([tensor(&turned(&start, IN), &[IN, OUT])]),
            );
            for k in 0..3 {
                let g = normal(&format!("g{k}"), OUT * IN);
                let (ga, gb) = (tensor(&g, &[OUT, IN]), tensor(&turned(&g, IN), &[IN, OUT]));
                step_with(&mut a, &x, vec![(0, ga)], None, RATES, &mut LocalMatrices::new(&upright)).unwrap();
                step_with(&mut b, &y, vec![(0, gb)], None, RATES, &mut LocalMatrices::new(&turned_over))
                    .unwrap();
            }
            assert_eq!(bits(turned(&y.f32(0), OUT)), bits(x.f32(0)), "{options:?}, {blocks:?}");
            let second = |o: &Optimizer| slot(&o.slots(), "p0", "second_momentum_buffer");
            assert_eq!(second(&b), second(&a), "{options:?}");
        }
    }
}

/// Experts `[experts, in, out]`.
#[test]
fn transposed_experts_too() {
    for options in all_options() {
        let with = |shape: &[usize], orientation| {
            let mut registry = registry(&[(Role::Expert, shape, Dtype::F32)]);
            registry.get_mut("p0").unwrap().orientation = orientation;
            registry
        };
        let (upright, over) =
            (with(&[2, OUT, IN], Orientation::OutIn), with(&[2, IN, OUT], Orientation::InOut));
        let (mut a, mut b) = (muon(&upright, options), muon(&over, options));
        let each = |values: &[f32], columns| -> Vec<f32> {
            values.chunks(OUT * IN).flat_map(|m| turned(m, columns)).collect()
        };
        let (start, g) = (normal("w", 2 * OUT * IN), normal("g", 2 * OUT * IN));
        let x = Store::new([tensor(&start, &[2, OUT, IN])]);
        let y = Store::new([tensor(&each(&start, IN), &[2, IN, OUT])]);
        let (ga, gb) = (tensor(&g, &[2, OUT, IN]), tensor(&each(&g, IN), &[2, IN, OUT]));
        let applied =
            step_with(&mut a, &x, vec![(0, ga)], None, RATES, &mut LocalMatrices::new(&upright)).unwrap();
        assert_eq!(applied.orthogonalised, 2);
        step_with(&mut b, &y, vec![(0, gb)], None, RATES, &mut LocalMatrices::new(&over)).unwrap();
        assert_eq!(bits(each(&y.f32(0), OUT)), bits(x.f32(0)), "{options:?}");
    }
}

/// The second moment of a restored `[in, out]` has the shape that it was saved with.
#[test]
fn state_of_a_transposed_weight_is_taken_up_again() {
    for options in all_options() {
        let over = one(&[IN, OUT], Orientation::InOut);
        let start = normal("w", OUT * IN);
        let store = || Store::new([tensor(&start, &[IN, OUT])]);
        let gradient = |k: usize| vec![(0, tensor(&normal(&format!("g{k}"), OUT * IN), &[IN, OUT]))];
        let mut here = LocalMatrices::new(&over);
        let (mut whole, x) = (muon(&over, options), store());
        (0..4)
            .for_each(|k| assert!(step_with(&mut whole, &x, gradient(k), None, RATES, &mut here).is_some()));
        let (mut first, y) = (muon(&over, options), store());
        (0..2)
            .for_each(|k| assert!(step_with(&mut first, &y, gradient(k), None, RATES, &mut here).is_some()));
        let saved = first.slots().into_iter().map(|s| (s.parameter, s.slot.to_owned(), s.tensor));
        let mut second = muon(&over, options);
        second.restore(2, saved.collect::<Vec<_>>()).unwrap();
        (2..4)
            .for_each(|k| assert!(step_with(&mut second, &y, gradient(k), None, RATES, &mut here).is_some()));
        assert_eq!(bits(y.f32(0)), bits(x.f32(0)), "{options:?}");
    }
}

#[test]
fn an_undeclared_matrix_is_refused() {
    let registry = one(&[IN, OUT], Orientation::Undeclared);
    let options = MuonOptions::default();
    let error =
        Optimizer::muon(&registry, &registry, options, AdamWOptions::default(), &|_| true).unwrap_err();
    assert!(matches!(&error, OptimError::Orientation { parameter, .. } if parameter == "p0"), "{error}");
    assert!(error.to_string().contains("`p0` of shape [3, 8] does not say whether it is"), "{error}");
    // AdamW does not care.
    assert_eq!(Optimizer::adamw(&registry, AdamWOptions::default()).assignment().iter().count(), 1);
}
