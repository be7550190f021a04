//! Every gradient of every family, divided over ranks, is one rank's: its part of each tensor, after what are addends
//! were summed once, whatever the number of micro-batches.

use std::collections::HashSet;
use std::path::Path;

use burnish_comm::{World, local};
use burnish_core::Dtype;
use burnish_models::{DropoutStep, Mode, ModelError, ModelFolder, ModelPlan, Spec, Tuning};
use burnish_ops::{AnyTensor, Parameters};
use burnish_peft::LoraConfig;
use burnish_tp::{Gradient, PartialGrad, Tp, TpError, TpLayout};

use crate::dora::backward;
use crate::families::folders;
use crate::recordings::{close, device};
use crate::tensor_parallel::is_uneven;

/// Of a tensor's largest gradient: fp32 sums in another order, 1.3e-5 on eight lanes.
const TOLERANCE: f32 = 2e-5;

/// A parameter's gradient of what one rank holds of it.
struct Found {
    name: String,
    layout: TpLayout,
    gradient: Vec<f32>,
}

/// Some sequences, none as long as the others; longer than the windows of the fixtures.
fn sequences() -> Vec<Vec<u32>> {
    let length = |s: u32| [13, 3, 10, 6][s as usize];
    (0..4).map(|s| (0..length(s)).map(|i| (7 * s + 3 * i + s * i * i) % 40).collect()).collect()
}

/// The loss of all sequences in so many micro-batches, and the gradients that a step would use.
fn step(
    path: &Path,
    tuning: &Tuning<'_>,
    tp: &Tp,
    micro_batches: usize,
    mode: Mode,
) -> Result<(f32, Vec<Found>), ModelError> {
    let folder = ModelFolder::open(path)?;
    let planned = ModelPlan::new(&folder, tuning, Dtype::F32, 5)?.over(tp)?;
    let parallel = planned.parallel().unwrap().clone();
    let (model, resident) = planned.resident(&device())?;
    let all = sequences();
    let size = all.len() / micro_batches;
    let mut loss = 0.0;
    for (i, part) in all.chunks(size).enumerate() {
        loss += backward(&model.decoder, part, 28.0, (i * size) as u64, mode);
    }
    let registry = resident.registry();
    let mut addends = Vec::new();
    for (index, parameter) in registry.iter().enumerate() {
        let gradient = resident.take_gradient(index);
        if !parameter.trainable || parameter.alias_of.is_some() {
            assert!(gradient.is_none(), "{}", parameter.name);
            continue;
        }
        let placement = parallel.tp_layout(index);
        let gradient = gradient.unwrap_or_else(|| {
            // What the first rank alone adds.
            assert!(placement.gradient() == Gradient::Partial && tp.rank() > 0, "{}", parameter.name);
            assert!(parameter.name.ends_with("bias"), "{}", parameter.name);
            AnyTensor::from_elements(vec![0.0; parameter.elements()], &parameter.shape, &device())
        });
        assert_eq!(gradient.shape(), placement.layout().local_shape(tp.rank()), "{}", parameter.name);
        addends.push(PartialGrad {
            name: &parameter.name,
            layout: placement,
            rows: 0..parameter.shape[0],
            gradient,
        });
    }
    tp.sum_partial(&mut addends)?;
    let found = |a: PartialGrad<'_>| Found {
        name: a.name.to_owned(),
        layout: a.layout.clone(),
        gradient: a.gradient.to_f32(),
    };
    Ok((loss, addends.into_iter().map(found).collect()))
}

/// Compares 2, 3 and 4 ranks with one, with and without recompute, in one micro-batch and in several. Returns the kinds
/// of gradients that were met.
fn check(path: &Path, what: &str, tuning: &Tuning<'_>, dropout: Option<DropoutStep>) -> HashSet<Gradient> {
    let mut met = HashSet::new();
    let name = path.file_name().unwrap().to_str().unwrap();
    let what = format!("{name}, {what}");
    let mode = |recompute| Mode::Train { recompute, dropout };
    let (loss, whole) = step(path, tuning, &Tp::alone(), 1, mode(false)).unwrap();
    for ranks in [2, 3, 4] {
        for (micro_batches, recompute) in [(1, false), (2, true), (4, false)] {
            let what = format!("{what}, {ranks} ranks, {micro_batches} micro-batches");
            let run = |world: World| {
                let tp = Tp::new(&world.group());
                let found = step(path, tuning, &tp, micro_batches, mode(recompute));
                tp.check().unwrap();
                found
            };
            for (rank, result) in local::run(ranks, run).into_iter().enumerate() {
                let (got_loss, parts) = match result.unwrap() {
                    Ok(found) => found,
                    Err(ModelError::Tp(TpError::Heads { heads, .. })) => {
                        assert!(heads < ranks, "{what}");
                        continue;
                    }
                    Err(ModelError::UnevenPacked { .. } | ModelError::Quartered { .. }) => {
                        assert!(is_uneven(name, ranks), "{what}");
                        continue;
                    }
                    Err(error) => panic!("{what}: {error}"),
                };
                close(&format!("{what}: loss"), &[got_loss], &[loss], TOLERANCE * loss);
                assert_eq!(parts.len(), whole.len(), "{what}");
                for (got, want) in parts.iter().zip(&whole) {
                    assert_eq!(got.name, want.name, "{what}");
                    let largest = want.gradient.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                    assert!(largest > 0.0, "{what}: no gradient of {}", want.name);
                    let what = format!("{what}: {} of rank {rank}", got.name);
                    let want = got.layout.layout().shard(&want.gradient, rank);
                    // A bias of keys that do not turn has a gradient of zero but for rounding.
                    close(&what, &got.gradient, &want, TOLERANCE * largest + 5e-7);
                    met.insert(got.layout.gradient());
                }
            }
        }
    }
    met
}

