//! docs/options.md and docs/errors.md: what they list, and that they are up to date.

use std::path::Path;

use burnish_config::explain::errors_page;
use burnish_config::help::options_page;
use burnish_config::table::COMMANDS;

/// `cargo xtask docs` sets it: write the pages rather than compare them.
const WRITE: &str = "BURNISH_WRITE_PAGES";

#[track_caller]
fn is_up_to_date(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let present = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(present == page, "docs/{name} is not what its table says; run cargo xtask docs");
}

#[test]
fn the_pages_are_what_the_tables_say() {
    is_up_to_date("options.md", &options_page());
    is_up_to_date("errors.md", &errors_page());
}

#[test]
fn a_code_is_a_heading() {
    let page = errors_page();
    for code in burnish_core::ErrorCode::ALL {
        assert_eq!(page.matches(&format!("\n### {code}\n")).count(), 1, "{code}");
    }
}

#[test]
fn a_group_is_listed_once_and_named_by_each_command_that_takes_it() {
    let page = options_page();
    // An option that only one group has stands in one row.
    assert_eq!(page.matches("| `stage3_prefetch` |").count(), 1);
    assert_eq!(page.matches("| `vespo_k_pos` |").count(), 1);
    for command in COMMANDS {
        let heading = format!("### `burnish {}`\n", command.name);
        let (_, rest) = page.split_once(&heading).unwrap();
        let (own, _) = rest.split_once("\n\n* Groups: ").map_or((rest, ""), |(_, rest)| (rest, ""));
        let line = own.lines().next().unwrap();
        for group in (command.groups)() {
            assert!(line.contains(&format!("[{}](#", group.title)), "{}: {}", command.name, group.title);
        }
        for name in command.required {
            assert!(own.lines().nth(1).unwrap().contains(&format!("`{name}`")), "{}: {name}", command.name);
        }
    }
    // Every link has its heading.
    let headings: Vec<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .map(|heading| heading.replace([':', ',', '`'], "").replace(' ', "-").to_lowercase())
        .collect();
    for link in page.split("](#").skip(1) {
        let anchor = link.split(')').next().unwrap();
        assert!(headings.iter().any(|heading| heading == anchor), "{anchor}");
    }
}

#[test]
fn a_default_of_a_command_is_said_with_the_command() {
    let page = options_page();
    let (_, dpo) = page.split_once("### `burnish dpo`").unwrap();
    assert!(dpo.split("###").next().unwrap().contains("* Defaults of its own: `learning_rate` `1e-6`"));
}
