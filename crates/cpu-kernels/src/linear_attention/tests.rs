//! Against the recurrence token by token in f64, and its reverse.

use super::*;
use crate::{Isa, with_isa};
use std::ops::Range;

/// Deterministic values in [-1, 1).
fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..n).map(next).collect()
}

/// A call with its buffers.
struct Problem {
    key_heads: usize,
    heads: usize,
    key_dim: usize,
    value_dim: usize,
    delta_rule: bool,
    decays: Decays,
    documents: Vec<Range<usize>>,
    parents: Vec<Option<usize>>,
    qkv: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    dy: Vec<f32>,
}

/// Columns of a row that nothing reads, before and behind the others.
const SPARE: usize = 3;

impl Problem {
    /// Keys of unit length, decays down to `-strong`; `[key_heads, heads, key_dim, value_dim]`.
    fn new(sizes: [usize; 4], delta_rule: bool, documents: &[Range<usize>], strong: f32) -> Self {
        let [key_heads, heads, key_dim, value_dim] = sizes;
        let documents = documents.to_vec();
        let tokens = documents.iter().map(|d| d.end).max().unwrap_or(0) + 2;
        let width = 2 * SPARE + 2 * key_heads * key_dim + heads * value_dim;
        let mut qkv = values(tokens * width, 1);
        for row in qkv.chunks_exact_mut(width) {
            for key in row[SPARE + key_heads * key_dim..][..key_heads * key_dim].chunks_exact_mut(key_dim) {
                let length = key.iter().map(|k| k * k).sum::<f32>().sqrt();
                key.iter_mut().for_each(|k| *k /= length);
            }
        }
        let decay = values(tokens * heads, 2).iter().map(|x| -strong * (0.5 + 0.5 * x)).collect();
        let beta = values(tokens * heads, 3).iter().map(|x| 0.5 + 0.5 * x).collect();
        let dy = values(tokens * heads * value_dim, 4);
        let parents = vec![];
        let decays = Decays::OfHeads;
        Self {
            key_heads,
            heads,
            key_dim,
            value_dim,
            delta_rule,
            decays,
            documents,
            parents,
            qkv,
            decay,
            beta,
            dy,
        }
    }

    /// [`Problem::new`] with decays of channels; `[heads, key_dim, value_dim]`.
    fn of_channels(sizes: [usize; 3], delta_rule: bool, documents: &[Range<usize>], strong: f32) -> Self {
        let [heads, key_dim, value_dim] = sizes;
        let this = Self::new([heads, heads, key_dim, value_dim], delta_rule, documents, strong);
        let decay = values(this.tokens() * heads * key_dim, 5);
        let decay = decay.iter().map(|x| -strong * (0.5 + 0.5 * x)).collect();
        Self { decays: Decays::OfChannels, decay, ..this }
    }

    /// Where a row's decay of a channel of a head is.
    fn decay_at(&self, row: usize, head: usize, channel: usize) -> usize {
        let scalar = row * self.heads + head;
        match self.decays {
            Decays::OfHeads => scalar,
            Decays::OfChannels => scalar * self.key_dim + channel,
        }
    }

    fn tokens(&self) -> usize {
        self.beta.len() / self.heads
    }

