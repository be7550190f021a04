//! Any number of ranks, shared layers and ZeRO stage equal one rank.
//!
//! How close: ranks sum gradients in another order, which changes them by some 1e-7 of their norm. Newton–Schulz divides
//! by that norm and multiplies what is small beside it by up to 3.4445^5 = 485, so the update of a nearly singular
//! direction may carry 5e-5 of its own size, whatever the layout does right; such directions are few, and losses and
//! gradient norms stay within [`ROUNDING`]. Weights stay within [`WEIGHTS`] of the largest change: AdamW's half moves
//! near-zero entries by whole steps on rounding alone. A slice orthogonalised in the place of its matrix, or a matrix with
//! the scale of its slice, is off by far more: [`slices_would_be_seen`].
//!
//! Weights that rest in bf16 are another matter: of two masters that differ by 1e-7, some lie on two sides of the middle
//! between two bf16 numbers, and are then 2^-8 apart to the next step: [`FLIPPED`]. The masters after one step have no such
//! excuse.

use crate::muon::{Mesh, ONE, muon, numbers_apart, same_file, state_apart, tied, weights_apart};
use crate::program::{LORA, fails, model, ok, rows};
use crate::tensor_parallel::packed;

const ROUNDING: f64 = 1e-5;
const WEIGHTS: f64 = 1e-2;
const FLIPPED: f64 = 1e-3;

const SEVERAL: [Mesh; 15] = [
    (1, 1, 1),
    (1, 1, 2),
    (1, 1, 3),
    (2, 1, 0),
    (2, 1, 1),
    (2, 1, 2),
    (2, 1, 3),
    (3, 1, 0),
    (3, 1, 1),
    (3, 1, 2),
    (3, 1, 3),
    (4, 1, 0),
    (4, 1, 1),
    (4, 1, 2),
    (4, 1, 3),
];
/// Three do not divide heads and columns evenly; four share the two heads of keys and values.
const SHARED: [Mesh; 16] = [
    (2, 2, 0),
    (2, 2, 1),
    (2, 2, 2),
    (2, 2, 3),
    (4, 2, 0),
    (4, 2, 1),
    (4, 2, 2),
    (4, 2, 3),
    (6, 2, 2),
    (6, 2, 3),
    (8, 2, 1),
    (3, 3, 1),
    (6, 3, 3),
    (4, 4, 0),
    (8, 4, 2),
    (8, 4, 3),
];
const FEW: [Mesh; 5] = [(2, 1, 0), (3, 1, 2), (3, 1, 3), (4, 2, 1), (4, 2, 3)];

/// One rank, then each mesh, six steps.
fn check(common: &[&str], meshes: &[Mesh], rounding: f64) {
    let root = tempfile::tempdir().unwrap();
    let eval = format!("--eval_dataset_name={}", rows("prompt_completion_eval.jsonl").display());
    let mut all = vec!["--max_steps=6", "--global_batch_size=8", "--save_strategy=no"];
    if !common.iter().any(|word| word.starts_with("--stage3_param_persistence_threshold")) {
        all.push("--stage3_param_persistence_threshold=50");
    }
    all.extend(["--eval_strategy=steps", "--eval_steps=6", &eval]);
    all.extend(common);
    let one = root.path().join("one");
    // One rank sums nothing, so it refuses to be told when.
    let alone: Vec<&str> = all.iter().copied().filter(|word| !word.starts_with("--zero_reduce")).collect();
    ok(&muon(&one, ONE, &alone));
    let start =
        all.iter().find_map(|w| w.strip_prefix("--model_name_or_path=")).map_or_else(model, Into::into);
    for &mesh in meshes {
        let many = root.path().join(format!("{mesh:?}"));
        ok(&muon(&many, mesh, &all));
        let what = format!("{mesh:?} {common:?}");
        let numbers = numbers_apart(&one, &many);
        let adapters = common.contains(&"--use_peft");
        let weights = weights_apart((!adapters).then_some(&*start), &one, &many);
        println!("{what}: numbers {numbers:.1e}, weights {weights:.1e}");
        assert!(numbers <= rounding, "{what}: {numbers}");
        // A bf16 weight next to the largest may be one bf16 number off.
        let bound = if common.contains(&"--dtype=bfloat16") { 0.5 } else { WEIGHTS };
        assert!(weights <= bound, "{what}: weights {weights}");
    }
}

