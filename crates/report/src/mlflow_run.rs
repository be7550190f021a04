//! `MlflowRun`: a run in MLflow's store of files.
//!
//! A store is a folder of experiments, an experiment a folder of runs; a run has its parameters and its metrics in a file
//! each, and `meta.yaml` with its state.
//!
//! # Source
//! MLflow's `FileStore`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use burnish_core::file;
use serde_json::{Map, Value};

use crate::error::{ReportError, at};
use crate::record::Record;
use crate::replace::replace;

/// The longest parameter that MLflow takes.
const LONGEST: usize = 6000;
/// Experiments that are looked at for one of the name.
const EXPERIMENTS: usize = 10_000;

/// A run as MLflow counts its states.
#[derive(Clone, Copy)]
enum Status {
    Running = 1,
    Finished = 3,
    Failed = 4,
}

/// A run that goes on. Dropped before [`Self::finish`], it has failed.
#[derive(Debug)]
pub struct MlflowRun {
    folder: PathBuf,
    experiment: String,
    id: String,
    name: String,
    start: u128,
    ended: bool,
}

impl MlflowRun {
    /// Begins a run called `name` in the experiment `experiment` of the store, both made where they are not there;
    /// `parameters` are its options.
    ///
    /// # Errors
    /// [`ReportError::File`] when a file or folder cannot be made or read.
    pub fn start(
        store: &Path,
        experiment: &str,
        name: &str,
        parameters: &Map<String, Value>,
    ) -> Result<Self, ReportError> {
        let experiment_folder = experiment_of(store, experiment)?;
        let id = format!("{:032x}", random(store)?);
        let folder = experiment_folder.join(&id);
        for part in ["artifacts", "metrics", "params", "tags"] {
            made(&folder.join(part))?;
        }
        let experiment = experiment_folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let run = Self { folder, experiment, id, name: name.to_owned(), start: now(), ended: false };
        run.state(Status::Running)?;
        let tags =
            [("mlflow.runName", name), ("mlflow.source.name", "burnish"), ("mlflow.source.type", "LOCAL")];
        for (tag, value) in tags {
            replace(&run.folder.join("tags").join(tag), value.as_bytes())?;
        }
        for (parameter, value) in parameters {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if value.len() <= LONGEST {
                let path = run.folder.join("params").join(key(parameter));
                path.parent().map_or(Ok(()), made)?;
                replace(&path, value.as_bytes())?;
            }
        }
        Ok(run)
    }

    /// Adds a record's figures by their own names, as Transformers gives them to MLflow.
    ///
    /// # Errors
    /// [`ReportError::File`] when it cannot be written.
    pub fn append(&mut self, record: &Record) -> Result<(), ReportError> {
        let time = now();
        for (name, value) in record.values() {
            let path = self.folder.join("metrics").join(key(name));
            path.parent().map_or(Ok(()), made)?;
            let file = OpenOptions::new().append(true).create(true).open(&path);
            let line = format!("{time} {value} {}\n", record.step);
            file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(at("write", &path))?;
        }
        Ok(())
    }

    /// Says that the run has ended as it should.
    ///
    /// # Errors
    /// [`ReportError::File`] when it cannot be written.
    pub fn finish(&mut self) -> Result<(), ReportError> {
        self.ended = true;
        self.state(Status::Finished)
    }

    /// The run's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn state(&self, status: Status) -> Result<(), ReportError> {
        let end = if matches!(status, Status::Running) { "null".to_owned() } else { now().to_string() };
        let (id, experiment, start) = (text(&self.id), text(&self.experiment), self.start);
        let user = text(&std::env::var("USER").unwrap_or_default());
        let meta = format!(
            "artifact_uri: {}\nend_time: {end}\nentry_point_name: ''\nexperiment_id: {experiment}\nlifecycle_stage: active\n\
             run_id: {id}\nrun_name: {}\nrun_uuid: {id}\nsource_name: ''\nsource_type: 4\nsource_version: ''\n\
             start_time: {start}\nstatus: {}\ntags: []\nuser_id: {user}\n",
            uri(&self.folder.join("artifacts")),
            text(&self.name),
            status as u8,
        );
        replace(&self.folder.join("meta.yaml"), meta.as_bytes())
    }
}

