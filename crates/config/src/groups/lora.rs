//! Adapters: TRL's `lora_*` options and those of PEFT's `LoraConfig` that TRL has no flag for.

use std::collections::BTreeMap;
use std::path::Path;

use burnish_core::FourBit;
use burnish_peft::{
    Bias, Init, Layers, LoraConfig, Names, PeftError, PeftMethod, PeftType, Targets, TokenIndices,
};
use serde_json::{Map, Value};

use crate::checks::{AT_LEAST_1, Checks};
use crate::groups::{ModelOptions, QuantizationOptions};
use crate::setting::{LayerRanges, MethodSettings};
use crate::table::options;

options! {
    /// A fresh adapter.
    LoraOptions, "LoRA";
    /// Train an adapter instead of the whole model.
    Trl use_peft: bool = false;
    /// What the adapter is: LORA (as when not given), ADALORA (factors whose ranks training allocates; init_r and the like in
    /// peft_config), IA3 (vectors that scale layers' outputs or inputs), OFT, BOFT (rotations of their inputs), LOHA, LOKR
    /// (added products), C3A (added circulant blocks), VERA (vectors between shared random matrices), RANDLORA (weights of
    /// shared random bases), VBLORA (mixtures of one bank of vectors), LN_TUNING (norms), TRAINABLE_TOKENS (rows of the
    /// embedding), PROMPT_TUNING (tokens before every text), P_TUNING (the same, of an encoder) or PREFIX_TUNING (keys and
    /// values before every text, in each block). Options of lora_ that the method's configuration in PEFT has count for it
    /// too; its others are in peft_config.
    Peft peft_type: Option<PeftType> = None;
    /// Settings of a peft_type other than LORA, by PEFT's names: '{"oft_block_size": 8}'.
    Burnish peft_config: MethodSettings = MethodSettings::default();
    /// Tokens whose rows of the embedding (and of a head that shares it) train beside LoRA's factors: ids, or lists of ids by
    /// module.
    Peft trainable_token_indices: Option<TokenIndices> = None;
    /// With IA3 which targets are scaled on their inputs: names, or one regular expression; by default the model type's in PEFT.
    Peft feedforward_modules: Option<Targets> = None;
    /// Rank of the adapter.
    Trl lora_r: usize = 16;
    /// Scale: the adapter's output is multiplied by alpha / r.
    Trl lora_alpha: f64 = 32.0;
    /// Dropout on the adapter's input while training.
    Trl lora_dropout: f64 = 0.05;
    /// Modules to adapt: names, one regular expression, or `all-linear`; by default the model type's in PEFT.
    Trl lora_target_modules: Option<Targets> = None;
    /// Parameters to adapt that no linear layer holds: ends of their names, as `experts.down_proj`.
    Trl lora_target_parameters: Vec<String> = Vec::new();
    /// Modules to train whole and save with the adapter.
    Trl lora_modules_to_save: Vec<String> = Vec::new();
    /// Keep a head that shares the embedding's weight tied to it: what trains of one, whole (lora_modules_to_save) or as factors,
    /// is the other's too. Without it each of the two becomes another.
    Peft ensure_weight_tying: bool = false;
    /// Scale by alpha / sqrt(r) instead (rsLoRA).
    Trl use_rslora: bool = false;
    /// Train each adapted weight's magnitude apart from its direction (DoRA).
    Trl use_dora: bool = false;
    /// Token ids from whose last occurrence in a text on the adapter acts (aLoRA); on a text without them it does not act.
    Peft alora_invocation_tokens: Vec<usize> = Vec::new();
    /// Ranges [start, end) of the model's layers that stand one after another in place of its own, as [[0, 4], [2, 5]]: they
    /// share weights and have factors of their own.
    Peft layer_replication: LayerRanges = LayerRanges::default();
    /// Give B a bias, which trains and is scaled with it; such an adapter is merged where the layer has a bias too.
    Peft lora_bias: bool = false;
    /// Which biases train: none, all, or those of adapted modules.
    Peft bias: Bias = Bias::None;
    /// How the factors start: `true` (A Kaiming, B zero), `gaussian`, `false` (both random), `orthogonal` (random, product
    /// zero), taken from the base weight, which keeps the rest: `pissa`, `pissa_niter_N` (faster), `olora`; what a base in fewer
    /// bits has lost: `loftq`; the base weight's smallest singular vectors as a B that does not train: `mica`;
    /// or from the first init_lora_rows rows: A the principal components of what layers read, in ranks by their variance (`eva`),
    /// the weight seen through that (`corda`), or the gradient that the weight has of the trainer's loss (`lora_ga`); the weight
    /// keeps the rest with the last two.
    Peft init_lora_weights: Init = Init::Default;
    /// Settings of `loftq`: {"loftq_bits": 4, "loftq_iter": 1}, the bits those of the base; in more iterations than one the base is
    /// quantised anew without what the factors have, in turn.
    Peft loftq_config: MethodSettings = MethodSettings::default();
    /// Settings of `eva`: {"rho": 2.0, "tau": 0.99, "use_label_mask": true, "label_mask_value": -100, "whiten": false,
    /// "adjust_scaling_factors": true}.
    Peft eva_config: MethodSettings = MethodSettings::default();
    /// Settings of `corda`: {"corda_method": "ipm"}, or `kpm`, which leaves what the weight knows of the rows as it is; with
    /// "cache_file" and "covariance_file", .safetensors that are written, or read where they are there, in place of rows.
    Peft corda_config: MethodSettings = MethodSettings::default();
    /// Settings of `lora_ga`: {"direction": "ArB2r", "scale": "stable", "stable_gamma": 16}; other directions are ArBr, A2rBr and
    /// random, other scales weight_svd, gd_scale and unit.
    Peft lora_ga_config: MethodSettings = MethodSettings::default();
    /// Rows of the training data, its first, that `eva`, `corda` and `lora_ga` read before training, both texts of a pair: `corda`
    /// text by text, the others in batches of per_device_train_batch_size rows, `eva` again until its vectors stand still.
    Burnish init_lora_rows: usize = 256;
    /// Modules to leave out: names or one regular expression.
    Peft exclude_modules: Option<Targets> = None;
    /// Ranks that differ from lora_r, by module pattern: '{"q_proj": 8}'.
    Peft rank_pattern: BTreeMap<String, usize> = BTreeMap::new();
    /// Alphas that differ from lora_alpha, by module pattern.
    Peft alpha_pattern: BTreeMap<String, f64> = BTreeMap::new();
    /// Indices of the layers to adapt; by default all.
    Peft layers_to_transform: Vec<usize> = Vec::new();
    /// Name of the list of layers that layers_to_transform counts in.
    Peft layers_pattern: Vec<String> = Vec::new();
}

