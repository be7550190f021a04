//! Runs that are looked at: as they go on, and beside each other.

pub(crate) mod compare;
mod seeds;
mod text;
pub(crate) mod watch;

use std::path::Path;

use burnish_report::RunFolder;

use crate::refusal::require;

/// The words with the folders that stand before any option as one.
fn with_folders(words: &[String]) -> Vec<String> {
    let folders = words.iter().take_while(|word| !word.starts_with('-')).count();
    let name = (folders > 0).then(|| "--output_dirs".to_owned());
    name.into_iter().chain(words.iter().cloned()).collect()
}

/// Runs whose folders may have nothing to show yet.
fn read(folders: &[String]) -> anyhow::Result<Vec<RunFolder>> {
    let read = |folder: &String| {
        let path = Path::new(folder);
        require!(path.is_dir(), NotFound, "output_dirs: there is no folder {folder}");
        if !path.join("metrics.jsonl").exists() {
            return Ok(RunFolder { name: folder.clone(), ..RunFolder::default() });
        }
        Ok(RunFolder::read(path)?)
    };
    folders.iter().map(read).collect()
}
