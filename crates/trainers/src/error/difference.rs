//! `Difference`: what ranks of one job have not alike.

use std::fmt;

/// Most things that a message names.
const NAMED: usize = 5;

/// Something that ranks differ in, and who has which value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What it is: an option, a file, a parameter.
    pub what: String,
    /// The values, and the ranks that have each; the fewest ranks first.
    pub values: Vec<(Vec<usize>, String)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.what)?;
        for (place, (ranks, value)) in self.values.iter().enumerate() {
            let list = ranks.iter().take(8).map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let comma = if place > 0 { ", " } else { "" };
            let more = if ranks.len() > 8 { ", ..." } else { "" };
            let rank = if ranks.len() == 1 { "rank" } else { "ranks" };
            write!(f, "{comma}{rank} {list}{more}: {value}")?;
        }
        Ok(())
    }
}

/// All differences in one text.
pub(crate) fn listed(differences: &[Difference]) -> String {
    let mut text: Vec<String> = differences.iter().take(NAMED).map(ToString::to_string).collect();
    let more = differences.len().saturating_sub(NAMED);
    if more > 0 {
        text.push(format!("and {more} more"));
    }
    text.join("; ")
}
