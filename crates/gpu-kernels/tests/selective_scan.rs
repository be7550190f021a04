use std::ops::Range;

use burnish_gpu_kernels::{FloatType, SelectiveScan, SelectiveScanOperands, TextPlan};

use crate::on_device::{client, close, download, numbers, upload, upload_integers};

const F32: FloatType = FloatType::F32;

struct Case {
    channels: usize,
    states: usize,
    texts: Vec<Range<usize>>,
    parents: Vec<Option<usize>>,
    tokens: usize,
    x: Vec<f32>,
    steps: Vec<f32>,
    log_rates: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    skip: Vec<f32>,
}

/// Values and gradients token by token in f64; states are `[texts, states, channels]`.
#[derive(Default)]
struct Naive {
    y: Vec<f64>,
    x: Vec<f64>,
    steps: Vec<f64>,
    log_rates: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    skip: Vec<f64>,
    states: Vec<f64>,
}

impl Case {
    fn new(
        [channels, states]: [usize; 2],
        texts: &[Range<usize>],
        parents: &[Option<usize>],
        tokens: usize,
    ) -> Self {
        let of = |n: usize, seed: u32| numbers(F32, n, seed);
        let mut steps: Vec<f32> = of(tokens * channels, 2).iter().map(|s| 4.0 * s - 1.0).collect();
        steps.iter_mut().step_by(53).for_each(|s| *s += 24.0);
        Self {
            channels,
            states,
            texts: texts.to_vec(),
            parents: parents.to_vec(),
            tokens,
            x: of(tokens * channels, 1),
            steps,
            log_rates: of(channels * states, 3),
            b: of(tokens * states, 4),
            c: of(tokens * states, 5),
            skip: of(channels, 6),
        }
    }

    fn operands(&self, client: &burnish_gpu_kernels::Client, plan: &TextPlan) -> SelectiveScanOperands {
        let of = |values: &[f32]| upload(client, F32, values);
        SelectiveScanOperands {
            x: of(&self.x),
            steps: of(&self.steps),
            log_rates: of(&self.log_rates),
            b: of(&self.b),
            c: of(&self.c),
            skip: of(&self.skip),
            words: upload_integers(client, plan.words()),
        }
    }

    fn naive(&self, dy: &[f32], held: Option<&[f32]>) -> Naive {
        let (n, channels, f) = (self.states, self.channels, |x: f32| f64::from(x));
        let zeros = |n: usize| vec![0.0; n];
        let (wide, narrow) = (self.tokens * channels, self.tokens * n);
        let mut r = Naive {
            y: zeros(wide),
            x: zeros(wide),
            steps: zeros(wide),
            log_rates: zeros(n * channels),
            b: zeros(narrow),
            c: zeros(narrow),
            skip: zeros(channels),
            states: zeros(self.texts.len() * n * channels),
        };
        let parent = |text: usize| self.parents.get(text).copied().flatten();
        for ch in 0..channels {
            let rates: Vec<f64> = (0..n).map(|i| -f(self.log_rates[ch * n + i]).exp()).collect();
            let softplus = |x: f64| if x > 20.0 { x } else { x.exp().ln_1p() };
            let (mut before, mut ends) = (vec![vec![]; self.tokens], Vec::<Vec<f64>>::new());
            for (text, rows) in self.texts.iter().enumerate() {
                let given = |i: usize| held.map_or(0.0, |held| f(held[(text * n + i) * channels + ch]));
                let mut h = parent(text).map_or((0..n).map(given).collect(), |from| ends[from].clone());
                for row in rows.clone() {
                    let at = row * channels + ch;
                    let dt = softplus(f(self.steps[at]));
                    before[row] = h.clone();
                    r.y[at] = f(self.skip[ch]) * f(self.x[at]);
                    for i in 0..n {
                        h[i] = (dt * rates[i]).exp() * h[i] + dt * f(self.b[row * n + i]) * f(self.x[at]);
                        r.y[at] += f(self.c[row * n + i]) * h[i];
                    }
                }
                for i in 0..n {
                    r.states[(text * n + i) * channels + ch] = h[i];
                }
                ends.push(h);
            }
            let mut of_ends = vec![zeros(n); self.texts.len()];
            for (text, rows) in self.texts.iter().enumerate().rev() {
                let (mut g, mut after) = (of_ends[text].clone(), ends[text].clone());
                for row in rows.clone().rev() {
                    let at = row * channels + ch;
                    let (x, steps, dy) = (f(self.x[at]), f(self.steps[at]), f(dy[at]));
                    let (dt, mut of_dt) = (softplus(steps), 0.0);
                    r.skip[ch] += dy * x;
                    r.x[at] = dy * f(self.skip[ch]);
                    for i in 0..n {
                        let (keep, b) = ((dt * rates[i]).exp(), f(self.b[row * n + i]));
                        g[i] += dy * f(self.c[row * n + i]);
                        r.c[row * n + i] += dy * after[i];
                        r.b[row * n + i] += g[i] * dt * x;
                        r.x[at] += g[i] * dt * b;
                        let forgotten = g[i] * keep * before[row][i];
                        of_dt += g[i] * b * x + forgotten * rates[i];
                        r.log_rates[i * channels + ch] += forgotten * dt * rates[i];
                        g[i] *= keep;
                    }
                    r.steps[at] = of_dt / (1.0 + (-steps).exp());
                    after = before[row].clone();
                }
                if let Some(from) = parent(text) {
                    of_ends[from].iter_mut().zip(&g).for_each(|(to, g)| *to += g);
                }
            }
        }
        r
    }
}

