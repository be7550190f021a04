//! The folder's tokenizer: `tokenizer.json`, or what Transformers makes of other files, with the named tokens of the files
//! beside it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use burnish_core::guarded;
use serde_json::{Map, Value};
use tokenizers::models::ModelWrapper;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Encoding};

use crate::error::DataError;
use crate::tokenizer_parts::TokenizerParts;
use crate::valid_json::ValidJson;

mod byte_level;
mod made;
mod sentence_piece;
mod tekken;
mod tiktoken;

use made::{Made, Said};

/// The named special tokens that chat templates see as variables, in Transformers' order.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A tokenizer with its named tokens.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Named tokens as (`eos_token`, text), those the tokenizer's files set.
    named: Vec<(String, String)>,
    /// Named tokens known only by the model's ids, and pad from eos; a chat template does not see them.
    implied: Vec<(String, String)>,
    /// Ids that end generation besides `eos_token`'s.
    stop_ids: Vec<u32>,
    special_ids: HashSet<u32>,
    model_max_length: Option<usize>,
    /// The share of merges that the file asks to leave out at random, which none are.
    dropout: Option<f32>,
    /// Most bytes of a text.
    max_text_bytes: usize,
    /// How many times its bytes a text may have when it is normalised.
    growth: usize,
    /// Of those who tokenise a long text, one has the turn.
    turn: Arc<Mutex<()>>,
}

impl Tokenizer {
    /// Bytes of a text beyond which it is not tokenised, unless [more are allowed](Self::set_max_text_bytes): the library takes
    /// up to 220 times as much memory.
    pub const MAX_TEXT_BYTES: usize = 4 << 20;

    /// Reads the tokenizer of a model folder.
    ///
    /// Named tokens come from `tokenizer_config.json`, then `special_tokens_map.json`; a missing eos, bos or pad
    /// falls back to the ids in `generation_config.json` and `config.json`, and pad at last to eos.
    ///
    /// # Errors
    /// When there is neither `tokenizer.json` nor a file that one is made of, or one of the files cannot be parsed.
    pub fn from_folder(folder: &Path) -> Result<Self, DataError> {
        let config = json_file(&folder.join("tokenizer_config.json"))?;
        let legacy = json_file(&folder.join("special_tokens_map.json"))?;
        let generation = json_file(&folder.join("generation_config.json"))?;
        let model = json_file(&folder.join("config.json"))?;
        let (mut path, mut named) = (folder.join("tokenizer.json"), Vec::new());
        let bytes = if path.is_file() {
            burnish_core::file::read_json(&path)
                .map_err(|source| DataError::Io { path: path.clone(), source })?
        } else {
            let added = json_file(&folder.join("added_tokens.json"))?;
            let model_type = model.get("model_type").and_then(Value::as_str).unwrap_or_default();
            let said = Said { config: &config, legacy: &legacy, added: &added, model_type };
            let made = Made::of(folder, &said)?.ok_or_else(|| no_tokenizer(folder))?;
            (path, named) = (made.path.clone(), made.named.clone());
            made.json(&said)
        };
        let bad = |reason: String| DataError::BadTokenizer { path: path.clone(), reason: plain(&reason) };
        // The library panics over some texts that are none.
        serde_json::from_slice::<ValidJson>(&bytes).map_err(|e| bad(e.to_string()))?;
        let parts: TokenizerParts = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        let growth = parts.growth().map_err(bad)?;
        let inner = guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(|e| bad(failed(&e)))?;
        let inner = inner.map_err(|e| bad(e.to_string()))?;
        let made = guarded(|| Self::new(inner, (&config, &legacy), named, &[&generation, &model]));
        let made = made.unwrap_or_else(|panic| Err(failed(&panic)));
        made.map(|tokenizer| Self { growth, ..tokenizer })
            .map_err(|reason| DataError::BadTokenizer { path, reason })
    }

    /// Whether a folder has a tokenizer.
    #[must_use]
    pub fn is_in(folder: &Path) -> bool {
        folder.join("tokenizer.json").is_file() || Made::is_in(folder)
    }

