//! DPO and KTO have TRL's names and defaults, and refuse what contradicts itself.

use burnish_config::foreign;
use burnish_config::table::Raw;
use burnish_config::{Command, CpoOptions, DpoOptions, Invocation, KtoOptions, OrpoOptions, RewardOptions};
use burnish_data::Order;
use burnish_losses::PreferenceLoss;

/// What TRL 1.16's `DPOConfig` has of its own, or with another default.
const DPO: &str = r#"{"learning_rate": 1e-6, "model_init_kwargs": null, "trust_remote_code": false,
    "router_aux_loss_coef": null, "disable_dropout": true, "dataset_num_proc": null, "max_length": 1024,
    "truncation_mode": "keep_start", "padding_free": false, "pad_to_multiple_of": "auto",
    "precompute_ref_log_probs": false, "precompute_ref_batch_size": null, "loss_type": ["sigmoid"],
    "loss_weights": null, "ld_alpha": null, "f_divergence_type": "reverse_kl", "f_alpha_divergence_coef": 0.5,
    "label_smoothing": 0.0, "beta": 0.1, "use_weighting": false, "discopop_tau": 0.05,
    "activation_offloading": false, "sync_ref_model": false, "ref_model_mixup_alpha": 0.6,
    "ref_model_sync_steps": 512, "pad_token": null}"#;

/// The same of `KTOConfig`.
const KTO: &str = r#"{"learning_rate": 1e-6, "train_sampling_strategy": "sequential", "model_init_kwargs": null,
    "trust_remote_code": false, "router_aux_loss_coef": null, "disable_dropout": true, "dataset_num_proc": null,
    "max_length": 1024, "pad_to_multiple_of": "auto", "precompute_ref_log_probs": false,
    "precompute_ref_batch_size": null, "loss_type": "kto", "beta": 0.1, "desirable_weight": 1.0,
    "undesirable_weight": 1.0, "activation_offloading": false, "sync_ref_model": false,
    "ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 512}"#;

pub(crate) fn same_defaults<C: Command + PartialEq + std::fmt::Debug>(theirs: &str) {
    let theirs: serde_json::Map<String, serde_json::Value> = serde_json::from_str(theirs).unwrap();
    for (name, default) in theirs {
        let raw = Raw::from_json(&default.to_string()).unwrap();
        let mut options = C::default();
        match options.set(&name, &raw) {
            Some(read) => {
                read.unwrap_or_else(|m| panic!("{name}: expected {}", m.expected));
                assert_eq!(options, C::default(), "{name}");
            }
            None => {
                let translated = foreign::TRANSLATED.iter().any(|(names, _)| names.contains(&name.as_str()));
                let alias = foreign::ALIASES.iter().any(|(alias, _)| *alias == name);
                let known = foreign::all().find(|f| f.has(&name));
                assert!(translated || alias || known.is_some_and(|f| f.takes(&raw)), "{name}");
            }
        }
    }
}

#[test]
fn defaults_are_those_of_trl() {
    same_defaults::<DpoOptions>(DPO);
    same_defaults::<KtoOptions>(KTO);
}

#[test]
fn help_shows_the_defaults_of_the_command() {
    fn help<C: Command + std::fmt::Debug>(option: &str) -> String {
        match C::parse(["--help", option]) {
            Ok(Invocation::Help(text)) => text,
            other => panic!("{other:?}"),
        }
    }
    assert!(help::<DpoOptions>("learning_rate").contains("--learning_rate FLOAT [1e-6]"));
    let order = "--train_sampling_strategy random|sequential|group_by_length [sequential]";
    assert!(help::<KtoOptions>("train_sampling_strategy").contains(order));
    assert_eq!(KtoOptions::default().training.train_sampling_strategy, Order::Sequential);
}

/// Published configurations say it of every trainer; it speaks of losses over tokens.
#[test]
fn what_divides_a_loss_over_tokens_is_no_contradiction() {
    let words = ["--model_name_or_path=.", "--dataset_name=.", "--no_average_tokens_across_devices"];
    let options = DpoOptions::parse(words).unwrap().run().unwrap().options;
    assert!(!options.training.average_tokens_across_devices);
}

/// TRL's trainers of these names know no auxiliary loss of routers, but where a configuration asks for their logits.
#[test]
fn routers_are_balanced_by_default_where_trl_does() {
    let by_default = [
        DpoOptions::default().training.router_aux_loss_coef,
        KtoOptions::default().training.router_aux_loss_coef,
    ];
    assert_eq!(by_default, [None; 2]);
    let without = [
        RewardOptions::default().training.router_aux_loss_coef,
        CpoOptions::default().training.router_aux_loss_coef,
        OrpoOptions::default().training.router_aux_loss_coef,
    ];
    assert_eq!(without, [Some(0.0); 3]);
}

#[test]
fn losses_are_words_and_lists() {
    let parse = |word: &str| {
        let words = ["--model_name_or_path=.", "--dataset_name=.", word];
        DpoOptions::parse(words).unwrap().run().unwrap().options.loss.loss_type
    };
    assert_eq!(parse("--loss_type=ipo"), [PreferenceLoss::Ipo]);
    assert_eq!(
        parse("--loss_type=sigmoid,bco_pair,sft"),
        [PreferenceLoss::Sigmoid, PreferenceLoss::BcoPair, PreferenceLoss::Sft]
    );
    assert_eq!(parse(r#"--loss_type=["sigmoid", "sft"]"#), [PreferenceLoss::Sigmoid, PreferenceLoss::Sft]);
}

#[test]
fn contradictions() {
    let check = |words: &[&str], part: &str| {
        let all = ["--model_name_or_path=.", "--dataset_name=."].iter().chain(words);
        let said = DpoOptions::parse(all.copied()).unwrap_err().to_string();
        assert!(said.contains(part), "missing `{part}` in {said}");
    };
    check(&["--loss_type=mse"], "loss_type: expected a list of sigmoid, hinge");
    check(&["--loss_type="], "loss_type: expected a list");
    check(&["--beta=0"], "beta");
    check(&["--loss_type=exo_pair"], "set label_smoothing above 0");
    check(&["--loss_type=robust", "--label_smoothing=0.5"], "set label_smoothing below 0.5");
    check(&["--loss_weights=1,2"], "one weight per loss");
    check(&["--f_divergence_type=forward_kl", "--loss_type=bco_pair"], "use reverse_kl with it");
    check(&["--use_weighting", "--loss_type=aot"], "keep one of the two");
    check(&["--ld_alpha=2"], "from 0 to 1");
    check(&["--ref_model_name_or_path=./none/such"], "ref_model_name_or_path: no folder at");
    check(&["--sync_ref_model", "--use_peft"], "train the whole model");
    check(&["--sync_ref_model", "--precompute_ref_log_probs"], "keep one of the two");
    check(&["--completion_only_loss=true"], "is an option of `burnish sft`");
}
