use burnish_checkpoint::{Checkpoint, CheckpointError, CheckpointWriter, TrainerState, latest, path_of};
use burnish_core::Dtype;
use burnish_weight_files::{FullDisk, HostTensor, WeightFileError};
use proptest::prelude::*;
use serde_json::json;
use std::fs;
use std::sync::Arc;

use crate::{save, tensor};

#[test]
fn what_is_saved_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), 5);
    assert_eq!(path, path_of(dir.path(), 5));
    let c = Checkpoint::open(&path).unwrap();
    c.verify().unwrap();
    assert_eq!(c.step(), 5);
    assert_eq!(c.slots(), &json!({"exp_avg": "float32"}));
    assert_eq!(c.entries().collect::<Vec<_>>(), [("a.weight", "exp_avg"), ("b.weight", "exp_avg")]);
    assert_eq!(c.read("a.weight", "exp_avg").unwrap(), tensor(5, 64));
    assert_eq!(
        c.files().collect::<Vec<_>>(),
        ["adapter_model.safetensors", "state/data-00000-00000.safetensors", "trainer_state.json"]
    );
    assert_eq!(c.trainer_state().unwrap().burnish()["cursor"], 5);
    let range = c.read_range("a.weight", "exp_avg", 3..7).unwrap();
    assert_eq!(range.shape, [4, 4]);
    assert_eq!(range.to_f32(), tensor(5, 64).to_f32()[12..28]);
    assert_eq!(c.read_range("a.weight", "exp_avg", 7..7).unwrap().bytes, [0_u8; 0]);
}

#[test]
fn requests_that_do_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let c = Checkpoint::open(save(dir.path(), 5)).unwrap();
    let unknown = c.read("a.weigth", "exp_avg").unwrap_err().to_string();
    assert!(unknown.contains("holds no `exp_avg` of `a.weigth`; nearest: a.weight/exp_avg"), "{unknown}");
    let rows = c.read_range("a.weight", "exp_avg", 10..17).unwrap_err().to_string();
    assert_eq!(rows, "rows 10..17 of `exp_avg` of `a.weight` are outside its shape [16, 4]");
    c.read_as("a.weight", "exp_avg", Dtype::F32, &[16, 4]).unwrap();
    let dtype = c.read_as("a.weight", "exp_avg", Dtype::Bf16, &[16, 4]).unwrap_err().to_string();
    assert!(dtype.contains("is float32 [16, 4], this run needs bfloat16 [16, 4]"), "{dtype}");
    assert!(c.read_as("a.weight", "exp_avg", Dtype::F32, &[4, 16]).is_err());
}

#[test]
fn pieces_make_up_the_whole_or_nothing_is_committed() {
    let dir = tempfile::tempdir().unwrap();
    let whole = tensor(1, 64);
    let piece = |rows: std::ops::Range<usize>| {
        HostTensor::new(Dtype::F32, &[rows.len(), 4], whole.bytes[rows.start * 16..rows.end * 16].to_vec())
            .unwrap()
    };
    let state = TrainerState { global_step: 1, ..Default::default() };
    let start = || {
        let mut writer = CheckpointWriter::new(dir.path(), 1).unwrap();
        writer.trainer_state(&state).unwrap();
        writer
    };
    let mut writer = start();
    for rows in [9..16, 0..3, 3..9] {
        writer.rows("w", "m", &[16, 4], rows.clone(), piece(rows).view()).unwrap();
    }
    let c = Checkpoint::open(writer.commit().unwrap()).unwrap();
    assert_eq!(c.read("w", "m").unwrap(), whole);
    for rows in [0..16, 2..4, 8..10, 15..16, 4..4] {
        assert_eq!(c.read_range("w", "m", rows.clone()).unwrap().bytes, piece(rows).bytes);
    }

    let mut writer = start();
    writer.rows("w", "m", &[16, 4], 0..3, piece(0..3).view()).unwrap();
    let twice = writer.rows("w", "m", &[16, 4], 2..5, piece(2..5).view()).unwrap_err().to_string();
    assert!(twice.contains("rows given twice at row 2"), "{twice}");
    let other = writer.rows("w", "m", &[17, 4], 5..7, piece(5..7).view()).unwrap_err().to_string();
    assert!(other.contains("another dtype or shape"), "{other}");
    assert!(writer.rows("w", "m", &[16, 4], 15..17, piece(14..16).view()).is_err());
    let gap = writer.commit().unwrap_err().to_string();
    assert!(gap.contains("rows never given at row 3"), "{gap}");
    // The earlier checkpoint of that step is still there.
    assert_eq!(latest(dir.path()).unwrap().checkpoint.unwrap().read("w", "m").unwrap(), whole);
}

