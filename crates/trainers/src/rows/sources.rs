//! `Sources`: the rows that a run's data options name, of one data set or of several with weights.

use std::path::Path;

use burnish_config::groups::SourceOptions;
use burnish_config::values::DatasetSource;
use burnish_data::{DataError, HeldOut, Record, Source};

use crate::TrainError;
use crate::rows::recast::Recast;

/// Rows to read, as trainers read them.
pub(crate) struct Sources {
    parts: Vec<Part>,
    recast: Recast,
}

/// Rows of one data set.
struct Part {
    source: Source,
    /// All rows, the first of them, or those of a choice.
    rows: Chosen,
    columns: Option<Vec<String>>,
}

enum Chosen {
    All,
    First(usize),
    Of(HeldOut),
}

impl Sources {
    /// The training rows.
    pub(crate) fn train(data: &SourceOptions) -> Result<Self, TrainError> {
        if !data.datasets.0.is_empty() {
            return Self::of(&data.datasets.0, data);
        }
        let path = configured(&data.dataset_name, data.dataset_config.as_deref())?;
        Ok(Self::whole(Source::train(&path, &data.dataset_train_split)?, data))
    }

    /// The rows to evaluate on, where there are any.
    pub(crate) fn eval(data: &SourceOptions) -> Result<Option<Self>, TrainError> {
        if !data.eval_datasets.0.is_empty() {
            return Self::of(&data.eval_datasets.0, data).map(Some);
        }
        if let Some(name) = &data.eval_dataset_name {
            return Ok(Some(Self::whole(Source::train(name, &data.dataset_test_split)?, data)));
        }
        if !data.datasets.0.is_empty() {
            return Ok(None);
        }
        let path = configured(&data.dataset_name, data.dataset_config.as_deref())?;
        Ok(Source::test(&path, &data.dataset_test_split)?.map(|source| Self::whole(source, data)))
    }

