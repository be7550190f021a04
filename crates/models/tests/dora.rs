//! DoRA, and initialisations that take from the base: fresh, trained, exported.

use std::sync::Arc;

use burnish_core::{Dtype, Registry};
use burnish_models::{
    Decoder, DropoutStep, ForwardContext, LocalParams, Mode, Model, ModelFolder, ModelPlan, Reloaded, Tokens,
    Tuning, to_device,
};
use burnish_ops::{Coefficient, Parameters, head_loss, select_rows};
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_weight_files::{Attempt, FolderWriter, HostTensor, Placement, Share, WeightFolder};

use crate::recordings::{close, device, fixtures, ids, json};
use crate::round_trips::{adapted, answers, answers_of, target};

/// Adds the gradients of the next tokens' cross entropy over `denominator` to `model`'s parameters; returns this rank's
/// value of it, that of the whole vocabulary.
pub(crate) fn backward(
    model: &Decoder,
    sequences: &[Vec<u32>],
    denominator: f32,
    rows_from: u64,
    mode: Mode,
) -> f32 {
    backward_of(model, model.pass(mode), sequences, denominator, rows_from)
}

pub(crate) fn backward_of(
    model: &Decoder,
    pass: ForwardContext,
    sequences: &[Vec<u32>],
    denominator: f32,
    rows_from: u64,
) -> f32 {
    let mut tokens = Tokens::from_sequences(sequences);
    tokens.rows = Arc::new(tokens.rows.iter().map(|r| r + (rows_from << 32)).collect());
    let hidden = model.hidden(&tokens, &pass).unwrap();
    let with_next: Vec<usize> = tokens.documents.iter().flat_map(|d| d.start..d.end - 1).collect();
    let targets: Vec<u32> = with_next.iter().map(|&i| tokens.ids[i + 1]).collect();
    let rows: Vec<u64> = with_next.iter().map(|&i| tokens.rows[i]).collect();
    let hidden = select_rows(&hidden, &Arc::new(with_next)).unwrap();
    let hidden = model.final_norm(&hidden, &pass).unwrap();
    let head = model.head(&pass, &Arc::new(rows)).unwrap();
    let coefficient: Coefficient = Arc::new(move |_, _| -1.0 / denominator);
    let options = model.head_options(1.0);
    let value = |s: &burnish_ops::TokenStats| -s.log_prob.iter().sum::<f32>() / denominator;
    let (shard, targets) = (model.vocab_shard(), Arc::new(targets));
    let (loss, _) = head_loss(&hidden, &head, shard, &targets, options, &coefficient, value).unwrap();
    let number = loss.to_f32()[0];
    pass.backward(&loss).unwrap();
    number
}

/// The loss of [`backward`], and its gradients by parameter name.
pub(crate) fn loss_and_gradients(
    model: &Model,
    resident: &LocalParams,
    sequences: &[Vec<u32>],
    denominator: f32,
    rows_from: u64,
    dropout: Option<DropoutStep>,
) -> (f32, Vec<(String, Vec<f32>)>) {
    let mode = Mode::Train { recompute: false, dropout };
    let loss = backward(&model.decoder, sequences, denominator, rows_from, mode);
    let named = |(index, p): (usize, &burnish_core::Parameter)| {
        Some((p.name.clone(), resident.take_gradient(index)?.to_f32()))
    };
    (loss, resident.registry().iter().enumerate().filter_map(named).collect())
}

pub(crate) fn planned_model(
    base: &str,
    tuning: &Tuning<'_>,
) -> (ModelFolder, Registry, Model, Arc<LocalParams>) {
    let folder = ModelFolder::open(fixtures().join(base)).unwrap();
    let planned = ModelPlan::new(&folder, tuning, Dtype::F32, 3).unwrap();
    let registry = planned.registry().clone();
    let (model, resident) = planned.resident(&device()).unwrap();
    (folder, registry, model, resident)
}

