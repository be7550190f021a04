//! Options that make no sense are refused with the mend.

use burnish_losses::{
    Divergence, Dpo, DpoOptions, Grpo, GrpoOptions, ImportanceLevel, Kto, KtoLoss, KtoOptions, Labelled,
    Pair, PairCounts, PolicyLoss, PolicyStep, PreferenceLoss, Reward, Rloo, Rollout, VespoOptions,
};
use burnish_ops::TokenStats;

fn dpo(change: impl FnOnce(&mut DpoOptions)) -> String {
    let mut options = DpoOptions::default();
    change(&mut options);
    Dpo::new(options).unwrap_err().to_string()
}

#[test]
fn preference_options() {
    let with = |loss| move |o: &mut DpoOptions| o.loss_type = vec![loss];
    assert_eq!(
        dpo(with(PreferenceLoss::ExoPair)),
        "`label_smoothing` is 0; use a number above 0 with the loss `exo_pair`, which takes its logarithm; 1e-3 is its \
         paper's"
    );
    assert_eq!(
        dpo(|o| (o.loss_type, o.label_smoothing) = (vec![PreferenceLoss::Robust], 0.5)),
        "`label_smoothing` is 0.5; use less than 0.5 with the loss `robust`, which divides by 1 - 2 label_smoothing"
    );
    assert_eq!(
        dpo(|o| (o.loss_type, o.f_divergence_type) = (vec![PreferenceLoss::ApoZero], Divergence::Js)),
        "`f_divergence_type` `js_divergence` has no form of the loss `apo_zero`; use `reverse_kl` with it, or only \
         sigmoid, sigmoid_norm, hinge, ipo, exo_pair, robust, discopop or sft"
    );
    assert_eq!(
        dpo(|o| o.loss_weights = Some(vec![1.0, 2.0])),
        "`loss_weights` has 2 values for 1 losses in `loss_type`; give one per loss or leave it out"
    );
    assert_eq!(
        dpo(|o| (o.loss_type, o.use_weighting) = (vec![PreferenceLoss::Aot], true)),
        "`use_weighting` weighs pairs, which `aot`, `aot_unpaired` and `kto_pair` take apart; turn it off or use another \
         `loss_type`"
    );
    assert!(dpo(|o| o.loss_type.clear()).contains("`loss_type` is empty"));
    assert!(dpo(|o| o.beta = 0.0).starts_with("`beta` is 0"));
    assert!(dpo(|o| o.beta = f64::NAN).starts_with("`beta` is NaN"));
    assert!(dpo(|o| o.label_smoothing = 1.0).starts_with("`label_smoothing` is 1"));
    assert!(dpo(|o| o.ld_alpha = Some(1.5)).starts_with("`ld_alpha` is 1.5"));
    assert!(dpo(|o| o.loss_weights = Some(vec![f64::INFINITY])).starts_with("`loss_weights` is inf"));
    assert!(
        dpo(|o| (o.loss_type, o.discopop_tau) = (vec![PreferenceLoss::Discopop], 0.0))
            .contains("discopop_tau")
    );
    let unknown = "dpo".parse::<PreferenceLoss>().unwrap_err().to_string();
    assert!(
        unknown.starts_with("`loss_type`: unknown value `dpo`; use one of sigmoid, hinge, "),
        "{unknown}"
    );
    assert!("kl".parse::<Divergence>().is_err());
    for loss in PreferenceLoss::ALL {
        assert_eq!(loss.name().parse::<PreferenceLoss>().unwrap(), loss);
    }
}

#[test]
fn other_options() {
    assert!(Reward::new(Some(-0.1)).is_err());
    assert!(Kto::new(KtoOptions { beta: -0.1, ..KtoOptions::default() }).is_err());
    assert!(Kto::new(KtoOptions { desirable_weight: f64::NAN, ..KtoOptions::default() }).is_err());
    assert!("sigmoid".parse::<KtoLoss>().unwrap_err().to_string().contains("apo_zero_unpaired"));
    assert!(Rloo::new(-0.2, None).is_err());
    assert!(Rloo::new(0.2, Some(f64::NAN)).is_err());

    let refuse = |change: fn(&mut GrpoOptions)| {
        let mut options = GrpoOptions::default();
        change(&mut options);
        Grpo::new(options).unwrap_err().to_string()
    };
    assert!(refuse(|o| o.beta = -1.0).contains("`beta`"));
    assert!(refuse(|o| o.epsilon = f64::NAN).contains("`epsilon`"));
    assert!(refuse(|o| o.epsilon_high = Some(-1.0)).contains("`epsilon_high`"));
    assert!(refuse(|o| o.delta = Some(0.0)).contains("1 + epsilon"));
    assert!(refuse(|o| o.top_entropy_quantile = 1.1).contains("from 0 to 1"));
    assert!(refuse(|o| o.sapo_temperature_neg = 0.0).contains("sapo_temperature_neg"));
    assert!(
        refuse(|o| o.vespo = VespoOptions { k_neg: -1.0, ..VespoOptions::default() }).contains("vespo_k_neg")
    );
    assert!(refuse(|o| (o.loss_type, o.max_completion_length) = (PolicyLoss::DrGrpo, 0)).contains("dr_grpo"));
    for loss in PolicyLoss::ALL {
        assert_eq!(loss.name().parse::<PolicyLoss>().unwrap(), loss);
    }
    assert!("gspo".parse::<PolicyLoss>().unwrap_err().to_string().contains("vespo"));
    assert!("word".parse::<ImportanceLevel>().is_err());
}

