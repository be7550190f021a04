//! `loss.svg` and `reward.svg`: lines over steps, drawn as plain SVG. Text is SVG text, so no font is needed to write it.

use std::fmt::Write;

use crate::record::Record;
use crate::wording::{escaped, figure};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 48.0;
/// Colours that stay apart for colour-blind eyes (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"];

/// A chart of one or more lines.
#[derive(Clone, Debug)]
pub struct Chart {
    title: String,
    lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Chart {
    /// An empty chart.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), lines: Vec::new() }
    }

    /// The loss and the evaluation loss of a run.
    #[must_use]
    pub fn of_loss(title: impl Into<String>, records: &[Record]) -> Self {
        Self::of(title, records, [("loss", "training loss"), ("eval_loss", "evaluation loss")])
    }

    /// The reward and the evaluation reward of a run that samples.
    #[must_use]
    pub fn of_reward(title: impl Into<String>, records: &[Record]) -> Self {
        Self::of(title, records, [("reward", "mean reward"), ("eval_reward", "on evaluation prompts")])
    }

    fn of(title: impl Into<String>, records: &[Record], figures: [(&str, &str); 2]) -> Self {
        let mut chart = Self::new(title);
        for (name, label) in figures {
            #[expect(clippy::cast_precision_loss, reason = "a pixel is wider than a step")]
            let points: Vec<(f64, f64)> =
                records.iter().filter_map(|record| Some((record.step as f64, record.get(name)?))).collect();
            if !points.is_empty() {
                chart.lines.push((label.to_owned(), points));
            }
        }
        chart
    }

    /// The chart with one more line of (step, value). Values that are no numbers interrupt it.
    #[must_use]
    pub fn with(mut self, label: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        self.lines.push((label.into(), points));
        self
    }

    /// The chart as an SVG document.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let finite = || {
            self.lines.iter().flat_map(|(_, points)| points).filter(|(x, y)| x.is_finite() && y.is_finite())
        };
        let x = Scale::over(finite().map(|(x, _)| *x), LEFT, WIDTH - RIGHT);
        let y = Scale::over(finite().map(|(_, y)| *y), HEIGHT - BOTTOM, TOP);
        let mut svg = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\" fill=\"#444\">\n<title>{0}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\" fill=\"#111\">{0}</text>",
            escaped(&self.title)
        );
        for tick in y.ticks() {
            let at = y.at(tick);
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#e4e4e4\"/><text x=\"{}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                at + 4.0,
                tidy(tick, y.step)
            );
        }
        for tick in x.ticks() {
            let at = x.at(tick);
            let base = HEIGHT - BOTTOM;
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.1} {base}v5\" stroke=\"#888\"/><text x=\"{at:.1}\" y=\"{}\" \
                 text-anchor=\"middle\">{}</text>",
                base + 19.0,
                tidy(tick, x.step)
            );
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {TOP}V{}H{}\" fill=\"none\" stroke=\"#888\"/>\n<text x=\"{}\" y=\"{}\" \
             text-anchor=\"middle\">step</text>",
            HEIGHT - BOTTOM,
            WIDTH - RIGHT,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0
        );
        for (i, (label, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let _ = writeln!(
                svg,
                "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"/>",
                path(points, &x, &y)
            );
            // A few points, such as evaluations, are marked so that they show even alone.
            if points.len() <= 40 {
                for (px, py) in points.iter().filter(|(px, py)| px.is_finite() && py.is_finite()) {
                    let _ = writeln!(
                        svg,
                        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\" fill=\"{colour}\"><title>step {px}: {}</title></circle>",
                        x.at(*px),
                        y.at(*py),
                        figure(*py)
                    );
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "a handful of lines")]
            let row = TOP + 16.0 + 18.0 * i as f64;
            let last = points.iter().rev().find(|(_, y)| y.is_finite()).map_or(f64::NAN, |(_, y)| *y);
            let _ = writeln!(
                svg,
                "<path d=\"M{0} {1}h22\" stroke=\"{colour}\" stroke-width=\"2.4\"/><text x=\"{2}\" y=\"{3}\" \
                 text-anchor=\"end\">{4}: {5}</text>",
                WIDTH - RIGHT - 30.0,
                row - 4.0,
                WIDTH - RIGHT - 38.0,
                row,
                escaped(label),
                figure(last)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn path(points: &[(f64, f64)], x: &Scale, y: &Scale) -> String {
    let mut path = String::new();
    let mut pen = 'M';
    for (px, py) in points {
        if px.is_finite() && py.is_finite() {
            let _ = write!(path, "{pen}{:.1} {:.1}", x.at(*px), y.at(*py));
            pen = 'L';
        } else {
            pen = 'M';
        }
    }
    path
}

/// From values to pixels, with ticks at round values.
struct Scale {
    low: f64,
    high: f64,
    step: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            (low, high) = (0.0, 1.0);
        } else if high - low < 1e-12 * high.abs().max(1e-300) {
            (low, high) = (low - 0.5, high + 0.5);
        }
        // About six ticks at 1, 2 or 5 times a power of ten.
        let rough = (high - low) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|m| m * power)
            .find(|s| *s >= rough)
            .unwrap_or(10.0 * power);
        Self { low: (low / step).floor() * step, high: (high / step).ceil() * step, step, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "fewer than twenty")]
        let n = ((self.high - self.low) / self.step).round() as u32;
        (0..=n).map(|i| self.low + f64::from(i) * self.step)
    }
}

/// A tick's label: as many decimals as its step has.
fn tidy(tick: f64, step: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 12")]
    let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
    let text = format!("{tick:.decimals$}");
    if text.trim_start_matches('-').chars().all(|c| c == '0' || c == '.') { "0".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_where_the_axes_say() {
        let svg = Chart::new("a < b").with("loss", vec![(0.0, 3.0), (60.0, 0.0)]).to_svg();
        assert!(svg.contains("<title>a &lt; b</title>"));
        // The first point is the top left corner of the axes, the last one the bottom right.
        assert!(svg.contains("d=\"M64.0 44.0L840.0 392.0\""), "{svg}");
    }

    #[test]
    fn nothing_that_is_no_number_is_drawn() {
        let nan = f64::NAN;
        for points in [
            vec![],
            vec![(1.0, nan)],
            vec![(1.0, 2.0)],
            vec![(0.0, 1.0), (1.0, nan), (2.0, f64::INFINITY), (3.0, 2.0)],
        ] {
            let svg = Chart::new("loss").with("loss", points.clone()).to_svg();
            let coordinates = svg.replace("loss: NaN", "");
            assert!(!coordinates.contains("NaN") && !coordinates.contains("inf"), "{points:?}\n{svg}");
        }
        let broken = path(
            &[(0.0, 1.0), (1.0, nan), (2.0, 2.0)],
            &Scale::over([0.0, 2.0].into_iter(), 0.0, 1.0),
            &Scale::over([1.0, 2.0].into_iter(), 0.0, 1.0),
        );
        assert_eq!(broken.matches('M').count(), 2, "a gap starts a new piece: {broken}");
    }

    #[test]
    fn ticks_are_round() {
        let labels = |low: f64, high: f64| -> Vec<String> {
            let scale = Scale::over([low, high].into_iter(), 0.0, 1.0);
            scale.ticks().map(|tick| tidy(tick, scale.step)).collect()
        };
        assert_eq!(labels(0.3, 2.9), ["0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"]);
        assert_eq!(labels(10.0, 150.0), ["0", "50", "100", "150"]);
        assert_eq!(labels(-0.012, 0.013).len(), 7);
    }
}
