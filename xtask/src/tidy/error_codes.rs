//! Classes of errors: every enum of errors has them, the program names none without, and each is one of some error.

use std::path::Path;

use anyhow::{Context, Result};

/// Where classes are declared.
const CODES: &str = "crates/core/src/error_code.rs";
/// What classes are explained by, which is no error.
const EXPLAINED: &str = "crates/config/src/explain/";
/// Errors that no user of the program meets: `cpu-kernels` says them to callers of its slices, `tensor-comm` within others.
const WITHIN: &[&str] = &["AmxFault", "OrthogonalError", "NoAddress"];

/// A complaint for every error without a class, and every class without an error.
pub(super) fn complaints(root: &Path, names: &[String]) -> Result<Vec<String>> {
    let mut sources = Vec::new();
    for name in names {
        let of_a_crate = name.starts_with("crates/") && name.contains("/src/") && name.ends_with(".rs");
        if of_a_crate && !name.starts_with("crates/checks/") {
            let text =
                std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"))?;
            sources.push((name.as_str(), text));
        }
    }
    let mut complaints = Vec::new();
    for (name, text) in &sources {
        let folder = &name[..name.find("/src/").unwrap_or_default()];
        for error in errors(text) {
            let coded = format!("impl Coded for {error} {{");
            let here = sources.iter().any(|(other, text)| other.starts_with(folder) && text.contains(&coded));
            if !here && !WITHIN.contains(&error) {
                complaints.push(format!("{name}: `{error}` has no class: implement burnish_core::Coded"));
            }
        }
        if name.starts_with("crates/cli/") {
            complaints.extend(uncoded(text).map(|word| {
                format!("{name}: `{word}` makes an error without a class: see crates/cli/src/refusal.rs")
            }));
        }
    }
    let declared = sources.iter().find(|(name, _)| *name == CODES);
    let declared = declared.map(|(_, text)| variants(text)).unwrap_or_default();
    for code in declared {
        let used = |text: &String| {
            text.contains(&format!("ErrorCode::{code}"))
                || ["refusal", "refuse", "require"].iter().any(|name| {
                    text.split(&format!("{name}!(")).skip(1).any(|call| {
                        let call = &call[..call.find('"').unwrap_or(call.len())];
                        call.split(|c: char| !c.is_alphanumeric()).any(|word| word == code)
                    })
                })
        };
        let other = |name: &str| name != CODES && !name.starts_with(EXPLAINED);
        if !sources.iter().any(|(name, text)| other(name) && used(text)) {
            complaints.push(format!("{CODES}: no error is of the class `{code}`"));
        }
    }
    Ok(complaints)
}

/// Types that derive `thiserror::Error`.
fn errors(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[derive(").skip(1).filter_map(|part| {
        let (derived, rest) = part.split_once(")]")?;
        let thiserror = derived.split(',').any(|name| {
            name.trim() == "thiserror::Error" || (name.trim() == "Error" && text.contains("use thiserror"))
        });
        let word = |word: &str| {
            let at = rest.find(word)? + word.len();
            let end = rest[at..].find(|c: char| !c.is_alphanumeric())?;
            Some((at, &rest[at..at + end]))
        };
        let found = [word(" enum "), word("\nenum "), word(" struct "), word("\nstruct ")];
        found.into_iter().flatten().min_by_key(|(at, _)| *at).map(|(_, name)| name).filter(|_| thiserror)
    })
}

/// Macros of `anyhow` outside of tests.
fn uncoded(text: &str) -> impl Iterator<Item = &'static str> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String =
        code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    ["bail!(", "ensure!(", "anyhow!("].into_iter().filter(move |word| code.contains(word))
}

/// The classes.
fn variants(text: &str) -> Vec<&str> {
    let word = |line: &'_ str| -> Option<(usize, usize)> {
        let trimmed = line.trim_start();
        let (name, rest) = trimmed.split_once(" = \"")?;
        let is_name = name.chars().all(char::is_alphanumeric) && rest.ends_with("\",");
        is_name.then_some((line.len() - trimmed.len(), name.len()))
    };
    text.lines().filter_map(|line| word(line).map(|(at, length)| &line[at..at + length])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_by_what_they_derive() {
        let text = "#[derive(Debug, thiserror::Error)]\n#[non_exhaustive]\npub enum A {\n}\n\n#[derive(Debug)]\npub struct B;\n\n\
                    #[derive(Clone, thiserror::Error)]\n#[error(\"x\")]\npub struct C(pub String);\n";
        assert_eq!(errors(text).collect::<Vec<_>>(), ["A", "C"]);
        assert_eq!(
            errors("use thiserror::Error;\n#[derive(Error)]\nenum D {\n}\n").collect::<Vec<_>>(),
            ["D"]
        );
    }

    #[test]
    fn what_makes_an_error_without_a_class_is_named() {
        let text = "// bail!(\"\")\nfn f() {\n    anyhow::bail!(\"x\");\n}\n#[cfg(test)]\nmod tests { anyhow!(\"y\") }\n";
        assert_eq!(uncoded(text).collect::<Vec<_>>(), ["bail!("]);
        assert_eq!(variants("        /// Of.\n        DiskFull = \"disk-full\",\n"), ["DiskFull"]);
    }
}