    fn new(
        mut inner: tokenizers::Tokenizer,
        (config, legacy): (&Map<String, Value>, &Map<String, Value>),
        of_class: Vec<(&'static str, String)>,
        id_sources: &[&Map<String, Value>],
    ) -> Result<Self, String> {
        inner.with_truncation(None).map_err(|e| e.to_string())?;
        inner.with_padding(None);
        let dropout = without_dropout(&mut inner);
        add_tokens(&mut inner, config)?;
        let mut named = Vec::new();
        for name in NAMED {
            let of_class = || of_class.iter().find(|(own, _)| *own == name).map(|(_, text)| text.clone());
            if let Some(token) = named_token(config, legacy, name).or_else(of_class) {
                named.push((name.to_owned(), token));
            }
        }
        // Tokens a model names itself (`image_token`, ...) are variables of its template too.
        let own = config.iter().filter(|(k, _)| k.ends_with("_token") && !NAMED.contains(&k.as_str()));
        named.extend(own.filter_map(|(k, v)| v.as_str().map(|t| (k.clone(), t.to_owned()))));
        if let Some(Value::Object(extra)) = config.get("extra_special_tokens") {
            named.extend(extra.iter().filter_map(|(k, v)| token_text(v).map(|t| (k.clone(), t))));
        }
        let unknown: Vec<AddedToken> = (named.iter())
            .filter(|(_, t)| inner.token_to_id(t).is_none())
            .map(|(_, t)| AddedToken::from(t.clone(), true))
            .collect();
        inner.add_special_tokens(unknown).map_err(|e| e.to_string())?;

        let mut stop_ids = Vec::new();
        for source in id_sources {
            let ids = id_list(source.get("eos_token_id"));
            stop_ids.extend(ids.into_iter().filter(|id| inner.id_to_token(*id).is_some()));
        }
        let special_ids =
            inner.get_added_tokens_decoder().iter().filter(|(_, t)| t.special).map(|(id, _)| *id).collect();
        let model_max_length = config.get("model_max_length").and_then(Value::as_u64);
        let mut tokenizer = Self {
            inner,
            named,
            implied: Vec::new(),
            stop_ids,
            special_ids,
            model_max_length: model_max_length.and_then(|n| usize::try_from(n).ok()),
            dropout,
            max_text_bytes: Self::MAX_TEXT_BYTES,
            growth: 1,
            turn: Arc::default(),
        };
        for name in ["bos_token", "eos_token", "pad_token"] {
            let ids = id_sources.iter().flat_map(|s| id_list(s.get(&format!("{name}_id"))));
            if tokenizer.named(name).is_none()
                && let Some(text) = ids.filter_map(|id| tokenizer.inner.id_to_token(id)).next()
            {
                tokenizer.implied.push((name.to_owned(), text));
            }
        }
        if tokenizer.named("pad_token").is_none()
            && let Some(eos) = tokenizer.eos_token().map(str::to_owned)
        {
            tokenizer.implied.push(("pad_token".to_owned(), eos));
        }
        tokenizer.update_post_processor(config)?;
        tokenizer.collect_stop_ids();
        Ok(tokenizer)
    }

    /// As Transformers: an explicit `add_bos_token`/`add_eos_token` replaces the file's post-processor.
    fn update_post_processor(&mut self, config: &Map<String, Value>) -> Result<(), String> {
        let explicit = config.contains_key("add_bos_token") || config.contains_key("add_eos_token");
        if !explicit && self.inner.get_post_processor().is_some() {
            return Ok(());
        }
        let flag = |name: &str| config.get(name).and_then(Value::as_bool).unwrap_or(false);
        let bos = self.named("bos_token").filter(|_| flag("add_bos_token")).map(str::to_owned);
        let eos = self.named("eos_token").filter(|_| flag("add_eos_token")).map(str::to_owned);
        let mut single = String::from("$A:0");
        let mut tokens = Vec::new();
        if let Some(bos) = bos {
            single = format!("{bos}:0 {single}");
            tokens.push(bos);
        }
        if let Some(eos) = eos {
            single = format!("{single} {eos}:0");
            tokens.push(eos);
        }
        tokens.dedup();
        let tokens: Vec<(String, u32)> =
            tokens.into_iter().filter_map(|t| self.inner.token_to_id(&t).map(|id| (t, id))).collect();
        let mut builder = TemplateProcessing::builder();
        builder.try_single(single.as_str()).map_err(|e| e.to_string())?;
        builder.try_pair(format!("{single} $B:1").as_str()).map_err(|e| e.to_string())?;
        let processor = builder.special_tokens(tokens).build().map_err(|e| e.to_string())?;
        self.inner.with_post_processor(Some(processor));
        Ok(())
    }

    fn collect_stop_ids(&mut self) {
        self.stop_ids.extend(self.named("eos_token").and_then(|t| self.inner.token_to_id(t)));
        self.stop_ids.sort_unstable();
        self.stop_ids.dedup();
    }

    /// The text of a named token (`bos_token`, `eos_token`, ...).
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&str> {
        self.named.iter().chain(&self.implied).find(|(n, _)| n == name).map(|(_, t)| t.as_str())
    }

    /// The named tokens that the tokenizer's files set: variables of the chat template.
    pub fn named_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|(n, t)| (n.as_str(), t.as_str()))
    }

    /// The end-of-sequence text.
    #[must_use]
    pub fn eos_token(&self) -> Option<&str> {
        self.named("eos_token")
    }

    /// The end-of-sequence id.
    #[must_use]
    pub fn eos_id(&self) -> Option<u32> {
        self.id(self.eos_token()?)
    }

    /// The beginning-of-sequence id.
    #[must_use]
    pub fn bos_id(&self) -> Option<u32> {
        self.id(self.named("bos_token")?)
    }

    /// The padding id: the folder's pad token, or eos.
    #[must_use]
    pub fn pad_id(&self) -> Option<u32> {
        self.id(self.named("pad_token")?)
    }

    /// Every id that ends generation: eos and the lists of `generation_config.json` and `config.json`; sorted.
    #[must_use]
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// What whoever started the program should be told of the folder's tokenizer: that a share of merges that
    /// `tokenizer.json` leaves out at random is not left out.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let note = |share| {
            format!(
                "tokenizer.json: the model's `dropout` of {share} is read as 0: a text has the same tokens each time (in \
                 Transformers they are drawn)"
            )
        };
        self.dropout.map(note).into_iter().collect()
    }

    /// The longest input the folder declares, if it declares one.
    #[must_use]
    pub const fn model_max_length(&self) -> Option<usize> {
        self.model_max_length
    }

    /// Replaces a named token (`eos_token`, `pad_token`, `bos_token`), as TRL's options of that name do.
    ///
    /// # Errors
    /// When the token is not in the vocabulary.
    pub fn set_named(&mut self, name: &'static str, token: &str) -> Result<(), DataError> {
        if self.id(token).is_none() {
            return Err(DataError::UnknownToken { name, token: token.to_owned() });
        }
        match self.named.iter_mut().find(|(n, _)| n == name) {
            Some((_, text)) => token.clone_into(text),
            None => self.named.push((name.to_owned(), token.to_owned())),
        }
        if name == "eos_token" {
            self.collect_stop_ids();
        }
        Ok(())
    }

    /// Tokenises texts of up to so many bytes; longer ones are an error.
    pub fn set_max_text_bytes(&mut self, bytes: usize) {
        self.max_text_bytes = bytes;
    }

    /// Tokenises within the bound: threads take turns with texts that need much memory.
    fn bounded<T>(&self, text: &str, encode: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
        /// Bytes of a text that any number of threads may tokenise at the same time.
        const SHORT: usize = 128 << 10;
        let (got, most) = (text.len(), self.max_text_bytes);
        if got > most {
            return Err(format!(
                "a text of {got} bytes, expected at most {most} (max_text_bytes): tokenising takes up to 220 times as much \
                 memory; cut it into several rows, or raise max_text_bytes"
            ));
        }
        // Usual normalizers make three bytes of one at most, of spaces.
        if got.saturating_mul(self.growth) > most.saturating_mul(4) {
            return Err(format!(
                "the tokenizer's normalizer makes up to {} bytes of each of {got}; expected at most {} of all of them \
                 (four times max_text_bytes)",
                self.growth,
                most.saturating_mul(4)
            ));
        }
        let _turn = (got > SHORT).then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        guarded(encode).map_err(|e| failed(&e))?.map_err(|e| e.to_string())
    }

    /// The id of a token's text.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of an id as stored in the vocabulary.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The first id that stands for something else in `other`, or for nothing there, with its text here.
    #[must_use]
    pub fn first_unlike(&self, other: &Self) -> Option<(u32, String)> {
        let unlike = |(text, id): &(String, u32)| other.token(*id).as_ref() != Some(text);
        let all = self.inner.get_vocab(true).into_iter();
        all.filter(unlike).map(|(text, id)| (id, text)).min()
    }

    /// One more than the greatest id.
    #[must_use]
    pub fn ids(&self) -> usize {
        self.inner.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1)
    }

    /// Number of ids, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Texts of the added tokens, special or not.
    pub(crate) fn added_tokens(&self) -> Vec<String> {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder().values();
        added.map(|token| token.content.clone()).filter(|text| !text.trim().is_empty()).collect()
    }

    /// Whether the id is an added token (special or not), not a piece of the base vocabulary.
    #[must_use]
    pub fn is_added(&self, id: u32) -> bool {
        self.inner.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id)
    }

    /// Whether [`Tokenizer::decode`] leaves the id out when it skips special tokens.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// Token ids of a text. `special` adds what the post-processor adds (bos, ...), as for plain text in
    /// Transformers; rendered conversations are encoded without.
    ///
    /// # Errors
    /// The library's words, for the caller to place.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        // `encode_fast` skips offsets; ids are the same.
        let encoding = self.bounded(text, || self.inner.encode_fast(text, special))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Token ids with offsets counted in characters, for masks.
    pub(crate) fn encode_offsets(&self, text: &str, special: bool) -> Result<Encoding, String> {
        self.bounded(text, || self.inner.encode_char_offsets(text, special))
    }

    /// Text of token ids.
    ///
    /// # Errors
    /// When the decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, DataError> {
        let decoded = guarded(|| self.inner.decode(ids, skip_special_tokens));
        let reason = match decoded {
            Ok(Ok(text)) => return Ok(text),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => failed(&panic),
        };
        Err(DataError::Decode { reason })
    }
}

