//! Folders brought to the hub: whole, in parts, once more, and against a hub that refuses or hangs up.

use std::path::Path;
use std::time::{Duration, Instant};

use burnish_hub::{Hub, HubError, Repo, Settings, Uploaded};
use loopback_hub::{LoopbackHub, Reply};

use crate::{fetch, settings};

/// A folder with a large file, a small one, an empty one and one in a folder.
fn folder() -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let weights: Vec<u8> = (0..30_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::create_dir(folder.path().join("runs")).unwrap();
    for (name, bytes) in [
        ("model.safetensors", weights.as_slice()),
        ("config.json", b"{\"model_type\": \"llama\"}"),
        ("runs/events", b"\x00\xff\x10"),
        ("empty", b""),
    ] {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let names = ["model.safetensors", "config.json", "runs/events", "empty"];
    (folder, names.map(str::to_owned).to_vec())
}

fn push(settings: &Settings, name: &str, folder: &Path, names: &[String]) -> Result<Uploaded, HubError> {
    let hub = Hub::new(settings.clone(), |_| {});
    let repo = hub.create(name, Some(true))?;
    hub.upload(&repo, None, folder, names, "End of training")
}

#[test]
fn what_is_uploaded_is_what_is_fetched() {
    let (hub, cache, (folder, names)) = (LoopbackHub::start(), tempfile::tempdir().unwrap(), folder());
    let settings = settings(&hub, cache.path());
    for part in [None, Some(7_000)] {
        if let Some(part) = part {
            hub.ask_for_parts(part);
        }
        // Another file in the second round, which the hub has not got.
        std::fs::write(folder.path().join("model.safetensors"), vec![part.unwrap_or(1) as u8; 50_000])
            .unwrap();
        let pushed = push(&settings, "org/mine", folder.path(), &names).unwrap();
        assert_eq!(pushed.sent, 50_000);
        assert_eq!(pushed.commit, hub.commit("models/org/mine"));
        assert_eq!(pushed.page, format!("{}/org/mine", hub.url()));
        let files = hub.files("models/org/mine");
        assert_eq!(files.len(), 4);
        for name in &names {
            assert_eq!(files[name], std::fs::read(folder.path().join(name)).unwrap(), "{name}");
        }
    }
    let fetched = fetch(&settings, "org/mine").unwrap();
    assert_eq!(std::fs::read(fetched.path.join("model.safetensors")).unwrap().len(), 50_000);
    let requests = hub.requests();
    let to_others: Vec<_> =
        requests.iter().filter(|request| request.large && request.method == "PUT").collect();
    assert_eq!(to_others.len(), 1 + 50_000usize.div_ceil(7_000));
    assert!(to_others.iter().all(|request| !request.headers.contains_key("authorization")));
    assert!(
        requests
            .iter()
            .filter(|r| r.method == "POST" && !r.large)
            .all(|r| r.headers["authorization"] == "Bearer hf_secret")
    );
}

#[test]
fn what_the_hub_has_is_not_sent_again() {
    let (hub, cache, (folder, names)) = (LoopbackHub::start(), tempfile::tempdir().unwrap(), folder());
    let settings = settings(&hub, cache.path());
    assert_eq!(push(&settings, "mine", folder.path(), &names).unwrap().sent, 120_000);
    let _ = hub.requests();
    let again = push(&settings, "mine", folder.path(), &names).unwrap();
    assert_eq!(again.sent, 0);
    assert_eq!(again.page, format!("{}/me/mine", hub.url()), "the account's");
    assert!(hub.requests().iter().all(|request| request.method != "PUT"));
}

#[test]
fn a_branch_is_made_where_one_is_named() {
    let (hub, cache, (folder, names)) = (LoopbackHub::start(), tempfile::tempdir().unwrap(), folder());
    let client = Hub::new(settings(&hub, cache.path()), |_| {});
    let repo = client.create("org/mine", None).unwrap();
    client.upload(&repo, Some("v1/a"), folder.path(), &names, "x").unwrap();
    client.upload_into(&repo, None, "last-checkpoint/", folder.path(), &names, "x").unwrap();
    let files = hub.files("models/org/mine");
    for name in &names {
        let bytes = std::fs::read(folder.path().join(name)).unwrap();
        assert_eq!(files[&format!("last-checkpoint/{name}")], bytes, "{name}");
    }
    let paths: Vec<String> = hub.requests().into_iter().map(|request| request.path).collect();
    assert!(paths.contains(&"/api/models/org/mine/branch/v1%2Fa".to_owned()), "{paths:?}");
    assert!(paths.contains(&"/api/models/org/mine/commit/v1%2Fa".to_owned()), "{paths:?}");
}

#[test]
fn connections_that_are_cut_are_made_again() {
    let (hub, cache, (folder, names)) = (LoopbackHub::start(), tempfile::tempdir().unwrap(), folder());
    hub.ask_for_parts(50_000);
    let mut cuts = 0;
    // Every first answer to what is sent.
    let mut seen = std::collections::BTreeSet::new();
    hub.intercept(move |request, _| {
        if request.method == "GET" || !seen.insert(request.path.clone()) {
            return None;
        }
        cuts += 1;
        Some(if cuts % 2 == 0 { Reply::default() } else { Reply::status(503) })
    });
    let pushed = push(&settings(&hub, cache.path()), "org/mine", folder.path(), &names).unwrap();
    assert_eq!(pushed.sent, 120_000);
    assert_eq!(hub.files("models/org/mine").len(), 4);
}

#[test]
fn refusals_say_what_to_do() {
    let (folder, names) = folder();
    let cases: [(&str, &str, Reply, &str); 7] = [
        (
            "POST",
            "/api/repos/create",
            Reply::status(401),
            "the token may not write to model `org/mine`: said the hub",
        ),
        ("POST", "/api/repos/create", Reply::status(403), "HF_TOKEN"),
        ("POST", "/preupload/", Reply::status(404), "answers 404"),
        ("POST", "/objects/batch", Reply::status(500), "answers 500 after 5 attempts"),
        ("PUT", "/upload/", Reply::status(403), "may not write"),
        ("PUT", "/upload/", Reply::default(), "no answer"),
        (
            "POST",
            "/commit/",
            Reply { status: 200, body: b"{}".to_vec(), ..Reply::default() },
            "something else than the hub",
        ),
    ];
    for (method, path, reply, words) in cases {
        let (hub, cache) = (LoopbackHub::start(), tempfile::tempdir().unwrap());
        let answer = reply.clone();
        hub.intercept(move |request, _| {
            (request.method == method && request.path.contains(path)).then(|| answer.clone())
        });
        let began = Instant::now();
        let error =
            push(&settings(&hub, cache.path()), "org/mine", folder.path(), &names).unwrap_err().to_string();
        assert!(began.elapsed() < Duration::from_secs(20), "{error}");
        assert!(error.contains(words), "{path} {reply:?}: {error}");
        assert!(!error.contains("secret"), "{error}");
        assert!(hub.files("models/org/mine").is_empty(), "nothing is there by halves");
    }
    let (hub, cache) = (LoopbackHub::start(), tempfile::tempdir().unwrap());
    let without = Settings { token: None, ..settings(&hub, cache.path()) };
    assert!(matches!(push(&without, "org/mine", folder.path(), &names), Err(HubError::NoToken)));
    assert!(hub.requests().is_empty());
    let missing = push(&settings(&hub, cache.path()), "org/mine", folder.path(), &["gone".to_owned()]);
    assert!(missing.unwrap_err().to_string().contains("gone"));
    assert!(Repo::model("a/b/c").is_err());
}
