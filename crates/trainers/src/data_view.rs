//! `DataView`: the rows of a run as it will see them.

use burnish_config::RunOptions;
use burnish_config::values::Interval;
use burnish_data::{
    DataError, Finding, HeldOut, Options as Rules, Record, RowKind, RowUse, RowView, Statistics, TokenChecks,
    preflight, preflight_weights,
};

use crate::rows::sources::Sources;
use crate::setup::model_setup::ModelSetup;
use crate::{Prepared, TrainError};

/// Rows of a data set before packing and shuffling.
#[derive(Clone, Debug, Default)]
pub struct RowsView {
    /// The files.
    pub name: String,
    /// The first rows.
    pub shown: Vec<RowView>,
    /// Tokens of each text before truncation, in order.
    pub lengths: Vec<usize>,
    /// Rows read.
    pub rows: usize,
    /// Rows of which nothing trains.
    pub dropped: usize,
    /// Where the first of them is.
    pub dropped_at: Option<String>,
    /// Rows with an answer that says nothing.
    pub blank: usize,
    /// Rows whose tokens came before.
    pub repeated: usize,
}

/// How rows fill packed ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackingView {
    /// Packed rows.
    pub rows: usize,
    /// Tokens in them over what they have room for, 0 to 1.
    pub filled: f64,
}

/// The rows of a run as it will see them.
pub struct DataView {
    /// How rows become tokens.
    pub prepared: Prepared,
    /// What the trainer makes of a row.
    pub row_use: RowUse,
    /// The type of the rows.
    pub kind: RowKind,
    /// Rows to train on.
    pub train: RowsView,
    /// Rows to evaluate on, where the options name some.
    pub eval: Option<RowsView>,
    /// What the run will count of the training rows.
    pub statistics: Statistics,
    /// Why there will be no run: nothing of the rows is left to learn.
    pub refusal: Option<TrainError>,
    /// Of supervised rows that are packed.
    pub packing: Option<PackingView>,
    /// What the run will say of them, and what it will not stop at.
    pub findings: Vec<Finding>,
}

impl DataView {
    /// The rows that `options` name under a trainer's `rules`; the first `shown` of each data set are kept.
    ///
    /// # Errors
    /// If a file is missing or damaged, or a row is of another type.
    pub(crate) fn new(
        options: RunOptions,
        rules: impl FnOnce(&mut Rules) -> Result<RowUse, TrainError>,
        shown: usize,
    ) -> Result<Self, TrainError> {
        let mut model = ModelSetup::open(options)?;
        let mut prepared = model.prepare_rows()?;
        model.options.data.auto_insert_empty_system_msg &= prepared.has_place_for_system();
        let row_use = rules(&mut prepared.rules)?;
        let (data, training) = (&model.options.data, &model.options.training);
        let source = Sources::train(data)?;
        let evaluates = training.eval_strategy != Interval::No;
        let held = match data.test_split_size.filter(|_| evaluates) {
            Some(size) => Some(HeldOut::new(source.count()?, size, training.row_seed())?),
            None => None,
        };
        let records = |eval: bool| -> Box<dyn Iterator<Item = Result<Record, DataError>> + '_> {
            match &held {
                Some(held) => Box::new(held.select(eval, source.records())),
                None => Box::new(source.records()),
            }
        };
        let mut seen = prepared.seen(row_use, &source.name(), records(false), shown)?;
        let mut evaluated = None;
        if held.is_some() {
            evaluated = Some(prepared.seen(row_use, &source.name(), records(true), shown)?);
        } else if let Some(eval) = Sources::eval(data)? {
            evaluated = Some(prepared.seen(row_use, &eval.name(), eval.records(), shown)?);
        }
        let counted = prepared.counted(row_use, &source.name(), &mut records(false));
        let (refusal, (statistics, packing, mut findings)) = match counted {
            Ok(counted) => (None, counted),
            // They were read before: what is wrong is what becomes of them all.
            Err(refusal) => (Some(refusal), Default::default()),
        };
        // What all rows show is said of the rows before packing.
        findings.retain(|finding| !seen.findings.iter().any(|seen| seen.concern == finding.concern));
        findings.append(&mut seen.findings);
        findings.extend(evaluated.as_ref().and_then(|eval| seen.checks.evaluated(&eval.checks)));
        let (kind, train, eval) = (seen.kind, seen.view, evaluated.map(|seen| seen.view));
        Ok(Self { row_use, kind, train, eval, statistics, refusal, packing, findings, prepared })
    }
}

/// What a reading of rows has shown.
struct Seen<'a> {
    view: RowsView,
    kind: RowKind,
    checks: TokenChecks<'a>,
    findings: Vec<Finding>,
}

impl Prepared {
    fn seen(
        &self,
        row_use: RowUse,
        name: &str,
        records: impl Iterator<Item = Result<Record, DataError>>,
        shown: usize,
    ) -> Result<Seen<'_>, TrainError> {
        let mut view = RowsView { name: name.to_owned(), ..RowsView::default() };
        let mut checks = TokenChecks::new(&self.tokenizer);
        let kind = self.preparer().views(row_use, name, records, |row| {
            view.lengths.extend(row.texts.iter().map(|text| text.ids.len()));
            view.rows += 1;
            view.blank += usize::from(row.blank);
            if row.is_dropped() {
                view.dropped += 1;
                view.dropped_at.get_or_insert_with(|| row.place.to_string());
            }
            checks.see(&row.texts, !matches!(row_use, RowUse::RewardPair | RowUse::Prompt));
            if view.shown.len() < shown {
                view.shown.push(row);
            }
        })?;
        view.repeated = checks.repeated();
        let findings = checks.findings();
        Ok(Seen { view, kind, checks, findings })
    }

    /// What a run counts and says of its training rows.
    fn counted(
        &self,
        row_use: RowUse,
        name: &str,
        records: &mut dyn Iterator<Item = Result<Record, DataError>>,
    ) -> Result<(Statistics, Option<PackingView>, Vec<Finding>), TrainError> {
        let preparer = self.preparer();
        let (statistics, findings) = match row_use {
            RowUse::Supervised => {
                let data = preparer.prepare(name, records)?;
                let findings = preflight(&data, &self.tokenizer, self.templates.as_ref(), &self.rules);
                let packing = self.rules.packing.and(self.rules.max_length).map(|room| PackingView {
                    rows: data.examples.len(),
                    filled: data.statistics.tokens as f64 / (data.examples.len() * room).max(1) as f64,
                });
                return Ok((data.statistics, packing, findings));
            }
            RowUse::Preference { .. } => {
                let data = preparer.preferences(name, records)?;
                let findings = self.findings(&data, None);
                (data.statistics, findings)
            }
            RowUse::RewardPair => {
                let data = preparer.reward_pairs(name, records)?;
                let findings = self.findings(&data, None);
                (data.statistics, findings)
            }
            RowUse::Unpaired { desirable_weight, undesirable_weight } => {
                let data = preparer.unpaired(name, records)?;
                let mut findings = self.findings(&data, None);
                findings.extend(preflight_weights(&data.statistics, desirable_weight, undesirable_weight));
                (data.statistics, findings)
            }
            RowUse::Prompt => {
                let data = preparer.prompts(name, records)?;
                let findings = self.findings(&data, None);
                (data.statistics, findings)
            }
        };
        Ok((statistics, None, findings))
    }
}