#[test]
fn the_selective_scan_and_its_gradients_are_those_of_the_recurrence() {
    let client = client();
    let family = [0..34, 34..39, 40..72, 72..72, 73..76];
    let parents = [None, Some(0), Some(0), Some(2), Some(3)];
    for sizes in [[33, 16], [40, 1], [5, 5], [64, 4], [3, 70]] {
        for (texts, parents, tokens) in [(&family[..], &parents[..], 77), (&[0..37], &[], 37)] {
            let case = Case::new(sizes, texts, parents, tokens);
            let kernel = SelectiveScan::new(&client, case.channels, case.states).unwrap();
            let plan = TextPlan::new(texts, parents, tokens, SelectiveScan::CHUNK);
            let operands = case.operands(&client, &plan);
            let dy = numbers(F32, tokens * case.channels, 11);
            let want = case.naive(&dy, None);
            let got = kernel.forward(&client, &plan, &operands);
            let name = |what: &str| format!("{sizes:?}, {texts:?}: {what}");
            close(&name("y"), &download(&client, &got), &want.y, 1e-4);
            let got = kernel.backward(&client, &plan, &operands, &upload(&client, F32, &dy));
            for (what, got, want) in [
                ("x", &got.x, &want.x),
                ("steps", &got.steps, &want.steps),
                ("log_rates", &got.log_rates, &want.log_rates),
                ("b", &got.b, &want.b),
                ("c", &got.c, &want.c),
                ("skip", &got.skip, &want.skip),
            ] {
                close(&name(what), &download(&client, got), want, 2e-4);
            }
        }
    }
}

#[test]
fn held_states_go_on() {
    let client = client();
    let texts = [0..1, 1..4, 4..4, 4..38];
    let case = Case::new([33, 6], &texts, &[], 38);
    let kernel = SelectiveScan::new(&client, 33, 6).unwrap();
    let plan = TextPlan::new(&texts, &[], 38, SelectiveScan::CHUNK).held();
    let before = numbers(F32, 4 * 6 * 33, 13);
    let want = case.naive(&vec![0.0; 38 * 33], Some(&before));
    let states = upload(&client, F32, &before);
    let [y, behind] = kernel.forward_held(&client, &plan, &case.operands(&client, &plan), &states);
    close("y", &download(&client, &y), &want.y, 1e-4);
    close("states", &download(&client, &behind), &want.states, 1e-4);
}
