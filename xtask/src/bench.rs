//! `cargo xtask bench`: the scripts under benches/.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::step;

/// Lists the scripts with their first line of documentation, or runs the one that is named.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let folder = root.join("benches");
    let mut scripts = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {folder:?}"))? {
        let path = entry?.path();
        if let (Some(name), Some("py" | "sh")) =
            (path.file_stem().and_then(|stem| stem.to_str()), path.extension().and_then(|e| e.to_str()))
        {
            scripts.push((name.to_owned(), path.clone()));
        }
    }
    scripts.sort();
    let Some((name, rest)) = arguments.split_first() else {
        println!("cargo xtask bench NAME [ARGUMENTS], with NAME one of:");
        for (name, path) in &scripts {
            println!("  {name:16} {}", about(&std::fs::read_to_string(path)?));
        }
        println!("Scripts in Python run with BURNISH_PYTHON, or python3.");
        return Ok(true);
    };
    let Some((_, path)) = scripts.iter().find(|(known, _)| known == name) else {
        let known: Vec<&str> = scripts.iter().map(|(name, _)| name.as_str()).collect();
        bail!("no benchmark is called {name:?}; there are {}", known.join(", "));
    };
    let program = if path.extension().is_some_and(|extension| extension == "py") {
        std::env::var("BURNISH_PYTHON").unwrap_or_else(|_| "python3".into())
    } else {
        "bash".into()
    };
    step::run(name, Command::new(program).current_dir(root).arg(path).args(rest))
}

/// The first line of a script that says something.
fn about(text: &str) -> &str {
    text.lines()
        .map(|line| line.trim_start_matches(['#', '!', '"', ' ']).trim_end_matches('"'))
        .find(|line| !line.is_empty() && !line.starts_with('/'))
        .unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sentence_is_found() {
        assert_eq!(about("#!/usr/bin/env python3\n\"\"\"Speed of it.\n\nMore.\"\"\"\n"), "Speed of it.");
        assert_eq!(about("#!/bin/bash\n# Runs it.\n"), "Runs it.");
    }
}