/// Text that grows token by token: bytes of a character split over tokens are held back until it is whole.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    ids: Vec<u32>,
    /// Tokens before this one are no longer needed as context.
    context: usize,
    /// Tokens before this one have been given out.
    given: usize,
    skip_special_tokens: bool,
}

impl TextStream {
    /// An empty stream.
    #[must_use]
    pub const fn new(skip_special_tokens: bool) -> Self {
        Self { ids: Vec::new(), context: 0, given: 0, skip_special_tokens }
    }

    /// Takes the next token and gives the text that became certain, often empty.
    ///
    /// # Errors
    /// When the decoder fails.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, DataError> {
        self.ids.push(id);
        self.step(tokenizer, false)
    }

    /// The rest, when no more tokens come.
    ///
    /// # Errors
    /// When the decoder fails.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, DataError> {
        self.step(tokenizer, true)
    }

    fn step(&mut self, tokenizer: &Tokenizer, last: bool) -> Result<String, DataError> {
        let before = tokenizer.decode(&self.ids[self.context..self.given], self.skip_special_tokens)?;
        let after = tokenizer.decode(&self.ids[self.context..], self.skip_special_tokens)?;
        if !last && after.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        let new = after.get(before.len()..).unwrap_or_default().to_owned();
        if !new.is_empty() {
            // The last given tokens stay as context: some decoders treat the first token of a text differently.
            self.context = self.given;
            self.given = self.ids.len();
        }
        Ok(new)
    }
}

