//! `%` and `str.format`: Python's two ways to fill values into a text.

use std::sync::Arc;

use super::call::{Given, integer};
use super::fault::{Outcome, wrong};
use super::machine::Machine;
use super::numbers::{float_text, whole};
use super::printing::{self, write_repr};
use super::text::escaped;
use super::value::Value;

/// How wide, and how, a value is written.
#[derive(Clone, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// `format % arguments`.
pub(super) fn percent(machine: &Machine<'_>, format: &str, safe: bool, arguments: &Value) -> Outcome<Value> {
    let single;
    let values: &[Value] = match arguments {
        Value::Tuple(items) | Value::Group(items) => items,
        other => {
            single = [other.clone()];
            &single
        }
    };
    // What has entries may be left unused.
    let is_mapping =
        matches!(arguments, Value::Dict(_) | Value::List(_) | Value::Undefined(_) | Value::Range(_));
    let mut values = values.iter();
    let mut next = || match values.next() {
        Some(value) => Ok(value.clone()),
        None => wrong("not enough arguments for format string"),
    };
    let mut out = String::with_capacity(format.len());
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut spec = Spec::default();
        let mut keyed = None;
        if chars.next_if_eq(&'(').is_some() {
            let mut key = String::new();
            let mut open = 1;
            for c in chars.by_ref() {
                open += i32::from(c == '(') - i32::from(c == ')');
                if open == 0 {
                    break;
                }
                key.push(c);
            }
            if open > 0 {
                return wrong("incomplete format key");
            }
            let Value::Dict(dict) = arguments else { return wrong("format requires a mapping") };
            match dict.get_text(&key) {
                Some(value) => keyed = Some(value.clone()),
                None => return wrong(format!("the format reads '{key}', which the mapping lacks")),
            }
        }
        while let Some(flag) = chars.next_if(|c| matches!(c, '#' | '0' | '-' | ' ' | '+')) {
            match flag {
                '#' => spec.alternate = true,
                '0' => spec.zero = true,
                '-' => spec.align = Some('<'),
                sign if spec.sign != Some('+') => spec.sign = Some(sign),
                _ => {}
            }
        }
        spec.width = number(&mut chars).unwrap_or(0);
        if chars.next_if_eq(&'*').is_some() {
            let width = integer("*", &next()?)?;
            if width < 0 {
                spec.align = Some('<');
            }
            spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        }
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(if chars.next_if_eq(&'*').is_some() {
                usize::try_from(integer("*", &next()?)?.max(0)).unwrap_or(usize::MAX)
            } else {
                number(&mut chars).unwrap_or(0)
            });
        }
        while chars.next_if(|c| matches!(c, 'h' | 'l' | 'L')).is_some() {}
        let Some(conversion) = chars.next() else { return wrong("incomplete format") };
        if conversion == '%' {
            out.push('%');
            continue;
        }
        let value = match keyed {
            Some(value) => value,
            None => next()?,
        };
        machine
            .meter
            .text(out.len().saturating_add(spec.width).saturating_add(spec.precision.unwrap_or(0)))?;
        out += &converted(machine, &value, conversion, spec, safe)?;
    }
    machine.meter.text(out.len())?;
    if !is_mapping && values.next().is_some() {
        return wrong("not all arguments converted during string formatting");
    }
    Ok(Value::Text(Arc::from(out), safe))
}

fn number(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<usize> {
    let mut n = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        n = Some(n.unwrap_or(0_usize).saturating_mul(10).saturating_add(digit as usize));
    }
    n
}