/// Every gradient that PEFT gives an adapter: LoRA's on all modules of a base with biases, of one with packed layers and
/// of three with experts; IA3's on outputs and inputs of layers with biases, and on the head; rows of tables that train, of OFT's
/// and BOFT's three forms of a rotation, LoHa's, LoKr's and C3A's, VeRA's vectors and RandLoRA's weights, VB-LoRA's logits and its bank, copies of norms and AdaLoRA's factors and values;
/// aLoRA's, which act on some of the tokens, and those of layers that stand several times.
#[test]
fn gradients_are_peft_s() {
    for (name, base) in [
        ("dora_everything", "qwen2"),
        ("lora_packed", "phi3-window"),
        ("lora_experts", "qwen2-moe"),
        ("lora_beside", "gemma4-moe"),
        ("lora_turned", "llama4"),
        ("ia3", "qwen2"),
        ("tokens_tied", "llama-tied"),
        ("tokens_apart", "qwen2"),
        ("trainable_tokens", "llama-tied"),
        ("oft", "qwen2"),
        ("oft_shared", "qwen2"),
        ("oft_exact", "qwen2"),
        ("loha", "qwen2"),
        ("lokr", "qwen2"),
        ("lokr_both", "qwen2"),
        ("vera", "qwen2"),
        ("vera_drawn", "qwen2"),
        ("boft", "qwen2"),
        ("boft_butterfly", "qwen2"),
        ("boft_blocks", "qwen2"),
        ("c3a", "qwen2"),
        ("randlora", "qwen2"),
        ("randlora_sparse", "qwen2"),
        ("randlora_very_sparse", "qwen2"),
        ("vblora", "qwen2"),
        ("vblora_topk", "qwen2"),
        ("ln_tuning", "qwen2"),
        ("adalora", "qwen2"),
        ("prompt_tuning", "qwen2"),
        ("prefix_tuning", "qwen2"),
        ("prefix_normed", "qwen3"),
        ("prefix_positions", "gpt2"),
        ("mica", "qwen2"),
        ("alora", "qwen2"),
        ("alora_bias", "phi3"),
        ("replicated", "llama"),
    ] {
        let case = fixtures().join("peft").join(name);
        let expected = json(&case.join("expected_logits.json"));
        let adapter = AdapterFolder::open(&case).unwrap();
        let (_, _, model, resident) = planned_model(base, &Tuning::Adapter(&adapter));
        let row = ids(&expected["input_ids"][0]);
        let denominator = row.len() as f32 - 1.0;
        let (loss, gradients) = loss_and_gradients(&model, &resident, &[row], denominator, 0, None);
        assert!((f64::from(loss) - expected["loss"].as_f64().unwrap()).abs() < 1e-5, "{name}: {loss}");
        let recorded = WeightFolder::open_stem(&case, "gradients").unwrap();
        assert_eq!(gradients.len(), recorded.names().count());
        for (parameter, got) in gradients {
            let key = match parameter.strip_prefix("modules_to_save.").and_then(|p| p.rsplit_once('.')) {
                Some((norm, part)) => format!("base_model.model.{norm}.ln_tuning_layers.{part}"),
                None if parameter == "prompt_embeddings" => parameter.clone(),
                None if parameter == "vblora_vector_bank" => format!("base_model.{parameter}"),
                None => format!("base_model.model.{parameter}"),
            };
            let want = recorded.read(&key).unwrap().to_f32();
            let largest = want.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            close(&format!("{name}: {parameter}"), &got, &want, 1e-5 * largest.max(1e-3));
        }
    }
}

fn config(more: &str) -> LoraConfig {
    LoraConfig::from_json(&format!(
        r#"{{"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": "all-linear", {more}}}"#
    ))
    .unwrap()
}

