use std::ops::Range;

use burnish_gpu_kernels::{
    Buffer, Client, FlashAttention, FlashOperands, FlashPlan, FlashShape, FloatType, HeadRows, NOWHERE, PAGE,
    PagedRow, PagedRows, attend_pages, copy_pages, duplicate_pages, write_pages,
};

use crate::on_device::{client, download, dtypes, numbers, upload, upload_integers};

/// 153 tokens: outside every document, of a short one, of two longer than a tile, of one token.
const TOKENS: usize = 153;
const DOCUMENTS: [Range<usize>; 4] = [3..20, 20..97, 99..100, 100..150];
/// Heads, key/value heads, elements of a head.
const HEADS: [(usize, usize, usize); 7] =
    [(4, 2, 16), (3, 1, 40), (2, 2, 64), (2, 1, 96), (2, 1, 128), (1, 1, 256), (2, 1, 12)];

#[derive(Clone, Copy, Debug, Default)]
struct With {
    softcap: Option<f32>,
    slopes: bool,
    sinks: bool,
    window: Option<usize>,
    /// All documents but the first continue it.
    tree: bool,
    /// One document is nearly all there is, so that whole tiles are seen.
    whole: bool,
}

/// A call, in the host's memory.
struct Call {
    shape: FlashShape,
    low: Vec<usize>,
    before: Vec<Range<usize>>,
    slopes: Vec<f32>,
    sinks: Vec<f32>,
    /// `[tokens, heads, head_dim]` each.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dy: Vec<f32>,
}

impl Call {
    fn new(with: With, (heads, kv_heads, head_dim): (usize, usize, usize), dtype: FloatType) -> Self {
        let mut low: Vec<usize> = (0..TOKENS).map(|t| t + 1).collect();
        let mut before = vec![0..0; if with.tree { TOKENS } else { 0 }];
        let window = with.window.unwrap_or(usize::MAX);
        let whole = 3..TOKENS - 3;
        let documents = if with.whole { std::slice::from_ref(&whole) } else { &DOCUMENTS };
        for (i, document) in documents.iter().enumerate() {
            for t in document.clone() {
                low[t] = document.start.max((t + 1).saturating_sub(window));
                if with.tree && i > 0 {
                    let left = window.saturating_sub(t + 1 - document.start);
                    let first = DOCUMENTS[0].clone();
                    before[t] = first.start.max(first.end.saturating_sub(left))..first.end;
                }
            }
        }
        let of = |heads: usize, seed: u32| numbers(dtype, TOKENS * heads * head_dim, seed);
        Self {
            shape: FlashShape {
                heads,
                kv_heads,
                head_dim,
                scale: 1.5 / (head_dim as f32).sqrt(),
                softcap: with.softcap,
            },
            low,
            before,
            slopes: (0..if with.slopes { heads } else { 0 }).map(|h| 0.3 * 0.5f32.powi(h as i32)).collect(),
            sinks: numbers(FloatType::F32, if with.sinks { heads } else { 0 }, 5),
            q: of(heads, 1),
            k: of(kv_heads, 2),
            v: of(kv_heads, 3),
            dy: of(heads, 4),
        }
    }

    fn keys(&self, token: usize) -> Vec<usize> {
        let before = self.before.get(token).cloned().unwrap_or(0..0);
        before.chain(self.low[token]..token + 1).collect()
    }

