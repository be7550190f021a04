//! JSON exactly as Python's `json.dumps(value, indent=2, sort_keys=True)` writes it.

use std::io;

use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Renders with sorted keys, two spaces, ASCII only, Python's spelling of floats, no final newline.
pub(crate) fn dumps(value: &Value) -> String {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, Python(PrettyFormatter::new()));
    burnish_weight_files::sorted(value)
        .serialize(&mut serializer)
        .expect("invariant: a JSON value serialises into memory");
    String::from_utf8(out).expect("invariant: the formatter writes ASCII")
}

struct Python(PrettyFormatter<'static>);

impl Formatter for Python {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        let mut units = [0; 2];
        for c in text.chars() {
            if c.is_ascii() && c != '\u{7f}' {
                writer.write_all(&[c as u8])?;
            } else if c == '\u{7f}' {
                writer.write_all(&[0x7f])?;
            } else {
                for unit in c.encode_utf16(&mut units) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.begin_array(w)
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_array(w)
    }
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(w, first)
    }
    fn end_array_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_array_value(w)
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.begin_object(w)
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_object(w)
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(w, first)
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.begin_object_value(w)
    }
    fn end_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_object_value(w)
    }
}

/// `repr(float)`: shortest digits, an exponent of at least two digits below 1e-4 and from 1e16 on.
fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn floats_as_python_writes_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (0.05, "0.05"),
            (16.0, "16.0"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (2.5e-7, "2.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1e100, "1e+100"),
            (0.1 + 0.2, "0.30000000000000004"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn text_as_python_writes_it() {
        let value = json!({"b": [], "a": {}, "ü": "é😀\n\"\u{7f}", "c": [1, 2.0]});
        assert_eq!(
            dumps(&value),
            "{\n  \"a\": {},\n  \"b\": [],\n  \"c\": [\n    1,\n    2.0\n  ],\n  \
             \"\\u00fc\": \"\\u00e9\\ud83d\\ude00\\n\\\"\u{7f}\"\n}"
        );
    }
}
