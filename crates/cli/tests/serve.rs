//! `burnish serve` to clients over sockets, and `burnish chat` to lines.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::online::words;
use crate::preferences::LORA;
use crate::program::{adapter, burnish, fails, metrics, ok};

fn base() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/base")
}

/// A server that ends with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(more: &[&str]) -> Self {
        Self::of(&base(), more)
    }

    fn of(model: &Path, more: &[&str]) -> Self {
        let mut child = burnish()
            .args(["serve", "--port=0", "--model_name_or_path"])
            .arg(model)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit_once("http://").unwrap().1.trim_end_matches("/v1").to_owned();
        Self { child, address }
    }

    fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let text =
            format!("{head}\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    /// The status and the body of an answer.
    fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut text = String::new();
        self.send(head, body).read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        (status, if chunked { unchunked(body) } else { body.to_owned() })
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.ask(&format!("POST {path} HTTP/1.1"), &body.to_string());
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    fn chat(&self, model: &str, question: &str, more: &Value) -> (u16, Value) {
        let messages = json!([{"role": "user", "content": question}]);
        let mut body = json!({"model": model, "messages": messages, "temperature": 0, "max_tokens": 20});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.post("/v1/chat/completions", &body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            break;
        }
        text.push_str(&rest[..length]);
        body = &rest[length + 2..];
    }
    text
}

