//! Names of the hub among a command's options, replaced by folders of its cache; and a finished run brought there.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use anyhow::Context;
use burnish_config::groups::TrainingOptions;
use burnish_config::table::Raw;
use burnish_config::values::{HubStrategy, SaveInterval};
use burnish_config::{Command, Resolved};
use burnish_data::{DataError, Listing, RowCache, SourceSpec};
use burnish_hub::{Hub, Progress, Repo, Settings, Wanted, could_be_name, datasets_cache};
use burnish_report::TransferBar;

use crate::refusal::refuse;

/// Options that may name a model, an adapter or a tokenizer.
const MODELS: &[(&str, Wanted<'_>)] = &[
    ("model_name_or_path", Wanted::Model),
    ("adapter_name_or_path", Wanted::Adapter),
    ("ref_model_name_or_path", Wanted::Model),
    ("ref_adapter_name_or_path", Wanted::Adapter),
    ("reference_model_name_or_path", Wanted::Model),
    ("reference_adapter_name_or_path", Wanted::Adapter),
    (REWARD_MODEL, Wanted::Model),
    (REWARD_BASE, Wanted::Model),
    ("chat_template_path", Wanted::Tokenizer),
    ("tokenizer_name_or_path", Wanted::Tokenizer),
];
const REWARD_MODEL: &str = "reward_model_name_or_path";
const REWARD_BASE: &str = "reward_base_model_name_or_path";
/// Options that may name a data set, and who says which split of it is read.
const DATASETS: &[(&str, &[&str])] = &[
    ("dataset_name", &["dataset_train_split", "dataset_test_split"]),
    ("eval_dataset_name", &["dataset_test_split"]),
];
/// Lists of data sets.
const MIXTURES: &[&str] = &["datasets", "eval_datasets"];
/// Endings of files, which a hub's name may have but is not taken to.
const ENDINGS: [&str; 13] = [
    "json",
    "jsonl",
    "ndjson",
    "csv",
    "tsv",
    "txt",
    "parquet",
    "arrow",
    "gz",
    "zst",
    "xz",
    "jinja",
    "safetensors",
];

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
                let repo = Repo::model(text)?;
                // What scores may be an adapter.
                let adapter = *name == REWARD_MODEL
                    && open(&mut hub).tree(&repo, revision).is_ok_and(|(tree, _)| {
                        tree.get("adapter_config.json").is_some() && tree.get("config.json").is_none()
                    });
                fetch(&mut hub, &repo, revision, if adapter { &Wanted::Adapter } else { wanted })
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
    let bases = scorers_bases(&mut hub, &values, &replaced).context("reward_model_name_or_path")?;
    replaced.extend(bases.map(|base| (REWARD_BASE, Raw::Text(base))));
    for (name, raw) in replaced {
        if let Some(Err(fault)) = resolved.options.set(name, &raw) {
            refuse!(BadValue, "{name}: {raw} is not {}", fault.expected);
        }
    }
    Ok(())
}