    fn call(&self) -> LinearAttention<'_> {
        let keys = self.key_heads * self.key_dim;
        let shape = LinearAttentionShape {
            key_heads: self.key_heads,
            heads: self.heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            columns: [SPARE, SPARE + keys, SPARE + 2 * keys],
            width: 2 * SPARE + 2 * keys + self.heads * self.value_dim,
            delta_rule: self.delta_rule,
            decays: self.decays,
            documents: &self.documents,
            parents: &self.parents,
        };
        LinearAttention { shape, qkv: &self.qkv, decay: &self.decay, beta: &self.beta }
    }

    /// Output, gradients of qkv, decay and beta, and the states that documents leave, from given ones.
    fn reference(&self, states: Option<&[f32]>) -> [Vec<f64>; 5] {
        let (call, dk, dv) = (self.call(), self.key_dim, self.value_dim);
        let (s, size) = (call.shape, dk * dv);
        let mut out = vec![0.0; self.dy.len()];
        let [mut d_qkv, mut d_decay, mut d_beta] =
            [self.qkv.len(), self.decay.len(), self.beta.len()].map(|n| vec![0.0; n]);
        let mut left = vec![0.0; self.documents.len() * s.heads * size];
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        for head in 0..s.heads {
            let key_head = head / (s.heads / s.key_heads);
            let at = |row: usize| {
                [key_head * dk, key_head * dk, head * dv]
                    .into_iter()
                    .zip(s.columns)
                    .map(|(head, first)| row * s.width + first + head)
                    .collect::<Vec<_>>()
            };
            let keeps = |row: usize| -> Vec<f64> {
                (0..dk).map(|i| f64::from(self.decay[self.decay_at(row, head, i)]).exp()).collect()
            };
            // Of each row the state before, and what is new.
            let mut before = vec![(vec![], vec![]); self.tokens()];
            let mut ends: Vec<Vec<f64>> = vec![];
            for (document, rows) in self.documents.iter().enumerate() {
                let given = |states: &[f32]| wide(&states[(document * s.heads + head) * size..][..size]);
                let mut state = match self.parents.get(document).copied().flatten() {
                    Some(parent) => ends[parent].clone(),
                    None => states.map_or(vec![0.0; size], given),
                };
                for row in rows.clone() {
                    let (places, scalar) = (at(row), row * s.heads + head);
                    let [q, k, v] = [0, 1, 2].map(|i| wide(&self.qkv[places[i]..][..[dk, dk, dv][i]]));
                    let (keep, beta) = (keeps(row), f64::from(self.beta[scalar]));
                    before[row].0 = state.clone();
                    state
                        .chunks_exact_mut(dv)
                        .zip(&keep)
                        .for_each(|(row, keep)| row.iter_mut().for_each(|s| *s *= keep));
                    let said = |j: usize| {
                        if s.delta_rule { (0..dk).map(|i| state[i * dv + j] * k[i]).sum() } else { 0.0 }
                    };
                    let error: Vec<f64> = (0..dv).map(|j| v[j] - said(j)).collect();
                    for i in 0..dk {
                        for j in 0..dv {
                            state[i * dv + j] += k[i] * beta * error[j];
                            out[scalar * dv + j] += q[i] * state[i * dv + j];
                        }
                    }
                    before[row].1 = error;
                }
                left[(document * s.heads + head) * size..][..size].copy_from_slice(&state);
                ends.push(state);
            }
            let mut d_ends = vec![vec![0.0; size]; self.documents.len()];
            for (document, rows) in self.documents.iter().enumerate().rev() {
                let mut d_state = d_ends[document].clone();
                let mut after = ends[document].clone();
                for row in rows.clone().rev() {
                    let (places, scalar) = (at(row), row * s.heads + head);
                    let [q, k] = [0, 1].map(|i| wide(&self.qkv[places[i]..][..dk]));
                    let (keep, beta) = (keeps(row), f64::from(self.beta[scalar]));
                    let dy = wide(&self.dy[scalar * dv..][..dv]);
                    let (state, error) = std::mem::take(&mut before[row]);
                    let mut d_new = vec![0.0; dv];
                    for i in 0..dk {
                        for j in 0..dv {
                            d_qkv[places[0] + i] += after[i * dv + j] * dy[j];
                            d_state[i * dv + j] += q[i] * dy[j];
                            d_new[j] += d_state[i * dv + j] * k[i];
                            d_qkv[places[1] + i] += d_state[i * dv + j] * beta * error[j];
                        }
                    }
                    for j in 0..dv {
                        d_beta[scalar] += d_new[j] * error[j];
                        d_qkv[places[2] + j] += beta * d_new[j];
                    }
                    for i in 0..dk {
                        for j in 0..dv {
                            if s.delta_rule {
                                d_state[i * dv + j] -= k[i] * beta * d_new[j];
                                d_qkv[places[1] + i] -= keep[i] * state[i * dv + j] * beta * d_new[j];
                            }
                            d_state[i * dv + j] *= keep[i];
                            d_decay[self.decay_at(row, head, i)] += state[i * dv + j] * d_state[i * dv + j];
                        }
                    }
                    after = state;
                }
                if let Some(parent) = self.parents.get(document).copied().flatten() {
                    d_ends[parent].iter_mut().zip(&d_state).for_each(|(d, x)| *d += x);
                }
            }
        }
        [out, d_qkv, d_decay, d_beta, left]
    }

    /// Output and gradients as the reference has them.
    fn check(&self, what: &str) {
        let call = self.call();
        let [out, qkv, decay, beta, _] = self.reference(None);
        close(&linear_attention_forward(&call, None), &out, what, "output");
        let grad = linear_attention_backward(&call, &self.dy);
        close(&grad.qkv, &qkv, what, "qkv");
        close(&grad.decay, &decay, what, "decay");
        close(&grad.beta, &beta, what, "beta");
    }
}

