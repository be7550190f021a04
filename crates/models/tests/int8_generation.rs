//! Sampling with a block's matrices in int8: near the model, and only where it is meant to be.

use std::sync::Arc;

use burnish_core::{Dtype, Role};
use burnish_models::{
    Generation, LocalParams, Model, ModelFolder, ModelPlan, Tuning, int8_for_generation, rests_in_int8,
};
use burnish_ops::Parameters;

use crate::recordings::{device, fixtures, logits};

/// The model of the tests of quantisation, and the same in int8.
fn both() -> (Model, Model) {
    let folder = ModelFolder::open(fixtures().join("quantized").join("plain")).unwrap();
    let plan = || ModelPlan::new(&folder, &Tuning::None, Dtype::F32, 0).unwrap();
    let registry = plan().local_registry();
    let (model, parameters) = plan().resident(&device()).unwrap();
    let value = |index| int8_for_generation(registry.at(index), parameters.read(index)).unwrap();
    let values: Vec<_> = (0..registry.len()).map(value).collect();
    for (parameter, value) in registry.iter().zip(&values) {
        let name = &parameter.name;
        assert_eq!(value.as_packed().is_some(), rests_in_int8(parameter), "{name}");
        assert_eq!(rests_in_int8(parameter), name.ends_with("_proj.weight"), "{name}");
        assert!(!rests_in_int8(parameter) || parameter.role == Role::Matrix, "{name}");
    }
    let int8 = plan().into_model(Arc::new(LocalParams::new(registry, values)));
    (model, int8)
}

#[test]
fn log_probabilities_are_near_the_models() {
    let (model, int8) = both();
    let vocab = model.decoder.spec().vocab as u32;
    let prompts: Vec<Vec<u32>> =
        (0..5).map(|s| (0..7).map(|i| (s * 31 + i * 7 + 1) % vocab).collect()).collect();
    let settings = Generation { max_new_tokens: 24, log_probs: true, ..Generation::default() };
    let mut apart = 0.0_f32;
    for (prompt, done) in
        prompts.iter().zip(int8.decoder.generate(&prompts, &settings, &mut |_, _| true).unwrap())
    {
        let text: Vec<u32> = prompt.iter().chain(&done.token_ids).copied().collect();
        let all = logits(&model.decoder, std::slice::from_ref(&text));
        let rows: Vec<&[f32]> = all.chunks_exact(vocab as usize).collect();
        for (at, (&id, &said)) in done.token_ids.iter().zip(&done.log_probs).enumerate() {
            let row = rows[prompt.len() - 1 + at];
            let top = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = row.iter().map(|z| (z - top).exp()).sum();
            let own = row[id as usize] - top - sum.ln();
            apart = apart.max((own - said).abs());
            assert!((own - said).abs() < 0.2, "token {at}: {said}, and {own} of the model");
        }
    }
    assert!(apart > 1e-4, "the same as the model: nothing was in int8");
}

#[test]
fn what_is_sampled_does_not_depend_on_who_samples_beside_it() {
    let (_, int8) = both();
    let vocab = int8.decoder.spec().vocab as u32;
    let prompts: Vec<Vec<u32>> =
        (0..40).map(|s| (0..3 + s % 5).map(|i| (s * 13 + i * 5 + 2) % vocab).collect()).collect();
    let settings = Generation { max_new_tokens: 12, ..Generation::default() };
    let together = int8.decoder.generate(&prompts, &settings, &mut |_, _| true).unwrap();
    for (prompt, together) in prompts.iter().zip(&together).step_by(7) {
        let alone = int8.decoder.generate(std::slice::from_ref(prompt), &settings, &mut |_, _| true).unwrap();
        assert_eq!(alone[0].token_ids, together.token_ids, "{prompt:?}");
    }
}
