//! A hub that refuses, breaks off, lies or never ends.

use std::fs;
use std::time::{Duration, Instant};

use burnish_hub::{HubError, Settings};
use loopback_hub::{LoopbackHub, Reply, Request};

use crate::{fetch, hub_with_model, model, settings};

/// The error of a fetch from a hub that answers so.
fn error(answer: impl FnMut(&Request, &Reply) -> Option<Reply> + Send + 'static) -> HubError {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    hub.intercept(answer);
    let began = Instant::now();
    let error = fetch(&settings(&hub, cache.path()), "org/tiny").unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(20), "{error}");
    // Nothing that is not whole has a name, and nothing lies beside the cache.
    let snapshots = cache.path().join("models--org--tiny/snapshots");
    for snapshot in fs::read_dir(snapshots).into_iter().flatten() {
        assert!(!snapshot.unwrap().path().join("model.safetensors").exists(), "{error}");
    }
    error
}

fn always(reply: &Reply) -> impl FnMut(&Request, &Reply) -> Option<Reply> + Send + 'static {
    let reply = reply.clone();
    move |_, _| Some(reply.clone())
}

/// Another answer for the large file alone.
fn large(
    mut answer: impl FnMut(&Request, &Reply) -> Option<Reply> + Send + 'static,
) -> impl FnMut(&Request, &Reply) -> Option<Reply> + Send + 'static {
    move |request, reply| if request.large { answer(request, reply) } else { None }
}

#[test]
fn refusals_say_what_to_do() {
    for (reply, words) in [
        (Reply::status(401).with("x-error-code", "RepoNotFound"), "no folder here has that name"),
        (Reply::status(404).with("x-error-code", "RepoNotFound"), "check the spelling"),
        (Reply::status(404).with("x-error-code", "RevisionNotFound"), "no revision `main`"),
        (Reply::status(403).with("x-error-code", "GatedRepo"), "accept its conditions"),
        (Reply::status(401), "the token is not valid"),
        (Reply::status(403), "HF_TOKEN"),
        (Reply::status(418), "answers 418 after 1 attempts: said the hub"),
        (Reply::status(500), "answers 500 after 5 attempts"),
        (Reply::status(429).with("retry-after", "3600"), "wait for 3600 seconds"),
        (Reply::status(200), "something else than the hub does"),
        (Reply::status(302).with("location", "ftp://x/y"), "not followed"),
        (Reply::status(302), "not followed"),
    ] {
        let text = error(always(&reply)).to_string();
        assert!(text.contains(words), "{reply:?}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn failures_that_pass_are_waited_out() {
    for fault in [
        Reply::status(503),
        Reply::status(429).with("retry-after", "0"),
        Reply { cut: Some(0), length: Some(1000), ..Reply::status(200) },
    ] {
        let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
        let mut asked = std::collections::HashMap::<String, usize>::new();
        let reply = fault.clone();
        hub.intercept(move |request, _| {
            let count = asked.entry(request.path.clone()).or_default();
            *count += 1;
            // A list that is cut is no failure of transport to wait out; the file is.
            let of_file = request.path.contains("/resolve/") || request.large || reply.status != 200;
            (*count == 1 && of_file).then(|| reply.clone())
        });
        let snapshot = fetch(&settings(&hub, cache.path()), "org/tiny").unwrap();
        assert_eq!(fs::read(snapshot.path.join("model.safetensors")).unwrap(), model()[1].1, "{fault:?}");
    }
}

#[test]
fn a_file_that_is_cut_goes_on_where_it_was() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    hub.intercept(large(|_, reply| Some(Reply { cut: Some(60_000), ..reply.clone() })));
    let snapshot = fetch(&settings(&hub, cache.path()), "org/tiny").unwrap();
    assert_eq!(fs::read(snapshot.path.join("model.safetensors")).unwrap(), model()[1].1);
    let ranges: Vec<Option<String>> =
        hub.requests().iter().filter(|r| r.large).map(|r| r.headers.get("range").cloned()).collect();
    assert_eq!(ranges.len(), 4);
    assert_eq!(ranges[0], None);
    assert_eq!(ranges[1].as_deref(), Some("bytes=60000-"));
}

#[test]
fn a_run_that_ended_goes_on_in_the_next() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    let mut first = true;
    hub.intercept(large(move |_, reply| {
        let cut = std::mem::take(&mut first);
        Some(if cut { Reply { cut: Some(70_000), ..reply.clone() } } else { Reply::status(404) })
    }));
    fetch(&settings, "org/tiny").unwrap_err();
    let blobs = cache.path().join("models--org--tiny/blobs");
    let incomplete = || {
        let mut names = fs::read_dir(&blobs).unwrap().map(|b| b.unwrap().path());
        names.find(|p| p.extension().is_some_and(|e| e == "incomplete"))
    };
    assert_eq!(fs::metadata(incomplete().unwrap()).unwrap().len(), 70_000);
    hub.intercept(|_, _| None);
    let _ = hub.requests();
    fetch(&settings, "org/tiny").unwrap();
    let asked = hub.requests();
    let range = asked.iter().find(|r| r.large).unwrap().headers["range"].clone();
    assert_eq!(range, "bytes=70000-");
    assert!(incomplete().is_none());
}

