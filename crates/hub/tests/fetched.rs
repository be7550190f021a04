//! What is fetched, and how it lies in the cache.

use std::fs;
use std::sync::{Arc, Mutex};

use burnish_hub::{Hub, Repo, Wanted};
use loopback_hub::LoopbackHub;

use crate::{add, fetch, hub_with_model, model, settings};

#[test]
fn only_the_files_needed_come_and_lie_as_huggingface_hub_lays_them() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let snapshot = fetch(&settings(&hub, cache.path()), "org/tiny").unwrap();
    let commit = hub.commit("models/org/tiny");
    let folder = cache.path().join("models--org--tiny");
    assert_eq!((&snapshot.commit, &snapshot.note), (&commit, &None));
    assert_eq!(snapshot.path, folder.join("snapshots").join(&commit));
    let mut names: Vec<String> = (fs::read_dir(&snapshot.path).unwrap())
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read_to_string(folder.join("refs/main")).unwrap(), commit);
    for (name, bytes) in model().iter().filter(|(name, _)| names.iter().any(|n| n == name)) {
        let path = snapshot.path.join(name);
        assert_eq!(&fs::read(&path).unwrap(), bytes, "{name}");
        let link = fs::read_link(&path).unwrap();
        assert!(link.starts_with("../../blobs"), "{link:?}");
        let digits = link.file_name().unwrap().len();
        assert_eq!(digits, if bytes.len() >= loopback_hub::LARGE { 64 } else { 40 }, "{name}");
    }
    assert!(folder.join(format!("trees/{commit}.json")).is_file());
    assert!(fs::read_dir(folder.join("blobs")).unwrap().all(|b| b.unwrap().path().extension().is_none()));
}

#[test]
fn the_token_goes_to_the_hub_and_to_no_other_host() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    fetch(&settings(&hub, cache.path()), "org/tiny").unwrap();
    let requests = hub.requests();
    assert!(requests.iter().any(|r| r.large) && requests.iter().any(|r| !r.large));
    for request in requests {
        assert_eq!(request.headers.contains_key("authorization"), !request.large, "{}", request.path);
    }
}

#[test]
fn a_second_run_asks_for_the_commit_alone() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    assert!(fetch(&settings, "org/tiny").unwrap().fetched > 200_000);
    let _ = hub.requests();
    assert_eq!(fetch(&settings, "org/tiny").unwrap().fetched, 0);
    let paths: Vec<String> = hub.requests().into_iter().map(|r| r.path).collect();
    assert_eq!(paths, ["/api/models/org/tiny/revision/main"]);
}

#[test]
fn a_new_commit_fetches_only_what_changed() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    let old = fetch(&settings, "org/tiny").unwrap();
    let mut files = model();
    files[0].1 = b"{\"model_type\": \"qwen2\"}".to_vec();
    add(&hub, "models/org/tiny", &files);
    let new = fetch(&settings, "org/tiny").unwrap();
    assert_eq!(new.fetched, files[0].1.len() as u64);
    assert_ne!(new.path, old.path);
    assert!(old.path.join("config.json").is_file());
    let again = Hub::new(settings, |_| {});
    let repo = Repo::model("org/tiny").unwrap();
    let of_old = again.fetch(&repo, Some(&old.commit), &Wanted::Model).unwrap();
    assert_eq!((of_old.path, of_old.fetched), (old.path, 0));
}

#[test]
fn shards_come_by_their_index() {
    let (hub, cache) = (LoopbackHub::start(), tempfile::tempdir().unwrap());
    let index = br#"{"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}"#;
    add(
        &hub,
        "models/org/big",
        &[
            ("config.json", b"{}".to_vec()),
            ("model.safetensors.index.json", index.to_vec()),
            ("model-1-of-2.safetensors", vec![1; 30_000]),
            ("model-2-of-2.safetensors", vec![2; 30_000]),
            ("model-3-of-3.safetensors", vec![3; 30_000]),
        ],
    );
    hub.page(2);
    let snapshot = fetch(&settings(&hub, cache.path()), "org/big").unwrap();
    assert!(snapshot.path.join("model-2-of-2.safetensors").is_file());
    assert!(!snapshot.path.join("model-3-of-3.safetensors").exists());
}

#[test]
fn a_data_sets_files_are_chosen_and_progress_is_told() {
    let (hub, cache) = (LoopbackHub::start(), tempfile::tempdir().unwrap());
    let files = [("data/train 1.jsonl", vec![b'x'; 40_000]), ("data/test.jsonl", vec![b'y'; 10])];
    add(&hub, "datasets/org/rows", &files);
    let told = Arc::new(Mutex::new(Vec::new()));
    let ear = Arc::clone(&told);
    let client =
        Hub::new(settings(&hub, cache.path()), move |p| ear.lock().unwrap().push((p.bytes, p.total)));
    let wanted = |tree: &burnish_hub::Tree| {
        tree.names().filter(|n| n.contains("train")).map(str::to_owned).collect::<Vec<_>>()
    };
    let repo = Repo::dataset("org/rows").unwrap();
    let snapshot = client.fetch(&repo, Some("main"), &Wanted::Files(&wanted)).unwrap();
    assert_eq!(fs::read(snapshot.path.join("data/train 1.jsonl")).unwrap().len(), 40_000);
    assert!(!snapshot.path.join("data/test.jsonl").exists());
    assert!(snapshot.path.starts_with(cache.path().join("datasets--org--rows")));
    let told = told.lock().unwrap();
    assert_eq!(told.last(), Some(&(40_000, 40_000)));
    assert!(told.windows(2).all(|w| w[0].0 <= w[1].0));
}

#[test]
fn processes_side_by_side_fetch_once() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| fetch(&settings, "org/tiny").unwrap());
        }
    });
    let large = hub.requests().iter().filter(|r| r.large).count();
    assert_eq!(large, 1);
}
