//! Chat templates: without end, without bottom, without bounds.

use anyhow::Result;

use crate::lab::{Lab, has_null};
use crate::random::Random;
use crate::verdict::{Outcome, judge};

/// Templates that have to be errors.
const BOUNDLESS: [&str; 33] = [
    "{% for a in range(99999999) %}{% for b in range(99999999) %}{% endfor %}{% endfor %}",
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}{% endfor %}",
    "{{ range(99999999999) | list | length }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(0) }}",
    "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set ns = namespace(s='x') %}{% for i in range(200) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s='x') %}{% for i in range(200) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}",
    "{% set ns = namespace(s='xx') %}{% for i in range(200) %}{% set ns.s = ns.s.replace('x', 'xxxx') %}{% endfor %}",
    "{% set ns = namespace(s='xx') %}{% for i in range(200) %}{% set ns.s = ns.s | replace('x', ns.s) %}{% endfor %}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(200) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l | length }}",
    "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] | join(ns.s) %}{% endfor %}",
    "{{ 'x' * 99999999999 }}",
    "{{ [1] * 99999999999 }}",
    "{{ ('x' * 1000000) * 1000000 }}",
    "{{ 'x'.zfill(99999999999) }}",
    "{{ 'x'.ljust(99999999999) }}",
    "{{ 'x'.rjust(9223372036854775807) }}",
    "{{ 'x'.center(99999999999) }}",
    "{{ 'x' | center(99999999999) }}",
    "{{ 'a\nb' | indent(99999999999) }}",
    "{{ '%99999999999d' | format(3) }}",
    "{{ '%.99999999999f' | format(3.0) }}",
    "{{ '{:99999999999}'.format(3) }}",
    "{{ '{0:>999999999999}'.format('a') }}",
    "{{ 'a\tb'.expandtabs(99999999999) }}",
    "{% for i in range(3) %}{{ loop.cycle() }}{% endfor %}",
    "{{ 2 ** 99999999999 }}",
    "{{ 10 ** 10 ** 10 ** 10 }}",
    "{{ 1 / 0 }}",
    "{{ 1 // 0 }}{{ 1 % 0 }}",
    "{{ 'x' | wordwrap(0) }}{{ messages | slice(0) | list }}",
    "{% set ns = namespace(l=[]) %}{% for i in range(999999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
];

/// Templates that may mean something, or not.
const ODD: [&str; 17] = [
    "{{ messages | batch(0) | list }}",
    "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns.a == ns.a.a }}",
    "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns | tojson }}",
    "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}",
    "{% set ns = namespace(l=[], k=[]) %}{% for i in range(9000) %}{% set ns.l = [ns.l] %}{% set ns.k = [ns.k] %}{% endfor %}{{ ns.l == ns.k }}",
    "\u{1b}]0;title\u{7}{{ messages[0].content }}",
    "{{ messages[99999999].content }}",
    "{{ messages[-99999999999999999999] }}",
    "{{ 'abc'[::0] }}",
    "{{ 'abc'[9223372036854775807:-9223372036854775808:-1] }}",
    "{{ 9223372036854775807 + 1 }}{{ -9223372036854775808 - 1 }}{{ 9223372036854775807 * 3 }}",
    "{{ (-9223372036854775808) // -1 }}{{ (-9223372036854775808) | abs }}",
    "{{ 1e308 * 10 }}{{ (1e308 * 10) | int }}{{ 'nan' | float | int }}",
    "{{ range(10, 0, 0) | list }}",
    "{{ 'x' | truncate(-1) }}{{ 'x' | round(999) }}{{ 3.7 | round(-400) }}",
];

