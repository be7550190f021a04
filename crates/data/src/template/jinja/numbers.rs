//! Numbers: Python's text of floats, reading, rounding, arithmetic.

use super::ast::Operator;
use super::fault::{Outcome, wrong};
use super::text::{decimal, is_space};
use super::value::Value;

/// A float that is a whole number, as that number.
#[allow(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
pub(super) fn whole(float: f64) -> Option<i128> {
    (float.is_finite() && float.fract() == 0.0 && float.abs() < 1e38).then_some(float as i128)
}

/// Python's `repr` of a float: the shortest text that reads back, with an exponent outside of 1e-4 to 1e16.
pub(super) fn float_text(float: f64) -> String {
    if float.is_nan() {
        return "nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let text = format!("{float:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{float}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Digits with single underscores between them, without the underscores.
fn plain_digits(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut previous = '_';
    for c in text.chars() {
        if c == '_' {
            if previous == '_' {
                return None;
            }
        } else {
            out.push(decimal(c).and_then(|d| char::from_digit(d, 10)).unwrap_or(c));
        }
        previous = c;
    }
    (previous != '_').then_some(out)
}

/// Python's `int(text, base)`.
pub(super) fn parse_integer(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match (base, lower.get(..2)) {
        (2 | 0, Some("0b")) => (2, lower[2..].trim_start_matches('_').to_owned()),
        (8 | 0, Some("0o")) => (8, lower[2..].trim_start_matches('_').to_owned()),
        (16 | 0, Some("0x")) => (16, lower[2..].trim_start_matches('_').to_owned()),
        (0, _) => (10, lower),
        (base, _) => (base, lower),
    };
    let digits = plain_digits(&digits)?;
    if digits.is_empty() || digits.starts_with(['+', '-']) || !(2..=36).contains(&base) {
        return None;
    }
    i128::from_str_radix(&digits, base).ok().map(|n| if negative { -n } else { n })
}

/// Python's `float(text)`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let digits = plain_digits(text)?;
    let lower = digits.to_ascii_lowercase();
    let unsigned = lower.strip_prefix(['+', '-']).unwrap_or(&lower);
    let named = matches!(unsigned, "inf" | "infinity" | "nan");
    let starts = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if !named && !starts {
        return None;
    }
    lower.parse().ok()
}

/// Python's `round(float, digits)`.
pub(super) fn round(float: f64, digits: i128) -> f64 {
    if !float.is_finite() || digits > 323 {
        return float;
    }
    if digits >= 0 {
        let digits = usize::try_from(digits).unwrap_or(323);
        return format!("{float:.digits$}").parse().unwrap_or(float);
    }
    if digits < -308 {
        return 0.0_f64.copysign(float);
    }
    let power = 10_f64.powi(i32::try_from(-digits).unwrap_or(308));
    let scaled = float / power;
    let near = scaled.round_ties_even();
    near * power
}

fn overflow<T>() -> Outcome<T> {
    wrong("an integer of more than 127 bits")
}

fn integer(value: Option<i128>) -> Outcome<Value> {
    value.map_or_else(overflow, |n| Ok(Value::Integer(n)))
}

/// Arithmetic on two integers.
#[allow(clippy::cast_precision_loss, reason = "Python rounds integers alike")]
pub(super) fn integers(operator: Operator, a: i128, b: i128) -> Outcome<Value> {
    match operator {
        Operator::Add => integer(a.checked_add(b)),
        Operator::Sub => integer(a.checked_sub(b)),
        Operator::Mul => integer(a.checked_mul(b)),
        Operator::Div if b == 0 => wrong("division by zero"),
        Operator::Div => Ok(Value::Float(a as f64 / b as f64)),
        Operator::FloorDiv | Operator::Mod if b == 0 => wrong("integer division or modulo by zero"),
        Operator::FloorDiv => {
            let quotient = a.checked_div(b);
            let below = quotient.is_some_and(|_| a % b != 0 && (a < 0) != (b < 0));
            integer(quotient.map(|q| q - i128::from(below)))
        }
        Operator::Mod => {
            let rest = a.checked_rem(b);
            integer(rest.map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }))
        }
        Operator::Pow if b < 0 && a == 0 => wrong("0.0 cannot be raised to a negative power"),
        Operator::Pow if b < 0 => Ok(Value::Float((a as f64).powf(b as f64))),
        Operator::Pow => match (a, u32::try_from(b)) {
            (_, Ok(power)) => integer(a.checked_pow(power)),
            (0 | 1, Err(_)) => Ok(Value::Integer(a)),
            (-1, Err(_)) => Ok(Value::Integer(if b % 2 == 0 { 1 } else { -1 })),
            _ => overflow(),
        },
    }
}

/// Arithmetic on two floats.
pub(super) fn floats(operator: Operator, a: f64, b: f64) -> Outcome<Value> {
    let value = match operator {
        Operator::Add => a + b,
        Operator::Sub => a - b,
        Operator::Mul => a * b,
        Operator::Div if b == 0.0 => return wrong("float division by zero"),
        Operator::Div => a / b,
        Operator::FloorDiv | Operator::Mod if b == 0.0 => return wrong("float floor division by zero"),
        Operator::FloorDiv => {
            let rest = modulo(a, b);
            let quotient = (a - rest) / b;
            let floor = quotient.floor();
            let floor = if quotient - floor > 0.5 { floor + 1.0 } else { floor };
            if quotient == 0.0 { 0.0_f64.copysign(a / b) } else { floor }
        }
        Operator::Mod => modulo(a, b),
        Operator::Pow if a == 0.0 && b < 0.0 => {
            return wrong("0.0 cannot be raised to a negative power");
        }
        Operator::Pow if a < 0.0 && b.is_finite() && b.fract() != 0.0 => {
            return wrong("a power that is a complex number");
        }
        Operator::Pow => {
            let power = a.powf(b);
            if power.is_infinite() && a.is_finite() && b.is_finite() {
                return wrong("numerical result out of range");
            }
            power
        }
    };
    Ok(Value::Float(value))
}

/// Python's float `%`, whose sign is the divisor's.
fn modulo(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest == 0.0 {
        0.0_f64.copysign(b)
    } else if (rest < 0.0) == (b < 0.0) {
        rest
    } else {
        rest + b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-5, "1e-05"),
            (1e-7, "1e-07"),
            (0.0001, "0.0001"),
            (1e15, "1000000000000000.0"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (-0.0, "-0.0"),
        ];
        for (float, text) in cases {
            assert_eq!(float_text(float), text);
        }
    }

    #[test]
    fn texts_are_read_as_python_reads_them() {
        assert_eq!(parse_integer(" -1_000 ", 10), Some(-1000));
        assert_eq!(parse_integer("0x_ff", 16), Some(255));
        for bad in ["", "1.5", "word", "1__0", "_1", "+-1"] {
            assert_eq!(parse_integer(bad, 10), None, "{bad}");
        }
        assert_eq!(parse_float(" 1_0.5e1 "), Some(105.0));
        assert_eq!(parse_float("infinit"), None);
        assert_eq!(round(2.675, 2).to_bits(), 2.67_f64.to_bits());
    }
}