/// What a trainer may get wrong.
#[test]
fn inputs() {
    let stats = TokenStats { log_prob: vec![-1.0; 4], entropy: vec![0.5; 4], ..TokenStats::default() };
    let pair =
        |end| Pair { chosen: (0..2).into(), rejected: (2..end).into(), reference: [0.0; 2], matched: None };
    let counts = PairCounts { pairs: 1.0, chosen_targets: 2.0 };
    let plain = Dpo::new(DpoOptions::default()).unwrap();
    let message = |dpo: &Dpo, pair: Pair, counts| dpo.terms(&stats, &[pair], counts).unwrap_err().to_string();
    assert_eq!(
        message(&plain, pair(5), counts),
        "sequence 0: targets 2..5 of 4; sequences are ranges of the micro-batch's targets"
    );
    assert_eq!(
        message(&plain, pair(4), PairCounts { chosen_targets: 1.0, ..counts }),
        "targets of chosen completions: the step has 1, this micro-batch alone 2; count over all micro-batches and ranks"
    );
    let aot = Dpo::new(DpoOptions { loss_type: vec![PreferenceLoss::Aot], ..DpoOptions::default() }).unwrap();
    assert_eq!(
        message(&aot, pair(4), counts),
        "sequence 0 has no match, which `aot`, `aot_unpaired` and `kto_pair` compare it with; score the whole step without gradients \
         first and pass what `Dpo::matches` returns"
    );
    let weighted = Dpo::new(DpoOptions { use_weighting: true, ..DpoOptions::default() }).unwrap();
    assert!(message(&weighted, pair(4), counts).starts_with("log_sum_sq_probs: 0 values, expected 4"));

    let step = PolicyStep {
        sequences: 1.0,
        tokens: 4.0,
        generation_tokens: 4.0,
        part: 1.0,
        high_entropy: None,
        entropy_coef: None,
    };
    let grpo = |options: GrpoOptions, rollout: Rollout<'_>, step: PolicyStep| {
        Grpo::new(options).unwrap().terms(&stats, &[rollout], &step).unwrap_err().to_string()
    };
    let rollout = Rollout { targets: 0..4, ..Rollout::default() };
    assert_eq!(
        grpo(GrpoOptions { beta: 0.1, ..GrpoOptions::default() }, rollout.clone(), step),
        "sequence 0 has no reference log-probabilities, which `beta` above 0 needs; score it with the reference, or set \
         `beta` to 0"
    );
    assert_eq!(
        grpo(GrpoOptions::default(), Rollout { old: Some(&[0.0]), ..rollout.clone() }, step),
        "old log-probabilities: 1 values, expected 4; they belong to the same targets of the sequence"
    );
    let quantile = GrpoOptions { top_entropy_quantile: 0.5, ..GrpoOptions::default() };
    assert!(grpo(quantile, rollout.clone(), step).contains("Grpo::high_entropy"));
    assert!(
        grpo(GrpoOptions::default(), rollout, PolicyStep { generation_tokens: 3.0, ..step })
            .contains("generation")
    );

    let example = Labelled { completion: (3..9).into(), desirable: true, reference: 0.0 };
    let kto = Kto::new(KtoOptions::default()).unwrap();
    assert!(kto.terms(&stats, std::slice::from_ref(&example), 0.0, 1.0).is_err());
    assert!(kto.terms(&stats, &[example], 0.0, 0.0).is_err());
    assert!(kto.kl(&[1.0], &[]).is_err());
    let reward = Reward::new(None).unwrap();
    assert!(reward.terms(&[1.0], &[], None, 1.0).is_err());
    assert!(reward.terms(&[1.0], &[1.0], Some(&[]), 1.0).is_err());
    assert!(reward.terms(&[1.0], &[1.0], None, 0.0).is_err());
}
