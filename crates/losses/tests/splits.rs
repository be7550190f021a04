//! A step's loss is the sum of its parts: values, gradients and metrics, however the global batch is split into
//! micro-batches and ranks.

use std::ops::Range;

use burnish_losses::{
    Correction, Divergence, Dpo, DpoOptions, Grpo, GrpoOptions, HighEntropy, ImportanceLevel, Kto, KtoLoss,
    KtoOptions, Labelled, LossTerms, MetricSums, Pair, PairCounts, PolicyLoss, PolicyStep, PreferenceLoss,
    Reward, Rloo, Rollout, Sampled,
};
use burnish_ops::TokenStats;
use proptest::prelude::*;
use proptest::sample::subsequence;

/// Of f64 sums in another order.
const TOLERANCE: f64 = 1e-12;

/// A step of sequences with random facts.
#[derive(Clone, Debug)]
struct Step {
    stats: TokenStats,
    sequences: Vec<Range<usize>>,
    /// A few numbers per sequence and per target.
    per_sequence: Vec<f64>,
    old: Vec<f32>,
    reference: Vec<f32>,
    ratios: Vec<f64>,
}

impl Step {
    /// The part of it that has the sequences `part`.
    fn part(&self, part: Range<usize>) -> (TokenStats, Range<usize>) {
        let targets = self.sequences[part.start].start..self.sequences[part.end - 1].end;
        let s = &self.stats;
        let stats = TokenStats {
            log_prob: s.log_prob[targets.clone()].to_vec(),
            entropy: s.entropy[targets.clone()].to_vec(),
            log_sum_sq_probs: s.log_sum_sq_probs[targets.clone()].to_vec(),
            mean_logit: s.mean_logit[targets.clone()].to_vec(),
            is_top1: s.is_top1[targets.clone()].to_vec(),
        };
        (stats, targets)
    }
}

prop_compose! {
    /// `pairs` pairs: twice as many sequences.
    fn steps()(lengths in prop::collection::vec(0usize..6, 1..9))
        (
            facts in prop::collection::vec(
                ((-4.0f32..-0.01), (0.0f32..3.0), (-3.0f32..-0.1), (-1.0f32..1.0), any::<bool>(),
                 (-0.6f32..0.6), (-0.6f32..0.6), (0.2f64..2.0)),
                2 * lengths.iter().sum::<usize>(),
            ),
            per_sequence in prop::collection::vec(-2.0f64..2.0, 2 * lengths.len()),
            lengths in Just(lengths),
        ) -> Step
    {
        let mut end = 0;
        let both = lengths.iter().copied().zip(lengths.iter().rev().copied());
        let sequences = both.flat_map(|(a, b)| [a, b]).map(|n| { end += n; end - n..end }).collect();
        Step {
            stats: TokenStats {
                log_prob: facts.iter().map(|f| f.0).collect(),
                entropy: facts.iter().map(|f| f.1).collect(),
                log_sum_sq_probs: facts.iter().map(|f| f.2).collect(),
                mean_logit: facts.iter().map(|f| f.3).collect(),
                is_top1: facts.iter().map(|f| f.4).collect(),
            },
            sequences,
            per_sequence,
            old: facts.iter().map(|f| f.0 + f.5).collect(),
            reference: facts.iter().map(|f| f.0 + f.6).collect(),
            ratios: facts.iter().map(|f| f.7).collect(),
        }
    }
}

/// Cuts among `units`, as ranges that cover them.
fn cut(units: usize, cuts: &[prop::sample::Index]) -> Vec<Range<usize>> {
    let mut at: Vec<usize> = cuts.iter().map(|c| c.index(units)).chain([0, units]).collect();
    at.sort_unstable();
    at.dedup();
    at.windows(2).map(|w| w[0]..w[1]).collect()
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..5)
}