    /// Output, log-sum-exp `[heads, tokens]`, gradients of queries, keys, values and sinks, by the definition.
    fn in_f64(&self) -> [Vec<f64>; 6] {
        let FlashShape { heads, kv_heads, head_dim: d, scale, softcap } = self.shape;
        let (scale, softcap) = (f64::from(scale), softcap.map(f64::from));
        let mut out = vec![0.0; self.q.len()];
        let mut sums = vec![f64::NAN; TOKENS * heads];
        let (mut dq, mut dk, mut dv) = (out.clone(), vec![0.0; self.k.len()], vec![0.0; self.k.len()]);
        let mut dsinks = vec![0.0; self.sinks.len()];
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
        };
        for token in 0..TOKENS {
            let keys = self.keys(token);
            for head in 0..heads {
                let sink = self.sinks.get(head).map(|&s| f64::from(s));
                if keys.is_empty() && sink.is_none() {
                    continue;
                }
                let own = (token * heads + head) * d;
                let of = |key: usize| (key * kv_heads + head / (heads / kv_heads)) * d;
                let slope = self.slopes.get(head).map_or(0.0, |&s| f64::from(s));
                let raw: Vec<f64> = keys
                    .iter()
                    .map(|&j| scale * dot(&self.q[own..own + d], &self.k[of(j)..of(j) + d]))
                    .collect();
                let score = |(&raw, &j): (&f64, &usize)| {
                    softcap.map_or(raw, |c| (raw / c).tanh() * c) + slope * (j as f64 - token as f64)
                };
                let scores: Vec<f64> = raw.iter().zip(&keys).map(score).collect();
                let sum = scores.iter().map(|s| s.exp()).sum::<f64>() + sink.map_or(0.0, f64::exp);
                sums[head * TOKENS + token] = sum.ln();
                let shares: Vec<f64> = scores.iter().map(|s| s.exp() / sum).collect();
                for (&j, share) in keys.iter().zip(&shares) {
                    (0..d).for_each(|c| out[own + c] += share * f64::from(self.v[of(j) + c]));
                }
                let dy = &self.dy[own..own + d];
                let whole: f64 = (0..d).map(|c| out[own + c] * f64::from(dy[c])).sum();
                if let Some(sink) = sink {
                    dsinks[head] -= sink.exp() / sum * whole;
                }
                for (i, &j) in keys.iter().enumerate() {
                    let passes = softcap.map_or(1.0, |c| 1.0 - (raw[i] / c).tanh().powi(2));
                    let ds = shares[i] * (dot(dy, &self.v[of(j)..of(j) + d]) - whole) * passes * scale;
                    for c in 0..d {
                        dv[of(j) + c] += shares[i] * f64::from(dy[c]);
                        dq[own + c] += ds * f64::from(self.k[of(j) + c]);
                        dk[of(j) + c] += ds * f64::from(self.q[own + c]);
                    }
                }
            }
        }
        [out, sums, dq, dk, dv, dsinks]
    }

    /// A device's attention, its plan and operands; queries, keys and values lie beside each other.
    fn uploaded(&self, client: &Client, dtype: FloatType) -> (FlashAttention, FlashPlan, FlashOperands) {
        let FlashShape { heads, kv_heads, head_dim: d, .. } = self.shape;
        let flash = FlashAttention::new(client, self.shape, dtype).expect("there is a kernel");
        let plan = flash.plan(&self.low, &self.before);
        let mut qkv = Vec::new();
        for token in 0..TOKENS {
            for (from, heads) in [(&self.q, heads), (&self.k, kv_heads), (&self.v, kv_heads)] {
                qkv.extend(&from[token * heads * d..(token + 1) * heads * d]);
            }
        }
        let qkv = upload(client, dtype, &qkv);
        let token = (heads + 2 * kv_heads) * d;
        let at = |first: usize| HeadRows { buffer: qkv.clone(), first: first * d, token, head: d };
        let some = |v: &[f32]| (!v.is_empty()).then(|| upload(client, FloatType::F32, v));
        let operands = FlashOperands {
            q: at(0),
            k: at(heads),
            v: at(heads + kv_heads),
            slopes: some(&self.slopes),
            sinks: some(&self.sinks),
            words: upload_integers(client, plan.words()),
        };
        (flash, plan, operands)
    }

    /// The same from the device.
    fn on_device(&self, client: &Client, dtype: FloatType) -> [Vec<f32>; 6] {
        let FlashShape { heads, kv_heads, head_dim: d, .. } = self.shape;
        let (flash, plan, operands) = self.uploaded(client, dtype);
        let dy = upload(client, dtype, &self.dy);
        let made = flash.forward(client, &plan, &operands);
        let back = flash.backward(client, &plan, &operands, &made, &dy);
        let by_token = |buffer: &Buffer, heads: usize| {
            let by_head = download(client, buffer);
            let of = |i: usize| by_head[(i / d % heads * TOKENS + i / d / heads) * d + i % d];
            (0..by_head.len()).map(of).collect::<Vec<f32>>()
        };
        [
            download(client, &made.out),
            download(client, &made.sums),
            by_token(&back.q, heads),
            by_token(&back.k, kv_heads),
            by_token(&back.v, kv_heads),
            back.sinks.map(|b| download(client, &b)).unwrap_or_default(),
        ]
    }
}

/// Holds the largest error to `bound` times the root of the mean square.
#[track_caller]
fn near(what: &str, got: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let seen = expected.iter().filter(|e| !e.is_nan());
    let norm = (seen.clone().map(|e| e * e).sum::<f64>() / seen.count().max(1) as f64).sqrt();
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        let fits = expected.is_nan() || error <= bound * norm;
        assert!(fits, "{what}[{i}]: {got}, not {expected} (of {norm:e})");
    }
}

