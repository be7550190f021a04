//! Rows as a page for a browser: one file without scripts, which loads nothing.

use std::fmt::Write;

use burnish_data::DataError;
use burnish_report::escaped;
use burnish_trainers::{DataView, RowsView};

use super::pieces::{Fate, pieces};
use super::summary::{Histogram, heading, lines};

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #6a737d; --ground: #fff; --card: #f6f8fa;
  --learned: #0b6e3d; --learned-ground: #d8f5e3; --cut: #a3281f; --bar: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --quiet: #9aa4af; --ground: #15181c; --card: #1f242a;
  --learned: #8ce8b4; --learned-ground: #143d28; --cut: #ff9b90; --bar: #56b4e9; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; } dt { color: var(--quiet); } dd { margin: 0; }
.found { border-left: 4px solid #d55e00; background: var(--card); padding: .5rem 1rem; margin: .5rem 0; }
.row { background: var(--card); padding: .6rem 1rem; margin: .8rem 0; border-radius: 6px; }
.row h3 { font-size: .85rem; font-weight: 600; color: var(--quiet); margin: 0 0 .4rem; }
.row p { font: 13px/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
.row b, .row i, .row s { font-weight: inherit; font-style: normal; box-shadow: inset -1px 0 0 color-mix(in srgb, currentColor 25%, transparent); }
.row i { color: var(--quiet); } .row b { color: var(--learned); background: var(--learned-ground); } .row s { color: var(--cut); }
svg text { font: 11px system-ui, sans-serif; fill: var(--quiet); } svg rect { fill: var(--bar); }
";

/// The page.
pub(super) fn page(trainer: &str, view: &DataView) -> Result<String, DataError> {
    let mut out = String::from("<dl>\n");
    for (name, line) in lines(view) {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", escaped(&line));
    }
    out += "</dl>\n";
    for finding in &view.findings {
        let _ = writeln!(
            out,
            "<div class=\"found\"><strong>{}</strong><br>{}</div>",
            escaped(&finding.message),
            escaped(&finding.mend)
        );
    }
    if view.findings.is_empty() {
        out += "<p>Nothing odd was found.</p>\n";
    }
    out += "<h2>Tokens of a text</h2>\n";
    histogram(&mut out, &Histogram::of(&view.train.lengths));
    rows(&mut out, "Rows to train on", view, &view.train)?;
    if let Some(eval) = &view.eval {
        rows(&mut out, "Rows to evaluate on", view, eval)?;
    }
    Ok(burnish_report::page(&format!("{trainer} on {}", view.train.name), STYLE, None, &out))
}

fn histogram(out: &mut String, histogram: &Histogram) {
    const BAR: f64 = 48.0;
    const HIGH: f64 = 120.0;
    let width = BAR * histogram.bins.len() as f64;
    let _ = writeln!(
        out,
        "<svg role=\"img\" aria-label=\"how many texts have how many tokens\" viewBox=\"0 0 {width} {}\" width=\"{width}\">",
        HIGH + 36.0
    );
    for (at, (first, last, texts, share)) in histogram.bars().enumerate() {
        let (x, high) = (BAR * at as f64, share * HIGH);
        let _ = writeln!(
            out,
            "<rect x=\"{0}\" y=\"{1:.1}\" width=\"{5}\" height=\"{high:.1}\"><title>{first} to {last} tokens: {texts}</title></rect>\
             <text x=\"{2}\" y=\"{3:.1}\" text-anchor=\"middle\">{texts}</text>\
             <text x=\"{2}\" y=\"{4}\" text-anchor=\"middle\">{first}</text>",
            x + 2.0,
            16.0 + HIGH - high,
            x + BAR / 2.0,
            12.0 + HIGH - high,
            HIGH + 32.0,
            BAR - 4.0,
        );
    }
    *out += "</svg>\n";
}

fn rows(out: &mut String, title: &str, view: &DataView, rows: &RowsView) -> Result<(), DataError> {
    if rows.shown.is_empty() {
        return Ok(());
    }
    let _ = writeln!(out, "<h2>{title}: the first {} of {}</h2>", rows.shown.len(), rows.rows);
    *out += "<div class=\"row\"><p><b>learned</b> <i>read, not learned</i> <s>cut off</s></p></div>\n";
    for row in &rows.shown {
        for text in &row.texts {
            let heading = heading(text, view.row_use);
            let place = escaped(&row.place.to_string());
            let _ = write!(out, "<div class=\"row\"><h3>{place}, {heading}</h3><p>");
            for piece in pieces(&view.prepared.tokenizer, text)?.iter().filter(|p| !p.text.is_empty()) {
                let tag = match piece.fate {
                    Fate::Learned => 'b',
                    Fate::Read => 'i',
                    Fate::Cut => 's',
                };
                let _ = write!(out, "<{tag}>{}</{tag}>", escaped(&piece.text));
            }
            *out += "</p></div>\n";
        }
    }
    Ok(())
}
