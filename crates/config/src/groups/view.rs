//! Options of the view of rows.

use std::path::PathBuf;

use crate::checks::Checks;
use crate::table::options;

options! {
    /// What is shown of rows.
    ViewOptions, "View";
    /// Rows that are shown token by token, the first of each data set.
    Burnish show_rows: usize = 3;
    /// Write a page for a browser to this file, one that needs nothing else.
    Burnish html: Option<PathBuf> = None;
}

impl ViewOptions {
    /// Rows of which a page stays readable.
    const MOST: usize = 1000;

    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        checks.range("show_rows", self.show_rows <= Self::MOST, "at most 1000");
    }
}