    /// One data set's name, or those of several.
    pub(crate) fn names(data: &SourceOptions) -> String {
        if data.datasets.0.is_empty() {
            return data.dataset_name.clone();
        }
        data.datasets.0.iter().map(|set| set.path.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn whole(source: Source, data: &SourceOptions) -> Self {
        Self { parts: vec![Part { source, rows: Chosen::All, columns: None }], recast: Recast::of(data) }
    }

    fn of(sets: &[DatasetSource], data: &SourceOptions) -> Result<Self, TrainError> {
        let sources = sets.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let shares = shares(sets, &sources)?;
        let mut parts = Vec::new();
        for ((set, source), share) in sets.iter().zip(sources).zip(shares) {
            let rows = match (share, set.weight) {
                (Some(first), _) => Chosen::First(first),
                (None, Some(weight)) if weight < 1.0 => {
                    let count = source.count()?;
                    // As Python's int().
                    let kept = (weight * count as f64) as usize;
                    match set.seed {
                        Some(seed) if kept > 0 => Chosen::Of(HeldOut::new(count, kept as f64, seed)?),
                        _ => Chosen::First(kept),
                    }
                }
                _ => Chosen::All,
            };
            parts.push(Part { source, rows, columns: set.columns.clone() });
        }
        Ok(Self { parts, recast: Recast::of(data) })
    }

    /// The files as one text, for messages.
    pub(crate) fn name(&self) -> String {
        self.parts.iter().map(|part| part.source.name()).collect::<Vec<_>>().join(", ")
    }

    /// The number of rows.
    pub(crate) fn count(&self) -> Result<usize, DataError> {
        self.parts.iter().map(Part::count).sum()
    }

    /// The rows, of one data set after another.
    pub(crate) fn records(&self) -> impl Iterator<Item = Result<Record, DataError>> {
        self.recast.rows(self.parts.iter().flat_map(Part::records))
    }
}

impl Part {
    fn count(&self) -> Result<usize, DataError> {
        Ok(match &self.rows {
            Chosen::All => self.source.count()?,
            Chosen::First(rows) => (*rows).min(self.source.count()?),
            Chosen::Of(chosen) => chosen.len(),
        })
    }

    fn records(&self) -> Box<dyn Iterator<Item = Result<Record, DataError>> + '_> {
        let records = self.source.records().map(|record| {
            let mut record = record?;
            if let Some(columns) = &self.columns {
                record.fields.retain(|name, _| columns.iter().any(|column| column == name));
            }
            Ok(record)
        });
        match &self.rows {
            Chosen::All => Box::new(records),
            Chosen::First(rows) => Box::new(records.take(*rows)),
            Chosen::Of(chosen) => Box::new(chosen.select(true, records)),
        }
    }
}

fn open(set: &DatasetSource) -> Result<Source, TrainError> {
    let path = configured(&set.path, set.config.as_deref())?;
    let path = set.data_dir.as_ref().map_or(path.clone(), |folder| joined(&path, folder));
    if set.data_files.is_empty() {
        return Ok(Source::train(&path, &set.split)?);
    }
    let mut files = Vec::new();
    for name in &set.data_files {
        files.extend(Source::train(&joined(&path, name), &set.split)?.files().map(Path::to_path_buf));
    }
    Ok(Source::of(files)?)
}

/// The folder of a configuration: one in that of the data set, which `default` is itself.
fn configured(path: &str, config: Option<&str>) -> Result<String, TrainError> {
    match config {
        None | Some("default") => Ok(path.to_owned()),
        Some(config) => {
            let folder = joined(path, config);
            if Path::new(path).is_dir() && !Path::new(&folder).is_dir() {
                return Err(TrainError::OptionPath { option: "dataset_config", path: folder.into() });
            }
            Ok(if Path::new(&folder).is_dir() { folder } else { path.to_owned() })
        }
    }
}

fn joined(folder: &str, name: &str) -> String {
    Path::new(folder).join(name).to_string_lossy().into_owned()
}

/// How many of each one's rows make shares of a mixture, where `fraction` asks for that: as many as can be without reading a
/// row twice.
///
/// # Source
/// TRL 1.16, `get_dataset`.
fn shares(sets: &[DatasetSource], sources: &[Source]) -> Result<Vec<Option<usize>>, TrainError> {
    let total: f64 = sets.iter().filter_map(|set| set.fraction).sum();
    if total <= 0.0 {
        return Ok(vec![None; sets.len()]);
    }
    let weights: Vec<f64> = sets.iter().map(|set| set.fraction.unwrap_or(0.0) / total).collect();
    let mut rows = f64::INFINITY;
    for (source, weight) in sources.iter().zip(&weights).filter(|(_, weight)| **weight > 0.0) {
        rows = rows.min(source.count()? as f64 / weight);
    }
    Ok(weights.iter().map(|weight| Some((weight * rows).round_ties_even() as usize)).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use burnish_config::values::Items;

    use super::*;

    fn rows(sources: &Sources) -> Vec<String> {
        sources.records().map(|record| record.unwrap().fields["text"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn weights_fractions_and_columns() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, count: usize| {
            let path = folder.path().join(name);
            let line = |n: usize| format!("{{\"text\": \"{}{n}\", \"more\": 1}}\n", &name[..1]);
            std::fs::write(&path, (0..count).map(line).collect::<String>()).unwrap();
            path.display().to_string()
        };
        let (a, b) = (file("a.jsonl", 8), file("b.jsonl", 3));
        let set = |path: &str| DatasetSource {
            path: path.into(),
            split: "train".into(),
            ..DatasetSource::default()
        };
        let read = |sets: Vec<DatasetSource>| {
            let data = SourceOptions { datasets: Items(sets), ..SourceOptions::default() };
            Sources::train(&data).unwrap()
        };
        let half = |path: &str, seed| DatasetSource { weight: Some(0.5), seed, ..set(path) };
        let sources = read(vec![half(&a, None), set(&b)]);
        assert_eq!(rows(&sources), ["a0", "a1", "a2", "a3", "b0", "b1", "b2"]);
        assert_eq!(sources.count().unwrap(), 7);
        let chosen = rows(&read(vec![half(&a, Some(1))]));
        assert_eq!(chosen.len(), 4);
        assert_ne!(chosen, ["a0", "a1", "a2", "a3"]);
        let of = |path: &str, fraction| DatasetSource { fraction: Some(fraction), ..set(path) };
        let sources = read(vec![of(&a, 1.0), of(&b, 1.0)]);
        assert_eq!(rows(&sources), ["a0", "a1", "a2", "b0", "b1", "b2"]);
        let columns = DatasetSource { columns: Some(vec!["more".into()]), ..set(&a) };
        let record = read(vec![columns]).records().next().unwrap().unwrap();
        assert_eq!(record.fields.keys().collect::<Vec<_>>(), ["more"]);
    }
}
