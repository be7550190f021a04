//! Runs in a terminal.

use std::fmt::Write;
use std::time::Duration;

use burnish_report::{RunFolder, duration, figure, figure_names};

/// Heights of a line drawn by characters.
const HEIGHTS: [char; 8] =
    ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
/// Characters of such a line.
const WIDTH: usize = 32;

/// How far each run is, and its figures with their curves; at most `rows` figures of each.
pub(super) fn text(runs: &[RunFolder], going_on: &[bool], rows: usize) -> String {
    let mut out = String::new();
    let names = figure_names(runs);
    for (run, going_on) in runs.iter().zip(going_on) {
        let _ = writeln!(out, "{}: {}", run.name, state(run, *going_on));
        if let Some(done) = run.done() {
            let filled = (done * 40.0).round() as usize;
            let _ =
                writeln!(out, "  [{}{}] {:.0} %", "#".repeat(filled), "-".repeat(40 - filled), 100.0 * done);
        }
        let told = names.iter().filter(|name| run.last(name).is_some());
        let width = names.iter().map(String::len).max().unwrap_or(0).min(40);
        for name in told.take(rows) {
            let points = run.series(name);
            let last = run.last(name).map_or(String::new(), figure);
            let _ = write!(out, "  {name:<width$}  {last:>10}  {}", curve(&points));
            if let Some(evaluated) = run.last(&format!("eval_{name}")) {
                let _ = write!(out, "  evaluation {}", figure(evaluated));
            }
            out.push('\n');
        }
        if let Some(sample) = run.samples.last() {
            let words = |name: &str| {
                let text = sample[name].as_str().map_or_else(|| sample[name].to_string(), str::to_owned);
                text.replace('\n', " ").chars().take(100).collect::<String>()
            };
            let _ = writeln!(out, "  completion of step {}: {}", words("step"), words("completion"));
        }
    }
    out
}

fn state(run: &RunFolder, going_on: bool) -> String {
    let Some((step, epoch)) = run.place() else {
        return if going_on { "nothing logged yet" } else { "nothing was logged" }.to_owned();
    };
    let mut text = format!("step {step}, epoch {epoch:.2}");
    match run.seconds_left().filter(|_| going_on) {
        Some(left) => {
            text +=
                &format!(", {} left at this pace", duration(Duration::from_secs_f64(left.clamp(0.0, 1e9))));
        }
        None if !going_on => text += ", no longer running",
        None => {}
    }
    text
}

/// Means of stretches of a line, as characters of different heights.
fn curve(points: &[(f64, f64)]) -> String {
    let values: Vec<f64> = points.iter().map(|(_, value)| *value).filter(|value| value.is_finite()).collect();
    let stretch = values.len().div_ceil(WIDTH).max(1);
    let means: Vec<f64> =
        values.chunks(stretch).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect();
    let (least, most) =
        means.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), v| (l.min(*v), m.max(*v)));
    let height = |value: &f64| {
        let share = if most > least { (value - least) / (most - least) } else { 0.0 };
        HEIGHTS[(share * 7.0).round() as usize]
    };
    means.iter().map(height).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_rise_and_fall_with_their_values() {
        let line: Vec<(f64, f64)> = (0..8).map(|i| (f64::from(i), f64::from(i))).collect();
        assert_eq!(curve(&line), HEIGHTS.iter().collect::<String>());
        assert_eq!(curve(&[(0.0, 2.0), (1.0, f64::NAN), (2.0, 2.0)]), "\u{2581}\u{2581}");
        assert_eq!(curve(&[]), "");
        let long: Vec<(f64, f64)> = (0..1000).map(|i| (f64::from(i), f64::from(-i))).collect();
        assert!(curve(&long).chars().count() <= WIDTH && curve(&long).ends_with('\u{2581}'));
    }
}
