//! Python's methods and jinja2's filters, tests and functions that chat templates use and the engine lacks.

use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{generation, json};

/// What `raise_exception` said, carried as the source of the engine's error.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub(super) fn install(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(method);
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message.to_string())))
    });
    env.add_filter("tojson", |value: &Value, kwargs: Kwargs| json::tojson(value, &kwargs));
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter(generation::FILTER, |state: &State<'_, '_>, text: String| {
        let marks = state.lookup(generation::MARKS).map(|m| m.to_string()).unwrap_or_default();
        let mut marks = marks.chars();
        match (marks.next(), marks.next()) {
            (Some(start), Some(end)) => format!("{start}{text}{end}"),
            _ => text,
        }
    });
    // The engine iterates over none as over an empty list.
    env.add_test("iterable", |v: &Value| !v.is_none() && v.try_iter().is_ok());
    env.add_test("sequence", |v: &Value| {
        v.is_undefined() || matches!(v.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
}

/// jinja2 gives an undefined value the length 0.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        let what = format!("a value of type {} has no length", value.kind());
        Error::new(ErrorKind::InvalidOperation, what)
    })
}

/// Python's methods that the compatibility library lacks, then the library's.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(s) = value.as_str() {
        let parts = |a: &str, b: &str, c: &str| {
            Value::from(Tuple::from([Value::from(a), Value::from(b), Value::from(c)]))
        };
        match name {
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_prefix(prefix).unwrap_or(s)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_suffix(suffix).unwrap_or(s)));
            }
            "partition" => {
                let (at,): (&str,) = from_args(args)?;
                return Ok(s.split_once(at).map_or_else(|| parts(s, "", ""), |(a, b)| parts(a, at, b)));
            }
            "rpartition" => {
                let (at,): (&str,) = from_args(args)?;
                return Ok(s.rsplit_once(at).map_or_else(|| parts("", "", s), |(a, b)| parts(a, at, b)));
            }
            "rsplit" if args.len() == 2 => {
                let (at, limit): (&str, usize) = from_args(args)?;
                let mut pieces: Vec<Value> = s.rsplitn(limit + 1, at).map(Value::from).collect();
                pieces.reverse();
                return Ok(Value::from(pieces));
            }
            "rsplit" => return unknown_method_callback(state, value, "split", args),
            "zfill" => {
                let (width,): (usize,) = from_args(args)?;
                let (sign, digits) = s.split_at(usize::from(s.starts_with(['-', '+'])));
                let zeros = width.saturating_sub(s.chars().count());
                return Ok(Value::from(format!("{sign}{}{digits}", "0".repeat(zeros))));
            }
            "ljust" | "rjust" | "center" => {
                let (width, fill): (usize, Option<&str>) = from_args(args)?;
                let fill = fill.unwrap_or(" ");
                let gap = width.saturating_sub(s.chars().count());
                let left = match name {
                    "ljust" => 0,
                    "rjust" => gap,
                    // As Python, which puts the odd space left only when the width is odd too.
                    _ => gap / 2 + (gap & width & 1),
                };
                return Ok(Value::from(format!("{}{s}{}", fill.repeat(left), fill.repeat(gap - left))));
            }
            "index" | "rindex" => {
                let found = unknown_method_callback(
                    state,
                    value,
                    if name == "index" { "find" } else { "rfind" },
                    args,
                )?;
                if found.as_i64() == Some(-1) {
                    return Err(Error::new(ErrorKind::InvalidOperation, "substring not found"));
                }
                return Ok(found);
            }
            "casefold" => return Ok(Value::from(s.to_lowercase())),
            "swapcase" => {
                let swap = |c: char| {
                    if c.is_lowercase() {
                        c.to_uppercase().collect::<String>()
                    } else {
                        c.to_lowercase().collect()
                    }
                };
                return Ok(Value::from(s.chars().map(swap).collect::<String>()));
            }
            _ => {}
        }
    }
    if name == "index" && matches!(value.kind(), ValueKind::Seq) {
        let (what,): (&Value,) = from_args(args)?;
        let found = value.try_iter()?.position(|item| item == *what);
        return found
            .map(Value::from)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "value not in list"));
    }
    unknown_method_callback(state, value, name, args)
}

/// JSON as the engine's values; objects keep their order.
pub(super) fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(b) => Value::from(*b),
        serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(i), _, _) => Value::from(i),
            (_, Some(u), _) => Value::from(u),
            (_, _, float) => Value::from(float.unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(s) => Value::from(s.as_str()),
        serde_json::Value::Array(list) => list.iter().map(value).collect::<Vec<_>>().into(),
        serde_json::Value::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.clone(), value(v)))),
    }
}

/// The engine's words and the line of the template.
pub(super) fn describe(error: &Error) -> String {
    let what = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{what} (template line {line})"),
        None => what,
    }
}