fn attention_is_that_in_f64(with: With) {
    let client = client();
    for heads in HEADS {
        for &dtype in dtypes() {
            let what = format!("{heads:?} in {dtype:?} with {with:?}");
            let call = Call::new(with, heads, dtype);
            let got = call.on_device(&client, dtype);
            let names = ["output", "log-sum-exp", "dq", "dk", "dv", "dsinks"];
            for ((name, got), expected) in names.iter().zip(&got).zip(call.in_f64()) {
                let bound = if dtype == FloatType::F32 { 3e-5 } else { 4e-2 };
                near(&format!("{name} of {what}"), got, &expected, bound);
            }
            let again = call.on_device(&client, dtype);
            let bits = |all: &[Vec<f32>; 6]| all.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&again), bits(&got), "{what}: bits repeat");
        }
    }
}

#[test]
fn documents_are_attended_to() {
    attention_is_that_in_f64(With::default());
}

#[test]
fn one_document_is_attended_to() {
    attention_is_that_in_f64(With { whole: true, ..With::default() });
}

#[test]
fn windows_with_sinks_are_attended_to() {
    attention_is_that_in_f64(With { window: Some(20), sinks: true, ..With::default() });
}

#[test]
fn scores_are_capped_and_biased() {
    attention_is_that_in_f64(With { softcap: Some(0.5), slopes: true, ..With::default() });
}

#[test]
fn what_a_document_continues_is_attended_to() {
    attention_is_that_in_f64(With { tree: true, window: Some(60), ..With::default() });
}

/// There are more tiles than a device computes at once: some are computed where others were.
#[test]
fn many_heads_attend() {
    let client = client();
    let &dtype = dtypes().last().unwrap();
    let call = Call::new(With::default(), (140, 70, 64), dtype);
    let (flash, plan, operands) = call.uploaded(&client, dtype);
    let made = flash.forward(&client, &plan, &operands);
    let [out, sums, ..] = call.in_f64();
    let bound = if dtype == FloatType::F32 { 3e-5 } else { 4e-2 };
    near("output", &download(&client, &made.out), &out, bound);
    near("log-sum-exp", &download(&client, &made.sums), &sums, bound);
}

/// A score that is not a number is not lost.
#[test]
fn what_is_not_a_number_shows() {
    let client = client();
    for &dtype in dtypes() {
        let mut call = Call::new(With::default(), (2, 1, 64), dtype);
        call.k[30 * 64 + 5] = f32::NAN;
        let [out, ..] = call.on_device(&client, dtype);
        let spoiled = |t: usize| out[t * 128..(t + 1) * 128].iter().all(|x| x.is_nan());
        assert!((0..TOKENS).all(|t| spoiled(t) == (30..97).contains(&t)), "{dtype:?}");
    }
}

