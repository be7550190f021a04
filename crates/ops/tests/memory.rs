//! Nothing is left behind by a pass.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use burnish_ops::{AnyTensor, Linear, LinearInput, OpsError, Run, Weights, linears, segment};

use crate::case::tensor;

/// Tells the test that it runs alone in its process.
const ALONE: &str = "BURNISH_OPS_MEMORY_ALONE";
const WARM: usize = 50;
const PASSES: usize = 200;
/// A pass holds a megabyte (five matrices of 800 rows by 64, in f32): keeping one of them per pass would be 40 MB.
const ALLOWED: usize = 4 << 20;

struct Block(AnyTensor);

impl Weights for Block {
    fn gather(&self) -> Vec<AnyTensor> {
        vec![self.0.clone()]
    }
    fn trainable(&self) -> Vec<bool> {
        vec![true]
    }
    fn sink(&self, _: usize, gradient: AnyTensor) {
        assert!(gradient.to_f32()[0].is_finite());
    }
}

fn pass(weights: &[Arc<Block>], x: &AnyTensor) -> Result<(), OpsError> {
    let run: Run = Arc::new(|inputs, weights| {
        linears(&LinearInput::Plain(inputs[0].clone()), &[Linear::new(weights[0].clone())], Some(&inputs[0]))
    });
    let leaf = x.leaf();
    let mut h = leaf.clone();
    for w in weights {
        h = segment("block", &[h], w.clone(), true, run.clone())?;
    }
    let mut gradients = h.rank::<2>()?.powi_scalar(2).mean().backward();
    assert!(leaf.take_gradient(&mut gradients).is_some());
    Ok(())
}

/// Resident bytes of this process.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    4096 * statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
}

#[test]
fn segments_leave_nothing_behind() {
    if std::env::var_os(ALONE).is_none() {
        // Other tests share this process, and its memory.
        let name = "memory::segments_leave_nothing_behind";
        let me = std::env::current_exe().unwrap();
        let out =
            Command::new(me).args(["--exact", name, "--test-threads=1"]).env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success() && text.contains("1 passed"),
            "{text}{}",
            String::from_utf8_lossy(&out.stderr)
        );
        return;
    }
    let weights: Vec<Arc<Block>> =
        ["w0", "w1", "w2", "w3"].iter().map(|name| Arc::new(Block(tensor(name, &[64, 64])))).collect();
    let x = tensor("x", &[800, 64]);
    for _ in 0..WARM {
        pass(&weights, &x).unwrap();
    }
    let before = resident();
    for _ in 0..PASSES {
        pass(&weights, &x).unwrap();
    }
    let after = resident();
    assert!(after <= before + ALLOWED, "{PASSES} passes grew from {before} to {after} resident bytes");
}
