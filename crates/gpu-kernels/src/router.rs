//! A router's choice: the best experts of each token with their weights, the gradient of logits, and sums of probabilities.

use burnish_core::{RouterRule, RouterScores};
use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::head_weights::sigmoid;
use crate::{row, sums};

/// Units that share a token at the most.
const LANES: usize = 32;
/// Experts that a unit has at the most.
const MOST: usize = 32;
/// Experts that a unit has where there are units enough.
const EACH: usize = 8;
/// Units of a cube.
const CUBE: usize = 128;
/// The widest vectors in which logits are read.
const WIDEST: usize = 4;
/// Sums of tokens that one launch sums up.
const PARTS: usize = 128;

/// Keeps a sum of weights from being zero.
const LEAST: f32 = 1e-20;

/// The sign of a number, and its place where numbers are in order: all with it clear are below all with it set.
const SIGN: u32 = 1 << 31;
/// Bits of what is infinite; above are those of what is no number.
const INFINITE: u32 = 0x7f80_0000;
/// Where the least of all numbers is in their order.
const LOWEST: u32 = !(SIGN | INFINITE);
/// No rank: an expert that is not chosen.
const UNCHOSEN: u32 = u32::MAX;

/// How units share the experts of tokens: each has vectors of one group, neighbours vectors beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Layout {
    experts: usize,
    groups: usize,
    /// Elements of a vector.
    size: usize,
    /// Units of a group, a power of two.
    beside: usize,
    /// Units of a token, a power of two.
    lanes: usize,
    /// Units of a cube.
    cube: usize,
    /// Whether those of a token hand each other numbers without shared memory.
    shuffled: bool,
}

impl Layout {
    fn new(client: &Client, experts: usize, groups: usize, buffers: &[&Buffer]) -> Self {
        assert!(
            fits(client, experts, groups),
            "invariant: {experts} experts in {groups} groups have a kernel"
        );
        let (group, padded) = (experts / groups, groups.next_power_of_two());
        let beside = group.div_ceil(EACH).next_power_of_two().min(LANES / padded);
        Self {
            experts,
            groups,
            size: vector(group, WIDEST, buffers),
            beside,
            lanes: beside * padded,
            cube: CUBE.min(row::most_units(client)),
            shuffled: row::shuffles(client, LANES),
        }
    }

    /// Experts of a group.
    fn group(self) -> usize {
        self.experts / self.groups
    }

    /// Vectors of a group.
    fn vectors(self) -> usize {
        self.group() / self.size
    }

    /// Vectors of a unit.
    fn turns(self) -> usize {
        self.vectors().div_ceil(self.beside)
    }

    /// Experts of a unit.
    fn each(self) -> usize {
        self.turns() * self.size
    }

    /// Tokens of a cube.
    fn tokens(self) -> usize {
        self.cube / self.lanes
    }

    fn cubes(self, client: &Client, tokens: usize) -> CubeCount {
        row::cubes(client, tokens.div_ceil(self.tokens()))
    }

    fn dim(self) -> CubeDim {
        CubeDim::new_1d(self.cube as u32)
    }
}

/// Whether there are units for so many groups of experts.
fn fits(client: &Client, experts: usize, groups: usize) -> bool {
    let padded = groups.next_power_of_two();
    groups > 0
        && experts > 0
        && experts.is_multiple_of(groups)
        && padded <= LANES
        && experts / groups * padded <= LANES * MOST
        && row::most_units(client) >= LANES
}

/// [`RouterScores`] without their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Scores {
    Softmax,
    Sigmoid,
    SigmoidByLogit,
    SparseMixer,
}

/// What the compiler knows of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    per_token: usize,
    scores: Scores,
    renormalise: bool,
    /// Groups that a token may choose from.
    kept: usize,
    /// Scores of a group that are summed.
    best: usize,
}

