//! `Reporter`: metrics, events and progress of a run.

use burnish_report::{EventFile, MetricsLog, Progress, Record};

use crate::TrainError;
use crate::setup::Setup;

/// The files and the terminal of the rank that speaks for all.
pub(crate) struct Reporter {
    metrics: MetricsLog,
    events: Option<EventFile>,
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
        Ok(Self { metrics, events, progress: Progress::new(total, before, logging.disable_tqdm) })
    }

    pub(crate) fn step(&mut self, step: u64, loss: f64, rate: f64, peak_memory: Option<u64>) {
        self.progress.step(step, loss, rate, peak_memory);
    }

    pub(crate) fn say(&mut self, record: &Record) -> Result<(), TrainError> {
        self.metrics.append(record)?;
        if let Some(events) = &mut self.events {
            events.append(record)?;
        }
        self.progress.log(record);
        Ok(())
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.progress.note(text);
    }

    pub(crate) fn finish(&mut self) {
        self.progress.finish();
    }
}
