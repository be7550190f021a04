//! `Card`: the configurations that a data set's `README.md` names in its YAML header.

use serde::Deserialize;

use crate::error::DataError;

/// Bytes of a header beyond which it is not read.
const MOST_BYTES: usize = 4 << 20;

/// A data set's configurations, in file order.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Card {
    #[serde(default)]
    configs: Vec<CardConfig>,
}

/// One configuration: which files are which split.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct CardConfig {
    /// Its name.
    pub(crate) config_name: String,
    #[serde(default)]
    default: Option<bool>,
    /// The folder that its files lie in.
    #[serde(default)]
    pub(crate) data_dir: Option<String>,
    #[serde(default)]
    data_files: Option<DataFilesField>,
    /// The character between columns of CSV files.
    #[serde(default)]
    pub(crate) sep: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a path, or a list of paths or of splits with paths")]
enum DataFilesField {
    One(String),
    Many(Vec<DataFilesItem>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a path, or an object with `split` and `path`")]
enum DataFilesItem {
    Path(String),
    Split { split: String, path: Paths },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a path, or a list of paths")]
enum Paths {
    One(String),
    Many(Vec<String>),
}

impl Paths {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(path) => vec![path],
            Self::Many(paths) => paths,
        }
    }
}

impl CardConfig {
    /// The patterns of each split in file order; nothing where the configuration names none.
    pub(crate) fn patterns(&self) -> Vec<(String, Vec<String>)> {
        let train = |paths| vec![("train".to_owned(), paths)];
        match self.data_files.clone() {
            None => Vec::new(),
            Some(DataFilesField::One(path)) => train(vec![path]),
            Some(DataFilesField::Many(items)) => {
                let mut splits: Vec<(String, Vec<String>)> = Vec::new();
                for item in items {
                    let (split, paths) = match item {
                        DataFilesItem::Path(path) => ("train".to_owned(), vec![path]),
                        DataFilesItem::Split { split, path } => (split, path.into_vec()),
                    };
                    match splits.iter_mut().find(|(name, _)| *name == split) {
                        Some((_, all)) => all.extend(paths),
                        None => splits.push((split, paths)),
                    }
                }
                splits
            }
        }
    }
}

impl Card {
    /// Reads the header of a `README.md`; a file without one names no configuration. `name` is for messages.
    ///
    /// # Errors
    /// When the header is no YAML, or its `configs` are of another form.
    pub(crate) fn read(name: &str, text: &str) -> Result<Self, DataError> {
        let bad = |reason: String| DataError::BadFile { path: name.into(), reason };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let Some(rest) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else {
            return Ok(Self::default());
        };
        let end = rest.match_indices("\n---").map(|(at, _)| at).find(|&at| {
            let after = &rest[at + 4..];
            after.is_empty() || after.starts_with(['\n', '\r'])
        });
        let Some(end) = end else { return Ok(Self::default()) };
        let header = &rest[..end];
        if !header.contains("configs:") {
            return Ok(Self::default());
        }
        if header.len() > MOST_BYTES {
            return Err(bad(format!("its header has {} bytes, more than {MOST_BYTES}", header.len())));
        }
        serde_saphyr::from_str(header).map_err(|e| bad(format!("`configs` in its header: {e}")))
    }

    /// Whether it names no configuration.
    pub(crate) fn is_silent(&self) -> bool {
        self.configs.is_empty()
    }

    /// The configuration called `name`, or the default one; `None` where the card names no configuration.
    ///
    /// # Errors
    /// When there is none of that name, or several and none is the default.
    pub(crate) fn config(&self, dataset: &str, name: Option<&str>) -> Result<Option<&CardConfig>, DataError> {
        let Some(name) = name else {
            let default = |c: &&CardConfig| c.config_name == "default" || c.default == Some(true);
            return match self.configs.as_slice() {
                [] => Ok(None),
                [one] => Ok(Some(one)),
                several => several.iter().find(default).map(Some).ok_or_else(|| DataError::NeedsConfig {
                    dataset: dataset.to_owned(),
                    names: self.names(),
                }),
            };
        };
        match self.configs.iter().find(|c| c.config_name == name) {
            Some(config) => Ok(Some(config)),
            None if self.configs.is_empty() && name == "default" => Ok(None),
            None => Err(DataError::NoConfig {
                dataset: dataset.to_owned(),
                name: name.to_owned(),
                names: self.names(),
            }),
        }
    }

    fn names(&self) -> String {
        match self.configs.iter().map(|c| format!("`{}`", c.config_name)).collect::<Vec<_>>() {
            names if names.is_empty() => "none".to_owned(),
            names => names.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const CARD: &str = "---\nlicense: mit\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  - split: test\n    path:\n    - main/test-*\n    - extra/*.parquet\n- config_name: socratic\n  default: true\n  data_dir: socratic\n- config_name: flat\n  data_files: all.csv\n  sep: \"|\"\n---\n# Title\nconfigs: no\n";

    #[test]
    fn configurations_and_their_patterns() {
        let card = Card::read("README.md", CARD).unwrap();
        let main = card.config("x", Some("main")).unwrap().unwrap();
        let expected = [
            ("train".to_owned(), vec!["main/train-*".to_owned()]),
            ("test".to_owned(), vec!["main/test-*".to_owned(), "extra/*.parquet".to_owned()]),
        ];
        assert_eq!(main.patterns(), expected);
        let default = card.config("x", None).unwrap().unwrap();
        assert_eq!(
            (default.config_name.as_str(), default.data_dir.as_deref()),
            ("socratic", Some("socratic"))
        );
        let flat = card.config("x", Some("flat")).unwrap().unwrap();
        assert_eq!(flat.patterns(), [("train".to_owned(), vec!["all.csv".to_owned()])]);
        assert_eq!(flat.sep.as_deref(), Some("|"));
        let e = card.config("org/set", Some("none")).unwrap_err().to_string();
        assert!(e.contains("`main`, `socratic`, `flat`") && e.contains("org/set"), "{e}");
    }

    #[test]
    fn several_configurations_without_a_default_have_to_be_chosen_from() {
        let card = Card::read("README.md", &CARD.replace("  default: true\n", "")).unwrap();
        let e = card.config("org/set", None).unwrap_err().to_string();
        assert!(e.contains("dataset_config") && e.contains("`socratic`"), "{e}");
    }

    #[test]
    fn pages_without_configurations_and_faulty_ones() {
        for text in ["", "# Title", "---\nlicense: mit\n---\n", "---\nconfigs:\n- never ends", "----\n"] {
            assert!(Card::read("README.md", text).unwrap().config("x", None).unwrap().is_none(), "{text:?}");
        }
        let e = Card::read("README.md", "---\nconfigs:\n- 3\n---\n").unwrap_err().to_string();
        assert!(e.contains("README.md") && e.contains("configs"), "{e}");
    }
}
