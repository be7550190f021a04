//! Prompts that several sequences begin with, laid out once: the losses and gradients of sequences laid out whole.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burnish_comm::{World, local};
use burnish_core::Dtype;
use burnish_models::{Decoder, DropoutStep, Mode, ModelError, ModelFolder, ModelPlan, Tokens, Tuning};
use burnish_ops::{Coefficient, Parameters, head_loss, select_rows};
use burnish_peft::LoraConfig;
use burnish_tp::{Tp, TpError};

use crate::families::folders;
use crate::recordings::{close, device};

/// Of a tensor's largest gradient: fp32 sums in another order, which Gemma 4's fixture makes 3e-5 of on eight lanes.
const TOLERANCE: f32 = 5e-5;

/// Prompts and what continues each; longer than the windows of the fixtures.
fn trees() -> Vec<(Vec<u32>, Vec<Vec<u32>>)> {
    let some =
        |n: u32, seed: u32| (0..n).map(|i| (11 * seed + 5 * i + seed * i * i) % 40).collect::<Vec<_>>();
    vec![
        (some(9, 1), vec![some(4, 2), some(7, 3), some(1, 4)]),
        (some(3, 5), vec![some(8, 6), some(2, 7)]),
        (some(1, 8), vec![some(3, 9), some(5, 10)]),
    ]
}

/// What a layout is: tokens, those that predict and what.
struct Layout {
    tokens: Tokens,
    rows: Vec<usize>,
    targets: Vec<u32>,
}

/// All of [`trees`]; a prompt but its last token is there once with `shared`. Counters are the same either way.
fn layout(shared: bool) -> Layout {
    let (mut ids, mut positions, mut counters) = (vec![], vec![], vec![]);
    let (mut documents, mut parents) = (vec![], vec![]);
    let (mut rows, mut targets) = (vec![], vec![]);
    for (row, (prompt, completions)) in trees().into_iter().enumerate() {
        let common = if shared { prompt.len() - 1 } else { 0 };
        let mut push = |tokens: &[u32], from: usize, side: u64, parent: Option<usize>| {
            let start = ids.len();
            ids.extend_from_slice(tokens);
            positions.extend((0..tokens.len()).map(|i| (from + i) as u32));
            let side = |token: usize| if token < prompt.len() { 0 } else { side };
            let counter = |token: usize| (row as u64) << 32 | side(token) << 20 | token as u64;
            counters.extend((0..tokens.len()).map(|i| counter(from + i)));
            documents.push(start..ids.len());
            parents.push(parent);
            documents.len() - 1
        };
        let parent = (common > 0).then(|| push(&prompt[..common], 0, 0, None));
        for (side, completion) in completions.iter().enumerate() {
            let whole = [&prompt[common..], completion].concat();
            push(&whole, common, side as u64 + 1, parent);
        }
        for document in documents.iter().rev().take(completions.len()).rev() {
            let first: usize = document.start + prompt.len() - common;
            rows.extend(first - 1..document.end - 1);
            targets.extend(&ids[first..document.end]);
        }
    }
    let tokens = Tokens {
        ids: Arc::new(ids),
        positions: Arc::new(positions),
        documents: documents.into(),
        parents: Arc::new(if shared { parents } else { vec![] }),
        rows: Arc::new(counters),
    };
    Layout { tokens, rows, targets }
}

/// A loss over the completions, another coefficient for each token, and each target's log-probability.
fn backward(model: &Decoder, layout: &Layout, mode: Mode) -> Vec<f32> {
    let pass = model.pass(mode);
    let hidden = model.hidden(&layout.tokens, &pass).unwrap();
    let hidden = select_rows(&hidden, &Arc::new(layout.rows.clone())).unwrap();
    let hidden = model.final_norm(&hidden, &pass).unwrap();
    let counters = layout.rows.iter().map(|&i| layout.tokens.rows[i]).collect();
    let head = model.head(&pass, &Arc::new(counters)).unwrap();
    let coefficient: Coefficient = Arc::new(|token, _| -0.1 - 0.05 * (token % 7) as f32);
    let (shard, targets) = (model.vocab_shard(), Arc::new(layout.targets.clone()));
    let value = |s: &burnish_ops::TokenStats| s.log_prob.iter().sum::<f32>();
    let (loss, stats) =
        head_loss(&hidden, &head, shard, &targets, model.head_options(1.0), &coefficient, value).unwrap();
    pass.backward(&loss).unwrap();
    stats.log_prob
}

type Found = (Vec<f32>, BTreeMap<String, Vec<f32>>);

fn step(path: &Path, tuning: &Tuning<'_>, tp: &Tp, layout: &Layout, mode: Mode) -> Result<Found, ModelError> {
    let folder = ModelFolder::open(path)?;
    let mut planned = ModelPlan::new(&folder, tuning, Dtype::F32, 5)?;
    if tp.size() > 1 {
        planned = planned.over(tp)?;
    }
    let (model, resident) = planned.resident(&device())?;
    let found = backward(&model.decoder, layout, mode);
    let gradient = |(index, p): (usize, &burnish_core::Parameter)| {
        Some((p.name.clone(), resident.take_gradient(index)?.to_f32()))
    };
    Ok((found, resident.registry().iter().enumerate().filter_map(gradient).collect()))
}