/// Adds up parts, whose gradients are `[2, targets]` of their own targets.
fn added(parts: Vec<LossTerms>) -> LossTerms {
    let mut all = LossTerms::default();
    let mut halves = [Vec::new(), Vec::new()];
    for part in parts {
        all.value += part.value;
        halves[0].extend_from_slice(part.log_prob_gradient());
        halves[1].extend_from_slice(part.entropy_gradient());
        all.tally.merge(&part.tally);
    }
    all.gradient = halves.concat();
    all
}

fn assert_equal(mut parts: LossTerms, mut whole: LossTerms) -> Result<(), TestCaseError> {
    let near = |a: f64, b: f64| (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(1.0);
    prop_assert!(near(parts.value, whole.value), "{} is not {}", parts.value, whole.value);
    // The same arithmetic per element, so the same bits.
    prop_assert_eq!(&parts.gradient, &whole.gradient);
    parts.tally.settle();
    whole.tally.settle();
    let list = |t: &MetricSums| t.means().map(|(n, v)| (n.to_owned(), v)).collect::<Vec<_>>();
    let (parts, whole) = (list(&parts.tally), list(&whole.tally));
    prop_assert_eq!(parts.len(), whole.len());
    for ((name, got), (other, want)) in parts.into_iter().zip(whole) {
        prop_assert_eq!(&name, &other);
        prop_assert!(near(got, want), "{}: {} is not {}", name, got, want);
    }
    Ok(())
}

/// A step of twice the counts has half the loss: denominators are the step's, not constants.
fn assert_halves(twice: &LossTerms, once: &LossTerms) -> Result<(), TestCaseError> {
    let near = |a: f64, b: f64| (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(1.0);
    prop_assert!(near(2.0 * twice.value, once.value), "{} is not half of {}", twice.value, once.value);
    // A division by twice as much is exact, but for what is too small to have all its digits.
    let full = |gradient: f32| if gradient.abs() < f32::MIN_POSITIVE { 0.0 } else { gradient };
    let halved: Vec<f32> = once.gradient.iter().map(|g| full(g / 2.0)).collect();
    prop_assert_eq!(twice.gradient.iter().map(|&g| full(g)).collect::<Vec<_>>(), halved);
    Ok(())
}

fn preference() -> impl Strategy<Value = DpoOptions> {
    let losses = subsequence(PreferenceLoss::ALL.to_vec(), 1..4);
    let divergences = prop::sample::select(vec![
        Divergence::ReverseKl,
        Divergence::ForwardKl,
        Divergence::Js,
        Divergence::Alpha,
    ]);
    (losses, divergences, prop::option::of(0.0f64..1.0), any::<bool>(), 0.01f64..0.4).prop_map(
        |(loss_type, divergence, ld_alpha, weighting, label_smoothing)| {
            let any_divergence = loss_type.iter().all(|l| l.takes_divergence());
            let sorts = loss_type.iter().any(|l| l.compares());
            DpoOptions {
                loss_weights: Some((0..loss_type.len()).map(|k| 0.5 + k as f64).collect()),
                f_divergence_type: if any_divergence { divergence } else { Divergence::ReverseKl },
                use_weighting: weighting && !sorts,
                loss_type,
                ld_alpha,
                label_smoothing,
                ..DpoOptions::default()
            }
        },
    )
}

fn policy() -> impl Strategy<Value = GrpoOptions> {
    (
        prop::sample::select(PolicyLoss::ALL.to_vec()),
        any::<bool>(),
        prop::sample::select(vec![0.0, 0.04]),
        any::<bool>(),
        prop::option::of(1.0f64..2.0),
        prop::option::of(-0.3f64..0.3),
        prop::sample::select(vec![1.0, 0.8, 0.3, 0.0]),
    )
        .prop_map(|(loss_type, sequence, beta, unbiased, delta, off_policy, quantile)| GrpoOptions {
            loss_type,
            importance_sampling_level: if sequence {
                ImportanceLevel::Sequence
            } else {
                ImportanceLevel::Token
            },
            beta,
            use_bias_correction_kl: unbiased,
            delta,
            off_policy_mask_threshold: off_policy,
            top_entropy_quantile: quantile,
            max_completion_length: 7,
            ..GrpoOptions::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn dpo(step in steps(), options in preference(), cuts in cuts()) {
        let dpo = Dpo::new(options).unwrap();
        let sides: Vec<_> =
            step.sequences.chunks(2).map(|s| [s[0].clone(), s[1].clone()]).collect();
        let references: Vec<_> = sides
            .iter()
            .map(|[c, r]| dpo.sums(&step.reference[c.clone()], &step.reference[r.clone()]))
            .collect();
        let pairs = crate::dpo::pairs(&dpo, &step.stats, &sides, &references);
        let counts = PairCounts {
            pairs: pairs.len() as f64,
            chosen_targets: sides.iter().map(|[c, _]| c.len()).sum::<usize>() as f64,
        };
        let whole = dpo.terms(&step.stats, &pairs, counts).unwrap();
        // Of one target half is still one: `max(1, targets)`.
        if counts.chosen_targets >= 1.0 {
            let more = PairCounts { pairs: 2.0 * counts.pairs, chosen_targets: 2.0 * counts.chosen_targets };
            assert_halves(&dpo.terms(&step.stats, &pairs, more).unwrap(), &whole)?;
        }
        let parts = cut(pairs.len(), &cuts).into_iter().map(|part| {
            let (stats, targets) = step.part(2 * part.start..2 * part.end);
            let shift = |r: &Range<usize>| (r.start - targets.start..r.end - targets.start).into();
            let moved: Vec<Pair> = pairs[part]
                .iter()
                .map(|p| Pair {
                    chosen: shift(&p.chosen.targets),
                    rejected: shift(&p.rejected.targets),
                    ..p.clone()
                })
                .collect();
            dpo.terms(&stats, &moved, counts).unwrap()
        });
        assert_equal(added(parts.collect()), whole)?;
    }

    #[test]
    fn kto(step in steps(), apo in any::<bool>(), cuts in cuts()) {
        let loss_type = if apo { KtoLoss::ApoZeroUnpaired } else { KtoLoss::Kto };
        let options =
            KtoOptions { loss_type, desirable_weight: 1.3, undesirable_weight: 0.7, ..KtoOptions::default() };
        let kto = Kto::new(options).unwrap();
        let examples = |range: Range<usize>, from: usize| -> Vec<Labelled> {
            range
                .map(|i| Labelled {
                    completion: (step.sequences[i].start - from..step.sequences[i].end - from).into(),
                    desirable: step.per_sequence[i] > 0.0,
                    reference: step.per_sequence[i] - 3.0,
                })
                .collect()
        };
        let n = step.sequences.len();
        let kl = kto.kl(&step.per_sequence, &vec![-0.5; n]).unwrap();
        let whole = kto.terms(&step.stats, &examples(0..n, 0), kl, n as f64).unwrap();
        assert_halves(&kto.terms(&step.stats, &examples(0..n, 0), kl, 2.0 * n as f64).unwrap(), &whole)?;
        let parts = cut(n, &cuts).into_iter().map(|part| {
            let (stats, targets) = step.part(part.clone());
            kto.terms(&stats, &examples(part, targets.start), kl, n as f64).unwrap()
        });
        assert_equal(added(parts.collect()), whole)?;
    }

    #[test]
    fn reward(
        rows in prop::collection::vec((-3.0f32..3.0, -3.0f32..3.0, 0.0f32..1.0), 1..12),
        center in prop::option::of(0.0f64..0.1),
        cuts in cuts(),
    ) {
        let reward = Reward::new(center).unwrap();
        let terms_of = |part: Range<usize>, pairs: f64| {
            let rows = &rows[part];
            let list = |f: fn(&(f32, f32, f32)) -> f32| rows.iter().map(f).collect::<Vec<_>>();
            let (chosen, rejected, margins) = (list(|r| r.0), list(|r| r.1), list(|r| r.2));
            reward.terms(&chosen, &rejected, Some(&margins), pairs).unwrap()
        };
        let terms = |part| terms_of(part, 12.0);
        assert_halves(&terms_of(0..rows.len(), 24.0), &terms(0..rows.len()))?;
        let parts = cut(rows.len(), &cuts).into_iter().map(terms).collect();
        assert_equal(added(parts), terms(0..rows.len()))?;
    }

    #[test]
    fn grpo(
        step in steps(),
        options in policy(),
        fresh in any::<bool>(),
        corrected in 0..3,
        bonus in prop::option::of(0.0f64..0.5),
        cuts in cuts(),
    ) {
        let grpo = Grpo::new(options).unwrap();
        let rollouts = |range: Range<usize>, from: usize| -> Vec<Rollout<'_>> {
            range
                .map(|i| {
                    let targets = step.sequences[i].clone();
                    Rollout {
                        advantage: step.per_sequence[i],
                        old: (!fresh).then(|| &step.old[targets.clone()]),
                        reference: Some(&step.reference[targets.clone()]),
                        sampling: None,
                        correction: match corrected {
                            0 => Correction::None,
                            1 => Correction::Sequence(0.8),
                            _ => Correction::Tokens(step.ratios[targets.clone()].to_vec()),
                        },
                        targets: targets.start - from..targets.end - from,
                    }
                })
                .collect()
        };
        let (n, tokens) = (step.sequences.len(), step.stats.log_prob.len() as f64);
        let counts = PolicyStep {
            sequences: n as f64,
            tokens,
            generation_tokens: 2.0 * tokens,
            part: 0.5,
            high_entropy: grpo.high_entropy(&step.stats.entropy),
            entropy_coef: bonus,
        };
        let whole = grpo.terms(&step.stats, &rollouts(0..n, 0), &counts).unwrap();
        if tokens >= 1.0 && counts.high_entropy.is_none_or(|h| h.tokens >= 1.0) {
            let more = PolicyStep {
                sequences: 2.0 * counts.sequences,
                tokens: 2.0 * counts.tokens,
                generation_tokens: 2.0 * counts.generation_tokens,
                high_entropy: counts.high_entropy.map(|h| HighEntropy { tokens: 2.0 * h.tokens, ..h }),
                ..counts
            };
            assert_halves(&grpo.terms(&step.stats, &rollouts(0..n, 0), &more).unwrap(), &whole)?;
        }
        let parts = cut(n, &cuts).into_iter().map(|part| {
            let (stats, targets) = step.part(part.clone());
            grpo.terms(&stats, &rollouts(part, targets.start), &counts).unwrap()
        });
        assert_equal(added(parts.collect()), whole)?;
    }

    #[test]
    fn rloo(step in steps(), cuts in cuts()) {
        let rloo = Rloo::new(0.2, Some(0.3)).unwrap();
        let sampled = |range: Range<usize>, from: usize| -> Vec<Sampled> {
            range
                .map(|i| {
                    let targets = step.sequences[i].clone();
                    Sampled {
                        advantage: step.per_sequence[i],
                        old: step.old[targets.clone()].iter().map(|&x| f64::from(x)).sum(),
                        targets: targets.start - from..targets.end - from,
                    }
                })
                .collect()
        };
        let n = step.sequences.len();
        let whole = rloo.terms(&step.stats, &sampled(0..n, 0), n as f64).unwrap();
        assert_halves(&rloo.terms(&step.stats, &sampled(0..n, 0), 2.0 * n as f64).unwrap(), &whole)?;
        let parts = cut(n, &cuts).into_iter().map(|part| {
            let (stats, targets) = step.part(part.clone());
            rloo.terms(&stats, &sampled(part, targets.start), n as f64).unwrap()
        });
        assert_equal(added(parts.collect()), whole)?;
    }
}