impl Form {
    /// With the distance at which an expert is near.
    fn new(rule: &RouterRule, experts: usize) -> (Self, f32) {
        let (scores, within) = match rule.scores {
            RouterScores::Softmax => (Scores::Softmax, 0.0),
            RouterScores::Sigmoid => (Scores::Sigmoid, 0.0),
            RouterScores::SigmoidByLogit => (Scores::SigmoidByLogit, 0.0),
            RouterScores::SparseMixer { within } => (Scores::SparseMixer, within),
        };
        let of = |groups: burnish_core::RouterGroups| {
            (groups.kept.min(groups.count), groups.best.min(experts / groups.count))
        };
        let (kept, best) = rule.groups.map_or((1, 1), of);
        (Self { per_token: rule.per_token, scores, renormalise: rule.renormalise, kept, best }, within)
    }
}

fn groups(rule: &RouterRule) -> usize {
    rule.groups.map_or(1, |groups| groups.count)
}

/// Whether [`choose_experts`] and [`choose_experts_backward`] do this: they do for up to 1024 experts in up to 32 groups, counted as if
/// the number of groups were the next power of two.
#[must_use]
pub fn chooses_experts(client: &Client, experts: usize, rule: &RouterRule) -> bool {
    (1..=experts).contains(&rule.per_token) && fits(client, experts, groups(rule))
}

/// Which experts each token goes to.
#[derive(Clone, Debug)]
pub struct RouterChoice {
    /// `[tokens, per_token]`, 32-bit integers: experts, the best first; of equal scores the one with the lower number.
    pub experts: Buffer,
    /// `[tokens, per_token]`, f32: what their outputs are multiplied by.
    pub weights: Buffer,
}

/// Of logits, checked: how many tokens there are.
fn tokens_of(logits: &Buffer, experts: usize) -> usize {
    assert!(experts > 0 && logits.len.is_multiple_of(experts), "invariant: logits are [tokens, experts]");
    logits.len / experts
}

/// The same of those that a rule is for.
fn tokens_by(client: &Client, logits: &Buffer, experts: usize, rule: &RouterRule) -> usize {
    let there = chooses_experts(client, experts, rule);
    assert!(there, "invariant: a rule for {experts} experts that has a kernel");
    tokens_of(logits, experts)
}

/// The experts of each token from its `logits` `[tokens, experts]`; `bias` `[experts]` in f32 is added to scores where experts are
/// compared, and not to weights. What is no number comes last.
///
/// One launch: `tokens (experts w_logits + 8 per_token)` bytes, `per_token` comparisons for each logit.
///
/// # Panics
/// If the buffers are not of these shapes, or [`chooses_experts`] says no.
#[must_use]
pub fn choose_experts(
    client: &Client,
    logits: &Buffer,
    bias: Option<&Buffer>,
    experts: usize,
    rule: &RouterRule,
) -> RouterChoice {
    let tokens = tokens_by(client, logits, experts, rule);
    let fits = |bias: &Buffer| (bias.len, bias.dtype) == (experts, FloatType::F32);
    assert!(bias.is_none_or(fits), "invariant: bias is [experts] in f32");
    let [chosen, weights] = [(); 2].map(|()| Buffer::empty(client, tokens * rule.per_token, FloatType::F32));
    if tokens > 0 {
        let all: Vec<&Buffer> = [logits].into_iter().chain(bias).collect();
        let layout = Layout::new(client, experts, groups(rule), &all);
        let (form, within) = Form::new(rule, experts);
        let nothing = Buffer::empty(client, WIDEST, FloatType::F32);
        choose::launch(
            client,
            layout.cubes(client, tokens),
            layout.dim(),
            address(&[logits]),
            layout.size,
            logits.arg(layout.size),
            bias.unwrap_or(&nothing).arg(layout.size),
            chosen.arg(1),
            weights.arg(1),
            tokens,
            rule.scale,
            within,
            layout,
            form,
            bias.is_some(),
            logits.dtype.elem(),
        );
    }
    RouterChoice { experts: chosen, weights }
}