/// One conversion of `%`.
fn converted(
    machine: &Machine<'_>,
    value: &Value,
    conversion: char,
    mut spec: Spec,
    safe: bool,
) -> Outcome<String> {
    match conversion {
        's' | 'r' | 'a' => {
            let mut text = if conversion == 's' {
                printing::text(&machine.meter, value)?.to_string()
            } else {
                let mut out = String::new();
                write_repr(&machine.meter, &mut out, value)?;
                out
            };
            if safe && !matches!(value, Value::Text(_, true)) {
                text = escaped(&text);
            }
            if let Some(precision) = spec.precision {
                text = text.chars().take(precision).collect();
            }
            spec.zero = false;
            Ok(pad(&text, &spec, '>'))
        }
        'c' => match value {
            Value::Text(text, _) if text.chars().count() == 1 => Ok(pad(text, &spec, '>')),
            other => {
                let code = u32::try_from(integer("%c", other)?).ok().and_then(char::from_u32);
                match code {
                    Some(c) => Ok(pad(&c.to_string(), &spec, '>')),
                    None => wrong("%c arg not in range"),
                }
            }
        },
        'd' | 'i' | 'u' => {
            let n = match value {
                Value::Float(f) => match whole(f.trunc()) {
                    Some(n) => n,
                    None => return wrong("cannot convert this float to an integer"),
                },
                Value::Undefined(absent) => return Err(absent.fault()),
                other => match other.as_integer() {
                    Some(n) => n,
                    None => {
                        return wrong(format!(
                            "%{conversion} format: a real number is required, not {}",
                            other.type_name()
                        ));
                    }
                },
            };
            Ok(numeric(&least_digits(n.unsigned_abs().to_string(), &spec), n < 0, "", &spec))
        }
        'o' | 'x' | 'X' => {
            let n = integer(&format!("%{conversion} format"), value)?;
            let (digits, prefix) = radix(n.unsigned_abs(), conversion);
            let prefix = if spec.alternate { prefix } else { "" };
            Ok(numeric(&least_digits(digits, &spec), n < 0, prefix, &spec))
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let float = match value {
                Value::Undefined(absent) => return Err(absent.fault()),
                other => other.as_float(),
            };
            let Some(float) = float else {
                return wrong(format!("must be real number, not {}", value.type_name()));
            };
            let digits = float_digits(float.abs(), conversion, spec.precision.unwrap_or(6), spec.alternate);
            Ok(numeric(&digits, float.is_sign_negative() && !float.is_nan(), "", &spec))
        }
        other => wrong(format!("unsupported format character '{other}'")),
    }
}

fn least_digits(digits: String, spec: &Spec) -> String {
    let zeros = spec.precision.unwrap_or(0).saturating_sub(digits.len());
    if zeros == 0 { digits } else { "0".repeat(zeros) + &digits }
}

fn radix(n: u128, kind: char) -> (String, &'static str) {
    match kind {
        'b' => (format!("{n:b}"), "0b"),
        'o' => (format!("{n:o}"), "0o"),
        'x' => (format!("{n:x}"), "0x"),
        _ => (format!("{n:X}"), "0X"),
    }
}

