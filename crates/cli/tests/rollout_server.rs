//! Completions from a server: what it is asked, what is made of its answers, and what is said when it fails.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::online::words;
use crate::preferences::{LORA, number};
use crate::program::{fails, metrics, ok};

/// What a server says to a path and a body: a status and a text.
type Answer = dyn Fn(&str, &Value) -> (u16, String) + Send + Sync;

/// A server in this process that answers each request by a function of its path and body; what it was asked.
struct Fake {
    url: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Fake {
    fn new(answer: impl Fn(&str, &Value) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (seen.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        Self { url, asked }
    }

    fn asked(&self, path: &str) -> Vec<Value> {
        let all = self.asked.lock().unwrap();
        all.iter().filter(|(asked, _)| asked == path).map(|(_, body)| body.clone()).collect()
    }
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<(String, Value)>>,
    answer: &dyn Fn(&str, &Value) -> (u16, String),
) {
    let mut kept = Vec::new();
    loop {
        let head = loop {
            if let Some(at) = kept.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let mut more = [0; 4096];
            match stream.read(&mut more) {
                Ok(0) | Err(_) => return,
                Ok(read) => kept.extend_from_slice(&more[..read]),
            }
        };
        let text = String::from_utf8_lossy(&kept[..head]).to_lowercase();
        let path = text.split(' ').nth(1).unwrap().to_owned();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let length: usize = length.unwrap_or(0);
        while kept.len() < head + length {
            let mut more = [0; 4096];
            let read = stream.read(&mut more).unwrap();
            kept.extend_from_slice(&more[..read]);
        }
        let body = serde_json::from_slice(&kept[head..head + length]).unwrap_or(Value::Null);
        kept.drain(..head + length);
        let (status, said) = answer(&path, &body);
        seen.lock().unwrap().push((path, body));
        let reply = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{said}", said.len());
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// Answers as vLLM does: tokens 5 to 9, fewer for later choices, each of log-probability `log_prob`.
fn vllm(log_prob: f64) -> impl Fn(&str, &Value) -> (u16, String) {
    move |path, body| match path {
        "/v1/models" => (200, json!({"data": [{"id": "tiny"}]}).to_string()),
        "/v1/completions" => {
            let choice = |index: u64| {
                let ids: Vec<u64> = (5..10 - index).collect();
                let log_probs = vec![log_prob; ids.len()];
                let tokens: Vec<String> = ids.iter().map(|id| format!("token_id:{id}")).collect();
                // Half of the servers out there give ids in one way, half in the other.
                let direct = index.is_multiple_of(2).then_some(ids);
                json!({
                    "index": index, "finish_reason": "length", "token_ids": direct,
                    "logprobs": {"tokens": tokens, "token_logprobs": log_probs},
                })
            };
            let count = body["n"].as_u64().unwrap();
            // In whatever order.
            (200, json!({"choices": (0..count).rev().map(choice).collect::<Vec<_>>()}).to_string())
        }
        _ => (200, "Success".to_owned()),
    }
}

fn served(output: &Path, url: &str, more: &[&str]) -> Vec<String> {
    let url = format!("--rollout_url={url}");
    words(
        "grpo",
        output,
        &[&["--max_steps=2", "--global_batch_size=8", "--save_strategy=no", &url], more].concat(),
    )
}

#[test]
fn a_server_samples_and_is_corrected_for() {
    let root = tempfile::tempdir().unwrap();
    let fake = Fake::new(vllm(-3.0));
    let more = ["--vllm_importance_sampling_mode=token_truncate", "--top_k=9", "--temperature=0.8"];
    let one = root.path().join("one");
    ok(&served(&one, &fake.url, &more));
    let asked = fake.asked("/v1/completions");
    assert_eq!(asked.len(), 4, "two prompts a step");
    assert_eq!((asked[0]["model"].as_str(), asked[0]["n"].as_u64()), (Some("tiny"), Some(4)));
    assert_eq!((asked[0]["top_k"].as_u64(), asked[0].get("min_p")), (Some(9), None));
    assert!(asked[0]["prompt"].as_array().is_some_and(|ids| !ids.is_empty()));
    let lines = metrics(&one);
    assert_eq!(number(&lines[0], "completions/max_length"), 5.0);
    assert_eq!(number(&lines[0], "completions/min_length"), 2.0);
    // The sampler's -3 against the model's about -ln 56: ratios of its probabilities, cut to at most 3.
    let drift = number(&lines[0], "sampling/sampling_logp_difference/mean");
    assert!(drift > 0.1, "{}", lines[0]);
    assert!(number(&lines[0], "sampling/importance_sampling_ratio/max") <= 3.0);
    // Ranks and layouts change nothing.
    let many = root.path().join("many");
    ok(&served(&many, &fake.url, &[&more[..], &["--nproc=4", "--tp_size=2", "--zero_stage=3"]].concat()));
    for (a, b) in lines.iter().zip(metrics(&many)) {
        for name in ["loss", "reward", "sampling/sampling_logp_difference/mean", "kl"] {
            assert!((number(a, name) - number(&b, name)).abs() < 1e-5, "{name}: {a} and {b}");
        }
    }
}

#[test]
fn a_server_reads_the_adapter_before_it_samples() {
    let root = tempfile::tempdir().unwrap();
    let fake = Fake::new(vllm(-3.0));
    let out = root.path().join("out");
    ok(&served(&out, &fake.url, &LORA));
    let loaded = fake.asked("/v1/load_lora_adapter");
    assert_eq!(loaded.len(), 2);
    let path = loaded[0]["lora_path"].as_str().unwrap();
    assert!(Path::new(path).join("adapter_model.safetensors").is_file());
    let unloaded = fake.asked("/v1/unload_lora_adapter");
    assert_eq!(unloaded, [json!({"lora_name": loaded[0]["lora_name"]})]);
    let models: Vec<Value> = fake.asked("/v1/completions").iter().map(|body| body["model"].clone()).collect();
    assert_eq!(models, [&loaded[0], &loaded[0], &loaded[1], &loaded[1]].map(|l| l["lora_name"].clone()));
    let still = Fake::new(vllm(-3.0));
    let more = [&LORA[..], &["--no_rollout_sync", "--rollout_model=other"]].concat();
    ok(&served(&root.path().join("still"), &still.url, &more));
    assert!(still.asked("/v1/load_lora_adapter").is_empty());
    assert_eq!(still.asked("/v1/completions")[0]["model"], "other");
}

#[test]
fn a_server_that_fails_is_named() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut says = |answer: Box<Answer>, parts: &[&str]| {
        number += 1;
        let fake = Fake::new(move |path, body| match path {
            "/v1/models" => vllm(-3.0)(path, body),
            _ => answer(path, body),
        });
        let out = root.path().join(number.to_string());
        fails(
            &served(&out, &fake.url, &["--nproc=2", "--rollout_timeout=2"]),
            &[&[&*fake.url], parts].concat(),
        );
    };
    says(Box::new(|_, _| (404, "no such thing".into())), &["status 404", "no such thing", "token ids"]);
    says(Box::new(|_, _| (200, "{}".into())), &["no choice for each"]);
    let text =
        |body: &Value, choice: Value| json!({"choices": vec![choice; body["n"].as_u64().unwrap() as usize]});
    says(
        Box::new(move |_, body| (200, text(body, json!({"text": "hello"})).to_string())),
        &["no token ids", "return_token_ids"],
    );
    says(
        Box::new(move |_, body| (200, text(body, json!({"token_ids": [1, 2]})).to_string())),
        &["no log-probability for each token"],
    );
    says(
        Box::new(|_, _| {
            std::thread::sleep(std::time::Duration::from_secs(20));
            (200, String::new())
        }),
        &["no answer from the rollout server", "rollout_timeout"],
    );
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    fails(&served(&root.path().join("none"), &url, &[]), &[&url, "no answer", "check rollout_url"]);
    fails(&served(&root.path().join("tls"), "https://localhost", &[]), &["rollout_url", "http://"]);
}