/// The gradient of `logits`, in their dtype: from `dweights` `[tokens, per_token]` of the weights of `chosen` experts, and from `pull`
/// `[experts]`, the gradient of each expert's probability (softmax of the logits), the same for each token; both in f32.
///
/// One launch: `tokens (2 experts w_logits + 8 per_token)` bytes, `per_token` comparisons for each logit.
///
/// # Panics
/// If the buffers are not of these shapes, or [`chooses_experts`] says no.
#[must_use]
pub fn choose_experts_backward(
    client: &Client,
    logits: &Buffer,
    chosen: &Buffer,
    dweights: Option<&Buffer>,
    pull: Option<&Buffer>,
    experts: usize,
    rule: &RouterRule,
) -> Buffer {
    let tokens = tokens_by(client, logits, experts, rule);
    let count = tokens * rule.per_token;
    assert_eq!(chosen.len, count, "invariant: chosen is [tokens, per_token]");
    let fits = |buffer: Option<&Buffer>, len| {
        buffer.is_none_or(|buffer| (buffer.len, buffer.dtype) == (len, FloatType::F32))
    };
    assert!(fits(dweights, count), "invariant: dweights is [tokens, per_token] in f32");
    assert!(fits(pull, experts), "invariant: pull is [experts] in f32");
    let gradient = Buffer::empty(client, logits.len, logits.dtype);
    if tokens > 0 {
        let all: Vec<&Buffer> = [logits].into_iter().chain(pull).collect();
        let layout = Layout::new(client, experts, 1, &all);
        let (form, within) = Form::new(&RouterRule { groups: None, ..*rule }, experts);
        let nothing = Buffer::empty(client, WIDEST, FloatType::F32);
        choose_backward::launch(
            client,
            layout.cubes(client, tokens),
            layout.dim(),
            address(&[logits]),
            layout.size,
            logits.arg(layout.size),
            chosen.arg(1),
            dweights.unwrap_or(&nothing).arg(1),
            pull.unwrap_or(&nothing).arg(layout.size),
            gradient.arg(layout.size),
            tokens,
            rule.scale,
            within,
            layout,
            form,
            dweights.is_some(),
            pull.is_some(),
            logits.dtype.elem(),
        );
    }
    gradient
}

/// The sums over all tokens of experts' probabilities, the softmax of `logits` `[tokens, experts]`: `[experts]` in f32.
///
/// Two launches, the first over groups of successive tokens: `tokens experts w_logits` bytes, one exponential for each logit.
///
/// # Panics
/// If the logits are not of that shape, or of more than 1024 experts.
#[must_use]
pub fn probability_sums(client: &Client, logits: &Buffer, experts: usize) -> Buffer {
    let tokens = tokens_of(logits, experts);
    let layout = Layout::new(client, experts, 1, &[logits]);
    let parts = tokens.div_ceil(layout.tokens()).min(PARTS);
    let partial = Buffer::empty(client, parts * experts, FloatType::F32);
    if tokens > 0 {
        sum_probabilities::launch(
            client,
            row::cubes(client, parts),
            layout.dim(),
            address(&[logits, &partial]),
            layout.size,
            logits.arg(layout.size),
            partial.arg(1),
            tokens,
            parts,
            tokens.div_ceil(parts * layout.tokens()),
            layout,
            logits.dtype.elem(),
        );
    }
    sums::over_rows(client, &partial, experts)
}

/// Which of its token's units this is.
#[cube]
fn lane(#[comptime] layout: Layout) -> u32 {
    UNIT_POS % comptime!(layout.lanes as u32)
}

/// The group of this unit's experts.
#[cube]
fn group(#[comptime] layout: Layout) -> u32 {
    lane(layout) / comptime!(layout.beside as u32)
}

/// One of this unit's vectors, in its group.
#[cube]
fn of_group(#[comptime] turn: usize, #[comptime] layout: Layout) -> u32 {
    lane(layout) % comptime!(layout.beside as u32) + comptime!((turn * layout.beside) as u32)
}

