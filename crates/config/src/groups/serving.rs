//! A server's address, its models and its bounds.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::checks::{AT_LEAST_1, Checks};
use crate::table::options;

options! {
    /// Where a server listens, which models it has, and how much it takes; names are vLLM's.
    ServingOptions, "Server";
    /// The address to listen on; one that other machines reach needs an api_key.
    Burnish host: String = "127.0.0.1".into();
    /// The port to listen on; 0 takes a free one and says which.
    Burnish port: usize = 8000;
    /// What clients call the model; by default its folder's name.
    Burnish served_model_name: Option<String> = None;
    /// More adapters over the model, each as `name=folder`; clients choose one by its name. That of adapter_name_or_path is
    /// called by its folder's name.
    Burnish lora_modules: Vec<String> = Vec::new();
    /// Let clients load and forget adapters (`/v1/load_lora_adapter`): they may then have any folder of this machine read.
    Burnish allow_runtime_lora_updating: bool = false;
    /// Clients have to send this as their bearer token; the environment's BURNISH_API_KEY is not seen by other users.
    Burnish api_key: Option<String> = None;
    /// Sequences of one model, with the adapters that share its batch, that run at once.
    Burnish max_num_seqs: usize = 16;
    /// Sequences that are held, running or waiting; more are refused with status 503.
    Burnish max_queue: usize = 256;
    /// On a GPU, launch every step as it is; otherwise one is recorded and run again for each token (CUDA graphs), where
    /// the model allows.
    Burnish enforce_eager: bool = false;
    /// Tokens of a prompt with its completion; by default the model's positions.
    Burnish max_model_len: Option<usize> = None;
    /// Seconds that answers in progress have when the server is told to stop.
    Burnish shutdown_timeout: f64 = 30.0;
    /// A .jinja file, or a folder with a tokenizer, whose chat template to use.
    Trl chat_template_path: Option<PathBuf> = None;
    /// The end-of-sequence token; by default those of generation_config.json.
    Trl eos_token: Option<String> = None;
    /// Seed of requests that have none.
    Transformers seed: u64 = 42;
}

/// The adapters that `lora_modules` names, with their folders.
#[must_use]
pub fn named_adapters(lora_modules: &[String]) -> Vec<(String, PathBuf)> {
    let named =
        |entry: &String| entry.split_once('=').map(|(name, path)| (name.to_owned(), PathBuf::from(path)));
    lora_modules.iter().filter_map(named).collect()
}

pub(super) fn check_adapters(lora_modules: &[String], checks: &mut Checks<'_>) {
    let whole = |entry: &String| {
        entry.split_once('=').is_some_and(|(name, path)| !name.is_empty() && !path.is_empty())
    };
    checks.range("lora_modules", lora_modules.iter().all(whole), "a list of name=folder");
    let mut names = BTreeSet::new();
    let differ = named_adapters(lora_modules).into_iter().all(|(name, _)| names.insert(name));
    checks.range("lora_modules", differ, "a list of name=folder whose names differ");
    for (_, folder) in named_adapters(lora_modules) {
        checks.folder("lora_modules", &folder, "");
    }
}

impl ServingOptions {
    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        checks.range("port", self.port <= 65535, "a whole number from 0 to 65535");
        checks.range(
            "max_num_seqs",
            (1..=4096).contains(&self.max_num_seqs),
            "a whole number from 1 to 4096",
        );
        checks.range(
            "max_queue",
            (1..=1_000_000).contains(&self.max_queue),
            "a whole number from 1 to 1000000",
        );
        checks.range("max_model_len", self.max_model_len != Some(0), AT_LEAST_1);
        let seconds = (0.0..=86_400.0).contains(&self.shutdown_timeout);
        checks.range("shutdown_timeout", seconds, "a number of seconds from 0 to 86400");
        check_adapters(&self.lora_modules, checks);
        checks.range("api_key", self.api_key.as_deref() != Some(""), "null or a word");
    }
}
