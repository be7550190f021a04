//! Options of the model folder, its dtype, the device and threads.

use std::path::PathBuf;

use burnish_core::{Compute, Dtype};
use burnish_device::DeviceKind;
use burnish_peft::{CombinationType, MajoritySign};

use crate::checks::{Checks, MODEL_HINT};
use crate::choice::Auto;
use crate::run_device::RunDevice;
use crate::setting::ModelDtype;
use crate::table::options;

/// Most worker threads: more than any machine has cores.
pub const MOST_THREADS: usize = 4096;

options! {
    /// The model, an adapter over it, and the machine.
    ModelOptions, "Model";
    /// Folder of the model in Hugging Face's format.
    Trl model_name_or_path: PathBuf = PathBuf::new();
    /// The branch, tag or commit of model_name_or_path, where that is a name of the Hub; a folder has one revision.
    Trl model_revision: String = "main".into();
    /// Folder of another tokenizer than the model's, of the model's tokens (alignment-handbook).
    Burnish tokenizer_name_or_path: Option<PathBuf> = None;
    /// Folder of a PEFT adapter to load over the model; training goes on with it.
    Burnish adapter_name_or_path: Option<PathBuf> = None;
    /// Element type of the weights after loading; `auto` keeps the folder's.
    Trl dtype: ModelDtype = ModelDtype(Some(Dtype::F32));
    /// Products of bfloat16 with float32 sums, as autocast computes: weights keep their dtype, and norms, softmax, losses and
    /// optimizer are float32, but for the products in Muon's Newton-Schulz. By default training does so on a CUDA GPU and where the
    /// processor has such products (AVX512_BF16, AMX, NEON's BF16), unless fp16 is on or ACCELERATE_MIXED_PRECISION is `no` in the
    /// environment; a run that goes on keeps what it began with. On a processor without them products stay float32.
    Transformers bf16: Option<bool> = None;
    /// What computes: `cuda` (a build with that feature), `cpu`, or `auto`, which takes a GPU that is ready and says so
    /// when one is not; `wgpu` is for checks. To `plan` also the name of a GPU, for which it predicts a step's time.
    Burnish device: RunDevice = RunDevice::Auto;
    /// Worker threads of the processor; by default one per core.
    Burnish threads: Option<usize> = None;
}

options! {
    /// What `doctor` tries.
    DeviceOptions, "Device";
    /// What to compute on: `cuda` fails unless a GPU is ready; `auto` tries what a run would take.
    Burnish device: Auto<DeviceKind> = Auto(None);
}

options! {
    /// What `merge` reads and writes.
    MergeTargetOptions, "Merge";
    /// Folder of the base model in Hugging Face's format.
    Trl model_name_or_path: PathBuf = PathBuf::new();
    /// Folder of the PEFT adapter to merge into it.
    Burnish adapter_name_or_path: Option<PathBuf> = None;
    /// Instead, adapters of which one is made, each as `folder:weight`; weights may be below 0. output_dir gets the adapter, and
    /// another merge folds it into the base.
    Burnish adapters: Vec<String> = Vec::new();
    /// How one adapter is made of several: the changes' sum, near as a rank allows (`svd`) or of all ranks together (`cat`); or
    /// of adapters of one rank the sum of their factors, whole (`linear`), pruned (`magnitude_prune`, `ties`, by chance
    /// `dare_linear`, `dare_ties`), where `ties` leaves the sign that most have. With `_svd` behind its name changes are
    /// pruned instead, of which each is there in full meanwhile.
    Peft combination_type: CombinationType = CombinationType::Svd;
    /// With `svd` and what ends with it the adapter's rank; by default the greatest of the adapters'.
    Peft svd_rank: Option<usize> = None;
    /// How much of each factor, or change, pruning keeps, from 0 to 1.
    Peft density: Option<f64> = None;
    /// With `ties` and `dare_ties` what decides a sign: the values' sum (`total`), or how many there are (`frequency`).
    Peft majority_sign_method: MajoritySign = MajoritySign::Total;
    /// What `dare_linear` and `dare_ties` keep is a function of this.
    Transformers seed: u64 = 42;
    /// Folder for the merged model, or the adapter of several.
    Transformers output_dir: PathBuf = PathBuf::new();
    /// Element type of the merged weights; `auto` keeps the base's.
    Trl dtype: ModelDtype = ModelDtype(None);
    /// Quantise the merged matrices again, as the base is: less exact than the dequantised folder that is written otherwise,
    /// by as much as is said.
    Burnish requantize: bool = false;
    /// Write into a folder that already holds files.
    Burnish overwrite_output_dir: bool = false;
    /// Worker threads; by default one per core.
    Burnish threads: Option<usize> = None;
}

impl MergeTargetOptions {
    /// The folders of [`Self::adapters`] with their weights.
    #[must_use]
    pub fn weighted(&self) -> Vec<(PathBuf, f64)> {
        let weighted = |entry: &String| {
            let (folder, weight) = entry.rsplit_once(':')?;
            Some((PathBuf::from(folder), weight.parse().ok()?))
        };
        self.adapters.iter().filter_map(weighted).collect()
    }
}

options! {
    /// What `quantize` reads and writes.
    QuantizeTargetOptions, "Quantize";
    /// Folder of the model in Hugging Face's format.
    Trl model_name_or_path: PathBuf = PathBuf::new();
    /// The branch, tag or commit of model_name_or_path, where that is a name of the Hub; a folder has one revision.
    Trl model_revision: String = "main".into();
    /// Folder for the quantised model.
    Transformers output_dir: PathBuf = PathBuf::new();
    /// Element type of what is not quantised; `auto` keeps the folder's.
    Trl dtype: ModelDtype = ModelDtype(None);
    /// Write into a folder that already holds files.
    Burnish overwrite_output_dir: bool = false;
    /// Worker threads; by default one per core.
    Burnish threads: Option<usize> = None;
}

impl ModelOptions {
    /// What products multiply: where `bf16` is left open float32, since nothing is known of a machine here.
    #[must_use]
    pub fn compute(&self) -> Compute {
        if self.bf16 == Some(true) { Compute::Bf16 } else { Compute::Fp32 }
    }

    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        checks.folder("model_name_or_path", &self.model_name_or_path, MODEL_HINT);
        if let Some(adapter) = &self.adapter_name_or_path {
            checks.folder("adapter_name_or_path", adapter, "");
        }
        if let Some(tokenizer) = &self.tokenizer_name_or_path {
            checks.folder("tokenizer_name_or_path", tokenizer, "");
        }
        let threads = self.threads.is_none_or(|threads| (1..=MOST_THREADS).contains(&threads));
        checks.range("threads", threads, "a whole number from 1 to 4096");
        self.device.rules(checks);
    }
}
