//! `Arch`: which of llama.cpp's architectures a model is, and whether it computes what the model does.

use burnish_core::{Activation, ExpertGate, RouterScores};

use crate::spec::names::QkvNames;
use crate::spec::{BlockLayout, LayerSpec, NormKind, QkNorm};
use crate::{ModelError, Output, RopeKind, Spec};

/// One of llama.cpp's architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arch {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// Whether neighbours turn together in a head, so that rows of queries and keys change places.
    pub(super) turns_neighbours: bool,
    /// Whether norms are multiplied by their weight alone, so that one is added to it.
    pub(super) adds_one: bool,
    /// Which optional parts it has.
    has: Has,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Has {
    /// Biases of queries, keys and values.
    qkv_bias: bool,
    /// Other biases.
    biases: bool,
    /// Llama 3's scaling of frequencies.
    frequencies: bool,
    /// Heads of a width of their own.
    head_dim: bool,
    /// A head that is not the embedding.
    head: bool,
}

const PLAIN: Has = Has { qkv_bias: false, biases: false, frequencies: false, head_dim: true, head: true };

const fn arch(name: &'static str, turns_neighbours: bool, adds_one: bool, has: Has) -> Arch {
    Arch { name, turns_neighbours, adds_one, has }
}

const LLAMA: Arch =
    arch("llama", true, false, Has { qkv_bias: true, biases: true, frequencies: true, ..PLAIN });
const GRANITE: Arch = Arch { name: "granite", ..LLAMA };
const SMOLLM3: Arch = arch("smollm3", true, false, PLAIN);
const QWEN2: Arch = arch("qwen2", false, false, Has { qkv_bias: true, head_dim: false, ..PLAIN });
const QWEN3: Arch = arch("qwen3", false, false, PLAIN);
const QWEN3_MOE: Arch = arch("qwen3moe", false, false, PLAIN);
const PHI3: Arch = arch("phi3", false, false, Has { head_dim: false, ..PLAIN });
const OLMO2: Arch = arch("olmo2", false, false, Has { head_dim: false, ..PLAIN });
const GEMMA: Arch = arch("gemma", false, true, Has { head: false, ..PLAIN });
const GEMMA2: Arch = Arch { name: "gemma2", ..GEMMA };
const GEMMA3: Arch = Arch { name: "gemma3", has: PLAIN, ..GEMMA };
const GPT2: Arch = arch("gpt2", false, false, Has { qkv_bias: true, biases: true, head_dim: false, ..PLAIN });

/// Families by `model_type`.
const ARCHS: [(&str, Arch); 13] = [
    ("llama", LLAMA),
    ("mistral", LLAMA),
    ("mixtral", LLAMA),
    ("qwen2", QWEN2),
    ("qwen3", QWEN3),
    ("qwen3_moe", QWEN3_MOE),
    ("gemma", GEMMA),
    ("gemma2", GEMMA2),
    ("gemma3_text", GEMMA3),
    ("phi3", PHI3),
    ("smollm3", SMOLLM3),
    ("olmo2", OLMO2),
    ("granite", GRANITE),
];

/// Those whose matrices files keep turned.
const TURNED: [(&str, Arch); 1] = [("gpt2", GPT2)];

impl Arch {
    /// The architecture of a model.
    ///
    /// # Errors
    /// If its family is not mapped, or llama.cpp would compute something else of it.
    pub(super) fn of(spec: &Spec) -> Result<Self, ModelError> {
        let (model_type, all) = (spec.family.model_type(), || ARCHS.iter().chain(&TURNED));
        let Some((_, arch)) = all().find(|(own, _)| *own == model_type && !spec.part) else {
            let what = if spec.part { " (the text part of a model of several parts)" } else { "" };
            return Err(ModelError::GgufFamily {
                got: format!("{model_type}{what}"),
                supported: all().map(|(own, _)| *own).collect::<Vec<_>>().join(", "),
            });
        };
        match arch.other(spec) {
            None => Ok(*arch),
            Some(what) => Err(ModelError::GgufComputes { arch: arch.name, what }),
        }
    }

