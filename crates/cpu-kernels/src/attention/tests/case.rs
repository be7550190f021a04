//! Attention problems the tests run: sizes with every kind of tail, masks, norms.

use crate::attention::{AttentionShape, HeadNorm, Rotary};
use burnish_core::Compute;
use std::ops::Range;

/// Deterministic values in [-1, 1).
pub(super) fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rows: usize,
    pub(super) documents: Vec<Range<usize>>,
    pub(super) parents: Vec<Option<usize>>,
    pub(super) window: Option<usize>,
    pub(super) softcap: Option<f32>,
    pub(super) slopes: Vec<f32>,
    pub(super) sinks: Vec<f32>,
    pub(super) rotary_dim: usize,
    pub(super) norm: bool,
    pub(super) compute: Compute,
}

/// A case with its buffers.
pub(super) struct Problem {
    pub(super) case: Case,
    pub(super) qkv: Vec<f32>,
    pub(super) d_out: Vec<f32>,
    pub(super) table: Vec<f32>,
    pub(super) positions: Vec<u32>,
    gain_q: Vec<f32>,
    gain_k: Vec<f32>,
}

impl Case {
    pub(super) fn new(heads: usize, kv_heads: usize, head_dim: usize, lengths: &[usize]) -> Self {
        let mut documents = vec![];
        let mut at = 0;
        for &n in lengths {
            documents.push(at..at + n);
            at += n;
        }
        let (window, softcap, rotary_dim, norm) = (None, None, 0, false);
        let (parents, slopes, sinks, compute, rows) = (vec![], vec![], vec![], Compute::Fp32, at);
        Self {
            heads,
            kv_heads,
            head_dim,
            rows,
            documents,
            parents,
            window,
            softcap,
            slopes,
            sinks,
            rotary_dim,
            norm,
            compute,
        }
    }

    pub(super) fn window(mut self, w: usize) -> Self {
        self.window = Some(w);
        self
    }

    pub(super) fn softcap(mut self, c: f32) -> Self {
        self.softcap = Some(c);
        self
    }

    /// A slope of its own for each head.
    pub(super) fn slopes(mut self) -> Self {
        self.slopes = (0..self.heads).map(|h| 0.7 * 0.6f32.powi(h as i32)).collect();
        self
    }

    /// A sink of its own for each head, far below the scores, among them and above.
    pub(super) fn sinks(mut self) -> Self {
        self.sinks = (0..self.heads).map(|h| 3.0 * (h as f32 * 1.7).sin()).collect();
        self
    }

    pub(super) fn rotary(mut self, dim: usize) -> Self {
        self.rotary_dim = dim;
        self
    }

    pub(super) fn norm(mut self) -> Self {
        self.norm = true;
        self
    }

    /// Adds rows before, between and after the documents which belong to none.
    pub(super) fn gaps(mut self, gap: usize) -> Self {
        for (i, d) in self.documents.iter_mut().enumerate() {
            *d = d.start + gap * (i + 1)..d.end + gap * (i + 1);
        }
        self.rows += gap * (self.documents.len() + 1);
        self
    }

    pub(super) fn problem(self, seed: u64) -> Problem {
        let width = (self.heads + 2 * self.kv_heads) * self.head_dim;
        let mut qkv = values(self.rows * width, seed);
        qkv.iter_mut().for_each(|x| *x *= 1.5);
        let d_out = values(self.rows * self.heads * self.head_dim, seed + 1);
        let mut positions = vec![0u32; self.rows];
        for d in &self.documents {
            for r in d.clone() {
                positions[r] = (r - d.start) as u32;
            }
        }
        let r = self.rotary_dim;
        let longest = self.documents.iter().map(ExactSizeIterator::len).max().unwrap_or(0).max(1);
        let mut table = vec![0.0; longest * r];
        for p in 0..longest {
            for i in 0..r / 2 {
                let angle = p as f64 / 100f64.powf(2.0 * i as f64 / r as f64);
                table[p * r + i] = (1.1 * angle.cos()) as f32;
                table[p * r + r / 2 + i] = (1.1 * angle.sin()) as f32;
            }
        }
        let gain = |s| values(self.head_dim, s).iter().map(|x| 1.0 + 0.3 * x).collect::<Vec<f32>>();
        let (gain_q, gain_k) = (gain(seed + 2), gain(seed + 3));
        Problem { case: self, qkv, d_out, table, positions, gain_q, gain_k }
    }
}

impl Problem {
    pub(super) fn shape(&self) -> AttentionShape<'_> {
        AttentionShape {
            heads: self.case.heads,
            kv_heads: self.case.kv_heads,
            head_dim: self.case.head_dim,
            scale: 1.0 / (self.case.head_dim as f32).sqrt(),
            softcap: self.case.softcap,
            slopes: &self.case.slopes,
            sinks: &self.case.sinks,
            window: self.case.window,
            documents: &self.case.documents,
            parents: &self.case.parents,
            compute: self.case.compute,
        }
    }

    pub(super) fn rotary(&self) -> Option<Rotary<'_>> {
        (self.case.rotary_dim > 0).then_some(Rotary {
            table: &self.table,
            positions: &self.positions,
            rotary_dim: self.case.rotary_dim,
        })
    }

    pub(super) fn norm(&self) -> Option<HeadNorm<'_>> {
        self.case.norm.then_some(HeadNorm { q: &self.gain_q, k: &self.gain_k, eps: 1e-5 })
    }
}

/// The cases of the exactness tests.
pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(1, 1, 6, &[1]),
        Case::new(2, 1, 6, &[5, 1, 9]).rotary(6),
        Case::new(4, 2, 8, &[33, 31]).rotary(8),
        Case::new(3, 3, 32, &[65, 17]).rotary(32).gaps(3),
        Case::new(8, 1, 64, &[70]).rotary(64),
        Case::new(8, 4, 64, &[129, 64]).rotary(64),
        Case::new(2, 1, 80, &[100]).rotary(20).norm(),
        Case::new(6, 2, 96, &[40, 41]).rotary(96).norm(),
        Case::new(4, 2, 128, &[97]).rotary(64).window(16),
        Case::new(2, 1, 256, &[66]).rotary(256).softcap(2.0),
        Case::new(2, 2, 18, &[75]).rotary(10).softcap(1.0).window(7).norm().gaps(2),
        Case::new(5, 1, 34, &[50, 3]).window(1),
        Case::new(2, 1, 10, &[300, 280]).window(257).rotary(6),
        Case::new(2, 1, 272, &[37]).rotary(272),
        Case::new(2, 1, 16, &[1500]).rotary(16).norm(),
        Case::new(1, 1, 8, &[2300]).window(1100).softcap(3.0),
        Case::new(70, 1, 4, &[9]).rotary(4),
        Case::new(4, 4, 8, &[33, 31]).slopes(),
        Case::new(6, 2, 12, &[70, 3]).slopes().gaps(2),
        Case::new(3, 3, 16, &[1500]).slopes().window(1100),
        Case::new(2, 1, 6, &[40]).slopes().softcap(1.5).rotary(4),
        Case::new(4, 2, 8, &[33, 1, 31]).sinks().rotary(8).gaps(2),
        Case::new(8, 1, 64, &[70]).sinks().rotary(64).window(16),
        Case::new(3, 3, 16, &[1500]).sinks().window(1100),
    ]
}