#[test]
fn muon_on_several_ranks_equals_one_at_every_stage() {
    check(&["--weight_decay=0.1"], &SEVERAL, ROUNDING);
}

#[test]
fn muon_where_ranks_share_layers_equals_one_at_every_stage() {
    check(&[], &SHARED, ROUNDING);
}

#[test]
fn tied_vocabularies_and_head_norms_equal_one_rank() {
    let tied = tied();
    check(&[&tied, "--per_device_train_batch_size=1", "--muon_scale=original"], &FEW, ROUNDING);
    check(&[&tied, "--no_gradient_checkpointing", "--muon_scale=spectral"], &FEW[3..], ROUNDING);
}

#[test]
fn packed_matrices_are_orthogonalised_block_by_block() {
    let root = tempfile::tempdir().unwrap();
    for (kv_heads, meshes) in
        [(4, [(2, 1, 2), (3, 1, 3), (2, 2, 0), (6, 3, 2)]), (2, [(4, 2, 1), (4, 2, 3), (4, 4, 0), (8, 4, 3)])]
    {
        let model = packed(root.path(), kv_heads);
        check(&[&model], &meshes, ROUNDING);
    }
}

#[test]
fn heads_by_themselves_equal_one_rank() {
    check(&["--muon_per_head"], &FEW, ROUNDING);
    let root = tempfile::tempdir().unwrap();
    let model = packed(root.path(), 2);
    check(&[&model, "--muon_per_head"], &FEW[2..], ROUNDING);
}

#[test]
fn normuon_and_adamuon_equal_one_rank() {
    for variant in ["--muon_variant=normuon", "--muon_variant=adamuon"] {
        check(&[variant], &FEW, ROUNDING);
        check(&[variant, "--muon_per_head"], &[(4, 4, 0)], ROUNDING);
    }
}

#[test]
fn polar_express_equals_one_rank() {
    check(&["--muon_ns_coefficients=polar_express", "--no_muon_nesterov"], &FEW[1..4], ROUNDING);
}

#[test]
fn bf16_weights_over_fp32_masters_equal_one_rank() {
    check(&["--dtype=bfloat16"], &FEW, FLIPPED);
    check(&["--dtype=bfloat16", "--muon_momentum_dtype=bfloat16"], &FEW, FLIPPED);
    let root = tempfile::tempdir().unwrap();
    let words = ["--max_steps=2", "--global_batch_size=8", "--save_steps=1", "--dtype=bfloat16"];
    let one = root.path().join("one");
    ok(&muon(&one, ONE, &words));
    for mesh in [FEW.as_slice(), &[(4, 4, 0), (8, 4, 3)]].concat() {
        let many = root.path().join(format!("{mesh:?}"));
        ok(&muon(&many, mesh, &words));
        let apart = state_apart(&one.join("checkpoint-1"), &many.join("checkpoint-1"));
        println!("{mesh:?}: state {apart:?}");
        assert!(apart.exact <= 1e-5, "{mesh:?}: {}", apart.exact);
    }
}

/// The chance that rounds an element depends on where in the whole matrix it is: the same on every layout.
#[test]
fn a_bf16_momentum_rounds_by_the_same_chance_everywhere() {
    let root = tempfile::tempdir().unwrap();
    let words =
        ["--max_steps=3", "--global_batch_size=8", "--save_steps=3", "--muon_momentum_dtype=bfloat16"];
    let one = root.path().join("one");
    ok(&muon(&one, ONE, &words));
    for mesh in [FEW.as_slice(), &[(3, 3, 1), (4, 4, 0), (8, 4, 3)]].concat() {
        let many = root.path().join(format!("{mesh:?}"));
        ok(&muon(&many, mesh, &words));
        let (numbers, state) =
            (numbers_apart(&one, &many), state_apart(&one.join("checkpoint-3"), &many.join("checkpoint-3")));
        println!("{mesh:?}: numbers {numbers:.1e}, {state:?}");
        assert!(numbers <= ROUNDING, "{mesh:?}: {numbers}");
        // By other chances it would be 3e-3: the root mean square difference of two roundings to eight bits.
        assert!(state.rounded <= 1e-3, "{mesh:?}: {}", state.rounded);
    }
}

