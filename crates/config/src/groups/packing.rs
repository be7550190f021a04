//! Options of packing: rows to batches.

use burnish_data::Strategy;

use crate::checks::Checks;
use crate::setting::PadToMultiple;
use crate::table::options;

options! {
    /// From rows to batches.
    PackingOptions, "Packing";
    /// Join rows to fill max_length.
    Trl packing: bool = false;
    /// How rows are joined.
    Trl packing_strategy: Strategy = Strategy::Bfd;
    /// Pack the evaluation rows too; by default as packing says.
    Trl eval_packing: Option<bool> = None;
    /// Lay a batch out as one row without padding; always so with packing_strategy bfd.
    Trl padding_free: bool = false;
    /// Pad rows to a multiple of this.
    Trl pad_to_multiple_of: PadToMultiple = PadToMultiple(None);
}

impl PackingOptions {
    /// Whether evaluation rows are packed.
    #[must_use]
    pub fn packs_evaluation(&self) -> bool {
        self.eval_packing.unwrap_or(self.packing)
    }

    /// How training rows (or evaluation rows) are packed, if they are.
    #[must_use]
    pub fn strategy(&self, packs: bool) -> Option<Strategy> {
        packs.then_some(self.packing_strategy)
    }

    pub(crate) fn rules(&self, max_length: Option<usize>, checks: &mut Checks<'_>) {
        let options = burnish_data::Options {
            max_length,
            packing: self.strategy(self.packing),
            padding_free: self.padding_free,
            ..burnish_data::Options::default()
        };
        checks.owner(options.faults());
        if self.padding_free && self.packing && self.packing_strategy == Strategy::Wrapped {
            checks.note(
                "padding_free has no effect with packing_strategy: wrapped, whose rows have no padding",
            );
        }
    }
}
