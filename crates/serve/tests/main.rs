//! A server in this process: what `burnish serve` runs, without the program.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use burn::tensor::Device;
use burnish_data::{Options, Templates, Tokenizer};
use burnish_models::{Generation, load};
use burnish_serve::{App, AppOptions, Connections, Engine, EngineOptions, ServeError, serve};
use serde_json::{Value, json};

#[test]
fn an_engine_is_served_until_it_is_told_to_stop() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/base");
    let engine = Arc::new(Engine::new(EngineOptions::default()));
    engine.add("base", load(&folder, &Device::flex()).unwrap().decoder).unwrap();
    let again = engine.add("base", load(&folder, &Device::flex()).unwrap().decoder);
    assert!(matches!(again, Err(ServeError::NameTaken { name }) if name == "base"));

    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let templates = Templates::from_folder(&folder, &tokenizer).unwrap();
    let stop = tokenizer.id("<|im_end|>").into_iter().collect();
    let options = AppOptions {
        max_model_len: 128,
        generation: Generation { stop, ..Generation::default() },
        api_key: None,
        max_body_bytes: 1 << 20,
        load_adapter: None,
    };
    let app = App::new(engine.clone(), (tokenizer, templates, Options::default()), options);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/chat/completions", listener.local_addr().unwrap());
    let told = Arc::new(AtomicBool::new(false));
    let asked = told.clone();
    let look = Duration::from_millis(10);
    let server = std::thread::spawn(move || {
        serve(listener, app, Connections::default(), look, move || asked.load(Ordering::SeqCst))
    });
    let body = json!({"model": "base", "messages": [{"role": "user", "content": "Where does a cow live?"}], "temperature": 0});
    let mut answer = ureq::post(&url).send(body.to_string()).unwrap();
    let answer: Value = serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
    assert_eq!(answer["choices"][0]["message"]["content"], "A cow lives on a farm.");
    assert!(engine.remove("base") && !engine.remove("base"));
    told.store(true, Ordering::SeqCst);
    assert!(server.join().unwrap().unwrap());
    engine.finish();
}
