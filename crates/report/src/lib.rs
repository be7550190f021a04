//! Reports of a run: metrics, TensorBoard events, a chart, a model card, progress.
//!
//! * [`Record`] and [`MetricsLog`]: `metrics.jsonl`, one line per logging step; the source of everything else.
//! * [`EventFile`]: the same numbers for TensorBoard; [`MlflowRun`] for MLflow.
//! * [`Chart`]: `loss.svg`, readable without any program.
//! * [`RunFolder`] and [`runs_page`]: what runs have left so far, as a page for a browser.
//! * [`ModelCard`]: the `README.md` of an output folder.
//! * [`Progress`]: a bar on a terminal, plain lines elsewhere; [`TransferBar`] the same of downloads.
//! * [`PeakMemory`], and the way numbers are written for people: [`bytes`], [`count`], [`duration`].
//!
//! ```
//! use burnish_report::{MetricsLog, Record};
//!
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("metrics.jsonl");
//! let mut log = MetricsLog::create(&path).unwrap();
//! log.append(&Record::new(10, 0.5).with("loss", 2.25).with("num_tokens", 4096u64)).unwrap();
//!
//! let text = std::fs::read_to_string(&path).unwrap();
//! assert_eq!(text, "{\"step\":10,\"epoch\":0.5,\"loss\":2.25,\"num_tokens\":4096}\n");
//! assert_eq!(MetricsLog::read(&path).unwrap()[0].get("loss"), Some(2.25));
//! ```

#![forbid(unsafe_code)]

mod chart;
mod crc;
mod error;
mod event_file;
mod memory;
mod metrics_log;
mod mlflow_run;
mod model_card;
mod page;
mod progress;
mod protobuf;
mod record;
mod replace;
mod run_folder;
mod runs_page;
mod transfer_bar;
mod wandb_run;
mod wording;
mod work_bars;

pub use chart::Chart;
pub use error::ReportError;
pub use event_file::EventFile;
pub use memory::PeakMemory;
pub use metrics_log::MetricsLog;
pub use mlflow_run::MlflowRun;
pub use model_card::{ModelCard, Produced, Sample};
pub use page::page;
pub use progress::Progress;
pub use record::{Figure, Record};
pub use replace::replace;
pub use run_folder::{RunFolder, different_options, figure_names, with_evaluation};
pub use runs_page::runs_page;
pub use transfer_bar::TransferBar;
pub use wandb_run::{WandbLabels, WandbRun};
pub use wording::{bytes, count, duration, escaped, figure, harmless};
pub use work_bars::{beside_bars, show_work};
