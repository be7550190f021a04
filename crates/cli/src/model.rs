//! A model that is used on ranks, and where what they say goes.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::Path;
use std::process::ExitCode;

use burn::tensor::Device;
use burnish_config::groups::{InferenceRankOptions, ModelOptions, QuantizationOptions};
use burnish_report::{beside_bars, harmless};
use burnish_trainers::{Inference, InferenceRank, Ranks, TrainError};

/// A model, and the ranks that use it.
pub(crate) struct Loaded {
    pub(crate) inference: Inference,
    pub(crate) device: Device,
    ranks: Ranks,
}

impl Loaded {
    pub(crate) fn open(
        model: &ModelOptions,
        quantization: &QuantizationOptions,
        ranks: &InferenceRankOptions,
    ) -> anyhow::Result<Self> {
        crate::use_threads(model.threads, None)?;
        let (tp_size, whole_experts) = (ranks.tp_size, ranks.enable_expert_parallel);
        let (ranks, device, _) = crate::device::with_ranks(model.device.kind(), &ranks.ranks())?;
        let inference = Inference::open(model, quantization.quantization(), tp_size, &device)?
            .with_whole_experts(whole_experts);
        if ranks.lead() {
            inference.folder().notes().iter().for_each(crate::voice::note);
            inference
                .folder()
                .note_without_experts()
                .filter(|_| whole_experts)
                .iter()
                .for_each(crate::voice::note);
        }
        Ok(Self { inference, device, ranks })
    }

    /// Runs `program` on every rank, then `end`, in the lead's process, with the lead's result.
    pub(crate) fn run<T: Send>(
        &self,
        program: impl Fn(&InferenceRank) -> Result<T, TrainError> + Sync,
        end: impl FnOnce(T) -> anyhow::Result<()>,
    ) -> anyhow::Result<ExitCode> {
        match self.inference.run(&self.ranks, program) {
            Ok(result) if self.ranks.lead() => end(result).map(|()| ExitCode::SUCCESS),
            Ok(_) => Ok(ExitCode::SUCCESS),
            Err(error) => {
                // Said while the other ranks can still be reached: a launcher ends all of them when one ends.
                if self.ranks.lead() || !error.came_from_another_rank() {
                    return Ok(crate::voice::failed(&error.into()));
                }
                Ok(ExitCode::from(1))
            }
        }
    }
}

/// A file, or standard output; nothing on ranks that do not lead.
pub(crate) struct Lines {
    to: String,
    out: Option<Box<dyn Write>>,
}

impl Lines {
    pub(crate) fn new(file: Option<&Path>, rank: &InferenceRank) -> Result<Self, TrainError> {
        let to = file.map_or_else(|| "standard output".to_owned(), |path| path.display().to_string());
        let mut lines = Self { to, out: None };
        if rank.leads() {
            lines.out = Some(match file {
                Some(path) => Box::new(BufWriter::new(File::create(path).map_err(lines.fault())?)),
                None => Box::new(std::io::stdout().lock()),
            });
        }
        Ok(lines)
    }

    /// Writes `text`, so that it can be read at once.
    pub(crate) fn write(&mut self, text: &[u8]) -> Result<(), TrainError> {
        let Some(out) = &mut self.out else { return Ok(()) };
        let written = beside_bars(|| out.write_all(text).and_then(|()| out.flush()));
        written.map_err(self.fault())
    }

    /// As [`Self::write`], of a text as it comes: a terminal gets it without escape codes.
    pub(crate) fn say(&mut self, text: &str) -> Result<(), TrainError> {
        let shown = if std::io::stdout().is_terminal() { harmless(text) } else { text.into() };
        self.write(shown.as_bytes())
    }

    fn fault(&self) -> impl FnOnce(std::io::Error) -> TrainError {
        let to = self.to.clone();
        |source| TrainError::Lines { to, source }
    }
}
