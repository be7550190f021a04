//! Against the recurrence token by token in f64, and its reverse.

use super::*;
use crate::{Isa, with_isa};
use burnish_core::random::Stream;
use std::ops::Range;

/// A call with its buffers.
struct Problem {
    documents: Vec<Range<usize>>,
    parents: Vec<Option<usize>>,
    tokens: usize,
    channels: usize,
    states: usize,
    x: Vec<f32>,
    steps: Vec<f32>,
    log_rates: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    skip: Vec<f32>,
    dy: Vec<f32>,
}

/// In f64: output, gradients, and the states `[documents, states, channels]` that documents leave.
struct Reference {
    y: Vec<f64>,
    x: Vec<f64>,
    steps: Vec<f64>,
    log_rates: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    skip: Vec<f64>,
    left: Vec<f64>,
}

fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

fn values(name: &str, n: usize, scale: f32, shift: f32) -> Vec<f32> {
    let stream = Stream::new(29, name);
    (0..n as u64).map(|i| shift + scale * stream.normal(i)).collect()
}

impl Problem {
    fn new([channels, states]: [usize; 2], documents: &[Range<usize>], parents: &[Option<usize>]) -> Self {
        let tokens = documents.iter().map(|d| d.end).max().unwrap_or(0) + 2;
        let (wide, narrow) = (tokens * channels, tokens * states);
        let mut steps = values("steps", wide, 2.0, -1.0);
        // Beyond the line of the softplus, at both its ends.
        steps.iter_mut().step_by(97).for_each(|s| *s += 24.0);
        steps.iter_mut().step_by(89).for_each(|s| *s -= 30.0);
        Self {
            documents: documents.to_vec(),
            parents: parents.to_vec(),
            tokens,
            channels,
            states,
            x: values("x", wide, 1.0, 0.0),
            steps,
            log_rates: values("log_rates", channels * states, 1.0, -1.0),
            b: values("b", narrow, 1.0, 0.0),
            c: values("c", narrow, 1.0, 0.0),
            skip: values("skip", channels, 0.5, 1.0),
            dy: values("dy", wide, 1.0, 0.0),
        }
    }

    fn call(&self) -> SelectiveScan<'_> {
        let Self { documents, parents, x, steps, log_rates, b, c, skip, .. } = self;
        SelectiveScan { x, steps, log_rates, b, c, skip, documents, parents }
    }

    fn reference(&self) -> Reference {
        let (n, channels) = (self.states, self.channels);
        let zeros = |n: usize| vec![0.0; n];
        let mut r = Reference {
            y: zeros(self.x.len()),
            x: zeros(self.x.len()),
            steps: zeros(self.x.len()),
            log_rates: zeros(channels * n),
            b: zeros(self.b.len()),
            c: zeros(self.b.len()),
            skip: zeros(channels),
            left: zeros(self.documents.len() * n * channels),
        };
        let f = f64::from;
        let parent = |document: usize| self.parents.get(document).copied().flatten();
        for ch in 0..channels {
            let rates: Vec<f64> = (0..n).map(|i| -f(self.log_rates[ch * n + i]).exp()).collect();
            let mut before = vec![vec![]; self.tokens];
            let mut ends: Vec<Vec<f64>> = Vec::new();
            for (document, rows) in self.documents.iter().enumerate() {
                let mut h = parent(document).map_or(zeros(n), |parent| ends[parent].clone());
                for row in rows.clone() {
                    let at = row * channels + ch;
                    let (x, dt) = (f(self.x[at]), softplus(f(self.steps[at])));
                    before[row] = h.clone();
                    r.y[at] = f(self.skip[ch]) * x;
                    for i in 0..n {
                        h[i] = (dt * rates[i]).exp() * h[i] + dt * f(self.b[row * n + i]) * x;
                        r.y[at] += f(self.c[row * n + i]) * h[i];
                    }
                }
                for (i, left) in h.iter().enumerate() {
                    r.left[(document * n + i) * channels + ch] = *left;
                }
                ends.push(h);
            }
            let mut of_ends = vec![zeros(n); self.documents.len()];
            for (document, rows) in self.documents.iter().enumerate().rev() {
                let (mut g, mut after) = (of_ends[document].clone(), ends[document].clone());
                for row in rows.clone().rev() {
                    let at = row * channels + ch;
                    let (x, steps, dy) = (f(self.x[at]), f(self.steps[at]), f(self.dy[at]));
                    let dt = softplus(steps);
                    r.skip[ch] += dy * x;
                    r.x[at] += dy * f(self.skip[ch]);
                    let mut of_dt = 0.0;
                    for i in 0..n {
                        let (keep, b) = ((dt * rates[i]).exp(), f(self.b[row * n + i]));
                        g[i] += dy * f(self.c[row * n + i]);
                        r.c[row * n + i] += dy * after[i];
                        r.b[row * n + i] += g[i] * dt * x;
                        r.x[at] += g[i] * dt * b;
                        let forgotten = g[i] * keep * before[row][i];
                        of_dt += g[i] * b * x + forgotten * rates[i];
                        r.log_rates[ch * n + i] += forgotten * dt * rates[i];
                        g[i] *= keep;
                    }
                    r.steps[at] += of_dt * if steps > 20.0 { 1.0 } else { 1.0 / (1.0 + (-steps).exp()) };
                    after = before[row].clone();
                }
                if let Some(parent) = parent(document) {
                    of_ends[parent].iter_mut().zip(&g).for_each(|(to, g)| *to += g);
                }
            }
        }
        r
    }

    /// Output and gradients as the reference has them.
    fn check(&self, what: &str) {
        let (call, want) = (self.call(), self.reference());
        close(&selective_scan_forward(&call, None), &want.y, what, "output");
        let got = selective_scan_backward(&call, &self.dy);
        close(&got.x, &want.x, what, "x");
        close(&got.steps, &want.steps, what, "steps");
        close(&got.log_rates, &want.log_rates, what, "log_rates");
        close(&got.b, &want.b, what, "b");
        close(&got.c, &want.c, what, "c");
        close(&got.skip, &want.skip, what, "skip");
    }
}

