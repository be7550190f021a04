//! Matches of a pair within its step: pairs of equal rank (alignment via optimal transport), or means of all (KTO over pairs).

use crate::dual::sigmoid;

/// A pair's summed log-probabilities, of the policy (in a first pass without gradients) and of the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PairSums {
    /// The policy's, of the chosen completion.
    pub chosen: f64,
    /// The policy's, of the rejected completion.
    pub rejected: f64,
    /// The reference's, of the chosen completion.
    pub reference_chosen: f64,
    /// The reference's, of the rejected completion.
    pub reference_rejected: f64,
}

/// What a pair is compared with, known before its own pass with gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Match {
    /// `aot`: the reference's margin of the rank that the pair's own margin has.
    pub reference_margin: Option<f64>,
    /// `aot_unpaired`: the rejected log-ratio of the rank of the pair's chosen one, and the chosen log-ratio of the rank
    /// of its rejected one.
    pub ratios: Option<(f64, f64)>,
    /// `kto_pair`: the step's mean log-ratios.
    pub divergences: Option<Divergences>,
}

/// The mean log-ratios of a step's pairs, no less than 0, and how the step's `kto_pair` hangs on them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Divergences {
    /// Of chosen completions.
    pub chosen: f64,
    /// Of rejected completions.
    pub rejected: f64,
    /// What the mean loss of all pairs gives each pair's log-ratios (chosen, rejected) through the means, times the number of
    /// pairs.
    pub pulls: [f64; 2],
}

fn divergences(all: &[PairSums], beta: f64) -> Divergences {
    let count = all.len().max(1) as f64;
    let mean = |of: &dyn Fn(&PairSums) -> f64| all.iter().map(of).sum::<f64>() / count;
    let (of_chosen, of_rejected) =
        (|p: &PairSums| p.chosen - p.reference_chosen, |p: &PairSums| p.rejected - p.reference_rejected);
    let means = [mean(&of_chosen), mean(&of_rejected)];
    let [chosen, rejected] = means.map(|mean| mean.max(0.0));
    // `S'(x) b / 2`, which a bound passes on where it does not bind.
    let steep = |x: f64| 0.5 * beta * sigmoid(beta * x) * sigmoid(-beta * x);
    let of = |mean: f64, slope: f64| if mean >= 0.0 { slope } else { 0.0 };
    let pulls = [
        of(means[0], -mean(&|p| steep(chosen - of_rejected(p)))),
        of(means[1], mean(&|p| steep(of_chosen(p) - rejected))),
    ];
    Divergences { chosen, rejected, pulls }
}

/// The matches of all pairs of a step, in their order.
pub(super) fn matches(all: &[PairSums], beta: f64) -> Vec<Match> {
    let divergences = Some(divergences(all, beta));
    let list = |f: fn(&PairSums) -> f64| -> Vec<f64> { all.iter().map(f).collect() };
    let margin = Ranked::new(list(|p| p.chosen - p.rejected));
    let reference = Ranked::new(list(|p| p.reference_chosen - p.reference_rejected));
    let chosen = Ranked::new(list(|p| p.chosen - p.reference_chosen));
    let rejected = Ranked::new(list(|p| p.rejected - p.reference_rejected));
    (0..all.len())
        .map(|pair| Match {
            reference_margin: Some(reference.sorted[margin.rank[pair]]),
            ratios: Some((rejected.sorted[chosen.rank[pair]], chosen.sorted[rejected.rank[pair]])),
            divergences,
        })
        .collect()
}

/// Values in ascending order, and the place of each; equal values keep their order.
struct Ranked {
    sorted: Vec<f64>,
    rank: Vec<usize>,
}

impl Ranked {
    fn new(values: Vec<f64>) -> Self {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
        let mut rank = vec![0; values.len()];
        for (place, &at) in order.iter().enumerate() {
            rank[at] = place;
        }
        Self { sorted: order.iter().map(|&at| values[at]).collect(), rank }
    }
}
