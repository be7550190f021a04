//! Momentum and second moments over a stop.

use std::path::{Path, PathBuf};

use burnish_checkpoint::Checkpoint;
use burnish_weight_files::WeightFolder;

use crate::muon::{Mesh, ONE, muon, numbers_apart, same_file, state_apart};
use crate::program::{copy, fails, metrics, ok, run, sft, stderr};

const STEPS: [&str; 3] = ["--max_steps=8", "--save_steps=3", "--global_batch_size=6"];
const GO_ON: &str = "--resume_from_checkpoint=true";

/// Files of a checkpoint's state, by name.
fn state(checkpoint: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(checkpoint.join("state"))
        .unwrap()
        .map(|entry| format!("state/{}", entry.unwrap().file_name().to_string_lossy()))
        .collect();
    names.sort_unstable();
    names
}

/// Eight steps in `from`, then those from 4 on again in a folder beside it, from the checkpoint at 3.
fn again(from: &Path, name: &str, mesh: Mesh, more: &[&str]) -> PathBuf {
    let to = from.with_file_name(name);
    copy(&from.join("checkpoint-3"), &to.join("checkpoint-3"));
    ok(&muon(&to, mesh, &[&STEPS, more, &[GO_ON]].concat()));
    to
}

/// The run that stopped after three steps is the one that never stopped: metrics, weights, momentum, every bit.
fn equal_bit_for_bit(meshes: &[Mesh], more: &[&str]) {
    let root = tempfile::tempdir().unwrap();
    for mesh in meshes {
        let whole = root.path().join(format!("{mesh:?}"));
        ok(&muon(&whole, *mesh, &[&STEPS, more].concat()));
        let parts = again(&whole, &format!("{mesh:?} again"), *mesh, more);
        same_file(&whole, &parts, "model.safetensors");
        let (a, b) = (metrics(&whole), metrics(&parts));
        assert_eq!(a[a.len() - b.len()..], b[..], "{mesh:?} {more:?}");
        assert_eq!(b.len(), 5);
        let [a, b] = [&whole, &parts].map(|dir| dir.join("checkpoint-8"));
        assert_eq!(state(&a), state(&b));
        for name in state(&a).iter().filter(|name| name.ends_with(".safetensors")) {
            same_file(&a, &b, name);
        }
    }
}

const LAYOUTS: [Mesh; 7] = [ONE, (2, 1, 0), (2, 1, 1), (2, 1, 2), (2, 1, 3), (4, 2, 2), (4, 2, 3)];

/// DeepSpeed #7746 (and #8433, #8483): bf16, stage 2, save, load, train on. There the momentum's dtype followed the
/// gradient's, and changed with the load.
#[test]
fn deepspeed_7746_bf16_stage_2_save_load_train_on() {
    equal_bit_for_bit(&LAYOUTS, &["--dtype=bfloat16"]);
}

#[test]
fn deepspeed_7746_with_a_bf16_momentum() {
    equal_bit_for_bit(&LAYOUTS, &["--dtype=bfloat16", "--muon_momentum_dtype=bfloat16"]);
}

#[test]
fn second_moments_of_owners_go_on_bit_for_bit() {
    for variant in ["--muon_variant=normuon", "--muon_variant=adamuon"] {
        equal_bit_for_bit(&[ONE, (2, 1, 0), (3, 1, 2), (4, 2, 3)], &["--dtype=bfloat16", variant]);
    }
}

