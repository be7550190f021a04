//! The routes, and what is behind them.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, middleware};
use burnish_data::{DataError, Options, Preparer, Record, Row, RowOrigin, Templates, Tokenizer};
use burnish_models::{Decoder, FinishReason, Generation};
use futures_util::stream;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::choice::{Choice, Piece, Telling};
use crate::engine::{Engine, NotTaken, Running};
use crate::refusal::Refusal;
use crate::request::{
    AdapterRequest, ChatRequest, Choosing, CompletionRequest, DetokenizeRequest, Prompts, TokenizeRequest,
    check_rest,
};
use crate::response::{Heading, Kind, Usage};
use crate::worker::Event;

/// Reads an adapter's folder over the model that is served.
pub type LoadAdapter = Box<dyn Fn(&str) -> Result<Decoder, String> + Send + Sync>;

/// What clients may ask for.
pub struct AppOptions {
    /// Tokens of a prompt with its completion, at most (vLLM's `max_model_len`).
    pub max_model_len: usize,
    /// What holds where a request does not say otherwise; its `stop` are the tokens that end a completion.
    pub generation: Generation,
    /// Who does not send this as its bearer token is refused.
    pub api_key: Option<String>,
    /// Bytes of a request, at most.
    pub max_body_bytes: usize,
    /// Loads adapters that clients name; without it they may not.
    pub load_adapter: Option<LoadAdapter>,
}

impl fmt::Debug for AppOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppOptions")
            .field("max_model_len", &self.max_model_len)
            .field("generation", &self.generation)
            .field("max_body_bytes", &self.max_body_bytes)
            .finish_non_exhaustive()
    }
}

/// A server's routes over an engine, with the tokenizer and the templates of its model.
#[derive(Debug)]
pub struct App {
    engine: Arc<Engine>,
    tokenizer: Tokenizer,
    templates: Option<Templates>,
    rules: Options,
    options: AppOptions,
    requests: AtomicU64,
}

/// A request that is understood: prompts, and how they go on.
#[derive(Debug)]
struct Asked {
    kind: Kind,
    model: String,
    prompts: Vec<Vec<u32>>,
    /// Of each prompt's text what is told again before its completions.
    echo: Option<Vec<String>>,
    choosing: Choosing,
}

