//! jinja2's filters, with Transformers' `tojson`.

use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::Operator;
use super::attributes;
use super::call::{Given, integer, string};
use super::fault::{Outcome, wrong};
use super::iterators::{Iter, Mapping, Selection, Source};
use super::machine::Machine;
use super::numbers::{parse_float, parse_integer, round, whole};
use super::text::{escaped, is_space, lines};
use super::value::{Key, Value, View};
use super::{formatting, json, operators, printing, strings, wrapping};

const NAMES: [&str; 54] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

/// Whether there is a filter of that name.
pub(super) fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

fn take(value: Option<Value>) -> Value {
    value.unwrap_or(Value::None)
}

fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|v| v.truth())
}

/// A value as text that keeps being safe.
fn soft(machine: &Machine<'_>, value: &Value) -> Outcome<(Arc<str>, bool)> {
    match value {
        Value::Text(text, safe) => Ok((text.clone(), *safe)),
        other => Ok((printing::text(&machine.meter, other)?, false)),
    }
}

fn made(text: impl Into<Arc<str>>, safe: bool) -> Outcome<Value> {
    Ok(Value::Text(text.into(), safe))
}

/// Applies a filter; the first argument is the filtered value.
pub(super) fn call(machine: &Machine<'_>, name: &str, given: Given) -> Outcome<Value> {
    match name {
        "tojson" => json::tojson(&machine.meter, given),
        "map" => mapped(given),
        "select" | "reject" | "selectattr" | "rejectattr" => selected(name, given),
        "format" => {
            let Given { mut positional, named } = given;
            let (text, safe) = soft(machine, &take(positional.drain(..1).next()))?;
            if !positional.is_empty() && !named.is_empty() {
                return wrong("format: positional and keyword arguments at the same time");
            }
            let arguments = if named.is_empty() {
                Value::tuple(positional)
            } else {
                let mut dict = super::value::Dict::default();
                named.into_iter().for_each(|(name, value)| dict.set(&name, value));
                Value::Dict(Rc::new(dict))
            };
            formatting::percent(machine, &text, safe, &arguments)
        }
        "upper" | "lower" | "capitalize" | "title" | "trim" | "center" | "string" | "wordcount" | "safe"
        | "striptags" | "e" | "escape" | "forceescape" | "replace" | "indent" | "truncate" | "wordwrap"
        | "urlencode" | "xmlattr" | "pprint" | "urlize" => of_text(machine, name, given),
        "int" | "float" | "round" | "abs" | "filesizeformat" => of_number(name, given),
        "sort" | "dictsort" | "groupby" | "unique" | "min" | "max" | "sum" => ordered(machine, name, given),
        _ => of_sequence(machine, name, given),
    }
}

