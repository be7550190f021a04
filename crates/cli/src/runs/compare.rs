//! `burnish compare`: runs beside each other.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use burnish_config::CompareOptions;
use burnish_report::{
    RunFolder, different_options, figure, figure_names, replace, runs_page, with_evaluation,
};
use serde_json::Value;

use super::seeds::{deviation, mean, welch};
use super::{read, with_folders};

use crate::refusal::{refuse, require};

/// Options that runs of one kind may have different.
const OF_ONE_RUN: [&str; 6] =
    ["seed", "data_seed", "output_dir", "run_name", "logging_dir", "overwrite_output_dir"];
/// Characters of a cell.
const MOST: usize = 28;

/// Says how runs differ.
pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<CompareOptions>(&with_folders(words))? else {
        return Ok(ExitCode::SUCCESS);
    };
    let target = resolved.options.runs;
    let runs = read(&target.output_dirs)?;
    require!(
        runs.len() >= 2,
        MissingOption,
        "output_dirs: expected at least two folders, got one; `burnish watch` shows one"
    );
    if let Some(run) = runs.iter().find(|run| run.records.is_empty()) {
        refuse!(
            NotFound,
            "output_dirs: {} has no metrics.jsonl with figures; is it an output folder?",
            run.name
        );
    }
    crate::voice::result(compared(&runs).trim_end())?;
    if let Some(path) = &target.html {
        replace(path, runs_page(&runs, None).as_bytes())?;
        crate::voice::note(format_args!("the page is {}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn compared(runs: &[RunFolder]) -> String {
    let mut out = String::new();
    let heads: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    let options: Vec<Row> = different_options(runs)
        .into_iter()
        .map(|(name, values)| (name, values.iter().map(said).collect()))
        .collect();
    if options.is_empty() {
        out += "no option differs\n";
    } else {
        table(&mut out, "options that differ", &heads, &options);
    }
    let figures: Vec<Row> = figures(runs)
        .into_iter()
        .map(|name| {
            let values = runs.iter().map(|run| run.last(&name).map_or(String::new(), figure));
            (name.clone(), values.collect())
        })
        .collect();
    let steps = runs.iter().map(|run| run.place().map_or(String::new(), |(step, _)| step.to_string()));
    let figures: Vec<Row> = std::iter::once(("step".to_owned(), steps.collect())).chain(figures).collect();
    out.push('\n');
    table(&mut out, "last figures", &heads, &figures);
    out += &of_seeds(runs);
    out
}

type Row = (String, Vec<String>);

fn figures(runs: &[RunFolder]) -> Vec<String> {
    with_evaluation(runs, &figure_names(runs))
}

fn said(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.chars().count() <= MOST {
        text
    } else {
        text.chars().take(MOST - 3).chain("...".chars()).collect()
    }
}

fn table(out: &mut String, title: &str, heads: &[String], rows: &[Row]) {
    // The end of a folder's name tells it from others.
    let end =
        |name: &String| name.chars().skip(name.chars().count().saturating_sub(MOST)).collect::<String>();
    let heads: Vec<String> = heads.iter().map(end).collect();
    let name_width =
        rows.iter().map(|(name, _)| name.chars().count()).chain([title.len()]).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().map(|(_, cells)| cells[column].chars().count());
        cells.chain([heads[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut line = |name: &str, cells: &[String]| {
        let _ = write!(out, "{name:<name_width$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(out, "  {cell:>width$}");
        }
        out.push('\n');
    };
    line(title, &heads);
    rows.iter().for_each(|(name, cells)| line(name, cells));
}

/// Runs of two kinds, several of each, that differ within a kind in their seed alone: what their figures say of the kinds.
fn of_seeds(runs: &[RunFolder]) -> String {
    let mut kinds: BTreeMap<String, Vec<&RunFolder>> = BTreeMap::new();
    for run in runs {
        let options = run.options.iter().filter(|(name, _)| !OF_ONE_RUN.contains(&name.as_str()));
        let kind: BTreeMap<&String, &Value> = options.collect();
        kinds.entry(format!("{kind:?}")).or_default().push(run);
    }
    let kinds: Vec<Vec<&RunFolder>> =
        runs.iter().filter_map(|run| kinds.values().find(|kind| kind[0].name == run.name).cloned()).collect();
    let [first, second] = kinds.as_slice() else { return String::new() };
    let mut rows = Vec::new();
    for name in figures(runs) {
        let of = |kind: &[&RunFolder]| kind.iter().filter_map(|run| run.last(&name)).collect::<Vec<f64>>();
        let (a, b) = (of(first), of(second));
        let Some(difference) = welch(&a, &b) else { continue };
        let spread = |values: &[f64]| {
            let deviation = deviation(values).map_or(String::new(), figure);
            format!("{} +- {deviation}", figure(mean(values)))
        };
        rows.push((
            name,
            vec![spread(&a), spread(&b), figure(difference.of_means), format!("{:.3}", difference.p)],
        ));
    }
    if rows.is_empty() {
        return String::new();
    }
    let kind = |kind: &[&RunFolder]| format!("{}, {} seeds", kind[0].name, kind.len());
    let heads = [kind(first), kind(second), "difference".to_owned(), "p".to_owned()];
    let mut out = String::from("\n");
    table(&mut out, "mean and deviation", &heads, &rows);
    out += "p: how likely means are at least as far apart where the two kinds are the same (Welch's test)\n";
    out
}
