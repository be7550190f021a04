//! `burnish explain` and `docs/errors.md`: cause and mend of each class of errors, from one table.

mod pages;

use std::fmt::Write;

use burnish_core::{Choice, ErrorCode};

/// What is said of a class of errors.
pub(crate) struct Page {
    title: &'static str,
    cause: &'static str,
    mend: &'static str,
}

/// The text of `burnish explain CODE`; `Err` names the code that is most alike.
///
/// # Errors
/// If there is no such code.
pub fn explained(code: &str) -> Result<String, &'static str> {
    let word = code.trim_matches(['[', ']', '`']).to_lowercase().replace('_', "-");
    let Some(known) = ErrorCode::from_word(&word) else {
        let alike = |code: &ErrorCode| strsim::jaro_winkler(code.name(), &word);
        let nearest = ErrorCode::ALL.iter().max_by(|a, b| alike(a).total_cmp(&alike(b)));
        return Err(nearest.map_or("bad-value", |code| code.name()));
    };
    let Page { title, cause, mend } = pages::of(known);
    let plain = |text: &str| wrapped(&text.replace('`', ""));
    Ok(format!("{known}: {title}.\n\n{}\n\nWhat helps: {}", plain(cause), plain(mend)))
}

/// The text of `burnish explain`: every code with its title.
#[must_use]
pub fn codes() -> String {
    let wide = ErrorCode::ALL.iter().map(|code| code.name().len()).max().unwrap_or(0);
    let mut out = String::from("Usage: burnish explain CODE\n");
    for (section, codes) in pages::SECTIONS {
        let _ = writeln!(out, "\n{section}:");
        for code in *codes {
            let _ = writeln!(out, "  {:wide$}  {}", code.name(), pages::of(*code).title);
        }
    }
    out.truncate(out.trim_end().len());
    out
}

/// The whole of `docs/errors.md`.
#[must_use]
pub fn errors_page() -> String {
    let mut out = String::from(
        "# Errors\n\n<!-- Written by `cargo xtask docs` from crates/config; do not edit. -->\n\nAn error of the program \
         says in one message what is wrong and where, and closes with the code of its class:\n\n```\nerror: no data at \
         `rows.jsonl`: expected a .jsonl, .json, .csv, .parquet or .arrow file, ...\nhelp: burnish explain no-rows\n```\n\n\
         `burnish explain CODE` prints what stands here, `burnish explain` lists the codes.\nThe exit status is 1; 70 after \
         a fault of burnish, 141 where nobody reads the output any more.\n",
    );
    for (section, codes) in pages::SECTIONS {
        let _ = writeln!(out, "\n## {section}");
        for code in *codes {
            let Page { title, cause, mend } = pages::of(*code);
            let _ = write!(out, "\n### {code}\n\n{title}.\n\n* Cause: {cause}\n* What helps: {mend}\n");
        }
    }
    out
}

/// Lines of at most 100 characters.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        if width > 0 && width + 1 + word.chars().count() > 100 {
            out.push('\n');
            width = 0;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += word.chars().count();
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_stands_in_one_section() {
        let listed: Vec<ErrorCode> = pages::SECTIONS.iter().flat_map(|(_, codes)| codes.to_vec()).collect();
        let once: BTreeSet<ErrorCode> = listed.iter().copied().collect();
        assert_eq!((listed.len(), once.len()), (ErrorCode::ALL.len(), ErrorCode::ALL.len()));
    }

    #[test]
    fn titles_differ_and_sentences_end() {
        let titles: BTreeSet<&str> = ErrorCode::ALL.iter().map(|code| pages::of(*code).title).collect();
        assert_eq!(titles.len(), ErrorCode::ALL.len());
        for code in ErrorCode::ALL {
            let page = pages::of(code);
            assert!(page.cause.ends_with('.') && page.mend.ends_with('.'), "{code}");
            assert!(!page.title.ends_with('.'), "{code}");
        }
    }

    #[test]
    fn a_code_is_found_as_it_is_written_and_a_near_one_named() {
        let text = explained("`disk_full`").unwrap();
        assert!(text.starts_with("disk-full: There is no room on the disk.\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 112), "{text}");
        assert_eq!(explained("disc-full").unwrap_err(), "disk-full");
    }
}
