//! Names of the hub among a command's options, replaced by folders of its cache.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::Context;
use burnish_config::table::Raw;
use burnish_config::{Command, Resolved};
use burnish_data::{DataError, Listing, SourceSpec};
use burnish_hub::{Hub, Progress, Repo, Settings, Wanted, could_be_name};
use burnish_report::TransferBar;

/// Options that may name a model, an adapter or a tokenizer.
const MODELS: &[(&str, Wanted<'_>)] = &[
    ("model_name_or_path", Wanted::Model),
    ("adapter_name_or_path", Wanted::Adapter),
    ("ref_model_name_or_path", Wanted::Model),
    ("ref_adapter_name_or_path", Wanted::Adapter),
    ("reference_model_name_or_path", Wanted::Model),
    ("reference_adapter_name_or_path", Wanted::Adapter),
    ("reward_model_name_or_path", Wanted::Model),
    ("chat_template_path", Wanted::Tokenizer),
];
/// Options that may name a data set, and who says which split of it is read.
const DATASETS: &[(&str, &[&str])] = &[
    ("dataset_name", &["dataset_train_split", "dataset_test_split"]),
    ("eval_dataset_name", &["dataset_test_split"]),
];
/// Lists of data sets.
const MIXTURES: &[&str] = &["datasets", "eval_datasets"];
/// Endings of files, which a hub's name may have but is not taken to.
const ENDINGS: [&str; 11] =
    ["json", "jsonl", "ndjson", "csv", "tsv", "txt", "parquet", "arrow", "gz", "jinja", "safetensors"];

/// Fetches what options name that is not here and could be on the hub, and has them name its folders. The network is
/// touched for nothing else.
pub(crate) fn resolve<C: Command>(resolved: &mut Resolved<C>) -> anyhow::Result<()> {
    let values = resolved.options.values();
    let mut hub = None;
    let mut replaced: Vec<(&'static str, Raw)> = Vec::new();
    for (name, raw) in &values {
        let model = MODELS.iter().find(|(option, _)| option == name);
        let dataset = DATASETS.iter().find(|(option, _)| option == name);
        let new = match (model, dataset) {
            (Some((_, wanted)), _) => each(raw, &mut |text| {
                let revision = value(&values, "model_revision").filter(|_| *name == "model_name_or_path");
                fetch(&mut hub, &Repo::model(text)?, revision, wanted)
            }),
            (None, Some((_, splits))) => each(raw, &mut |text| {
                let evaluates = value(&values, "eval_strategy") != Some("no");
                let trains = splits.iter().any(|s| value(&values, s).is_some() && s.contains("train"));
                let wanted = splits.iter().filter(|s| !trains || evaluates || s.contains("train"));
                let config = value(&values, "dataset_config").filter(|_| *name == "dataset_name");
                let spec = SourceSpec { config: config.map(str::to_owned), ..SourceSpec::new(text, "") };
                let wanted: Vec<&str> = wanted.filter_map(|s| value(&values, s)).collect();
                rows(&mut hub, &spec, &wanted)
            }),
            _ if MIXTURES.contains(name) => mixture(&mut hub, raw),
            _ => Ok(None),
        };
        if let Some(new) = new.with_context(|| format!("{name}: {raw}"))? {
            replaced.push((name, new));
        }
    }
    for (name, raw) in replaced {
        if let Some(Err(fault)) = resolved.options.set(name, &raw) {
            anyhow::bail!("{name}: {raw} is not {}", fault.expected);
        }
    }
    Ok(())
}

/// A run's record with names of the hub where its options have folders of the cache.
pub(crate) fn named(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => match Repo::of_snapshot(Path::new(&text)) {
            Some(repo) => Value::from(repo.name()),
            None => Value::String(text),
        },
        Value::Array(items) => items.into_iter().map(named).collect(),
        Value::Object(entries) => entries.into_iter().map(|(key, value)| (key, named(value))).collect(),
        other => other,
    }
}

type Client = Hub<Box<dyn FnMut(Progress<'_>)>>;

/// The text of an option, unless it says nothing.
fn value<'a>(values: &'a [(&'static str, Raw)], name: &str) -> Option<&'a str> {
    values.iter().find(|(known, _)| *known == name).and_then(|(_, raw)| match raw {
        Raw::Text(text) if !raw.is_nothing() || text == "no" => Some(text.as_str()),
        _ => None,
    })
}

/// An option's text, or each text of its list, replaced where it names something of the hub.
fn each(raw: &Raw, fetch: &mut dyn FnMut(&str) -> anyhow::Result<String>) -> anyhow::Result<Option<Raw>> {
    match raw {
        Raw::Text(text) if is_name(text) => Ok(Some(Raw::Text(fetch(text)?))),
        Raw::List(items) => {
            let new = items.iter().map(|item| each(item, fetch)).collect::<anyhow::Result<Vec<_>>>()?;
            let any = new.iter().any(Option::is_some);
            let all = new.into_iter().zip(items).map(|(new, item)| new.unwrap_or_else(|| item.clone()));
            Ok(any.then(|| Raw::List(all.collect())))
        }
        _ => Ok(None),
    }
}

/// Whether this is to be looked for on the hub: what lies here under that name wins.
fn is_name(text: &str) -> bool {
    let ending = text.rsplit_once('.').is_some_and(|(_, end)| ENDINGS.contains(&end));
    could_be_name(text) && !ending && !Path::new(text).exists()
}

/// The data sets of a list.
fn mixture(hub: &mut Option<Client>, raw: &Raw) -> anyhow::Result<Option<Raw>> {
    let Raw::List(items) = raw else { return Ok(None) };
    let mut any = false;
    let mut one = |item: &Raw| -> anyhow::Result<Raw> {
        let Raw::Map(entries) = item else { return Ok(item.clone()) };
        let text = |key: &str| {
            let entry = entries.iter().find(|(known, _)| known == key);
            entry.and_then(|(_, raw)| if let Raw::Text(text) = raw { Some(text.clone()) } else { None })
        };
        let Some(path) = text("path").filter(|path| is_name(path)) else { return Ok(item.clone()) };
        let files = entries.iter().find(|(known, _)| known == "data_files").map(|(_, raw)| raw);
        let data_files = match files {
            Some(Raw::Text(one)) => vec![one.clone()],
            Some(Raw::List(several)) => several.iter().map(Raw::plain).collect(),
            _ => Vec::new(),
        };
        let split = text("split").unwrap_or_else(|| "train".to_owned());
        let (config, data_dir) = (text("name"), text("data_dir"));
        let spec = SourceSpec { config, data_dir, data_files, ..SourceSpec::new(&path, &split) };
        let folder = rows(hub, &spec, &[&split])?;
        any = true;
        let entry = |(key, raw): &(String, Raw)| match key.as_str() {
            "path" => (key.clone(), Raw::Text(folder.clone())),
            _ => (key.clone(), raw.clone()),
        };
        Ok(Raw::Map(entries.iter().map(entry).collect()))
    };
    let items = items.iter().map(&mut one).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(any.then_some(Raw::List(items)))
}

/// The folder of a data set's files: of the splits that are named, as far as it has them.
fn rows(hub: &mut Option<Client>, spec: &SourceSpec, splits: &[&str]) -> anyhow::Result<String> {
    let repo = Repo::dataset(&spec.path)?;
    let card =
        Wanted::Files(&|tree| tree.get("README.md").map(|_| "README.md".to_owned()).into_iter().collect());
    let hub = open(hub);
    let snapshot = hub.fetch(&repo, None, &card)?;
    let text = std::fs::read(snapshot.path.join("README.md")).ok();
    let text = text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let Ok((tree, _)) = hub.tree(&repo, Some(&snapshot.commit)) else {
        // Another program filled the cache; what it fetched is all there is.
        say(snapshot.note.as_deref());
        return Ok(snapshot.path.display().to_string());
    };
    let names = tree.names().map(str::to_owned).collect();
    let listing = Listing::new(&spec.path, names, text.as_deref())?;
    let files = wanted(&listing, spec, splits)?;
    let snapshot = hub.fetch(&repo, Some(&snapshot.commit), &Wanted::Files(&|_| files.clone()))?;
    say(snapshot.note.as_deref());
    Ok(snapshot.path.display().to_string())
}

/// The files of these splits; of all that there are where none is named.
fn wanted(listing: &Listing, spec: &SourceSpec, splits: &[&str]) -> Result<Vec<String>, DataError> {
    if !spec.data_files.is_empty() {
        return listing.matching(&spec.data_files);
    }
    let found = listing.splits(spec.config.as_deref(), spec.data_dir.as_deref())?;
    let mut asked = Vec::new();
    for split in splits {
        asked.extend(SourceSpec::new(&spec.path, split).split_names()?);
    }
    let files: Vec<String> = (found.iter())
        .filter(|s| !s.named || asked.contains(&s.split))
        .flat_map(|s| s.files.clone())
        .collect();
    if !files.is_empty() {
        return Ok(files);
    }
    if let Some((file, format)) = listing.foreign().filter(|_| found.is_empty()) {
        let path = Path::new(&spec.path).join(file);
        return Err(DataError::Format { path, format });
    }
    let names: Vec<String> = found.iter().map(|s| format!("`{}`", s.split)).collect();
    Err(DataError::NoSplit {
        dataset: spec.path.clone(),
        split: asked.join("`, `"),
        splits: if names.is_empty() { "none".to_owned() } else { names.join(", ") },
    })
}

fn fetch(
    hub: &mut Option<Client>,
    repo: &Repo,
    revision: Option<&str>,
    wanted: &Wanted<'_>,
) -> anyhow::Result<String> {
    let snapshot = open(hub).fetch(repo, revision, wanted)?;
    say(snapshot.note.as_deref());
    Ok(snapshot.path.display().to_string())
}

fn say(note: Option<&str>) {
    if let Some(note) = note {
        eprintln!("note: {note}");
    }
}

/// The hub that the environment names.
fn open(hub: &mut Option<Client>) -> &mut Client {
    hub.get_or_insert_with(|| {
        let settings = Settings::from_variables(|name| std::env::var(name).ok());
        let mut bar = TransferBar::new(std::io::stderr().is_terminal());
        let tell = move |progress: Progress<'_>| {
            bar.tell(progress.repo, progress.file, progress.bytes, progress.total);
        };
        Hub::new(settings, Box::new(tell))
    })
}
