//! What a run with Muon moves and holds is what `plan` says.

use crate::muon::tied;
use crate::program::{ok, sft};
use crate::shared_traffic::{check, stated};

/// (ranks, tp_size, zero_stage): what is alike moves nothing, everything else is in the plan to the element.
#[test]
fn a_run_moves_what_its_plan_states() {
    let root = tempfile::tempdir().unwrap();
    let tied = tied();
    let kinds: [&[&str]; 9] = [
        &[],
        &["--dtype=bfloat16", "--gradient_accumulation_steps=2", "--no_gradient_checkpointing"],
        &["--muon_per_head", "--muon_variant=normuon"],
        &[&tied, "--reduce_bucket_size=3000"],
        &["--use_peft", "--lora_r=3", "--lora_target_modules=all-linear", "--muon_adapters"],
        &["--use_peft", "--lora_target_modules=v_proj", "--lora_modules_to_save=o_proj,k_proj"],
        &["--stage3_param_persistence_threshold=600", "--reduce_bucket_size=1000"],
        &["--stage3_param_persistence_threshold=1000000", "--gradient_accumulation_steps=3"],
        &["--fp16", "--per_device_train_batch_size=1"],
    ];
    let meshes = [
        (2, 1, 0),
        (3, 1, 1),
        (2, 1, 2),
        (2, 1, 3),
        (4, 1, 3),
        (2, 2, 0),
        (4, 2, 0),
        (4, 2, 1),
        (4, 2, 2),
        (4, 2, 3),
        (3, 3, 1),
        (4, 4, 0),
        (8, 4, 3),
    ];
    for (turn, kind) in kinds.into_iter().enumerate() {
        for (place, (nproc, tp, stage)) in meshes.into_iter().enumerate() {
            // Every mesh with plain Muon, the other kinds by turns.
            if turn > 0 && (turn + place) % 3 != 0 {
                continue;
            }
            let given =
                [format!("--nproc={nproc}"), format!("--tp_size={tp}"), format!("--zero_stage={stage}")];
            let words: Vec<&str> = ["--optim=muon"]
                .into_iter()
                .chain(given.iter().map(String::as_str))
                .chain(kind.iter().copied())
                .collect();
            let said = check(root.path(), &words);
            let exchanged = stated(&said, "updates: ");
            // Whole matrices lie with their owners up to stage 2: nothing but what AdamW sends.
            let whole = tp == 1 && stage < 3;
            assert_eq!(exchanged == 0.0, whole, "{words:?}\n{said}");
        }
    }
}

fn plan(more: &[&str]) -> String {
    let root = tempfile::tempdir().unwrap();
    let mut words = sft(&root.path().join("out"), "text.jsonl", more);
    words[0] = "plan".to_owned();
    ok(&words)
}

/// At stages 0 to 2 Muon sends what AdamW sends (2Ψ), at stage 3 what AdamW sends and the exchange (3Ψ + 2Ψm/N).
#[test]
fn weights_and_gradients_travel_as_with_adamw() {
    for stage in ["--zero_stage=0", "--zero_stage=1", "--zero_stage=2", "--zero_stage=3"] {
        let [adamw, muon] =
            ["--optim=adamw_torch", "--optim=muon"].map(|optim| plan(&["--nproc=4", stage, optim]));
        let of = |said: &str| stated(said, "weights and gradients: ");
        assert!(of(&adamw) > 0.0, "{adamw}");
        assert_eq!(of(&adamw), of(&muon), "{adamw}\n{muon}");
    }
}

/// Bytes of a line of the plan's table, of the rank that has most.
fn held(said: &str, label: &str) -> f64 {
    let line = said.lines().find_map(|line| line.strip_prefix(label)).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let unit = match words[1] {
        "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        other => panic!("{other} in {line}"),
    };
    words[0].parse::<f64>().unwrap() * unit
}

/// The momentum instead of two moments: 4 bytes less of each element of matrices, 6 with a bf16 momentum.
#[test]
fn a_plan_counts_the_momentum_alone() {
    // Of each layer q, o: 32 x 32; k, v: 16 x 32; gate, up, down: 56 x 32. Beside them two vocabularies and the norms.
    let matrices = f64::from(2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 56 * 32));
    let all = matrices + f64::from(2 * 300 * 32 + 5 * 32);
    let of = |more: &[&str]| held(&plan(more), "optimizer ");
    let near = |got: f64, expected: f64, what: &str| {
        assert!((got - expected).abs() < 6e-3 * expected, "{what}: {got}, expected {expected}");
    };
    near(of(&[]), 8.0 * all, "AdamW");
    near(of(&["--optim=muon"]), 8.0 * all - 4.0 * matrices, "Muon");
    near(
        of(&["--optim=muon", "--muon_momentum_dtype=bfloat16"]),
        8.0 * all - 6.0 * matrices,
        "bf16 momentum",
    );
    near(of(&["--optim=muon", "--muon_variant=adamuon"]), 8.0 * all, "AdaMuon");
    let masters = of(&["--optim=muon", "--dtype=bfloat16"]);
    assert!(masters > 8.0 * all - 4.0 * matrices + 4.0 * matrices, "{masters}");
    // Owners of whole matrices share them out about evenly.
    let four = of(&["--optim=muon", "--nproc=4", "--zero_stage=2"]);
    assert!(four < 1.3 * (8.0 * all - 4.0 * matrices) / 4.0, "{four}");
    // At stage 3 an owner needs room for the matrices that come to it.
    let room = "whole matrices of Muon, at most ";
    assert!(held(&plan(&["--optim=muon", "--nproc=4", "--zero_stage=3"]), room) > 0.0);
    assert!(!plan(&["--optim=muon", "--nproc=4", "--zero_stage=2"]).contains(room));
}