/// A fresh magnitude is the norm that training divides by: the factor is one, to the bit.
#[test]
fn a_fresh_dora_adapter_changes_nothing() {
    for base in ["llama", "llama-bf16", "qwen2-tied"] {
        let mut config = config(r#""use_dora": true"#);
        config.target_modules = serde_json::from_str(
            r#"["embed_tokens", "lm_head", "q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]"#,
        )
        .unwrap();
        let (folder, _, model, _) = planned_model(base, &Tuning::NewAdapter(&config));
        assert_eq!(answers(&model), answers_of(folder.path()), "{base}");
    }
}

const TAKES: [&str; 6] = [
    r#""init_lora_weights": "pissa""#,
    r#""init_lora_weights": "pissa_niter_4""#,
    r#""init_lora_weights": "olora""#,
    r#""init_lora_weights": "olora", "use_rslora": true, "rank_pattern": {"q_proj": 2}"#,
    r#""init_lora_weights": "pissa", "use_dora": true, "alpha_pattern": {"v_proj": 3}"#,
    r#""init_lora_weights": "pissa", "use_rslora": true, "target_modules": ["embed_tokens", "lm_head", "k_proj"]"#,
];

/// The model computes what it did; trained, written, it fits the base as it was: alone, resumed and merged.
#[test]
fn what_is_taken_from_the_base_is_given_back() {
    for more in TAKES {
        let text = if more.contains("target_modules") {
            format!(r#"{{"peft_type": "LORA", "r": 4, "lora_alpha": 6, {more}}}"#)
        } else {
            config(more).to_json()
        };
        let config = LoraConfig::from_json(&text).unwrap();
        let (folder, registry, fresh, _) = planned_model("llama", &Tuning::NewAdapter(&config));
        close(more, &answers(&fresh), &answers_of(folder.path()), 2e-5);
        // The factors are not zero and the weights are others: it is not the identity by doing nothing.
        let plan = fresh.plan.as_ref().unwrap();
        let site = plan.sites.iter().find(|s| s.module.ends_with("k_proj")).unwrap();
        let b = fresh.host(registry.index_of(&site.b_name).unwrap()).to_f32();
        assert!(b.iter().any(|x| x.abs() > 0.01), "{more}");
        let weight = fresh.host(registry.index_of(&site.base_weight()).unwrap());
        let original = WeightFolder::open(folder.path()).unwrap().read(&site.base_weight()).unwrap();
        assert_ne!(weight, original, "{more}");

        let (_, model) = adapted("llama", &text);
        let (_guard, path, mut writer) = target();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let adapter = AdapterFolder::open(&path).unwrap();
        assert_eq!(adapter.config.r, 8, "{more}");
        let again = Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0, &device()).unwrap();
        close(more, &answers(&again), &answers(&model), 1e-4);

        // A run that goes on finds its factors in the file.
        let reloaded = Reloaded::open(&model.exporter(), &path).unwrap();
        for (index, parameter) in registry.iter().enumerate().filter(|(_, p)| p.trainable) {
            let rows = reloaded.rows(parameter, 0..parameter.shape[0]).unwrap();
            assert_eq!(rows, model.host(index), "{more}: {}", parameter.name);
        }

        let (_guard, path, mut writer) = target();
        model.write_merged(&folder, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();
        close(more, &answers_of(&path), &answers(&model), 1e-4);
        let (_guard, path, mut writer) = target();
        model.write_full(&folder, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();
        close(more, &answers_of(&path), &answers_of(folder.path()), 2e-5);
    }
}

/// Any rows of any parameter are what the whole has there, and a second plan has the same: ranks need no broadcast.
#[test]
fn initial_values_do_not_depend_on_who_asks_for_which_rows() {
    let kinds = TAKES.iter().take(3).copied();
    for more in kinds.chain([r#""init_lora_weights": "orthogonal""#, r#""use_dora": true"#]) {
        let config = config(more);
        let folder = ModelFolder::open(fixtures().join("llama")).unwrap();
        let plan = || ModelPlan::new(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 3).unwrap();
        let (one, other) = (plan(), plan());
        for (index, p) in one.registry().iter().enumerate() {
            let n = p.shape[0];
            let whole = one.rows(index, 0..n).unwrap();
            let cut = n / 3;
            let mut bytes = other.rows(index, 0..cut).unwrap().bytes;
            bytes.extend(other.rows(index, cut..n).unwrap().bytes);
            assert_eq!(whole.bytes, bytes, "{more}: {}", p.name);
        }
    }
}

/// Ranks with some rows each write together what one writes alone.
#[test]
fn rows_of_a_converted_adapter_are_each_written_once() {
    use burnish_models::{ModelError, RowSource};
    use std::ops::Range;

    struct Part<'a>(&'a Model, usize, usize);
    impl RowSource for Part<'_> {
        /// Its share of the first half of the rows, and of the second.
        fn rows(&self, index: usize) -> Vec<Range<usize>> {
            let n = self.0.parameters.registry().at(index).shape[0];
            let share = |from: usize, n: usize| from + n * self.1 / self.2..from + n * (self.1 + 1) / self.2;
            vec![share(0, n / 2), share(n / 2, n - n / 2)]
        }
        fn read(&self, index: usize) -> Result<HostTensor, ModelError> {
            let whole = self.0.host(index);
            let width = whole.bytes.len() / whole.shape[0];
            let mut shape = whole.shape.clone();
            let mut bytes = Vec::new();
            for rows in self.rows(index) {
                bytes.extend_from_slice(&whole.bytes[rows.start * width..rows.end * width]);
            }
            shape[0] = bytes.len() / width;
            Ok(HostTensor { dtype: whole.dtype, shape, bytes })
        }
    }

    let (_, model) = adapted("llama", &config(TAKES[0]).to_json());
    let exporter = model.exporter();
    let (_guard, alone, mut writer) = target();
    exporter.adapter(&mut writer, &Part(&model, 0, 1)).unwrap();
    writer.commit().unwrap();
    for ranks in [3, 7] {
        let guard = tempfile::tempdir().unwrap();
        let path = guard.path().join("out");
        let attempt = Attempt::fresh();
        let write = |rank| {
            let share = Share { attempt, rank, ranks };
            let mut writer = FolderWriter::shared(&path, Placement::New, share).unwrap();
            exporter.adapter(&mut writer, &Part(&model, rank, ranks)).unwrap();
            writer.finish().unwrap()
        };
        let mut finished: Vec<_> = (0..ranks).map(write).collect();
        finished.remove(0).commit().unwrap();
        let bytes =
            |folder: &std::path::Path| std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
        assert_eq!(bytes(&path), bytes(&alone), "{ranks}");
    }
}

/// Decoding takes each norm once; its logits are those of a pass over all tokens.
#[test]
fn decoding_with_magnitudes_is_scoring() {
    let text = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": true,
        "target_modules": ["embed_tokens", "lm_head", "q_proj", "down_proj"]}"#;
    let (_, model) = adapted("llama", text);
    let mut decoding = burnish_models::Decoding::new(&model.decoder, 1);
    let row = [3_u32, 1, 4, 1, 5];
    let mut last = decoding.logits(&[row[..2].to_vec()]).unwrap();
    for token in &row[2..] {
        last = decoding.logits(&[vec![*token]]).unwrap();
    }
    let all = crate::recordings::logits(&model.decoder, &[row.to_vec()]);
    close("decoding", &last, &all[all.len() - last.len()..], 1e-5);
}

#[test]
fn a_trained_step_moves_every_part_of_the_adapter() {
    let config = config(r#""use_dora": true, "lora_dropout": 0.2"#);
    let (_, registry, model, resident) = planned_model("qwen3", &Tuning::NewAdapter(&config));
    for (index, p) in registry.iter().enumerate().filter(|(_, p)| p.name.ends_with("lora_B.weight")) {
        let values: Vec<f32> = (0..p.elements()).map(|i| 0.1 * (i as f32).sin()).collect();
        let tensor = HostTensor::from_f32(&values, &p.shape, Dtype::F32).unwrap();
        resident.write(index, to_device(tensor, &device()));
    }
    let step = Some(DropoutStep { seed: 1, step: 2 });
    let (_, gradients) = loss_and_gradients(&model, &resident, &[vec![3, 1, 4, 1, 5, 9]], 5.0, 0, step);
    assert_eq!(gradients.len(), registry.trainable().count());
    for (name, gradient) in gradients {
        assert!(gradient.iter().any(|&g| g != 0.0), "{name}");
    }
}
