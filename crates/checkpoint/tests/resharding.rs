//! Written by N ranks, read by M: identity, and each reads what it keeps.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use burnish_checkpoint::{
    Attempt, Checkpoint, CheckpointError, CheckpointWriter, Damage, Share, TrainerState, open_newest,
};
use burnish_core::Dtype;
use burnish_weight_files::{HostTensor, LEAF, TensorSpec, WeightFileError};
use proptest::prelude::*;

use crate::ranks::piece;
use crate::tensor;

/// The ranges between cuts: as many as there are ranks, some maybe empty.
fn ranges(rows: usize, cuts: &[usize]) -> Vec<Range<usize>> {
    let mut ends: Vec<usize> = cuts.iter().map(|c| c % (rows + 1)).collect();
    ends.sort_unstable();
    ends.push(rows);
    let starts = std::iter::once(0).chain(ends.clone());
    starts.zip(ends).map(|(a, b)| a..b).collect()
}

fn rows_of(t: &HostTensor) -> usize {
    t.shape.first().copied().unwrap_or(1)
}

/// Every rank in a thread of its own.
fn save(
    dir: &Path,
    ranks: usize,
    tensors: &[(String, HostTensor, Vec<Range<usize>>)],
    shard: u64,
) -> PathBuf {
    let attempt = Attempt::fresh();
    let make = |rank| {
        CheckpointWriter::shared(dir, 1, Share { attempt, rank, ranks }).expect("the folder can be written")
    };
    let lead = make(0);
    let writers: Vec<_> = std::iter::once(lead).chain((1..ranks).map(make)).collect();
    let specs: Vec<TensorSpec> =
        tensors.iter().map(|(n, t, _)| TensorSpec::new(n.clone(), t.dtype, &t.shape)).collect();
    let of = |spec: &TensorSpec| tensors.iter().find(|(n, ..)| *n == spec.name).unwrap();
    let write = |rank: usize, mut writer: CheckpointWriter| {
        for (name, t, ranges) in tensors {
            let rows = ranges[rank].clone();
            writer.rows(name, "m", &t.shape, rows.clone(), piece(t, &rows).view()).unwrap();
        }
        let folder = writer.folder();
        folder.set_max_shard_size(shard);
        folder
            .tensor_rows::<WeightFileError>(
                "model",
                &specs,
                |s| of(s).2[rank].clone(),
                |s, rows| Ok(piece(&of(s).1, &rows).bytes.into()),
            )
            .unwrap();
        writer.trainer_state(&TrainerState { global_step: 1, ..Default::default() }).unwrap();
        writer.finish().unwrap()
    };
    let mut written = std::thread::scope(|scope| {
        let threads: Vec<_> =
            writers.into_iter().enumerate().map(|(rank, w)| scope.spawn(move || write(rank, w))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    written.remove(0).commit().unwrap()
}

fn models(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|n| n.starts_with("model")).collect();
    names.sort();
    names.into_iter().map(|n| (n.clone(), fs::read(folder.join(n)).unwrap())).collect()
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::F32), Just(Dtype::Bf16), Just(Dtype::U8)]
}

