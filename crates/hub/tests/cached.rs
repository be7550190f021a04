//! What the cache gives when the hub is not asked.

use std::fs;

use burnish_hub::{Hub, Repo, Settings, Wanted};
use loopback_hub::Reply;

use crate::{add, fetch, hub_with_model, model, settings};

#[test]
fn offline_the_cache_is_all_there_is() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let online = settings(&hub, cache.path());
    let offline = Settings { offline: true, ..online.clone() };
    let error = fetch(&offline, "org/tiny").unwrap_err().to_string();
    assert!(error.contains("HF_HUB_OFFLINE") && error.contains("org/tiny"), "{error}");
    let fetched = fetch(&online, "org/tiny").unwrap();
    let _ = hub.requests();
    let found = fetch(&offline, "org/tiny").unwrap();
    assert_eq!(found.path, fetched.path);
    assert!(found.note.unwrap().contains("from the cache"));
    assert!(hub.requests().is_empty());
}

#[test]
fn a_snapshot_that_is_not_whole_is_not_taken_for_one() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let online = settings(&hub, cache.path());
    // The tokenizer alone was fetched before.
    let repo = Repo::model("org/tiny").unwrap();
    Hub::new(online.clone(), |_| {}).fetch(&repo, None, &Wanted::Tokenizer).unwrap();
    let error = fetch(&Settings { offline: true, ..online }, "org/tiny").unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
}

#[test]
fn the_cache_stands_in_for_a_hub_out_of_reach() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let online = settings(&hub, cache.path());
    fetch(&online, "org/tiny").unwrap();
    hub.intercept(|_, _| Some(Reply::status(503)));
    let note = fetch(&online, "org/tiny").unwrap().note.unwrap();
    assert!(note.contains("503") && note.contains("from the cache"), "{note}");
    let nowhere = Settings { endpoint: "http://127.0.0.1:1".to_owned(), ..online.clone() };
    let note = fetch(&nowhere, "org/tiny").unwrap().note.unwrap();
    assert!(note.contains("no answer"), "{note}");
    // What the hub refuses, the cache does not give.
    hub.intercept(|_, _| Some(Reply::status(403).with("x-error-code", "GatedRepo")));
    let error = fetch(&online, "org/tiny").unwrap_err().to_string();
    assert!(error.contains("gated"), "{error}");
}

#[test]
fn a_cache_that_another_program_filled_is_read() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let online = settings(&hub, cache.path());
    let snapshot = fetch(&online, "org/tiny").unwrap();
    fs::remove_dir_all(cache.path().join("models--org--tiny/trees")).unwrap();
    let found = fetch(&Settings { offline: true, ..online }, "org/tiny").unwrap();
    assert_eq!(found.path, snapshot.path);
    assert!(found.note.unwrap().contains("no list"));
}

#[test]
fn blobs_that_are_there_are_linked() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    let snapshot = fetch(&settings, "org/tiny").unwrap();
    fs::remove_file(snapshot.path.join("model.safetensors")).unwrap();
    let _ = hub.requests();
    let again = fetch(&settings, "org/tiny").unwrap();
    assert_eq!(again.fetched, 0);
    assert!(again.path.join("model.safetensors").is_file());
    assert_eq!(hub.requests().len(), 1);
}

#[test]
fn a_link_that_leads_nowhere_is_mended() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    let snapshot = fetch(&settings, "org/tiny").unwrap();
    let blob = fs::canonicalize(snapshot.path.join("model.safetensors")).unwrap();
    fs::remove_file(blob).unwrap();
    fetch(&settings, "org/tiny").unwrap();
    assert_eq!(fs::read(snapshot.path.join("model.safetensors")).unwrap(), model()[1].1);
}

#[test]
fn one_cache_serves_models_and_data_sets_of_one_name() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    add(&hub, "datasets/org/tiny", &[("train.jsonl", b"{}".to_vec())]);
    let settings = settings(&hub, cache.path());
    fetch(&settings, "org/tiny").unwrap();
    let repo = Repo::dataset("org/tiny").unwrap();
    let all = |tree: &burnish_hub::Tree| tree.names().map(str::to_owned).collect::<Vec<_>>();
    let rows = Hub::new(settings, |_| {}).fetch(&repo, None, &Wanted::Files(&all)).unwrap();
    assert_eq!(Repo::of_snapshot(&rows.path), Some(repo));
}
