//! `strftime_now`: the date a template writes, from a clock that can be fixed.

use std::time::{SystemTime, UNIX_EPOCH};

/// What `strftime_now` takes for now. All times are UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The machine's clock.
    #[default]
    Now,
    /// Seconds since 1970-01-01, so that a run can be repeated on another day.
    Fixed(i64),
}

impl Clock {
    pub(super) fn seconds(self) -> i64 {
        match self {
            Self::Fixed(seconds) => seconds,
            Self::Now => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .ok()
                .and_then(|d| i64::try_from(d.as_secs()).ok())
                .unwrap_or(0),
        }
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Python's `strftime` in the C locale.
pub(super) fn strftime(format: &str, seconds: i64) -> Result<String, char> {
    let (days, second_of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let weekday = usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0);
    let year_day = days - days_of(year, 1, 1) + 1;
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let month_name = MONTHS[usize::try_from(month - 1).unwrap_or(0)];
    let again = |f: &str| strftime(f, seconds);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next().unwrap_or('%');
        let bare = directive == '-';
        if bare {
            directive = chars.next().unwrap_or('-');
        }
        let two = |n: i64| if bare { n.to_string() } else { format!("{n:02}") };
        out += &match directive {
            'Y' => year.to_string(),
            'y' => two(year.rem_euclid(100)),
            'm' => two(month),
            'd' => two(day),
            'e' => format!("{day:>2}"),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'A' => DAYS[weekday].to_owned(),
            'a' => DAYS[weekday][..3].to_owned(),
            'w' => weekday.to_string(),
            'u' => if weekday == 0 { 7 } else { weekday }.to_string(),
            'j' => {
                if bare {
                    year_day.to_string()
                } else {
                    format!("{year_day:03}")
                }
            }
            'H' => two(hour),
            'I' => two(hour12),
            'M' => two(minute),
            'S' => two(second),
            'f' => "000000".to_owned(),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => again("%Y-%m-%d")?,
            'T' | 'X' => again("%H:%M:%S")?,
            'R' => again("%H:%M")?,
            'D' | 'x' => again("%m/%d/%y")?,
            'c' => again("%a %b %e %H:%M:%S %Y")?,
            's' => seconds.to_string(),
            'Z' | 'z' => String::new(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            other => return Err(other),
        };
    }
    Ok(out)
}

/// Year, month and day of a day count from 1970-01-01 (H. Hinnant, "chrono-compatible low-level date algorithms").
const fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, doy - (153 * mp + 2) / 5 + 1)
}

const fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        let at = |f: &str, s: i64| strftime(f, s).expect("known directives");
        assert_eq!(at("%d %b %Y", 1_721_952_000), "26 Jul 2024");
        assert_eq!(at("%A, %B %-d, %Y %H:%M:%S %j", 951_827_696), "Tuesday, February 29, 2000 12:34:56 060");
        assert_eq!(at("%Y-%m-%d %I %p", -1), "1969-12-31 11 PM");
        assert_eq!(strftime("%Q", 0), Err('Q'));
        for days in (-200_000..200_000).step_by(97) {
            let (y, m, d) = civil(days);
            assert_eq!(days_of(y, m, d), days);
        }
    }
}