#[test]
fn gradients_of_full_training_equal_one_rank_s_in_every_family() {
    let mut met = HashSet::new();
    for folder in folders() {
        met.extend(check(&folder, "full", &Tuning::Full, None));
    }
    assert_eq!(met.len(), 4, "complete, addends, own, shared: {met:?}");
}

/// Every linear layer and both ends, whatever families call them.
const EVERYWHERE: &str = r#""target_modules": ".*(_proj|embed_tokens|embed_in|lm_head|query_key_value|dense.*|c_fc|fc[12]|wte|word_embeddings|c_attn|fc_in|fc_out|attention.w.*|feed_forward.w.|tok_embeddings|output|.*per_layer.*)""#;

/// Where a mixture of experts may have adapters of any kind.
const AROUND_EXPERTS: &str = r#""target_modules": ".*(self_attn.*_proj|mlp[.](gate|up|down)_proj|router[.]proj|shared_expert.*_proj|shared_mlp.*_linear|shared_expert_gate|embed_tokens|lm_head)""#;

fn adapters_everywhere(more: &str) {
    adapters_of(|spec| {
        let targets = if spec.experts.is_some() { AROUND_EXPERTS } else { EVERYWHERE };
        format!("{more}, {targets}")
    });
}

/// Experts and routers, beside attention.
#[test]
fn gradients_of_lora_on_experts_equal_one_rank_s() {
    for folder in folders() {
        let spec = ModelFolder::open(&folder).unwrap().spec().clone();
        if spec.experts.is_none() {
            continue;
        }
        let first = spec.names.experts.gate_up.rsplit('.').next().unwrap();
        let all = format!(r#""{first}", "down_proj", "gate.weight", "router.weight""#);
        for parameters in [all.as_str(), r#""experts.down_proj""#] {
            let names = &spec.names.experts;
            let known = |name: &&str| {
                let of_router = name.contains(names.router.rsplit('.').next().unwrap());
                !name.contains(".weight") || of_router && !names.router_is_linear
            };
            let parameters: Vec<&str> = parameters.split(", ").filter(known).collect();
            let config = LoraConfig::from_json(&format!(
                r#"{{"peft_type": "LORA", "r": 2, "lora_alpha": 6, "init_lora_weights": false,
                "target_modules": ["{}", "{}"], "target_parameters": [{}]}}"#,
                match spec.latent {
                    _ if spec.packed() => "query_key_value",
                    Some(latent) if latent.query_rank.is_some() => "q_b_proj",
                    _ => "q_proj",
                },
                spec.names.o.rsplit('.').next().unwrap(),
                parameters.join(", ")
            ));
            check(&folder, &parameters.join(", "), &Tuning::NewAdapter(&config.unwrap()), None);
        }
    }
}

fn adapters_of(more: impl Fn(&Spec) -> String) {
    let dropout = Some(DropoutStep { seed: 4, step: 7 });
    for folder in folders() {
        let more = more(ModelFolder::open(&folder).unwrap().spec());
        let config =
            format!(r#"{{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "lora_dropout": 0.2, {more}}}"#);
        let config = LoraConfig::from_json(&config).unwrap();
        check(&folder, &more, &Tuning::NewAdapter(&config), dropout);
    }
}

#[test]
fn gradients_of_lora_everywhere_equal_one_rank_s_in_every_family() {
    adapters_everywhere(r#""init_lora_weights": false, "bias": "all""#);
}

#[test]
fn gradients_of_dora_everywhere_equal_one_rank_s_in_every_family() {
    adapters_everywhere(r#""init_lora_weights": false, "use_dora": true"#);
}

#[test]
fn gradients_of_lora_with_biases_and_saved_modules_equal_one_rank_s_in_every_family() {
    adapters_of(|spec| {
        let last = |module: &str| module.rsplit('.').next().unwrap().to_owned();
        let mut saved = vec![last(spec.names.embed), last(spec.names.head)];
        if spec.norm.has_weight() {
            saved.push(last(if spec.final_norm { spec.names.norm } else { spec.names.mlp_post_norm }));
            let first =
                if spec.layout.is_pre() { spec.names.attention_norm } else { spec.names.attention_post_norm };
            saved.push(last(first));
        }
        let saved = serde_json::to_string(&saved).unwrap();
        let targets =
            if spec.experts.is_some() { AROUND_EXPERTS } else { r#""target_modules": "all-linear""# };
        format!(
            r#""init_lora_weights": false, "lora_bias": true, {targets},
            "modules_to_save": {saved}"#
        )
    });
}

/// Of an encoder of virtual tokens, which every rank has whole.
#[test]
fn gradients_of_encoders_equal_one_rank_s() {
    let dropout = Some(DropoutStep { seed: 4, step: 7 });
    for (base, config) in [
        ("llama", r#""peft_type": "P_TUNING", "num_virtual_tokens": 3, "encoder_hidden_size": 5"#),
        (
            "qwen2",
            r#""peft_type": "P_TUNING", "num_virtual_tokens": 3, "encoder_hidden_size": 5, "encoder_dropout": 0.3,
            "encoder_reparameterization_type": "LSTM""#,
        ),
        (
            "qwen2",
            r#""peft_type": "PREFIX_TUNING", "num_virtual_tokens": 3, "encoder_hidden_size": 5, "prefix_projection": true"#,
        ),
    ] {
        let path = crate::recordings::fixtures().join(base);
        let config = LoraConfig::from_json(&format!("{{{config}}}")).unwrap();
        check(&path, &config.peft_type, &Tuning::NewAdapter(&config), dropout);
    }
}
