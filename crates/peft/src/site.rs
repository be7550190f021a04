//! One adapted module: its factors, their shapes, names and scale.

use crate::ModuleKind;

/// Which tensor of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Factor {
    /// The down projection: `[rank, in]`, of an embedding `[rank, vocab]`.
    A,
    /// The up projection: `[out, rank]`, of an embedding `[width, rank]`.
    B,
    /// The up projection's bias `[out]` (`lora_bias`).
    BBias,
    /// DoRA's magnitude `[out]`, of an embedding `[width]`.
    Magnitude,
}

/// One adapted module. With `s = scale`, the adapted output is `W x + s (B A x + b)`, and of an embedding
/// `W[id] + s (B A[:, id])^T`. With a magnitude `m` (DoRA) each output is scaled by `m / |W + s B A|`, the norm of its
/// row (of an embedding: of its column of `W + s (B A)^T`).
#[derive(Clone, Debug, PartialEq)]
pub struct LoraSite {
    /// The module's name in the base model, or that of the parameter ([`ModuleKind::is_parameter`]).
    pub module: String,
    /// What the module is.
    pub kind: ModuleKind,
    /// The weight's dim 0 (output features, or vocabulary); of experts that of each.
    pub out: usize,
    /// The weight's dim 1 (input features, or width).
    pub input: usize,
    /// The rank.
    pub rank: usize,
    /// The scale's numerator.
    pub alpha: f64,
    /// `alpha / rank`, with rsLoRA `alpha / sqrt(rank)`.
    pub scale: f64,
    /// Probability of dropping an input element in training (PEFT never drops in embeddings: 0 there).
    pub dropout: f64,
    /// Whether B has a bias.
    pub has_bias: bool,
    /// The name of A: the module's with PEFT's suffix.
    pub a_name: String,
    /// The name of B.
    pub b_name: String,
    /// The name of B's bias.
    pub b_bias_name: Option<String>,
    /// The name of the magnitude (`use_dora`).
    pub magnitude_name: Option<String>,
}

impl LoraSite {
    /// The factors of this site, in the order of their names.
    pub fn factors(&self) -> impl Iterator<Item = Factor> + use<> {
        let bias = self.has_bias.then_some(Factor::BBias);
        let magnitude = self.magnitude_name.as_ref().map(|_| Factor::Magnitude);
        [Factor::A, Factor::B].into_iter().chain(bias).chain(magnitude)
    }

    /// A factor's name: `model.layers.0.self_attn.q_proj.lora_A.weight`.
    #[must_use]
    pub fn name(&self, factor: Factor) -> &str {
        match factor {
            Factor::A => &self.a_name,
            Factor::B => &self.b_name,
            Factor::BBias => self.b_bias_name.as_deref().unwrap_or_default(),
            Factor::Magnitude => self.magnitude_name.as_deref().unwrap_or_default(),
        }
    }

    /// A factor's shape.
    #[must_use]
    pub fn shape(&self, factor: Factor) -> Vec<usize> {
        let (from, to) = match self.kind {
            ModuleKind::Embedding | ModuleKind::ExpertsTurned(_) => (self.out, self.input),
            _ => (self.input, self.out),
        };
        // Of experts A has the rows of each one after another, B the columns of each rank by expert.
        let rank = self.rank * self.kind.matrices();
        match factor {
            Factor::A => vec![rank, from],
            Factor::B => vec![to, rank],
            Factor::BBias | Factor::Magnitude => vec![to],
        }
    }

    /// The name of the base weight that the site adapts.
    #[must_use]
    pub fn base_weight(&self) -> String {
        if self.kind.is_parameter() {
            return self.module.clone();
        }
        format!("{}.weight", self.module)
    }

    /// The name that the module's own bias has in the base.
    #[must_use]
    pub fn base_bias(&self) -> String {
        format!("{}.bias", self.module)
    }
}

/// The suffix that PEFT gives a factor.
pub(crate) fn suffix(kind: ModuleKind, factor: Factor) -> &'static str {
    match (kind, factor) {
        (_, Factor::Magnitude) => "lora_magnitude_vector",
        (ModuleKind::Embedding, Factor::A) => "lora_embedding_A",
        (ModuleKind::Embedding, _) => "lora_embedding_B",
        (_, Factor::A) => "lora_A.weight",
        (_, Factor::B) => "lora_B.weight",
        (_, Factor::BBias) => "lora_B.bias",
    }
}
