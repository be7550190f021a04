//! What other distributed Muons got wrong in 2025 and 2026, by the number of its report, shown not to happen here.
//!
//! The dtype of the momentum over a resume (DeepSpeed #7746, #8433, #8483) and state that could not be converted (#8608)
//! are in `resumed`.

use std::path::Path;

use burnish_checkpoint::{Checkpoint, CheckpointWriter};
use burnish_weight_files::WeightFolder;
use serde_json::json;

use crate::muon::{Mesh, ONE, muon, numbers_apart, weights_apart};
use crate::program::{copy, metrics, model, ok, run, stderr};
use crate::tensor_parallel::packed;

/// Sums in another order.
const ROUNDING: f64 = 1e-5;

/// What Muon trains of the model.
fn is_matrix(name: &str) -> bool {
    name.contains("_proj")
}

/// `(before - after) / rate` of each matrix, by rows.
fn changes(before: &Path, after: &Path, rate: f64) -> Vec<(String, [usize; 2], Vec<f64>)> {
    let [before, after] = [before, after].map(|path| WeightFolder::open(path).unwrap());
    let of = |name: &str| {
        let [a, b] = [&before, &after].map(|folder| folder.read(name).unwrap());
        let [rows, columns] = a.shape[..] else { panic!("{name}: {:?}", a.shape) };
        let change = a.to_f32().iter().zip(b.to_f32()).map(|(a, b)| f64::from(a - b) / rate).collect();
        (name.to_owned(), [rows, columns], change)
    };
    let names: Vec<String> = after.names().filter(|name| is_matrix(name)).map(str::to_owned).collect();
    names.iter().map(|name| of(name)).collect()
}

/// Of the squares of a matrix' singular values the largest's root, the mean and the variance.
fn spectrum([rows, columns]: [usize; 2], matrix: &[f64]) -> [f64; 3] {
    let row = |i: usize| &matrix[i * columns..(i + 1) * columns];
    let product = |i, j| row(i).iter().zip(row(j)).map(|(a, b)| a * b).sum::<f64>();
    let gram: Vec<f64> = (0..rows * rows).map(|at| product(at / rows, at % rows)).collect();
    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut v: Vec<f64> = (0..rows).map(|i| 1.0 + (i as f64).sin()).collect();
    let mut largest = 0.0;
    for _ in 0..200 {
        let w: Vec<f64> = gram.chunks(rows).map(|row| row.iter().zip(&v).map(|(a, b)| a * b).sum()).collect();
        largest = norm(&w) / norm(&v);
        assert!(largest > 0.0, "nothing changed");
        v = w.iter().map(|x| x / norm(&w)).collect();
    }
    let count = rows.min(columns) as f64;
    let mean = norm(matrix).powi(2) / count;
    [largest.sqrt(), mean, norm(&gram).powi(2) / count - mean * mean]
}

/// The first update of every block (of rows) of every matrix is orthogonal as far as five quintic steps make it: singular
/// values from 0.68 to 1.21. Slices that were orthogonalised one by one make a matrix with singular values up to the root
/// of their number where they are alike; a momentum that was not orthogonalised has a large one and many small ones; a
/// block of a larger matrix that was orthogonalised has all sizes.
fn first_updates_are_orthogonal(mesh: Mesh, more: &[&str], blocks: impl Fn(&str, usize) -> Vec<usize>) {
    for (what, [largest, mean, variance]) in spectra(mesh, more, blocks) {
        let what = format!("{mesh:?} {more:?} {what}");
        assert!((0.7..1.22).contains(&largest), "{what}: largest singular value {largest}");
        assert!((0.5..1.3).contains(&mean), "{what}: mean square {mean}");
        assert!(variance < 0.2, "{what}: variance {variance}");
    }
}

