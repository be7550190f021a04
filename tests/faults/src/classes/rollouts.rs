//! Servers of rollouts that answer wrongly, slowly, or without end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::mutation;
use crate::random::Random;
use crate::verdict::{Outcome, judge};

/// What is done instead of a right answer.
const ODD: [&str; 16] = [
    "a token out of range",
    "a negative token",
    "a million tokens",
    "a body without end",
    "headers without end",
    "silence",
    "a byte a second",
    "closed at once",
    "half an answer",
    "status 500",
    "a redirect to itself",
    "HTML",
    "too few choices",
    "deep JSON",
    "log-probabilities that are none",
    "a length that is too large",
];

pub(crate) fn written(_: &Lab) -> usize {
    ODD.len() + 1
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("--rollout_url=http://{}", listener.local_addr()?);
    let done = Arc::new(AtomicBool::new(false));
    let over = done.clone();
    let odd = ODD.get(attempt).copied();
    let plain = attempt == ODD.len();
    let seed = (attempt, random.next());
    listener.set_nonblocking(true)?;
    let server = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    let over = over.clone();
                    std::thread::spawn(move || serve(stream, odd, plain, seed, &over));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    });
    let out = format!("--output_dir={}", folder.path().join("out").display());
    let words = [
        "--per_device_train_batch_size=2",
        "--num_generations=2",
        "--max_completion_length=4",
        "--max_steps=2",
        "--save_strategy=no",
        "--reward_funcs=length_reward",
        "--rollout_timeout=5",
        "--rollout_sync=false",
        "--rollout_model=m",
        &url,
        &out,
    ];
    let ended = lab.run(lab.words("grpo", &lab.model(), &lab.rows("prompt_completion.jsonl"), &words));
    done.store(true, Ordering::Relaxed);
    drop(server.join());
    let what = odd.map_or_else(|| format!("a changed answer ({})", change(seed)), str::to_owned);
    Ok(judge(
        if plain { "a right answer".to_owned() } else { what },
        &ended?,
        &["http://127.0.0.1", "rollout"],
        |_| odd.map(|_| "no error".to_owned()),
    ))
}

/// What a changed answer has changed.
fn change((attempt, draw): (usize, u64)) -> String {
    let mut random = Random::of("answers", attempt ^ draw as usize);
    mutation::value(&mut random, &mut answer(2)).what
}

/// A right answer to a request for `count` completions.
fn answer(count: usize) -> Value {
    let choice = |index| {
        json!({
            "index": index, "text": " abc", "finish_reason": "stop", "token_ids": [5, 6, 2],
            "prompt_token_ids": [1, 2],
            "logprobs": {"tokens": ["a", "b", "c"], "token_logprobs": [-1.0, -1.0, -0.5], "text_offset": [0, 1, 2], "top_logprobs": null},
        })
    };
    json!({"id": "1", "object": "text_completion", "model": "m", "choices": (0..count).map(choice).collect::<Vec<_>>(),
        "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}})
}

fn serve(mut stream: TcpStream, odd: Option<&str>, plain: bool, seed: (usize, u64), over: &AtomicBool) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    if odd == Some("closed at once") {
        return;
    }
    loop {
        let Some(request) = request(&mut stream) else { return };
        let count = request["n"].as_u64().unwrap_or(1) as usize
            * request["prompt"].as_array().filter(|p| p.iter().all(|p| !p.is_number())).map_or(1, Vec::len);
        let mut right = answer(count.clamp(1, 64));
        let choice = |right: &mut Value, key: &str, value: Value| right["choices"][0][key] = value;
        match odd {
            Some("a token out of range") => choice(&mut right, "token_ids", json!([5, 4_000_000_000_u64, 2])),
            Some("a negative token") => choice(&mut right, "token_ids", json!([5, -3, 2])),
            Some("a million tokens") => {
                choice(&mut right, "token_ids", json!(vec![5; 1_000_000]));
                choice(&mut right, "logprobs", json!({"token_logprobs": vec![-1.0; 1_000_000]}));
            }
            Some("too few choices") => right["choices"] = json!([]),
            Some("deep JSON") => right = Value::String("deep".to_owned()),
            Some("log-probabilities that are none") => {
                choice(&mut right, "logprobs", json!({"token_logprobs": [null, "nan", 1e300]}));
            }
            None if !plain => {
                let mut random = Random::of("answers", seed.0 ^ seed.1 as usize);
                mutation::value(&mut random, &mut right);
            }
            _ => {}
        }
        let mut body = right.to_string();
        if odd == Some("deep JSON") {
            body = "[".repeat(1_000_000);
        }
        if odd == Some("HTML") {
            body = "<html>\u{1b}[2Jnot here</html>".to_owned();
        }
        let head = |status: &str, length: usize| {
            format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n")
        };
        let sent = match odd {
            Some("silence") => {
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                return;
            }
            Some("a body without end") => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"choices\": [\"");
                while !over.load(Ordering::Relaxed) && stream.write_all(&[b'a'; 1 << 16]).is_ok() {}
                return;
            }
            Some("headers without end") => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
                while !over.load(Ordering::Relaxed)
                    && stream.write_all(b"X-A: aaaaaaaaaaaaaaaaaaaaaaaaa\r\n").is_ok()
                {}
                return;
            }
            Some("a byte a second") => {
                let _ = stream.write_all(format!("{}\r\n", head("200 OK", 1_000)).as_bytes());
                while !over.load(Ordering::Relaxed) && stream.write_all(b" ").is_ok() {
                    std::thread::sleep(Duration::from_secs(1));
                }
                return;
            }
            Some("half an answer") => {
                let _ = stream.write_all(
                    format!("{}\r\n{}", head("200 OK", body.len()), &body[..body.len() / 2]).as_bytes(),
                );
                return;
            }
            Some("status 500") => {
                stream.write_all(format!("{}\r\n{body}", head("500 No", body.len())).as_bytes())
            }
            Some("a redirect to itself") => stream
                .write_all(format!("{}Location: /v1/completions\r\n\r\n", head("307 There", 0)).as_bytes()),
            Some("a length that is too large") => {
                let _ = stream.write_all(format!("{}\r\n{body}", head("200 OK", usize::MAX)).as_bytes());
                return;
            }
            _ => stream.write_all(format!("{}\r\n{body}", head("200 OK", body.len())).as_bytes()),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// The body of a request.
fn request(stream: &mut TcpStream) -> Option<Value> {
    let (mut kept, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut part).ok().filter(|&read| read > 0)?;
        kept.extend_from_slice(&part[..read]);
        let Some(end) = kept.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&kept[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        if kept.len() >= end + 4 + length {
            return Some(serde_json::from_slice(&kept[end + 4..end + 4 + length]).unwrap_or(Value::Null));
        }
    }
}
