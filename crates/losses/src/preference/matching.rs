//! Alignment via optimal transport: what of equal rank in the step a pair is compared with.

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
}

/// The matches of all pairs of a step, in their order.
pub(super) fn matches(all: &[PairSums]) -> Vec<Match> {
    let list = |f: fn(&PairSums) -> f64| -> Vec<f64> { all.iter().map(f).collect() };
    let margin = Ranked::new(list(|p| p.chosen - p.rejected));
    let reference = Ranked::new(list(|p| p.reference_chosen - p.reference_rejected));
    let chosen = Ranked::new(list(|p| p.chosen - p.reference_chosen));
    let rejected = Ranked::new(list(|p| p.rejected - p.reference_rejected));
    (0..all.len())
        .map(|pair| Match {
            reference_margin: Some(reference.sorted[margin.rank[pair]]),
            ratios: Some((rejected.sorted[chosen.rank[pair]], chosen.sorted[rejected.rank[pair]])),
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
