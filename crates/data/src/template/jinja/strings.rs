//! The methods of `str`, and of `Markup`, which makes its arguments safe.

use std::sync::Arc;

use super::call::{Given, integer, string};
use super::fault::{Outcome, wrong};
use super::formatting;
use super::machine::Machine;
use super::text::{byte_of, capitalize, decimal, escaped, is_cased, is_digit, is_space, lines, title};
use super::value::Value;

const NAMES: [&str; 46] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
];
const MORE: [&str; 1] = ["zfill"];
const MARKUP: [&str; 3] = ["unescape", "striptags", "escape"];

/// The method of that name, if texts have it.
pub(super) fn name(name: &str, safe: bool) -> Option<&'static str> {
    let markup: &[&'static str] = if safe { &MARKUP } else { &[] };
    NAMES.iter().chain(&MORE).chain(markup).find(|n| **n == name).copied()
}

pub(super) fn call(
    machine: &Machine<'_>,
    text: &Arc<str>,
    safe: bool,
    name: &'static str,
    given: Given,
) -> Outcome<Value> {
    machine.meter.text(text.len())?;
    let made = |out: String| Ok(Value::Text(Arc::from(out), safe));
    let part = |out: &str| Value::Text(Arc::from(out), safe);
    let all = |test: &dyn Fn(char) -> bool| Value::Bool(!text.is_empty() && text.chars().all(test));
    match name {
        "format" => return formatting::format(machine, text, safe, &given),
        "split" | "rsplit" => return split(machine, text, safe, name, given),
        "splitlines" => {
            let [keep] = given.bind(name, ["keepends"], 0)?;
            let found = lines(text, keep.is_some_and(|k| k.truth()));
            machine.meter.elements(found.len())?;
            return Ok(Value::list(found.into_iter().map(part).collect()));
        }
        "expandtabs" => {
            let [size] = given.bind(name, ["tabsize"], 0)?;
            let size = size.map_or(Ok(8), |s| integer(name, &s))?;
            return expand_tabs(machine, text, size).and_then(made);
        }
        _ => {}
    }
    if name == "format_map" {
        let [mapping] = given.plain(name, 1)?;
        let Some(Value::Dict(dict)) = mapping else { return wrong("format_map() takes a mapping") };
        let named = dict
            .entries()
            .iter()
            .filter_map(|(k, v)| match k {
                Value::Text(k, _) => Some((k.clone(), v.clone())),
                _ => None,
            })
            .collect();
        return formatting::format(machine, text, safe, &Given { positional: Vec::new(), named });
    }
    let [first, second, third] = given.plain::<3>(name, 0)?;
    let count = usize::from(first.is_some()) + usize::from(second.is_some()) + usize::from(third.is_some());
    let (least, most) = match name {
        "center" | "ljust" | "rjust" => (1, 2),
        "count" | "endswith" | "find" | "index" | "rfind" | "rindex" | "startswith" => (1, 3),
        "join" | "partition" | "removeprefix" | "removesuffix" | "rpartition" | "zfill" => (1, 1),
        "lstrip" | "rstrip" | "strip" => (0, 1),
        "replace" => (2, 3),
        _ => (0, 0),
    };
    if count < least || count > most {
        return wrong(format!("{name}() takes {least} to {most} arguments, {count} were given"));
    }
    let wanted = |value: &Option<Value>| string(name, value.as_ref().unwrap_or(&Value::None));
    Ok(match name {
        "capitalize" => return made(capitalize(text)),
        "casefold" => {
            return made(text.chars().flat_map(char::to_lowercase).collect::<String>().replace('ß', "ss"));
        }
        "lower" => return made(text.to_lowercase()),
        "upper" => return made(text.to_uppercase()),
        "title" => return made(title(text)),
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_lowercase() { c.to_uppercase().collect() } else { c.to_lowercase().collect() }
            };
            return made(text.chars().map(swap).collect());
        }
        "strip" | "lstrip" | "rstrip" => {
            let chars = match &first {
                None | Some(Value::None) => None,
                Some(chars) => Some(string(name, chars)?),
            };
            let gone = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.contains(c));
            part(match name {
                "strip" => text.trim_matches(gone),
                "lstrip" => text.trim_start_matches(gone),
                _ => text.trim_end_matches(gone),
            })
        }
        "removeprefix" => part(text.strip_prefix(&*wanted(&first)?).unwrap_or(text)),
        "removesuffix" => part(text.strip_suffix(&*wanted(&first)?).unwrap_or(text)),
        "partition" | "rpartition" => {
            let at = wanted(&first)?;
            if at.is_empty() {
                return wrong("empty separator");
            }
            let found = if name == "partition" { text.split_once(&*at) } else { text.rsplit_once(&*at) };
            let parts = match found {
                Some((before, after)) => [before, &at, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::tuple(parts.into_iter().map(part).collect())
        }
        "replace" => {
            let (old, new) = (wanted(&first)?, wanted(&second)?);
            let new = if safe && !matches!(second, Some(Value::Text(_, true))) {
                Arc::from(escaped(&new))
            } else {
                new
            };
            let limit = third.map_or(Ok(-1), |n| integer(name, &n))?;
            return replaced(machine, text, &old, &new, limit).and_then(made);
        }
        "startswith" | "endswith" => starts(text, name, &first.unwrap_or(Value::None), second, third)?,
        "find" | "rfind" | "index" | "rindex" => {
            let found = find(text, &wanted(&first)?, name, second, third)?;
            if found.is_none() && name.ends_with("index") {
                return wrong("substring not found");
            }
            found.map_or(Value::Integer(-1), Value::count)
        }
        "count" => {
            let part = wanted(&first)?;
            let window = window(text, name, second, third)?;
            Value::count(window.map_or(0, |(_, inside)| {
                if part.is_empty() { inside.chars().count() + 1 } else { inside.matches(&*part).count() }
            }))
        }
        "join" => return join(machine, text, safe, first.as_ref().unwrap_or(&Value::None)),
        "center" | "ljust" | "rjust" => {
            let fill = match &second {
                None => Arc::from(" "),
                Some(fill) => string(name, fill)?,
            };
            let mut fills = fill.chars();
            let (Some(fill), None) = (fills.next(), fills.next()) else {
                return wrong("the fill character must be exactly one character long");
            };
            let width = integer(name, first.as_ref().unwrap_or(&Value::None))?;
            return padded(machine, text, width, fill, name).and_then(made);
        }
        "zfill" => {
            let width = usize::try_from(integer(name, first.as_ref().unwrap_or(&Value::None))?.max(0));
            let width = width.unwrap_or(usize::MAX);
            let zeros = width.saturating_sub(text.chars().count());
            machine.meter.text(zeros.saturating_add(text.len()))?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            return made(format!("{sign}{}{digits}", "0".repeat(zeros)));
        }
        "isascii" => Value::Bool(text.is_ascii()),
        "isalpha" => all(&char::is_alphabetic),
        "isalnum" => all(&char::is_alphanumeric),
        "isdecimal" => all(&|c| decimal(c).is_some()),
        "isdigit" => all(&is_digit),
        "isnumeric" => all(&|c| c.is_numeric() || is_digit(c)),
        "isspace" => all(&is_space),
        "isprintable" => {
            let mut out = String::new();
            super::text::repr(&mut out, &text.replace(['\\', '\''], ""));
            Value::Bool(!out.contains('\\'))
        }
        "isidentifier" => {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            Value::Bool(
                !text.is_empty() && !text.starts_with(|c: char| c.is_numeric()) && text.chars().all(word),
            )
        }
        "islower" => Value::Bool(
            text.chars().any(is_cased)
                && text.chars().all(|c| !c.is_uppercase() && (!is_cased(c) || c.is_lowercase())),
        ),
        "isupper" => Value::Bool(
            text.chars().any(is_cased)
                && text.chars().all(|c| !c.is_lowercase() && (!is_cased(c) || c.is_uppercase())),
        ),
        "istitle" => Value::Bool(text.chars().any(is_cased) && title(text) == **text),
        "striptags" => return Ok(Value::text(strip_tags(text))),
        "unescape" => return Ok(Value::text(unescaped(text))),
        _ => return wrong(format!("the method `{name}` of a text is not supported")),
    })
}

