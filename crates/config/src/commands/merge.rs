//! `burnish merge`: an adapter folded into its base, or one made of several.

use burnish_peft::FactorSum;

use crate::checks::{AT_LEAST_1, Checks, MODEL_HINT};
use crate::command::command;
use crate::groups::{MergeTargetOptions, QuantizationOptions};

command! {
    /// Options of `burnish merge`.
    MergeOptions, "merge", "Merge an adapter into its base model and write a full model folder, or make one adapter of several",
    needs ["model_name_or_path", "output_dir"], {
        /// What is read and written.
        merge: MergeTargetOptions,
        /// How the base was held while the adapter trained.
        quantization: QuantizationOptions,
    }
}

impl MergeOptions {
    fn rules(&self, checks: &mut Checks<'_>) {
        checks.folder("model_name_or_path", &self.merge.model_name_or_path, MODEL_HINT);
        let of_one = self.merge.adapter_name_or_path.as_deref();
        if let Some(adapter) = of_one {
            checks.folder("adapter_name_or_path", adapter, "");
        }
        self.several(checks);
        self.quantization.rules(true, checks);
        checks.range("threads", self.merge.threads != Some(0), AT_LEAST_1);
        let output = &self.merge.output_dir;
        let several = self.merge.weighted();
        let adapters = several.iter().map(|(folder, _)| folder.as_path()).chain(of_one);
        let mut sources = adapters.chain([self.merge.model_name_or_path.as_path()]);
        if !output.as_os_str().is_empty() && sources.any(|source| source == output) {
            checks.conflict(
                "output_dir",
                "a folder that is read",
                "name another folder for the merged model",
            );
        }
    }

    /// What is said of one adapter of several, and of none where several are not asked for.
    fn several(&self, checks: &mut Checks<'_>) {
        let (given, kind) = (&self.merge.adapters, self.merge.combination_type);
        let weighted = self.merge.weighted();
        let whole = weighted.len() == given.len() && weighted.iter().all(|(_, weight)| weight.is_finite());
        checks.range("adapters", whole, "a list of folder:weight");
        for (folder, _) in &weighted {
            checks.folder("adapters", folder, "");
        }
        let one = self.merge.adapter_name_or_path.is_some();
        if given.is_empty() {
            checks.range("adapter_name_or_path", one, "a folder (or name adapters)");
        } else if one {
            checks.conflict("adapters", "adapter_name_or_path", "name one adapter, or several in adapters");
        }
        let density = self.merge.density;
        checks.range("density", density.is_none_or(|d| (0.0..=1.0).contains(&d)), "a number from 0 to 1");
        checks.range("svd_rank", self.merge.svd_rank != Some(0), AT_LEAST_1);
        let mut unfit = |name: &'static str, fits: bool, mend: &'static str| {
            if checks.is_given(name) && (given.is_empty() || !fits) {
                let with =
                    if given.is_empty() { "no adapters".into() } else { format!("combination_type: {kind}") };
                checks.conflict(name, with, if given.is_empty() { "name the adapters" } else { mend });
            }
        };
        unfit("combination_type", true, "");
        unfit("svd_rank", kind.has_rank(), "set combination_type: svd");
        unfit(
            "density",
            kind.has_density(),
            "take it out, or prune with ties, dare_linear, dare_ties or magnitude_prune",
        );
        let elects = matches!(kind.sum(), Some(FactorSum::Ties | FactorSum::DareTies));
        unfit("majority_sign_method", elects, "set combination_type: ties or dare_ties");
        let by_chance = matches!(kind.sum(), Some(FactorSum::DareLinear | FactorSum::DareTies));
        unfit("seed", by_chance, "set combination_type: dare_linear or dare_ties");
        if !given.is_empty() && kind.has_density() && density.is_none() {
            checks.range("density", false, "a number from 0 to 1: how much of each factor is kept");
        }
        for name in ["dtype", "requantize"] {
            if !given.is_empty() && checks.is_given(name) {
                checks.conflict(name, "adapters", "take it out: an adapter is written, in float32");
            }
        }
    }
}
