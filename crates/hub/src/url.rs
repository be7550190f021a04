//! Addresses: their parts, what a redirect leads to, and the writing of names in them.

use std::fmt::Write;

/// Scheme, host and port of an address: `https://huggingface.co`.
pub(crate) fn origin(url: &str) -> Option<&str> {
    let after = url.find("://")? + 3;
    let end = url[after..].find(['/', '?', '#']).map_or(url.len(), |at| after + at);
    let host = &url[after..end];
    // What stands before an `@` is a name and a password, which no hub's address has.
    (!host.is_empty() && !host.contains('@')).then(|| &url[..end])
}

/// Where `location`, answered by `url`, leads.
pub(crate) fn join(url: &str, location: &str) -> Option<String> {
    if location.bytes().any(|b| b.is_ascii_control() || b == b' ') {
        return None;
    }
    if location.starts_with("http://") || location.starts_with("https://") {
        return origin(location).map(|_| location.to_owned());
    }
    let base = origin(url)?;
    if let Some(rest) = location.strip_prefix("//") {
        let joined = format!("{}://{rest}", base.split("://").next()?);
        return origin(&joined).map(|_| joined.clone());
    }
    if location.contains("://") {
        return None;
    }
    if location.starts_with('/') {
        return Some(format!("{base}{location}"));
    }
    let path = url[base.len()..].split(['?', '#']).next().unwrap_or_default();
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    Some(format!("{base}{folder}/{location}"))
}

/// A name as part of an address; `/` stays where `keep_slash`.
pub(crate) fn quoted(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b'/' if keep_slash => out.push('/'),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_somewhere_or_nowhere() {
        let url = "https://hub.co/api/x?y=1";
        for (location, expected) in [
            ("/a/b", Some("https://hub.co/a/b")),
            ("z", Some("https://hub.co/api/z")),
            ("//cdn.co/a", Some("https://cdn.co/a")),
            ("http://cdn.co/a?b", Some("http://cdn.co/a?b")),
            ("ftp://cdn.co/a", None),
            ("file:///etc/passwd", None),
            ("https:///a", None),
            ("https://u:p@cdn.co/a", None),
            ("/a\r\nx: y", None),
        ] {
            assert_eq!(join(url, location).as_deref(), expected, "{location}");
        }
        assert_eq!(origin("http://127.0.0.1:80/x"), Some("http://127.0.0.1:80"));
        assert_eq!(origin("nothing"), None);
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a b/ü%.json", true), "a%20b/%C3%BC%25.json");
        assert_eq!(quoted("refs/pr/1", false), "refs%2Fpr%2F1");
    }
}