/// Reads a JSON object; a missing file is an empty object.
pub(crate) fn json_file(path: &Path) -> Result<Map<String, Value>, DataError> {
    let text = match burnish_core::file::read_json(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(source) => return Err(DataError::Io { path: path.to_path_buf(), source }),
    };
    let bad = |reason: String| DataError::BadFile { path: PathBuf::from(path), reason };
    match serde_json::from_slice(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(bad("expected a JSON object".to_owned())),
        Err(e) => Err(bad(e.to_string())),
    }
}

/// Takes a model's dropout away, so that tokens are a function of the text on every rank, in every epoch and when a run goes on.
fn without_dropout(inner: &mut tokenizers::Tokenizer) -> Option<f32> {
    let ModelWrapper::BPE(model) = inner.get_model() else { return None };
    let dropout = model.dropout.filter(|&share| share > 0.0)?;
    let mut model = model.clone();
    model.dropout = None;
    inner.with_model(model);
    Some(dropout)
}

/// A token given as text or as an object with `content`.
fn token_text(value: &Value) -> Option<String> {
    let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
    text.map(str::to_owned)
}

fn id_list(value: Option<&Value>) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Of a folder without a tokenizer that is read.
fn no_tokenizer(folder: &Path) -> DataError {
    let slow: Vec<&str> =
        ["vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model"]
            .into_iter()
            .filter(|n| folder.join(n).is_file())
            .collect();
    let mut looked_for =
        "`tokenizer.json`, `vocab.json` with `merges.txt`, `tekken.json`, `tokenizer.model` or `qwen.tiktoken`".to_owned();
    if !slow.is_empty() {
        looked_for += &format!(" (found only `{}`, which is not read)", slow.join("`, `"));
    }
    DataError::NoTokenizer { folder: folder.to_path_buf(), looked_for }
}

