use std::ops::Range;

use burnish_gpu_kernels::{
    ChannelLinearAttention, ChannelLinearAttentionOperands, Client, FloatType, LinearAttention,
    LinearAttentionOperands, LinearAttentionShape, TextPlan,
};

use crate::on_device::{client, close, download, numbers, upload, upload_integers};

const F32: FloatType = FloatType::F32;

struct Case {
    shape: LinearAttentionShape,
    /// Decays of a head: one, or those of its channels.
    decays: usize,
    texts: Vec<Range<usize>>,
    parents: Vec<Option<usize>>,
    tokens: usize,
    qkv: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
}

/// Gradients, or values, token by token in f64.
struct Naive {
    y: Vec<f64>,
    qkv: Vec<f64>,
    decay: Vec<f64>,
    beta: Vec<f64>,
    states: Vec<Vec<f64>>,
}

impl Case {
    fn new(
        (key_heads, each): (usize, usize),
        (key_dim, value_dim): (usize, usize),
        delta_rule: bool,
        texts: &[Range<usize>],
        parents: &[Option<usize>],
        tokens: usize,
    ) -> Self {
        let heads = key_heads * each;
        let width = 2 * key_heads * key_dim + heads * value_dim;
        let keys = key_heads * key_dim;
        let shape = LinearAttentionShape {
            key_heads,
            heads,
            key_dim,
            value_dim,
            columns: [0, keys, 2 * keys],
            width,
            delta_rule,
        };
        let mut qkv = numbers(F32, tokens * width, 3);
        // Keys of unit length, as the rule has them.
        for key in qkv.chunks_mut(width).flat_map(|row| row[..2 * keys].chunks_mut(key_dim)) {
            let length = key.iter().map(|x| x * x).sum::<f32>().sqrt();
            key.iter_mut().for_each(|x| *x /= length);
        }
        let decay = numbers(F32, tokens * heads, 5).iter().map(|x| -(x + 1.0) * 0.4).collect();
        let beta = numbers(F32, tokens * heads, 7).iter().map(|x| 0.5 + 0.5 * x).collect();
        let (texts, parents) = (texts.to_vec(), parents.to_vec());
        Self { shape, decays: 1, texts, parents, tokens, qkv, decay, beta }
    }

    /// With decays of channels, down to `-strong`.
    fn of_channels(self, strong: f32) -> Self {
        let decays = self.shape.key_dim;
        let decay = numbers(F32, self.tokens * self.shape.heads * decays, 6);
        let decay = decay.iter().map(|x| -(x + 1.0) * 0.5 * strong).collect();
        Self { decays, decay, ..self }
    }

    fn channel_operands(&self, client: &Client, plan: &TextPlan) -> ChannelLinearAttentionOperands {
        ChannelLinearAttentionOperands {
            qkv: upload(client, F32, &self.qkv),
            decays: upload(client, F32, &self.decay),
            betas: upload(client, F32, &self.beta),
            words: upload_integers(client, plan.words()),
        }
    }