impl App {
    /// Routes over `engine`, whose models share a tokenizer; `rules` are those of its prompts.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        (tokenizer, templates, rules): (Tokenizer, Option<Templates>, Options),
        options: AppOptions,
    ) -> Self {
        Self { engine, tokenizer, templates, rules, options, requests: AtomicU64::new(0) }
    }

    pub(crate) fn router(self) -> Router {
        let limit = DefaultBodyLimit::max(self.options.max_body_bytes);
        let app = Arc::new(self);
        let guarded = Router::new()
            .route("/v1/models", get(models))
            .route("/v1/completions", post(completions))
            .route("/v1/chat/completions", post(chat_completions))
            .route("/v1/load_lora_adapter", post(load_lora_adapter))
            .route("/v1/unload_lora_adapter", post(unload_lora_adapter))
            .route("/tokenize", post(tokenize))
            .route("/detokenize", post(detokenize))
            .layer(middleware::from_fn_with_state(app.clone(), authorised));
        guarded
            .route("/health", get(|| async { StatusCode::OK }))
            .route("/version", get(|| async { Json(json!({"version": env!("CARGO_PKG_VERSION")})) }))
            .route("/metrics", get(metrics))
            .fallback(|| async { Refusal::new(StatusCode::NOT_FOUND, "there is no such route") })
            .method_not_allowed_fallback(|| async {
                Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "the route has another method")
            })
            .layer(limit)
            .with_state(app)
    }

    fn preparer(&self) -> Preparer<'_> {
        Preparer { tokenizer: &self.tokenizer, templates: self.templates.as_ref(), options: &self.rules }
    }

    /// The tokens of a prompt, which is a text, or a conversation with its tools and variables.
    fn tokens(&self, fields: Map<String, Value>) -> Result<Vec<u32>, Refusal> {
        let row =
            Row::parse(Record { place: RowOrigin::given("the request"), fields }, &self.rules.text_field);
        row.and_then(|row| self.preparer().prompt(&row)).map_err(data_refusal)
    }

    fn completion(&self, request: CompletionRequest) -> Result<Asked, Refusal> {
        check_rest(&request.rest)?;
        let text = |text: String| self.tokens(Map::from_iter([("prompt".to_owned(), Value::from(text))]));
        let prompts = match request.prompt {
            Prompts::Text(prompt) => vec![text(prompt)?],
            Prompts::Texts(prompts) => prompts.into_iter().map(text).collect::<Result<_, _>>()?,
            Prompts::Tokens(prompt) => vec![prompt],
            Prompts::ManyTokens(prompts) => prompts,
        };
        let echo = |prompt: &Vec<u32>| self.tokenizer.decode(prompt, true).map_err(data_refusal);
        let echo = request.echo.then(|| prompts.iter().map(echo).collect()).transpose()?;
        if request.echo && request.choosing.logprobs.is_some() {
            return Err(Refusal::of("echo", "echo with logprobs is not supported: prompts are not scored"));
        }
        let (model, choosing) = (request.model, request.choosing);
        Ok(Asked { kind: Kind::Completion, model, prompts, echo, choosing })
    }

    fn chat(&self, request: ChatRequest) -> Result<Asked, Refusal> {
        check_rest(&request.rest)?;
        if request.messages.is_empty() {
            return Err(Refusal::of("messages", "messages is empty; it has to have at least one message"));
        }
        if self.templates.is_none() {
            let message = "the model has no chat template: ask /v1/completions, or start the server with chat_template_path";
            return Err(Refusal::of("messages", message));
        }
        let messages = request.messages.into_iter().map(flat).collect::<Result<Vec<_>, _>>()?;
        let mut fields = Map::from_iter([("prompt".to_owned(), Value::from(messages))]);
        let wanted = request.rest.get("tool_choice").is_none_or(|choice| choice != "none");
        if let Some(tools) = request.tools.filter(|tools| wanted && !tools.is_null()) {
            fields.insert("tools".to_owned(), tools);
        }
        if let Some(kwargs) = request.chat_template_kwargs {
            fields.insert("chat_template_kwargs".to_owned(), Value::Object(kwargs));
        }
        let prompts = vec![self.tokens(fields)?];
        let (model, choosing) = (request.model, request.choosing);
        Ok(Asked { kind: Kind::Chat, model, prompts, echo: None, choosing })
    }

    /// How a prompt's completions go on; `number` stands for a seed where there is none.
    fn settings(&self, asked: &Asked, prompt: &[u32], number: u64) -> Result<Generation, Refusal> {
        let choosing = &asked.choosing;
        choosing.check()?;
        let (log_probs, top_log_probs) = choosing.log_probs()?;
        let room = self.options.max_model_len.saturating_sub(prompt.len());
        let name =
            if choosing.max_completion_tokens.is_some() { "max_completion_tokens" } else { "max_tokens" };
        let given = choosing.max_completion_tokens.or(choosing.max_tokens);
        // OpenAI's default of completions; a chat may fill the rest.
        let most = given.unwrap_or(if asked.kind == Kind::Chat { room } else { room.min(16) });
        if room == 0 || most > room {
            let (n, limit) = (prompt.len(), self.options.max_model_len);
            let message = format!(
                "the prompt has {n} tokens and {most} more are asked for; the most is {limit} together"
            );
            return Err(Refusal::of(name, message));
        }
        let mut settings = Generation {
            max_new_tokens: most,
            min_new_tokens: choosing.min_tokens.unwrap_or(0).min(most),
            log_probs,
            top_log_probs,
            ..self.options.generation.clone()
        };
        if choosing.ignore_eos {
            settings.stop.clear();
        }
        settings.stop.extend(choosing.stop_token_ids.iter().flatten());
        let sampling = &mut settings.sampling;
        if let Some(temperature) = choosing.temperature {
            sampling.do_sample = temperature > 0.0;
            sampling.temperature = if temperature > 0.0 { (temperature as f32).max(1e-3) } else { 1.0 };
        }
        let fraction = |value: Option<f64>, own: f32| value.map_or(own, |value| value as f32);
        sampling.top_p = fraction(choosing.top_p, sampling.top_p);
        sampling.top_k = choosing.top_k.map_or(sampling.top_k, |k| usize::try_from(k).unwrap_or(0));
        sampling.min_p = choosing.min_p.map(|p| p as f32).or(sampling.min_p);
        sampling.repetition_penalty = fraction(choosing.repetition_penalty, sampling.repetition_penalty);
        sampling.seed = choosing.seed.map_or(sampling.seed ^ number, |seed| seed as u64);
        Ok(settings)
    }

    /// Begins to serve a request.
    fn begin(&self, asked: &Asked) -> Result<(Heading, Telling, Running), Refusal> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let choices = asked.choosing.choices()?;
        if asked.prompts.is_empty() {
            return Err(Refusal::of("prompt", "prompt is an empty list; it has to have at least one prompt"));
        }
        let mut sequences = Vec::new();
        for (row, prompt) in asked.prompts.iter().enumerate() {
            let settings = self.settings(asked, prompt, number.wrapping_mul(0x9E37_79B9_7F4A_7C15))?;
            if prompt.is_empty() {
                return Err(Refusal::of("prompt", "a prompt has no tokens"));
            }
            if let Some(id) =
                prompt.iter().find(|&&id| self.rules.vocab_size.is_some_and(|n| id as usize >= n))
            {
                return Err(Refusal::of("prompt", format!("token {id} is not one of the model's")));
            }
            for choice in 0..choices {
                let first_row = (row * choices + choice) as u64;
                sequences.push((prompt.clone(), Arc::new(Generation { first_row, ..settings.clone() })));
            }
        }
        let telling = Telling {
            skip_special_tokens: asked.choosing.skip_special_tokens.unwrap_or(true),
            stops: asked.choosing.stops()?,
            log_probs: asked.choosing.log_probs()?.0,
            token_ids: asked.choosing.return_token_ids.unwrap_or(false),
            tokens_as_ids: asked.choosing.return_tokens_as_token_ids.unwrap_or(false),
        };
        let running = self.engine.submit(&asked.model, sequences).map_err(|refused| match refused {
            NotTaken::NoModel => no_model(&asked.model, &self.engine.names()),
            NotTaken::Full => Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "as many sequences wait as there is room for; try again",
            ),
        })?;
        Ok((Heading::new(asked.kind, number, &asked.model), telling, running))
    }
}