fn of_text(machine: &Machine<'_>, name: &str, given: Given) -> Outcome<Value> {
    let method = |method: &'static str, text: &Arc<str>, safe: bool, arguments: Vec<Value>| {
        strings::call(machine, text, safe, method, Given::new(arguments))
    };
    match name {
        "upper" | "lower" | "capitalize" => {
            let [value] = given.bind(name, ["s"], 1)?;
            let (text, safe) = soft(machine, &take(value))?;
            let name = match name {
                "upper" => "upper",
                "lower" => "lower",
                _ => "capitalize",
            };
            method(name, &text, safe, Vec::new())
        }
        "title" => {
            let [value] = given.bind(name, ["s"], 1)?;
            let (text, _) = soft(machine, &take(value))?;
            machine.meter.text(text.len())?;
            made(title(&text), false)
        }
        "trim" => {
            let [value, chars] = given.bind(name, ["value", "chars"], 1)?;
            let (text, safe) = soft(machine, &take(value))?;
            method("strip", &text, safe, chars.into_iter().collect())
        }
        "center" => {
            let [value, width] = given.bind(name, ["value", "width"], 1)?;
            let (text, safe) = soft(machine, &take(value))?;
            method("center", &text, safe, vec![width.unwrap_or(Value::Integer(80))])
        }
        "string" => {
            let [value] = given.bind(name, ["s"], 1)?;
            let (text, safe) = soft(machine, &take(value))?;
            made(text, safe)
        }
        "safe" => {
            let [value] = given.bind(name, ["value"], 1)?;
            made(soft(machine, &take(value))?.0, true)
        }
        "wordcount" => {
            let [value] = given.bind(name, ["s"], 1)?;
            let (text, _) = soft(machine, &take(value))?;
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
            Ok(Value::count(words.count()))
        }
        "striptags" => {
            let [value] = given.bind(name, ["value"], 1)?;
            made(strings::strip_tags(&soft(machine, &take(value))?.0), false)
        }
        "e" | "escape" | "forceescape" => {
            let [value] = given.bind(name, ["s"], 1)?;
            let (text, safe) = soft(machine, &take(value))?;
            machine.meter.text(text.len().saturating_mul(5))?;
            if safe && name != "forceescape" { made(text, true) } else { made(escaped(&text), true) }
        }
        "replace" => {
            let [value, old, new, count] = given.bind(name, ["s", "old", "new", "count"], 3)?;
            let text = |value: Option<Value>| printing::text(&machine.meter, &take(value));
            let (value, old, new) = (text(value)?, text(old)?, text(new)?);
            let limit = match count {
                None | Some(Value::None) => -1,
                Some(count) => integer(name, &count)?,
            };
            made(strings::replaced(machine, &value, &old, &new, limit)?, false)
        }
        "indent" => indented(machine, given),
        "truncate" => truncated(machine, given),
        "wordwrap" => wrapping::wordwrap(machine, given),
        "urlencode" => {
            let [value] = given.bind(name, ["value"], 1)?;
            url_encoded(machine, &take(value))
        }
        "xmlattr" => {
            let [value, space] = given.bind(name, ["d", "autospace"], 1)?;
            let Some(Value::Dict(dict)) = value else { return wrong("xmlattr needs a mapping") };
            let mut out = String::new();
            for (key, value) in dict.entries() {
                if matches!(value, Value::None | Value::Undefined(_)) {
                    continue;
                }
                let key = string(name, key)?;
                if key.contains([' ', '\t', '\n', '\r', '\u{b}', '\u{c}', '/', '>', '=']) {
                    return wrong(format!("invalid character in attribute name '{key}'"));
                }
                let (value, safe) = soft(machine, value)?;
                let value = if safe { value.to_string() } else { escaped(&value) };
                if !out.is_empty() {
                    out.push(' ');
                }
                machine.meter.grow(out.len(), key.len() + value.len())?;
                out += &format!("{}=\"{value}\"", escaped(&key));
            }
            let space = space.is_none_or(|s| s.truth()) && !out.is_empty();
            made(if space { format!(" {out}") } else { out }, false)
        }
        "pprint" => {
            let [value] = given.bind(name, ["value"], 1)?;
            let mut out = String::new();
            printing::write_repr(&machine.meter, &mut out, &take(value))?;
            if out.chars().count() > 80 {
                return wrong("`pprint` of more than 80 characters is not supported");
            }
            made(out, false)
        }
        _ => wrong(format!("the filter `{name}` is not supported")),
    }
}

/// jinja2's own `title`: words begin behind spaces, dashes and brackets.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut word = String::new();
    let flush = |word: &mut String, out: &mut String| {
        let mut chars = word.chars();
        if let Some(first) = chars.next() {
            out.extend(first.to_uppercase());
            out.push_str(&chars.as_str().to_lowercase());
        }
        word.clear();
    };
    for c in text.chars() {
        if is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<') {
            flush(&mut word, &mut out);
            out.push(c);
        } else {
            word.push(c);
        }
    }
    flush(&mut word, &mut out);
    out
}

fn indented(machine: &Machine<'_>, given: Given) -> Outcome<Value> {
    let [value, width, first, blank] = given.bind("indent", ["s", "width", "first", "blank"], 1)?;
    let (text, safe) = match take(value) {
        Value::Text(text, safe) => (text, safe),
        Value::Undefined(absent) => return Err(absent.fault()),
        other => return wrong(format!("indent: expected a text, got {}", other.type_name())),
    };
    let indention: Arc<str> = match width {
        None => Arc::from("    "),
        Some(Value::Text(width, width_safe)) => {
            if safe && !width_safe {
                Arc::from(escaped(&width))
            } else {
                width
            }
        }
        Some(width) => {
            let width = usize::try_from(integer("indent", &width)?.max(0)).unwrap_or(usize::MAX);
            machine.meter.text(width)?;
            Arc::from(" ".repeat(width))
        }
    };
    // As jinja2, which counts lines of the text with one more line end.
    let whole = format!("{text}\n");
    let lines = lines(&whole, false);
    machine.meter.text(text.len().saturating_add(lines.len().saturating_mul(indention.len() + 1)))?;
    let blank = flag(blank);
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&indention);
            }
        } else if flag(first.clone()) {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    made(out, safe)
}