/// Within 3e-6 of the largest.
fn close(got: &[f32], want: &[f64], what: &str, name: &str) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
    let differences = got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs());
    let worst = differences.fold(0.0, |most: f64, x| if x > most || x.is_nan() { x } else { most });
    if std::env::var_os("SHOW").is_some() {
        println!("{what}: {name} {:.2e}", worst / largest.max(1e-30));
    }
    assert!(worst <= 3e-6 * largest + 1e-30, "{what}: {name} differs by {worst} of {largest}");
}

/// A prompt, two that continue it, one that continues the second of them, an empty one, and one that continues that; rows of
/// no text between them.
const DOCUMENTS: [Range<usize>; 6] = [1..34, 35..36, 40..56, 56..73, 73..73, 75..80];
const PARENTS: [Option<usize>; 6] = [None, Some(0), Some(0), Some(2), None, Some(4)];

#[test]
fn follows_the_recurrence() {
    for sizes in [[16, 16], [1, 1], [37, 5], [70, 16], [16, 4], [9, 7]] {
        Problem::new(sizes, &DOCUMENTS, &PARENTS).check(&format!("{sizes:?}"));
        Problem::new(sizes, &[0..50, 50..51], &[]).check(&format!("{sizes:?}, alone"));
    }
    // So many channels that a task has more than one vector.
    Problem::new([600, 3], &[0..20, 20..20], &[]).check("wide");
}

#[test]
fn every_instruction_set() {
    for &isa in Isa::available() {
        with_isa(isa, || Problem::new([37, 6], &DOCUMENTS, &PARENTS).check(&format!("{isa:?}")));
    }
}

#[test]
fn rates_of_every_strength() {
    for shift in [-12.0, 4.0, 60.0] {
        let mut problem = Problem::new([20, 4], &DOCUMENTS, &PARENTS);
        problem.log_rates.iter_mut().for_each(|rate| *rate += shift);
        problem.check(&format!("rates by {shift}"));
    }
}

#[test]
fn states_carry_on() {
    let problem = Problem::new([37, 5], &[0..30, 31..40, 40..41], &[]);
    let want = problem.reference();
    for cuts in [&[20, 30][..], &[1, 2, 3, 9, 30]] {
        let (mut states, mut y) = (vec![0.0; want.left.len()], vec![0.0; want.y.len()]);
        let mut done = 0;
        for &cut in cuts {
            let part = |d: &Range<usize>| (d.start + done).min(d.end)..(d.start + cut).min(d.end);
            let parts: Vec<_> = problem.documents.iter().map(part).collect();
            let call = SelectiveScan { documents: &parts, ..problem.call() };
            let more = selective_scan_forward(&call, Some(&mut states));
            y.iter_mut().zip(more).for_each(|(y, more)| *y += more);
            done = cut;
        }
        close(&y, &want.y, &format!("{cuts:?}"), "output");
        close(&states, &want.left, &format!("{cuts:?}"), "states");
    }
}

#[test]
fn same_bits_on_any_number_of_threads() {
    let problem = Problem::new([150, 5], &DOCUMENTS, &PARENTS);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| {
            let y = selective_scan_forward(&problem.call(), None);
            (y, selective_scan_backward(&problem.call(), &problem.dy))
        })
    };
    assert!(run(1) == run(2) && run(1) == run(5));
}

#[test]
fn nothing_to_do() {
    Problem::new([5, 3], &[], &[]).check("no documents");
}

#[test]
#[should_panic(expected = "expected an earlier one")]
fn a_document_continues_none_behind_it() {
    let problem = Problem::new([5, 3], &[0..2, 2..4], &[Some(1)]);
    let _ = selective_scan_forward(&problem.call(), None);
}