/// Whether there is such a vector.
#[cube]
fn there(#[comptime] turn: usize, #[comptime] layout: Layout) -> bool {
    group(layout) < comptime!(layout.groups as u32)
        && of_group(turn, layout) < comptime!(layout.vectors() as u32)
}

/// Where it is in a row.
#[cube]
fn of_row(#[comptime] turn: usize, #[comptime] layout: Layout) -> u32 {
    group(layout) * comptime!(layout.vectors() as u32) + of_group(turn, layout)
}

/// One of this unit's experts.
#[cube]
fn expert(#[comptime] slot: usize, #[comptime] layout: Layout) -> u32 {
    of_row(comptime!(slot / layout.size), layout) * comptime!(layout.size as u32)
        + comptime!((slot % layout.size) as u32)
}

/// A number's place in the order of all, above 0; what is no number is where the least is.
#[cube]
fn place_of(x: f32) -> u32 {
    let bits = u32::reinterpret(x);
    let size = bits & comptime!(!SIGN);
    let place = select(bits >= SIGN, bits ^ comptime!(u32::MAX), bits | SIGN);
    let place = select(size == 0u32, SIGN, place);
    select(size > INFINITE, LOWEST, place)
}

/// The number at a place.
#[cube]
fn number_at(place: u32) -> f32 {
    f32::reinterpret(select(place >= SIGN, place ^ SIGN, place ^ comptime!(u32::MAX)))
}

/// Vectors of a row as numbers of each of a unit's experts, and their places in the order of all numbers, 0 for none.
#[cube]
fn read<E: Float, N: Size>(
    rows: &[Vector<E, N>],
    row: usize,
    values: &mut Array<f32>,
    places: &mut Array<u32>,
    #[comptime] layout: Layout,
) {
    let first = row * comptime!(layout.experts / layout.size);
    #[unroll]
    for turn in 0..comptime!(layout.turns()) {
        let there = there(turn, layout);
        let mut some = Vector::<f32, N>::new(0.0f32);
        if there {
            some = Vector::cast_from(rows[first + of_row(turn, layout) as usize]);
        }
        #[unroll]
        for k in 0..comptime!(layout.size) {
            let slot = comptime!(turn * layout.size + k);
            values[slot] = some.extract(k);
            places[slot] = select(there, place_of(some.extract(k)), 0u32);
        }
    }
}

/// The highest place over each group of so many neighbouring units, for all of the group, with the expert that is there: of equals
/// the one with the lower number.
#[cube]
fn best_of_units(
    place: u32,
    at: u32,
    shared: &mut Shared<[u32]>,
    #[comptime] units: usize,
    #[comptime] layout: Layout,
) -> (u32, u32) {
    let mut place = place;
    let mut at = at;
    if comptime!(layout.shuffled) {
        #[unroll]
        for level in 0..comptime!(units.ilog2()) {
            let distance = comptime!((units >> (level + 1)) as u32);
            let other = plane_shuffle_xor(place, distance);
            let other_at = plane_shuffle_xor(at, distance);
            let better = other > place || (other == place && other_at < at);
            place = select(better, other, place);
            at = select(better, other_at, at);
        }
    } else {
        let unit = UNIT_POS as usize;
        let of_group = unit % units;
        // Others may still read the best before.
        sync_cube();
        shared[unit] = place;
        shared[layout.cube + unit] = at;
        sync_cube();
        #[unroll]
        for level in 0..comptime!(units.ilog2()) {
            let half = comptime!(units >> (level + 1));
            if of_group < half {
                let other = shared[unit + half];
                let other_at = shared[layout.cube + unit + half];
                if other > place || (other == place && other_at < at) {
                    place = other;
                    at = other_at;
                    shared[unit] = other;
                    shared[layout.cube + unit] = other_at;
                }
            }
            sync_cube();
        }
        place = shared[unit - of_group];
        at = shared[layout.cube + unit - of_group];
    }
    (place, at)
}

