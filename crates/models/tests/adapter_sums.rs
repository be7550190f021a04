//! Adapters inside their divided layers and beside them: the same loss and gradients, and the collectives that were
//! forecast.

use std::sync::Arc;

use burnish_comm::local;
use burnish_core::{Dtype, Registry};
use burnish_losses::{TokenLoss, TokenLossOptions, token_loss};
use burnish_models::{
    Decoding, DropoutStep, Mode, ModelFolder, ModelPlan, Orthogonality, PassSize, Tokens, Tuning,
};
use burnish_ops::{AnyTensor, select_rows};
use burnish_peft::LoraConfig;
use burnish_tp::{AdapterSum, AdapterSums, Gradient, PartialGrad, Tp};

use crate::recordings::{close, device, fixtures};

const SEQUENCES: [&[u32]; 2] = [&[3, 1, 4, 1, 5, 9, 2, 6], &[5, 3, 7]];
/// Relative to a tensor's largest element (1 at least): f32 sums in another order.
const TOLERANCE: f32 = 5e-6;

const FORMS: [AdapterSums; 4] = {
    const fn of(colwise: AdapterSum, rowwise: AdapterSum) -> AdapterSums {
        AdapterSums { colwise, rowwise }
    }
    use AdapterSum::{Fused, RankR};
    [of(Fused, Fused), of(RankR, Fused), of(Fused, RankR), of(RankR, RankR)]
};

/// What a rank has after a pass.
struct Found {
    loss: Vec<f32>,
    /// How far singular factors are from orthogonal ones.
    apart: Vec<f32>,
    /// By parameter: this rank's part of the gradient, and the same part of a whole one.
    gradients: Vec<(String, Vec<f32>)>,
    logits: Vec<f32>,
}