/// Within 1e-5 of the largest.
fn close(got: &[f32], expected: &[f64], what: &str, name: &str) {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
    let worst = got
        .iter()
        .zip(expected)
        .map(|(a, b)| (f64::from(*a) - b).abs())
        .fold(0.0, |most: f64, x| if x > most || x.is_nan() { x } else { most });
    if std::env::var_os("SHOW").is_some() {
        println!("{what}: {name} {:.2e}", worst / largest.max(1e-30));
    }
    assert!(worst <= 1e-5 * largest + 1e-30, "{what}: {name} differs by {worst} of {largest}");
}

/// One after another, with a gap of two rows before each.
fn documents(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut at = 0;
    let next = |n: &usize| {
        at += n + 2;
        at - n..at
    };
    lengths.iter().map(next).collect()
}

#[test]
fn follows_the_recurrence() {
    for delta_rule in [true, false] {
        for sizes in [[2, 2, 16, 8], [1, 3, 16, 8], [2, 6, 40, 24], [1, 1, 128, 128], [1, 2, 33, 70]] {
            let problem = Problem::new(sizes, delta_rule, &documents(&[1, 63, 64, 65, 200]), 0.1);
            problem.check(&format!("{sizes:?}, delta rule {delta_rule}"));
        }
    }
}

#[test]
fn largest_dimensions() {
    Problem::new([1, 1, 256, 256], true, &documents(&[70]), 0.1).check("256");
}

#[test]
fn every_instruction_set() {
    for &isa in Isa::available() {
        for delta_rule in [true, false] {
            let problem = Problem::new([1, 2, 40, 24], delta_rule, &documents(&[1, 65, 100]), 0.1);
            with_isa(isa, || problem.check(&format!("{isa:?}")));
        }
    }
}

#[test]
fn documents_continue_others() {
    for delta_rule in [true, false] {
        for lengths in [[70, 10, 65, 3, 130, 1], [64, 0, 64, 1, 20, 64]] {
            // A prompt, three that continue it, one that continues the second of them, and one by itself.
            let mut problem = Problem::new([1, 2, 24, 40], delta_rule, &documents(&lengths), 0.05);
            problem.parents = vec![None, Some(0), Some(0), Some(0), Some(2)];
            problem.check("parents");
            // A prompt without a row.
            problem.parents = vec![None, None, Some(1), Some(2), None, Some(1)];
            problem.check("other parents");
        }
        // So many families that a task has several heads.
        let lengths = [&[70, 10, 65, 3][..], &[2; 16]].concat();
        let mut problem = Problem::new([1, 3, 24, 40], delta_rule, &documents(&lengths), 0.05);
        problem.parents = vec![None, Some(0), Some(0), Some(2)];
        problem.check("parents, several heads");
    }
}

#[test]
fn decays_of_every_strength() {
    for delta_rule in [true, false] {
        for strong in [0.0, 8.0, 200.0] {
            let problem = Problem::new([1, 2, 16, 16], delta_rule, &documents(&[200]), strong);
            problem.check(&format!("decay {strong}"));
        }
        // All is forgotten now and then, and much remembered in between.
        let mut problem = Problem::new([1, 1, 32, 32], delta_rule, &documents(&[300]), 0.01);
        problem.decay.iter_mut().step_by(23).for_each(|decay| *decay = -90.0);
        problem.decay[150] = f32::NEG_INFINITY;
        problem.check("mixed decays");
    }
}