/// The highest place over so many neighbouring units, with its expert.
#[cube]
fn best(
    places: &Array<u32>,
    shared: &mut Shared<[u32]>,
    #[comptime] units: usize,
    #[comptime] layout: Layout,
) -> (u32, u32) {
    let mut place = 0u32;
    let mut at = 0u32;
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        let better = places[slot] > place;
        place = select(better, places[slot], place);
        at = select(better, expert(slot, layout), at);
    }
    best_of_units(place, at, shared, units, layout)
}

#[cube]
fn copy_of(places: &Array<u32>, #[comptime] layout: Layout) -> Array<u32> {
    let mut copy = Array::<u32>::new(comptime!(layout.each()));
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        copy[slot] = places[slot];
    }
    copy
}

/// Takes an expert out.
#[cube]
fn remove(places: &mut Array<u32>, at: u32, #[comptime] layout: Layout) {
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        places[slot] = select(expert(slot, layout) == at, 0u32, places[slot]);
    }
}

/// What this unit has for an expert, else 0.
#[cube]
fn value_at(values: &Array<f32>, at: u32, #[comptime] layout: Layout) -> f32 {
    let mut value = 0.0f32;
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        value = select(expert(slot, layout) == at, values[slot], value);
    }
    value
}

/// The sum over a token's units.
#[cube]
fn sum(value: f32, shared: &mut Shared<[f32]>, #[comptime] layout: Layout) -> f32 {
    row::sum_of_groups(value, shared, comptime!(layout.lanes as u32), layout.shuffled)
}

/// The softmax of a token's `values` that have `places`; 0 for the others.
#[cube]
fn softmax(
    values: &Array<f32>,
    places: &Array<u32>,
    to: &mut Array<f32>,
    integers: &mut Shared<[u32]>,
    floats: &mut Shared<[f32]>,
    #[comptime] layout: Layout,
) {
    let top = number_at(best(places, integers, layout.lanes, layout).0);
    let mut own = 0.0f32;
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        to[slot] = select(places[slot] > 0u32, (values[slot] - top).exp(), 0.0f32);
        own += to[slot];
    }
    let each = 1.0f32 / sum(own, floats, layout);
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        to[slot] *= each;
    }
}

/// The probabilities that SparseMixer takes an expert by: of those near it that still have places.
#[cube]
fn near(
    values: &Array<f32>,
    places: &Array<u32>,
    at: u32,
    within: f32,
    to: &mut Array<f32>,
    integers: &mut Shared<[u32]>,
    floats: &mut Shared<[f32]>,
    #[comptime] layout: Layout,
) {
    let top = sum(value_at(values, at, layout), floats, layout);
    let mut those = Array::<u32>::new(comptime!(layout.each()));
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        let x = values[slot];
        let mut place = 0u32;
        if places[slot] > 0u32 {
            // What is no number is near, and shows.
            let far = (top - x) / max(x.abs(), top) > within;
            place = select(far, 0u32, place_of(x));
        }
        those[slot] = place;
    }
    softmax(values, &those, to, integers, floats, layout);
}

/// What a rule makes of logits.
#[cube]
fn scores_of(
    values: &Array<f32>,
    places: &Array<u32>,
    to: &mut Array<f32>,
    integers: &mut Shared<[u32]>,
    floats: &mut Shared<[f32]>,
    #[comptime] layout: Layout,
    #[comptime] form: Form,
) {
    if comptime!(form.scores == Scores::Softmax) {
        softmax(values, places, to, integers, floats, layout);
    } else {
        #[unroll]
        for slot in 0..comptime!(layout.each()) {
            // SparseMixer compares logits.
            if comptime!(form.scores == Scores::Sigmoid || form.scores == Scores::SigmoidByLogit) {
                to[slot] = sigmoid(values[slot]);
            } else {
                to[slot] = values[slot];
            }
        }
    }
}