/// The digits of a float without its sign.
fn float_digits(float: f64, kind: char, precision: usize, alternate: bool) -> String {
    let upper = kind.is_ascii_uppercase();
    let cased = |text: String| if upper { text.to_uppercase() } else { text };
    if !float.is_finite() {
        return cased(float_text(float));
    }
    let exponent_form = |precision: usize| {
        let text = format!("{float:.precision$e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        (mantissa.to_owned(), exponent, format!("e{sign}{:02}", exponent.abs()))
    };
    match kind.to_ascii_lowercase() {
        'e' => {
            let (mantissa, _, exponent) = exponent_form(precision);
            cased(mantissa + &exponent)
        }
        'f' => format!("{float:.precision$}"),
        _ => {
            let precision = precision.max(1);
            let (mantissa, exponent, suffix) = exponent_form(precision - 1);
            let short = |text: String| {
                if alternate || !text.contains('.') {
                    return text;
                }
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            };
            let limit = i32::try_from(precision).unwrap_or(i32::MAX);
            if exponent < -4 || exponent >= limit {
                cased(short(mantissa) + &suffix)
            } else {
                let decimals = usize::try_from(limit - 1 - exponent).unwrap_or(0);
                short(format!("{float:.decimals$}"))
            }
        }
    }
}

/// Digits with their sign, prefix and padding.
fn numeric(digits: &str, negative: bool, prefix: &str, spec: &Spec) -> String {
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let zero = spec.zero && spec.align.is_none() || spec.align == Some('=');
    if zero {
        let fill = if spec.zero && spec.fill.is_none() { '0' } else { spec.fill.unwrap_or(' ') };
        let used = sign.len() + prefix.len() + digits.chars().count();
        let zeros = String::from(fill).repeat(spec.width.saturating_sub(used));
        return format!("{sign}{prefix}{zeros}{digits}");
    }
    pad(&format!("{sign}{prefix}{digits}"), spec, '>')
}

fn pad(text: &str, spec: &Spec, default: char) -> String {
    let gap = spec.width.saturating_sub(text.chars().count());
    if gap == 0 {
        return text.to_owned();
    }
    let fill = String::from(spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' }));
    let left = match spec.align.unwrap_or(default) {
        '<' => 0,
        '^' => gap / 2,
        _ => gap,
    };
    format!("{}{text}{}", fill.repeat(left), fill.repeat(gap - left))
}

/// `format.format(...)`.
pub(super) fn format(machine: &Machine<'_>, format: &str, safe: bool, given: &Given) -> Outcome<Value> {
    let mut next = 0;
    let out = filled(machine, format, safe, given, &mut next, 0)?;
    Ok(Value::Text(Arc::from(out), safe))
}

fn filled(
    machine: &Machine<'_>,
    format: &str,
    safe: bool,
    given: &Given,
    next: &mut usize,
    depth: usize,
) -> Outcome<String> {
    if depth > 2 {
        return wrong("max string recursion exceeded");
    }
    let mut out = String::with_capacity(format.len());
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return wrong("single '}' encountered in format string");
        }
        let mut open = 1;
        let end = rest.char_indices().find(|(_, c)| {
            open += i32::from(*c == '{') - i32::from(*c == '}');
            open == 0
        });
        let Some((end, _)) = end else { return wrong("expected '}' before end of string") };
        let field = &rest[..end];
        rest = &rest[end + 1..];
        let (field, spec) = match field.find([':', '!']) {
            Some(at) => field.split_at(at),
            None => (field, ""),
        };
        let (conversion, spec) = match spec.strip_prefix('!') {
            Some(after) => {
                let conversion = after.chars().next();
                let after = conversion.map_or("", |c| &after[c.len_utf8()..]);
                (conversion, after.strip_prefix(':').unwrap_or(after))
            }
            None => (None, spec.strip_prefix(':').unwrap_or(spec)),
        };
        let mut value = field_value(machine, field, given, next)?;
        match conversion {
            None => {}
            Some('s') => value = Value::Text(printing::text(&machine.meter, &value)?, false),
            Some('r' | 'a') => {
                let mut text = String::new();
                write_repr(&machine.meter, &mut text, &value)?;
                value = Value::text(text);
            }
            Some(other) => return wrong(format!("unknown conversion specifier '{other}'")),
        }
        let spec = filled(machine, spec, false, given, next, depth + 1)?;
        let mut text = formatted(machine, &value, &spec)?;
        if safe && !matches!(value, Value::Text(_, true)) {
            text = escaped(&text);
        }
        machine.meter.grow(out.len(), text.len())?;
        out += &text;
    }
    out.push_str(rest);
    Ok(out)
}

fn field_value(machine: &Machine<'_>, field: &str, given: &Given, next: &mut usize) -> Outcome<Value> {
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let (first, mut rest) = field.split_at(end);
    let position = if first.is_empty() {
        *next += 1;
        Some(*next - 1)
    } else {
        first.parse::<usize>().ok()
    };
    let found = match position {
        Some(at) => given.positional.get(at),
        None => given.named.iter().find(|(name, _)| **name == *first).map(|(_, value)| value),
    };
    let Some(mut value) = found.cloned() else {
        return wrong(format!("the format reads '{first}', which is not given"));
    };
    while !rest.is_empty() {
        let (name, after) = if let Some(inside) = rest.strip_prefix('[') {
            match inside.split_once(']') {
                Some(split) => split,
                None => return wrong("missing ']' in format string"),
            }
        } else {
            let inside = &rest[1..];
            inside.split_at(inside.find(['.', '[']).unwrap_or(inside.len()))
        };
        let index = match name.parse() {
            Ok(n) if rest.starts_with('[') => Value::Integer(n),
            _ => Value::text(name),
        };
        value = machine.item(&value, &index, &Arc::from(field))?;
        rest = after;
    }
    Ok(value)
}