fn truncated(machine: &Machine<'_>, given: Given) -> Outcome<Value> {
    let names = ["s", "length", "killwords", "end", "leeway"];
    let [value, length, kill, end, leeway] = given.bind("truncate", names, 1)?;
    let value = take(value);
    let length = length.map_or(Ok(255), |n| integer("truncate", &n))?;
    let end = end.map_or(Ok(Arc::from("...")), |e| string("truncate", &e))?;
    let leeway = match leeway {
        None | Some(Value::None) => 5,
        Some(leeway) => integer("truncate", &leeway)?,
    };
    let cut = length - end.chars().count() as i128;
    if cut < 0 || leeway < 0 {
        return wrong("truncate: the length is less than that of the end, or the leeway negative");
    }
    let Some(count) = value.len() else {
        return wrong(format!("object of type '{}' has no len()", value.type_name()));
    };
    if (count as i128) <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let Value::Text(text, safe) = machine.sliced(&value, [None, Some(cut), None])? else {
        return wrong("truncate: the value is no text");
    };
    let kept = if flag(kill) { &*text } else { text.rsplit_once(' ').map_or(&*text, |(kept, _)| kept) };
    let end = if safe { escaped(&end) } else { end.to_string() };
    made(format!("{kept}{end}"), safe)
}

fn url_encoded(machine: &Machine<'_>, value: &Value) -> Outcome<Value> {
    let quoted = |value: &Value, query: bool| -> Outcome<String> {
        let text = printing::text(&machine.meter, value)?;
        machine.meter.text(text.len().saturating_mul(3))?;
        let mut out = String::new();
        for byte in text.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                    out.push(char::from(byte))
                }
                b'/' if !query => out.push('/'),
                b' ' if query => out.push('+'),
                byte => out += &format!("%{byte:02X}"),
            }
        }
        Ok(out)
    };
    let pairs = match value {
        Value::Dict(dict) => Value::View(dict.clone(), View::Items),
        Value::Text(..) => return made(quoted(value, false)?, false),
        other if machine.iterate(other).is_err() => return made(quoted(other, false)?, false),
        other => other.clone(),
    };
    let mut out = String::new();
    for pair in machine.items(&pairs)? {
        let pair = machine.items(&pair)?;
        let [key, value] = &pair[..] else { return wrong("urlencode: an element is no pair") };
        if !out.is_empty() {
            out.push('&');
        }
        out += &format!("{}={}", quoted(key, true)?, quoted(value, true)?);
        machine.meter.grow(out.len(), 0)?;
    }
    made(out, false)
}

