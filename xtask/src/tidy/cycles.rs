//! Import cycles across the folders of a crate: `crate::` paths between a crate's top-level modules make no circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

/// Crates of many folders, which are read from the bottom up.
const CRATES: [&str; 2] = ["crates/models/src/", "crates/trainers/src/"];

/// A complaint for every group of top-level modules that import each other in a circle.
pub(super) fn complaints(root: &Path, names: &[String]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for source in CRATES {
        let mut files = BTreeMap::new();
        for name in names.iter().filter(|name| name.starts_with(source) && name.ends_with(".rs")) {
            let text =
                std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"))?;
            files.insert(name[source.len()..].to_owned(), text);
        }
        let imports = imports(&files);
        for circle in circles(&imports) {
            let list = circle.iter().copied().collect::<Vec<_>>().join(", ");
            complaints.push(format!("{source}: {list} import each other in a circle"));
        }
    }
    Ok(complaints)
}

/// Which top-level modules each top-level module names behind `crate::`, tests aside.
fn imports(files: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let of = |name: &str| name.split('/').next().unwrap_or(name).trim_end_matches(".rs").to_owned();
    let modules: BTreeSet<String> = files.keys().map(|name| of(name)).filter(|name| name != "lib").collect();
    let exported = files.get("lib.rs").map(|lib| exported(&code(lib), &modules)).unwrap_or_default();
    let mut imports: BTreeMap<String, BTreeSet<String>> =
        modules.iter().map(|module| (module.clone(), BTreeSet::new())).collect();
    for (name, text) in files {
        let module = of(name);
        let tests = name.split('/').any(|part| part == "tests" || part == "tests.rs");
        let Some(own) = imports.get_mut(&module).filter(|_| !tests) else { continue };
        for word in first_words(&code(text), "crate::") {
            let target = if modules.contains(&word) { Some(word) } else { exported.get(&word).cloned() };
            own.extend(target.filter(|target| *target != module));
        }
    }
    imports
}

/// What the crate's page exports, and from which module.
fn exported(lib: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut exported = BTreeMap::new();
    for item in lib.split("pub use ").skip(1) {
        let item = item.split(';').next().unwrap_or_default();
        let mut words = item.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
        if let Some(module) = words.next().filter(|module| modules.contains(*module)) {
            exported.extend(words.map(|word| (word.to_owned(), module.to_owned())));
        }
    }
    exported
}

/// A source without comments, up to its tests.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]").unwrap_or(text.len());
    let line = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    text[..end].lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The word behind each `start`, or of a list in braces each first one.
fn first_words(text: &str, start: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, _) in text.match_indices(start) {
        let rest = &text[at + start.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            words.push(word(rest));
            continue;
        };
        let (mut depth, mut begins) = (1, true);
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => begins = true,
                c if begins && !c.is_whitespace() => {
                    words.push(word(&list[at..]));
                    begins = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    words
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Groups of more than one node that all reach each other.
fn circles(graph: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<&str>> {
    let reached = |from: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(node) = open.pop() {
            for next in graph.get(node).into_iter().flatten() {
                if seen.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|node| (node.as_str(), reached(node))).collect();
    let mut circles = BTreeSet::new();
    for (&node, to) in &reach {
        let circle: BTreeSet<&str> = to
            .iter()
            .copied()
            .filter(|other| reach.get(other).is_some_and(|back| back.contains(node)))
            .collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let imports = imports(&files);
        circles(&imports).into_iter().map(|c| c.into_iter().map(str::to_owned).collect()).collect()
    }

    #[test]
    fn a_circle_is_found_through_folders_lists_and_exports() {
        let lib = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use c::inner::{One, Two};\n");
        let a = ("a/mod.rs", "use crate::b::deep::X;\n");
        let b = ("b.rs", "use std::fmt;\nuse crate::{Error, Two};\n");
        let c = ("c/inner.rs", "fn f() { crate::a::g() }\n");
        assert_eq!(found(&[lib, a, b, c]), [["a", "b", "c"]]);
        let c = ("c/inner.rs", "// crate::a\n#[cfg(test)]\nmod tests { use crate::a; }\n");
        assert!(found(&[lib, a, b, c]).is_empty());
        assert!(found(&[lib, a, b, c, ("c/tests.rs", "use crate::a;\n")]).is_empty());
    }
}
