//! Bodies of requests: OpenAI's, with vLLM's additions.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::refusal::Refusal;

/// Completions of one prompt at most.
const MOST_CHOICES: usize = 128;
/// Likeliest tokens that are told at a position at most.
const MOST_LOG_PROBS: usize = 20;
/// Texts that end a completion at most, and the bytes of one.
const MOST_STOPS: usize = 16;
const LONGEST_STOP: usize = 1024;

/// One value, or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(crate) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value],
            Self::Many(values) => values,
        }
    }
}

/// The prompts of a completion: texts, or tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    ManyTokens(Vec<Vec<u32>>),
}

/// Whether log-probabilities are asked for: a number for completions, a truth for chats.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum LogProbs {
    Whether(bool),
    Number(usize),
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct StreamOptions {
    #[serde(default)]
    pub(crate) include_usage: bool,
}

/// How tokens are chosen, and when they end: what both kinds of requests have.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Choosing {
    pub(crate) n: Option<usize>,
    pub(crate) max_tokens: Option<usize>,
    /// Chat's newer name of it.
    pub(crate) max_completion_tokens: Option<usize>,
    pub(crate) min_tokens: Option<usize>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    /// -1 and 0 are all.
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<OneOrMany<String>>,
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    pub(crate) ignore_eos: bool,
    pub(crate) skip_special_tokens: Option<bool>,
    pub(crate) logprobs: Option<LogProbs>,
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    /// Whether choices have their `token_ids`, and the answer `prompt_token_ids`.
    pub(crate) return_token_ids: Option<bool>,
    /// Whether tokens of log-probabilities are written as `token_id:N`.
    pub(crate) return_tokens_as_token_ids: Option<bool>,
}

/// `POST /v1/completions`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CompletionRequest {
    pub(crate) model: String,
    pub(crate) prompt: Prompts,
    #[serde(default)]
    pub(crate) echo: bool,
    #[serde(flatten)]
    pub(crate) choosing: Choosing,
    #[serde(flatten)]
    pub(crate) rest: Map<String, Value>,
}

/// `POST /v1/chat/completions`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ChatRequest {
    pub(crate) model: String,
    pub(crate) messages: Vec<Map<String, Value>>,
    pub(crate) tools: Option<Value>,
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    #[serde(flatten)]
    pub(crate) choosing: Choosing,
    #[serde(flatten)]
    pub(crate) rest: Map<String, Value>,
}

/// `POST /tokenize`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct TokenizeRequest {
    pub(crate) prompt: Option<String>,
    pub(crate) messages: Option<Vec<Map<String, Value>>>,
    pub(crate) add_special_tokens: Option<bool>,
}

/// `POST /detokenize`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DetokenizeRequest {
    pub(crate) tokens: Vec<u32>,
}

/// `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct AdapterRequest {
    pub(crate) lora_name: String,
    #[serde(default)]
    pub(crate) lora_path: String,
}

/// Parameters that would change the answer and are not computed, but for values that change nothing.
const REFUSED: [&str; 17] = [
    "audio",
    "best_of",
    "frequency_penalty",
    "function_call",
    "functions",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "length_penalty",
    "logit_bias",
    "presence_penalty",
    "prompt_logprobs",
    "response_format",
    "structured_outputs",
    "suffix",
    "use_beam_search",
];

/// That nothing is asked for that would be left out in silence.
pub(crate) fn check_rest(rest: &Map<String, Value>) -> Result<(), Refusal> {
    for name in REFUSED {
        let Some(value) = rest.get(name) else { continue };
        let neutral = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Number(number) => {
                let one = matches!(name, "best_of" | "length_penalty");
                number.as_f64() == Some(if one { 1.0 } else { 0.0 })
            }
            Value::Object(fields) => {
                fields.is_empty() || fields.get("type").is_some_and(|kind| kind == "text")
            }
            Value::Array(list) => list.is_empty(),
            Value::String(text) => text.is_empty() || text == "none",
            Value::Bool(true) => false,
        };
        if !neutral {
            return Err(Refusal::of(name, format!("{name} is not supported; leave it out")));
        }
    }
    match rest.get("tool_choice") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(choice)) if choice == "auto" || choice == "none" => Ok(()),
        Some(_) => {
            Err(Refusal::of("tool_choice", "tool_choice is `auto` or `none` here: nothing forces a call"))
        }
    }
}

impl Choosing {
    /// Completions of each prompt.
    pub(crate) fn choices(&self) -> Result<usize, Refusal> {
        let n = self.n.unwrap_or(1);
        let range = 1..=MOST_CHOICES;
        range.contains(&n).then_some(n).ok_or_else(|| outside("n", n, "a whole number from 1 to 128"))
    }

    /// Whether log-probabilities are wanted, and how many of the likeliest tokens.
    pub(crate) fn log_probs(&self) -> Result<(bool, usize), Refusal> {
        let (wanted, top) = match self.logprobs {
            None => (false, 0),
            Some(LogProbs::Whether(wanted)) => (wanted, self.top_logprobs.unwrap_or(0)),
            Some(LogProbs::Number(number)) => (true, number),
        };
        if top > MOST_LOG_PROBS {
            return Err(outside("top_logprobs", top, "a whole number up to 20"));
        }
        if !wanted && self.top_logprobs.is_some_and(|n| n > 0) {
            return Err(Refusal::of("top_logprobs", "top_logprobs needs logprobs: true"));
        }
        Ok((wanted, top))
    }

    /// Texts that end a completion.
    pub(crate) fn stops(&self) -> Result<Vec<String>, Refusal> {
        let stops = self.stop.clone().map_or_else(Vec::new, OneOrMany::into_vec);
        if stops.len() > MOST_STOPS || stops.iter().any(|stop| stop.is_empty() || stop.len() > LONGEST_STOP) {
            let expected =
                format!("at most {MOST_STOPS} texts, none of them empty or longer than {LONGEST_STOP} bytes");
            return Err(Refusal::of("stop", format!("stop has to be {expected}")));
        }
        Ok(stops)
    }

    /// That numbers are in their ranges.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let within = |name, value: Option<f64>, fits: fn(f64) -> bool, expected| match value {
            Some(value) if !fits(value) => Err(outside(name, value, expected)),
            _ => Ok(()),
        };
        within("temperature", self.temperature, |t| (0.0..=100.0).contains(&t), "a number from 0 to 100")?;
        within("top_p", self.top_p, |p| p > 0.0 && p <= 1.0, "a number above 0 and at most 1")?;
        within("min_p", self.min_p, |p| (0.0..=1.0).contains(&p), "a number from 0 to 1")?;
        let penalty = |p: f64| p > 0.0 && p <= 100.0;
        within("repetition_penalty", self.repetition_penalty, penalty, "a number above 0 and at most 100")?;
        match self.top_k {
            Some(k) if k < -1 => Err(outside("top_k", k, "a whole number from 0, or -1 for all")),
            _ => Ok(()),
        }
    }
}

fn outside(name: &'static str, got: impl std::fmt::Display, expected: &str) -> Refusal {
    Refusal::of(name, format!("{name} is {got}; it has to be {expected}"))
}