fn of_number(name: &str, given: Given) -> Outcome<Value> {
    match name {
        "int" => {
            let [value, default, base] = given.bind(name, ["value", "default", "base"], 1)?;
            let default = default.unwrap_or(Value::Integer(0));
            let base = base.map_or(Ok(10), |b| integer(name, &b))?;
            let base = u32::try_from(base).unwrap_or(1);
            let from_float = |f: f64| whole(f.trunc()).map_or(default.clone(), Value::Integer);
            Ok(match take(value) {
                Value::Text(text, _) => match parse_integer(&text, base) {
                    Some(n) => Value::Integer(n),
                    None => parse_float(&text).map_or(default.clone(), from_float),
                },
                Value::Undefined(absent) => return Err(absent.fault()),
                Value::Float(f) if f.is_infinite() => {
                    return wrong("cannot convert float infinity to integer");
                }
                Value::Float(f) => from_float(f),
                other => other.as_integer().map_or(default, Value::Integer),
            })
        }
        "float" => {
            let [value, default] = given.bind(name, ["value", "default"], 1)?;
            let default = default.unwrap_or(Value::Float(0.0));
            Ok(match take(value) {
                Value::Text(text, _) => parse_float(&text).map_or(default, Value::Float),
                Value::Undefined(absent) => return Err(absent.fault()),
                other => other.as_float().map_or(default, Value::Float),
            })
        }
        "abs" => {
            let [value] = given.plain::<1>(name, 1)?;
            match take(value) {
                Value::Float(f) => Ok(Value::Float(f.abs())),
                other => match other.as_integer().and_then(i128::checked_abs) {
                    Some(n) => Ok(Value::Integer(n)),
                    None => wrong(format!("bad operand type for abs(): '{}'", other.type_name())),
                },
            }
        }
        "round" => {
            let [value, precision, method] = given.bind(name, ["value", "precision", "method"], 1)?;
            let value = take(value);
            let precision = precision.map_or(Ok(0), |p| integer(name, &p))?;
            let method = method.map_or(Ok(Arc::from("common")), |m| string(name, &m))?;
            if let Value::Undefined(absent) = &value {
                return Err(absent.fault());
            }
            let Some(float) = value.as_float() else {
                return wrong(format!("round: type {} has no rounding", value.type_name()));
            };
            match &*method {
                "common" => match value.as_integer() {
                    Some(n) if precision >= 0 => Ok(Value::Integer(n)),
                    Some(n) => {
                        let power = u32::try_from(-precision).ok().and_then(|p| 10_i128.checked_pow(p));
                        Ok(Value::Integer(power.map_or(0, |power| {
                            let (low, rest) = (n.div_euclid(power), n.rem_euclid(power));
                            let up = rest * 2 > power || rest * 2 == power && low % 2 != 0;
                            (low + i128::from(up)) * power
                        })))
                    }
                    None => Ok(Value::Float(round(float, precision))),
                },
                "ceil" | "floor" => {
                    let power = 10_f64.powi(i32::try_from(precision.clamp(-400, 400)).unwrap_or(0));
                    let scaled = float * power;
                    let near = if &*method == "ceil" { scaled.ceil() } else { scaled.floor() };
                    Ok(Value::Float(near / power))
                }
                _ => wrong("method must be common, ceil or floor"),
            }
        }
        _ => {
            let [value, binary] = given.bind(name, ["value", "binary"], 1)?;
            let bytes = match take(value) {
                Value::Text(text, _) => parse_float(&text),
                Value::Undefined(absent) => return Err(absent.fault()),
                other => other.as_float(),
            };
            let Some(bytes) = bytes else { return wrong("filesizeformat: the value is no number") };
            let binary = flag(binary);
            made(file_size(bytes, binary), false)
        }
    }
}

fn file_size(bytes: f64, binary: bool) -> String {
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return "1 Byte".to_owned();
    }
    if bytes < base {
        return format!("{:.0} Bytes", bytes.trunc());
    }
    let mut unit = base;
    let mut prefix = 'k';
    for next in ['k', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'] {
        unit *= base;
        prefix = next;
        if bytes < unit {
            break;
        }
    }
    let suffix = if binary { format!("{}iB", prefix.to_ascii_uppercase()) } else { format!("{prefix}B") };
    format!("{:.1} {suffix}", base * bytes / unit)
}

/// The parts of an attribute's name: texts, and numbers as indices.
fn path(attribute: &Value) -> Vec<Value> {
    match attribute {
        Value::None => Vec::new(),
        Value::Text(text, _) => {
            let part = |part: &str| match part.parse::<u32>() {
                Ok(n) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Integer(i128::from(n)),
                _ => Value::text(part),
            };
            text.split('.').map(part).collect()
        }
        other => vec![other.clone()],
    }
}

fn mapped(given: Given) -> Outcome<Value> {
    let Given { mut positional, mut named } = given;
    let from = Box::new(Source::Value(take(positional.drain(..1).next())));
    let with = if positional.is_empty() && named.iter().any(|(n, _)| &**n == "attribute") {
        let mut pop = |name: &str| {
            let at = named.iter().position(|(n, _)| &**n == name)?;
            Some(named.remove(at).1)
        };
        let (attribute, default) = (pop("attribute"), pop("default"));
        if let Some((name, _)) = named.first() {
            return wrong(format!("map: unexpected keyword argument '{name}'"));
        }
        Mapping::Attribute {
            path: path(&take(attribute)),
            default: default.filter(|d| !matches!(d, Value::None)),
        }
    } else {
        if positional.is_empty() {
            return wrong("map requires a filter argument");
        }
        let name = string("map", &positional.remove(0))?;
        Mapping::Filter { name, given: Given { positional, named } }
    };
    Ok(Iter::Map { from, with: Rc::new(with) }.shared())
}

