//! `runs_page`: runs as a page for a browser, one file without scripts, which loads nothing.

use std::fmt::Write;

use serde_json::Value;

use crate::chart::Chart;
use crate::page::page;
use crate::run_folder::{RunFolder, different_options, figure_names, is_first, with_evaluation};
use crate::wording::{duration, escaped, figure};

/// Points of a line; of more neighbours only the least and the greatest are drawn.
const MOST_POINTS: usize = 800;
/// Characters of a prompt or a completion.
const MOST_TEXT: usize = 600;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #6a737d; --ground: #fff; --card: #f6f8fa; --line: #d8dee4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --quiet: #9aa4af; --ground: #15181c; --card: #1f242a; --line: #3a424b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 90rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: .9rem; } th, td { text-align: left; padding: .25rem .8rem; border-bottom: 1px solid var(--line);
  vertical-align: top; } td { font-variant-numeric: tabular-nums; } th { color: var(--quiet); font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(30rem, 1fr)); gap: 1rem; }
summary { cursor: pointer; margin: 1rem 0; } .charts svg { width: 100%; height: auto; border-radius: 6px; border: 1px solid var(--line); }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, monospace; max-width: 40rem; }
progress { width: 10rem; vertical-align: middle; }
";

/// The page; with `refresh` a browser reads it again after so many seconds.
#[must_use]
pub fn runs_page(runs: &[RunFolder], refresh: Option<u32>) -> String {
    let title = runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut out = String::new();
    let names = figure_names(runs);
    let (first, others) = names.split_at(names.iter().take_while(|name| is_first(name)).count());
    last_figures(&mut out, runs, first);
    let options = different_options(runs);
    if !options.is_empty() {
        let shown = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => escaped(text),
            other => escaped(&other.to_string()),
        };
        let rows = options.iter().map(|(name, values)| (escaped(name), values.iter().map(shown).collect()));
        table(&mut out, "Options that differ", runs, rows);
    }
    out += "<h2>Over steps</h2>\n";
    charts(&mut out, runs, first);
    if !others.is_empty() {
        out += "<details><summary>Other figures</summary>\n";
        charts(&mut out, runs, others);
        out += "</details>\n";
    }
    for run in runs.iter().filter(|run| !run.samples.is_empty()) {
        samples(&mut out, run, runs.len() > 1);
    }
    page(&title, STYLE, refresh, &out)
}

/// A chart for each figure: of one run together with the same in evaluation, which of several has a chart of its own.
fn charts(out: &mut String, runs: &[RunFolder], names: &[String]) {
    *out += "<div class=\"charts\">\n";
    for name in names {
        let evaluated = format!("eval_{name}");
        let charts = match runs {
            [run] => {
                vec![chart(name, [("training", run.series(name)), ("evaluation", run.series(&evaluated))])]
            }
            _ => [name, &evaluated]
                .map(|name| chart(name, runs.iter().map(|run| (&run.name[..], run.series(name)))))
                .into(),
        };
        charts.into_iter().flatten().for_each(|chart| *out += &chart.to_svg());
    }
    *out += "</div>\n";
}

/// Lines that have a point; `None` where none has.
fn chart<'a>(title: &str, lines: impl IntoIterator<Item = (&'a str, Vec<(f64, f64)>)>) -> Option<Chart> {
    let mut lines = lines.into_iter().filter(|(_, points)| !points.is_empty()).peekable();
    lines.peek()?;
    let with = |chart: Chart, (label, points)| chart.with(label, thinned(points));
    Some(lines.fold(Chart::new(title), with))
}

/// At most [`MOST_POINTS`] points: of each stretch the least and the greatest value, in their order.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= MOST_POINTS {
        return points;
    }
    let stretch = points.len().div_ceil(MOST_POINTS / 2);
    let ends = |part: &[(f64, f64)]| {
        let by = |a: &(usize, &(f64, f64)), b: &(usize, &(f64, f64))| a.1.1.total_cmp(&b.1.1);
        let places = part.iter().enumerate();
        let (least, greatest) = (places.clone().min_by(by), places.max_by(by));
        let mut ends: Vec<usize> = least.iter().chain(&greatest).map(|(at, _)| *at).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.into_iter().map(|at| part[at]).collect::<Vec<_>>()
    };
    points.chunks(stretch).flat_map(ends).collect()
}

