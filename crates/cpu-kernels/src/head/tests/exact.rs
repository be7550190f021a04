//! Statistics and gradients against the f64 reference.

use super::reference::Head;
use super::{assert_close, for_each_path, values, widen};
use crate::head::{HeadGrad, HeadOptions, HeadStats, HeadWanted};
use crate::head::{head_backward, head_forward, head_fused, head_logits};
use crate::{Dropout, Linear, LowRank};
use burnish_core::LinearPart::{Bias, LoraA, LoraB, LoraBBias, Weight};
use burnish_core::random::{dropout_bits, dropout_row, dropout_threshold};
use burnish_core::{Compute, LinearPart, LinearParts};
use half::{bf16, f16};

pub(super) fn all() -> HeadWanted {
    HeadWanted { hidden: true, ..wanted(&[Weight, Bias, LoraA, LoraB, LoraBBias]) }
}

/// The gradients of these parts alone.
pub(super) fn wanted(parts: &[LinearPart]) -> HeadWanted {
    HeadWanted { hidden: false, parts: LinearParts::of(parts) }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Store {
    F32,
    Bf16,
    F16,
}

/// A head with its buffers.
pub(super) struct Problem {
    pub(super) n: usize,
    pub(super) dim: usize,
    pub(super) vocab: usize,
    pub(super) rank: usize,
    pub(super) biased: bool,
    pub(super) store: Store,
    pub(super) compute: Compute,
    pub(super) options: HeadOptions,
    pub(super) hidden: Vec<f32>,
    pub(super) weight: Vec<f32>,
    pub(super) weight_bf16: Vec<bf16>,
    pub(super) weight_f16: Vec<f16>,
    pub(super) bias: Vec<f32>,
    pub(super) a: Vec<f32>,
    pub(super) b: Vec<f32>,
    pub(super) b_bias: Vec<f32>,
    pub(super) targets: Vec<u32>,
    pub(super) g_lp: Vec<f32>,
    pub(super) g_h: Vec<f32>,
}

impl Problem {
    pub(super) fn new(
        n: usize,
        dim: usize,
        vocab: usize,
        rank: usize,
        biased: bool,
        store: Store,
        seed: u64,
    ) -> Self {
        let s = |k: u64| seed * 31 + k;
        let scaled =
            |len: usize, k: u64, by: f32| values(len, s(k)).iter().map(|x| x * by).collect::<Vec<_>>();
        let weight = scaled(vocab * dim, 1, 3.0 / (dim as f32).sqrt());
        let weight_bf16: Vec<bf16> = weight.iter().map(|&x| bf16::from_f32(x)).collect();
        let weight_f16: Vec<f16> = weight.iter().map(|&x| f16::from_f32(x)).collect();
        let weight = match store {
            Store::F32 => weight,
            Store::Bf16 => weight_bf16.iter().map(|x| x.to_f32()).collect(),
            Store::F16 => weight_f16.iter().map(|x| x.to_f32()).collect(),
        };
        Self {
            n,
            dim,
            vocab,
            rank,
            biased,
            store,
            compute: Compute::Fp32,
            options: HeadOptions::default(),
            hidden: scaled(n * dim, 2, 1.5),
            weight,
            weight_bf16,
            weight_f16,
            bias: values(vocab, s(3)),
            a: scaled(rank * dim, 4, 1.0 / (dim as f32).sqrt()),
            b: values(vocab * rank, s(5)),
            b_bias: values(vocab, s(6)),
            targets: values(n, s(7)).iter().map(|x| ((x + 1.0) * 0.5 * vocab as f32) as u32).collect(),
            g_lp: values(n, s(8)),
            g_h: values(n, s(9)),
        }
    }

    pub(super) fn options(mut self, temperature: f32, softcap: Option<f32>, logit_scale: f32) -> Self {
        self.options = HeadOptions { temperature, softcap, logit_scale, ..self.options };
        self
    }

    fn smoothed(mut self, label_smoothing: f32) -> Self {
        self.options.label_smoothing = label_smoothing;
        self
    }

    pub(super) fn head(&self) -> Linear<'_> {
        let weight = match self.store {
            Store::F32 => crate::Weight::F32(&self.weight),
            Store::Bf16 => crate::Weight::Bf16(&self.weight_bf16),
            Store::F16 => crate::Weight::F16(&self.weight_f16),
        };
        let low_rank = (self.rank > 0).then_some(LowRank {
            rank: self.rank,
            a: &self.a,
            b: &self.b,
            b_bias: self.biased.then_some(&self.b_bias),
            scale: 0.75,
            magnitude: None,
            dropout: None,
        });
        let bias = self.biased.then_some(&self.bias[..]);
        Linear { out: self.vocab, weight, bias, low_rank, compute: self.compute }
    }

    fn reference(&self) -> Head {
        Head {
            inputs: self.dim,
            out: self.vocab,
            rank: self.rank,
            weight: widen(&self.weight),
            bias: if self.biased { widen(&self.bias) } else { vec![] },
            a: widen(&self.a),
            b: widen(&self.b),
            b_bias: if self.biased && self.rank > 0 { widen(&self.b_bias) } else { vec![] },
            scale: 0.75,
        }
    }

    pub(super) fn forward(&self) -> HeadStats {
        head_forward(&self.hidden, &self.head(), None, &self.targets, &self.options)
    }

    pub(super) fn backward(&self, s: &HeadStats, g_h: Option<&[f32]>, wanted: &HeadWanted) -> HeadGrad {
        head_backward(
            &self.hidden,
            &self.head(),
            None,
            &self.targets,
            &self.options,
            s,
            &self.g_lp,
            g_h,
            wanted,
        )
    }

    pub(super) fn fused(&self, wanted: &HeadWanted) -> (HeadStats, HeadGrad) {
        let c = |row: usize, lp: f32| self.g_lp[row] * (1.0 + 0.1 * lp);
        head_fused(&self.hidden, &self.head(), None, &self.targets, &self.options, &c, wanted)
    }

    pub(super) fn label(&self) -> String {
        let Self { n, dim, vocab, rank, biased, store, options, .. } = self;
        format!("n {n} dim {dim} vocab {vocab} rank {rank} biased {biased} {store:?} {options:?}")
    }
}

