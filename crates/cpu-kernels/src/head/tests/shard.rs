//! A head split over ranks equals the whole one.

use super::exact::{Problem, Store, all, problems, wanted};
use super::{assert_close, for_each_path, widen};
use crate::head::call::head_tile;
use crate::head::{
    HeadGrad, HeadStats, HeadWanted, VocabPart, VocabRows, head_backward, head_forward, head_fused,
};
use crate::{Linear, Weight};
use burnish_core::LinearPart::{self, Bias, LoraA, LoraB, LoraBBias};
use std::ops::Range;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Where the ranks of a test, threads, leave their parts and take those of all.
struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    round: usize,
    given: Vec<Option<Vec<VocabPart>>>,
    all: Vec<Vec<VocabPart>>,
}

impl Meeting {
    fn new(ranks: usize) -> Self {
        let state = State { round: 0, given: vec![None; ranks], all: vec![] };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn gather(&self, rank: usize, own: &[VocabPart]) -> Vec<Vec<VocabPart>> {
        let mut state = self.state.lock().unwrap();
        let round = state.round;
        assert!(state.given[rank].replace(own.to_vec()).is_none(), "rank {rank} came twice");
        if state.given.iter().all(Option::is_some) {
            state.all = state.given.iter_mut().map(|p| p.take().unwrap()).collect();
            state.round += 1;
            self.changed.notify_all();
        }
        let wait = Duration::from_secs(60);
        let (state, late) = self.changed.wait_timeout_while(state, wait, |s| s.round == round).unwrap();
        assert!(!late.timed_out(), "rank {rank}: a rank is missing in round {round}");
        // A rank that is ahead waits for this one before the next round replaces the result.
        state.all.clone()
    }
}

/// The whole vocabulary's statistics in f64, in the order of the ranks.
fn fold(targets: &[u32], rows: &[Range<usize>], all: &[Vec<VocabPart>], smoothing: f64) -> HeadStats {
    let mut s = HeadStats::default();
    let vocab = rows.last().unwrap().end;
    for (i, &target) in targets.iter().enumerate() {
        let parts: Vec<VocabPart> = all.iter().map(|p| p[i]).collect();
        let owner = rows.iter().position(|r| r.contains(&(target as usize))).unwrap();
        let own = parts[owner].target;
        let top = parts.iter().fold(f32::NEG_INFINITY, |m, p| m.max(p.top));
        let sum_of = |f: &dyn Fn(&VocabPart, f64, f64) -> f64| -> f64 {
            let term = |p: &VocabPart| {
                let d = f64::from(p.top) - f64::from(top);
                f(p, d, d.exp())
            };
            parts.iter().map(term).sum()
        };
        let log_sum = sum_of(&|p, _, e| f64::from(p.sum) * e).ln();
        let log_z = f64::from(top) + log_sum;
        let weighted = sum_of(&|p, d, e| e * (d.max(-200.0) * f64::from(p.sum) + f64::from(p.weighted)));
        let squares = sum_of(&|p, _, e| f64::from(p.squares) * e * e);
        let mean = sum_of(&|p, _, _| f64::from(p.total)) / vocab as f64;
        let spread = if smoothing > 0.0 { smoothing * (mean - log_z) } else { 0.0 };
        s.log_prob.push(((1.0 - smoothing) * (f64::from(own) - log_z) + spread) as f32);
        s.entropy.push((log_sum - weighted / log_sum.exp()) as f32);
        s.log_sum_sq_probs.push((squares.ln() - 2.0 * log_sum) as f32);
        s.mean_logit.push(mean as f32);
        s.log_z.push(log_z as f32);
        let earlier = parts[..owner].iter().all(|p| p.top < own);
        s.is_top1.push(parts[owner].target_is_first && own == top && earlier);
    }
    s
}

/// What a rank makes: statistics of each path, gradients of each.
type Made = (HeadStats, HeadGrad, HeadStats, HeadGrad);

fn part_of<'a, T>(all: &'a [T], v: &Range<usize>, width: usize) -> &'a [T] {
    if all.is_empty() { all } else { &all[v.start * width..v.end * width] }
}

