//! Options mean what their owners say: same defaults, and rules that are the owners'.

use burnish_config::groups::{
    DpoLossOptions, GrpoLossOptions, KtoLossOptions, MuonOptions, PackingOptions, RankOptions,
    RlooLossOptions, RolloutOptions, TrainingOptions,
};
use burnish_config::{Command, DpoOptions, GrpoOptions};
use burnish_core::Compute;
use burnish_losses::{
    AdaptiveEntropy, DpoOptions as DpoLoss, GrpoAdvantages, GrpoOptions as GrpoLoss, KtoOptions as KtoLoss,
    Rloo, RlooAdvantages, SamplerCorrection,
};
use burnish_optim::{AdamWOptions, MuonOptions as Muon, OptimizerName};

/// Options that are not written are what the owner does without options.
#[test]
fn defaults_are_the_owners() {
    assert_eq!(DpoLoss::from(&DpoLossOptions::default()), DpoLoss::default());
    assert_eq!(KtoLoss::from(&KtoLossOptions::default()), KtoLoss::default());
    let (grpo, length) = (GrpoLossOptions::default(), RolloutOptions::default().max_completion_length);
    assert_eq!(grpo.objective(length), GrpoLoss::default());
    assert_eq!(grpo.advantages(), GrpoAdvantages::default());
    assert_eq!(grpo.sampler_correction().unwrap(), Some(SamplerCorrection::default()));
    assert_eq!(grpo.entropy_control().unwrap(), None);
    let adaptive = GrpoLossOptions { use_adaptive_entropy: true, ..grpo };
    assert_eq!(adaptive.adaptive_entropy(), Some(AdaptiveEntropy::default()));
    let rloo = RlooLossOptions::default();
    assert_eq!((rloo.loss().unwrap(), rloo.advantages()), (Rloo::default(), RlooAdvantages::default()));
    let training = TrainingOptions { optim: OptimizerName::Muon, seed: 0, ..TrainingOptions::default() };
    assert_eq!(training.adamw(), AdamWOptions::default());
    assert_eq!(MuonOptions::default().muon(&training, Compute::Fp32), Some(Muon::default()));
    assert_eq!(MuonOptions::default().muon(&TrainingOptions::default(), Compute::Bf16), None);
    let narrow = MuonOptions::default().muon(&training, Compute::Bf16).unwrap();
    assert_eq!(narrow.newton_schulz.compute, Compute::Bf16);
    assert_eq!(PackingOptions::default().strategy(true), Some(burnish_data::Strategy::default()));
    assert_eq!(RankOptions::default().policy().stage, burnish_zero::Stage::default());
}

/// A rule of an owner is reported where the option was written, with all others, once.
#[test]
fn rules_of_owners_are_reported_together() {
    let words = ["--model_name_or_path=.", "--dataset_name=."];
    let faults = |said: Result<_, burnish_config::ConfigError>| {
        said.unwrap_err().faults.iter().map(ToString::to_string).collect()
    };
    let more = [
        "--beta=0",
        "--loss_type=exo_pair,robust",
        "--label_smoothing=0",
        "--loss_weights=1",
        "--adam_beta1=1",
    ];
    let said: Vec<String> = faults(DpoOptions::parse(words.iter().chain(&more).copied()).map(drop));
    assert_eq!(
        said,
        [
            "command line: adam_beta1: expected a number from 0 to below 1, got 1.0",
            "command line: beta: expected a number above 0, got 0.0",
            "command line: loss_type: [\"exo_pair\", \"robust\"] does not go with label_smoothing: 0; set label_smoothing \
             above 0, whose logarithm it takes; its paper has 1e-3",
            "command line: loss_weights: [1.0] does not go with loss_type: [\"exo_pair\", \"robust\"]; give one weight per \
             loss, or leave loss_weights out",
        ]
    );
    let more = [
        "--loss_type=dr_grpo",
        "--max_completion_length=0",
        "--vespo_k_neg=-1",
        "--vllm_importance_sampling_clip_min=4",
    ];
    let said: Vec<String> = faults(GrpoOptions::parse(words.iter().chain(&more).copied()).map(drop));
    assert_eq!(
        said,
        [
            "command line: max_completion_length: expected a whole number that is at least 1, got 0",
            "command line: vespo_k_neg: expected a number that is at least 0, got -1.0",
            "command line: vllm_importance_sampling_clip_min: 4.0 does not go with vllm_importance_sampling_clip_max: 3; \
             swap them or leave one out",
        ]
    );
}

/// A mode that needs bounds is refused where it corrects something.
#[test]
fn a_mode_without_bounds_counts_with_a_server() {
    let words =
        ["--model_name_or_path=.", "--dataset_name=.", "--vllm_importance_sampling_mode=token_truncate"];
    let more = ["--vllm_importance_sampling_clip_max=null", "--rollout_url=http://localhost:8000/v1"];
    let parse = |more: &[&str]| GrpoOptions::parse(words.iter().chain(more).copied());
    assert!(parse(&more[..1]).is_ok());
    let said = parse(&more).unwrap_err().to_string();
    assert!(said.contains("vllm_importance_sampling_mode: \"token_truncate\" does not go with"), "{said}");
}