    fn naive(&self, dy: &[f32], before: Option<&[f32]>) -> Naive {
        let LinearAttentionShape { key_heads, heads, key_dim, value_dim, columns, width, delta_rule } =
            self.shape;
        let size = key_dim * value_dim;
        let mut y = vec![0.0; self.tokens * heads * value_dim];
        let (mut of_qkv, mut of_decay, mut of_beta) =
            (vec![0.0; self.qkv.len()], vec![0.0; self.decay.len()], vec![0.0; self.beta.len()]);
        let mut left = vec![vec![0.0; heads * size]; self.texts.len()];
        let mut of_left = vec![vec![0.0; heads * size]; self.texts.len()];
        for head in 0..heads {
            let at = |row: usize, part: usize| {
                row * width
                    + columns[part]
                    + if part == 2 { head * value_dim } else { head / (heads / key_heads) * key_dim }
            };
            let number = |row: usize, part: usize, i: usize| f64::from(self.qkv[at(row, part) + i]);
            // What a row keeps of each channel.
            let keeps_of = |row: usize| -> Vec<f64> {
                let own = &self.decay[(row * heads + head) * self.decays..][..self.decays];
                (0..key_dim).map(|k| f64::from(own[k % self.decays]).exp()).collect()
            };
            let mut walks = Vec::new();
            for (text, rows) in self.texts.iter().enumerate() {
                let mut state: Vec<f64> = match self.parents.get(text).copied().flatten() {
                    Some(parent) => left[parent][head * size..][..size].to_vec(),
                    None => match before {
                        Some(all) => all[(text * heads + head) * size..][..size]
                            .iter()
                            .map(|&x| f64::from(x))
                            .collect(),
                        None => vec![0.0; size],
                    },
                };
                let mut walk = Vec::new();
                for row in rows.clone() {
                    let keeps = keeps_of(row);
                    let learns = f64::from(self.beta[row * heads + head]);
                    let kept: Vec<f64> =
                        state.iter().enumerate().map(|(i, x)| x * keeps[i / value_dim]).collect();
                    let differs: Vec<f64> = (0..value_dim)
                        .map(|v| {
                            let known: f64 =
                                (0..key_dim).map(|k| kept[k * value_dim + v] * number(row, 1, k)).sum();
                            number(row, 2, v) - if delta_rule { known } else { 0.0 }
                        })
                        .collect();
                    let next: Vec<f64> = (0..size)
                        .map(|i| kept[i] + number(row, 1, i / value_dim) * learns * differs[i % value_dim])
                        .collect();
                    for v in 0..value_dim {
                        y[(row * heads + head) * value_dim + v] =
                            (0..key_dim).map(|k| next[k * value_dim + v] * number(row, 0, k)).sum();
                    }
                    walk.push((state, kept, differs, next.clone()));
                    state = next;
                }
                left[text][head * size..][..size].copy_from_slice(&state);
                walks.push(walk);
            }
            for (text, rows) in self.texts.iter().enumerate().rev() {
                let mut of_state = of_left[text][head * size..][..size].to_vec();
                for (row, (state, kept, differs, next)) in rows.clone().zip(&walks[text]).rev() {
                    let keeps = keeps_of(row);
                    let learns = f64::from(self.beta[row * heads + head]);
                    for k in 0..key_dim {
                        for v in 0..value_dim {
                            let d = f64::from(dy[(row * heads + head) * value_dim + v]);
                            of_qkv[at(row, 0) + k] += next[k * value_dim + v] * d;
                            of_state[k * value_dim + v] += number(row, 0, k) * d;
                        }
                    }
                    let mut of_kept = of_state.clone();
                    for v in 0..value_dim {
                        let of_new: f64 =
                            (0..key_dim).map(|k| of_state[k * value_dim + v] * number(row, 1, k)).sum();
                        of_beta[row * heads + head] += of_new * differs[v];
                        of_qkv[at(row, 2) + v] += of_new * learns;
                        for k in 0..key_dim {
                            of_qkv[at(row, 1) + k] += of_state[k * value_dim + v] * learns * differs[v];
                            if delta_rule {
                                of_kept[k * value_dim + v] -= of_new * learns * number(row, 1, k);
                                of_qkv[at(row, 1) + k] -= of_new * learns * kept[k * value_dim + v];
                            }
                        }
                    }
                    of_state = of_kept.iter().enumerate().map(|(i, d)| d * keeps[i / value_dim]).collect();
                    for (i, (d, x)) in of_state.iter().zip(state).enumerate() {
                        of_decay[(row * heads + head) * self.decays + i / value_dim % self.decays] += d * x;
                    }
                }
                if let Some(parent) = self.parents.get(text).copied().flatten() {
                    of_left[parent][head * size..][..size]
                        .iter_mut()
                        .zip(of_state)
                        .for_each(|(a, b)| *a += b);
                }
            }
        }
        Naive { y, qkv: of_qkv, decay: of_decay, beta: of_beta, states: left }
    }
}

fn all() -> Vec<(String, Case)> {
    let mut all = Vec::new();
    for delta in [true, false] {
        let of = |name: &str| format!("{name}, {}", if delta { "delta rule" } else { "without" });
        let three = [0..5, 5..45, 46..79];
        all.push((of("texts"), Case::new((1, 1), (16, 8), delta, &three, &[], 80)));
        all.push((of("shared keys"), Case::new((2, 2), (12, 36), delta, &[0..35], &[], 35)));
        let family = [0..34, 34..39, 39..72, 72..75];
        let parents = [None, Some(0), Some(0), Some(2)];
        all.push((of("continued"), Case::new((1, 2), (8, 8), delta, &family, &parents, 75)));
    }
    for (name, sizes) in [("of a model", (128, 128)), ("wide", (200, 72))] {
        all.push((name.into(), Case::new((1, 1), sizes, true, &[0..37], &[], 37)));
    }
    all
}

#[test]
fn linear_attention_and_its_gradients_are_those_of_the_recurrence() {
    let client = client();
    for (name, case) in all() {
        let kernel = LinearAttention::new(&client, case.shape).unwrap();
        let plan = TextPlan::new(&case.texts, &case.parents, case.tokens, kernel.chunk());
        let operands = LinearAttentionOperands {
            qkv: upload(&client, F32, &case.qkv),
            weights: upload(&client, F32, &[&case.decay[..], &case.beta].concat()),
            words: upload_integers(&client, plan.words()),
        };
        let dy = numbers(F32, case.tokens * case.shape.heads * case.shape.value_dim, 11);
        let want = case.naive(&dy, None);
        let got = download(&client, &kernel.forward(&client, &plan, &operands));
        close(&format!("{name}: y"), &got, &want.y, 2e-5);
        let got = kernel.backward(&client, &plan, &operands, &upload(&client, F32, &dy));
        close(&format!("{name}: qkv"), &download(&client, &got.qkv), &want.qkv, 1e-4);
        let weights = download(&client, &got.weights);
        let (decay, beta) = weights.split_at(weights.len() / 2);
        close(&format!("{name}: decay"), decay, &want.decay, 2e-4);
        close(&format!("{name}: beta"), beta, &want.beta, 1e-4);
    }
}

