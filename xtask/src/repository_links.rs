//! A preprocessor of mdBook's: links of docs/ to files outside of it go to the repository, where they are.

use std::io::Read;

use anyhow::{Context, Result};
use serde_json::Value;

/// Where the repository's files are shown.
const FILES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// Reads mdBook's context and book from standard input, and prints the book.
pub(crate) fn run() -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let both: Value = serde_json::from_str(&text).context("standard input is not what mdBook writes")?;
    let mut book = both.get(1).cloned().context("mdBook wrote no book")?;
    redirect(&mut book);
    println!("{book}");
    Ok(())
}

/// Changes the contents of every chapter.
fn redirect(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match value {
                    Value::String(text) if name == "content" => *text = redirected(text),
                    other => redirect(other),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(redirect),
        _ => {}
    }
}

fn redirected(page: &str) -> String {
    page.replace("](../", &format!("]({FILES}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_go_to_the_repository() {
        let mut book = serde_json::json!({"items": [{"Chapter": {"name": "a", "content": "[x](../a/b.md#c) [y](d.md)",
            "sub_items": [{"Chapter": {"content": "[z](../e)"}}]}}]});
        redirect(&mut book);
        assert!(FILES.starts_with("https://"), "{FILES}");
        let chapter = &book["items"][0]["Chapter"];
        assert_eq!(chapter["content"], format!("[x]({FILES}a/b.md#c) [y](d.md)"));
        assert_eq!(chapter["sub_items"][0]["Chapter"]["content"], format!("[z]({FILES}e)"));
    }
}
