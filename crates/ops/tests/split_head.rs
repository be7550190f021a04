//! The head split over ranks, which are threads here, equals the whole one.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use burn::tensor::{DType, Tensor, TensorData};
use burnish_ops::{
    AcrossVocab, AnyTensor, Linear, NoWeights, OpsError, Run, TokenStats, VocabShard, apply, gpu,
    head_log_probs, head_logits, head_loss, reference, segment,
};

use crate::case::{Body, DIFFERENCE, F32, Input, assert_close, device, to_f64};
use crate::head::{ALL, BARE, FULL, With, coefficient, inputs, linear, targets, value};

/// Where ranks leave what they have and take what all have.
struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    round: usize,
    given: Vec<Option<Vec<f32>>>,
    all: Vec<f32>,
    /// Elements that each round took from a rank.
    lengths: Vec<usize>,
}

impl Meeting {
    fn new(ranks: usize) -> Arc<Self> {
        let state = State { round: 0, given: vec![None; ranks], all: vec![], lengths: vec![] };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn gather(&self, rank: usize, own: &[f32]) -> Vec<f32> {
        let mut state = self.state.lock().unwrap();
        let round = state.round;
        assert!(state.given[rank].replace(own.to_vec()).is_none(), "rank {rank} came twice");
        if state.given.iter().all(Option::is_some) {
            let all: Vec<Vec<f32>> = state.given.iter_mut().map(|g| g.take().unwrap()).collect();
            assert!(all.iter().all(|g| g.len() == own.len()), "round {round}: lengths differ");
            (state.all, state.round) = (all.concat(), round + 1);
            state.lengths.push(own.len());
            self.changed.notify_all();
        }
        let wait = Duration::from_secs(60);
        let (state, late) = self.changed.wait_timeout_while(state, wait, |s| s.round == round).unwrap();
        assert!(!late.timed_out(), "rank {rank}: a rank is missing in round {round}");
        state.all.clone()
    }

    fn lengths(&self) -> Vec<usize> {
        self.state.lock().unwrap().lengths.clone()
    }
}

/// A rank's hook.
struct Rank {
    meeting: Arc<Meeting>,
    rank: usize,
}

impl AcrossVocab for Rank {
    fn gather(&self, own: &[f32]) -> Vec<f32> {
        self.meeting.gather(self.rank, own)
    }
}

/// Runs `work` on every rank at once, with its shard.
fn on_ranks<T: Send>(
    counts: &[usize],
    work: impl Fn(&VocabShard, &Rank) -> T + Sync,
) -> (Vec<T>, Vec<usize>) {
    let meeting = Meeting::new(counts.len());
    let one = |rank: usize| {
        let hook = || Rank { meeting: meeting.clone(), rank };
        work(&VocabShard::new(counts, rank, Arc::new(hook())).unwrap(), &hook())
    };
    let found = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..counts.len()).map(|r| scope.spawn(move || one(r))).collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    (found, meeting.lengths())
}