pub(super) fn problems() -> Vec<Problem> {
    use Store::{Bf16, F16, F32};
    vec![
        Problem::new(1, 1, 1, 0, false, F32, 1),
        Problem::new(3, 5, 7, 0, true, F32, 2),
        Problem::new(33, 64, 300, 0, false, F32, 3),
        Problem::new(70, 40, 517, 3, true, F32, 4).options(0.7, Some(2.0), 0.5),
        Problem::new(17, 300, 129, 16, false, Bf16, 5).options(1.3, None, 2.0),
        Problem::new(530, 24, 131, 0, true, F32, 6).options(1.0, Some(5.0), 1.0),
        Problem::new(9, 600, 65, 40, true, F16, 7),
        Problem::new(40, 10, 20000, 2, false, F32, 8),
        Problem::new(70, 6, 260, 300, false, F32, 9),
        Problem::new(35, 20, 700, 2, true, F32, 10).options(0.7, Some(2.0), 0.5).smoothed(0.3),
    ]
}

fn check_stats(p: &Problem, got: &HeadStats, label: &str) {
    let want = p.reference().stats(&widen(&p.hidden), &p.targets, &p.options);
    assert_close(&format!("log_prob, {label}"), &got.log_prob, &want.log_prob, 2e-6);
    assert_close(&format!("entropy, {label}"), &got.entropy, &want.entropy, 2e-6);
    assert_close(&format!("log_sum_sq, {label}"), &got.log_sum_sq_probs, &want.log_sum_sq, 2e-6);
    assert_close(&format!("mean_logit, {label}"), &got.mean_logit, &want.mean_logit, 2e-6);
    assert_close(&format!("log_z, {label}"), &got.log_z, &want.log_z, 2e-6);
    assert_eq!(got.is_top1, want.is_top1, "is_top1, {label}");
}

