//! Adapters of which each row names one.

use crate::checks::Checks;
use crate::groups::serving::check_adapters;
use crate::table::options;

options! {
    /// Adapters that rows name.
    RowAdapterOptions, "Adapters";
    /// Adapters over the model, each as `name=folder`, of which a row's `adapter` names its own; a row without is the model's.
    /// Rows of all of them run in one batch.
    Burnish lora_modules: Vec<String> = Vec::new();
}

impl RowAdapterOptions {
    pub(crate) fn rules(&self, adapter_given: bool, checks: &mut Checks<'_>) {
        check_adapters(&self.lora_modules, checks);
        if !self.lora_modules.is_empty() && adapter_given {
            let mend = "name it in lora_modules, too, and in the rows";
            checks.conflict("lora_modules", "adapter_name_or_path", mend);
        }
    }
}