fn said(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// What `generate` answers to a question.
fn generated(question: &str) -> String {
    let words = [
        "generate",
        "--max_new_tokens=20",
        "--do_sample=false",
        "--prompt",
        question,
        "--model_name_or_path",
    ];
    let words: Vec<String> =
        words.map(str::to_owned).into_iter().chain([base().display().to_string()]).collect();
    ok(&words).trim().to_owned()
}

#[test]
fn a_server_answers_as_generate_does_whole_and_in_pieces() {
    let server = Server::start(&[]);
    let question = "Where does a cow live?";
    let more = json!({"logprobs": true, "top_logprobs": 2, "return_token_ids": true});
    let (status, whole) = server.chat("base", question, &more);
    assert_eq!((status, said(&whole)), (200, generated(question).as_str()));
    let choice = &whole["choices"][0];
    let ids = choice["token_ids"].as_array().unwrap();
    let told = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!((choice["finish_reason"].as_str(), ids.len()), (Some("stop"), told.len()));
    assert_eq!(whole["usage"]["completion_tokens"], ids.len());
    // The likeliest token is the one that was taken, and its log-probability is of one number.
    for token in told {
        assert_eq!(
            (&token["token"], &token["logprob"]),
            (&token["top_logprobs"][0]["token"], &token["top_logprobs"][0]["logprob"])
        );
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
    }

    let body = json!({"model": "base", "messages": [{"role": "user", "content": [{"type": "text", "text": question}]}],
        "temperature": 0, "max_tokens": 20, "stream": true, "stream_options": {"include_usage": true}});
    let (status, stream) = server.ask("POST /v1/chat/completions HTTP/1.1", &body.to_string());
    assert_eq!(status, 200);
    let events: Vec<&str> = stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let parts: Vec<Value> =
        events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    let text: String = parts.iter().filter_map(|p| p["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, said(&whole));
    assert_eq!(parts.last().unwrap()["usage"], whole["usage"]);
    assert_eq!(parts[parts.len() - 2]["choices"][0]["finish_reason"], "stop");

    // A stop text over tokens, and several samples of several prompts, which depend on the seed alone.
    let (_, stopped) = server.chat("base", question, &json!({"stop": ["s on"]}));
    assert_eq!((said(&stopped), &stopped["choices"][0]["finish_reason"]), ("A cow live", &json!("stop")));
    let many = json!({"model": "base", "prompt": ["the cow", "a dog"], "n": 3, "max_tokens": 6, "seed": 9, "logprobs": 1});
    let (status, first) = server.post("/v1/completions", &many);
    let (_, second) = server.post("/v1/completions", &many);
    assert_eq!((status, &first["choices"]), (200, &second["choices"]));
    let choices = first["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6);
    assert_ne!(choices[0]["text"], choices[1]["text"]);
    // Texts and tokens there and back.
    let (_, tokens) = server.post("/tokenize", &json!({"prompt": "the cow"}));
    let (_, back) = server.post("/detokenize", &json!({"tokens": tokens["tokens"]}));
    assert_eq!(back["prompt"], "the cow");
}

#[test]
fn clients_at_once_get_their_own_answers() {
    let server = Server::start(&["--max_num_seqs=8"]);
    let animals = ["cow", "dog", "cat", "duck", "sheep", "horse", "tiger", "bear"];
    let ask = |animal: &str| {
        let (status, answer) = server.chat("base", &format!("Where does a {animal} live?"), &json!({}));
        assert_eq!(status, 200);
        said(&answer).to_owned()
    };
    let alone: Vec<String> = animals.iter().map(|animal| ask(animal)).collect();
    std::thread::scope(|scope| {
        for client in 0..64 {
            let (alone, ask) = (&alone, &ask);
            scope.spawn(move || assert_eq!(ask(animals[client % 8]), alone[client % 8]));
        }
    });
    // One who goes away leaves nothing behind.
    for _ in 0..4 {
        let body =
            json!({"model": "base", "prompt": "the", "max_tokens": 500, "ignore_eos": true, "stream": true});
        drop(server.send("POST /v1/completions HTTP/1.1", &body.to_string()));
    }
    let began = Instant::now();
    while !server.ask("GET /metrics HTTP/1.1", "").1.contains("burnish_sequences_held 0") {
        assert!(began.elapsed() < Duration::from_secs(30), "sequences that nobody wants are held");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_cannot_be_served_is_said_with_a_status() {
    let server = Server::start(&["--max_model_len=64", "--max_queue=4", "--api_key=secret"]);
    assert_eq!(server.ask("GET /health HTTP/1.1", "").0, 200);
    assert_eq!(server.ask("GET /v1/models HTTP/1.1", "").0, 401);
    assert_eq!(server.ask("GET /v1/models HTTP/1.1\r\nauthorization: Bearer secret", "").0, 200);
    let ask =
        |body: &str| server.ask("POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer secret", body);
    let with =
        |more: &str| format!(r#"{{"model":"base","messages":[{{"role":"user","content":"x"}}]{more}}}"#);
    let cases = [
        (with(r#","temperature":-1"#), 400, "temperature is -1"),
        (with(r#","max_tokens":100"#), 400, "the most is 64"),
        (with(r#","n":5"#), 503, "try again"),
        (with(r#","n":1000"#), 400, "from 1 to 128"),
        (with(r#","logit_bias":{"5":1}"#), 400, "logit_bias is not supported"),
        (with(r#","logit_bias":{},"presence_penalty":0,"user":"me""#), 200, "chat.completion"),
        (with(r#","response_format":{"type":"json_object"}"#), 400, "response_format"),
        (with(r#","stop":[""]"#), 400, "stop"),
        (with(r#","top_logprobs":3"#), 400, "logprobs"),
        (with("").replace("base", "gpt-4"), 404, "there is base"),
        (with("").replace(r#""x""#, r#"[{"type":"image_url"}]"#), 400, "no text"),
        (r#"{"model":"base","messages":[]}"#.into(), 400, "messages is empty"),
        ("{".into(), 400, "not as this route expects"),
        ("[".repeat(100_000), 400, "not as this route expects"),
        (" ".repeat(9 << 20), 413, ""),
        (" ".repeat(40 << 20), 413, ""),
    ];
    for (body, status, part) in cases {
        let (got, answer) = ask(&body);
        let shown: String = body.chars().take(200).collect();
        assert!(got == status && answer.contains(part), "{shown}\n{got} {answer}");
    }
    let forbidden = server.ask(
        "POST /v1/load_lora_adapter HTTP/1.1\r\nauthorization: Bearer secret",
        r#"{"lora_name":"a","lora_path":"/etc"}"#,
    );
    assert_eq!(forbidden.0, 403);
    assert_eq!(server.ask("GET /else HTTP/1.1", "").0, 404);
    assert_eq!(server.ask("DELETE /health HTTP/1.1", "").0, 405);
}

/// A prompt that the model has no positions for ends alone, though the server was told that it had.
#[test]
fn a_prompt_that_does_not_fit_leaves_the_others_alone() {
    let server = Server::start(&["--max_model_len=5000"]);
    let long = json!({"model": "base", "prompt": vec![5; 2000], "max_tokens": 4});
    let going = json!({"model": "base", "prompt": "the", "max_tokens": 200, "ignore_eos": true});
    std::thread::scope(|scope| {
        let other = scope.spawn(|| server.post("/v1/completions", &going).0);
        for _ in 0..4 {
            let (status, answer) = server.post("/v1/completions", &long);
            assert!(
                status == 500 && answer.to_string().contains("max_position_embeddings"),
                "{status} {answer}"
            );
        }
        assert_eq!(other.join().unwrap(), 200);
    });
}

/// A server samples for a run that trains, reads its adapters, and ends when it is told to.
#[test]
#[cfg(unix)]
fn a_run_samples_from_a_server_and_sends_it_adapters() {
    let root = tempfile::tempdir().unwrap();
    let model = crate::program::model();
    let mut server = Server::of(&model, &["--allow_runtime_lora_updating", "--served_model_name=policy"]);
    let output = root.path().join("run");
    let mut all = words("grpo", &output, &["--max_steps=3", "--gradient_accumulation_steps=4"]);
    all.extend(LORA.map(str::to_owned));
    all.extend([format!("--rollout_url=http://{}", server.address), "--rollout_model=policy".to_owned()]);
    ok(&all);
    assert_eq!(metrics(&output).iter().filter(|line| line.get("loss").is_some()).count(), 3);
    let (_, models) = server.ask("GET /v1/models HTTP/1.1", "");
    assert!(models.contains("burnish-"), "{models}");

    // What is being said is said to its end.
    let body = json!({"model": "policy", "prompt": [5, 6], "max_tokens": 30, "ignore_eos": true});
    let mut waiting = server.send("POST /v1/completions HTTP/1.1", &body.to_string());
    std::thread::sleep(Duration::from_millis(300));
    let told = Command::new("kill").args(["-INT", &server.child.id().to_string()]).status().unwrap();
    assert!(told.success());
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(server.child.wait().unwrap().success());
}

/// Those of LoRA answer in the base's batch as they do alone; DoRA has a batch of its own.
#[test]
fn adapters_and_their_base_answer_in_one_batch_as_each_alone() {
    let root = tempfile::tempdir().unwrap();
    let given = [
        ("wide", &["--lora_r=6", "--lora_target_modules=all-linear"][..]),
        ("narrow", &["--lora_r=2", "--use_rslora", "--lora_target_modules=q_proj,v_proj", "--seed=7"]),
        ("apart", &["--lora_r=2", "--use_dora", "--lora_target_modules=q_proj"]),
    ];
    let paths = given.map(|(name, more)| adapter(&root.path().join(name), more));
    let mut words = vec!["--allow_runtime_lora_updating".to_owned(), "--served_model_name=base".to_owned()];
    words.push("--lora_modules".to_owned());
    words.extend(given.iter().zip(&paths).map(|((name, _), path)| format!("{name}={path}")));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let server = Server::of(&crate::program::model(), &words);
    let ask = |model: &str, prompt: u32| {
        let body = json!({"model": model, "prompt": [5, prompt, 9], "max_tokens": 16, "temperature": 0,
            "ignore_eos": true, "logprobs": 1, "return_token_ids": true});
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        let logs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        let logs: Vec<f64> = logs.iter().map(|x| x.as_f64().unwrap()).collect();
        (choice["token_ids"].clone(), logs)
    };
    let names = ["base", "wide", "narrow", "apart"];
    // Threads that have answered have their names.
    for name in names {
        ask(name, 20);
    }
    #[cfg(target_os = "linux")]
    {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap();
        let mut models: Vec<String> = tasks.map(|task| name(task.unwrap()).trim().to_owned()).collect();
        models.retain(|name| name.starts_with("model "));
        models.sort();
        assert_eq!(models, ["model apart", "model base"]);
    }
    // The same adapters, each on its own.
    for ((name, _), path) in given.iter().zip(&paths) {
        let body = json!({"lora_name": format!("own-{name}"), "lora_path": path});
        assert_eq!(server.post("/v1/load_lora_adapter", &body).0, 200);
    }
    let own = |name: &str, prompt| {
        ask(&if name == "base" { name.to_owned() } else { format!("own-{name}") }, prompt)
    };
    let alone: Vec<_> = (0..8).map(|client| own(names[client % 4], 20 + client as u32 / 4)).collect();
    std::thread::scope(|scope| {
        for client in 0..24 {
            let (alone, ask) = (&alone[client % 8], &ask);
            scope.spawn(move || {
                let (tokens, logs) = ask(names[client % 4], 20 + (client % 8) as u32 / 4);
                assert_eq!(tokens, alone.0, "client {client}");
                assert!(logs.iter().zip(&alone.1).all(|(x, y)| (x - y).abs() < 1e-4), "client {client}");
            });
        }
    });
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        assert!(alone[a].1.iter().zip(&alone[b].1).any(|(x, y)| (x - y).abs() > 1e-2), "{a} and {b}");
    }
    // One that leaves is gone; the others stay.
    assert_eq!(server.post("/v1/unload_lora_adapter", &json!({"lora_name": "wide"})).0, 200);
    assert_eq!(server.chat("wide", "x", &json!({})).0, 404);
    assert_eq!(ask("narrow", 20).0, alone[2].0);
}

#[test]
fn a_port_that_is_taken_and_wrong_adapters_are_said_before_anything_is_read() {
    let server = Server::start(&[]);
    let port = server.address.rsplit_once(':').unwrap().1.to_owned();
    let base = base().display().to_string();
    let serve = |more: &[&str]| -> Vec<String> {
        let words = ["serve", "--model_name_or_path", &base].into_iter().chain(more.iter().copied());
        words.map(str::to_owned).collect()
    };
    fails(&serve(&["--port", &port]), &["cannot listen on 127.0.0.1"]);
    fails(&serve(&["--port=99999"]), &["port", "65535"]);
    fails(&serve(&["--lora_modules", "x"]), &["lora_modules", "name=folder"]);
    fails(&serve(&["--lora_modules", "a=/no/such"]), &["lora_modules", "/no/such"]);
}

#[test]
fn a_conversation_goes_on_is_undone_and_saved() {
    let root = tempfile::tempdir().unwrap();
    let talk = |lines: &str| {
        let mut child = burnish()
            .arg("chat")
            .arg(base())
            .args(["--max_new_tokens=20", "--do_sample=false"])
            .current_dir(root.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let question = "Where does a cow live?";
    let answer = generated(question);
    let (done, out, _) =
        talk(&format!("{question}\n/save row.jsonl\n/undo\n{question}\n/retry\n/exit\nnever said\n"));
    assert_eq!((done, out), (true, format!("{answer}\n").repeat(3)));
    let row: Value =
        serde_json::from_str(&std::fs::read_to_string(root.path().join("row.jsonl")).unwrap()).unwrap();
    assert_eq!(row["messages"][1]["content"], answer.as_str());
    // The second turn of a conversation that was loaded is that of one that goes on.
    let more = "Where does a dog live?\n";
    let (_, loaded, _) = talk(&format!("/load row.jsonl\n{more}"));
    let (_, whole, _) = talk(&format!("{question}\n{more}"));
    assert_eq!(whole, format!("{answer}\n{loaded}"));
    let (done, _, said) = talk("/nonsense\n/set warmth 1\n");
    assert!(!done && said.contains("no /nonsense") && said.contains("no setting `warmth`"), "{said}");
}
