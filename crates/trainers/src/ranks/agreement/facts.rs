//! `Facts`: what a rank has that the others must have too.

use std::path::{Path, PathBuf};

use burnish_config::table::Raw;

use super::files::ComparedFile;
use super::{DIGEST, hex};
use crate::TrainError;

/// Files up to this many bytes are read at once; larger ones only where ranks have different ones.
const SMALL: u64 = 1 << 20;

/// Options whose values may differ from rank to rank: where rows lie, on what is computed, who is told.
const OWN: [&str; 18] = [
    "dataset_name",
    "eval_dataset_name",
    "output_dir",
    "logging_dir",
    "precompute_ref_dir",
    "row_cache",
    "device",
    "threads",
    "nproc",
    "transport",
    "ddp_secret_file",
    "ddp_encryption",
    "overwrite_output_dir",
    "report_to",
    "run_name",
    "push_to_hub",
    "hub_model_id",
    "disable_tqdm",
];
/// Options that name folders and files, whose content counts.
const FOLDERS: [&str; 7] = [
    "model_name_or_path",
    "tokenizer_name_or_path",
    "adapter_name_or_path",
    "ref_model_name_or_path",
    "reward_model_name_or_path",
    "reward_base_model_name_or_path",
    "chat_template_path",
];
/// Files of a model's folder that a run reads, beside its tokenizer's and its `.safetensors`.
const READ: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "adapter_config.json",
    "model.safetensors.index.json",
    "trainer_state.json",
];

/// What a rank has that the others must have too: names with texts, and large files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    texts: Vec<(String, String)>,
    files: Vec<ComparedFile>,
}

impl Facts {
    /// The same with a text.
    #[must_use]
    pub(crate) fn and(mut self, name: &str, text: &str) -> Self {
        self.texts.push((name.to_owned(), text.to_owned()));
        self
    }

    /// The same with a file's content.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn and_file(mut self, name: &str, path: &Path) -> Result<Self, TrainError> {
        let failed = |source| TrainError::Unreadable { path: path.display().to_string(), source };
        let found = std::fs::metadata(path).map_err(failed)?;
        let bytes = found.len();
        if bytes > SMALL {
            self.files.push(ComparedFile::new(name, path, &found));
            return Ok(self.and(name, &format!("{bytes} bytes")));
        }
        let content = std::fs::read(path).map_err(failed)?;
        let digest = hex(blake3::hash(&content).as_bytes());
        Ok(self.and(name, &format!("{bytes} bytes, blake3 {digest}")))
    }

    /// The same with the files of a model's folder that a run reads.
    ///
    /// # Errors
    /// If one cannot be read.
    pub(crate) fn and_folder(self, name: &str, folder: &Path) -> Result<Self, TrainError> {
        let failed = |source| TrainError::Unreadable { path: folder.display().to_string(), source };
        let mut files: Vec<(String, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Some(file) = path.file_name().and_then(|file| file.to_str()) else { continue };
            let read = READ.contains(&file)
                || burnish_core::file::TOKENIZER.contains(&file)
                || file.ends_with(".safetensors");
            if read && path.is_file() {
                files.push((format!("{name}, {file}"), path.clone()));
            }
        }
        let more = folder.join("additional_chat_templates");
        for entry in std::fs::read_dir(more).into_iter().flatten().flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            files.push((format!("{name}, additional_chat_templates/{file}"), entry.path()));
        }
        files.sort();
        files.into_iter().try_fold(self, |facts, (name, path)| facts.and_file(&name, &path))
    }

    /// The same with a command's options: their values, or the content that they name.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub(crate) fn and_options(mut self, options: &[(&'static str, Raw)]) -> Result<Self, TrainError> {
        for (name, value) in options {
            if FOLDERS.contains(name) {
                for path in paths(value) {
                    self = if path.is_dir() {
                        self.and_folder(name, &path)?
                    } else if path.is_file() {
                        self.and_file(name, &path)?
                    } else {
                        // A name that the command itself makes something of, or refuses.
                        self
                    };
                }
            } else if *name == "resume_from_checkpoint" {
                self = match value {
                    Raw::Text(path) => self.and_file(name, &Path::new(path).join("trainer_state.json"))?,
                    other => self.and(name, &other.plain()),
                };
            } else if !OWN.contains(name) {
                self = self.and(name, &without_paths(value).plain());
            }
        }
        Ok(self)
    }

    /// The texts as they travel.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for text in self.texts.iter().flat_map(|(name, value)| [name, value]) {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    }

    /// Texts that came from another rank: as many as are whole.
    pub(super) fn decoded(bytes: &[u8]) -> Vec<(String, String)> {
        let mut rest = bytes;
        let mut next = || {
            let (length, after) = rest.split_first_chunk::<8>()?;
            let (text, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            rest = after;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let mut texts = Vec::new();
        while let (Some(name), Some(value)) = (next(), next()) {
            texts.push((name, value));
        }
        texts
    }

    /// Where the large files lie, in their order.
    pub(super) fn places(&self) -> Vec<[u8; DIGEST]> {
        self.files.iter().map(ComparedFile::place).collect()
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &ComparedFile> {
        self.files.iter()
    }
}

fn paths(value: &Raw) -> Vec<PathBuf> {
    match value {
        Raw::Text(text) if !text.is_empty() => vec![text.into()],
        Raw::List(all) => all.iter().flat_map(paths).collect(),
        _ => Vec::new(),
    }
}

/// Data sets without where they lie: their files are compared.
fn without_paths(value: &Raw) -> Raw {
    match value {
        Raw::List(all) => Raw::List(all.iter().map(without_paths).collect()),
        Raw::Map(entries) => {
            let kept = entries.iter().filter(|(key, _)| !matches!(key.as_str(), "path" | "id" | "data_dir"));
            Raw::Map(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use burnish_config::table::COMMANDS;
    use burnish_config::{Command, SftOptions};

    use super::*;

    #[test]
    fn texts_survive_the_wire() {
        let facts = Facts::default().and("a", "").and("", "b\nc");
        assert_eq!(Facts::decoded(&facts.encoded()), facts.texts);
        let mut cut = facts.encoded();
        cut.pop();
        assert_eq!(Facts::decoded(&cut).len(), 1);
        assert!(Facts::decoded(&[0xff; 20]).is_empty());
    }

    /// A name that is misspelt here would be compared, or left out, without anybody noticing.
    #[test]
    fn every_name_is_an_option() {
        let known: Vec<&str> =
            COMMANDS.iter().flat_map(|command| (command.entries)()).map(|e| e.name).collect();
        for name in OWN.iter().chain(&FOLDERS) {
            assert!(known.contains(name), "{name}");
        }
        for name in ["learning_rate", "seed", "max_length", "packing", "adam_beta1", "zero_stage"] {
            assert!(known.contains(&name) && !OWN.contains(&name), "{name}");
        }
    }

    #[test]
    fn options_without_what_is_a_ranks_own() {
        let of = |change: fn(&mut SftOptions)| {
            let mut options = SftOptions::default();
            change(&mut options);
            Facts::default().and_options(&options.values()).unwrap().texts
        };
        let same = of(|_| ());
        assert!(same.iter().any(|(name, value)| name == "learning_rate" && value == "2e-5"), "{same:?}");
        assert_eq!(of(|o| o.model.threads = Some(2)), same);
        assert_eq!(of(|o| o.training.output_dir = "b".into()), same);
        assert_ne!(of(|o| o.training.learning_rate = 1e-4), same);
        assert_ne!(of(|o| o.training.seed = 7), same);
        assert_ne!(of(|o| o.lora.use_peft = true), same);
    }
}