/// The [`spectrum`] of every block's first update.
fn spectra(mesh: Mesh, more: &[&str], blocks: impl Fn(&str, usize) -> Vec<usize>) -> Vec<(String, [f64; 3])> {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let words = ["--max_steps=1", "--global_batch_size=8", "--save_strategy=no", "--muon_scale=original"];
    let words = [&words[..], &["--muon_lr=0.1", "--stage3_param_persistence_threshold=50"], more].concat();
    ok(&muon(&out, mesh, &words));
    let start =
        words.iter().find_map(|w| w.strip_prefix("--model_name_or_path=")).map_or_else(model, Into::into);
    let changes = changes(&start, &out, 0.1);
    assert!(changes.len() >= 8);
    let mut spectra = Vec::new();
    for (name, [rows, columns], change) in changes {
        let blocks = blocks(&name, rows);
        assert_eq!(blocks.iter().sum::<usize>(), rows);
        let mut from = 0;
        for block in blocks {
            // Keller's scale: 1 of what is wider than tall.
            let scale = (block as f64 / columns as f64).max(1.0).sqrt();
            let own = &change[from * columns..(from + block) * columns];
            let own: Vec<f64> = own.iter().map(|x| x / scale).collect();
            spectra.push((format!("{name} from {from}"), spectrum([block, columns], &own)));
            from += block;
        }
    }
    spectra
}

fn whole(_: &str, rows: usize) -> Vec<usize> {
    vec![rows]
}

/// Packed matrices are several, and heads with `muon_per_head`; also where ranks share layers.
#[test]
fn blocks_are_orthogonalised_by_themselves() {
    let root = tempfile::tempdir().unwrap();
    let packed = packed(root.path(), 2);
    let meshes = [ONE, (2, 1, 2), (3, 1, 3), (2, 2, 0), (4, 4, 0), (4, 2, 3)];
    for mesh in meshes {
        first_updates_are_orthogonal(mesh, &[&packed], |name, rows| match name {
            name if name.contains("qkv_proj") => vec![32, 16, 16],
            name if name.contains("gate_up_proj") => vec![56, 56],
            _ => vec![rows],
        });
        let heads = |name: &str, rows: usize| match name {
            name if ["q_proj", "k_proj", "v_proj", "qkv_proj"].iter().any(|part| name.contains(part)) => {
                vec![8; rows / 8]
            }
            name if name.contains("gate_up_proj") => vec![56, 56],
            _ => vec![rows],
        };
        first_updates_are_orthogonal(mesh, &["--muon_per_head"], heads);
        first_updates_are_orthogonal(mesh, &[&packed, "--muon_per_head"], heads);
    }
    // It would be seen: heads that were orthogonalised by themselves make no orthogonal matrix, nor do slices.
    for (name, [largest, _, variance]) in spectra(ONE, &["--muon_per_head"], whole) {
        if name.contains("q_proj") {
            println!("of heads: {name}: largest {largest:.3}, variance {variance:.3}");
            assert!(largest > 1.22 && variance > 0.2, "{name}: largest {largest}, variance {variance}");
        }
    }
}

/// There, a partition's slice of a matrix was orthogonalised in its place.
#[test]
fn deepspeed_7807_matrices_are_orthogonalised_whole_never_in_slices() {
    for mesh in [(2, 1, 1), (3, 1, 2), (4, 1, 3), (2, 2, 1), (4, 4, 0), (4, 2, 3)] {
        first_updates_are_orthogonal(mesh, &[], whole);
    }
}

/// There, stage 0 (the default) did no Newton–Schulz at all.
#[test]
fn deepspeed_8441_stage_0_orthogonalises() {
    first_updates_are_orthogonal(ONE, &[], whole);
    first_updates_are_orthogonal((2, 1, 0), &[], whole);
}