fn last_figures(out: &mut String, runs: &[RunFolder], names: &[String]) {
    let done = |run: &RunFolder| {
        let place =
            run.place().map_or(String::new(), |(step, epoch)| format!(" step {step}, epoch {epoch:.2}"));
        let left = run.seconds_left().filter(|left| *left >= 1.0);
        let left = left.map(|left| duration(std::time::Duration::from_secs_f64(left.min(1e9))));
        let left = left.map_or(String::new(), |left| format!(", {left} left at this pace"));
        let bar =
            run.done().map_or(String::new(), |done| format!("<progress value=\"{done:.4}\"></progress>"));
        format!("{bar}{place}{left}")
    };
    let figures = with_evaluation(runs, names).into_iter().map(|name| {
        let value = |run: &RunFolder| run.last(&name).map_or(String::new(), figure);
        (escaped(&name), runs.iter().map(value).collect())
    });
    let rows = std::iter::once(("done".to_owned(), runs.iter().map(done).collect())).chain(figures);
    table(out, "Now", runs, rows);
}

fn table(
    out: &mut String,
    title: &str,
    runs: &[RunFolder],
    rows: impl Iterator<Item = (String, Vec<String>)>,
) {
    let _ = write!(out, "<h2>{title}</h2>\n<table>\n<tr><th></th>");
    for run in runs {
        let _ = write!(out, "<th>{}</th>", escaped(&run.name));
    }
    *out += "</tr>\n";
    for (name, values) in rows {
        let _ = write!(out, "<tr><th>{name}</th>");
        for value in values {
            let _ = write!(out, "<td>{value}</td>");
        }
        *out += "</tr>\n";
    }
    *out += "</table>\n";
}

fn samples(out: &mut String, run: &RunFolder, several: bool) {
    let of = if several { format!(" of {}", escaped(&run.name)) } else { String::new() };
    let _ = write!(
        out,
        "<h2>The last completions{of}</h2>\n<table>\n<tr><th>step</th><th>prompt</th><th>completion</th><th>rewards</th></tr>\n"
    );
    let text = |value: &Value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        escaped(&text.chars().take(MOST_TEXT).collect::<String>())
    };
    for sample in &run.samples {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"text\">{}</td><td class=\"text\">{}</td><td>{}</td></tr>",
            text(&sample["step"]),
            text(&sample["prompt"]),
            text(&sample["completion"]),
            text(&sample["rewards"])
        );
    }
    *out += "</table>\n";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn ten_thousand_steps_are_a_small_page_that_keeps_the_peaks() {
        let value = |step: u64| if step == 4321 { 99.0 } else { 1.0 / step as f64 };
        let record = |step: u64| {
            let figures =
                ["loss", "grad_norm", "learning_rate", "reward", "entropy", "kl", "tokens_per_second"];
            figures.iter().fold(Record::new(step, step as f64), |record, name| record.with(name, value(step)))
        };
        let run = RunFolder { records: (1..=10_000).map(record).collect(), ..RunFolder::default() };
        let thin = thinned(run.series("loss"));
        assert!(thin.len() <= MOST_POINTS && thin.contains(&(4321.0, 99.0)));
        assert!(thin.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let page = runs_page(&[run], None);
        assert!(page.len() < 2 << 20, "{} bytes", page.len());
        assert_eq!(page.matches("<svg").count(), 7);
    }

    #[test]
    fn text_from_outside_stays_text() {
        let mut run = RunFolder { name: "<b>&\u{1b}".to_owned(), ..RunFolder::default() };
        run.records.push(Record::new(1, 0.1).with("<script>", 1.0));
        run.options.insert("<i>".to_owned(), "<u>".into());
        run.samples.push(serde_json::json!({"completion": "<script>alert(1)</script>"}));
        let page = runs_page(&[run, RunFolder::default()], Some(5));
        for tag in ["<b>", "<script", "<i>", "<u>", "\u{1b}"] {
            assert!(!page.contains(tag), "{tag} in {page}");
        }
        assert!(page.contains("http-equiv=\"refresh\" content=\"5\""));
    }
}