fn same(what: &str, got: &Found, want: &Found) {
    close(what, &got.0, &want.0, 1e-5);
    assert_eq!(got.1.keys().collect::<Vec<_>>(), want.1.keys().collect::<Vec<_>>(), "{what}");
    for (name, want) in &want.1 {
        let largest = want.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        // Of biases of keys little is left where terms cancel.
        close(&format!("{what}: {name}"), &got.1[name], want, TOLERANCE * largest + 5e-7);
    }
}

/// Of every family; of mixtures only where `mixtures`.
fn check(tuning: &Tuning<'_>, dropout: Option<DropoutStep>, mixtures: bool) {
    let (shared, apart) = (layout(true), layout(false));
    assert!(shared.tokens.ids.len() < apart.tokens.ids.len());
    for path in folders() {
        let what = path.file_name().unwrap().to_string_lossy().into_owned();
        if !mixtures && ModelFolder::open(&path).unwrap().spec().experts.is_some() {
            continue;
        }
        let mode = |recompute| Mode::Train { recompute, dropout };
        let want = step(&path, tuning, &Tp::alone(), &apart, mode(false)).unwrap();
        for recompute in [false, true] {
            let got = step(&path, tuning, &Tp::alone(), &shared, mode(recompute)).unwrap();
            same(&format!("{what}, recompute {recompute}"), &got, &want);
        }
        let both = local::run(2, |world: World| {
            let tp = Tp::new(&world.group());
            let found = [&shared, &apart].map(|layout| step(&path, tuning, &tp, layout, mode(true)));
            tp.check().unwrap();
            found
        });
        for (rank, both) in both.into_iter().enumerate() {
            match both.unwrap() {
                [Ok(got), Ok(want)] => same(&format!("{what}, rank {rank} of 2"), &got, &want),
                [Err(ModelError::Tp(TpError::Heads { heads: 1, .. })), _] => {}
                [Err(error), _] | [_, Err(error)] => panic!("{what}: {error}"),
            }
        }
    }
}

#[test]
fn full_training_is_the_same_in_every_family() {
    check(&Tuning::Full, None, true);
}

/// A prompt counts once for each text that begins with it, as where each has its own; virtual tokens before it too.
#[test]
fn the_balancing_loss_is_the_same_in_every_family() {
    assert!(balanced(&Tuning::Full) > 20);
    let config = r#"{"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 3, "prompt_tuning_init": "RANDOM"}"#;
    let config = LoraConfig::from_json(config).unwrap();
    assert!(balanced(&Tuning::NewAdapter(&config)) > 10);
}

/// How many mixtures there were, but those whose embeddings have a factor where virtual tokens stand.
fn balanced(tuning: &Tuning<'_>) -> usize {
    let (mut mixtures, layouts) = (0, [layout(true), layout(false)]);
    for path in folders() {
        let folder = ModelFolder::open(&path).unwrap();
        if folder.spec().experts.is_none() {
            continue;
        }
        let what = path.file_name().unwrap().to_string_lossy().into_owned();
        let found = layouts.each_ref().map(|layout| {
            let (model, resident) = ModelPlan::new(&folder, tuning, Dtype::F32, 5)?.resident(&device())?;
            let balance = model.decoder.router_balance(1.0).unwrap();
            let pass = model.decoder.pass(Mode::Train { recompute: true, dropout: None });
            let pass = pass.with_router_balance(Some(balance.clone()));
            let hidden = model.decoder.hidden(&layout.tokens, &pass).unwrap();
            // Nothing but the balancing loss.
            let nothing = burnish_ops::AnyTensor::new((hidden.rank::<2>().unwrap() * 0.0).sum());
            pass.backward(&nothing).unwrap();
            let gradient = |(index, p): (usize, &burnish_core::Parameter)| {
                Some((p.name.clone(), resident.take_gradient(index)?.to_f32()))
            };
            let gradients = resident.registry().iter().enumerate().filter_map(gradient).collect();
            Ok((vec![balance.loss() as f32], gradients))
        });
        match found {
            [Ok(got), Ok(want)] => {
                assert!(want.0[0] > 0.1, "{what}");
                same(&what, &got, &want);
                mixtures += 1;
            }
            [Err(ModelError::Unsupported { .. }), _] => {}
            [Err(error), _] | [_, Err(error)] => panic!("{what}: {error}"),
        }
    }
    mixtures
}

#[test]
fn adapters_that_drop_out_are_the_same_in_every_family() {
    let config = r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "lora_dropout": 0.2, "init_lora_weights": false,
        "target_modules": ".*(_proj|embed_tokens|lm_head|embed_out|attention.w.*|query_key_value)"}"#;
    let config = LoraConfig::from_json(config).unwrap();
    check(&Tuning::NewAdapter(&config), Some(DropoutStep { seed: 4, step: 7 }), false);
}

/// Two of them have the invocation in some completions too, where the prompt is then without the adapter.
#[test]
fn adapters_that_wait_are_the_same_in_every_family() {
    let config = r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 1, "lora_dropout": 0.2, "init_lora_weights": false,
        "target_modules": ".*[.][0-9]+[.](?!laurel).*[a-z]", "alora_invocation_tokens": [15]}"#;
    let config = LoraConfig::from_json(config).unwrap();
    check(&Tuning::NewAdapter(&config), Some(DropoutStep { seed: 4, step: 7 }), false);
}
