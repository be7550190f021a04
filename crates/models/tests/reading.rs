//! What ranks that share layers read of a model's files.

use burnish_comm::local;
use burnish_core::Dtype;
use burnish_models::{Model, ModelFolder, ModelPlan, Tuning};
use burnish_ops::Parameters;
use burnish_tp::Tp;
use serde_json::json;

use crate::recordings::{device, fixtures, json as read_json};
use crate::round_trips::target;

/// Bytes that this thread has read from files; `None`, and said so, where the system does not count them.
fn bytes_read() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/thread-self/io").ok();
    let found = text.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("rchar: ")));
    if found.is_none() {
        println!("no /proc/thread-self/io on this machine: not run");
    }
    found.map(|count| count.trim().parse().unwrap())
}

/// Matrices large enough that a rank's part of a row is read by a call of its own.
fn wide() -> (tempfile::TempDir, ModelFolder) {
    let plain = tempfile::tempdir().unwrap();
    let mut config = read_json(&fixtures().join("llama/config.json"));
    config["intermediate_size"] = json!(24_576);
    config["num_hidden_layers"] = json!(1);
    std::fs::write(plain.path().join("config.json"), config.to_string()).unwrap();
    let folder = ModelFolder::open_untrained(plain.path()).unwrap();
    let model = Model::load(&folder, &Tuning::Full, Dtype::F32, 0, &device()).unwrap();
    let (guard, path, mut writer) = target();
    model.write_full(&folder, &mut writer, Dtype::F32).unwrap();
    writer.commit().unwrap();
    (guard, ModelFolder::open(path).unwrap())
}

/// Row-parallel layers included, whose parts are columns.
#[test]
fn ranks_read_their_slices_and_nothing_else() {
    if bytes_read().is_none() {
        return;
    }
    let (_guard, folder) = wide();
    for ranks in [1, 2, 3, 4] {
        let results = local::run(ranks, |world| {
            let planned = ModelPlan::new(&folder, &Tuning::None, Dtype::F32, 0).unwrap();
            let planned = planned.over(&Tp::new(&world.group())).unwrap();
            let before = bytes_read().unwrap();
            let (_, resident) = planned.resident(&device()).unwrap();
            let held: usize = resident.registry().iter().map(|p| 4 * p.elements()).sum();
            (bytes_read().unwrap() - before, held)
        });
        for (rank, result) in results.into_iter().enumerate() {
            let (read, held) = result.unwrap();
            // What is small is copied out of the mapped file, and the count itself is a file.
            let (least, most) = (held - held / 50, held + held / 50);
            assert!(
                (least..=most).contains(&read),
                "rank {rank} of {ranks} holds {held} bytes and read {read}"
            );
        }
    }
}