/// The part of a text that `start` and `stop` name, with where it begins; none past the end.
fn window<'t>(
    text: &'t str,
    name: &str,
    start: Option<Value>,
    stop: Option<Value>,
) -> Outcome<Option<(usize, &'t str)>> {
    let bound = |value: Option<Value>| match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => integer(name, &value).map(Some),
    };
    let (start, stop) = (bound(start)?, bound(stop)?);
    if start.is_none() && stop.is_none() {
        return Ok(Some((0, text)));
    }
    let length = text.chars().count() as i128;
    let place = |n: i128| if n < 0 { (n + length).max(0) } else { n };
    let start = start.map_or(0, place);
    let stop = stop.map_or(length, place).min(length);
    if start > length || start > stop {
        return Ok(None);
    }
    let at = |n: i128| byte_of(text, usize::try_from(n).unwrap_or(usize::MAX));
    Ok(Some((usize::try_from(start).unwrap_or(0), &text[at(start)..at(stop)])))
}

fn starts(
    text: &str,
    name: &str,
    wanted: &Value,
    start: Option<Value>,
    stop: Option<Value>,
) -> Outcome<Value> {
    let Some((_, inside)) = window(text, name, start, stop)? else { return Ok(Value::Bool(false)) };
    let fits =
        |part: &str| if name == "startswith" { inside.starts_with(part) } else { inside.ends_with(part) };
    match wanted {
        Value::Text(part, _) => Ok(Value::Bool(fits(part))),
        Value::Tuple(parts) => {
            for part in parts.iter() {
                if fits(&string(name, part)?) {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        Value::Undefined(absent) => Err(absent.fault()),
        other => wrong(format!("{name} first arg must be str or a tuple of str, not {}", other.type_name())),
    }
}

fn find(
    text: &str,
    part: &str,
    name: &str,
    start: Option<Value>,
    stop: Option<Value>,
) -> Outcome<Option<usize>> {
    let Some((before, inside)) = window(text, name, start, stop)? else { return Ok(None) };
    let found = if name.starts_with('r') { inside.rfind(part) } else { inside.find(part) };
    Ok(found.map(|at| before + inside[..at].chars().count()))
}

pub(super) fn replaced(
    machine: &Machine<'_>,
    text: &str,
    old: &str,
    new: &str,
    limit: i128,
) -> Outcome<String> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() }.min(limit);
    let removed = found.saturating_mul(old.len());
    machine
        .meter
        .text((text.len() - removed.min(text.len())).saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, limit))
}