fn pass(model: &str, config: &LoraConfig, ranks: usize, sums: AdapterSums, recompute: bool) -> Vec<Found> {
    let path = fixtures().join(model);
    let on_rank = |world: burnish_comm::World| {
        let folder = ModelFolder::open(&path).unwrap();
        let tuning = Tuning::NewAdapter(config);
        let mut planned = ModelPlan::new(&folder, &tuning, Dtype::F32, 0).unwrap().summing(sums);
        let tokens = Tokens::from_sequences(&SEQUENCES);
        let size = PassSize { tokens: tokens.ids.len(), targets: tokens.ids.len(), texts: 1, recompute };
        let parallel = Arc::new(planned.divided(ranks).unwrap());
        let forecast = planned.forecast(&parallel, &size, 1).traffic().clone();
        let tp = Tp::new(&world.group());
        let registry = planned.registry().clone();
        let (model, held) = planned.over(&tp).unwrap().resident(&device()).unwrap();
        let decoder = model.decoder;

        world.group().clear_traffic();
        let pass = decoder.pass(Mode::Train { recompute, dropout: Some(DropoutStep { seed: 1, step: 0 }) });
        let pulls = config.peft_type == "ADALORA";
        let apart = || Orthogonality::new(2 * singular(&registry), 0.3);
        let apart = pulls.then(|| Arc::new(if ranks > 1 { apart().over(&tp, &parallel) } else { apart() }));
        let pass = pass.with_orthogonality(apart.clone());
        let rows = Arc::new((0..tokens.ids.len()).collect());
        let hidden = select_rows(&decoder.hidden(&tokens, &pass).unwrap(), &rows).unwrap();
        let hidden = decoder.final_norm(&hidden, &pass).unwrap();
        let head = decoder.head(&pass, &tokens.rows).unwrap();
        let shard = decoder.vocab_shard();
        let options = TokenLossOptions { head: decoder.head_options(1.0), shard, denominator: Some(11.0) };
        let out = token_loss(TokenLoss::Nll, &hidden, &head, &tokens.ids, &options).unwrap();
        let loss = out.loss.to_f32();
        pass.backward(&out.loss).unwrap();
        tp.check().unwrap();
        assert_eq!(world.group().clear_traffic(), forecast, "{ranks} ranks, {sums:?}, {recompute}");

        let trained: Vec<usize> = (0..registry.len()).filter(|&i| registry.at(i).trainable).collect();
        let mut addends: Vec<PartialGrad<'_>> = trained
            .iter()
            .map(|&index| {
                let placement = parallel.tp_layout(index);
                let local = placement.layout().local_shape(tp.rank());
                let none =
                    || AnyTensor::from_elements(vec![0.0_f32; local.iter().product()], &local, &device());
                let gradient = held.take_gradient(index).unwrap_or_else(none);
                PartialGrad { name: &registry.at(index).name, layout: placement, rows: 0..local[0], gradient }
            })
            .collect();
        for addend in &addends {
            let whole = addend.layout.layout().dim().is_none();
            let rowwise = ["o_proj", "down_proj"].iter().any(|m| addend.name.contains(m));
            let form = if rowwise { sums.rowwise } else { sums.colwise };
            if whole && addend.name.contains(".lora_") && !pulls {
                let complete = form == AdapterSum::RankR;
                assert_eq!(addend.layout.gradient() == Gradient::Complete, complete, "{}", addend.name);
            }
        }
        tp.sum_partial(&mut addends).unwrap();
        let gradients = addends.iter().map(|a| (a.name.to_owned(), a.gradient.to_f32())).collect();
        let mut decoding = Decoding::new(&decoder, 1);
        let mut logits = decoding.logits(&[[3, 1, 4]]).unwrap();
        logits.extend(decoding.logits(&[[1]]).unwrap());
        let apart = vec![apart.map_or(0.0, |apart| apart.loss() as f32)];
        (Found { loss, apart, gradients, logits }, parallel, trained)
    };
    if ranks == 1 {
        return local::run(1, |world| on_rank(world).0).into_iter().map(Result::unwrap).collect();
    }
    let one = pass(model, config, 1, AdapterSums::default(), recompute).remove(0);
    let all: Vec<_> = local::run(ranks, on_rank).into_iter().map(Result::unwrap).collect();
    for (rank, (found, parallel, trained)) in all.iter().enumerate() {
        let what = format!("{model}, {sums:?}, rank {rank} of {ranks}, recompute {recompute}");
        near(&what, &found.loss, &one.loss);
        near(&what, &found.apart, &one.apart);
        near(&what, &found.logits, &one.logits);
        for (&index, (got, expected)) in trained.iter().zip(found.gradients.iter().zip(&one.gradients)) {
            let expected = parallel.layout(index).shard(&expected.1, rank);
            assert!(expected.iter().any(|&g| g != 0.0), "{what}: {} has a gradient", got.0);
            near(&format!("{what}: {}", got.0), &got.1, &expected);
        }
    }
    // What every rank has whole is the same on all, to the bit.
    for (at, &index) in all[0].2.iter().enumerate() {
        for (found, parallel, _) in &all {
            if parallel.layout(index).dim().is_none() {
                assert!(found.gradients[at] == all[0].0.gradients[at], "{}", found.gradients[at].0);
            }
        }
    }
    all.into_iter().map(|(found, ..)| found).collect()
}

/// The modules with singular values.
fn singular(registry: &Registry) -> usize {
    registry.iter().filter(|p| p.name.ends_with(".lora_E")).count()
}

#[track_caller]
fn near(what: &str, got: &[f32], expected: &[f32]) {
    let most = expected.iter().fold(1.0_f32, |most, v| most.max(v.abs()));
    close(what, got, expected, TOLERANCE * most);
}

fn config(more: &str) -> LoraConfig {
    LoraConfig::from_json(&format!(
        r#"{{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "init_lora_weights": false, {more}}}"#
    ))
    .unwrap()
}

#[test]
fn adapters_beside_their_layers_equal_those_inside() {
    // With dropout, biases, a group in which one layer has no adapter, and trained norms, whose gradients are addends
    // still.
    let all = r#""target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "lora_dropout": 0.1, "lora_bias": true, "modules_to_save": ["input_layernorm", "post_attention_layernorm"]"#;
    let few = r#""target_modules": ["k_proj", "down_proj"]"#;
    for more in [all, few] {
        for model in ["llama", "qwen3"] {
            for recompute in [false, true] {
                for ranks in [2, 4] {
                    for sums in FORMS {
                        pass(model, &config(more), ranks, sums, recompute);
                    }
                }
            }
        }
    }
}

