//! docs/options.md: what it lists, and that it is up to date.

use std::path::Path;

use burnish_config::help::options_page;
use burnish_config::table::COMMANDS;

/// `cargo xtask docs` sets it: write the page rather than compare it.
const WRITE: &str = "BURNISH_WRITE_OPTIONS_PAGE";

#[test]
fn the_page_is_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let page = options_page();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let present = std::fs::read_to_string(&path).unwrap();
    assert!(present == page, "docs/options.md is not what the options' table says; run cargo xtask docs");
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