/// There, the flat partition of bf16's optimizer had one dimension, and what has one dimension was not orthogonalised.
#[test]
fn deepspeed_8461_bf16_weights_over_fp32_masters_are_orthogonalised() {
    let root = tempfile::tempdir().unwrap();
    for mesh in [ONE, (2, 1, 0), (2, 1, 1), (2, 1, 2), (2, 1, 3)] {
        let [exact, rounded] = ["--dtype=float32", "--dtype=bfloat16"].map(|dtype| {
            let out = root.path().join(format!("{mesh:?} {dtype}"));
            ok(&muon(&out, mesh, &["--max_steps=1", "--global_batch_size=8", "--save_steps=1", dtype]));
            out
        });
        // The master's change is the fp32 run's: the model's own weights are bf16 already.
        let masters = Checkpoint::open(rounded.join("checkpoint-1")).unwrap();
        let weights = WeightFolder::open(&exact).unwrap();
        let start = WeightFolder::open(model()).unwrap();
        for name in weights.names().filter(|name| is_matrix(name)) {
            let master = masters.read(name, "master").unwrap().to_f32();
            let [exact, start] = [&weights, &start].map(|folder| folder.read(name).unwrap().to_f32());
            let most = exact.iter().zip(&start).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            for (a, b) in exact.iter().zip(&master) {
                assert!((a - b).abs() <= 1e-4 * most, "{mesh:?} {name}: {a} and {b}");
            }
        }
    }
}

/// There, parameters of stage 3 had shape (0,) when they were given to optimizers, so AdamW got all of them.
#[test]
fn deepspeed_8438_stage_3_leaves_matrices_to_muon() {
    let root = tempfile::tempdir().unwrap();
    let tables: Vec<String> = [ONE, (2, 1, 3), (4, 2, 3), (8, 1, 3)]
        .into_iter()
        .map(|mesh| {
            let out = root.path().join(format!("{mesh:?}"));
            let output =
                run(&muon(&out, mesh, &["--max_steps=1", "--global_batch_size=8", "--save_steps=1"]));
            let said = stderr(&output);
            assert!(output.status.success(), "{said}");
            let lines: Vec<&str> =
                said.lines().filter(|l| l.starts_with("muon ") || l.starts_with("adamw ")).collect();
            let checkpoint = Checkpoint::open(out.join("checkpoint-1")).unwrap();
            let mut matrices = 0;
            for (name, slot) in checkpoint.entries() {
                assert_eq!(is_matrix(name), slot == "momentum_buffer", "{name} {slot}");
                if slot == "momentum_buffer" {
                    matrices += 1;
                    assert_eq!(checkpoint.info(name, slot).unwrap().shape.len(), 2);
                }
            }
            assert_eq!(matrices, 14);
            lines.join("\n")
        })
        .collect();
    assert!(tables[0].contains("muon") && tables[0].contains("matrix"), "{}", tables[0]);
    assert!(tables.iter().all(|table| *table == tables[0]), "{tables:?}");
}

/// There (and in Megatron #5394), the clip factor divided the orthogonalised update: by 4 at width 128, by 86 at 8192.
#[test]
fn deepspeed_8439_7776_clipping_does_not_shrink_updates() {
    let root = tempfile::tempdir().unwrap();
    for mesh in [ONE, (2, 1, 0), (2, 1, 2), (2, 1, 3), (4, 2, 2)] {
        let outs = ["--max_grad_norm=0", "--max_grad_norm=1.0", "--max_grad_norm=0.01"].map(|clip| {
            let out = root.path().join(format!("{mesh:?} {clip}"));
            ok(&muon(&out, mesh, &["--max_steps=1", "--global_batch_size=8", "--save_strategy=no", clip]));
            let norm = metrics(&out)[0]["grad_norm"].as_f64().unwrap();
            assert!(norm > 0.1, "{norm} would not be clipped");
            (norm, changes(&model(), &out, 1.0))
        });
        for (norm, clipped) in &outs[1..] {
            assert_eq!(*norm, outs[0].0, "{mesh:?}: the norm before clipping is reported");
            for ((name, _, free), (_, _, clipped)) in outs[0].1.iter().zip(clipped) {
                let most = free.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
                assert!(most > 1e-3, "{name} did not change");
                for (a, b) in free.iter().zip(clipped) {
                    assert!((a - b).abs() <= 1e-4 * most, "{mesh:?} {name}: {a} and {b} of {most}");
                }
            }
        }
    }
}