/// They act on some tokens alone, of one of two sequences, and of what is generated.
#[test]
fn adapters_that_wait_equal_one_rank_s() {
    let all = r#""target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "lora_dropout": 0.1, "lora_bias": true, "alora_invocation_tokens": [4]"#;
    let few = r#""target_modules": ["k_proj", "down_proj"], "alora_invocation_tokens": [1, 5]"#;
    for (more, model) in [(all, "llama"), (few, "qwen3")] {
        for (ranks, recompute) in [(2, false), (4, true)] {
            for sums in FORMS {
                pass(model, &config(more), ranks, sums, recompute);
            }
        }
    }
}

/// Layers that stand several times share weights on every rank, and each has factors of its own.
#[test]
fn replicated_layers_equal_one_rank_s() {
    let more = r#""target_modules": ["q_proj", "o_proj", "gate_proj", "down_proj"], "lora_dropout": 0.1,
        "layer_replication": [[0, 2], [1, 2], [0, 1]]"#;
    for (ranks, recompute) in [(2, false), (4, true)] {
        for sums in FORMS {
            pass("llama", &config(more), ranks, sums, recompute);
        }
    }
}

#[test]
fn magnitudes_stay_with_their_layers() {
    let config = config(r#""target_modules": ["q_proj", "o_proj", "down_proj"], "use_dora": true"#);
    let folder = ModelFolder::open(fixtures().join("llama")).unwrap();
    let moved = FORMS.map(|sums| {
        let tuning = Tuning::NewAdapter(&config);
        let mut planned = ModelPlan::new(&folder, &tuning, Dtype::F32, 0).unwrap().summing(sums);
        let parallel = planned.divided(2).unwrap();
        assert!(!planned.adapts());
        planned
            .forecast(&parallel, &PassSize { tokens: 8, targets: 7, texts: 1, recompute: true }, 1)
            .traffic()
            .clone()
    });
    assert!(moved.iter().all(|traffic| *traffic == moved[0]));
}

/// IA3's vectors on outputs and inputs of layers that are divided either way, with biases, and on the head.
#[test]
fn vectors_that_scale_layers_lie_as_their_features_do() {
    let json = r#"{"peft_type": "IA3", "init_ia3_weights": false, "feedforward_modules": ["o_proj", "down_proj", "up_proj"],
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]}"#;
    let outputs = json.replace(r#""o_proj", "down_proj", "up_proj"]"#, "]");
    for json in [json, &outputs] {
        let config = LoraConfig::from_json(json).unwrap();
        for recompute in [false, true] {
            for ranks in [2, 4] {
                pass("llama-bias", &config, ranks, FORMS[0], recompute);
                pass("llama-bias", &config, ranks, FORMS[FORMS.len() - 1], recompute);
            }
        }
    }
}

/// AdaLoRA's factors lie as LoRA's do and its values are whole, and what pulls them towards orthogonal ones is of whole
/// factors: of three ranks two share each head of keys and values.
#[test]
fn singular_factors_are_pulled_as_on_one_rank() {
    let json = r#"{"peft_type": "ADALORA", "init_r": 3, "target_r": 1, "total_step": 9, "lora_alpha": 0.2, "lora_dropout": 0.2,
        "init_lora_weights": false, "target_modules": ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj", "lm_head"]}"#;
    let config = LoraConfig::from_json(json).unwrap();
    for (ranks, recompute) in [(2, false), (3, true), (4, true)] {
        pass("llama-bias", &config, ranks, FORMS[0], recompute);
        pass("llama-bias", &config, ranks, FORMS[FORMS.len() - 1], recompute);
    }
}

