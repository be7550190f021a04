//! Links of the repository's pages: what they name is there, its heading too, and the book has every page of docs/ once.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// A complaint for every link without its file or heading, and for pages that the book has not, or twice.
pub(super) fn complaints(root: &Path, names: &[String]) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for name in names.iter().filter(|name| is_page(name)) {
        let text = std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"))?;
        pages.insert(name.as_str(), text);
    }
    let mut complaints = Vec::new();
    for (page, text) in &pages {
        for link in links(text) {
            complaints.extend(wrong(page, link, names, &pages).map(|why| format!("{page}: ({link}): {why}")));
        }
    }
    let summary = pages.get(SUMMARY).map(String::as_str).unwrap_or_default();
    let listed: Vec<&str> = links(summary).collect();
    for page in
        pages.keys().filter_map(|page| page.strip_prefix("docs/")).filter(|page| *page != "SUMMARY.md")
    {
        let times = listed.iter().filter(|link| **link == page).count();
        if times != 1 {
            complaints.push(format!("{SUMMARY}: has {page} {times} times, expected once"));
        }
    }
    Ok(complaints)
}

/// Pages of the repository itself; what crates show of themselves has links of rustdoc's.
fn is_page(name: &str) -> bool {
    name.ends_with(".md")
        && (!name.contains('/') || name.starts_with("docs/") || name.starts_with("examples/"))
}

/// What is wrong with a link of a page.
fn wrong(page: &str, link: &str, names: &[String], pages: &BTreeMap<&str, String>) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { page.to_owned() } else { beside(page, path) };
    let folder = format!("{}/", target.trim_end_matches('/'));
    if !names.iter().any(|name| *name == target || name.starts_with(&folder)) {
        return Some("there is no such file");
    }
    match pages.get(target.as_str()) {
        Some(text) if !anchor.is_empty() && !anchors(text).any(|known| known == anchor) => {
            Some("there is no such heading")
        }
        _ => None,
    }
}

/// A path that a page names, from the repository's root.
fn beside(page: &str, path: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Targets of a page's links, blocks and spans of code aside.
fn links(page: &str) -> impl Iterator<Item = &str> {
    prose(page).flat_map(|line| {
        line.match_indices("](").filter_map(move |(at, _)| {
            let in_code = line[..at].matches('`').count() % 2 == 1;
            let rest = &line[at + 2..];
            (!in_code)
                .then(|| rest.split(')').next().unwrap_or_default().split(' ').next().unwrap_or_default())
        })
    })
}

/// Headings as GitHub and mdBook name them.
fn anchors(page: &str) -> impl Iterator<Item = String> {
    prose(page).filter_map(|line| {
        let heading = line.trim_start_matches('#');
        let is_heading = heading.len() < line.len() && heading.starts_with(' ');
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor =
            || heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-");
        is_heading.then(anchor)
    })
}

fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut block = false;
    page.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        block ^= fence;
        !block && !fence
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_headings() {
        let text = "# A b: `c`\n[x](b.md#two-words) [y](#a-b-c) `[z](gone.md)` [w](https://x.y)\n```\n[v](gone.md)\n# no\n```\n";
        assert_eq!(links(text).collect::<Vec<_>>(), ["b.md#two-words", "#a-b-c", "https://x.y"]);
        let names = ["docs/a.md", "docs/b.md", "src/x.rs"].map(str::to_owned);
        let pages =
            BTreeMap::from([("docs/a.md", text.to_owned()), ("docs/b.md", "## Two words\n".to_owned())]);
        let wrong = |link: &str| wrong("docs/a.md", link, &names, &pages);
        for right in ["b.md#two-words", "#a-b-c", "../src/x.rs", "../src", "https://x.y"] {
            assert_eq!(wrong(right), None, "{right}");
        }
        assert_eq!(wrong("c.md"), Some("there is no such file"));
        assert_eq!(wrong("b.md#two"), Some("there is no such heading"));
        assert_eq!(wrong("#no"), Some("there is no such heading"));
    }
}