#[test]
fn adapters_by_muon_equal_one_rank_dropout_included() {
    let words: Vec<&str> = LORA.iter().copied().chain(["--muon_adapters"]).collect();
    check(&words, &FEW, ROUNDING);
    check(&[&words[..], &["--use_dora"]].concat(), &FEW[3..], ROUNDING);
    let vocabulary = "--lora_target_modules=embed_tokens,q_proj,lm_head,down_proj";
    let words = ["--use_peft", "--lora_r=4", vocabulary, "--bias=all", "--muon_adapters"];
    check(&words, &[(2, 1, 2), (3, 1, 3), (2, 2, 0), (3, 3, 0), (4, 2, 3)], ROUNDING);
}

/// What `lora_modules_to_save` trains beside the adapters are matrices as any other.
#[test]
fn trained_copies_of_matrices_equal_one_rank() {
    let words =
        ["--use_peft", "--lora_r=4", "--lora_target_modules=v_proj", "--lora_modules_to_save=o_proj,k_proj"];
    check(&words, &FEW, ROUNDING);
    check(&words, &[(3, 3, 1), (4, 4, 0)], ROUNDING);
}

/// Sums per micro-batch, whole small matrices at stage 3 or none, rounds of one matrix.
#[test]
fn policies_of_zero_equal_one_rank() {
    let each = ["--per_device_train_batch_size=1", "--zero_reduce=micro_batch"];
    check(&each, &[(2, 1, 2), (2, 1, 3), (4, 2, 3)], ROUNDING);
    for threshold in ["0", "600", "1000000"] {
        let threshold = format!("--stage3_param_persistence_threshold={threshold}");
        check(
            &[&threshold, "--reduce_bucket_size=1000", "--no_stage3_keep_root"],
            &[(3, 1, 3), (4, 2, 3)],
            ROUNDING,
        );
    }
}

#[test]
fn half_precision_with_a_loss_scale_equals_one_rank() {
    check(&["--fp16"], &FEW, FLIPPED);
}

/// As torchrun starts processes: the bits of threads.
#[test]
fn processes_give_the_bits_of_threads() {
    let root = tempfile::tempdir().unwrap();
    let (threads, processes) = (root.path().join("threads"), root.path().join("processes"));
    let words = ["--max_steps=3", "--global_batch_size=6", "--save_strategy=no", "--muon_variant=normuon"];
    ok(&muon(&threads, (2, 1, 3), &words));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut given = muon(&processes, (2, 1, 3), &words);
    given.retain(|word| !word.starts_with("--nproc"));
    let children: Vec<_> = (0..2)
        .map(|rank| {
            crate::program::burnish()
                .args(&given)
                .envs([("MASTER_ADDR", "127.0.0.1"), ("WORLD_SIZE", "2")])
                .env("MASTER_PORT", port.to_string())
                .env("RANK", rank.to_string())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", crate::program::stderr(&output));
    }
    same_file(&threads, &processes, "model.safetensors");
}

/// An adapter's factors are AdamW's unless asked otherwise; trained copies of matrices are matrices.
#[test]
fn muon_with_nothing_to_do_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    for mesh in [ONE, (2, 1, 2)] {
        fails(
            &muon(&out, mesh, &LORA),
            &["muon", "none of the 28", "28 are adapter factors", "take adapters"],
        );
    }
}

/// The tolerance tells a matrix from its slices: heads by themselves are another run.
#[test]
fn slices_would_be_seen() {
    let root = tempfile::tempdir().unwrap();
    let [whole, sliced] = [&[][..], &["--muon_per_head"]].map(|more| {
        let out = root.path().join(format!("{}", more.len()));
        ok(&muon(&out, ONE, &[&["--max_steps=6", "--save_strategy=no"], more].concat()));
        out
    });
    let numbers = numbers_apart(&whole, &sliced);
    assert!(numbers > 100.0 * ROUNDING, "{numbers}");
    let weights = weights_apart(Some(&model()), &whole, &sliced);
    assert!(weights > 10.0 * WEIGHTS, "{weights}");
}