fn split(machine: &Machine<'_>, text: &str, safe: bool, name: &str, given: Given) -> Outcome<Value> {
    let [separator, limit] = given.bind(name, ["sep", "maxsplit"], 0)?;
    let limit = limit.map_or(Ok(-1), |n| integer(name, &n))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let from_right = name == "rsplit";
    let pieces: Vec<&str> = match separator {
        None | Some(Value::None) => split_spaces(text, limit, from_right),
        Some(separator) => {
            let separator = string(name, &separator)?;
            if separator.is_empty() {
                return wrong("empty separator");
            }
            if from_right {
                let mut pieces: Vec<&str> = text.rsplitn(limit.saturating_add(1), &*separator).collect();
                pieces.reverse();
                pieces
            } else {
                text.splitn(limit.saturating_add(1), &*separator).collect()
            }
        }
    };
    machine.meter.elements(pieces.len())?;
    Ok(Value::list(pieces.into_iter().map(|p| Value::Text(Arc::from(p), safe)).collect()))
}

/// Words between white space; with a limit the rest is kept as it is.
fn split_spaces(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            break;
        }
        if pieces.len() == limit {
            pieces.push(if from_right { rest.trim_end_matches(is_space) } else { rest });
            break;
        }
        let (piece, after) = if from_right {
            let at =
                rest.char_indices().rev().find(|(_, c)| is_space(*c)).map_or(0, |(at, c)| at + c.len_utf8());
            (&rest[at..], &rest[..at])
        } else {
            rest.split_at(rest.find(is_space).unwrap_or(rest.len()))
        };
        pieces.push(piece);
        rest = after;
    }
    if from_right {
        pieces.reverse();
    }
    pieces
}

