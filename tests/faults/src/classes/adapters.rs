//! Adapter folders.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use crate::lab::{Lab, has_null};
use crate::mutation;
use crate::random::Random;
use crate::running::Ended;
use crate::verdict::{Outcome, judge};

/// Of LoRA.
pub(crate) fn attempt(lab: &Lab, _: usize, random: &mut Random) -> Result<Outcome> {
    damaged(lab, &lab.run_folder(), &lab.scores[1], random)
}

/// Of IA3.
pub(crate) fn scaling(lab: &Lab, _: usize, random: &mut Random) -> Result<Outcome> {
    damaged(lab, &lab.scaled_folder(), &lab.scaled, random)
}

/// An adapter of which one file is another.
fn damaged(lab: &Lab, of: &Path, score: &str, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let files = ["adapter_config.json", "adapter_model.safetensors"];
    for name in files {
        std::fs::copy(of.join(name), folder.path().join(name))?;
    }
    let name = files[usize::from(random.below(3) == 0)];
    let path = folder.path().join(name);
    let mut bytes = std::fs::read(&path)?;
    let (what, wrong_type) = if name.ends_with(".json") && random.below(5) > 0 {
        let mut value: Value = serde_json::from_slice(&bytes)?;
        let change = mutation::value(random, &mut value);
        bytes = value.to_string().into_bytes();
        (change.what, change.other_type.then_some(change.key))
    } else {
        (mutation::bytes(random, &mut bytes), None)
    };
    std::fs::write(&path, &bytes)?;
    let adapter = format!("--adapter_name_or_path={}", folder.path().display());
    // Merging reads and writes all of it; scoring is quicker.
    let output = folder.path().join("merged");
    let words = if random.below(6) == 0 {
        let mut words: Vec<std::ffi::OsString> = vec!["merge".into()];
        words.push(format!("--model_name_or_path={}", lab.model().display()).into());
        words.push(adapter.clone().into());
        words.push(format!("--output_dir={}", output.display()).into());
        words
    } else {
        lab.score(&lab.model(), &lab.rows("text.jsonl"), &[&adapter])
    };
    let merges = words[0] == "merge";
    let ended = lab.run(words)?;
    let nothing = what.ends_with("= null");
    let right = |e: &Ended| {
        has_null(&e.stdout).or_else(|| {
            let other = wrong_type.filter(|_| !merges && !nothing && e.stdout != score);
            other.map(|key| format!("`{key}` of another type changed what is computed"))
        })
    };
    let shown = folder.path().display().to_string();
    Ok(judge(format!("{name}: {what}"), &ended, &[name, &shown, "row ", "line ", "merging `"], right))
}