    /// What of the model llama.cpp computes otherwise, or not at all.
    fn other(self, spec: &Spec) -> Option<String> {
        let is = |name: &str| self.name == name;
        let (gemma, gpt2, granite) = (self.adds_one, is("gpt2"), is("granite"));
        let said = |what: &str| Some(what.to_owned());
        if spec.output == Output::Score {
            return said("a score in place of a vocabulary");
        }
        let norm = match () {
            () if gpt2 => NormKind::Layer { bias: true },
            () if gemma => NormKind::RmsPlusOne,
            () => NormKind::Rms,
        };
        let layout = match self.name {
            "gemma2" | "gemma3" => BlockLayout::Sandwich,
            "olmo2" => BlockLayout::Post,
            _ => BlockLayout::Pre,
        };
        let qk_norm = match self.name {
            "qwen3" | "qwen3moe" | "gemma3" => Some(QkNorm::PerHead),
            "olmo2" => Some(QkNorm::WholeWidth),
            _ => None,
        };
        if (spec.norm, spec.layout, spec.qk_norm) != (norm, layout, qk_norm) || !spec.final_norm {
            return said("other norms");
        }
        let activation = if gemma || gpt2 { Activation::GeluTanh } else { Activation::Silu };
        if spec.activation != activation || spec.xielu {
            return Some(format!("the activation {:?}", spec.activation));
        }
        if spec.qkv_bias && !self.has.qkv_bias {
            return said("biases of queries, keys and values (attention_bias)");
        }
        if spec.o_bias && !self.has.biases {
            return said("a bias on attention's output (attention_bias)");
        }
        if spec.mlp_bias && !self.has.biases {
            return said("biases in the feed-forward (mlp_bias)");
        }
        if spec.head_bias || !spec.tied && !self.has.head {
            return said("a head of its own, or one with a bias");
        }
        if spec.heads * spec.head_dim != spec.hidden && !self.has.head_dim {
            return Some(format!("heads that are together {} wide", spec.heads * spec.head_dim));
        }
        let scale = self.attention_scale(spec);
        if !granite && (spec.attention_scale - scale).abs() > 1e-5 * scale {
            return Some(format!(
                "scores times {} (query_pre_attn_scalar), which it multiplies by {scale}",
                spec.attention_scale
            ));
        }
        if spec.attention_softcap.is_some() != is("gemma2") {
            return said(
                "bounds on attention's scores that are there, or not there, where it expects the other",
            );
        }
        if spec.logit_softcap.is_some() && !gemma || is("gemma") && spec.logit_softcap.is_some() {
            return said("bounds on logits");
        }
        let scaled =
            spec.embedding_scale != 1.0 && !gemma || spec.residual_scale != 1.0 || spec.logit_scale != 1.0;
        if scaled && !granite {
            return said("factors of embeddings, residuals or logits");
        }
        let special = spec.latent.is_some()
            || spec.conv.is_some()
            || spec.ssd.is_some()
            || spec.clip_qkv.is_some()
            || !spec.slopes.is_empty()
            || !spec.rounded_slopes.is_empty()
            || spec.sinks
            || spec.query_growth.is_some()
            || spec.embedding_norm
            || spec.ends != spec.hidden
            || spec.per_layer.is_some()
            || spec.layer_scalars
            || spec.sinusoids
            || spec.positions.is_some() != gpt2
            || spec.positions.is_some_and(|positions| positions.offset != 0);
        if special || matches!(spec.names.qkv, QkvNames::PerGroup(_) | QkvNames::Quarters(_)) {
            return said("parts that its architecture has not");
        }
        self.other_layers(spec).or_else(|| self.other_ropes(spec)).or_else(|| self.other_experts(spec))
    }

    /// What it multiplies scores by.
    fn attention_scale(self, spec: &Spec) -> f32 {
        let layers_of_27b = match self.name {
            "gemma2" => 46,
            "gemma3" => 62,
            _ => 0,
        };
        let width = if spec.layers.len() == layers_of_27b { spec.hidden / spec.heads } else { spec.head_dim };
        (width as f32).powf(-0.5)
    }

    fn other_layers(self, spec: &Spec) -> Option<String> {
        let other =
            |own: &LayerSpec| own.chunk.is_some() || own.divisor != 0 || own.conv || own.sizes.is_some();
        if spec.layers.iter().any(other) {
            return Some("blocks of several kinds".to_owned());
        }
        let turns = |at: usize| match self.name {
            "gpt2" => false,
            "smollm3" => !(at + 1).is_multiple_of(4),
            _ => true,
        };
        if let Some(at) = (0..spec.layers.len()).find(|&at| spec.layers[at].rope.is_some() != turns(at)) {
            let how = if turns(at) { "turns" } else { "does not turn" };
            return Some(format!("block {at} (no_rope_layers), which it {how}"));
        }
        None
    }

    fn other_ropes(self, spec: &Spec) -> Option<String> {
        let partial = |dim: usize| dim != spec.head_dim && self.name != "phi3";
        for (at, rope) in spec.ropes.iter().enumerate() {
            // The second is that of Gemma 3's windows, which nothing scales.
            let fine = match rope.kind {
                RopeKind::Default => true,
                RopeKind::Linear { .. } => at == 0,
                RopeKind::Llama3 { .. } => self.has.frequencies,
                RopeKind::Yarn { .. } => at == 0 && !self.adds_one,
                RopeKind::LongRope { .. } => self.name == "phi3",
                RopeKind::Dynamic { .. } | RopeKind::Proportional { .. } => false,
            };
            if !fine || partial(rope.dim) {
                return Some(format!("positions turned as {:?}", rope.kind).chars().take(80).collect());
            }
        }
        let most = if self.name == "gemma3" { 2 } else { 1 };
        (spec.ropes.len() > most).then(|| "several rotations".to_owned())
    }

    fn other_experts(self, spec: &Spec) -> Option<String> {
        let mixture = self.name == "qwen3moe" || spec.family.model_type() == "mixtral";
        let Some(experts) = spec.experts.as_ref().filter(|_| mixture) else {
            return (mixture || spec.experts.is_some()).then(|| "a model without experts".to_owned());
        };
        if spec.layers.iter().any(|own| !own.experts) {
            return Some("blocks without experts".to_owned());
        }
        let rule = experts.rule;
        let plain = rule.renormalise && rule.scale == 1.0 && rule.groups.is_none();
        let fine = plain
            && rule.scores == RouterScores::Softmax
            && experts.gate == ExpertGate::Halves(Activation::Silu)
            && !experts.biased
            && experts.shared.is_none()
            && !experts.weighs_inputs
            && !experts.corrected;
        (!fine).then(|| "another choice of experts (norm_topk_prob)".to_owned())
    }

    /// Whether its head may be another than the embedding.
    pub(super) fn has_head(self) -> bool {
        self.has.head
    }

    /// What whoever exports should know: where a text is long, llama.cpp computes something else.
    pub(super) fn notes(self, spec: &Spec) -> Vec<String> {
        let window = spec.layers.iter().find_map(|own| own.window);
        let ignored = window.filter(|_| !matches!(self.name, "gemma2" | "gemma3"));
        ignored
            .map(|window| {
                format!(
                    "tokens of the model see the last {window}; llama.cpp's `{}` has no windows, so texts longer than \
                     that are computed otherwise there",
                    self.name
                )
            })
            .into_iter()
            .collect()
    }
}