/// The folder of the base that adapters which score name on the hub, unless an option names it.
fn scorers_bases(
    hub: &mut Option<Client>,
    values: &[(&'static str, Raw)],
    replaced: &[(&'static str, Raw)],
) -> anyhow::Result<Option<String>> {
    let said = replaced.iter().chain(values).find(|(name, _)| *name == REWARD_MODEL);
    if value(values, REWARD_BASE).is_some() {
        return Ok(None);
    }
    let folders = match said {
        Some((_, Raw::List(folders))) => folders.iter().map(Raw::plain).collect(),
        Some((_, Raw::Text(folder))) => vec![folder.clone()],
        _ => Vec::new(),
    };
    let mut bases: Vec<String> = Vec::new();
    for folder in folders {
        let Ok(text) = std::fs::read(Path::new(&folder).join("adapter_config.json")) else { continue };
        // What is wrong with the file is said where it is read.
        let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let base = config["base_model_name_or_path"].as_str().unwrap_or_default().to_owned();
        if is_name(&base) && !bases.contains(&base) {
            bases.push(base);
        }
    }
    match bases.as_slice() {
        [] => Ok(None),
        [base] => fetch(hub, &Repo::model(base)?, None, &Wanted::Model).map(Some),
        several => refuse!(
            Conflict,
            "adapters over {}: merge them into their bases, or give folders whose bases are folders",
            several.join(" and ")
        ),
    }
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
        crate::voice::note(note);
    }
}

/// The hub that the environment names.
fn open(hub: &mut Option<Client>) -> &mut Client {
    hub.get_or_insert_with(|| client(settings(), TransferBar::new(std::io::stderr().is_terminal())))
}

fn settings() -> Settings {
    Settings::from_variables(|name| std::env::var(name).ok())
}

/// Where rows are kept as tokens: in a folder of the data sets' cache.
pub(crate) fn row_cache() -> RowCache {
    RowCache::new(datasets_cache(|name| std::env::var(name).ok()).join("burnish"))
}

fn client(settings: Settings, mut bar: TransferBar) -> Client {
    let tell = move |progress: Progress<'_>| {
        bar.tell(progress.repo, progress.file, progress.bytes, progress.total);
    };
    Hub::new(settings, Box::new(tell))
}

/// Where a finished run goes.
pub(crate) struct Push {
    hub: Client,
    /// As it is asked for.
    name: String,
    private: Option<bool>,
    branch: Option<String>,
    /// Not there yet where the hub was out of reach.
    repo: Option<Repo>,
}

impl Push {
    /// The repository of a run that is to be uploaded, made before the run begins, so that a token that may not is known
    /// then. Without a token and offline nothing is uploaded, which is said.
    pub(crate) fn prepare(training: &TrainingOptions) -> anyhow::Result<Option<Self>> {
        if !training.push_to_hub {
            return Ok(None);
        }
        let settings = settings();
        let why = match (&settings.token, settings.offline) {
            (_, true) => Some("HF_HUB_OFFLINE is set"),
            (None, _) => Some("there is no token (HF_TOKEN, or `hf auth login`)"),
            _ => None,
        };
        if let Some(why) = why {
            crate::voice::note(format_args!(
                "push_to_hub: {why}; nothing is uploaded, `hf upload` can do it later"
            ));
            return Ok(None);
        }
        let hub = client(settings, TransferBar::new(std::io::stderr().is_terminal()).sending());
        let folder = std::path::absolute(&training.output_dir)?;
        let named = training.hub_model_id.clone();
        let name = named.or_else(|| Some(folder.file_name()?.to_str()?.to_owned())).unwrap_or_default();
        let (private, branch) = (training.hub_private_repo, training.hub_revision.clone());
        let repo = match hub.create(&name, private) {
            Ok(repo) => Some(repo),
            Err(error) if error.is_unreachable() => {
                crate::voice::note(format_args!(
                    "push_to_hub: {error}; it is tried again when the run is done"
                ));
                None
            }
            Err(error) => return Err(anyhow::Error::new(error).context(format!("push_to_hub: {name:?}"))),
        };
        Ok(Some(Self { hub, name, private, branch, repo }))
    }

    /// Uploads a folder; what to say of it.
    pub(crate) fn finish(self, folder: &Path) -> anyhow::Result<String> {
        let failed = || {
            let (name, folder) = (&self.name, folder.display());
            format!(
                "the run is done and whole in {folder}, but not uploaded; to do that: hf upload {name} {folder}"
            )
        };
        let upload = || -> anyhow::Result<String> {
            let repo = match &self.repo {
                Some(repo) => repo.clone(),
                None => self.hub.create(&self.name, self.private)?,
            };
            let mut names = Vec::new();
            files_of(folder, "", &mut names)?;
            names.sort();
            let uploaded =
                self.hub.upload(&repo, self.branch.as_deref(), folder, &names, "End of training")?;
            Ok(format!("uploaded to {} ({})", uploaded.page, uploaded.commit))
        };
        upload().with_context(failed)
    }
}

/// Checkpoints of a run that are brought to the hub while it goes on, by a thread: a push never ends or holds up a run.
pub(crate) struct CheckpointPush {
    checkpoints: Sender<PathBuf>,
    pushing: JoinHandle<()>,
    /// Whether one is under way or waits.
    busy: Arc<AtomicBool>,
    always: bool,
}

impl CheckpointPush {
    /// Where `hub_strategy` asks for it.
    pub(crate) fn start(push: &Push, training: &TrainingOptions) -> Option<Self> {
        let (strategy, always) = (training.hub_strategy, training.hub_always_push);
        if strategy == HubStrategy::End {
            return None;
        }
        let (checkpoints, told) = channel::<PathBuf>();
        let busy = Arc::new(AtomicBool::new(false));
        let (name, private, branch) = (push.name.clone(), push.private, push.branch.clone());
        let by_epoch = training.save_strategy == SaveInterval::Epoch;
        let (mut repo, done) = (push.repo.clone(), busy.clone());
        let pushing = std::thread::spawn(move || {
            let hub = Hub::new(settings(), |_: Progress<'_>| {});
            for folder in told {
                let result = match repo.clone().map_or_else(|| hub.create(&name, private), Ok) {
                    Ok(made) => {
                        repo = Some(made.clone());
                        bring(&hub, &made, branch.as_deref(), &folder, strategy, by_epoch)
                    }
                    Err(error) => Err(error.into()),
                };
                if let Err(error) = result {
                    crate::voice::note(format_args!(
                        "push_to_hub: {} is not uploaded: {error:#}",
                        folder.display()
                    ));
                }
                done.store(false, Ordering::Release);
            }
        });
        Some(Self { checkpoints, pushing, busy, always })
    }

    /// What hears of checkpoints: one that comes while another is brought is left out, unless `hub_always_push` is set.
    pub(crate) fn hears(&self) -> impl FnMut(&Path) + Send + 'static + use<> {
        let (checkpoints, busy, always) = (self.checkpoints.clone(), self.busy.clone(), self.always);
        move |path| {
            if !busy.swap(true, Ordering::AcqRel) || always {
                // A thread that is gone has said why.
                let _ = checkpoints.send(path.to_owned());
            }
        }
    }

    /// Waits for what is under way. Those who hear are gone by now.
    pub(crate) fn finish(self) {
        drop(self.checkpoints);
        let _ = self.pushing.join();
    }
}

/// Brings a checkpoint: its model to where the result will be, and the whole of it into a folder of its own where that is
/// asked for.
fn bring<F: FnMut(Progress<'_>)>(
    hub: &Hub<F>,
    repo: &Repo,
    branch: Option<&str>,
    folder: &Path,
    strategy: HubStrategy,
    by_epoch: bool,
) -> anyhow::Result<()> {
    let state: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("trainer_state.json"))?)?;
    let message = match (by_epoch, state["epoch"].as_f64()) {
        (true, Some(epoch)) => format!("Training in progress, epoch {}", epoch.trunc()),
        _ => format!("Training in progress, step {}", state["global_step"]),
    };
    let mut all = Vec::new();
    files_of(folder, "", &mut all)?;
    all.sort();
    let of_model = |name: &&String| {
        !name.starts_with("state/")
            && !["trainer_state.json", "checkpoint_index.json"].contains(&name.as_str())
    };
    let model: Vec<String> = all.iter().filter(of_model).cloned().collect();
    hub.upload(repo, branch, folder, &model, &message)?;
    let into = match (strategy, folder.file_name().and_then(|name| name.to_str())) {
        (HubStrategy::Checkpoint, _) => "last-checkpoint/".to_owned(),
        (HubStrategy::AllCheckpoints, Some(name)) => format!("{name}/"),
        _ => return Ok(()),
    };
    hub.upload_into(repo, branch, &into, folder, &all, &format!("{message}, checkpoint"))?;
    Ok(())
}

/// What is the run's result in its folder: not its checkpoints, which are its own business, nor what begins with `_` or `.`.
fn files_of(folder: &Path, before: &str, into: &mut Vec<String>) -> anyhow::Result<()> {
    const OWN: [&str; 5] = ["reference", "rollout-adapter", "burnish.json", "completions.jsonl", "run.html"];
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let own = before.is_empty() && (name.starts_with("checkpoint-") || OWN.contains(&name.as_str()));
        if own || name.starts_with(['_', '.']) {
            continue;
        }
        let path = format!("{before}{name}");
        if entry.file_type()?.is_dir() {
            files_of(&entry.path(), &format!("{path}/"), into)?;
        } else {
            into.push(path);
        }
    }
    Ok(())
}