/// Balanced, uneven, and with ranks that have nothing.
fn splits(vocab: usize) -> Vec<Vec<usize>> {
    let balanced = |ranks: usize| (0..ranks).map(|r| (r + 1) * vocab / ranks - r * vocab / ranks).collect();
    let (some, few) = (vocab / 7, vocab / 3);
    vec![
        balanced(2),
        balanced(3),
        balanced(4),
        vec![vocab, 0],
        vec![some, vocab - some - few, few],
        vec![0, few, 0, vocab - few],
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    LogProbs,
    Loss,
    /// A loss in a segment: made again in backward.
    LossInSegment,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Found {
    value: Vec<f64>,
    stats: TokenStats,
    gradients: Vec<Option<Vec<f64>>>,
}

/// Of whose rows the tensor is: the dimension that is split.
fn is_split(name: &str) -> bool {
    ["weight", "bias", "b", "b_bias"].contains(&name)
}

fn rows_of(input: &Input, dtype: DType, own: Option<&Range<usize>>) -> AnyTensor {
    let whole = input.values().convert_dtype(dtype);
    let Some(own) = own.filter(|_| is_split(input.name)) else {
        return AnyTensor::from_data(whole, &device());
    };
    let mut shape = input.shape.clone();
    let width: usize = shape[1..].iter().product();
    shape[0] = own.len();
    let values: Vec<f64> = whole.convert_dtype(DType::F64).try_into_vec().unwrap();
    let values = values[own.start * width..own.end * width].to_vec();
    AnyTensor::from_data(TensorData::new(values, shape).convert_dtype(dtype), &device())
}

/// One rank's values and gradients, under a fixed upstream gradient.
fn find(
    (body, asked, with, dims): (Body, Asked, With, [usize; 3]),
    shard: Option<&VocabShard>,
    tracked: &[bool],
    f64: bool,
) -> Found {
    let [tokens, _, vocab] = dims;
    let own = shard.map(VocabShard::rows);
    let leaves: Vec<AnyTensor> = inputs(with, dims)
        .iter()
        .zip(tracked)
        .map(|(input, &tracked)| {
            let t = rows_of(input, if f64 { DType::F64 } else { input.dtype }, own.as_ref());
            if tracked { t.leaf() } else { t }
        })
        .collect();
    let targets = targets(tokens, vocab);
    let stats = Arc::new(Mutex::new(TokenStats::default()));
    let (seen, shard) = (stats.clone(), shard.cloned());
    let run: Run = Arc::new(move |t, _| {
        let (head, shard) = (linear(with, tokens, &t[1..]), shard.as_ref());
        let (out, found) = match (asked, body) {
            (Asked::LogProbs, Body::Fused) => head_log_probs(&t[0], &head, shard, &targets, with.options),
            (Asked::LogProbs, Body::Gpu) => gpu::head_log_probs(&t[0], &head, shard, &targets, with.options),
            (_, Body::Gpu) => {
                gpu::head_loss(&t[0], &head, shard, &targets, with.options, &coefficient(), value)
            }
            (Asked::LogProbs, Body::Reference) => {
                reference::head_log_probs(&t[0], &head, shard, &targets, with.options)
            }
            (_, Body::Fused) => head_loss(&t[0], &head, shard, &targets, with.options, &coefficient(), value),
            (_, Body::Reference) => {
                reference::head_loss(&t[0], &head, shard, &targets, with.options, &coefficient(), value)
            }
        }?;
        *seen.lock().unwrap() = found;
        Ok(out)
    });
    let out = match asked {
        Asked::LossInSegment => segment("head", &leaves, Arc::new(NoWeights), true, run),
        _ => run(&leaves, &[]),
    }
    .unwrap();
    assert_eq!(out.is_tracked(), tracked.contains(&true));
    let mut found = Found { value: to_f64(&out), ..Found::default() };
    if out.is_tracked() {
        let upstream = Input::new("upstream", &out.shape(), 1.0).values();
        let upstream = AnyTensor::from_data(
            upstream.convert_dtype(if f64 { DType::F64 } else { DType::F32 }),
            &device(),
        );
        let sum = match asked {
            Asked::LogProbs => (out.rank::<2>().unwrap() * upstream.rank::<2>().unwrap()).sum(),
            _ => out.rank::<1>().unwrap() * upstream.rank::<1>().unwrap(),
        };
        let mut gradients = sum.backward();
        found.gradients = leaves
            .iter()
            .zip(tracked)
            .map(|(t, &w)| {
                w.then(|| t.take_gradient(&mut gradients).unwrap())
                    .inspect(|g| assert_eq!(g.shape(), t.shape()))
                    .map(|g| to_f64(&g))
            })
            .collect();
    }
    found.stats = stats.lock().unwrap().clone();
    found
}

/// Rows side by side, addends added.
fn together(ranks: &[Found], inputs: &[Input]) -> Vec<Option<Vec<f64>>> {
    let merged = |i: usize| -> Option<Vec<f64>> {
        let parts: Option<Vec<&Vec<f64>>> = ranks.iter().map(|r| r.gradients[i].as_ref()).collect();
        let parts = parts?;
        if is_split(inputs[i].name) {
            return Some(parts.into_iter().flatten().copied().collect());
        }
        Some((0..parts[0].len()).map(|e| parts.iter().map(|p| p[e]).sum()).collect())
    };
    (0..ranks[0].gradients.len()).map(merged).collect()
}

fn check_stats(got: &TokenStats, want: &TokenStats, tolerance: f64, label: &str) {
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    for (what, got, want) in [
        ("log_prob", &got.log_prob, &want.log_prob),
        ("entropy", &got.entropy, &want.entropy),
        ("log_sum_sq_probs", &got.log_sum_sq_probs, &want.log_sum_sq_probs),
        ("mean_logit", &got.mean_logit, &want.mean_logit),
    ] {
        assert_close(&wide(got), &wide(want), tolerance, &format!("{label}: {what}"));
    }
    assert_eq!(got.is_top1, want.is_top1, "{label}");
}

fn check(case: (Body, Asked, With, [usize; 3]), tracked: &[bool], f64: bool) {
    let (body, asked, with, dims) = case;
    let all = inputs(with, dims);
    let want = find((Body::Reference, asked, with, dims), None, tracked, true);
    for counts in splits(dims[2]) {
        let label = format!("{body:?} {asked:?} {with:?} {dims:?} tracked {tracked:?} split {counts:?}");
        let (found, lengths) = on_ranks(&counts, |shard, _| find(case, Some(shard), tracked, f64));
        for other in &found {
            assert_eq!((&other.value, &other.stats), (&found[0].value, &found[0].stats), "{label}");
        }
        let passes = if asked == Asked::LossInSegment && tracked.contains(&true) { 2 } else { 1 };
        assert_eq!(lengths.iter().sum::<usize>(), passes * VocabShard::VALUES * dims[0], "{label}");
        assert_close(&found[0].value, &want.value, F32, &label);
        check_stats(&found[0].stats, &want.stats, F32, &label);
        let tolerance = if f64 { DIFFERENCE } else { F32 };
        for ((got, want), input) in together(&found, &all).iter().zip(&want.gradients).zip(&all) {
            assert_eq!(got.is_some(), want.is_some(), "{label}: {}", input.name);
            if let (Some(got), Some(want)) = (got, want) {
                assert_close(got, want, tolerance, &format!("{label}: {}", input.name));
            }
        }
    }
}

const DIMS: [[usize; 3]; 2] = [[9, 19, 33], [300, 24, 150]];
const KINDS: [Asked; 3] = [Asked::LogProbs, Asked::Loss, Asked::LossInSegment];

#[test]
fn values_and_gradients_of_every_rank_make_the_whole() {
    let low_rank = With { rank: 2, ..BARE };
    for with in [BARE, low_rank, FULL, With { dtype: DType::BF16, ..FULL }] {
        for (asked, dims) in KINDS.into_iter().flat_map(|a| DIMS.map(|d| (a, d))) {
            for body in [Body::Fused, Body::Reference, Body::Gpu] {
                // Whose products are then in bf16.
                if body == Body::Gpu && with.dtype == DType::BF16 {
                    continue;
                }
                let all = vec![true; inputs(with, dims).len()];
                check((body, asked, with, dims), &all, false);
            }
        }
    }
}

#[test]
fn whatever_is_trained() {
    let (hidden, adapter) =
        ([true, false, false, false, false, false], [false, false, false, true, true, true]);
    let bias = [false, false, true, false, false, false];
    for body in [Body::Fused, Body::Reference, Body::Gpu] {
        for asked in KINDS {
            for tracked in [hidden, adapter, bias, [false; 6]] {
                check((body, asked, FULL, [9, 19, 33]), &tracked, false);
            }
        }
    }
}

/// Whose gradient is that of finite differences; only what is exchanged is rounded to 32 bits.
#[test]
fn the_reference_in_f64_is_the_whole_one() {
    for asked in KINDS {
        check((Body::Reference, asked, FULL, [4, 3, 9]), &[true; 6], true);
    }
}

/// Gradients made in forward exchange once per tile, whose length all ranks agree on.
#[test]
fn every_tile_is_exchanged_once() {
    let (case, counts) = ((Body::Fused, Asked::Loss, BARE, [600, 2, 50_000]), [20_000, 25_000, 5_000]);
    let (_, lengths) = on_ranks(&counts, |shard, _| {
        assert_eq!(shard.tile(), 320);
        find(case, Some(shard), &[true, true], false);
    });
    assert_eq!(lengths, [VocabShard::VALUES * 320, VocabShard::VALUES * 280]);
    let (_, lengths) = on_ranks(&counts, |shard, _| find(case, Some(shard), &[false, false], false));
    assert_eq!(lengths, [VocabShard::VALUES * 600]);
}

/// This rank's rows of the embedding of `ids`, zeros where another has them.
fn own_embedding(weight: &AnyTensor, ids: &[u32], own: Range<usize>) -> Result<AnyTensor, OpsError> {
    let dim = weight.shape()[1];
    let rows: Vec<Option<usize>> =
        ids.iter().map(|&i| own.contains(&(i as usize)).then(|| i as usize - own.start)).collect();
    apply("own embedding", std::slice::from_ref(weight), move |t, _| {
        let (w, shape) = (t[0].to_f32(), t[0].shape());
        let mut out = vec![0.0; rows.len() * dim];
        for (out, row) in out.chunks_mut(dim).zip(&rows) {
            if let Some(row) = row {
                out.copy_from_slice(&w[row * dim..(row + 1) * dim]);
            }
        }
        let tokens = rows.len();
        let back = move |upstream: AnyTensor| {
            let mut g = vec![0.0; shape.iter().product()];
            for (u, row) in upstream.to_f32().chunks(dim).zip(&rows) {
                for (c, u) in u.iter().enumerate().take(row.map_or(0, |_| dim)) {
                    g[row.unwrap() * dim + c] += u;
                }
            }
            vec![Some(AnyTensor::from_data(TensorData::new(g, shape), &device()))]
        };
        Ok((AnyTensor::from_elements(out, &[tokens, dim], &device()), Box::new(back)))
    })
}

fn added(rank: &Rank, t: &AnyTensor) -> AnyTensor {
    let all = rank.gather(&t.to_f32());
    let n = t.shape().iter().product::<usize>();
    let sum = (0..n).map(|i| all.iter().skip(i).step_by(n).sum()).collect::<Vec<f32>>();
    AnyTensor::from_elements(sum, &t.shape(), &device())
}

/// A weight that is both table and head: the rows' two gradients meet on the rank that has them.
#[test]
fn a_tied_weight_is_split_once() {
    const DIMS: [usize; 3] = [12, 6, 29];
    let ids: Vec<u32> = (0..12u32).map(|i| i * 7 % 29).collect();
    let weight = || Input::new("weight", &[29, 6], 0.8);
    let loss = |hidden: &AnyTensor, weight: &AnyTensor, shard: Option<&VocabShard>| {
        let head = Linear::new(weight.clone());
        head_loss(hidden, &head, shard, &targets(12, 29), ALL, &coefficient(), value).unwrap()
    };
    let nonlinear = |x: &AnyTensor| -> AnyTensor { AnyTensor::new(x.rank::<2>().unwrap().tanh()) };

    let whole = rows_of(&weight(), DType::F32, None).leaf();
    let hidden = nonlinear(&own_embedding(&whole, &ids, 0..29).unwrap());
    let (out, stats) = loss(&hidden, &whole, None);
    let mut gradients = out.rank::<1>().unwrap().backward();
    let want = to_f64(&whole.take_gradient(&mut gradients).unwrap());
    assert_eq!(want.len(), DIMS[1] * DIMS[2]);

    for counts in splits(29) {
        let (found, _) = on_ranks(&counts, |shard, rank| {
            let own = rows_of(&weight(), DType::F32, Some(&shard.rows())).leaf();
            let part = own_embedding(&own, &ids, shard.rows()).unwrap();
            // Added up in forward; in backward every rank has the whole gradient.
            let x =
                apply("g", &[part], |t, _| Ok((added(rank, &t[0]), Box::new(|g| vec![Some(g)])))).unwrap();
            let back = Rank { meeting: rank.meeting.clone(), rank: rank.rank };
            // The head's addends of the gradient are added up.
            let x = apply("f", &[nonlinear(&x)], |t, _| {
                Ok((t[0].clone(), Box::new(move |g| vec![Some(added(&back, &g))])))
            });
            let (out, stats) = loss(&x.unwrap(), &own, Some(shard));
            let mut gradients = out.rank::<1>().unwrap().backward();
            (stats, to_f64(&own.take_gradient(&mut gradients).unwrap()))
        });
        let label = format!("{counts:?}");
        check_stats(&found[0].0, &stats, F32, &label);
        let got: Vec<f64> = found.into_iter().flat_map(|f| f.1).collect();
        assert_close(&got, &want, F32, &label);
    }
}

/// The largest logit twice, on two ranks or on one, or everywhere: accuracy counts the first.
#[test]
fn of_equal_logits_the_first_is_the_maximum() {
    let hidden = AnyTensor::new(Tensor::<2>::ones([4, 1], &device()));
    let weight = |twice: f32| {
        let mut rows = [0.0f32; 21];
        (rows[9], rows[16]) = (twice, twice);
        rows
    };
    let targets = Arc::new(vec![0, 9, 16, 20]);
    for (twice, want) in [(5.0, [false, true, false, false]), (0.0, [true, false, false, false])] {
        for (counts, body) in splits(21)
            .into_iter()
            .flat_map(|c| [Body::Fused, Body::Reference, Body::Gpu].map(|body| (c.clone(), body)))
        {
            let (found, _) = on_ranks(&counts, |shard, _| {
                let own = weight(twice)[shard.rows()].to_vec();
                let head = Linear::new(AnyTensor::from_elements(own, &[shard.rows().len(), 1], &device()));
                let head_log_probs = match body {
                    Body::Fused => head_log_probs,
                    Body::Reference => reference::head_log_probs,
                    Body::Gpu => gpu::head_log_probs,
                };
                head_log_probs(&hidden, &head, Some(shard), &targets, ALL).unwrap().1.is_top1
            });
            assert!(found.iter().all(|f| *f == want), "{body:?} {counts:?}: {found:?}");
        }
    }
}

#[test]
fn logits_of_the_rows_make_those_of_the_vocabulary() {
    let dims @ [tokens, _, vocab] = [7, 6, 11];
    let tensors = |own: Option<&Range<usize>>| -> Vec<AnyTensor> {
        inputs(FULL, dims).iter().map(|i| rows_of(i, i.dtype, own)).collect()
    };
    let logits = |own: Option<&Range<usize>>| {
        let t = tensors(own);
        head_logits(&t[0], &linear(FULL, tokens, &t[1..]), ALL).unwrap()
    };
    let want = logits(None);
    for counts in splits(vocab) {
        let (found, _) = on_ranks(&counts, |shard, _| logits(Some(&shard.rows())));
        for token in 0..tokens {
            let row: Vec<f64> = counts
                .iter()
                .zip(&found)
                .flat_map(|(&n, part)| part[token * n..(token + 1) * n].iter().map(|&x| x.into()))
                .collect();
            let want: Vec<f64> = want[token * vocab..][..vocab].iter().map(|&x| x.into()).collect();
            assert_close(&row, &want, F32, &format!("{counts:?}, token {token}"));
        }
    }
}

#[test]
fn without_tokens_nothing_is_exchanged() {
    let dims = [0, 6, 11];
    let (_, lengths) = on_ranks(&[5, 0, 6], |shard, _| {
        for body in [Body::Fused, Body::Reference, Body::Gpu] {
            let leaves: Vec<AnyTensor> =
                inputs(FULL, dims).iter().map(|i| rows_of(i, i.dtype, Some(&shard.rows())).leaf()).collect();
            let head = linear(FULL, 0, &leaves[1..]);
            let (loss, _) = match body {
                Body::Fused => {
                    head_loss(&leaves[0], &head, Some(shard), &Arc::default(), ALL, &coefficient(), value)
                }
                Body::Reference => reference::head_loss(
                    &leaves[0],
                    &head,
                    Some(shard),
                    &Arc::default(),
                    ALL,
                    &coefficient(),
                    value,
                ),
                Body::Gpu => gpu::head_loss(
                    &leaves[0],
                    &head,
                    Some(shard),
                    &Arc::default(),
                    ALL,
                    &coefficient(),
                    value,
                ),
            }
            .unwrap();
            let mut gradients = loss.rank::<1>().unwrap().backward();
            for leaf in &leaves {
                let zero = vec![0.0; leaf.shape().iter().product()];
                assert_eq!(leaf.take_gradient(&mut gradients).unwrap().to_f32(), zero);
            }
        }
    });
    assert!(lengths.is_empty());
}

#[test]
fn a_shard_that_does_not_fit_is_refused() {
    let alone: Arc<dyn AcrossVocab> = Arc::new(|own: &[f32]| own.to_vec());
    let error = VocabShard::new(&[4, 5], 2, alone.clone()).unwrap_err().to_string();
    assert_eq!(error, "vocabulary shard: index 2 is outside 0..2");

    let shard = VocabShard::new(&[4, 5], 1, alone).unwrap();
    assert_eq!((shard.rows(), shard.vocab()), (4..9, 9));
    let hidden = AnyTensor::new(Tensor::<2>::ones([1, 3], &device()));
    let rows = |n: usize| Linear::new(AnyTensor::new(Tensor::<2>::ones([n, 3], &device())));
    let message = |head: &Linear, target: u32| {
        let found = head_log_probs(&hidden, head, Some(&shard), &Arc::new(vec![target]), ALL);
        found.unwrap_err().to_string()
    };
    assert_eq!(message(&rows(4), 0), "head: `weight` has shape [4, 3], expected [5, 3]");
    assert_eq!(message(&rows(5), 9), "head: index 9 is outside 0..9");
}