impl LoraOptions {
    /// The configuration of a fresh adapter over the model in the folder `base`.
    #[must_use]
    pub fn config(&self, base: &Path) -> LoraConfig {
        let some = |names: &Vec<String>| (!names.is_empty()).then(|| names.clone());
        // What the rules refused does not come here.
        let method = self.method().ok().flatten();
        let mut config = match method {
            Some(method) => self.of_method(method),
            None => LoraConfig {
                trainable_token_indices: self.trainable_token_indices.clone(),
                ..LoraConfig::new(self.lora_r, self.lora_alpha).with_dropout(self.lora_dropout)
            },
        };
        config.base_model_name_or_path = Some(base.display().to_string());
        config.task_type = Some("CAUSAL_LM".to_owned());
        config.target_modules = self.lora_target_modules.clone();
        config.target_parameters = some(&self.lora_target_parameters);
        config.exclude_modules = self.exclude_modules.clone();
        config.modules_to_save = some(&self.lora_modules_to_save);
        if self.ensure_weight_tying {
            config.rest.insert("ensure_weight_tying".to_owned(), Value::Bool(true));
        }
        config.use_rslora = self.use_rslora;
        config.use_dora = self.use_dora;
        let ids = self.alora_invocation_tokens.iter().filter_map(|&id| u32::try_from(id).ok());
        config.alora_invocation_tokens = (!self.alora_invocation_tokens.is_empty()).then(|| ids.collect());
        config.layer_replication =
            (!self.layer_replication.0.is_empty()).then(|| self.layer_replication.0.clone());
        config.lora_bias = self.lora_bias;
        config.bias = self.bias;
        config.init_lora_weights = self.init_lora_weights.into();
        if self.init_lora_weights == Init::Loftq {
            config.rest.insert("loftq_config".to_owned(), Value::Object(self.loftq_config.0.clone()));
        }
        for (init, key, settings) in self.settings_of_starts() {
            if self.init_lora_weights == init && !settings.0.is_empty() {
                config.rest.insert(key.to_owned(), Value::Object(settings.0.clone()));
            }
        }
        config.rank_pattern = self.rank_pattern.iter().map(|(k, v)| (k.clone(), (*v).into())).collect();
        config.alpha_pattern = self.alpha_pattern.iter().map(|(k, v)| (k.clone(), (*v).into())).collect();
        config.layers_to_transform = (!self.layers_to_transform.is_empty())
            .then(|| Layers::Many(self.layers_to_transform.iter().map(|&layer| layer as i64).collect()));
        config.layers_pattern = some(&self.layers_pattern).map(Names::Many);
        config
    }