fn join(machine: &Machine<'_>, separator: &str, safe: bool, items: &Value) -> Outcome<Value> {
    let mut out = String::new();
    for (at, item) in machine.items(items)?.iter().enumerate() {
        let text = match item {
            Value::Text(text, true) => text.clone(),
            Value::Text(text, false) if safe => Arc::from(escaped(text)),
            Value::Text(text, false) => text.clone(),
            other if safe => Arc::from(escaped(&super::printing::text(&machine.meter, other)?)),
            other => {
                return wrong(format!(
                    "sequence item {at}: expected str instance, {} found",
                    other.type_name()
                ));
            }
        };
        machine.meter.grow(out.len(), text.len() + separator.len())?;
        if at > 0 {
            out.push_str(separator);
        }
        out.push_str(&text);
    }
    Ok(Value::Text(Arc::from(out), safe))
}

pub(super) fn padded(
    machine: &Machine<'_>,
    text: &str,
    width: i128,
    fill: char,
    name: &str,
) -> Outcome<String> {
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let gap = width.saturating_sub(text.chars().count());
    machine.meter.text(text.len().saturating_add(gap.saturating_mul(fill.len_utf8())))?;
    let left = match name {
        "ljust" => 0,
        "rjust" => gap,
        // As Python, which puts the odd space left only when the width is odd too.
        _ => gap / 2 + (gap & width & 1),
    };
    let fills = |count: usize| String::from(fill).repeat(count);
    Ok(format!("{}{text}{}", fills(left), fills(gap - left)))
}

fn expand_tabs(machine: &Machine<'_>, text: &str, size: i128) -> Outcome<String> {
    let size = usize::try_from(size.max(0)).unwrap_or(usize::MAX);
    let tabs = text.matches('\t').count();
    machine.meter.text(text.len().saturating_add(tabs.saturating_mul(size)))?;
    let mut out = String::new();
    let mut column = 0_usize;
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let gap = size - column % size;
                out.extend(std::iter::repeat_n(' ', gap));
                column += gap;
            }
            '\t' => {}
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(out)
}

/// Text without its tags, with single spaces, unescaped.
pub(super) fn strip_tags(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let tag = &rest[start..];
        let end = if tag.starts_with("<!--") {
            tag.get(4..).and_then(|t| t.find("-->")).map(|at| at + 7)
        } else {
            tag.find('>').map(|at| at + 1)
        };
        let Some(end) = end else { break };
        plain.push_str(&rest[..start]);
        rest = &tag[end..];
    }
    plain.push_str(rest);
    let words: Vec<&str> = split_spaces(&plain, usize::MAX, false);
    unescaped(&words.join(" "))
}

/// The entities that markup of templates has.
fn unescaped(text: &str) -> String {
    let named =
        [("&lt;", "<"), ("&gt;", ">"), ("&#34;", "\""), ("&quot;", "\""), ("&#39;", "'"), ("&apos;", "'")];
    let out = named.iter().fold(text.to_owned(), |out, (entity, c)| out.replace(entity, c));
    out.replace("&nbsp;", "\u{a0}").replace("&amp;", "&")
}
