//! `Assignment`: the optimizer of each parameter, AdamW or Muon, by role.

use std::collections::BTreeMap;
use std::fmt;

use burnish_core::{Registry, Role};

use crate::MuonOptions;

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OptimizerKind {
    /// Muon.
    Muon,
    /// AdamW.
    AdamW,
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Muon => "muon",
            Self::AdamW => "adamw",
        })
    }
}

/// One trained parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Its name.
    pub parameter: String,
    /// Its role.
    pub role: Role,
    /// Its (logical) elements.
    pub elements: usize,
    /// Who updates it.
    pub kind: OptimizerKind,
    /// Why not Muon.
    pub why: Option<&'static str>,
}

/// Which optimizer updates which parameter, and why; shown as a short table by role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    entries: Vec<Assigned>,
}

impl Assignment {
    /// Of the trained parameters of `global`; without options AdamW takes all.
    #[must_use]
    pub fn new(global: &Registry, muon: Option<&MuonOptions>) -> Self {
        let entries = global
            .trainable()
            .map(|p| {
                let why = match muon {
                    Some(options) => options.refusal(p),
                    None => Some("no muon"),
                };
                let kind = if why.is_none() { OptimizerKind::Muon } else { OptimizerKind::AdamW };
                Assigned { parameter: p.name.clone(), role: p.role, elements: p.elements(), kind, why }
            })
            .collect();
        Self { entries }
    }

    /// Every trained parameter, in the registry's order.
    pub fn iter(&self) -> impl Iterator<Item = &Assigned> {
        self.entries.iter()
    }

    /// Who updates a parameter.
    #[must_use]
    pub fn kind(&self, parameter: &str) -> Option<OptimizerKind> {
        self.entries.iter().find(|e| e.parameter == parameter).map(|e| e.kind)
    }

    /// How many parameters an optimizer updates, and their elements.
    #[must_use]
    pub fn count(&self, kind: OptimizerKind) -> (usize, usize) {
        let of = self.entries.iter().filter(|e| e.kind == kind);
        of.fold((0, 0), |(n, elements), e| (n + 1, elements + e.elements))
    }
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: BTreeMap<(OptimizerKind, String, &str), (usize, usize)> = BTreeMap::new();
        for entry in &self.entries {
            let role = format!("{:?}", entry.role).to_lowercase();
            let row = rows.entry((entry.kind, role, entry.why.unwrap_or(""))).or_default();
            *row = (row.0 + 1, row.1 + entry.elements);
        }
        write!(f, "{:<9} {:<9} {:>10} {:>14}", "optimizer", "role", "parameters", "elements")?;
        for ((kind, role, why), (count, elements)) in rows {
            write!(f, "\n{kind:<9} {role:<9} {count:>10} {elements:>14}")?;
            // A role says why by itself, unless others of it went elsewhere.
            if !why.is_empty() && why != role {
                write!(f, "  {why}")?;
            }
        }
        Ok(())
    }
}