/// A tensor (maybe a scalar, maybe empty) and cuts for writers and readers.
#[allow(clippy::type_complexity, reason = "a strategy")]
fn cut_tensor() -> impl Strategy<Value = (Dtype, Vec<usize>, Vec<usize>, Vec<usize>)> {
    let shape = prop_oneof![
        Just(vec![]),
        (0_usize..30).prop_map(|n| vec![n]),
        (0_usize..20, 0_usize..5).prop_map(|(n, k)| vec![n, k]),
        (0_usize..6, 1_usize..3, 1_usize..4).prop_map(|(n, k, l)| vec![n, k, l]),
    ];
    (dtype(), shape, prop::collection::vec(any::<usize>(), 7), prop::collection::vec(any::<usize>(), 7))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_ranks_write_any_ranks_read(
        cuts in prop::collection::vec(cut_tensor(), 1..5),
        n in 1_usize..=8,
        m in 1_usize..=8,
        shard in prop_oneof![Just(u64::MAX), 1_u64..200],
    ) {
        let tensors: Vec<_> = cuts.iter().enumerate().map(|(k, (dtype, shape, by_writer, _))| {
            let elements: usize = shape.iter().product();
            let values: Vec<f32> = (0..elements).map(|i| ((i + 7 * k) % 200) as f32).collect();
            let whole = HostTensor::from_f32(&values, shape, *dtype).unwrap();
            let ranges = ranges(rows_of(&whole), &by_writer[..n - 1]);
            (format!("t{k}"), whole, ranges)
        }).collect();
        let (many, one) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = save(many.path(), n, &tensors, shard);
        let alone: Vec<_> =
            tensors.iter().map(|(n, t, _)| (n.clone(), t.clone(), ranges(rows_of(t), &[]))).collect();
        let single = save(one.path(), 1, &alone, shard);
        // Model files do not tell how many ranks wrote them.
        prop_assert_eq!(models(&path), models(&single));
        Checkpoint::open(&path).unwrap().verify().unwrap();
        let mut read: Vec<(Vec<u8>, Vec<u8>)> = vec![Default::default(); tensors.len()];
        for rank in 0..m {
            let c = Checkpoint::open(&path).unwrap();
            for (k, (name, t, _)) in tensors.iter().enumerate() {
                let rows = ranges(rows_of(t), &cuts[k].3[..m - 1])[rank].clone();
                let expected = piece(t, &rows);
                let state = c.read_rows_as(name, "m", t.dtype, &t.shape, rows.clone()).unwrap();
                let weight = c.weight_rows(name, &t.shape, rows).unwrap();
                prop_assert_eq!(&state, &expected);
                prop_assert_eq!(&weight, &expected);
                read[k].0.extend(state.bytes);
                read[k].1.extend(weight.bytes);
            }
        }
        for (k, (_, t, _)) in tensors.iter().enumerate() {
            prop_assert_eq!(&read[k].0, &t.bytes);
            prop_assert_eq!(&read[k].1, &t.bytes);
        }
    }
}

/// A scalar is one row, which one rank writes and any rank reads.
#[test]
fn scalars() {
    let dir = tempfile::tempdir().unwrap();
    let scalar = HostTensor::from_slice(&[7_i64], &[]).unwrap();
    let path = save(dir.path(), 2, &[("s".into(), scalar.clone(), vec![0..1, 1..1])], u64::MAX);
    let c = Checkpoint::open(path).unwrap();
    assert_eq!(c.read("s", "m").unwrap(), scalar);
    assert_eq!(c.weight_rows("s", &[], 0..1).unwrap(), scalar);
}

/// Each of M ranks reads its own bytes, the rest of a leaf at each end of a tensor, and the index.
#[test]
fn ranks_read_what_they_keep() {
    // 12 MiB and 3 MiB: 24 % of a rank's bytes at M = 4 are more than its leaves.
    let tensors = [("a", 3 << 20, 3), ("b", 3 << 18, 3)].map(|(name, elements, n)| {
        let t = tensor(1, elements);
        let rows = rows_of(&t);
        (name.to_owned(), t, (0..n).map(|r| rows * r / n..rows * (r + 1) / n).collect::<Vec<_>>())
    });
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), 3, &tensors, u64::MAX);
    let metadata = fs::metadata(path.join("state/index.json")).unwrap().len();
    for m in [1_usize, 2, 4] {
        let mut all = 0;
        for rank in 0..m {
            let c = Checkpoint::open(&path).unwrap();
            assert_eq!(c.bytes_read(), metadata);
            let mut own = 0;
            for (name, t, _) in &tensors {
                let rows = rows_of(t) * rank / m..rows_of(t) * (rank + 1) / m;
                let got = c.read_range(name, "m", rows.clone()).unwrap();
                assert_eq!(got, piece(t, &rows));
                own += got.bytes.len() as u64;
                let got = c.weight_rows(name, &t.shape, rows).unwrap();
                own += got.bytes.len() as u64;
            }
            // Two tensors, each in state and model; a piece of another writer begins new leaves.
            let edges = 4 * 2 * LEAF;
            let read = c.bytes_read() - metadata;
            assert!(own <= read && read <= own + edges, "rank {rank} of {m}: {own} {read}");
            all += read;
        }
        println!("{m} ranks read {all} bytes");
    }
    // Checking is shared too, and everything is checked.
    let total: u64 = {
        let c = Checkpoint::open(&path).unwrap();
        c.verify().unwrap();
        c.bytes_read() - metadata
    };
    let each: Vec<u64> = (0..4)
        .map(|rank| {
            let c = Checkpoint::open(&path).unwrap();
            c.verify_share(rank, 4).unwrap();
            c.bytes_read() - metadata
        })
        .collect();
    assert_eq!(each.iter().sum::<u64>(), total);
    assert!(each.iter().all(|&b| b <= total / 4 + 2 * LEAF), "{each:?}");
}