#[test]
fn keys_that_are_alike() {
    let mut problem = Problem::new([1, 1, 32, 32], true, &documents(&[150]), 0.0);
    let (width, at) = (problem.call().shape.width, problem.call().shape.columns[1]);
    for row in problem.qkv.chunks_exact_mut(width) {
        row[at..at + 32].fill(1.0 / 32.0_f32.sqrt());
    }
    problem.beta.fill(1.0);
    let [out, qkv, decay, beta, _] = problem.reference(None);
    close(&linear_attention_forward(&problem.call(), None), &out, "alike", "output");
    let grad = linear_attention_backward(&problem.call(), &problem.dy);
    close(&grad.qkv, &qkv, "alike", "qkv");
    close(&grad.beta, &beta, "alike", "beta");
    // A token replaces all that was said before, whatever is kept of it: these are zeros but for rounding.
    assert!(decay.iter().all(|d| d.abs() < 1e-5) && grad.decay.iter().all(|d| d.abs() < 1e-4));
}

#[test]
fn states_carry_on() {
    for delta_rule in [true, false] {
        let problem = Problem::new([1, 2, 40, 24], delta_rule, &documents(&[150, 9, 70]), 0.1);
        check_states(&problem);
    }
}

/// Documents piece by piece are what they are whole.
fn check_states(problem: &Problem) {
    let [expected, .., left] = problem.reference(None);
    // Cut after so many rows: long, few, and one.
    for cuts in [&[80_usize, 150][..], &[1, 2, 3, 9, 64, 150], &[64, 67, 150]] {
        let mut states = vec![0.0; left.len()];
        let mut out = vec![0.0; problem.dy.len()];
        let mut done = 0;
        for &cut in cuts {
            let part = |d: &Range<usize>| (d.start + done).min(d.end)..(d.start + cut).min(d.end);
            let parts: Vec<_> = problem.documents.iter().map(part).collect();
            let mut call = problem.call();
            call.shape.documents = &parts;
            let y = linear_attention_forward(&call, Some(&mut states));
            out.iter_mut().zip(y).for_each(|(out, y)| *out += y);
            done = cut;
        }
        close(&out, &expected, &format!("{cuts:?}"), "output");
        close(&states, &left, &format!("{cuts:?}"), "states");
    }
}

#[test]
fn same_bits_on_any_number_of_threads() {
    for sizes in [[2, 2, 16, 8], [1, 5, 16, 8]] {
        let problem = Problem::new(sizes, true, &documents(&[100, 65, 7]), 0.1);
        check_threads(&problem);
    }
}

fn check_threads(problem: &Problem) {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| {
            let out = linear_attention_forward(&problem.call(), None);
            (out, linear_attention_backward(&problem.call(), &problem.dy))
        })
    };
    assert!(run(1) == run(2) && run(1) == run(7));
}

#[test]
fn few_runs_of_heads_that_share_keys() {
    // So many families that a run has several heads, and so few that each has one, are both in other tests.
    let lengths: Vec<usize> = (0..10).map(|i| 5 + i).collect();
    Problem::new([1, 6, 16, 8], true, &documents(&lengths), 0.1).check("runs of several heads");
    Problem::new([1, 40, 8, 8], true, &documents(&[70]), 0.1).check("runs of one head or two");
}

#[test]
#[should_panic(expected = "expected an earlier one")]
fn a_document_continues_none_behind_it() {
    let mut problem = Problem::new([1, 1, 8, 8], true, &documents(&[3, 3]), 0.1);
    problem.parents = vec![Some(1)];
    let _ = linear_attention_forward(&problem.call(), None);
}

#[test]
fn nothing_to_do() {
    let problem = Problem::new([1, 2, 8, 8], true, &[], 0.1);
    problem.check("no documents");
}

/// Decays of channels, of sizes and lengths around those of chunks (64) and blocks (16).
#[test]
fn channels_follow_the_recurrence() {
    let lengths = [1, 15, 16, 17, 47, 48, 63, 64, 65, 200];
    for delta_rule in [true, false] {
        for sizes in [[2, 16, 8], [2, 24, 40], [1, 64, 64], [1, 128, 128], [2, 33, 70], [1, 1, 1]] {
            let problem = Problem::of_channels(sizes, delta_rule, &documents(&lengths), 0.1);
            problem.check(&format!("{sizes:?} of channels, delta rule {delta_rule}"));
        }
    }
    Problem::of_channels([1, 256, 256], true, &documents(&[70]), 0.1).check("256 channels");
}