/// There, stage 3 moved the momentum and orthogonalised once per micro-batch.
#[test]
fn deepspeed_8443_8600_four_micro_batches_are_one_step() {
    let root = tempfile::tempdir().unwrap();
    for mesh in [ONE, (2, 1, 0), (2, 1, 1), (2, 1, 2), (2, 1, 3), (2, 2, 0), (4, 2, 3)] {
        let [one, four] = [["4", "1"], ["1", "4"]].map(|[rows, accumulation]| {
            let out = root.path().join(format!("{mesh:?} {accumulation}"));
            let rows = format!("--per_device_train_batch_size={rows}");
            let accumulation = format!("--gradient_accumulation_steps={accumulation}");
            ok(&muon(&out, mesh, &["--max_steps=6", "--save_strategy=no", &rows, &accumulation]));
            out
        });
        let (numbers, weights) = (numbers_apart(&one, &four), weights_apart(Some(&model()), &one, &four));
        println!("{mesh:?}: numbers {numbers:.1e}, weights {weights:.1e}");
        assert!(numbers <= ROUNDING, "{mesh:?}: {numbers}");
        assert!(weights <= 1e-2, "{mesh:?}: weights {weights}");
    }
}

/// There, any scheduler wrote one rate over both.
#[test]
fn deepspeed_7713_schedules_keep_the_ratio_of_rates() {
    let root = tempfile::tempdir().unwrap();
    for scheduler in ["linear", "cosine", "constant", "constant_with_warmup"] {
        let kind = format!("--lr_scheduler_type={scheduler}");
        let whole = root.path().join(scheduler);
        let words = [
            "--max_steps=8",
            "--save_steps=3",
            "--muon_lr=2e-2",
            "--adam_lr=1e-3",
            "--warmup_steps=2",
            &kind,
        ];
        ok(&muon(&whole, (2, 1, 2), &words));
        let parts = root.path().join(format!("{scheduler} again"));
        copy(&whole.join("checkpoint-3"), &parts.join("checkpoint-3"));
        ok(&muon(&parts, (2, 1, 2), &[&words[..], &["--resume_from_checkpoint=true"]].concat()));
        let mut rates = Vec::new();
        for line in metrics(&whole).iter().chain(&metrics(&parts)) {
            let [muon, adam] =
                ["learning_rate", "adam_learning_rate"].map(|name| line[name].as_f64().unwrap());
            assert!((muon - 20.0 * adam).abs() <= 1e-15, "{scheduler}: {muon} and {adam}");
            rates.push(muon);
        }
        let most = rates.iter().copied().fold(0.0, f64::max);
        assert!((most - 2e-2).abs() < 1e-12, "{scheduler}: {most}");
        assert_eq!(rates.len(), 13);
        assert_eq!(scheduler == "constant", rates.iter().all(|rate| *rate == most), "{rates:?}");
    }
}

/// A checkpoint as `from`, with another loss scale.
fn with_scale(from: &Path, output: &Path, scale: f32) {
    let checkpoint = Checkpoint::open(from).unwrap();
    let mut writer = CheckpointWriter::new(output, checkpoint.step()).unwrap();
    let own = |file: &str| file.starts_with("state/") || file == "trainer_state.json";
    for file in checkpoint.files().filter(|file| !own(file)) {
        writer.file(file, &checkpoint.file(file).unwrap()).unwrap();
    }
    for (name, slot) in checkpoint.entries() {
        writer.tensor(name, slot, checkpoint.read(name, slot).unwrap().view()).unwrap();
    }
    writer.slots(checkpoint.slots().clone());
    let mut state = checkpoint.trainer_state().unwrap();
    let mut ours = state.burnish().clone();
    ours["loss_scaler"]["scale"] = json!(scale);
    state.set_burnish(ours);
    writer.trainer_state(&state).unwrap();
    writer.commit().unwrap();
}

