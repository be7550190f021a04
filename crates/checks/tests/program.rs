//! The program: what it says, and how it ends.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn program(words: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(env!("CARGO_BIN_EXE_burnish-check"))
        .args(words)
        .args(["--data".as_ref(), root.as_os_str()])
        .output()
        .unwrap()
}

#[test]
fn every_operation_of_the_processor_is_its_reference_body() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.jsonl");
    let done = program(&["--device=cpu", "--json", file.to_str().unwrap(), "operation"]);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let rows: Vec<Value> = std::fs::read_to_string(&file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(rows.len() >= 180, "{} rows", rows.len());
    let of = |verdict: &str| rows.iter().filter(|row| row["verdict"] == verdict).count();
    let (passed, left_out) = (of("passed"), of("left out"));
    assert_eq!(passed + left_out, rows.len(), "{said}");
    // Activations in bf16, which the processor does not have.
    assert_eq!(left_out, 41, "{said}");
    assert!(said.contains(&format!("{passed} passed, 0 failed, {left_out} left out")), "{said}");
}

#[test]
fn ranks_and_checkpoints_pass_on_the_processor_and_a_full_device_does_not_apply() {
    let done = program(&["--device=cpu", "--quick", "ranks", "resume", "memory"]);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("left out") && said.contains(" 0 failed, 1 left out"), "{said}");
}

#[test]
fn a_device_that_is_not_there_and_a_group_that_is_not_known_are_told() {
    let done = program(&["--device=cpu", "operations!"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("operations!") && said.contains("ranks"), "{said}");
    if !burnish_device::DeviceKind::Cuda.built() {
        let done = program(&["--device=cuda", "operation"]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains("--features cuda"), "{said}");
    }
}