fn check_grad(p: &Problem, got: &HeadGrad, g_lp: &[f64], g_h: &[f64], label: &str) {
    let want = p.reference().grad(&widen(&p.hidden), &p.targets, &p.options, g_lp, g_h);
    let found = |part| got.parts.found(part);
    for (name, got, want, present) in [
        ("hidden", got.hidden.as_ref(), &want.hidden, true),
        ("weight", found(Weight), &want.weight, true),
        ("bias", found(Bias), &want.bias, p.biased),
        ("a", found(LoraA), &want.a, p.rank > 0),
        ("b", found(LoraB), &want.b, p.rank > 0),
        ("b_bias", found(LoraBBias), &want.b_bias, p.rank > 0 && p.biased),
    ] {
        assert_eq!(got.is_some(), present, "{name}, {label}");
        if let Some(got) = got {
            assert_close(&format!("{name}, {label}"), got, want, 3e-6);
        }
    }
}

#[test]
fn statistics_and_gradients_equal_the_reference() {
    for_each_path(|| {
        for p in problems() {
            let label = p.label();
            let s = p.forward();
            check_stats(&p, &s, &label);
            let (g_lp, g_h) = (widen(&p.g_lp), widen(&p.g_h));
            check_grad(&p, &p.backward(&s, Some(&p.g_h), &all()), &g_lp, &g_h, &label);
            let none = vec![0.0; p.n];
            check_grad(&p, &p.backward(&s, None, &all()), &g_lp, &none, &label);
            let (s, g) = p.fused(&all());
            check_stats(&p, &s, &label);
            let want = p.reference().stats(&widen(&p.hidden), &p.targets, &p.options);
            let g_lp: Vec<f64> =
                g_lp.iter().zip(&want.log_prob).map(|(g, lp)| g * (1.0 + 0.1 * lp)).collect();
            check_grad(&p, &g, &g_lp, &none, &label);
        }
    });
}

#[test]
fn reference_gradient_equals_finite_differences() {
    let p = Problem::new(3, 4, 6, 2, true, Store::F32, 11).options(0.8, Some(1.5), 1.2);
    let (g_lp, g_h) = (widen(&p.g_lp), widen(&p.g_h));
    let hidden = widen(&p.hidden);
    let loss = |head: &Head, hidden: &[f64]| -> f64 {
        let s = head.stats(hidden, &p.targets, &p.options);
        (0..p.n).map(|i| g_lp[i] * s.log_prob[i] + g_h[i] * s.entropy[i]).sum()
    };
    let want = p.reference().grad(&hidden, &p.targets, &p.options, &g_lp, &g_h);
    type Field = fn(&mut Head) -> &mut Vec<f64>;
    let fields: [(Field, &[f64]); 5] = [
        (|h| &mut h.weight, &want.weight),
        (|h| &mut h.bias, &want.bias),
        (|h| &mut h.a, &want.a),
        (|h| &mut h.b, &want.b),
        (|h| &mut h.b_bias, &want.b_bias),
    ];
    let step = 1e-5;
    for (f, (field, want)) in fields.iter().enumerate() {
        for (i, want) in want.iter().enumerate() {
            let at = |by: f64| {
                let mut head = p.reference();
                field(&mut head)[i] += by;
                loss(&head, &hidden)
            };
            let slope = (at(step) - at(-step)) / (2.0 * step);
            assert!((slope - want).abs() < 1e-8, "field {f}, element {i}: {slope} against {want}");
        }
    }
    for (i, want) in want.hidden.iter().enumerate() {
        let at = |by: f64| {
            let mut x = hidden.clone();
            x[i] += by;
            loss(&p.reference(), &x)
        };
        let slope = (at(step) - at(-step)) / (2.0 * step);
        assert!((slope - want).abs() < 1e-8, "hidden {i}: {slope} against {want}");
    }
}