/// The tokens that `tokenizer_config.json` declares, by their ids.
fn declared_tokens(config: &Map<String, Value>) -> Vec<(u64, AddedToken)> {
    let mut tokens: Vec<(u64, AddedToken)> = Vec::new();
    if let Some(Value::Object(declared)) = config.get("added_tokens_decoder") {
        for (id, value) in declared {
            let Some(text) = token_text(value) else { continue };
            let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
            let token = AddedToken::from(text, flag("special"))
                .single_word(flag("single_word"))
                .lstrip(flag("lstrip"))
                .rstrip(flag("rstrip"))
                .normalized(flag("normalized"));
            tokens.push((id.parse().unwrap_or(u64::MAX), token));
        }
    }
    tokens.sort_by_key(|(id, _)| *id);
    tokens
}

/// The text of a named token by `tokenizer_config.json`, else by `special_tokens_map.json`.
fn named_token(config: &Map<String, Value>, legacy: &Map<String, Value>, name: &str) -> Option<String> {
    [config, legacy].into_iter().find_map(|all| all.get(name).and_then(token_text))
}

/// Adds the tokens that `tokenizer_config.json` declares and `tokenizer.json` lacks.
fn add_tokens(inner: &mut tokenizers::Tokenizer, config: &Map<String, Value>) -> Result<(), String> {
    let lacking = declared_tokens(config).into_iter().map(|(_, token)| token);
    let lacking: Vec<AddedToken> =
        lacking.filter(|token| inner.token_to_id(&token.content).is_none()).collect();
    inner.add_tokens(lacking).map_err(|e| e.to_string())?;
    let lists = ["extra_special_tokens", "additional_special_tokens"];
    let extra = lists.iter().filter_map(|k| config.get(*k).and_then(Value::as_array)).flatten();
    let extra: Vec<AddedToken> = extra
        .filter_map(token_text)
        .filter(|t| inner.token_to_id(t).is_none())
        .map(|t| AddedToken::from(t, true))
        .collect();
    inner.add_special_tokens(extra).map_err(|e| e.to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests;

/// The library's words where it panicked.
fn failed(panic: &str) -> String {
    // What a library's error would say, without its type.
    let words = panic.split_once("Error(\"").and_then(|(_, rest)| rest.split('"').next()).unwrap_or(panic);
    let words: String = words.lines().next().unwrap_or_default().chars().take(200).collect();
    format!("tokenizer.json asks for what cannot be computed ({words})")
}

/// The library's words on a part that it does not know, without the names of its types.
fn plain(reason: &str) -> String {
    const SAID: &str = "data did not match any variant of untagged enum ";
    let Some((before, rest)) = reason.split_once(SAID) else { return reason.to_owned() };
    let (name, after) = rest.split_once(' ').unwrap_or((rest, ""));
    let part = [
        ("PostProcessor", "post_processor"),
        ("PreTokenizer", "pre_tokenizer"),
        ("Normalizer", "normalizer"),
        ("Decoder", "decoder"),
        ("Merge", "model's merges"),
        ("Model", "model"),
    ]
    .into_iter()
    .find_map(|(start, part)| name.starts_with(start).then_some(part));
    format!("{before}its {} is of no known form, {after}", part.unwrap_or("content"))
}
