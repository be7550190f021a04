//! JSON in and out: a row's values for the template, and `tojson` as Python's `json.dumps`.

use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;

use super::call::Given;
use super::fault::{Outcome, wrong};
use super::numbers::float_text;
use super::printing;
use super::value::{Dict, Value};
use crate::template::bounds::Meter;

/// JSON as a value; objects keep their order.
pub(crate) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::None,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(i), _, _) => Value::Integer(i128::from(i)),
            (_, Some(u), _) => Value::Integer(i128::from(u)),
            (_, _, float) => Value::Float(float.unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::text(s),
        Json::Array(list) => Value::list(list.iter().map(value).collect()),
        Json::Object(map) => {
            let mut dict = Dict::default();
            for (key, entry) in map {
                dict.set(key, value(entry));
            }
            Value::Dict(Rc::new(dict))
        }
    }
}

struct Style {
    item: Arc<str>,
    key: Arc<str>,
    indent: Option<String>,
    ascii: bool,
    sort: bool,
}

/// The filter, with the arguments Transformers gives it.
pub(super) fn tojson(meter: &Meter, given: Given) -> Outcome<Value> {
    let [value, ascii, indent, separators, sort] =
        given.bind("tojson", ["x", "ensure_ascii", "indent", "separators", "sort_keys"], 1)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Text(text, _)) => Some(text.to_string()),
        Some(other) => match other.as_integer() {
            Some(width) => {
                let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
                meter.text(width)?;
                Some(" ".repeat(width))
            }
            None => return wrong(format!("tojson: an indent of type {}", other.type_name())),
        },
    };
    let separators = match separators {
        None | Some(Value::None) => None,
        Some(Value::List(pair) | Value::Tuple(pair)) => match pair.as_slice() {
            [Value::Text(item, _), Value::Text(key, _)] => Some((item.clone(), key.clone())),
            _ => return wrong("tojson: `separators` is not two texts"),
        },
        Some(other) => return wrong(format!("tojson: separators of type {}", other.type_name())),
    };
    let comma = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or_else(|| (Arc::from(comma), Arc::from(": ")));
    let flag = |value: Option<Value>| value.is_some_and(|v| v.truth());
    let style = Style { item, key, indent, ascii: flag(ascii), sort: flag(sort) };
    let mut out = String::new();
    write(meter, &mut out, &value.unwrap_or(Value::None), &style, 0)?;
    Ok(Value::Text(Arc::from(out), false))
}

fn write(meter: &Meter, out: &mut String, value: &Value, style: &Style, depth: usize) -> Outcome<()> {
    meter.deeper()?;
    let before = out.len();
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Integer(n) => {
            let _ = write!(out, "{n}");
        }
        Value::Float(f) => out.push_str(&number(*f)),
        Value::Text(text, _) => string(out, text, style.ascii),
        Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
            return list(meter, out, ('[', ']'), items.len(), style, depth, |out, i| {
                write(meter, out, &items[i], style, depth + 1)
            });
        }
        Value::Dict(dict) => {
            let mut entries: Vec<&(Value, Value)> = dict.entries().iter().collect();
            if style.sort {
                let mut fault = None;
                entries.sort_by(|a, b| {
                    a.0.order(&b.0, "<")
                        .unwrap_or_else(|e| {
                            fault = Some(e);
                            None
                        })
                        .unwrap_or(std::cmp::Ordering::Equal)
                });
                if let Some(fault) = fault {
                    return Err(fault);
                }
            }
            return list(meter, out, ('{', '}'), entries.len(), style, depth, |out, i| {
                let (key, value) = entries[i];
                let key: Arc<str> = match key {
                    Value::Text(text, _) => text.clone(),
                    Value::None => Arc::from("null"),
                    Value::Bool(b) => Arc::from(if *b { "true" } else { "false" }),
                    Value::Float(f) => Arc::from(number(*f)),
                    Value::Integer(_) => printing::text(meter, key)?,
                    other => {
                        return wrong(format!(
                            "tojson: keys must be str, int, float, bool or None, not {}",
                            other.type_name()
                        ));
                    }
                };
                string(out, &key, style.ascii);
                out.push_str(&style.key);
                write(meter, out, value, style, depth + 1)
            });
        }
        Value::Undefined(absent) => {
            let what = absent.fault().message;
            return wrong(format!("tojson: an undefined value is not JSON ({what})"));
        }
        other => return wrong(format!("tojson: a value of type {} is not JSON", other.type_name())),
    }
    meter.text(out.len() - before)
}

fn list(
    meter: &Meter,
    out: &mut String,
    (open, close): (char, char),
    count: usize,
    style: &Style,
    depth: usize,
    mut entry: impl FnMut(&mut String, usize) -> Outcome<()>,
) -> Outcome<()> {
    let line = |out: &mut String, depth: usize| -> Outcome<()> {
        match style.indent.as_ref().filter(|_| count > 0) {
            Some(indent) => {
                meter.text(out.len().saturating_add(indent.len().saturating_mul(depth)))?;
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
                Ok(())
            }
            None => Ok(()),
        }
    };
    out.push(open);
    for i in 0..count {
        if i > 0 {
            out.push_str(&style.item);
        }
        line(out, depth + 1)?;
        entry(out, i)?;
    }
    line(out, depth)?;
    out.push(close);
    Ok(())
}

/// A float as `json.dumps` writes it.
fn number(float: f64) -> String {
    if float.is_nan() {
        "NaN".to_owned()
    } else if float.is_infinite() {
        if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        float_text(float)
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
