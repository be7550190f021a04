//! Normalisation of LaTeX: spacing, sizes, fonts, currencies and units are taken out.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// How much is forgiven.
#[derive(Clone, Copy)]
pub(super) struct Normal {
    /// Read `\frac12` and `\sqrt2` as TeX does. Solutions may be written so; completions have to use braces.
    pub(super) lenient: bool,
}

struct Rule {
    pattern: Regex,
    replacement: &'static str,
}

/// In this order.
static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    rules(&[
        (
            r"\\m?(?:left|right)(\\[{}|]|[\[\](){}|]|\\(?:[lr](?:vert|ceil|floor|angle|brace|brack)|vert))",
            "$1",
        ),
        (r"\\displaystyle|\\!\s*|\\?\$|\\mathrm\{th\}|\\text\s*\{\s*\}", ""),
        (r"\\(?:math|text)(?:normal|rm|it|bf|sf|tt)\s*\{", r"\text{"),
        (r"\\[dtc]frac", r"\frac"),
        (r"\s*\{\s*,\s*\}", ","),
        (r",?\s*\\text\{\s*(?:and|or)\s*\}", ","),
        (r"(^|[^a-zA-Z])(?:,?\s*)(?:and|or)([^a-zA-Z]|$)", "$1,$2"),
        (r"\s*\\text\{\s*(?:percentage|percent|pct)\s*\}", r"\%"),
        (r"\s*\b(?:percentage|percent|pct)\b", r"\%"),
        (r",?\\ldots", " "),
        (r"(^|[^\\a-zA-Z])(?:infinity|inf)\b", r"$1\infty"),
        (r"(^|[^\\])\\\s", "$1 "),
        (r"[\n\t]", " "),
    ])
});

/// As TeX reads what follows without braces.
static LENIENT: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    rules(&[(r"\\frac\s*(\d)\s*(\d+)", r"\frac{$1}{$2}"), (r"\\(frac|sqrt)\s*(\d)", r"\$1{$2}")])
});

fn rules(rules: &[(&str, &'static str)]) -> Vec<Rule> {
    let rule = |&(pattern, replacement): &(&str, &'static str)| Rule {
        pattern: Regex::new(pattern).expect("the patterns of this file are correct"),
        replacement,
    };
    rules.iter().map(rule).collect()
}

/// A word in text at the end, with a power: `\text{ cm}^2`.
static UNIT_TEXT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\\(?:text|mbox)\{.*\}(?:\^\d|\^\{\d\}|\{\^\d\})?$").expect("the pattern is correct")
});

/// A unit behind a number or a formula.
static UNIT: LazyLock<Regex> = LazyLock::new(|| {
    let units = UNITS.join("|");
    Regex::new(&format!(r"([\d}}\s])\s*(?:{units})(?:s|es)?\s*$")).expect("the units are words")
});

const UNITS: &[&str] = &[
    "millimeter",
    "millimetre",
    "centimeter",
    "centimetre",
    "kilometer",
    "kilometre",
    "meter",
    "metre",
    "mile",
    "yard",
    "foot",
    "feet",
    "inch",
    "ft",
    "mm",
    "cm",
    "dm",
    "km",
    "m",
    "sq m",
    "sq",
    "acre",
    "hectare",
    "square",
    "cubic",
    "cube",
    "milliliter",
    "liter",
    "litre",
    "gallon",
    "gal",
    "ml",
    "l",
    "cc",
    "gram",
    "kilogram",
    "pound",
    "ounce",
    "lb",
    "oz",
    "mg",
    "kg",
    "gm",
    "g",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "year",
    "sec",
    "min",
    "hr",
    "yr",
    "s",
    "h",
    "d",
    "am",
    "pm",
    "mph",
    "kmph",
    "kmh",
    "degree",
    "deg",
    "ohm",
    "cent",
    "rupee",
    "rs",
    "unit",
    "point",
    "digit",
    "number",
    "student",
    "men",
    "man",
    "women",
    "woman",
    "apple",
    "coin",
    "tile",
    "edge",
    "meal",
];

/// A text with everything that does not matter removed.
pub(super) fn normal(text: &str, how: Normal) -> String {
    let mut text = text.to_owned();
    let lenient = if how.lenient { LENIENT.as_slice() } else { &[] };
    for Rule { pattern, replacement } in RULES.iter().chain(lenient) {
        text = pattern.replace_all(&text, *replacement).into_owned();
    }
    text = without_quotes(&text);
    let bare = UNIT_TEXT.replace(&text, "").trim().to_owned();
    if !bare.is_empty() {
        text = bare;
    }
    // Twice, for "sq m".
    for _ in 0..2 {
        let bare = UNIT.replace(&text, |found: &Captures<'_>| found[1].to_owned()).into_owned();
        if !bare.is_empty() {
            text = bare;
        }
    }
    if how.lenient && text.starts_with('.') {
        text.insert(0, '0');
    }
    text.trim().to_owned()
}

fn without_quotes(text: &str) -> String {
    let mut before = None;
    text.chars()
        .filter(|&c| {
            let kept = !"\"'".contains(c) || before == Some('\\');
            before = Some(c);
            kept
        })
        .collect()
}
