//! `Facts`: what readers of folders and files say, as JSON.

use std::collections::BTreeMap;
use std::path::Path;

use burnish_checkpoint::Checkpoint;
use burnish_config::table::COMMANDS;
use burnish_data::preflight::{prefix_preserving, writes_stop_token};
use burnish_data::{Row, Source, Templates, Tokenizer};
use burnish_gguf::{GgufFile, Value as GgufValue};
use burnish_models::{GenerationConfig, ModelFolder, Spec};
use burnish_peft::AdapterFolder;
use burnish_report::{MetricsLog, bytes};
use burnish_weight_files::WeightFolder;
use serde_json::{Map, Value, json};

use crate::refusal::refusal;

/// Rows whose columns are told.
const SEEN_ROWS: usize = 1000;

/// Facts in the order in which they are told.
pub(super) struct Facts(pub(super) Map<String, Value>);

impl Facts {
    pub(super) fn new(path: &Path) -> Self {
        Self(Map::from_iter([("path".to_owned(), json!(path.display().to_string()))]))
    }

    fn add(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// Says that it is this, too: an output folder holds a model, a checkpoint an adapter.
    fn is(&mut self, kind: &str) {
        let kinds = self.0.entry("holds").or_insert_with(|| json!([]));
        if let Value::Array(kinds) = kinds {
            kinds.push(json!(kind));
        }
    }

    /// A model or an adapter, if there is one.
    pub(super) fn holds(&mut self, path: &Path, tensors: bool) -> anyhow::Result<bool> {
        let file = |name: &str| path.join(name).is_file();
        if file("adapter_config.json") || AdapterFolder::open(path).is_ok() {
            self.adapter(path)?;
        } else if file("config.json") {
            self.model(path);
        } else {
            return Ok(false);
        }
        match WeightFolder::open(path) {
            Ok(_) => self.weights(path, tensors)?,
            Err(error) => self.add("weights", json!(error.to_string())),
        }
        Ok(true)
    }

    fn model(&mut self, path: &Path) {
        self.is("a model");
        let folder = match ModelFolder::open(path) {
            Ok(folder) => folder,
            Err(error) => return self.add("refused", json!(error.to_string())),
        };
        self.add("architecture", architecture(folder.spec(), folder.is_quantized()));
        let mut notes = folder.notes();
        let tokenizer = Tokenizer::from_folder(folder.tokenizer_path());
        match &tokenizer {
            Ok(tokenizer) => {
                notes.extend(tokenizer.notes());
                self.add("tokenizer", tokens(tokenizer));
                let template = Templates::from_folder(folder.tokenizer_path(), tokenizer);
                self.add("chat_template", template_of(template, tokenizer));
            }
            Err(error) => self.add("tokenizer", json!(error.to_string())),
        }
        if let Ok(generation) = GenerationConfig::read(path, folder.config()) {
            let name = |id: &u32| match &tokenizer {
                Ok(tokenizer) => tokenizer.token(*id).unwrap_or_else(|| id.to_string()),
                Err(_) => id.to_string(),
            };
            self.add("generation_ends_with", json!(generation.stop.iter().map(name).collect::<Vec<_>>()));
        }
        if let Ok(digest) = folder.sampled_digest() {
            self.add("sampled_digest", json!(digest));
        }
        if !notes.is_empty() {
            self.add("notes", json!(notes));
        }
    }

    fn adapter(&mut self, path: &Path) -> anyhow::Result<()> {
        self.is("an adapter");
        let folder = AdapterFolder::open(path)?;
        let config = serde_json::to_value(&folder.config)?;
        let told = |name: &str| config.get(name).cloned().unwrap_or(Value::Null);
        let mut facts = Map::new();
        for name in [
            "peft_type",
            "base_model_name_or_path",
            "task_type",
            "r",
            "lora_alpha",
            "use_rslora",
            "use_dora",
            "alora_invocation_tokens",
            "layer_replication",
            "target_modules",
            "target_parameters",
            "modules_to_save",
            "rank_pattern",
            "alpha_pattern",
            "num_virtual_tokens",
        ] {
            let empty = |value: &Value| match value {
                Value::Null | Value::Bool(false) => true,
                Value::Object(pairs) => pairs.is_empty(),
                _ => false,
            };
            let lora = ["r", "lora_alpha"].contains(&name) && folder.config.peft_type != "LORA";
            facts.extend(Some((name.to_owned(), told(name))).filter(|(_, value)| !empty(value) && !lora));
        }
        self.add("adapter", Value::Object(facts));
        Ok(())
    }

    /// The tensors of a file or folder.
    pub(super) fn weights(&mut self, path: &Path, tensors: bool) -> anyhow::Result<()> {
        if !self.0.contains_key("holds") {
            self.is("tensors");
        }
        let folder = WeightFolder::open(path)?;
        let mut by_dtype: BTreeMap<String, u64> = BTreeMap::new();
        let (mut elements, mut held, mut count, mut all) = (0, 0, 0_usize, Map::new());
        for name in folder.names() {
            // Also of dtypes that are not read by themselves, such as those of matrices with scales.
            let (stored, shape) = folder.described(name)?;
            let dtype = folder.info(name).map_or_else(|_| stored.to_owned(), |info| info.dtype.to_string());
            let of = shape.iter().product::<usize>() as u64;
            elements += of;
            let (_, bytes) = folder.place_of(name)?;
            held += bytes.end - bytes.start;
            count += 1;
            if tensors {
                all.insert(name.to_owned(), json!(format!("{dtype} {shape:?}")));
            }
            *by_dtype.entry(dtype).or_default() += of;
        }
        let mut facts = json!({
            "tensors": count,
            "elements": elements,
            "bytes": held,
            "size": bytes(held),
            "files": folder.files().count(),
            "dtypes": by_dtype,
        });
        if tensors {
            facts["all"] = Value::Object(all);
        }
        self.add("weights", facts);
        Ok(())
    }

    /// A GGUF file: its metadata, what its tensors are stored as, and which those are.
    pub(super) fn gguf(&mut self, path: &Path, tensors: bool) -> anyhow::Result<()> {
        let file = GgufFile::open(path)?;
        let adapter = file.get("general.type").and_then(GgufValue::as_str) == Some("adapter");
        self.is(if adapter { "an adapter in GGUF" } else { "a model in GGUF" });
        self.add("version", json!(file.version()));
        // Lists of thousands of tokens say little.
        let metadata = file.metadata().iter().map(|(key, value)| (key.clone(), json!(shortened(value))));
        self.add("metadata", Value::Object(metadata.collect()));
        let mut by_type: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut elements, mut held, mut all) = (0, 0, Map::new());
        for info in file.tensors() {
            let of = info.elements() as u64;
            *by_type.entry(info.stored.name()).or_default() += of;
            elements += of;
            held += info.bytes() as u64;
            if tensors {
                all.insert(info.name.clone(), json!(format!("{} {:?}", info.stored, info.shape)));
            }
        }
        let mut facts = json!({
            "tensors": file.tensors().len(),
            "elements": elements,
            "bytes": held,
            "size": bytes(held),
            "types": by_type,
        });
        if tensors {
            facts["all"] = Value::Object(all);
        }
        self.add("weights", facts);
        Ok(())
    }