/// A request's completions as they come.
struct Answer {
    app: Arc<App>,
    heading: Heading,
    telling: Telling,
    running: Running,
    choices: Vec<Choice>,
    usage: Usage,
    prompts: Vec<Vec<u32>>,
    echo: Option<Vec<String>>,
}

impl Answer {
    fn begin(app: Arc<App>, asked: Asked) -> Result<Self, Refusal> {
        let (heading, telling, running) = app.begin(&asked)?;
        let choices: Vec<Choice> = running.cancelled.iter().map(|_| Choice::new(&telling)).collect();
        let prompt = asked.prompts.iter().map(Vec::len).sum();
        let usage = Usage { prompt, completion: 0 };
        let Asked { prompts, echo, .. } = asked;
        Ok(Self { app, heading, telling, running, choices, usage, prompts, echo })
    }

    fn is_done(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish_reason.is_some())
    }

    /// The next piece of a choice, when it comes; `None` when all are done.
    async fn next(&mut self) -> Result<Option<(usize, Piece, Option<FinishReason>)>, Refusal> {
        while !self.is_done() {
            let broken = |message: &str| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, message);
            let event = self.running.events.recv().await;
            let (index, piece) = match event.ok_or_else(|| broken("the model has stopped"))? {
                Event::Failed(error) => return Err(broken(&error.to_string())),
                // After a stop text some more tokens may come.
                Event::Token(index, _) | Event::Done(index, _)
                    if self.choices[index].finish_reason.is_some() =>
                {
                    continue;
                }
                Event::Token(index, token) => {
                    let piece = self.choices[index].push(&self.app.tokenizer, token).map_err(data_refusal)?;
                    (index, piece)
                }
                Event::Done(index, reason) => {
                    let piece =
                        self.choices[index].finish(&self.app.tokenizer, reason).map_err(data_refusal)?;
                    (index, piece)
                }
            };
            let choice = &self.choices[index];
            self.usage.completion += piece.tokens.len();
            if choice.finish_reason.is_some() {
                self.running.cancelled[index].store(true, Ordering::Relaxed);
            }
            return Ok(Some((index, piece, choice.finish_reason)));
        }
        Ok(None)
    }

    fn choice(&self, index: usize, piece: &Piece, reason: Option<FinishReason>, streamed: bool) -> Value {
        let with = (&self.telling, &self.app.tokenizer);
        self.heading.choice(index, with, piece, reason, streamed)
    }

    /// The prompt that a choice is of.
    fn prompt_of(&self, choice: usize) -> usize {
        choice * self.prompts.len() / self.choices.len().max(1)
    }

    /// The whole answer.
    async fn whole(mut self) -> Result<Value, Refusal> {
        let mut pieces: Vec<Piece> = self.choices.iter().map(|_| Piece::default()).collect();
        if let Some(echo) = &self.echo {
            for (index, piece) in pieces.iter_mut().enumerate() {
                piece.text.clone_from(&echo[self.prompt_of(index)]);
            }
        }
        while let Some((index, piece, _)) = self.next().await? {
            pieces[index].append(piece);
        }
        let choices = pieces.iter().zip(&self.choices).enumerate();
        let choices = choices.map(|(i, (piece, choice))| self.choice(i, piece, choice.finish_reason, false));
        let mut choices: Vec<Value> = choices.collect();
        if self.telling.token_ids && self.heading.kind == Kind::Completion {
            for (index, choice) in choices.iter_mut().enumerate() {
                choice["prompt_token_ids"] = json!(self.prompts[self.prompt_of(index)]);
            }
        }
        let mut body = self.heading.body(choices, Some(self.usage), false);
        if self.telling.token_ids && self.heading.kind == Kind::Chat {
            body["prompt_token_ids"] = json!(self.prompts[0]);
        }
        Ok(body)
    }

    /// The answer in pieces, as server-sent events.
    fn streamed(self, with_usage: bool) -> Response {
        let begun: Vec<Value> = match (&self.heading.kind, &self.echo) {
            (Kind::Chat, _) => (0..self.choices.len()).map(|index| self.heading.role(index)).collect(),
            (Kind::Completion, Some(echo)) => (0..self.choices.len())
                .map(|index| {
                    let piece = Piece { text: echo[self.prompt_of(index)].clone(), ..Piece::default() };
                    self.choice(index, &piece, None, true)
                })
                .collect(),
            (Kind::Completion, None) => Vec::new(),
        };
        let first: Vec<String> =
            begun.into_iter().map(|choice| self.heading.body(vec![choice], None, true).to_string()).collect();
        let steps = stream::unfold(
            (Some(self), first.into_iter(), false),
            move |(answer, mut first, ended)| async move {
                if let Some(data) = first.next() {
                    return Some((data, (answer, first, ended)));
                }
                let mut answer = answer?;
                if ended {
                    return Some(("[DONE]".to_owned(), (None, first, true)));
                }
                let next = loop {
                    match answer.next().await {
                        Ok(Some((_, piece, None))) if piece.is_empty(&answer.telling) => {}
                        next => break next,
                    }
                };
                match next {
                    Ok(Some((index, piece, reason))) => {
                        let choice = answer.choice(index, &piece, reason, true);
                        let data = answer.heading.body(vec![choice], None, true).to_string();
                        Some((data, (Some(answer), first, false)))
                    }
                    Ok(None) if with_usage => {
                        let data = answer.heading.body(Vec::new(), Some(answer.usage), true).to_string();
                        Some((data, (Some(answer), first, true)))
                    }
                    Ok(None) => Some(("[DONE]".to_owned(), (None, first, true))),
                    Err(refusal) => Some((refusal.body().to_string(), (Some(answer), first, true))),
                }
            },
        );
        let events =
            futures_util::StreamExt::map(steps, |data| Ok::<_, Infallible>(sse::Event::default().data(data)));
        Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response()
    }
}

