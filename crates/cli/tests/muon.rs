//! Muon through the program: at any layout, over a stop, as planned, and free of what other programs got wrong.

mod catalogue;
mod layouts;
mod planned;
mod resumed;

use std::path::Path;

use burnish_checkpoint::Checkpoint;
use burnish_core::Dtype;
use burnish_weight_files::WeightFolder;

use crate::program::{fixtures, metrics, sft};

/// (ranks, tp_size, zero_stage).
pub(crate) type Mesh = (usize, usize, u8);

pub(crate) const ONE: Mesh = (1, 1, 0);

/// A run of `sft` with Muon on `text.jsonl`.
fn muon(output: &Path, (nproc, tp, stage): Mesh, more: &[&str]) -> Vec<String> {
    let mut words = sft(output, "text.jsonl", &["--optim=muon", "--learning_rate=1e-2"]);
    words.extend([format!("--nproc={nproc}"), format!("--tp_size={tp}"), format!("--zero_stage={stage}")]);
    words.extend(more.iter().map(|w| (*w).to_owned()));
    words
}

fn tied() -> String {
    format!("--model_name_or_path={}", fixtures().join("models/qwen3-tied").display())
}

/// The largest relative difference between the last numbers of two logs, as many as the shorter has.
#[track_caller]
pub(crate) fn numbers_apart(one: &Path, many: &Path) -> f64 {
    let (a, b) = (metrics(one), metrics(many));
    let lines = a.len().min(b.len());
    assert!(lines > 0);
    let mut most = 0.0_f64;
    for (a, b) in a[a.len() - lines..].iter().zip(&b[b.len() - lines..]) {
        for exact in ["step", "epoch", "num_tokens", "learning_rate", "adam_learning_rate"] {
            assert_eq!(a[exact], b[exact], "{exact}: {a} and {b}");
        }
        for name in ["loss", "grad_norm", "entropy", "eval_loss"] {
            let (Some(x), Some(y)) = (a[name].as_f64(), b[name].as_f64()) else {
                assert_eq!(a[name], b[name], "{name}");
                continue;
            };
            most = most.max((x - y).abs() / x.abs());
        }
    }
    most
}

/// The largest difference between two models, against the largest change that training made; of adapters, against their
/// largest value.
#[track_caller]
pub(crate) fn weights_apart(start: Option<&Path>, one: &Path, many: &Path) -> f64 {
    let open = |path: &Path| WeightFolder::open(path).unwrap();
    let (start, a, b) = (start.map(open), open(one), open(many));
    let (mut most, mut moved) = (0.0_f32, 0.0_f32);
    for name in a.names() {
        let [x, y] = [&a, &b].map(|folder| folder.read(name).unwrap());
        assert_eq!((x.dtype, &x.shape), (y.dtype, &y.shape), "{name}");
        let (x, y) = (x.to_f32(), y.to_f32());
        let start = start.as_ref().map_or_else(|| vec![0.0; x.len()], |s| s.read(name).unwrap().to_f32());
        for ((s, x), y) in start.iter().zip(&x).zip(&y) {
            most = most.max((x - y).abs());
            moved = moved.max((x - s).abs());
        }
    }
    assert!(moved > 0.0, "training changed nothing");
    f64::from(most / moved)
}

#[track_caller]
pub(crate) fn same_file(a: &Path, b: &Path, name: &str) {
    let [x, y] = [a, b].map(|dir| std::fs::read(dir.join(name)).unwrap());
    assert!(x == y, "{name} differs between {} and {}", a.display(), b.display());
}

/// The largest difference of a slot between two checkpoints, against the slot's norm.
#[derive(Debug, Default)]
struct Apart {
    /// Of slots in f32.
    exact: f64,
    /// Of slots in bf16.
    rounded: f64,
}

#[track_caller]
fn state_apart(one: &Path, many: &Path) -> Apart {
    let [one, many] = [one, many].map(|path| Checkpoint::open(path).unwrap());
    assert!(one.entries().eq(many.entries()), "other slots");
    let mut apart = Apart::default();
    for (name, slot) in one.entries() {
        let [a, b] = [&one, &many].map(|checkpoint| checkpoint.read(name, slot).unwrap());
        assert_eq!((a.dtype, &a.shape), (b.dtype, &b.shape), "{name} {slot}");
        let (mut difference, mut norm) = (0.0, 0.0);
        for (a, b) in a.to_f32().into_iter().zip(b.to_f32()) {
            difference += f64::from(a - b).powi(2);
            norm += f64::from(a).powi(2);
        }
        let most = if a.dtype == Dtype::Bf16 { &mut apart.rounded } else { &mut apart.exact };
        *most = most.max((difference / norm).sqrt());
    }
    apart
}