    pub(super) fn checkpoint(&mut self, path: &Path) -> anyhow::Result<()> {
        self.is("a checkpoint");
        let checkpoint = Checkpoint::open(path)?;
        let state = checkpoint.trainer_state()?;
        let damage = checkpoint.verify().err().map(|error| error.to_string());
        self.add(
            "checkpoint",
            json!({
                "step": checkpoint.step(),
                "of_steps": state.max_steps,
                "epoch": state.epoch,
                "tokens_seen": state.num_input_tokens_seen,
                "best_checkpoint": state.best_model_checkpoint,
                "best_metric": state.best_metric,
                "tensors_of_state": checkpoint.entries().count(),
                "files": checkpoint.files().count(),
                "damage": damage.unwrap_or_else(|| "none: every checksum fits".to_owned()),
            }),
        );
        Ok(())
    }

    /// What a run left behind.
    pub(super) fn output(&mut self, path: &Path) -> anyhow::Result<()> {
        self.is("an output folder");
        let file = path.join("burnish.json");
        let record: Map<String, Value> = serde_json::from_slice(&burnish_core::file::read(&file)?)
            .map_err(|error| refusal!(DamagedFile, "{} is damaged: {error}", file.display()))?;
        // A record has every option: those say something that no command has by default.
        let usual = |name: &str, value: &Value| {
            let entries = COMMANDS.iter().flat_map(|command| (command.entries)());
            entries.filter(|entry| entry.name == name).any(|entry| Value::from(&entry.default) == *value)
        };
        self.add("run", record.into_iter().filter(|(name, value)| !usual(name, value)).collect());
        if let Ok(records) = MetricsLog::read(&path.join("metrics.jsonl"))
            && let Some(last) = records.last()
        {
            let figure = |name: &str| records.iter().rev().find_map(|record| record.get(name));
            let mut facts = Map::from_iter([
                ("step".to_owned(), json!(last.step)),
                ("epoch".to_owned(), json!(last.epoch)),
            ]);
            for name in ["loss", "eval_loss", "reward", "eval_reward", "tokens_per_second"] {
                facts.extend(figure(name).map(|value| (name.to_owned(), json!(value))));
            }
            self.add("last", Value::Object(facts));
        }
        let mut checkpoints: Vec<(u64, String)> = std::fs::read_dir(path)?
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                Some((name.strip_prefix("checkpoint-")?.parse().ok()?, name))
            })
            .collect();
        checkpoints.sort_unstable();
        self.add("checkpoints", json!(checkpoints.into_iter().map(|(_, name)| name).collect::<Vec<_>>()));
        Ok(())
    }

    /// A data set, with the columns of its first rows.
    pub(super) fn rows(&mut self, path: &Path) -> anyhow::Result<()> {
        self.is("rows");
        let source = Source::train(&path.display().to_string(), "train")?;
        let (mut columns, mut kind, mut seen) = (BTreeMap::<String, BTreeMap<&str, usize>>::new(), None, 0);
        for record in source.records().take(SEEN_ROWS) {
            let record = record?;
            seen += 1;
            for (name, value) in &record.fields {
                *columns.entry(name.clone()).or_default().entry(shape(value)).or_default() += 1;
            }
            if kind.is_none() {
                kind = Some(match Row::parse(record, "text") {
                    Ok(row) => row.kind().to_string(),
                    Err(error) => error.to_string(),
                });
            }
        }
        let count = source.count()?;
        let told = |kinds: BTreeMap<&str, usize>| {
            let all = kinds.len() == 1 && kinds.values().next() == Some(&seen);
            let each = kinds
                .iter()
                .map(|(kind, rows)| if all { (*kind).to_owned() } else { format!("{kind} in {rows}") });
            json!(each.collect::<Vec<_>>().join(", "))
        };
        self.add(
            "data",
            json!({
                "rows": count,
                "first_row": kind,
                "files": source.files().map(|file| file.display().to_string()).collect::<Vec<_>>(),
                "bytes": source.bytes(),
                "digest": source.digest()?,
            }),
        );
        let name =
            if count > seen { format!("columns of the first {seen} rows") } else { "columns".to_owned() };
        let columns: Map<String, Value> =
            columns.into_iter().map(|(name, kinds)| (name, told(kinds))).collect();
        self.add(&name, Value::Object(columns));
        Ok(())
    }
}

