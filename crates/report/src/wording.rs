//! Numbers formatted for people: bytes, counts, durations; text that is safe to show.

use std::borrow::Cow;
use std::time::Duration;

/// Text from outside as a terminal may have it: control characters other than line breaks and tabs (escape codes among
/// them), and marks that turn the direction of writing, become their numbers.
///
/// ```
/// assert_eq!(burnish_report::harmless("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\n");
/// ```
#[must_use]
pub fn harmless(text: &str) -> Cow<'_, str> {
    let harms = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(harms) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if harms(c) { c.escape_unicode().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Text from outside as SVG and HTML may have it.
///
/// ```
/// assert_eq!(burnish_report::escaped("<b>&\x1b"), "&lt;b&gt;&amp;\\u{1b}");
/// ```
#[must_use]
pub fn escaped(text: &str) -> String {
    harmless(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Bytes in decimal units: `310 MB`, `1.24 GB`.
#[must_use]
pub fn bytes(n: u64) -> String {
    scaled(n, &["B", "kB", "MB", "GB", "TB"])
}

/// A count with a short suffix: `950`, `12.3k`, `4.10M`.
#[must_use]
pub fn count(n: u64) -> String {
    scaled(n, &["", "k", "M", "G", "T"]).replace(' ', "")
}

/// Three digits and a unit; whole numbers below a thousand.
fn scaled(n: u64, units: &[&str]) -> String {
    if n < 1000 {
        return format!("{n} {}", units[0]).trim_end().to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = n as f64;
    let mut unit = 0;
    // 999.5 and above would be shown as 1000.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {}", units[unit])
}

/// A duration in its two largest units: `4.2 s`, `3 min 05 s`, `2 h 07 min`.
#[must_use]
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => {
            let seconds = time.as_secs_f64();
            if seconds < 9.95 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
        }
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A metric with four significant digits, in scientific notation when it is very small or large.
#[must_use]
pub fn figure(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() {
        format!("{value}")
    } else if !(1e-3..1e6).contains(&size) {
        format!("{value:.2e}")
    } else {
        let digits = (3.0 - size.log10().floor()).clamp(0.0, 6.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 6")]
        let digits = digits as usize;
        format!("{value:.digits$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        for (n, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9_994, "9.99 kB"),
            (9_996, "10.0 kB"),
            (99_960, "100 kB"),
            (999_600, "1.00 MB"),
            (310_400_000, "310 MB"),
            (u64::MAX, "18446744 TB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!((count(950).as_str(), count(12_340).as_str()), ("950", "12.3k"));
    }

    #[test]
    fn two_units() {
        let of = |seconds| duration(Duration::from_secs_f64(seconds));
        assert_eq!(of(4.23), "4.2 s");
        assert_eq!(of(59.6), "60 s");
        assert_eq!(of(185.0), "3 min 05 s");
        assert_eq!(of(7620.0), "2 h 07 min");
    }

    #[test]
    fn four_digits() {
        for (value, text) in [
            (2.345_67, "2.346"),
            (0.012_345, "0.01235"),
            (2e-5, "2.00e-5"),
            (1234.5, "1234"),
            (0.0, "0"),
            (-12.34, "-12.34"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert_eq!(figure(f64::NAN), "NaN");
    }
}