    /// A configuration of another method, with those of LoRA's settings that it has.
    fn of_method(&self, method: PeftMethod) -> LoraConfig {
        let config = LoraConfig::of(method);
        if self.peft_type != Some(PeftType::AdaLora) {
            return LoraConfig { r: self.lora_r, ..config };
        }
        // Its ranks are settings of its own.
        let LoraConfig { r, lora_alpha, lora_dropout, .. } =
            LoraConfig::new(config.r, self.lora_alpha).with_dropout(self.lora_dropout);
        LoraConfig { r, lora_alpha, lora_dropout, ..config }
    }

    /// The method, where it is not LoRA, with its settings.
    fn method(&self) -> Result<Option<PeftMethod>, PeftError> {
        let mut own: Map<String, Value> = self.peft_config.0.clone();
        if let Some(names) = &self.feedforward_modules
            && let Ok(names) = serde_json::to_value(names)
        {
            own.insert("feedforward_modules".to_owned(), names);
        }
        PeftMethod::with(self.peft_type.unwrap_or_default(), &own)
    }

    /// The starts that read rows, with the option of each one's settings.
    fn settings_of_starts(&self) -> [(Init, &'static str, &MethodSettings); 3] {
        [
            (Init::Eva, "eva_config", &self.eva_config),
            (Init::Corda, "corda_config", &self.corda_config),
            (Init::LoraGa, "lora_ga_config", &self.lora_ga_config),
        ]
    }

    /// The rule of runs that have no loss before they train.
    pub(crate) fn starts_without_loss(&self, with: &str, checks: &mut Checks<'_>) {
        if self.use_peft && self.init_lora_weights == Init::LoraGa {
            let mend = "take eva or corda, which need no loss, or begin with an adapter that `burnish sft` has trained from lora_ga: adapter_name_or_path";
            checks.conflict("init_lora_weights", format!("lora_ga and {with}"), mend);
        }
    }

    /// The rules of a start from what quantising loses, in so many bits.
    pub(crate) fn rules_of_loftq(&self, quantization: &QuantizationOptions, checks: &mut Checks<'_>) {
        let loftq = self.init_lora_weights == Init::Loftq;
        if !loftq || !self.use_peft {
            if self.use_peft && !self.loftq_config.0.is_empty() {
                let with = format!("init_lora_weights: {}", self.init_lora_weights);
                checks.conflict("loftq_config", with, "set init_lora_weights: loftq");
            }
            return;
        }
        if quantization.quantization().is_none() {
            let mend = "hold the base in fewer bits: load_in_4bit: true";
            checks.conflict("init_lora_weights", "a base in full", mend);
        }
        let bits = if quantization.load_in_8bit { 8 } else { 4 };
        for (key, value) in &self.loftq_config.0 {
            match key.as_str() {
                "loftq_bits" if value.as_u64() == Some(bits) => {}
                "loftq_bits" => {
                    let with = if bits == 4 { "load_in_4bit: true" } else { "load_in_8bit: true" };
                    checks.conflict("loftq_config", with, "say loftq_bits as many, or take it out");
                }
                "loftq_iter" if value.as_u64() == Some(1) => {}
                "loftq_iter" if value.as_u64().is_some_and(|n| (2..=1000).contains(&n)) => {
                    // As PEFT quantises, which has to do it again.
                    if bits == 4 && quantization.bnb_4bit_quant_type != FourBit::Nf4 {
                        let with = "bnb_4bit_quant_type: fp4, which PEFT does not quantise to";
                        checks.conflict("loftq_config", with, "take it out, or set loftq_iter: 1");
                    }
                    if bits == 4 && quantization.use_bnb_nested_quant {
                        let with = "use_bnb_nested_quant: true, as PEFT does not quantise";
                        checks.conflict("loftq_config", with, "take it out, or set loftq_iter: 1");
                    }
                }
                "loftq_iter" => {
                    let with = format!("loftq_iter: {value}");
                    checks.conflict("loftq_config", with, "set a whole number from 1 to 1000");
                }
                key => {
                    checks.conflict(
                        "loftq_config",
                        format!("`{key}`, which it does not have"),
                        "name loftq_bits or loftq_iter",
                    );
                }
            }
        }
    }

    pub(crate) fn rules(&self, model: &ModelOptions, checks: &mut Checks<'_>) {
        checks.range("lora_r", !self.use_peft || self.lora_r >= 1, AT_LEAST_1);
        checks.range("lora_r", self.lora_r <= 65_536, "a whole number that is at most 65536");
        checks.range("lora_alpha", self.lora_alpha > 0.0 && self.lora_alpha.is_finite(), "a number above 0");
        checks.range("lora_dropout", (0.0..1.0).contains(&self.lora_dropout), "a number from 0 to below 1");
        checks.range(
            "rank_pattern",
            self.rank_pattern.values().all(|r| *r >= 1),
            "ranks that are at least 1",
        );
        let ids = self.alora_invocation_tokens.iter().all(|&id| u32::try_from(id).is_ok());
        checks.range("alora_invocation_tokens", ids, "ids of tokens");
        if self.use_dora && !self.alora_invocation_tokens.is_empty() {
            checks.conflict("alora_invocation_tokens", "use_dora: true", "take one of the two out");
        }
        if self.init_lora_weights == Init::Orthogonal && !self.lora_r.is_multiple_of(2) {
            checks.conflict("init_lora_weights", format!("lora_r: {}", self.lora_r), "set an even lora_r");
        }
        for (init, key, settings) in self.settings_of_starts() {
            if self.use_peft && self.init_lora_weights != init && !settings.0.is_empty() {
                let with = format!("init_lora_weights: {}", self.init_lora_weights);
                checks.conflict(
                    key,
                    with,
                    "set init_lora_weights to what it has settings of, or take it out",
                );
            }
        }
        checks.range("init_lora_rows", self.init_lora_rows >= 1, AT_LEAST_1);
        if !self.layers_pattern.is_empty() && self.layers_to_transform.is_empty() {
            checks.conflict(
                "layers_pattern",
                "an empty layers_to_transform",
                "name the layers in layers_to_transform",
            );
        }
        // Each option with its key in PEFT.
        const OF_LORA: &[(&str, &str)] = &[
            ("lora_r", "r"),
            ("lora_alpha", "lora_alpha"),
            ("lora_dropout", "lora_dropout"),
            ("lora_target_modules", "target_modules"),
            ("lora_target_parameters", "target_parameters"),
            ("ensure_weight_tying", "ensure_weight_tying"),
            ("use_rslora", "use_rslora"),
            ("use_dora", "use_dora"),
            ("alora_invocation_tokens", "alora_invocation_tokens"),
            ("layer_replication", "layer_replication"),
            ("lora_bias", "lora_bias"),
            ("bias", "bias"),
            ("init_lora_weights", "init_lora_weights"),
            ("loftq_config", "loftq_config"),
            ("eva_config", "eva_config"),
            ("corda_config", "corda_config"),
            ("lora_ga_config", "lora_ga_config"),
            ("init_lora_rows", "init_lora_weights"),
            ("rank_pattern", "rank_pattern"),
            ("alpha_pattern", "alpha_pattern"),
            ("layers_to_transform", "layers_to_transform"),
            ("layers_pattern", "layers_pattern"),
            ("exclude_modules", "exclude_modules"),
            ("lora_modules_to_save", "modules_to_save"),
            ("trainable_token_indices", "trainable_token_indices"),
        ];
        let kind = self.peft_type.unwrap_or_default();
        if self.feedforward_modules.is_some() && kind != PeftType::Ia3 {
            checks.conflict("feedforward_modules", format!("peft_type: {kind}"), "set peft_type: IA3");
        } else {
            match self.method() {
                Ok(Some(method)) => {
                    // PEFT passes over the rank of AdaLoRA, whose ranks are settings of its own.
                    let has = |key: &str| method.has_key(key) && (kind, key) != (PeftType::AdaLora, "r");
                    let given = OF_LORA.iter().filter(|(name, key)| checks.says_something(name) && !has(key));
                    for (name, _) in given.collect::<Vec<_>>() {
                        let mend = "the method has no such setting, or has it in peft_config: take it out";
                        checks.conflict(name, format!("peft_type: {kind}"), mend);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    let mend = "name settings that the method has, LoRA's by their own options";
                    checks.conflict("peft_config", error, mend);
                }
            }
        }
        const OWN: &[&str] = &[
            "peft_type",
            "peft_config",
            "trainable_token_indices",
            "feedforward_modules",
            "lora_r",
            "lora_alpha",
            "lora_dropout",
            "lora_target_modules",
            "lora_target_parameters",
            "lora_modules_to_save",
            "ensure_weight_tying",
            "use_rslora",
            "use_dora",
            "alora_invocation_tokens",
            "layer_replication",
            "lora_bias",
            "bias",
            "init_lora_weights",
            "loftq_config",
            "eva_config",
            "corda_config",
            "lora_ga_config",
            "init_lora_rows",
            "exclude_modules",
            "rank_pattern",
            "alpha_pattern",
            "layers_to_transform",
            "layers_pattern",
        ];
        let mut unused = Vec::new();
        for name in OWN.iter().copied().filter(|name| checks.is_given(name)).collect::<Vec<_>>() {
            if let Some(adapter) = &model.adapter_name_or_path {
                let with = format!("adapter_name_or_path: {:?}", adapter.display().to_string());
                checks.conflict(
                    name,
                    with,
                    "an existing adapter keeps its own settings: take one of the two out",
                );
            } else if !self.use_peft && !checks.is_given("use_peft") {
                unused.push(name);
            }
        }
        if !unused.is_empty() {
            checks.note(format!(
                "`{}`: the whole model trains; use_peft: true trains an adapter",
                unused.join("`, `")
            ));
        }
    }
}
