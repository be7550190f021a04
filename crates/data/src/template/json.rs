//! `tojson` as Python's `json.dumps`: `", "` and `": "`, no escaping of non-ASCII, `indent`, `sort_keys`.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

struct Style {
    item: String,
    key: String,
    indent: Option<String>,
    ascii: bool,
    sort: bool,
}

/// The filter, with the keyword arguments Transformers gives it.
pub(super) fn tojson(value: &Value, kwargs: &Kwargs) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(v.as_usize().unwrap_or(0)),
        }),
    };
    let separators = match kwargs.get::<Option<Value>>("separators")? {
        Some(v) if !v.is_none() => {
            let text = |i| v.get_item_by_index(i).map(|s| s.to_string());
            Some((text(0)?, text(1)?))
        }
        _ => None,
    };
    let comma = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or_else(|| (comma.to_owned(), ": ".to_owned()));
    let flag = |name| kwargs.get::<Option<bool>>(name).map(Option::unwrap_or_default);
    let style = Style { item, key, indent, ascii: flag("ensure_ascii")?, sort: flag("sort_keys")? };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write(&mut out, value, &style, 0)?;
    Ok(out)
}

fn write(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => string(out, value.as_str().unwrap_or_default(), style.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            list(out, ('[', ']'), items.len(), style, depth, |out, i| {
                write(out, &items[i], style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort {
                keys.sort_by_key(ToString::to_string);
            }
            list(out, ('{', '}'), keys.len(), style, depth, |out, i| {
                let key = match keys[i].kind() {
                    ValueKind::None => "null".to_owned(),
                    ValueKind::Bool => keys[i].to_string().to_lowercase(),
                    ValueKind::Number => number(&keys[i]),
                    _ => keys[i].to_string(),
                };
                string(out, &key, style.ascii);
                out.push_str(&style.key);
                write(out, &value.get_item(&keys[i])?, style, depth + 1)
            })?;
        }
        kind => {
            let what = format!("tojson: a value of type {kind} is not JSON");
            return Err(Error::new(ErrorKind::BadSerialization, what));
        }
    }
    Ok(())
}

fn list(
    out: &mut String,
    (open, close): (char, char),
    count: usize,
    style: &Style,
    depth: usize,
    mut entry: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = style.indent.as_ref().filter(|_| count > 0) {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    for i in 0..count {
        if i > 0 {
            out.push_str(&style.item);
        }
        line(out, depth + 1);
        entry(out, i)?;
    }
    line(out, depth);
    out.push(close);
    Ok(())
}

/// Python's `repr` of an integer or float.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    float_repr(float)
}

/// Shortest text that reads back, with an exponent outside of 1e-4..1e16.
fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{float:?}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
            let exponent: i32 = exponent.parse().unwrap_or(0);
            format!("{mantissa}e{exponent:+03}")
        }
        None => text,
    }
}

fn string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::float_repr;

    #[test]
    fn floats_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
        ];
        for (float, text) in cases {
            assert_eq!(float_repr(float), text);
        }
        assert_eq!(float_repr(1e15), "1000000000000000.0");
    }
}