/// Forward with backward, then both in one pass, on every rank; and the tokens of each combination.
fn split(p: &Problem, counts: &[usize], g_h: Option<&[f32]>, wanted: &HeadWanted) -> (Vec<Made>, Vec<usize>) {
    let rows: Vec<Range<usize>> = counts
        .iter()
        .scan(0, |at, &n| {
            *at += n;
            Some(*at - n..*at)
        })
        .collect();
    assert_eq!(rows.last().unwrap().end, p.vocab);
    let meeting = Meeting::new(counts.len());
    let rounds = Mutex::new(vec![]);
    let isa = crate::isa();
    let rank_of = |rank: usize| -> Made {
        let combine = |targets: &[u32], own: &[VocabPart]| {
            if rank == 0 {
                rounds.lock().unwrap().push(own.len());
            }
            fold(targets, &rows, &meeting.gather(rank, own), p.options.label_smoothing.into())
        };
        let v = rows[rank].clone();
        let shard = VocabRows {
            first: v.start,
            vocab: p.vocab,
            widest: *counts.iter().max().unwrap(),
            combine: &combine,
        };
        let whole = p.head();
        let weight = match whole.weight {
            Weight::F32(w) => Weight::F32(part_of(w, &v, p.dim)),
            Weight::Bf16(w) => Weight::Bf16(part_of(w, &v, p.dim)),
            Weight::F16(w) => Weight::F16(part_of(w, &v, p.dim)),
            Weight::Packed(_) => unreachable!("problems are dense"),
        };
        let low_rank = whole.low_rank.map(|mut low| {
            low.b = part_of(low.b, &v, p.rank);
            low.b_bias = low.b_bias.map(|b| part_of(b, &v, 1));
            low
        });
        let bias = whole.bias.map(|b| part_of(b, &v, 1));
        let (out, shard) = (v.len(), Some(&shard));
        let head = Linear { out, weight, bias, low_rank, compute: whole.compute };
        crate::with_isa(isa, || {
            let s = head_forward(&p.hidden, &head, shard, &p.targets, &p.options);
            let g = head_backward(&p.hidden, &head, shard, &p.targets, &p.options, &s, &p.g_lp, g_h, wanted);
            let c = |row: usize, lp: f32| p.g_lp[row] * (1.0 + 0.1 * lp);
            let (s2, g2) = head_fused(&p.hidden, &head, shard, &p.targets, &p.options, &c, wanted);
            (s, g, s2, g2)
        })
    };
    let made = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..counts.len()).map(|r| scope.spawn(move || rank_of(r))).collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    (made, rounds.into_inner().unwrap())
}

fn check_stats(got: &HeadStats, want: &HeadStats, label: &str) {
    for (name, got, want) in [
        ("log_prob", &got.log_prob, &want.log_prob),
        ("entropy", &got.entropy, &want.entropy),
        ("log_sum_sq", &got.log_sum_sq_probs, &want.log_sum_sq_probs),
        ("mean_logit", &got.mean_logit, &want.mean_logit),
        ("log_z", &got.log_z, &want.log_z),
    ] {
        assert_close(&format!("{name}, {label}"), got, &widen(want), 2e-6);
    }
    assert_eq!(got.is_top1, want.is_top1, "is_top1, {label}");
}

/// Gradients of rows lie side by side, the others add up.
fn check_grads(got: &[&HeadGrad], want: &HeadGrad, label: &str) {
    type Field = fn(&HeadGrad) -> Option<&Vec<f32>>;
    let fields: [(&str, bool, Field); 6] = [
        ("hidden", true, |g| g.hidden.as_ref()),
        ("a", true, |g| g.parts.found(LoraA)),
        ("weight", false, |g| g.parts.weight.as_ref()),
        ("bias", false, |g| g.parts.found(Bias)),
        ("b", false, |g| g.parts.found(LoraB)),
        ("b_bias", false, |g| g.parts.found(LoraBBias)),
    ];
    for (name, added, field) in fields {
        let name = format!("{name}, {label}");
        let parts: Vec<&Vec<f32>> = got.iter().filter_map(|g| field(g)).collect();
        let Some(want) = field(want) else {
            assert!(parts.is_empty(), "{name}");
            continue;
        };
        assert_eq!(parts.len(), got.len(), "{name}");
        let whole: Vec<f32> = if added {
            (0..want.len()).map(|i| parts.iter().map(|p| p[i]).sum()).collect()
        } else {
            parts.into_iter().flatten().copied().collect()
        };
        assert_close(&name, &whole, &widen(want), 3e-6);
    }
}

fn check(p: &Problem, counts: &[usize], g_h: Option<&[f32]>, wanted: &HeadWanted) {
    let label = format!("{}, split {counts:?}", p.label());
    let (made, _) = split(p, counts, g_h, wanted);
    let stats = p.forward();
    let grad = p.backward(&stats, g_h, wanted);
    let (of_fused, fused) = p.fused(wanted);
    for m in &made {
        assert_eq!((&m.0, &m.2), (&made[0].0, &made[0].2), "the ranks differ, {label}");
    }
    check_stats(&made[0].0, &stats, &label);
    check_stats(&made[0].2, &of_fused, &label);
    check_grads(&made.iter().map(|m| &m.1).collect::<Vec<_>>(), &grad, &format!("backward, {label}"));
    check_grads(&made.iter().map(|m| &m.3).collect::<Vec<_>>(), &fused, &format!("fused, {label}"));
}

