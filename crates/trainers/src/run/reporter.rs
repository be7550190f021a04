//! `Reporter`: metrics, events and progress of a run.

use std::path::PathBuf;

use burnish_report::{EventFile, MetricsLog, MlflowRun, Progress, Record, WandbLabels, WandbRun};

use crate::TrainError;
use crate::setup::Setup;

/// The files and the terminal of the rank that speaks for all.
pub(crate) struct Reporter {
    metrics: MetricsLog,
    events: Option<EventFile>,
    mlflow: Option<MlflowRun>,
    wandb: Option<WandbRun>,
    progress: Progress,
}

impl Reporter {
    /// Opens the files for a run of `total` steps of which `before` are done.
    pub(crate) fn new(setup: &Setup, total: u64, before: u64) -> Result<Self, TrainError> {
        let dir = setup.output_dir();
        let path = dir.join("metrics.jsonl");
        let metrics =
            if before > 0 { MetricsLog::resume(&path, before)? } else { MetricsLog::create(&path)? };
        let logging = &setup.options.logging;
        let events = if logging.report_to.tensorboard {
            let folder = logging.logging_dir.clone().unwrap_or_else(|| dir.join("runs"));
            Some(EventFile::create(&folder, before)?)
        } else {
            None
        };
        let mut progress = Progress::new(total, before, logging.disable_tqdm);
        let name = logging.run_name.clone();
        let name = name.or_else(|| Some(dir.file_name()?.to_string_lossy().into_owned())).unwrap_or_default();
        let wandb = if logging.report_to.wandb && !is_wandb_off() {
            let place = std::env::var("WANDB_DIR").ok().filter(|place| !place.is_empty());
            let place = PathBuf::from(place.unwrap_or_else(|| ".".to_owned()));
            Some(WandbRun::start(&place, &wandb_labels(&name), &setup.parameters())?)
        } else {
            None
        };
        let mlflow = if logging.report_to.mlflow {
            let store = mlflow_store(std::env::var("MLFLOW_TRACKING_URI").ok(), &mut progress);
            let experiment = std::env::var("MLFLOW_EXPERIMENT_NAME").unwrap_or_else(|_| "Default".to_owned());
            Some(MlflowRun::start(&store, &experiment, &name, &setup.parameters())?)
        } else {
            None
        };
        Ok(Self { metrics, events, mlflow, wandb, progress })
    }

    pub(crate) fn step(&mut self, step: u64, loss: f64, rate: f64, peak_memory: Option<u64>) {
        self.progress.step(step, loss, rate, peak_memory);
    }

    pub(crate) fn say(&mut self, record: &Record) -> Result<(), TrainError> {
        self.metrics.append(record)?;
        if let Some(events) = &mut self.events {
            events.append(record)?;
        }
        if let Some(run) = &mut self.mlflow {
            run.append(record)?;
        }
        if let Some(run) = &mut self.wandb {
            run.append(record)?;
        }
        self.progress.log(record);
        Ok(())
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.progress.note(text);
    }

    pub(crate) fn finish(&mut self) {
        self.progress.finish();
        if let Some(Err(error)) = self.mlflow.as_mut().map(MlflowRun::finish) {
            // The model is trained and saved: only this file is not.
            self.progress.note(&error.to_string());
        }
        if let Some(run) = &mut self.wandb {
            let said = match run.finish() {
                Ok(()) => format!("`wandb sync {}` uploads the run", run.folder().display()),
                Err(error) => error.to_string(),
            };
            self.progress.note(&said);
        }
    }
}

/// Whether the client of Weights & Biases would write nothing.
fn is_wandb_off() -> bool {
    let said = |name: &str| std::env::var(name).unwrap_or_default().to_lowercase();
    said("WANDB_MODE") == "disabled" || matches!(said("WANDB_DISABLED").as_str(), "true" | "1" | "yes" | "on")
}

/// What the client's variables say of a run; Transformers' project where they name none.
fn wandb_labels(name: &str) -> WandbLabels {
    let said = |name: &str| std::env::var(name).unwrap_or_default();
    let or = |said: String, other: &str| if said.is_empty() { other.to_owned() } else { said };
    WandbLabels {
        project: or(said("WANDB_PROJECT"), "huggingface"),
        entity: said("WANDB_ENTITY"),
        name: or(said("WANDB_NAME"), name),
        group: said("WANDB_RUN_GROUP"),
        job_type: said("WANDB_JOB_TYPE"),
        notes: said("WANDB_NOTES"),
        tags: said("WANDB_TAGS").split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
    }
}

/// The folder that `MLFLOW_TRACKING_URI` names, or MLflow's own; servers and databases are not written to.
fn mlflow_store(uri: Option<String>, progress: &mut Progress) -> PathBuf {
    let uri = uri.filter(|uri| !uri.is_empty()).unwrap_or_else(|| "mlruns".to_owned());
    let path = uri.strip_prefix("file://").or_else(|| uri.strip_prefix("file:")).unwrap_or(&uri);
    if path.contains("://") {
        progress.note(&format!(
            "MLFLOW_TRACKING_URI is {uri}, and MLflow's files are written to mlruns instead: only a folder is written to"
        ));
        return "mlruns".into();
    }
    path.into()
}