fn selected(name: &str, given: Given) -> Outcome<Value> {
    let Given { mut positional, named } = given;
    let from = Box::new(Source::Value(take(positional.drain(..1).next())));
    let attribute = if name.ends_with("attr") {
        if positional.is_empty() {
            return wrong("missing parameter for attribute name");
        }
        Some(path(&positional.remove(0)))
    } else {
        None
    };
    let test = if positional.is_empty() {
        None
    } else {
        let name = string("select", &positional.remove(0))?;
        Some((name, Given { positional, named }))
    };
    let keep = name.starts_with("select");
    Ok(Iter::Select { from, with: Rc::new(Selection { attribute, test, keep }) }.shared())
}

/// Text in lower case, other values as they are.
fn folded(value: Value, case_sensitive: bool) -> Value {
    match &value {
        Value::Text(text, safe) if !case_sensitive => Value::Text(Arc::from(text.to_lowercase()), *safe),
        _ => value,
    }
}

/// Sorts by keys, as Python: stable, and an error where two keys have no order.
fn sorted(
    machine: &Machine<'_>,
    mut items: Vec<(Value, Value)>,
    reverse: bool,
) -> Outcome<Vec<(Value, Value)>> {
    let count = items.len() as u64;
    machine.meter.spend(count.saturating_mul(u64::from(64 - count.leading_zeros())))?;
    let mut fault = None;
    let mut order = |a: &Value, b: &Value| {
        if fault.is_some() {
            return Ordering::Equal;
        }
        a.order(b, "<")
            .unwrap_or_else(|e| {
                fault = Some(e);
                None
            })
            .unwrap_or(Ordering::Equal)
    };
    if reverse {
        items.sort_by(|a, b| order(&b.0, &a.0));
    } else {
        items.sort_by(|a, b| order(&a.0, &b.0));
    }
    match fault {
        Some(fault) => Err(fault),
        None => Ok(items),
    }
}

fn ordered(machine: &Machine<'_>, name: &str, given: Given) -> Outcome<Value> {
    match name {
        "sort" => {
            let [value, reverse, case, attribute] =
                given.bind(name, ["value", "reverse", "case_sensitive", "attribute"], 1)?;
            let case = flag(case);
            let paths: Vec<Vec<Value>> = match take(attribute) {
                Value::Text(text, _) => text.split(',').map(|part| path(&Value::text(part))).collect(),
                other => vec![path(&other)],
            };
            let mut items = Vec::new();
            for item in machine.items(&take(value))? {
                let keys = paths
                    .iter()
                    .map(|path| Ok(folded(machine.read_path(&item, path, None)?, case)))
                    .collect::<Outcome<Vec<_>>>()?;
                items.push((Value::list(keys), item));
            }
            let items = sorted(machine, items, flag(reverse))?;
            Ok(Value::list(items.into_iter().map(|(_, item)| item).collect()))
        }
        "dictsort" => {
            let [value, case, by, reverse] =
                given.bind(name, ["value", "case_sensitive", "by", "reverse"], 1)?;
            let by = by.map_or(Ok(Arc::from("key")), |b| string(name, &b))?;
            if !matches!(&*by, "key" | "value") {
                return wrong("you can only sort by either \"key\" or \"value\"");
            }
            let case = flag(case);
            let dict = match take(value) {
                Value::Dict(dict) => dict,
                Value::Undefined(absent) => return Err(absent.fault()),
                other => return wrong(format!("'{}' object has no attribute 'items'", other.type_name())),
            };
            let items = dict
                .entries()
                .iter()
                .map(|(k, v)| {
                    let key = folded(if &*by == "key" { k.clone() } else { v.clone() }, case);
                    (key, Value::tuple(vec![k.clone(), v.clone()]))
                })
                .collect();
            let items = sorted(machine, items, flag(reverse))?;
            Ok(Value::list(items.into_iter().map(|(_, item)| item).collect()))
        }
        "groupby" => {
            let [value, attribute, default, case] =
                given.bind(name, ["value", "attribute", "default", "case_sensitive"], 2)?;
            let (path, case) = (path(&take(attribute)), flag(case));
            let default = default.filter(|d| !matches!(d, Value::None));
            let mut items = Vec::new();
            for item in machine.items(&take(value))? {
                let key = machine.read_path(&item, &path, default.as_ref())?;
                items.push((folded(key, case), item));
            }
            let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
            for (key, item) in sorted(machine, items, false)? {
                match groups.last_mut().filter(|(k, _)| k.equals(&key)) {
                    Some((_, group)) => group.push(item),
                    None => groups.push((key, vec![item])),
                }
            }
            let mut out = Vec::new();
            for (key, group) in groups {
                let key = match group.first() {
                    Some(first) if !case => machine.read_path(first, &path, default.as_ref())?,
                    _ => key,
                };
                out.push(Value::Group(Rc::new(vec![key, Value::list(group)])));
            }
            Ok(Value::list(out))
        }
        "unique" => {
            let [value, case, attribute] = given.bind(name, ["value", "case_sensitive", "attribute"], 1)?;
            let (path, case) = (path(&take(attribute)), flag(case));
            let value = take(value);
            Ok(Iter::Late(Box::new(move |machine| {
                let mut seen: std::collections::HashSet<Key> = std::collections::HashSet::new();
                let mut out = Vec::new();
                for item in machine.items(&value)? {
                    if seen.insert(folded(machine.read_path(&item, &path, None)?, case).key()?) {
                        out.push(item);
                    }
                }
                Ok(out)
            }))
            .shared())
        }
        "min" | "max" => {
            let [value, case, attribute] = given.bind(name, ["value", "case_sensitive", "attribute"], 1)?;
            let (path, case) = (path(&take(attribute)), flag(case));
            let mut best: Option<(Value, Value)> = None;
            for item in machine.items(&take(value))? {
                let key = folded(machine.read_path(&item, &path, None)?, case);
                let better = match &best {
                    None => true,
                    Some((than, _)) if name == "min" => key.order(than, "<")? == Some(Ordering::Less),
                    Some((than, _)) => key.order(than, ">")? == Some(Ordering::Greater),
                };
                if better {
                    best = Some((key, item));
                }
            }
            Ok(best
                .map_or_else(|| Value::undefined("no aggregated item, sequence was empty"), |(_, item)| item))
        }
        _ => {
            let [value, attribute, start] = given.bind(name, ["iterable", "attribute", "start"], 1)?;
            let path = path(&take(attribute));
            let mut sum = start.unwrap_or(Value::Integer(0));
            if matches!(sum, Value::Text(..)) {
                return wrong("sum() can't sum strings");
            }
            for item in machine.items(&take(value))? {
                let item = machine.read_path(&item, &path, None)?;
                sum = operators::binary(machine, Operator::Add, &sum, &item)?;
            }
            Ok(sum)
        }
    }
}