#[test]
fn a_trainer_state_is_needed_and_of_this_step() {
    let dir = tempfile::tempdir().unwrap();
    let writer = CheckpointWriter::new(dir.path(), 3).unwrap();
    assert!(matches!(writer.commit(), Err(CheckpointError::NoTrainerState { step: 3 })));
    let mut writer = CheckpointWriter::new(dir.path(), 3).unwrap();
    let wrong = writer.trainer_state(&TrainerState::default()).unwrap_err();
    assert_eq!(wrong.to_string(), "checkpoint at step 3 was given the trainer state of step 0");
    drop(writer);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn trainer_state_is_in_transformers_schema() {
    let text = include_str!("trainer_state.json");
    let state: TrainerState = serde_json::from_str(text).unwrap();
    assert_eq!(state.global_step, 4);
    let ours: serde_json::Value = serde_json::to_value(&state).unwrap();
    let theirs: serde_json::Value = serde_json::from_str(text).unwrap();
    let keys = |v: &serde_json::Value| {
        v.as_object().unwrap().keys().cloned().collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(keys(&ours), keys(&theirs));
    assert_eq!(ours["log_history"], theirs["log_history"]);
}

#[test]
fn scalars_empty_and_large_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let scalar = HostTensor::from_slice(&[7_i64], &[]).unwrap();
    let empty = HostTensor::zeros(Dtype::F32, &[0, 8]);
    let thin = HostTensor::zeros(Dtype::F32, &[3, 0]);
    // 80 MiB: two blocks.
    let large = HostTensor::from_slice(&(0..20_i32 << 20).collect::<Vec<_>>(), &[20 << 10, 1 << 10]).unwrap();
    let mut writer = CheckpointWriter::new(dir.path(), 1).unwrap();
    for (name, t) in [("step", &scalar), ("empty", &empty), ("thin", &thin), ("large", &large)] {
        writer.tensor(name, "s", t.view()).unwrap();
    }
    writer.trainer_state(&TrainerState { global_step: 1, ..Default::default() }).unwrap();
    let c = Checkpoint::open(writer.commit().unwrap()).unwrap();
    for (name, t) in [("step", &scalar), ("empty", &empty), ("thin", &thin), ("large", &large)] {
        assert_eq!(&c.read(name, "s").unwrap(), t, "{name}");
    }
    assert_eq!(c.files().filter(|f| f.starts_with("state/data-")).count(), 2);
    let across = c.read_range("large", "s", 16_380..16_390).unwrap();
    assert_eq!(across.as_slice::<i32>().unwrap()[0], 16_380 << 10);
    assert_eq!(across.elements(), 10 << 10);
}

#[test]
fn the_same_state_gives_the_same_bytes() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (x, y) = (save(a.path(), 2), save(b.path(), 2));
    for file in ["state/index.json", "state/data-00000-00000.safetensors", "trainer_state.json"] {
        assert_eq!(fs::read(x.join(file)).unwrap(), fs::read(y.join(file)).unwrap(), "{file}");
    }
}

#[test]
fn a_full_disk_keeps_the_last_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 1);
    let mut committed = false;
    for room in (0..6000).step_by(300) {
        for step in [1, 2] {
            let disk = Arc::new(FullDisk::with_room_for(room));
            let attempt = || -> Result<(), CheckpointError> {
                let mut writer = CheckpointWriter::new_on(disk, dir.path(), step)?;
                writer.tensor("w", "m", tensor(9, 256).view())?;
                writer.trainer_state(&TrainerState { global_step: step, ..Default::default() })?;
                writer.commit().map(drop)
            };
            match attempt() {
                Ok(()) => committed = true,
                Err(CheckpointError::Store(e @ WeightFileError::DiskFull { .. })) => {
                    assert!(!committed);
                    assert!(e.to_string().contains("nothing was replaced"), "{e}");
                    let newest = latest(dir.path()).unwrap();
                    assert!(newest.skipped.is_empty());
                    assert_eq!(
                        newest.checkpoint.unwrap().read("a.weight", "exp_avg").unwrap(),
                        tensor(1, 64)
                    );
                    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
                }
                Err(e) => panic!("{e}"),
            }
        }
    }
    assert!(committed, "the largest room must hold a checkpoint");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Resuming is bit for bit: numbers come back from JSON as they were (serde_json's `float_roundtrip`).
    #[test]
    fn numbers_of_the_trainer_state_are_exact(bits in prop::collection::vec(any::<u64>(), 40), count in any::<u64>()) {
        let dir = tempfile::tempdir().unwrap();
        let floats: Vec<f64> = bits.into_iter().map(f64::from_bits).filter(|x| x.is_finite()).collect();
        let mut state = TrainerState { global_step: 1, best_metric: floats.first().copied(), ..Default::default() };
        state.set_burnish(json!({"floats": floats, "count": count}));
        let mut writer = CheckpointWriter::new(dir.path(), 1).unwrap();
        writer.trainer_state(&state).unwrap();
        let again = Checkpoint::open(writer.commit().unwrap()).unwrap().trainer_state().unwrap();
        prop_assert_eq!(again, state);
    }

    #[test]
    fn any_cut_reads_back(rows in 1_usize..40, width in 1_usize..5, cuts in prop::collection::btree_set(1_usize..40, 0..5), bf16 in any::<bool>(), a in 0_usize..40, b in 0_usize..40) {
        let dir = tempfile::tempdir().unwrap();
        let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let values: Vec<f32> = (0..rows * width).map(|i| i as f32).collect();
        let whole = HostTensor::from_f32(&values, &[rows, width], dtype).unwrap();
        let row = width * dtype.bytes();
        let mut ends: Vec<usize> = cuts.into_iter().filter(|&c| c < rows).collect();
        ends.push(rows);
        let mut writer = CheckpointWriter::new(dir.path(), 1).unwrap();
        let mut start = 0;
        let mut pieces = Vec::new();
        for end in ends {
            let piece = HostTensor::new(dtype, &[end - start, width], whole.bytes[start * row..end * row].to_vec()).unwrap();
            pieces.push((start..end, piece));
            start = end;
        }
        pieces.reverse();
        for (rows_, piece) in &pieces {
            writer.rows("w", "m", &[rows, width], rows_.clone(), piece.view()).unwrap();
        }
        writer.trainer_state(&TrainerState { global_step: 1, ..Default::default() }).unwrap();
        let c = Checkpoint::open(writer.commit().unwrap()).unwrap();
        prop_assert_eq!(&c.read("w", "m").unwrap(), &whole);
        let (from, to) = (a.min(b).min(rows), a.max(b).min(rows));
        let got = c.read_range("w", "m", from..to).unwrap();
        prop_assert_eq!(&got.bytes[..], &whole.bytes[from * row..to * row]);
    }
}