#[test]
fn only_what_is_wanted_is_made() {
    let p = Problem::new(20, 16, 100, 4, true, Store::F32, 12);
    let s = p.forward();
    let all = p.backward(&s, None, &all());
    let hidden = p.backward(&s, None, &HeadWanted { hidden: true, ..Default::default() });
    assert_eq!(hidden.hidden, all.hidden);
    assert!([Weight, Bias, LoraA, LoraB].iter().all(|&part| hidden.parts.found(part).is_none()));
    let same = |got: &HeadGrad, parts: [LinearPart; 2]| {
        assert_eq!(parts.map(|part| got.parts.found(part)), parts.map(|part| all.parts.found(part)));
    };
    let adapter = p.backward(&s, None, &wanted(&[LoraA, LoraB]));
    same(&adapter, [LoraA, LoraB]);
    assert!(adapter.hidden.is_none() && adapter.parts.weight.is_none());
    let bias = p.backward(&s, None, &wanted(&[Bias, LoraBBias]));
    same(&bias, [Bias, LoraBBias]);
}

/// Frozen heads: of several pieces of the vocabulary, of more tokens than are swept at once, of logits that grow to the last
/// entry, of targets that are all but certain.
fn frozen() -> Vec<Problem> {
    let mut growing = Problem::new(50, 40, 4000, 0, false, Store::F32, 31);
    for (v, row) in growing.weight.chunks_mut(40).enumerate() {
        row.iter_mut().for_each(|x| *x *= v as f32 / 1500.0);
    }
    let mut certain = Problem::new(40, 16, 1500, 0, true, Store::F32, 32);
    certain.bias[700] = 30.0;
    certain.targets.fill(700);
    let wide = Problem::new(1100, 33, 3000, 0, true, Store::Bf16, 33).options(0.9, Some(4.0), 1.5);
    let free = |p: &Problem| p.rank == 0 && p.options.label_smoothing == 0.0;
    problems().into_iter().filter(free).chain([growing, certain, wide]).collect()
}

#[test]
fn a_frozen_heads_gradients_equal_the_reference() {
    let wanted = HeadWanted { hidden: true, ..Default::default() };
    for_each_path(|| {
        for compute in [Compute::Fp32, Compute::Bf16] {
            for mut p in frozen() {
                p.compute = compute;
                let label = format!("{compute:?}, {}", p.label());
                let (s, fused) = p.fused(&wanted);
                let again = p.forward();
                assert_eq!(s.is_top1, again.is_top1, "{label}");
                let close = if compute == Compute::Fp32 { 2e-6 } else { 1e-2 };
                assert_close(&label, &s.log_z, &widen(&again.log_z), 2e-6);
                let want = p.reference().stats(&widen(&p.hidden), &p.targets, &p.options);
                assert_close(&label, &s.log_prob, &want.log_prob, close);
                assert_close(&label, &s.entropy, &want.entropy, close);
                let g_lp: Vec<f64> = p
                    .g_lp
                    .iter()
                    .zip(&s.log_prob)
                    .map(|(g, lp)| f64::from(*g) * (1.0 + 0.1 * f64::from(*lp)))
                    .collect();
                let grad = |g_lp: &[f64], g_h: &[f64]| {
                    p.reference().grad(&widen(&p.hidden), &p.targets, &p.options, g_lp, g_h).hidden
                };
                let near = |got: HeadGrad, want: Vec<f64>| {
                    assert!(LinearPart::ALL.iter().all(|part| got.parts.found(*part).is_none()));
                    assert_close(&label, &got.hidden.unwrap(), &want, close);
                };
                near(fused, grad(&g_lp, &vec![0.0; p.n]));
                near(p.backward(&again, Some(&p.g_h), &wanted), grad(&widen(&p.g_lp), &widen(&p.g_h)));
            }
        }
    });
}