/// Balanced, uneven, and with ranks that hold nothing.
fn splits(vocab: usize) -> Vec<Vec<usize>> {
    let balanced = |ranks: usize| (0..ranks).map(|r| (r + 1) * vocab / ranks - r * vocab / ranks).collect();
    let (some, few) = (vocab / 7, vocab / 3);
    vec![
        vec![vocab],
        balanced(2),
        balanced(3),
        balanced(4),
        vec![few, vocab - few],
        vec![vocab, 0],
        vec![some, vocab - some - few, few],
        vec![0, few, 0, vocab - few],
        vec![vocab - some, 0, 0, some],
    ]
}

#[test]
fn the_parts_make_the_whole() {
    for_each_path(|| {
        for p in problems() {
            for counts in splits(p.vocab) {
                check(&p, &counts, Some(&p.g_h), &all());
            }
        }
    });
}

#[test]
fn only_what_is_wanted_is_made() {
    let p = Problem::new(40, 16, 100, 4, true, Store::F32, 12);
    let hidden = HeadWanted { hidden: true, ..Default::default() };
    for wanted in [hidden, wanted(&[LoraA, LoraB]), wanted(&[LinearPart::Weight, LoraBBias])] {
        for counts in splits(p.vocab) {
            check(&p, &counts, None, &wanted);
        }
    }
    for p in [
        Problem::new(40, 16, 100, 0, true, Store::F32, 12),
        Problem::new(70, 40, 3000, 0, false, Store::Bf16, 13).options(0.8, Some(3.0), 1.0),
    ] {
        for counts in splits(p.vocab) {
            check(&p, &counts, None, &hidden);
        }
    }
}

/// One combination where nothing is trained, one for every tile where gradients are made in the same pass.
#[test]
fn every_tile_is_combined_once() {
    let p = Problem::new(1100, 3, 40_000, 0, false, Store::F32, 21);
    let counts = [15_000, 20_000, 5_000];
    let tile = head_tile(20_000);
    assert_eq!(tile, 416);
    let hidden = HeadWanted { hidden: true, ..Default::default() };
    let (_, rounds) = split(&p, &counts, None, &hidden);
    assert_eq!(rounds, [1100, tile, tile, 1100 - 2 * tile]);
}

#[test]
fn equal_logits_have_their_first_maximum_on_the_lowest_rank() {
    let mut p = Problem::new(7, 4, 21, 0, false, Store::F32, 22);
    p.hidden.fill(0.0);
    p.targets = vec![0, 1, 6, 7, 8, 14, 20];
    for counts in splits(21) {
        let (made, _) = split(&p, &counts, None, &HeadWanted::default());
        assert_eq!(made[0].0.is_top1, [true, false, false, false, false, false, false], "{counts:?}");
    }
    // The largest logit twice, on two ranks.
    let mut p = Problem::new(2, 1, 21, 0, false, Store::F32, 23);
    p.hidden.fill(1.0);
    p.weight[9] = 5.0;
    p.weight[16] = 5.0;
    p.targets = vec![9, 16];
    for counts in splits(21) {
        let (made, _) = split(&p, &counts, None, &HeadWanted::default());
        assert_eq!(made[0].2.is_top1, [true, false], "{counts:?}");
    }
}

#[test]
fn a_rank_without_a_finite_logit_has_no_part() {
    let mut p = Problem::new(5, 8, 40, 0, true, Store::F32, 16);
    p.bias[..12].fill(f32::NEG_INFINITY);
    p.targets = vec![12, 20, 24, 35, 39];
    let wanted = HeadWanted { hidden: true, ..Default::default() };
    let (made, _) = split(&p, &[12, 8, 20], None, &wanted);
    let (want, grad) = p.fused(&wanted);
    assert_close("log_prob", &made[0].2.log_prob, &widen(&want.log_prob), 1e-6);
    assert_close("entropy", &made[0].2.entropy, &widen(&want.entropy), 1e-6);
    check_grads(&made.iter().map(|m| &m.3).collect::<Vec<_>>(), &grad, "some logits are not finite");
}

#[test]
fn no_tokens_are_not_combined() {
    let p = Problem::new(0, 8, 20, 2, true, Store::F32, 15);
    let (made, rounds) = split(&p, &[8, 0, 12], None, &all());
    assert!(rounds.is_empty());
    for (_, g, s, fused) in made {
        assert_eq!(s, HeadStats::default());
        for g in [g, fused] {
            assert_eq!(g.parts.found(LoraA).unwrap(), &vec![0.0; 16]);
        }
    }
}

#[test]
#[should_panic(expected = "target 20 lies outside the vocabulary of 20 entries")]
fn a_target_outside_the_whole_vocabulary_is_refused() {
    let (weight, compute) = (Weight::F32(&[0.0; 12]), Default::default());
    let head = Linear { out: 12, weight, bias: None, low_rank: None, compute };
    let combine = |_: &[u32], _: &[VocabPart]| HeadStats::default();
    let shard = VocabRows { first: 8, vocab: 20, widest: 12, combine: &combine };
    head_forward(&[1.0], &head, Some(&shard), &[20], &Default::default());
}