fn of_sequence(machine: &Machine<'_>, name: &str, given: Given) -> Outcome<Value> {
    match name {
        "default" | "d" => {
            let [value, default, boolean] = given.bind(name, ["value", "default_value", "boolean"], 1)?;
            let value = take(value);
            let use_default = value.is_undefined() || flag(boolean) && !machine.truth(&value)?;
            Ok(if use_default { default.unwrap_or_else(|| Value::text("")) } else { value })
        }
        "length" | "count" => {
            let [value] = given.plain::<1>(name, 1)?;
            match take(value) {
                Value::Loop(loop_) => {
                    let mut inner = loop_.try_borrow_mut().map_err(|_| super::machine::busy())?;
                    Ok(Value::count(inner.length(machine)?))
                }
                value => match value.len() {
                    Some(length) => Ok(Value::count(length)),
                    None => wrong(format!("object of type '{}' has no len()", value.type_name())),
                },
            }
        }
        "first" => {
            let [value] = given.bind(name, ["seq"], 1)?;
            let first = machine.iterate(&take(value))?.next(machine)?;
            Ok(first.unwrap_or_else(|| Value::undefined("no first item, sequence was empty")))
        }
        "last" => {
            let [value] = given.bind(name, ["seq"], 1)?;
            let value = take(value);
            if matches!(value, Value::Iter(_)) {
                return wrong("'generator' object is not reversible");
            }
            if let Value::Undefined(absent) = &value {
                return Err(absent.fault());
            }
            let last = match &value {
                Value::Text(text, _) => text.chars().next_back().map(|c| Value::text(String::from(c))),
                other => machine.items(other)?.pop(),
            };
            Ok(last.unwrap_or_else(|| Value::undefined("no last item, sequence was empty")))
        }
        "list" => {
            let [value] = given.bind(name, ["value"], 1)?;
            Ok(Value::list(machine.items(&take(value))?))
        }
        "items" => {
            let [value] = given.bind(name, ["value"], 1)?;
            match take(value) {
                Value::Undefined(_) => Ok(Iter::Done.shared()),
                Value::Dict(dict) => Ok(Iter::Dict(dict, View::Items, 0).shared()),
                _ => Ok(Iter::Late(Box::new(|_| wrong("can only get item pairs from a mapping"))).shared()),
            }
        }
        "join" => {
            let [value, separator, attribute] = given.bind(name, ["value", "d", "attribute"], 1)?;
            let separator = printing::text(&machine.meter, &separator.unwrap_or_else(|| Value::text("")))?;
            let path = path(&take(attribute));
            let mut iter = machine.iterate(&take(value))?;
            let mut out = String::new();
            let mut first = true;
            while let Some(item) = iter.next(machine)? {
                let item = if path.is_empty() { item } else { machine.read_path(&item, &path, None)? };
                let text = printing::text(&machine.meter, &item)?;
                machine.meter.grow(out.len(), text.len() + separator.len())?;
                if !std::mem::take(&mut first) {
                    out.push_str(&separator);
                }
                out.push_str(&text);
            }
            made(out, false)
        }
        "reverse" => {
            let [value] = given.bind(name, ["value"], 1)?;
            match take(value) {
                Value::Text(text, safe) => {
                    machine.meter.text(text.len())?;
                    made(text.chars().rev().collect::<String>(), safe)
                }
                Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
                    let length = items.len();
                    Ok(if length == 0 { Iter::Done } else { Iter::Reversed(items, length) }.shared())
                }
                Value::Undefined(absent) => Err(absent.fault()),
                value @ Value::Iter(_) => {
                    let mut items = machine.items(&value)?;
                    items.reverse();
                    Ok(Value::list(items))
                }
                other => {
                    let mut items = machine.items(&other)?;
                    items.reverse();
                    Ok(Iter::Owned(items.into_iter()).shared())
                }
            }
        }
        "attr" => {
            let [value, attribute] = given.bind(name, ["obj", "name"], 2)?;
            let (value, attribute) = (take(value), string(name, &take(attribute))?);
            if let Value::Undefined(absent) = &value {
                return Err(absent.fault());
            }
            Ok(attributes::find(machine, &value, &attribute)?.unwrap_or_else(|| {
                Value::undefined(format!("`{attribute}` is no attribute of a {}", value.type_name()))
            }))
        }
        "batch" => {
            let [value, count, fill] = given.bind(name, ["value", "linecount", "fill_with"], 2)?;
            let (value, count) = (take(value), integer(name, &take(count))?);
            Ok(Iter::Late(Box::new(move |machine| {
                let mut out = Vec::new();
                let mut batch: Vec<Value> = Vec::new();
                for item in machine.items(&value)? {
                    if batch.len() as i128 == count {
                        out.push(Value::list(std::mem::take(&mut batch)));
                    }
                    batch.push(item);
                }
                if !batch.is_empty() {
                    if let Some(fill) = fill.filter(|f| !matches!(f, Value::None)) {
                        let missing = usize::try_from(count - batch.len() as i128).unwrap_or(0);
                        machine.meter.elements(missing)?;
                        batch.extend(std::iter::repeat_n(fill, missing));
                    }
                    out.push(Value::list(batch));
                }
                Ok(out)
            }))
            .shared())
        }
        "slice" => {
            let [value, count, fill] = given.bind(name, ["value", "slices", "fill_with"], 2)?;
            let (value, count) = (take(value), integer(name, &take(count))?);
            Ok(Iter::Late(Box::new(move |machine| {
                let items = machine.items(&value)?;
                let Some(count) = usize::try_from(count).ok().filter(|c| *c > 0) else {
                    return if count == 0 { wrong("division by zero") } else { Ok(Vec::new()) };
                };
                machine.meter.elements(count)?;
                let (each, extra) = (items.len() / count, items.len() % count);
                let mut out = Vec::new();
                let mut rest = items.into_iter();
                for at in 0..count {
                    let mut part: Vec<Value> = rest.by_ref().take(each + usize::from(at < extra)).collect();
                    if let Some(fill) = fill.as_ref().filter(|f| !matches!(f, Value::None) && at >= extra) {
                        part.push(fill.clone());
                    }
                    out.push(Value::list(part));
                }
                Ok(out)
            }))
            .shared())
        }
        "random" => wrong("`random` makes a rendering that cannot be repeated and is not supported"),
        other => wrong(format!("no filter named '{other}'")),
    }
}
