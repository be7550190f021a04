//! `page`: a page for a browser, one file without scripts, which loads nothing.

use crate::wording::escaped;

/// A page of `body`, which is HTML, under `title`, which is text; with `refresh` a browser reads it again after so many
/// seconds.
#[must_use]
pub fn page(title: &str, style: &str, refresh: Option<u32>, body: &str) -> String {
    let title = escaped(title);
    let again = refresh.map_or(String::new(), |s| format!("<meta http-equiv=\"refresh\" content=\"{s}\">\n"));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n{again}<title>{title}</title>\n\
         <style>{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
    )
}