/// LoHa's factors lie as LoRA's do, C3A's blocks are whole and of each a rank takes its part; rows of the vocabulary that train are whole on every rank, also where the head shares
/// them; of VeRA's, LoKr's and OFT's each rank makes all and takes its part. What goes with neither side of its layer is refused by name.
#[test]
fn other_methods_lie_as_their_features_do() {
    let loha = r#"{"peft_type": "LOHA", "r": 2, "init_weights": false, "target_modules": ["q_proj", "o_proj", "up_proj", "down_proj", "lm_head"]}"#;
    let tokens = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 2, "init_lora_weights": false, "target_modules": ["q_proj"], "trainable_token_indices": [1, 5, 50]}"#;
    let boft = r#"{"peft_type": "BOFT", "init_weights": false, "boft_n_butterfly_factor": 2, "target_modules": ["q_proj", "k_proj", "o_proj", "up_proj", "lm_head"]}"#;
    let randlora = r#"{"peft_type": "RANDLORA", "r": 5, "randlora_alpha": 0.25, "init_weights": false, "randlora_dropout": 0.2, "target_modules": ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj", "lm_head"]}"#;
    let vblora = r#"{"peft_type": "VBLORA", "r": 2, "num_vectors": 7, "vector_length": 8, "init_vector_bank_bound": 0.5, "vblora_dropout": 0.2, "target_modules": ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj", "lm_head"]}"#;
    let c3a = r#"{"peft_type": "C3A", "block_size": 8, "target_modules": ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj", "lm_head"]}"#;
    let oft = |more: &str| {
        format!(
            r#"{{"peft_type": "OFT", "init_weights": false, "target_modules": ["q_proj", "k_proj", "o_proj", "up_proj", "lm_head"], {more}}}"#
        )
    };
    let oft = [
        r#""oft_block_size": 4"#,
        r#""oft_block_size": 8, "use_cayley_neumann": false"#,
        r#""oft_block_size": 4, "block_share": true, "num_cayley_neumann_terms": 6"#,
    ]
    .map(oft);
    let lokr = r#"{"peft_type": "LOKR", "r": 2, "alpha": 3, "init_weights": false, "target_modules": ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj", "lm_head"]}"#;
    let both = r#"{"peft_type": "LOKR", "r": 1, "alpha": 3, "init_weights": false, "decompose_both": true, "decompose_factor": 8, "target_modules": ["k_proj", "down_proj"]}"#;
    let vera = r#"{"peft_type": "VERA", "r": 4, "init_weights": false, "vera_dropout": 0.2, "target_modules": ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj", "lm_head"]}"#;
    for (base, json) in [
        ("llama-bias", oft[0].as_str()),
        ("llama-bias", &oft[1]),
        ("llama-tied", &oft[2]),
        ("llama-bias", lokr),
        ("llama-tied", both),
        ("llama-bias", vera),
        ("llama-bias", boft),
        ("llama-bias", randlora),
        ("llama-bias", vblora),
        ("llama-bias", c3a),
        ("llama-bias", loha),
        ("llama-bias", tokens),
        ("llama-tied", tokens),
    ] {
        let config = LoraConfig::from_json(json).unwrap();
        for (ranks, recompute) in [(2, false), (4, true)] {
            pass(base, &config, ranks, FORMS[0], recompute);
            // What stands beside its layer stays inside of it whatever is said of factors.
            if json == randlora || json == vblora || json == vera {
                pass(base, &config, ranks, FORMS[FORMS.len() - 1], recompute);
            }
        }
    }
    let refused = |base: &str, method: &str, target: &str| {
        let json = format!(r#"{{"peft_type": {method}, "target_modules": ["{target}"]}}"#);
        let config = LoraConfig::from_json(&json).unwrap();
        let folder = ModelFolder::open(fixtures().join(base)).unwrap();
        let mut planned = ModelPlan::new(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 0).unwrap();
        planned.divided(2).unwrap_err().to_string()
    };
    // Blocks of inputs that two ranks would share.
    for method in
        [r#""OFT", "r": 1, "oft_block_size": 0"#, r#""BOFT", "boft_block_size": 0, "boft_block_num": 1"#]
    {
        let error = refused("llama", method, "o_proj");
        assert!(error.contains("use tp_size 1"), "{error}");
    }
    // A layer that every rank runs whole gives whole gradients, which a bank cannot add to addends.
    let gate = "per_layer_input_gate";
    let error = refused("gemma4", r#""VBLORA", "r": 2, "vector_length": 2"#, gate);
    assert!(error.contains(gate) && error.contains("use tp_size 1"), "{error}");
    let json = format!(r#"{{"peft_type": "C3A", "block_size": 2, "target_modules": ["{gate}", "q_proj"]}}"#);
    let config = LoraConfig::from_json(&json).unwrap();
    let folder = ModelFolder::open(fixtures().join("gemma4")).unwrap();
    let mut planned = ModelPlan::new(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 0).unwrap();
    let parallel = planned.divided(2).unwrap();
    for (index, parameter) in planned.registry().iter().enumerate().filter(|(_, p)| p.trainable) {
        let whole = parameter.name.contains(gate);
        let expected = if whole { Gradient::Complete } else { Gradient::Partial };
        assert_eq!(parallel.tp_layout(index).gradient(), expected, "{}", parameter.name);
    }
}
