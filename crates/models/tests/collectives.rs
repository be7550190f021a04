//! Collectives of a pass over ranks that share layers: calls and elements of each kind, as forecast.

use burnish_comm::{Op, Traffic, local};
use burnish_core::Dtype;
use burnish_losses::{TokenLoss, TokenLossOptions, token_loss};
use burnish_models::{DropoutStep, ExpertSharding, Mode, ModelFolder, ModelPlan, PassSize, Tokens, Tuning};
use burnish_ops::select_rows;
use burnish_peft::LoraConfig;
use burnish_tp::Tp;

use crate::recordings::{device, fixtures};

const SEQUENCES: [&[u32]; 2] = [&[3, 1, 4, 1, 5, 9, 2, 6], &[5, 3, 7]];

/// What the first of `ranks` ranks moves in a training pass, and what was forecast.
fn pass(model: &str, config: Option<&LoraConfig>, ranks: usize, recompute: bool) -> (Traffic, Traffic) {
    passes((model, ExpertSharding::Parts), config, ranks, recompute).remove(0)
}

/// The same of each rank.
fn passes(
    (model, sharding): (&str, ExpertSharding),
    config: Option<&LoraConfig>,
    ranks: usize,
    recompute: bool,
) -> Vec<(Traffic, Traffic)> {
    let path = fixtures().join(model);
    let all = local::run(ranks, |world| {
        let folder = ModelFolder::open(&path).unwrap();
        let tuning = config.map_or(Tuning::Full, Tuning::NewAdapter);
        let mut planned = ModelPlan::new(&folder, &tuning, Dtype::F32, 0).unwrap().sharing_experts(sharding);
        let tokens = Tokens::from_sequences(&SEQUENCES);
        // The last token of a sequence predicts nothing here.
        let rows: Vec<usize> = tokens.documents.iter().flat_map(|d| d.start..d.end - 1).collect();
        let targets: Vec<u32> = rows.iter().map(|&row| tokens.ids[row + 1]).collect();
        let size = PassSize { tokens: tokens.ids.len(), targets: targets.len(), texts: 1, recompute };
        let parallel = planned.divided(ranks).unwrap();
        let forecast = planned.forecast(&parallel, &size, 1).traffic().clone();

        let tp = Tp::new(&world.group());
        let decoder = planned.over(&tp).unwrap().resident(&device()).unwrap().0.decoder;
        let ids = std::sync::Arc::new(rows.iter().map(|&row| tokens.rows[row]).collect());
        world.group().clear_traffic();
        let pass = decoder.pass(Mode::Train { recompute, dropout: Some(DropoutStep { seed: 1, step: 0 }) });
        let hidden = select_rows(&decoder.hidden(&tokens, &pass).unwrap(), &rows.into()).unwrap();
        let hidden = decoder.final_norm(&hidden, &pass).unwrap();
        let head = decoder.head(&pass, &ids).unwrap();
        let options = TokenLossOptions {
            head: decoder.head_options(1.0),
            shard: decoder.vocab_shard(),
            denominator: Some(9.0),
        };
        let loss = token_loss(TokenLoss::Nll, &hidden, &head, targets, &options);
        pass.backward(&loss.unwrap().loss).unwrap();
        tp.check().unwrap();
        (world.group().traffic(), forecast)
    });
    all.into_iter().map(Result::unwrap).collect()
}

fn config(targets: &[&str], dora: bool) -> LoraConfig {
    let json = serde_json::json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "lora_dropout": 0.1,
        "target_modules": targets, "use_dora": dora,
    });
    LoraConfig::from_json(&json.to_string()).unwrap()
}

#[test]
fn a_pass_makes_the_collectives_that_were_forecast() {
    let linear = config(&["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"], false);
    let dora = config(&["embed_tokens", "k_proj", "o_proj", "down_proj"], true);
    for model in ["llama", "qwen2-tied", "qwen3"] {
        for config in [None, Some(&linear), Some(&dora)] {
            for recompute in [false, true] {
                for ranks in [1, 2, 4] {
                    let (moved, forecast) = pass(model, config, ranks, recompute);
                    let what = format!("{model} over {ranks} ranks, recompute {recompute}, {config:?}");
                    assert_eq!(moved, forecast, "{what}");
                    assert_eq!(forecast.rows().count() == 0, ranks == 1, "{what}");
                }
            }
        }
    }
}

/// Calls are those forecast; elements those of the tokens that went: what ranks send to each other is what they get.
#[test]
fn tokens_sent_to_experts_make_the_calls_that_were_forecast() {
    let json = serde_json::json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "lora_dropout": 0.0, "target_modules": ["k_proj"],
        "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
    });
    let lora = LoraConfig::from_json(&json.to_string()).unwrap();
    let experts = serde_json::json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "lora_dropout": 0.0, "target_modules": [],
        "target_parameters": ["experts.down_proj"],
    });
    // Nothing before the first block's experts trains.
    let last = LoraConfig::from_json(&experts.to_string()).unwrap();
    for (model, config, before) in [
        ("mixtral", None, true),
        ("qwen2-moe", None, true),
        ("olmoe", Some(&lora), true),
        ("olmoe", Some(&last), false),
    ] {
        let spec = ModelFolder::open(fixtures().join(model)).unwrap().spec().clone();
        let (each, hidden) = (spec.experts.unwrap().rule.per_token as u64, spec.hidden as u64);
        for (ranks, recompute) in [(2, false), (2, true), (3, true)] {
            let all = passes((model, ExpertSharding::Exchanged), config, ranks, recompute);
            let what = format!("{model} over {ranks}, recompute {recompute}, {config:?}");
            let mut sums = [0; 2];
            let mut forecast_sums = [0; 2];
            for (moved, forecast) in &all {
                let calls = |traffic: &Traffic| {
                    traffic.rows().map(|(key, row)| (format!("{key:?}"), row.calls)).collect::<Vec<_>>()
                };
                assert_eq!(calls(moved), calls(forecast), "{what}");
                for (sums, traffic) in [(&mut sums, moved), (&mut forecast_sums, forecast)] {
                    sums[0] += traffic.of(Op::AllToAll, Dtype::I64).elements;
                    sums[1] += traffic.of(Op::AllToAll, Dtype::F32).elements;
                }
            }
            // Rows of all passes, forward; as many tokens come back as went.
            let rows = sums[0] / each;
            let tokens = (SEQUENCES.iter().map(|s| s.len()).sum::<usize>() * ranks) as u64;
            // Blocks without experts send nothing.
            let layers = all[0].1.of(Op::AllToAll, Dtype::I64).calls;
            assert!(
                rows >= tokens * layers && rows <= tokens * layers * each.min(ranks as u64),
                "{what}: {rows}"
            );
            if before {
                let ways = if recompute { 2 } else { 1 };
                assert_eq!(sums[1] * ways, (rows * ways + rows) * (2 * hidden + each), "{what}");
            }
            let close = |a: u64, b: u64| (a as f64 - b as f64).abs() < 0.35 * b as f64;
            assert!(
                close(forecast_sums[0], sums[0]) && close(forecast_sums[1], sums[1]),
                "{what}: {sums:?}, {forecast_sums:?}"
            );
        }
    }
}