/// Puts experts of all but the best groups where the least number is.
#[cube]
fn keep_groups(
    places: &mut Array<u32>,
    shared: &mut Shared<[u32]>,
    #[comptime] layout: Layout,
    #[comptime] form: Form,
) {
    let mut left = copy_of(&*places, layout);
    let mut sum = 0.0f32;
    for _turn in 0..comptime!(form.best) {
        let (place, at) = best(&left, shared, layout.beside, layout);
        sum += number_at(place);
        remove(&mut left, at, layout);
    }
    let group = group(layout);
    let mut place = select(group < comptime!(layout.groups as u32), place_of(sum), 0u32);
    for _turn in 0..comptime!(form.kept) {
        let at = best_of_units(place, group, shared, layout.lanes, layout).1;
        place = select(group == at, 0u32, place);
    }
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        places[slot] = select(place > 0u32, min(places[slot], LOWEST), places[slot]);
    }
}

/// A unit's token, if there is one.
#[cube]
fn token(#[comptime] layout: Layout) -> usize {
    CUBE_POS * comptime!(layout.tokens()) + UNIT_POS as usize / layout.lanes
}

#[cube(launch, address_type = "dynamic")]
fn choose<E: Float, N: Size>(
    logits: &[Vector<E, N>],
    bias: &[Vector<f32, N>],
    chosen: &mut [u32],
    weights: &mut [f32],
    tokens: usize,
    scale: f32,
    within: f32,
    #[comptime] layout: Layout,
    #[comptime] form: Form,
    #[comptime] biased: bool,
    #[define(E)] _of_logits: ElemType,
) {
    let each = comptime!(layout.each());
    let token = token(layout);
    let mut integers = Shared::<[u32]>::new_slice(comptime!(2 * layout.cube));
    let mut floats = Shared::<[f32]>::new_slice(layout.cube);
    let mut values = Array::<f32>::new(each);
    let mut places = Array::<u32>::new(each);
    read::<E, N>(logits, min(token, tokens - 1), &mut values, &mut places, layout);
    let mut scores = Array::<f32>::new(each);
    scores_of(&values, &places, &mut scores, &mut integers, &mut floats, layout, form);
    let mut added = Array::<f32>::new(each);
    let mut those = Array::<u32>::new(each);
    if comptime!(biased) {
        read::<f32, N>(bias, 0usize, &mut added, &mut those, layout);
    }
    let mut ranks = Array::<u32>::new(each);
    #[unroll]
    for slot in 0..each {
        let mut score = scores[slot];
        if comptime!(form.scores == Scores::SigmoidByLogit) {
            score = values[slot];
        }
        if comptime!(biased) {
            score += added[slot];
        }
        places[slot] = select(places[slot] > 0u32, place_of(score), 0u32);
        ranks[slot] = u32::new(comptime!(UNCHOSEN as i64));
    }
    if comptime!(layout.groups > 1) {
        keep_groups(&mut places, &mut integers, layout, form);
    }
    let mut probabilities = Array::<f32>::new(each);
    let mut own = 0.0f32;
    for rank in 0..comptime!(form.per_token as u32) {
        let at = best(&places, &mut integers, layout.lanes, layout).1;
        if comptime!(form.scores == Scores::SparseMixer) {
            near(&values, &places, at, within, &mut probabilities, &mut integers, &mut floats, layout);
        }
        #[unroll]
        for slot in 0..each {
            if expert(slot, layout) == at && places[slot] > 0u32 {
                ranks[slot] = rank;
                if comptime!(form.scores == Scores::SparseMixer) {
                    scores[slot] = probabilities[slot];
                }
                own += scores[slot];
            }
        }
        remove(&mut places, at, layout);
    }
    let mut factor = scale;
    if comptime!(form.renormalise && form.scores != Scores::SparseMixer) {
        factor /= at_least(sum(own, &mut floats, layout));
    }
    if token < tokens {
        #[unroll]
        for slot in 0..each {
            if ranks[slot] != UNCHOSEN {
                let to = token * form.per_token + ranks[slot] as usize;
                chosen[to] = expert(slot, layout);
                weights[to] = scores[slot] * factor;
            }
        }
    }
}