#[test]
fn shared_checking_finds_what_is_wrong_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = crate::save(dir.path(), 1);
    for name in ["adapter_model.safetensors", "state/data-00000-00000.safetensors", "trainer_state.json"] {
        let whole = fs::read(path.join(name)).unwrap();
        let mut bytes = whole.clone();
        bytes[whole.len() / 3] ^= 4;
        fs::write(path.join(name), &bytes).unwrap();
        for ranks in [1, 2, 5] {
            let c = open_newest(dir.path(), None).unwrap().checkpoint.unwrap();
            let failed: Vec<_> = (0..ranks).filter_map(|r| c.verify_share(r, ranks).err()).collect();
            assert_eq!(failed.len(), 1, "{name} {ranks}");
            let CheckpointError::Damaged { damage, .. } = &failed[0] else { panic!("{}", failed[0]) };
            assert!(matches!(&**damage, Damage::Checksum { file, .. } if file == name));
        }
        fs::write(path.join(name), &whole).unwrap();
    }
    assert!(open_newest(dir.path(), Some(1)).unwrap().checkpoint.is_none());
}

#[test]
fn weights_of_another_shape_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let c = Checkpoint::open(crate::save(dir.path(), 1)).unwrap();
    assert_eq!(c.weight_rows("a.lora", &[4, 4], 1..3).unwrap().to_f32(), tensor(1, 16).to_f32()[4..12]);
    let shape = c.weight_rows("a.lora", &[4, 5], 1..3).unwrap_err().to_string();
    assert!(
        shape.contains("`weights` of `a.lora` is float32 [4, 4], this run needs float32 [4, 5]"),
        "{shape}"
    );
    assert!(c.weight_rows("a.lora", &[4, 4], 3..5).is_err());
    assert!(c.weight_rows("a.lorb", &[4, 4], 0..4).unwrap_err().to_string().contains("nearest: a.lora"));
}

/// A checkpoint as written before many ranks could.
#[test]
fn version_1_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/version_1/checkpoint-5");
    let c = Checkpoint::open(&path).unwrap();
    c.verify().unwrap();
    for rank in 0..3 {
        c.verify_share(rank, 3).unwrap();
    }
    let whole = tensor(5, 64);
    assert_eq!(c.read("a.weight", "exp_avg").unwrap(), whole);
    assert_eq!(c.read("b.weight", "exp_avg").unwrap(), tensor(1005, 32));
    assert_eq!(c.read("step", "count").unwrap(), HostTensor::from_slice(&[7_i64], &[]).unwrap());
    let rows = c.read_rows_as("a.weight", "exp_avg", Dtype::F32, &[16, 4], 3..9).unwrap();
    assert_eq!(rows, piece(&whole, &(3..9)));
    assert_eq!(c.weight_rows("a.lora", &[4, 4], 1..3).unwrap(), piece(&tensor(5, 16), &(1..3)));
    assert_eq!(c.trainer_state().unwrap().burnish()["cursor"], 5);
    // And its damage is noticed as before.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("checkpoint-5");
    fs::create_dir_all(copy.join("state")).unwrap();
    for file in c.files().chain(["state/index.json"]) {
        fs::copy(path.join(file), copy.join(file)).unwrap();
    }
    let data = copy.join("state/data-00001.safetensors");
    let mut bytes = fs::read(&data).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&data, bytes).unwrap();
    let c = Checkpoint::open(&copy).unwrap();
    let failed = c.entries().filter(|(n, s)| c.read(n, s).is_err()).count();
    assert_eq!((failed, c.verify().is_err()), (1, true));
}
