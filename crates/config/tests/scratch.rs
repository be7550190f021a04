//! A folder with a model, data and a config file, for checks that look at paths.

use burnish_config::{Command, ConfigError, Resolved, SftOptions};
use tempfile::TempDir;

pub(crate) struct Scratch {
    dir: TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("model")).unwrap();
        std::fs::create_dir(dir.path().join("adapter")).unwrap();
        std::fs::write(dir.path().join("rows.jsonl"), "{}\n").unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Reads `sft` options: a model and rows that exist, then the given words.
    pub(crate) fn sft(&self, words: &[&str]) -> Result<Resolved<SftOptions>, ConfigError> {
        let mut all = vec!["--model_name_or_path".to_owned(), self.path("model")];
        all.extend(["--dataset_name".to_owned(), self.path("rows.jsonl")]);
        all.extend(words.iter().map(|word| (*word).to_owned()));
        Ok(SftOptions::parse(all)?.run().unwrap())
    }

    /// Reads `sft` options with a YAML file of this text.
    pub(crate) fn yaml(&self, text: &str, words: &[&str]) -> Result<Resolved<SftOptions>, ConfigError> {
        let path = self.write("config.yaml", text);
        let mut all = vec!["--config", path.as_str()];
        all.extend(words);
        self.sft(&all)
    }
}

/// The message for options that must not be accepted.
#[track_caller]
pub(crate) fn message(result: Result<Resolved<SftOptions>, ConfigError>) -> String {
    match result {
        Ok(_) => panic!("these options were accepted"),
        Err(error) => error.to_string(),
    }
}