/// A message whose content is text, also where it comes as a list of parts.
fn flat(mut message: Map<String, Value>) -> Result<Map<String, Value>, Refusal> {
    let Some(Value::Array(parts)) = message.get("content") else { return Ok(message) };
    let text = |part: &Value| match part["type"].as_str() {
        Some("text") => part["text"].as_str().map(str::to_owned),
        _ => None,
    };
    let texts: Option<Vec<String>> = parts.iter().map(text).collect();
    let texts = texts.ok_or_else(|| {
        Refusal::of("messages", "a part of a message is no text; pictures and sound are not read")
    })?;
    message.insert("content".to_owned(), Value::from(texts.concat()));
    Ok(message)
}

fn data_refusal(error: DataError) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, error.to_string())
}

fn no_model(name: &str, names: &[String]) -> Refusal {
    let message = format!("there is no model `{name}`; there is {}", names.join(", "));
    Refusal { param: Some("model"), ..Refusal::new(StatusCode::NOT_FOUND, message) }
}

/// A body of JSON, whatever type it says it has.
fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        // Untagged alternatives and flattened fields leave little to say.
        Refusal::new(StatusCode::BAD_REQUEST, format!("the body is not as this route expects it: {error}"))
    })
}

async fn authorised(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if let Some(key) = &app.options.api_key {
        let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        // Digests are compared in a time that says nothing of the key.
        if blake3::hash(given.as_bytes()) != blake3::hash(key.as_bytes()) {
            return Refusal::new(StatusCode::UNAUTHORIZED, "the bearer token is not the server's api_key")
                .into_response();
        }
    }
    next.run(request).await
}

