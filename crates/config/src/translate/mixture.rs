//! Recipes' mixtures of data sets.

use burnish_data::SourceSpec;

use super::{Key, Translation};
use crate::raw::Raw;
use crate::source::{Written, canonical};
use crate::value::OptionValue;

impl Translation<'_> {
    /// `dataset_config` as a mapping: what `load_dataset` is given beside the path, as in `{data_files: rows.jsonl}`.
    pub(super) fn data_files(&mut self) {
        let Some(at) = self.out.iter().rposition(|w| canonical(&w.name) == "dataset_config") else { return };
        let raw = super::parsed(&self.out[at].raw);
        let Raw::Map(mut entries) = raw else { return };
        let Written { origin, .. } = self.out.remove(at);
        let key = Key { name: "dataset_config", origin };
        let Some(path) = self.last("dataset_name").filter(|path| !path.is_nothing()).cloned() else {
            return self.expect(&key, "a name, or a mapping beside dataset_name", &Raw::Map(entries));
        };
        if !entries.iter().any(|(name, _)| name == "split")
            && let Some(split) = self.last("dataset_train_split").filter(|split| !split.is_nothing())
        {
            entries.push(("split".to_owned(), split.clone()));
        }
        entries.push(("path".to_owned(), path));
        let spec = Raw::Map(entries);
        if SourceSpec::read(&spec).is_none() {
            return self.expect(
                &key,
                "a name, or a mapping with name, data_dir, data_files and split",
                &spec,
            );
        }
        self.say(&key, "datasets", Raw::List(vec![spec]));
    }

    /// alignment-handbook's `dataset_mixer`: data sets with the share of their rows, each in every split of `splits`; splits
    /// with `test` or `valid` in their name are evaluated on, whole.
    pub(super) fn mixer(&mut self, key: &Key, raw: &Raw, splits: Option<&Raw>, configs: Option<&Raw>) {
        let Raw::Map(sets) = raw else { return self.expect(key, "a mapping from data sets to shares", raw) };
        let (mut of, mut configured) = (vec!["train".to_owned(), "test".to_owned()], Vec::new());
        for (raw, texts) in [(splits, &mut of), (configs, &mut configured)] {
            if let Some(raw) = raw.filter(|raw| !raw.is_nothing()) {
                match Vec::<String>::read(raw) {
                    Some(read) => *texts = read,
                    None => return self.expect(key, "texts in dataset_splits and dataset_configs", raw),
                }
            }
        }
        let (splits, configs) = (of, configured);
        if !configs.is_empty() && configs.len() != sets.len() {
            return self.refuse(
                key,
                format!("{} data sets with {} dataset_configs", sets.len(), configs.len()),
                "give one configuration for each data set, or none",
            );
        }
        let (mut train, mut eval) = (Vec::new(), Vec::new());
        for (at, (path, share)) in sets.iter().enumerate() {
            for split in &splits {
                let mut source = vec![
                    ("path".to_owned(), Raw::Text(path.clone())),
                    ("split".to_owned(), Raw::Text(split.clone())),
                ];
                if let Some(config) = configs.get(at) {
                    source.push(("config".to_owned(), Raw::Text(config.clone())));
                }
                if split.contains("test") || split.contains("valid") {
                    eval.push(Raw::Map(source));
                } else {
                    source.push(("weight".to_owned(), share.clone()));
                    train.push(Raw::Map(source));
                }
            }
        }
        self.say(key, "datasets", Raw::List(train));
        if !eval.is_empty() {
            self.say(key, "eval_datasets", Raw::List(eval));
        }
    }

    /// The first rows of a split, as Transformers' example scripts have it.
    pub(super) fn first_rows(&mut self, key: &Key, mixed: bool, raw: &Raw) {
        let Some(rows) = usize::read(raw) else { return self.expect(key, "a number of rows", raw) };
        let (option, split) = match key.name {
            "max_train_samples" => ("dataset_train_split", "train"),
            _ => ("dataset_test_split", "test"),
        };
        let split = self.last(option).map_or_else(|| split.to_owned(), Raw::to_string);
        if split.contains('[') || mixed {
            return self.refuse(
                key,
                format!("{rows} beside {split}"),
                "name the part of each split instead, as in train[:1000]",
            );
        }
        self.say(key, option, Raw::Text(format!("{split}[:{rows}]")));
    }

    /// open-r1's `dataset_mixture`.
    pub(super) fn mixture(&mut self, key: &Key, raw: &Raw) {
        let Raw::Map(entries) = raw else { return self.expect(key, "a mapping with `datasets`", raw) };
        let seed = entries.iter().find(|(name, _)| name == "seed").map(|(_, seed)| seed.clone());
        for (name, raw) in entries {
            match (name.as_str(), raw) {
                ("datasets", Raw::List(sets)) => {
                    let seeded = sets.iter().map(|set| match (set, &seed) {
                        (Raw::Map(fields), Some(seed)) => {
                            let mut fields = fields.clone();
                            fields.push(("seed".to_owned(), seed.clone()));
                            Raw::Map(fields)
                        }
                        _ => set.clone(),
                    });
                    let sets = Raw::List(seeded.collect());
                    self.say(key, "datasets", sets);
                }
                ("datasets", other) => self.expect(key, "a list of data sets under `datasets`", other),
                ("test_split_size", raw) => self.say(key, "test_split_size", raw.clone()),
                ("seed", _) => {}
                _ => self.refuse(key, format!("{name}: {raw}"), "it has datasets, seed and test_split_size"),
            }
        }
    }
}