/// What a target that is nearly certain pulls is as exact as what one that isn't does.
#[test]
fn a_certain_targets_pull_is_not_lost_to_rounding() {
    let mut p = Problem::new(1, 8, 300, 0, true, Store::F32, 34);
    p.bias[120] = 16.0;
    p.targets.fill(120);
    for compute in [Compute::Fp32, Compute::Bf16] {
        p.compute = compute;
        let (s, g) = p.fused(&HeadWanted { hidden: true, ..Default::default() });
        let g_lp = f64::from(p.g_lp[0]) * (1.0 + 0.1 * f64::from(s.log_prob[0]));
        let want = p.reference().grad(&widen(&p.hidden), &p.targets, &p.options, &[g_lp], &[0.0]).hidden;
        let top = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        assert!(top < 1e-3, "{top}");
        for (got, want) in g.hidden.unwrap().iter().zip(&want) {
            let off = (f64::from(*got) - want).abs() / top;
            assert!(off < if compute == Compute::Fp32 { 1e-2 } else { 0.1 }, "{compute:?}: off by {off}");
        }
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    let p = Problem::new(600, 48, 900, 4, true, Store::F32, 13);
    let plain = Problem::new(600, 48, 1900, 0, true, Store::F32, 13);
    let (s3, frozen) = (plain.forward(), HeadWanted { hidden: true, ..Default::default() });
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let s = p.forward();
            let g = p.backward(&s, Some(&p.g_h), &all());
            let (s2, g2) = p.fused(&all());
            (s, g, s2, g2, plain.fused(&frozen), plain.backward(&s3, None, &frozen))
        })
    };
    let one = run(1);
    assert_eq!(one.0, one.2);
    for threads in [2, 5, 16] {
        assert!(run(threads) == one, "{threads} threads differ from one");
    }
}

#[test]
fn logits_equal_the_reference() {
    for_each_path(|| {
        for p in problems() {
            let got = head_logits(&p.hidden, &p.head(), &p.options);
            let want = p.reference().logits(&widen(&p.hidden), &p.options);
            assert_close(&format!("logits, {}", p.label()), &got, &want, 2e-6);
        }
    });
}

#[test]
fn dropout_of_the_low_rank_branch_masks_its_input() {
    // With a zero weight and no bias, the head on dropped rows is the head without dropout on masked hidden states.
    let (n, dim, vocab, rank) = (37, 50, 90, 5);
    let mut p = Problem::new(n, dim, vocab, rank, false, Store::F32, 14);
    p.weight.fill(0.0);
    let (key, drop) = (99, 0.4f32);
    let rows: Vec<u64> = (0..n as u64).map(|i| 1000 + 7 * i).collect();
    let keep = |i: usize, c: usize| {
        let kept = dropout_bits(dropout_row(key, rows[i]), c as u32) >= dropout_threshold(drop);
        if kept { 1.0 / (1.0 - drop) } else { 0.0 }
    };
    let mut masked = Problem::new(n, dim, vocab, rank, false, Store::F32, 14);
    masked.weight.fill(0.0);
    for i in 0..n {
        for c in 0..dim {
            masked.hidden[i * dim + c] *= keep(i, c);
        }
    }
    let (want_stats, want) = masked.fused(&all());
    let mut head = p.head();
    if let Some(low) = &mut head.low_rank {
        low.dropout = Some(Dropout { key, p: drop, rows: &rows, first_column: 0 });
    }
    let c = |row: usize, lp: f32| p.g_lp[row] * (1.0 + 0.1 * lp);
    let (stats, got) = head_fused(&p.hidden, &head, None, &p.targets, &p.options, &c, &all());
    assert_close("log_prob", &stats.log_prob, &widen(&want_stats.log_prob), 1e-6);
    for part in [LoraA, LoraB] {
        let (got, want) = (got.parts.found(part).unwrap(), want.parts.found(part).unwrap());
        assert_close(part.name(), got, &widen(want), 1e-6);
    }
    let mut hidden = want.hidden.unwrap();
    for i in 0..n {
        for c in 0..dim {
            hidden[i * dim + c] *= keep(i, c);
        }
    }
    assert_close("hidden", &got.hidden.unwrap(), &widen(&hidden), 1e-6);
}