#[test]
fn what_lies_there_of_another_file_is_thrown_away() {
    let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    let snapshot = fetch(&settings, "org/tiny").unwrap();
    let blob = fs::canonicalize(snapshot.path.join("model.safetensors")).unwrap();
    let half = blob.with_extension("incomplete");
    for rubbish in [vec![9; 1000], vec![9; 200_000], vec![9; 300_000]] {
        fs::remove_file(&blob).unwrap();
        fs::write(&half, rubbish).unwrap();
        fetch(&settings, "org/tiny").unwrap();
        assert_eq!(fs::read(&blob).unwrap(), model()[1].1);
    }
}

#[test]
fn servers_that_ignore_ranges_or_answer_others() {
    for ignore in [true, false] {
        let (hub, cache) = (hub_with_model(), tempfile::tempdir().unwrap());
        let whole = model()[1].1.clone();
        let mut first = true;
        hub.intercept(large(move |request, reply| {
            let cut = std::mem::take(&mut first).then_some(50_000);
            if ignore {
                return Some(Reply { status: 200, body: whole.clone(), cut, ..Reply::default() });
            }
            let asked = request.headers.contains_key("range");
            asked
                .then(|| Reply {
                    headers: vec![("content-range", "bytes 5-9/10".to_owned())],
                    ..reply.clone()
                })
                .or(Some(Reply { cut, ..reply.clone() }))
        }));
        let result = fetch(&settings(&hub, cache.path()), "org/tiny");
        if ignore {
            result.unwrap();
        } else {
            assert!(result.unwrap_err().to_string().contains("not asked for"));
        }
    }
}

#[test]
fn lies_about_lengths_and_digests() {
    let endless = large(|_, _| Some(Reply { status: 200, body: vec![1; 3_000_000], ..Reply::default() }));
    assert!(matches!(error(endless), HubError::Length { expected: 200_000, .. }));
    let other = large(|_, reply| Some(Reply { body: vec![1; 200_000], ..reply.clone() }));
    assert!(matches!(error(other), HubError::Digest { .. }));
    let short = large(|_, _| Some(Reply { status: 200, body: vec![1; 10], ..Reply::default() }));
    assert!(matches!(error(short), HubError::Length { .. }));
    let silent = large(|_, reply| Some(Reply { cut: Some(0), ..reply.clone() }));
    assert!(matches!(error(silent), HubError::Length { got: 0, .. }));
}

#[test]
fn redirects_in_circles_end() {
    let circle =
        |request: &Request, _: &Reply| Some(Reply::status(302).with("location", request.path.clone()));
    assert!(error(circle).to_string().contains("goes on redirecting"));
}

#[test]
fn hostile_lists() {
    let list = |body: &'static str| {
        move |request: &Request, reply: &Reply| {
            let of_tree = request.path.contains("/tree/");
            of_tree.then(|| Reply { body: body.as_bytes().to_vec(), ..reply.clone() })
        }
    };
    let digest = "a".repeat(40);
    for name in ["../../x", "/etc/x", "a/../../x", "C:/x"] {
        let body = format!(r#"[{{"type": "file", "path": "{name}", "size": 1, "oid": "{digest}"}}]"#);
        assert!(matches!(error(list(body.leak())), HubError::FileName { .. }), "{name}");
    }
    for body in [
        r#"[{"type": "file", "path": "config.json", "size": 1, "oid": "../../../x"}]"#,
        r#"[{"type": "file", "path": "config.json", "size": -1, "oid": "x"}]"#,
        "[[[[[[[[",
        "{}",
        "",
    ] {
        assert!(matches!(error(list(body)), HubError::Answer { .. }), "{body}");
    }
    let commit = |_: &Request, reply: &Reply| {
        Some(Reply { body: br#"{"sha": "../../etc"}"#.to_vec(), ..reply.clone() })
    };
    assert!(error(commit).to_string().contains("no commit"));
    let elsewhere = |request: &Request, reply: &Reply| {
        let of_tree = request.path.contains("/tree/");
        of_tree.then(|| reply.clone().with("link", "<http://127.0.0.1:9/more>; rel=\"next\""))
    };
    assert!(matches!(error(elsewhere), HubError::Redirect { .. }));
}

#[test]
fn models_without_weights_name_what_is_there() {
    let (hub, cache) = (LoopbackHub::start(), tempfile::tempdir().unwrap());
    hub.add("models/org/old", &[("config.json", b"{}"), ("pytorch_model.bin", b"x")]);
    let error = fetch(&settings(&hub, cache.path()), "org/old").unwrap_err().to_string();
    assert!(error.contains("pytorch_model.bin") && error.contains("safetensors"), "{error}");
}

#[test]
fn nobody_listens() {
    let cache = tempfile::tempdir().unwrap();
    let hub = LoopbackHub::start();
    let settings = Settings { endpoint: "http://127.0.0.1:1".to_owned(), ..settings(&hub, cache.path()) };
    let error = fetch(&settings, "org/tiny").unwrap_err().to_string();
    assert!(
        error.contains("no answer from http://127.0.0.1:1") && error.contains("HF_HUB_OFFLINE"),
        "{error}"
    );
    if !cfg!(feature = "tls") {
        let settings = Settings { endpoint: "https://127.0.0.1:1".to_owned(), ..settings };
        assert!(fetch(&settings, "org/tiny").unwrap_err().to_string().contains("TLS"));
    }
}

#[test]
fn a_hub_that_says_nothing_is_not_waited_for() {
    let cache = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = LoopbackHub::start();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let patience = Duration::from_millis(100);
    let settings = Settings { endpoint, patience, ..settings(&hub, cache.path()) };
    let began = Instant::now();
    assert!(matches!(fetch(&settings, "org/tiny").unwrap_err(), HubError::Unreachable { .. }));
    assert!(began.elapsed() < Duration::from_secs(5));
}