#[test]
fn rows_attend_to_pages() {
    let client = client();
    let none = (None, false, false, None);
    let cases = [
        ((4, 2, 16), none),
        ((14, 2, 64), (None, false, true, None)),
        ((6, 6, 40), (Some(2.0), true, false, Some(100))),
        ((9, 1, 128), (None, false, true, Some(300))),
        ((2, 1, 256), none),
        ((2, 1, 12), none),
    ];
    for ((heads, kv_heads, d), (softcap, biased, sunk, window)) in cases {
        for &dtype in dtypes() {
            let what = format!("{heads} on {kv_heads} heads of {d} in {dtype:?}");
            let mut lengths = vec![1_usize, 70, 600, 257];
            if d < 64 {
                // So long that a cube takes two pages, and four.
                lengths.extend([2111, 4400]);
            }
            let each = kv_heads * d;
            let pages: usize = lengths.iter().map(|l| l.div_ceil(PAGE)).sum();
            // Every page of some sequence's, in no order, and two of nobody's.
            let mut order: Vec<u32> = (0..pages as u32 + 2).collect();
            (0..order.len()).for_each(|i| order.swap(i, (i * 7 + 3) % (pages + 2)));
            let tables: Vec<Vec<u32>> =
                lengths.iter().map(|l| order.split_off(order.len() - l.div_ceil(PAGE))).collect();
            let said = |seed: u32| -> Vec<Vec<f32>> {
                lengths.iter().zip(seed..).map(|(l, seed)| numbers(dtype, l * each, seed)).collect()
            };
            let (keys, values) = (said(10), said(20));
            let places: Vec<u32> = lengths
                .iter()
                .zip(&tables)
                .flat_map(|(&l, table)| (0..l).map(|p| table[p / PAGE] * PAGE as u32 + (p % PAGE) as u32))
                .chain([NOWHERE])
                .collect();
            let flat = |x: &[Vec<f32>]| HeadRows {
                buffer: upload(&client, dtype, &[x.concat(), numbers(dtype, each, 60)].concat()),
                first: 0,
                token: each,
                head: d,
            };
            let garbage = numbers(dtype, (pages + 2) * PAGE * each, 30);
            let pools = [(); 2].map(|()| upload(&client, dtype, &garbage));
            let held = pools.clone();
            let shape = (kv_heads, d);
            let new = [&flat(&keys), &flat(&values)];
            let places = upload_integers(&client, &places);
            let shared = write_pages(&client, pools, new, &places, shape);
            assert_eq!(download(&client, &held[0]), garbage, "{what}: what another holds stays");
            let [k, v] = write_pages(&client, held, new, &places, shape);
            assert_eq!(download(&client, &k), download(&client, &shared[0]), "{what}: in place");
            // A page of somebody's, once more where nobody's was.
            let pair = [tables[2][3], order[0]];
            let at = upload_integers(&client, &pair);
            let page = |pool: &Buffer, page: u32| {
                let all = download(&client, pool);
                all[page as usize * PAGE * each..][..PAGE * each].to_vec()
            };
            let twice = duplicate_pages(&client, k.clone(), &at, 1, PAGE * each);
            assert_eq!(page(&twice, pair[1]), page(&k, pair[0]), "{what}: a page twice");
            assert_eq!(page(&k, pair[1]), garbage[pair[1] as usize * PAGE * each..][..PAGE * each], "{what}");
            let all = download(&client, &twice);
            let k = duplicate_pages(&client, k, &at, 1, PAGE * each);
            assert_eq!(download(&client, &k), all, "{what}: in place");
            // Neighbours change their places.
            let all = pages + 2;
            assert!(all.is_multiple_of(2));
            let pairs: Vec<u32> = (0..all as u32).flat_map(|p| [p, p ^ 1]).collect();
            let pairs = upload_integers(&client, &pairs);
            let moved = |pool: &Buffer| {
                let to = upload(&client, dtype, &garbage);
                copy_pages(&client, pool, to, &pairs, all, PAGE * each)
            };
            let (k, v) = (moved(&k), moved(&v));
            let tables: Vec<Vec<u32>> = tables.iter().map(|t| t.iter().map(|p| p ^ 1).collect()).collect();
            let asked: Vec<(usize, usize)> =
                lengths.iter().enumerate().flat_map(|(s, l)| [(s, l - 1), (s, l / 2)]).collect();
            let q = numbers(dtype, asked.len() * heads * d, 40);
            let mut rows: Vec<PagedRow> = asked
                .iter()
                .map(|&(table, p)| PagedRow {
                    low: window.map_or(0, |w: usize| (p + 1).saturating_sub(w)),
                    end: p + 1,
                    table,
                })
                .collect();
            rows[1] = PagedRow { low: 0, end: 0, table: 0 };
            let paged = PagedRows::new(&rows, &tables.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let shape = FlashShape { heads, kv_heads, head_dim: d, scale: 1.0 / (d as f32).sqrt(), softcap };
            let slopes: Vec<f32> = (0..heads).map(|h| 0.1 * 0.5f32.powi(h as i32)).collect();
            let sinks = numbers(FloatType::F32, heads, 50);
            let wide = |values: &[f32], wanted: bool| wanted.then(|| upload(&client, FloatType::F32, values));
            let q_at = HeadRows { buffer: upload(&client, dtype, &q), first: 0, token: heads * d, head: d };
            let words = upload_integers(&client, paged.words());
            let more = [wide(&slopes, biased), wide(&sinks, sunk)];
            let got = attend_pages(
                &client,
                &shape,
                &paged,
                &words,
                &q_at,
                [&k, &v],
                more.each_ref().map(|b| b.as_ref()),
            );
            let mut expected = vec![0.0; q.len()];
            for (i, row) in rows.iter().enumerate() {
                for head in 0..heads {
                    let own = (i * heads + head) * d;
                    let at = |p: usize| (p * kv_heads + head / (heads / kv_heads)) * d;
                    let score = |p: usize| {
                        let dot = |c: usize| f64::from(q[own + c]) * f64::from(keys[row.table][at(p) + c]);
                        let raw = (0..d).map(dot).sum::<f64>() * f64::from(shape.scale);
                        let capped = softcap.map_or(raw, |c| (raw / f64::from(c)).tanh() * f64::from(c));
                        let slope = if biased { f64::from(slopes[head]) } else { 0.0 };
                        (capped + slope * (p as f64 - (row.end - 1) as f64)).exp()
                    };
                    let shares: Vec<f64> = (row.low..row.end).map(score).collect();
                    let sink = if sunk { f64::from(sinks[head]).exp() } else { 0.0 };
                    let sum = shares.iter().sum::<f64>() + sink;
                    for (share, p) in shares.iter().zip(row.low..) {
                        for c in 0..d {
                            expected[own + c] += share / sum * f64::from(values[row.table][at(p) + c]);
                        }
                    }
                }
            }
            let bound = if dtype == FloatType::F32 { 1e-5 } else { 2e-2 };
            near(&what, &download(&client, &got), &expected, bound);
        }
    }
}