#[test]
fn channels_of_every_instruction_set() {
    for &isa in Isa::available() {
        for delta_rule in [true, false] {
            let problem = Problem::of_channels([2, 40, 24], delta_rule, &documents(&[1, 65, 100]), 0.1);
            with_isa(isa, || problem.check(&format!("{isa:?}, channels")));
        }
    }
}

#[test]
fn channels_of_documents_that_continue_others() {
    for delta_rule in [true, false] {
        for lengths in [[70, 10, 65, 3, 130, 1], [64, 0, 64, 1, 20, 64]] {
            let mut problem = Problem::of_channels([2, 24, 40], delta_rule, &documents(&lengths), 0.05);
            problem.parents = vec![None, Some(0), Some(0), Some(0), Some(2)];
            problem.check("parents, channels");
            problem.parents = vec![None, None, Some(1), Some(2), None, Some(1)];
            problem.check("other parents, channels");
        }
    }
}

#[test]
fn channels_decay_at_every_strength() {
    for delta_rule in [true, false] {
        for strong in [0.0, 1e-3, 1.0, 8.0, 200.0] {
            let problem = Problem::of_channels([2, 16, 16], delta_rule, &documents(&[200]), strong);
            problem.check(&format!("decays of channels to {strong}"));
        }
        // A channel forgets all now and then, another always, and others hardly anything.
        let mut problem = Problem::of_channels([1, 32, 32], delta_rule, &documents(&[300]), 0.01);
        for (row, decays) in problem.decay.chunks_exact_mut(32).enumerate() {
            (0..32).filter(|channel| (row + channel) % 23 == 0).for_each(|channel| decays[channel] = -90.0);
            (decays[3], decays[4]) = (-100.0, 0.0);
        }
        problem.decay[150 * 32 + 7] = f32::NEG_INFINITY;
        problem.check("mixed decays of channels");
        // Nothing is kept of anything.
        let mut problem = Problem::of_channels([1, 32, 32], delta_rule, &documents(&[100]), 1.0);
        problem.decay.fill(-100.0);
        problem.check("strong decays of channels");
        // An underflow of what is kept is no state that is not a number.
        problem.decay.fill(f32::NEG_INFINITY);
        problem.check("channels that keep nothing");
    }
}

#[test]
fn states_of_channels_carry_on() {
    for delta_rule in [true, false] {
        let problem = Problem::of_channels([2, 40, 24], delta_rule, &documents(&[150, 9, 70]), 0.1);
        check_states(&problem);
    }
}

/// Channels that share a decay are a head with that decay.
#[test]
fn channels_with_one_decay_are_a_head() {
    let head = Problem::new([2, 2, 24, 16], true, &documents(&[130, 20]), 0.1);
    let mut channels = Problem::of_channels([2, 24, 16], true, &documents(&[130, 20]), 0.1);
    for (decays, decay) in channels.decay.chunks_exact_mut(24).zip(&head.decay) {
        decays.fill(*decay);
    }
    let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
    let out = linear_attention_forward(&channels.call(), None);
    close(&out, &wide(linear_attention_forward(&head.call(), None)), "one decay", "output");
    let [got, want] = [&channels, &head].map(|p| linear_attention_backward(&p.call(), &p.dy));
    close(&got.qkv, &wide(want.qkv), "one decay", "qkv");
    close(&got.beta, &wide(want.beta), "one decay", "beta");
    let sums: Vec<f32> = got.decay.chunks_exact(24).map(|decays| decays.iter().sum()).collect();
    close(&sums, &wide(want.decay), "one decay", "decay");
}

#[test]
fn same_bits_of_channels_on_any_number_of_threads() {
    let problem = Problem::of_channels([3, 16, 8], true, &documents(&[100, 65, 7]), 0.1);
    check_threads(&problem);
}

#[test]
#[should_panic(expected = "expected as many for decays of channels")]
fn heads_with_decays_of_channels_share_no_keys() {
    let mut problem = Problem::new([1, 2, 8, 8], true, &documents(&[3]), 0.1);
    (problem.decays, problem.decay) = (Decays::OfChannels, values(problem.tokens() * 16, 1));
    let _ = linear_attention_forward(&problem.call(), None);
}