fn parse_spec(spec: &str) -> Outcome<Spec> {
    let mut out = Spec::default();
    let mut chars = spec.chars().peekable();
    let mut ahead = spec.chars();
    let (first, second) = (ahead.next(), ahead.next());
    let is_align = |c: Option<char>| matches!(c, Some('<' | '>' | '=' | '^'));
    if is_align(second) {
        out.fill = first;
        out.align = second;
        chars.next();
        chars.next();
    } else if is_align(first) {
        out.align = first;
        chars.next();
    }
    out.sign = chars.next_if(|c| matches!(c, '+' | '-' | ' '));
    out.alternate = chars.next_if_eq(&'#').is_some();
    out.zero = chars.next_if_eq(&'0').is_some();
    out.width = number(&mut chars).unwrap_or(0);
    out.group = chars.next_if(|c| matches!(c, ',' | '_'));
    if chars.next_if_eq(&'.').is_some() {
        out.precision = number(&mut chars);
        if out.precision.is_none() {
            return wrong("format specifier missing precision");
        }
    }
    out.kind = chars.next();
    if chars.next().is_some() {
        return wrong(format!("invalid format specifier '{spec}'"));
    }
    Ok(out)
}

/// A value by a format specification.
fn formatted(machine: &Machine<'_>, value: &Value, spec: &str) -> Outcome<String> {
    if spec.is_empty() {
        return Ok(printing::text(&machine.meter, value)?.to_string());
    }
    let mut spec = parse_spec(spec)?;
    machine.meter.text(spec.width.saturating_add(spec.precision.unwrap_or(0)))?;
    let unknown = |kind: char| {
        wrong(format!("unknown format code '{kind}' for object of type '{}'", value.type_name()))
    };
    match value {
        Value::Text(text, _) => {
            match spec.kind {
                None | Some('s') => {}
                Some(kind) => return unknown(kind),
            }
            if spec.align == Some('=') || spec.sign.is_some() {
                return wrong("sign and '=' alignment are not allowed in a string format specifier");
            }
            let text: String = match spec.precision {
                Some(precision) => text.chars().take(precision).collect(),
                None => text.to_string(),
            };
            Ok(pad(&text, &spec, '<'))
        }
        Value::Integer(_) | Value::Bool(_)
            if matches!(spec.kind, None | Some('d' | 'n' | 'b' | 'o' | 'x' | 'X' | 'c')) =>
        {
            let n = value.as_integer().unwrap_or_default();
            if spec.precision.is_some() {
                return wrong("precision not allowed in integer format specifier");
            }
            match spec.kind {
                Some('c') => match u32::try_from(n).ok().and_then(char::from_u32) {
                    Some(c) => Ok(pad(&c.to_string(), &spec, '<')),
                    None => wrong("%c arg not in range"),
                },
                Some(kind @ ('b' | 'o' | 'x' | 'X')) => {
                    let (digits, prefix) = radix(n.unsigned_abs(), kind);
                    let digits = grouped(&digits, spec.group, 4);
                    Ok(numeric(&digits, n < 0, if spec.alternate { prefix } else { "" }, &spec))
                }
                _ => {
                    let digits = grouped(&n.unsigned_abs().to_string(), spec.group, 3);
                    Ok(numeric(&digits, n < 0, "", &spec))
                }
            }
        }
        Value::Integer(_) | Value::Bool(_) | Value::Float(_) => {
            let float = value.as_float().unwrap_or_default();
            let negative = float.is_sign_negative() && !float.is_nan();
            let digits = match spec.kind {
                None => match spec.precision {
                    None => float_text(float.abs()),
                    Some(precision) => {
                        let digits = float_digits(float.abs(), 'g', precision, spec.alternate);
                        if digits.contains(['.', 'e', 'n', 'i']) { digits } else { digits + ".0" }
                    }
                },
                Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G')) => {
                    float_digits(float.abs(), kind, spec.precision.unwrap_or(6), spec.alternate)
                }
                Some('n') => float_digits(float.abs(), 'g', spec.precision.unwrap_or(6), spec.alternate),
                Some('%') => {
                    let digits = float_digits(float.abs() * 100.0, 'f', spec.precision.unwrap_or(6), false);
                    format!("{digits}%")
                }
                Some(kind) => return unknown(kind),
            };
            let (before, after) = match digits.find(['.', 'e', '%']) {
                Some(at) => digits.split_at(at),
                None => (&*digits, ""),
            };
            let digits = grouped(before, spec.group, 3) + after;
            spec.precision = None;
            Ok(numeric(&digits, negative, "", &spec))
        }
        other => wrong(format!("unsupported format string passed to {}.__format__", other.type_name())),
    }
}

/// Digits in groups.
fn grouped(digits: &str, separator: Option<char>, size: usize) -> String {
    let Some(separator) = separator else { return digits.to_owned() };
    let mut out = String::new();
    for (at, c) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(size) {
            out.push(separator);
        }
        out.push(c);
    }
    out
}