/// A value of metadata in a line: the first of many elements, the beginning of a long text.
fn shortened(value: &GgufValue) -> String {
    const SHOWN: (usize, usize) = (8, 100);
    let text = match value {
        GgufValue::Array(_, values) if values.len() > SHOWN.0 => {
            let first: Vec<String> = values.iter().take(SHOWN.0).map(GgufValue::to_string).collect();
            return format!("{} elements: {}, ...", values.len(), first.join(", "));
        }
        GgufValue::Array(_, values) => values.iter().map(GgufValue::to_string).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    };
    let line = text.replace('\n', "\\n");
    match line.char_indices().nth(SHOWN.1) {
        Some((at, _)) => format!("{}... ({} characters)", &line[..at], text.chars().count()),
        None => line,
    }
}

fn architecture(spec: &Spec, quantized: bool) -> Value {
    let mut facts = json!({
        "model_type": spec.family.model_type(),
        "layers": spec.layers.len(),
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "attention_heads": spec.heads,
        "key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.max_positions,
        "tied_embeddings": spec.tied,
        "scores_texts": spec.output == burnish_models::Output::Score,
        "quantized": quantized,
    });
    if let Some(experts) = &spec.experts {
        facts["experts"] = json!(experts.count);
    }
    if spec.part {
        facts["part"] = json!("the text part of a model that has others, which stay as they are");
    }
    facts
}

fn tokens(tokenizer: &Tokenizer) -> Value {
    let special: Map<String, Value> =
        tokenizer.named_tokens().map(|(name, token)| (name.to_owned(), json!(token))).collect();
    json!({"ids": tokenizer.ids(), "special": special, "model_max_length": tokenizer.model_max_length()})
}

fn template_of(
    templates: Result<Option<Templates>, burnish_data::DataError>,
    tokenizer: &Tokenizer,
) -> Value {
    let templates = match templates {
        Ok(Some(templates)) => templates,
        Ok(None) => return json!("none: conversations need one"),
        Err(error) => return json!(error.to_string()),
    };
    let template = match templates.pick(false) {
        Ok(template) => template,
        Err(error) => return json!(error.to_string()),
    };
    json!({
        "name": template.name(),
        "characters": template.source().chars().count(),
        "marks_what_the_assistant_says": template.marks_generation(),
        "ends_the_assistants_turn_with_a_stop_token": writes_stop_token(template, tokenizer),
        "a_conversations_beginning_stays_as_it_is": prefix_preserving(template),
    })
}

/// What a column's value is.
fn shape(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Object(_) => "object",
        Value::Array(items) => match items.first() {
            Some(Value::Object(item)) if item.contains_key("role") || item.contains_key("from") => "messages",
            Some(Value::Object(_)) => "list of objects",
            Some(Value::Number(_)) => "list of numbers",
            Some(Value::String(_)) => "list of texts",
            _ => "list",
        },
    }
}