/// There, a step that overflowed was folded into the momentum before it was skipped, which never recovered.
#[test]
fn an_overflowed_step_leaves_the_momentum_untouched() {
    let root = tempfile::tempdir().unwrap();
    for mesh in [ONE, (2, 1, 0), (2, 1, 2), (2, 1, 3), (2, 2, 0)] {
        for variant in ["--muon_variant=muon", "--muon_variant=normuon"] {
            let [before, after] =
                ["before", "after"].map(|name| root.path().join(format!("{mesh:?} {variant} {name}")));
            let words = ["--max_steps=6", "--global_batch_size=6", "--save_steps=1", "--fp16", variant];
            ok(&muon(&before, mesh, &words));
            // Gradients times nearly all that f32 can hold overflow.
            with_scale(&before.join("checkpoint-3"), &after, f32::MAX);
            ok(&muon(&after, mesh, &[&words[..], &["--resume_from_checkpoint=true"]].concat()));
            let [then, now] = [before.join("checkpoint-3"), after.join("checkpoint-4")]
                .map(|path| Checkpoint::open(path).unwrap());
            let steps = |c: &Checkpoint| c.trainer_state().unwrap().burnish()["optimizer_steps"].clone();
            assert_eq!(steps(&now), steps(&then), "{mesh:?}: step 4 was to be skipped");
            assert_eq!(now.trainer_state().unwrap().global_step, 4);
            assert!(then.entries().eq(now.entries()));
            for (name, slot) in then.entries() {
                let [a, b] = [&then, &now].map(|c| c.read(name, slot).unwrap());
                assert_eq!(a.bytes, b.bytes, "{mesh:?} {variant} {name} {slot}");
            }
            let [a, b] = [&then, &now].map(|c| std::fs::read(c.path().join("model.safetensors")).unwrap());
            assert!(a == b, "{mesh:?} {variant}: a skipped step changed weights");
        }
    }
}

/// There, parameters that the user kept from decay lost that when groups were flattened: norms and biases never decay,
/// matrices do by Muon's own rate as it is before the shape's scale, everything else by AdamW's.
#[test]
fn decay_is_by_each_halfs_rate_and_not_of_norms() {
    let root = tempfile::tempdir().unwrap();
    for mesh in [ONE, (2, 1, 2), (2, 1, 3), (2, 2, 0)] {
        let [free, decayed] = ["--weight_decay=0", "--weight_decay=0.5"].map(|decay| {
            let out = root.path().join(format!("{mesh:?} {decay}"));
            let words = ["--max_steps=1", "--global_batch_size=8", "--save_strategy=no"];
            let rates = ["--muon_lr=0.1", "--adam_lr=0.01", "--lr_scheduler_type=constant", decay];
            ok(&muon(&out, mesh, &[&words[..], &rates].concat()));
            WeightFolder::open(&out).unwrap()
        });
        let start = WeightFolder::open(model()).unwrap();
        for name in start.names() {
            let rate = match name {
                name if is_matrix(name) => 0.1,
                name if name.contains("norm") => 0.0,
                _ => 0.01,
            };
            let [start, free, decayed] = [&start, &free, &decayed].map(|f| f.read(name).unwrap().to_f32());
            for ((s, free), decayed) in start.iter().zip(free).zip(decayed) {
                let expected = free - 0.5 * rate * s;
                assert!(
                    (decayed - expected).abs() <= 1e-6 * (1.0 + s.abs()),
                    "{mesh:?} {name}: {decayed}, expected {expected}"
                );
            }
        }
    }
}
