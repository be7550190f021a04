//! Products of bfloat16 beside those of fp32: losses, and gradients by kind of layer.

use std::collections::BTreeMap;
use std::sync::Arc;

use burnish_core::{Compute, Dtype};
use burnish_losses::{TokenLoss, TokenLossOptions, token_loss};
use burnish_models::{Mode, ModelFolder, ModelPlan, Tokens, Tuning};
use burnish_ops::select_rows;
use burnish_peft::LoraConfig;

use crate::recordings::{device, fixtures};

/// The loss and the gradients by name.
type Found = (f32, BTreeMap<String, Vec<f32>>);

fn pass(model: &str, config: Option<&LoraConfig>, compute: Compute, recompute: bool) -> Found {
    pass_in(Dtype::F32, model, config, compute, recompute)
}

fn pass_in(
    trained: Dtype,
    model: &str,
    config: Option<&LoraConfig>,
    compute: Compute,
    recompute: bool,
) -> Found {
    let folder = ModelFolder::open(fixtures().join(model)).unwrap();
    let tuning = config.map_or(Tuning::Full, Tuning::NewAdapter);
    let planned = ModelPlan::new(&folder, &tuning, trained, 7).unwrap().computing(compute);
    let (model, held) = planned.resident(&device()).unwrap();
    let decoder = model.decoder;
    let sequence = |seed: u32, n: u32| (0..n).map(|i| (7 * i * i + 3 * i + seed) % 40).collect::<Vec<u32>>();
    let tokens = Tokens::from_sequences(&[sequence(1, 17), sequence(5, 30), sequence(9, 3)]);
    let pass = decoder.pass(Mode::Train { recompute, dropout: None });
    let rows = Arc::new((0..tokens.ids.len()).collect());
    let hidden = select_rows(&decoder.hidden(&tokens, &pass).unwrap(), &rows).unwrap();
    let hidden = decoder.final_norm(&hidden, &pass).unwrap();
    let head = decoder.head(&pass, &tokens.rows).unwrap();
    let options = TokenLossOptions {
        head: decoder.head_options(1.0),
        shard: None,
        denominator: Some(tokens.ids.len() as f64),
    };
    let out = token_loss(TokenLoss::Nll, &hidden, &head, &tokens.ids, &options).unwrap();
    let loss = out.loss.to_f32()[0];
    pass.backward(&out.loss).unwrap();
    let registry = decoder.parameters().registry();
    let trained = (0..registry.len()).filter(|&i| registry.at(i).trainable);
    let gradients =
        trained.filter_map(|i| Some((registry.at(i).name.clone(), held.take_gradient(i)?.to_f32())));
    (loss, gradients.collect())
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// Cosine at least and difference of norms at most, of the gradients of all layers of a kind together.
fn compare(model: &str, config: Option<&LoraConfig>, cosine: f64, norm: f64) {
    let (want, theirs) = pass(model, config, Compute::Fp32, false);
    let (got, ours) = pass(model, config, Compute::Bf16, false);
    assert!((want - got).abs() < 1e-2 * want, "{model}: loss {got}, in fp32 {want}");
    let rounds = burnish_cpu_kernels::isa().has_bf16_dots();
    assert_eq!(want != got, rounds, "{model}: rounding is to be seen where the processor has such products");
    assert_eq!(theirs.keys().collect::<Vec<_>>(), ours.keys().collect::<Vec<_>>(), "{model}");
    let kind =
        |name: &str| name.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect::<String>();
    let mut kinds: BTreeMap<String, (Vec<f32>, Vec<f32>)> = BTreeMap::new();
    for (name, a) in &theirs {
        let (x, y) = kinds.entry(kind(name)).or_default();
        x.extend(a);
        y.extend(&ours[name]);
    }
    for (kind, (a, b)) in kinds {
        let (aa, bb) = (dot(&a, &a).sqrt(), dot(&b, &b).sqrt());
        if aa == 0.0 {
            assert!(bb == 0.0, "{model} {kind}");
            continue;
        }
        let (found, ratio) = (dot(&a, &b) / (aa * bb), bb / aa);
        println!("{model} {kind}: cosine {found:.6}, norm {ratio:.5}");
        assert!(
            found >= cosine && (ratio - 1.0).abs() <= norm,
            "{model} {kind}: cosine {found}, norm {ratio}"
        );
    }
}

#[test]
fn gradients_of_bf16_products_are_near_those_of_fp32() {
    let config = LoraConfig::from_json(
        r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 4, "init_lora_weights": false, "target_modules": "all-linear"}"#,
    )
    .unwrap();
    for model in ["llama", "llama-bf16", "gemma2", "gpt-neox"] {
        compare(model, None, 0.999, 0.02);
        compare(model, Some(&config), 0.999, 0.02);
    }
}

#[test]
fn recomputing_changes_no_bit_of_bf16_products() {
    for model in ["llama", "gemma2"] {
        let (kept, again) = (pass(model, None, Compute::Bf16, false), pass(model, None, Compute::Bf16, true));
        assert!(kept == again, "{model}");
    }
}

/// Rows of length one are made of what is stored, and gradients go back through that.
#[test]
fn heads_of_unit_rows_train_in_bf16() {
    let (want, theirs) = pass("baichuan2", None, Compute::Fp32, false);
    let (got, ours) = pass_in(Dtype::Bf16, "baichuan2", None, Compute::Fp32, false);
    assert!((want - got).abs() < 1e-2 * want, "loss {got}, in fp32 {want}");
    for name in ["lm_head.weight", "model.embed_tokens.weight"] {
        let (a, b) = (&theirs[name], &ours[name]);
        let found = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        assert!(found >= 0.99, "{name}: cosine {found}");
    }
}