impl Drop for MlflowRun {
    fn drop(&mut self) {
        if !self.ended {
            // Nobody is left to be told.
            let _ = self.state(Status::Failed);
        }
    }
}

/// The folder of the experiment of this name, made where there is none.
fn experiment_of(store: &Path, name: &str) -> Result<PathBuf, ReportError> {
    made(store)?;
    let store = &fs::canonicalize(store).map_err(at("read", store))?;
    for entry in fs::read_dir(store).map_err(at("read", store))?.flatten().take(EXPERIMENTS) {
        let Ok(meta) = file::read_to_string(entry.path().join("meta.yaml")) else { continue };
        let value = |key: &str| meta.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        let called =
            value("name").is_some_and(|said| said.trim_matches(['\'', '"']) == name || said == text(name));
        if called && value("lifecycle_stage") == Some("active") {
            return Ok(entry.path());
        }
    }
    let id = if name == "Default" && !store.join("0").exists() {
        "0".to_owned()
    } else {
        // Eighteen digits, as MLflow's own.
        (100_000_000_000_000_000 + random(store)? % 900_000_000_000_000_000).to_string()
    };
    let (folder, time) = (store.join(&id), now());
    made(&folder)?;
    let meta = format!(
        "artifact_location: {}\ncreation_time: {time}\nexperiment_id: {}\nlast_update_time: {time}\nlifecycle_stage: active\nname: {}\n",
        uri(&folder),
        text(&id),
        text(name)
    );
    replace(&folder.join("meta.yaml"), meta.as_bytes())?;
    Ok(folder)
}

fn made(folder: &Path) -> Result<(), ReportError> {
    fs::create_dir_all(folder).map_err(at("create", folder))
}

/// A name as MLflow takes one, which never leads out of its folder.
fn key(name: &str) -> PathBuf {
    let kept =
        |c: char| if c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ' | ':') { c } else { '_' };
    let part = |part: &str| match part {
        "" | "." | ".." => "_".to_owned(),
        part => part.chars().map(kept).take(200).collect(),
    };
    name.split('/').map(part).collect()
}

/// A text as YAML has one: JSON's are YAML's.
fn text(text: &str) -> String {
    Value::from(text).to_string()
}

fn uri(path: &Path) -> String {
    text(&format!("file://{}", path.display()))
}

fn random(place: &Path) -> Result<u128, ReportError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| at("create", place)(std::io::Error::other(error.to_string())))?;
    Ok(u128::from_ne_bytes(bytes))
}

/// Milliseconds since 1970.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn runs_of_one_experiment_lie_together_and_say_how_they_ended() {
        let root = tempfile::tempdir().unwrap();
        let store = root.path().join("mlruns");
        let parameters =
            serde_json::from_str(r#"{"learning_rate": 0.1, "optim": "adamw", "../out": 1}"#).unwrap();
        let mut run = MlflowRun::start(&store, "it's \"mine\"", "first", &parameters).unwrap();
        for (step, loss) in [(10, 2.5), (20, f64::NAN)] {
            let record = Record::new(step, 0.5).with("loss", loss).with("rewards/../../x", 1.0);
            run.append(&record).unwrap();
        }
        let folder = run.folder().to_owned();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!((read("params/learning_rate").as_str(), read("params/optim").as_str()), ("0.1", "adamw"));
        assert_eq!(read("params/_/out"), "1");
        let lines: Vec<String> =
            read("metrics/loss").lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect();
        assert_eq!(lines, ["2.5 10", "NaN 20"]);
        assert!(folder.join("metrics/rewards/_/_/x").is_file());
        assert!(read("meta.yaml").contains("status: 1\n") && read("meta.yaml").contains("end_time: null\n"));
        run.finish().unwrap();
        drop(run);
        assert!(read("meta.yaml").contains("status: 3\n"));
        let again = MlflowRun::start(&store, "it's \"mine\"", "second", &Map::new()).unwrap();
        let second = again.folder().to_owned();
        assert_eq!(second.parent(), folder.parent());
        drop(again);
        assert!(fs::read_to_string(second.join("meta.yaml")).unwrap().contains("status: 4\n"));
        let default = MlflowRun::start(&store, "Default", "third", &Map::new()).unwrap();
        assert!(default.folder().starts_with(fs::canonicalize(&store).unwrap().join("0")));
    }
}
