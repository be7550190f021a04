//! The program under mpirun, where there is one.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::program::{LORA, metrics, ok, sft, stderr};

/// `mpirun` for `ranks` ranks of the program; `None`, and said so, on a machine without it.
pub(crate) fn mpirun(ranks: usize) -> Option<Command> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("no mpirun on this machine: not run");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n"]);
    command.arg(ranks.to_string()).arg(env!("CARGO_BIN_EXE_burnish"));
    command.env("ACCELERATE_MIXED_PRECISION", "no");
    Some(command)
}

fn same(a: &Path, b: &Path, name: &str) {
    let [x, y] = [a, b].map(|dir| std::fs::read(dir.join(name)).unwrap());
    assert!(x == y, "{name} differs between {} and {}", a.display(), b.display());
}

/// A run with adapters on `ranks` threads, and its second half over MPI: the same files and the same log.
fn half_over_mpi(ranks: usize, more: &[&str]) {
    let Some(mut command) = mpirun(ranks) else { return };
    let root = tempfile::tempdir().unwrap();
    let (threads, processes) = (root.path().join("threads"), root.path().join("processes"));
    let mut words = vec!["--max_steps=6", "--save_steps=3", "--zero_stage=3"];
    words.extend(["--stage3_param_persistence_threshold=50"]);
    words.extend(LORA.iter().chain(more));
    let nproc = format!("--nproc={ranks}");
    let local: Vec<&str> = words.iter().copied().chain([nproc.as_str()]).collect();
    ok(&sft(&threads, "prompt_completion.jsonl", &local));
    // The first half with threads, the second over MPI.
    crate::program::copy(&threads.join("checkpoint-3"), &processes.join("checkpoint-3"));
    words.push("--resume_from_checkpoint=true");
    let output = command.args(sft(&processes, "prompt_completion.jsonl", &words)).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    same(&threads, &processes, "adapter_model.safetensors");
    same(&threads.join("checkpoint-6"), &processes.join("checkpoint-6"), "adapter_model.safetensors");
    let (a, b) = (metrics(&threads), metrics(&processes));
    assert_eq!(a[a.len() - b.len()..], b[..]);
    assert!(!b.is_empty());
}

#[test]
fn processes_give_the_bits_of_threads_and_go_on_from_their_checkpoint() {
    half_over_mpi(3, &["--global_batch_size=6"]);
}

/// Rows are dealt to two groups of two ranks that share layers, in several micro-batches.
#[test]
fn processes_that_share_layers_give_the_bits_of_threads() {
    for more in
        [&["--lora_target_modules=all-linear"][..], &["--lora_target_modules=all-linear", "--use_dora"]]
    {
        let mesh = ["--tp_size=2", "--per_device_train_batch_size=1", "--gradient_accumulation_steps=2"];
        half_over_mpi(4, &[&mesh, more].concat());
    }
}

#[test]
fn a_killed_rank_ends_the_job() {
    let Some(mut command) = mpirun(2) else { return };
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let words = ["--max_steps=200000", "--zero_stage=2", "--save_strategy=no", "--ddp_timeout=20"];
    let mut child = command
        .args(sft(&out, "text.jsonl", &words))
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("step")), "the run began");
    let ranks = Command::new("pgrep").arg("-P").arg(child.id().to_string()).output().unwrap();
    let ranks = String::from_utf8_lossy(&ranks.stdout).into_owned();
    let victim = ranks.lines().last().unwrap();
    assert!(Command::new("kill").args(["-9", victim]).status().unwrap().success());
    let start = Instant::now();
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let status = child.wait().unwrap();
    assert!(!status.success());
    assert!(start.elapsed() < Duration::from_secs(20), "the deadline holds");
    assert!(
        rest.iter().any(|l| l.contains("signal 9") || l.contains("failed") || l.contains("ended")),
        "{rest:?}"
    );
}