/// The slot's dtype is the declared one, whoever wrote it and whether the run was resumed.
#[test]
fn a_slot_is_of_its_declared_dtype_before_and_after() {
    let root = tempfile::tempdir().unwrap();
    for (momentum, tag) in
        [("--muon_momentum_dtype=float32", "F32"), ("--muon_momentum_dtype=bfloat16", "BF16")]
    {
        for mesh in [ONE, (2, 1, 2), (2, 1, 3)] {
            let whole = root.path().join(format!("{tag} {mesh:?}"));
            let more = ["--dtype=bfloat16", momentum];
            ok(&muon(&whole, mesh, &[&STEPS, &more[..]].concat()));
            let parts = again(&whole, &format!("{tag} {mesh:?} again"), mesh, &more);
            for dir in [whole.join("checkpoint-3"), parts.join("checkpoint-8")] {
                let checkpoint = Checkpoint::open(&dir).unwrap();
                let mut seen = [0; 2];
                for (name, slot) in checkpoint.entries() {
                    let dtype = format!("{:?}", checkpoint.info(name, slot).unwrap().dtype).to_uppercase();
                    match slot {
                        "momentum_buffer" => {
                            assert_eq!(dtype, tag, "{name} {slot} of {}", dir.display());
                            seen[0] += 1;
                        }
                        _ => {
                            assert_eq!(dtype, "F32", "{name} {slot} of {}", dir.display());
                            seen[1] += 1;
                        }
                    }
                }
                // Seven matrices in each of two layers.
                assert_eq!(seen[0], 14, "{}", dir.display());
                assert!(seen[1] > 14, "{}", dir.display());
            }
        }
    }
}

/// Sums in another order before the stop and after it; where weights rest in bf16, see `layouts`.
const ROUNDING: f64 = 1e-5;
const FLIPPED: f64 = 1e-3;

/// From any layout to any other, against one rank that never stopped; and the first step after the stop against the layout
/// that wrote the checkpoint.
fn at_another_layout(more: &[&str], layouts: &[[Mesh; 2]]) {
    let root = tempfile::tempdir().unwrap();
    let steps = ["--max_steps=8", "--save_steps=1", "--global_batch_size=6"];
    let one = root.path().join("one");
    ok(&muon(&one, ONE, &[&steps, more].concat()));
    let narrow = more.contains(&"--dtype=bfloat16");
    for [before, after] in layouts {
        let what = format!("{before:?} to {after:?} {more:?}");
        let [first, then] =
            ["a", "b"].map(|part| root.path().join(format!("{before:?} to {after:?} {part}")));
        ok(&muon(&first, *before, &[&steps, more].concat()));
        copy(&first.join("checkpoint-3"), &then.join("checkpoint-3"));
        ok(&muon(&then, *after, &[&steps, more, &[GO_ON]].concat()));
        assert_eq!(metrics(&then).len(), 5);
        let numbers = numbers_apart(&one, &then);
        let state = state_apart(&first.join("checkpoint-4"), &then.join("checkpoint-4"));
        println!("{what}: numbers {numbers:.1e}, {state:?}");
        assert!(numbers <= if narrow { FLIPPED } else { ROUNDING }, "{what}: {numbers}");
        assert!(state.exact <= 1e-5, "{what}: {}", state.exact);
        // By other chances it would be 3e-3.
        assert!(state.rounded <= 1e-3, "{what}: {}", state.rounded);
    }
}

/// DeepSpeed #8608: its universal checkpoint has no momentum of Muon.
#[test]
fn deepspeed_8608_a_run_goes_on_at_any_number_of_ranks_stage_and_division() {
    let layouts = [
        [(2, 1, 2), (3, 1, 2)],
        [(3, 1, 2), (2, 1, 3)],
        [(2, 1, 3), ONE],
        [ONE, (4, 2, 3)],
        [(4, 2, 1), (4, 4, 0)],
        [(2, 1, 0), (3, 3, 0)],
    ];
    at_another_layout(&[], &layouts);
    at_another_layout(&["--muon_momentum_dtype=bfloat16"], &layouts);
    at_another_layout(&["--dtype=bfloat16"], &layouts);
}

#[test]
fn second_moments_find_their_new_owners() {
    let layouts =
        [[(3, 1, 2), (2, 1, 3)], [(2, 1, 0), (4, 2, 3)], [(4, 2, 2), (3, 3, 0)], [(4, 4, 0), (2, 1, 1)]];
    for variant in ["--muon_variant=normuon", "--muon_variant=adamuon"] {
        at_another_layout(&[variant], &layouts);
        at_another_layout(&[variant, "--dtype=bfloat16"], &layouts[1..3]);
    }
}