#[test]
fn a_vocabulary_of_256k_equals_the_reference() {
    // The tile of logits holds 32 tokens here: 33 take two.
    let p = Problem::new(33, 4, 262_144, 0, true, Store::F32, 18);
    let (s, g) = p.fused(&all());
    check_stats(&p, &s, &p.label());
    let want = p.reference().stats(&widen(&p.hidden), &p.targets, &p.options);
    let g_lp: Vec<f64> =
        p.g_lp.iter().zip(&want.log_prob).map(|(g, lp)| f64::from(*g) * (1.0 + 0.1 * lp)).collect();
    check_grad(&p, &g, &g_lp, &vec![0.0; p.n], &p.label());
}

#[test]
fn no_tokens_give_zero_gradients() {
    let p = Problem::new(0, 8, 20, 2, true, Store::F32, 15);
    let (s, g) = p.fused(&all());
    assert!(s.log_prob.is_empty());
    assert_eq!(g.hidden.unwrap().len(), 0);
    for part in [Weight, Bias, LoraA, LoraB, LoraBBias] {
        assert!(g.parts.found(part).unwrap().iter().all(|&x| x == 0.0));
    }
}

#[test]
fn an_entry_at_minus_infinity_has_no_part() {
    let mut p = Problem::new(5, 8, 40, 0, true, Store::F32, 16);
    p.bias[3] = f32::NEG_INFINITY;
    p.bias[0] = f32::NEG_INFINITY;
    p.targets = vec![1, 2, 4, 5, 39];
    let wanted = HeadWanted { hidden: true, ..wanted(&[Weight]) };
    let (s, g) = p.fused(&wanted);
    assert!(s.log_prob.iter().chain(&s.entropy).all(|x| x.is_finite()));
    assert!(g.hidden.unwrap().iter().chain(&g.parts.weight.unwrap()).all(|x| x.is_finite()));
}

#[test]
#[should_panic(expected = "target 20 lies outside the vocabulary of 20 entries")]
fn a_target_outside_the_vocabulary_is_refused() {
    let mut p = Problem::new(2, 8, 20, 0, false, Store::F32, 17);
    p.targets[1] = 20;
    p.forward();
}

/// Near the f64 reference: the length of the error against that of the result.
#[test]
fn products_of_bf16_are_near_the_reference() {
    for_each_path(|| {
        for mut p in problems().into_iter().filter(|p| p.dim >= 10) {
            p.compute = Compute::Bf16;
            let label = p.label();
            let want = p.reference().stats(&widen(&p.hidden), &p.targets, &p.options);
            let (s, g) = p.fused(&all());
            let again = p.forward();
            assert!(s == again, "fused and forward, {label}");
            let error = |got: &[f32], want: &[f64]| {
                let off = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum::<f64>();
                (off / want.iter().map(|w| w * w).sum::<f64>().max(1e-12)).sqrt()
            };
            assert!(error(&s.log_prob, &want.log_prob) < 6e-3, "log_prob, {label}");
            let g_lp: Vec<f64> =
                p.g_lp.iter().zip(&want.log_prob).map(|(g, lp)| f64::from(*g) * (1.0 + 0.1 * lp)).collect();
            let want = p.reference().grad(&widen(&p.hidden), &p.targets, &p.options, &g_lp, &vec![0.0; p.n]);
            let found = |part| g.parts.found(part);
            for (name, got, want) in [
                ("hidden", g.hidden.as_ref(), &want.hidden),
                ("weight", found(Weight), &want.weight),
                ("bias", found(Bias), &want.bias),
                ("a", found(LoraA), &want.a),
                ("b", found(LoraB), &want.b),
                ("b_bias", found(LoraBBias), &want.b_bias),
            ] {
                if let Some(got) = got {
                    let error = error(got, want);
                    assert!(error < 2e-2, "{name}, {label}: {error}");
                }
            }
        }
    });
}

#[test]
fn products_of_bf16_do_not_depend_on_threads() {
    let mut p = Problem::new(600, 49, 901, 5, true, Store::Bf16, 13);
    p.compute = Compute::Bf16;
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let s = p.forward();
            let g = p.backward(&s, Some(&p.g_h), &all());
            (s, g, p.fused(&all()))
        })
    };
    let one = run(1);
    assert!(one.0 == one.2.0);
    for threads in [2, 5] {
        assert!(run(threads) == one, "{threads} threads differ from one");
    }
}