#[test]
fn held_states_go_on() {
    let client = client();
    for delta in [true, false] {
        let texts = [0..1, 1..4, 4..4, 4..38];
        let case = Case::new((1, 2), (16, 12), delta, &texts, &[], 38);
        let kernel = LinearAttention::new(&client, case.shape).unwrap();
        let plan = TextPlan::new(&case.texts, &[], case.tokens, kernel.chunk()).held();
        let before = numbers(F32, 4 * 2 * 16 * 12, 13);
        let states = upload(&client, F32, &before);
        let operands = LinearAttentionOperands {
            qkv: upload(&client, F32, &case.qkv),
            weights: upload(&client, F32, &[&case.decay[..], &case.beta].concat()),
            words: upload_integers(&client, plan.words()),
        };
        let want = case.naive(&vec![0.0; 38 * 2 * 12], Some(&before));
        let [y, behind] = kernel.forward_held(&client, &plan, &operands, &states);
        close("y", &download(&client, &y), &want.y, 2e-5);
        close("states", &download(&client, &behind), &want.states.concat(), 2e-5);
    }
}

#[test]
fn decays_of_channels_and_their_gradients_are_those_of_the_recurrence() {
    let client = client();
    let family = [0..34, 34..39, 40..72, 72..72, 72..75];
    let parents = [None, Some(0), Some(0), Some(2), Some(3)];
    let mut all = Vec::new();
    for delta in [true, false] {
        let of = |heads: usize, sizes, strong: f32| {
            Case::new((heads, 1), sizes, delta, &family, &parents, 76).of_channels(strong)
        };
        all.extend([of(2, (12, 36), 0.8), of(1, (16, 16), 0.0), of(1, (16, 16), 200.0)]);
        let mut mixed = of(1, (16, 16), 0.1);
        mixed.decay.iter_mut().step_by(23).for_each(|decay| *decay = -100.0);
        mixed.decay[7] = f32::NEG_INFINITY;
        all.push(mixed);
    }
    for sizes in [(128, 128), (136, 40)] {
        all.push(Case::new((1, 1), sizes, true, &[0..37], &[], 37).of_channels(0.8));
    }
    for case in all {
        let name = |what| format!("{:?}, {:?}: {what}", case.shape, &case.decay[..3]);
        let kernel = ChannelLinearAttention::new(&client, case.shape).unwrap();
        let plan = TextPlan::new(&case.texts, &case.parents, case.tokens, kernel.chunk());
        let operands = case.channel_operands(&client, &plan);
        let dy = numbers(F32, case.tokens * case.shape.heads * case.shape.value_dim, 11);
        let want = case.naive(&dy, None);
        let got = download(&client, &kernel.forward(&client, &plan, &operands));
        close(&name("y"), &got, &want.y, 2e-4);
        let got = kernel.backward(&client, &plan, &operands, &upload(&client, F32, &dy));
        for (what, got, want) in [
            ("qkv", &got.qkv, &want.qkv),
            ("decays", &got.decays, &want.decay),
            ("betas", &got.betas, &want.beta),
        ] {
            close(&name(what), &download(&client, got), want, 2e-4);
        }
    }
}

#[test]
fn held_states_of_channels_go_on() {
    let client = client();
    for delta in [true, false] {
        let texts = [0..1, 1..4, 4..4, 4..38];
        let case = Case::new((2, 1), (16, 12), delta, &texts, &[], 38).of_channels(0.8);
        let kernel = ChannelLinearAttention::new(&client, case.shape).unwrap();
        let plan = TextPlan::new(&case.texts, &[], case.tokens, kernel.chunk()).held();
        let before = numbers(F32, 4 * 2 * 16 * 12, 13);
        let states = upload(&client, F32, &before);
        let want = case.naive(&vec![0.0; 38 * 2 * 12], Some(&before));
        let [y, behind] =
            kernel.forward_held(&client, &plan, &case.channel_operands(&client, &plan), &states);
        close("y", &download(&client, &y), &want.y, 2e-5);
        close("states", &download(&client, &behind), &want.states.concat(), 2e-5);
    }
}

#[test]
fn heads_with_decays_of_channels_share_no_keys() {
    let case = Case::new((1, 2), (8, 8), true, &[0..3], &[], 3);
    assert!(ChannelLinearAttention::new(&client(), case.shape).is_none());
}