/// Parts that templates are drawn of.
const PARTS: [&str; 46] = [
    "messages",
    "loop.index",
    "loop.cycle('a', 1)",
    "ns.s",
    "'a'",
    "'é\\u0301'",
    "3",
    "-1",
    "1e300",
    "[]",
    "{}",
    "none",
    "true",
    "range(99)",
    "range(100000)",
    "[1, [2, [3]]]",
    "messages[0]",
    "messages[-1].content",
    "x",
    "undefined_thing",
    "| length",
    "| join(',')",
    "| upper",
    "| tojson",
    "| tojson(indent=9999)",
    "| list",
    "| first",
    "| last",
    "| reverse",
    "| sort",
    "| unique",
    "| map('upper')",
    "| selectattr('role')",
    "| batch(3)",
    "| groupby('role')",
    "| trim",
    "| int",
    "| float",
    "| string",
    "| dictsort",
    "| items",
    "* 3",
    "+ 'a'",
    "** 77",
    "% 7",
    "~ x",
];

pub(crate) fn written(_: &Lab) -> usize {
    BOUNDLESS.len() + ODD.len() + 6
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let boundless = BOUNDLESS.get(attempt);
    let odd = ODD.get(attempt.wrapping_sub(BOUNDLESS.len()));
    let text = match (boundless, odd) {
        (Some(text), _) | (_, Some(text)) => (*text).to_owned(),
        _ if attempt < written(lab) => long(attempt - BOUNDLESS.len() - ODD.len()),
        _ => drawn(lab, random)?,
    };
    let folder = lab.fresh()?;
    let path = folder.path().join("chat_template.jinja");
    std::fs::write(&path, &text)?;
    let template = format!("--chat_template_path={}", path.display());
    let mut running = lab.running(lab.score(&lab.model(), &lab.rows("messages.jsonl"), &[&template]));
    // A second on a machine of one's own.
    running.seconds = 8.0;
    let ended = running.go()?;
    let what: String = text.chars().take(160).collect();
    let names = ["chat_template", "messages.jsonl", "template"];
    Ok(judge(what, &ended, &names, |e| match boundless {
        Some(_) => Some("no error".to_owned()),
        None => has_null(&e.stdout),
    }))
}

/// Long texts.
fn long(which: usize) -> String {
    match which {
        0 => format!("{{{{ 1{} }}}}", " + 1".repeat(100_000)),
        1 => format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        2 => format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        3 => format!("{}{}", "{% if 1 %}".repeat(50_000), "{% endif %}".repeat(50_000)),
        4 => format!("{{{{ 'a'{} }}}}", " | upper".repeat(100_000)),
        _ => format!("{{{{ x{} }}}}", ".a[0]".repeat(100_000)),
    }
}

/// A template of parts, or a real one that is damaged.
fn drawn(lab: &Lab, random: &mut Random) -> Result<String> {
    if random.below(3) == 0 {
        let mut bytes = std::fs::read(lab.model().join("chat_template.jinja"))?;
        crate::mutation::bytes(random, &mut bytes);
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    let mut text = "{% set ns = namespace(s='x') %}{% set x = 'y' %}".to_owned();
    for _ in 0..1 + random.below(4) {
        let mut expression = (*random.of_these(&PARTS[..20])).to_owned();
        for _ in 0..random.below(6) {
            expression = match random.below(4) {
                0 => format!(
                    "({expression}) {} ({})",
                    random.of_these(&["+", "~", "==", "in", "and", "*", "<", "//"]),
                    random.of_these(&PARTS[..20])
                ),
                _ => format!("({expression}) {}", random.of_these(&PARTS[20..])),
            };
        }
        text.push_str(&match random.below(5) {
            0 => format!("{{% set x = {expression} %}}"),
            1 => format!("{{% set ns.s = {expression} %}}"),
            2 => format!("{{% for m in {expression} %}}{{{{ m }}}}{{% endfor %}}"),
            3 => format!("{{% if {expression} %}}a{{% endif %}}"),
            _ => format!("{{{{ {expression} }}}}"),
        });
    }
    text.push_str("{% for m in messages %}{{ m.content }}{% endfor %}");
    Ok(text)
}