/// A sum of weights, or what keeps it from being zero.
#[cube]
fn at_least(sum: f32) -> f32 {
    select(sum > LEAST, sum, LEAST)
}

/// Adds to the gradient of logits what that of their softmax brings.
#[cube]
fn through_softmax(
    probabilities: &Array<f32>,
    d: &Array<f32>,
    to: &mut Array<f32>,
    shared: &mut Shared<[f32]>,
    #[comptime] layout: Layout,
) {
    let mut own = 0.0f32;
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        own += probabilities[slot] * d[slot];
    }
    let mean = sum(own, shared, layout);
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        to[slot] += probabilities[slot] * (d[slot] - mean);
    }
}

/// The gradient of a unit's scores from that of the weights of `chosen`.
#[cube]
fn of_scores(
    scores: &Array<f32>,
    places: &Array<u32>,
    chosen: &[u32],
    dweights: &[f32],
    first: usize,
    scale: f32,
    to: &mut Array<f32>,
    shared: &mut Shared<[f32]>,
    #[comptime] layout: Layout,
    #[comptime] form: Form,
) {
    let mut left = copy_of(places, layout);
    let mut own = 0.0f32;
    let mut dot = 0.0f32;
    for rank in 0..comptime!(form.per_token) {
        let (at, d) = (chosen[first + rank], dweights[first + rank]);
        #[unroll]
        for slot in 0..comptime!(layout.each()) {
            let is_it = expert(slot, layout) == at && left[slot] > 0u32;
            own += select(is_it, scores[slot], 0.0f32);
            dot += select(is_it, scores[slot] * d, 0.0f32);
            to[slot] = select(is_it, d, to[slot]);
            left[slot] = select(is_it, 0u32, left[slot]);
        }
    }
    let mut factor = scale;
    let mut mean = 0.0f32;
    if comptime!(form.renormalise) {
        let all = at_least(sum(own, shared, layout));
        mean = sum(dot, shared, layout) / all;
        factor /= all;
    }
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        let is_chosen = there(comptime!(slot / layout.size), layout) && left[slot] == 0u32;
        to[slot] = select(is_chosen, factor * (to[slot] - mean), 0.0f32);
    }
}

#[cube]
fn clear(to: &mut Array<f32>, #[comptime] layout: Layout) {
    #[unroll]
    for slot in 0..comptime!(layout.each()) {
        to[slot] = f32::new(0.0);
    }
}