/// Another dtype than declared is converted and said, or refused; the state is the declared dtype's from then on.
#[test]
fn another_momentum_dtype_is_converted_aloud_or_refused() {
    let root = tempfile::tempdir().unwrap();
    for (case, mesh) in [ONE, (2, 1, 2), (2, 1, 3)].into_iter().enumerate() {
        let first = root.path().join(format!("{case}"));
        ok(&muon(&first, mesh, &STEPS));
        let to = root.path().join(format!("{case}-bf16"));
        copy(&first.join("checkpoint-3"), &to.join("checkpoint-3"));
        let bf16 = [&STEPS[..], &["--muon_momentum_dtype=bfloat16", GO_ON]].concat();
        fails(
            &muon(&to, mesh, &[&bf16[..], &["--resume_strict"]].concat()),
            &["cannot resume", "`momentum_buffer`", "is float32", "in bfloat16", "resume_strict"],
        );
        let output = run(&muon(&to, mesh, &bf16));
        let said = stderr(&output);
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains("14 `momentum_buffer` of the checkpoint converted from float32 to bfloat16"),
            "{said}"
        );
        // The next stop finds what is declared: nothing to convert, nothing to refuse.
        let more = [&STEPS[..], &["--muon_momentum_dtype=bfloat16", "--resume_strict"]].concat();
        let resume = format!("--resume_from_checkpoint={}", to.join("checkpoint-6").display());
        let output = run(&muon(&to, mesh, &[&more[..], &[&resume]].concat()));
        assert!(output.status.success() && !stderr(&output).contains("converted"), "{}", stderr(&output));
    }
}

#[test]
fn state_of_another_optimizer_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let adamw = root.path().join("adamw");
    ok(&sft(&adamw, "text.jsonl", &[&STEPS[..], &["--optim=adamw_torch"]].concat()));
    let whole = root.path().join("muon");
    ok(&muon(&whole, ONE, &STEPS));
    let variant = root.path().join("variant");
    copy(&whole.join("checkpoint-3"), &variant.join("checkpoint-3"));
    for mesh in [ONE, (2, 1, 3), (2, 2, 0)] {
        let more = [&STEPS[..], &[GO_ON]].concat();
        fails(&muon(&adamw, mesh, &more), &["no slot `exp_avg`", "another optimizer"]);
        let more = [&more[..], &["--muon_variant=normuon"]].concat();
        fails(&muon(&variant, mesh, &more), &["second_momentum_buffer"]);
    }
    let more = [&STEPS[..], &["--optim=adamw_torch", GO_ON]].concat();
    fails(&sft(&whole, "text.jsonl", &more), &["no slot `", "another optimizer"]);
}

/// What it converts to fp32 are the masters that Muon kept, too.
#[test]
fn convert_takes_muons_masters() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    ok(&muon(&out, (2, 1, 3), &[&STEPS[..], &["--dtype=bfloat16"]].concat()));
    let to = root.path().join("converted");
    let from = out.join("checkpoint-3");
    let words = [
        "convert",
        "--checkpoint",
        from.to_str().unwrap(),
        "--output_dir",
        to.to_str().unwrap(),
        "--dtype=float32",
    ];
    ok(&words.map(str::to_owned));
    let (checkpoint, weights) = (Checkpoint::open(&from).unwrap(), WeightFolder::open(&to).unwrap());
    let masters = checkpoint.entries().filter(|(_, slot)| *slot == "master");
    let mut matrices = 0;
    for (name, slot) in masters {
        let [master, weight] = [checkpoint.read(name, slot).unwrap(), weights.read(name).unwrap()];
        assert_eq!(master.bytes, weight.bytes, "{name}");
        matrices += usize::from(name.contains("_proj"));
    }
    assert_eq!(matrices, 14);
}