/// Templates and tokenizers are work: not on the threads that serve connections.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let failed =
        |_| Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be worked on"));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(failed)
}

async fn answered(
    app: Arc<App>,
    asked: impl FnOnce(&App) -> Result<Asked, Refusal> + Send + 'static,
) -> Response {
    let begun = apart(move || {
        let asked = asked(&app)?;
        let (streamed, with_usage) = (
            asked.choosing.stream.unwrap_or(false),
            asked.choosing.stream_options.as_ref().is_some_and(|options| options.include_usage),
        );
        Ok((Answer::begin(app, asked)?, streamed, with_usage))
    });
    match begun.await {
        Ok((answer, true, with_usage)) => answer.streamed(with_usage),
        Ok((answer, false, _)) => {
            answer.whole().await.map_or_else(IntoResponse::into_response, |b| Json(b).into_response())
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn completions(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answered(app, move |app| app.completion(read(&body)?)).await
}

async fn chat_completions(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answered(app, move |app| app.chat(read(&body)?)).await
}

async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let model = |name: &String| json!({"id": name, "object": "model", "created": 0, "owned_by": "burnish", "max_model_len": app.options.max_model_len});
    let models: Vec<Value> = app.engine.names().iter().map(model).collect();
    Json(json!({"object": "list", "data": models}))
}

async fn metrics(State(app): State<Arc<App>>) -> String {
    let load = app.engine.load();
    let lines = [
        ("burnish_sequences_held", "gauge", &load.held),
        ("burnish_sequences_running", "gauge", &load.running),
        ("burnish_prompt_tokens_total", "counter", &load.prompted),
        ("burnish_generation_tokens_total", "counter", &load.generated),
    ];
    lines
        .iter()
        .map(|(name, kind, value)| {
            format!("# TYPE {name} {kind}\n{name} {}\n", value.load(Ordering::Relaxed))
        })
        .collect()
}

async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, Refusal> {
    apart(move || {
        let request: TokenizeRequest = read(&body)?;
        let tokens = match (request.prompt, request.messages) {
            (Some(prompt), None) => {
                let special = request.add_special_tokens.unwrap_or(true);
                app.tokenizer.encode(&prompt, special).map_err(|reason| Refusal::of("prompt", reason))?
            }
            (None, Some(messages)) => {
                let messages = messages.into_iter().map(flat).collect::<Result<Vec<_>, _>>()?;
                app.tokens(Map::from_iter([("prompt".to_owned(), Value::from(messages))]))?
            }
            _ => return Err(Refusal::of("prompt", "give a prompt or messages")),
        };
        let (count, limit) = (tokens.len(), app.options.max_model_len);
        Ok(Json(json!({"tokens": tokens, "count": count, "max_model_len": limit})))
    })
    .await
}

async fn detokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, Refusal> {
    apart(move || {
        let request: DetokenizeRequest = read(&body)?;
        let text = app.tokenizer.decode(&request.tokens, false).map_err(data_refusal)?;
        Ok(Json(json!({"prompt": text})))
    })
    .await
}

async fn load_lora_adapter(State(app): State<Arc<App>>, body: Bytes) -> Result<String, Refusal> {
    apart(move || {
        let request: AdapterRequest = read(&body)?;
        let not_allowed = "adapters are not loaded on request here; start the server with allow_runtime_lora_updating: true";
        let load = app.options.load_adapter.as_ref();
        let load = load.ok_or_else(|| Refusal::new(StatusCode::FORBIDDEN, not_allowed))?;
        if request.lora_name.is_empty() {
            return Err(Refusal::of("lora_name", "lora_name is empty"));
        }
        let decoder = load(&request.lora_path).map_err(|reason| Refusal::of("lora_path", reason))?;
        let added = app.engine.add(&request.lora_name, decoder);
        added.map_err(|error| Refusal::of("lora_name", error.to_string()))?;
        Ok(format!("Success: LoRA adapter '{}' added successfully.", request.lora_name))
    })
    .await
}

async fn unload_lora_adapter(State(app): State<Arc<App>>, body: Bytes) -> Result<String, Refusal> {
    let request: AdapterRequest = read(&body)?;
    if app.options.load_adapter.is_none() {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "adapters are not unloaded on request here"));
    }
    if !app.engine.remove(&request.lora_name) {
        return Err(no_model(&request.lora_name, &app.engine.names()));
    }
    Ok(format!("Success: LoRA adapter '{}' removed successfully.", request.lora_name))
}