#[cube(launch, address_type = "dynamic")]
fn choose_backward<E: Float, N: Size>(
    logits: &[Vector<E, N>],
    chosen: &[u32],
    dweights: &[f32],
    pull: &[Vector<f32, N>],
    gradient: &mut [Vector<E, N>],
    tokens: usize,
    scale: f32,
    within: f32,
    #[comptime] layout: Layout,
    #[comptime] form: Form,
    #[comptime] weighted: bool,
    #[comptime] pulled: bool,
    #[define(E)] _of_logits: ElemType,
) {
    let each = comptime!(layout.each());
    let token = token(layout);
    let row = min(token, tokens - 1);
    let first = row * form.per_token;
    let mut integers = Shared::<[u32]>::new_slice(comptime!(2 * layout.cube));
    let mut floats = Shared::<[f32]>::new_slice(layout.cube);
    let mut values = Array::<f32>::new(each);
    let mut places = Array::<u32>::new(each);
    read::<E, N>(logits, row, &mut values, &mut places, layout);
    let mut scores = Array::<f32>::new(each);
    let mut d = Array::<f32>::new(each);
    let mut to = Array::<f32>::new(each);
    clear(&mut d, layout);
    clear(&mut to, layout);
    let plain = comptime!(weighted && form.scores != Scores::SparseMixer);
    let by_softmax = comptime!(plain && form.scores == Scores::Softmax);
    if comptime!(plain) {
        scores_of(&values, &places, &mut scores, &mut integers, &mut floats, layout, form);
        of_scores(&scores, &places, chosen, dweights, first, scale, &mut d, &mut floats, layout, form);
        if comptime!(!by_softmax) {
            #[unroll]
            for slot in 0..each {
                to[slot] = d[slot] * scores[slot] * (1.0f32 - scores[slot]);
            }
            clear(&mut d, layout);
        }
    }
    if comptime!(pulled) {
        if comptime!(!by_softmax) {
            softmax(&values, &places, &mut scores, &mut integers, &mut floats, layout);
        }
        let mut added = Array::<f32>::new(each);
        let mut those = Array::<u32>::new(each);
        read::<f32, N>(pull, 0usize, &mut added, &mut those, layout);
        #[unroll]
        for slot in 0..each {
            d[slot] += added[slot];
        }
    }
    if comptime!(by_softmax || pulled) {
        through_softmax(&scores, &d, &mut to, &mut floats, layout);
    }
    if comptime!(weighted && form.scores == Scores::SparseMixer) {
        for rank in 0..comptime!(form.per_token) {
            let at = chosen[first + rank];
            let of_weight = scale * dweights[first + rank];
            near(&values, &places, at, within, &mut scores, &mut integers, &mut floats, layout);
            #[unroll]
            for slot in 0..each {
                d[slot] = select(expert(slot, layout) == at, of_weight, 0.0f32);
            }
            through_softmax(&scores, &d, &mut to, &mut floats, layout);
            remove(&mut places, at, layout);
        }
    }
    if token < tokens {
        #[unroll]
        for turn in 0..comptime!(layout.turns()) {
            if there(turn, layout) {
                let mut some = Vector::<f32, N>::new(0.0f32);
                #[unroll]
                for k in 0..comptime!(layout.size) {
                    some.insert(k, to[comptime!(turn * layout.size + k)]);
                }
                let line = token * comptime!(layout.experts / layout.size);
                gradient[line + of_row(turn, layout) as usize] = Vector::cast_from(some);
            }
        }
    }
}

/// Each cube sums over successive tokens: each unit's experts over those of some, then over the cube's.
#[cube(launch, address_type = "dynamic")]
fn sum_probabilities<E: Float, N: Size>(
    logits: &[Vector<E, N>],
    partial: &mut [f32],
    tokens: usize,
    parts: usize,
    turns: usize,
    #[comptime] layout: Layout,
    #[define(E)] _of_logits: ElemType,
) {
    let each = comptime!(layout.each());
    let of_cube = comptime!(layout.tokens());
    let unit = UNIT_POS as usize;
    let mut integers = Shared::<[u32]>::new_slice(comptime!(2 * layout.cube));
    let mut floats = Shared::<[f32]>::new_slice(layout.cube);
    let mut values = Array::<f32>::new(each);
    let mut places = Array::<u32>::new(each);
    let mut probabilities = Array::<f32>::new(each);
    let mut sums = Array::<f32>::new(each);
    clear(&mut sums, layout);
    for turn in 0..turns {
        let token = (CUBE_POS * turns + turn) * of_cube + unit / layout.lanes;
        read::<E, N>(logits, min(token, tokens - 1), &mut values, &mut places, layout);
        softmax(&values, &places, &mut probabilities, &mut integers, &mut floats, layout);
        #[unroll]
        for slot in 0..each {
            sums[slot] += select(token < tokens, probabilities[slot], 0.0f32);
        }
    }
    #[unroll]
    for slot in 0..each {
        sync_cube();
        floats[unit] = sums[slot];
        sync_cube();
        if unit < layout.lanes && CUBE_POS < parts && there(comptime!(slot / layout.size), layout) {
            let mut all = 0.0f32;
            for other in 0..of_cube {
                all += floats[other * layout.lanes + unit];
            }
            partial[CUBE_POS * layout.experts + expert(slot, layout) as usize] = all;
        }
    }
}
