//! `Tensors`: the tensors of a GGUF file that parameters are in.

use std::collections::BTreeMap;
use std::ops::Range;

use burnish_core::Registry;

use super::arch::Arch;
use crate::spec::names::{QkvNames, UpNames};
use crate::{ModelError, Spec};

/// A tensor that holds a parameter, or the same rows of each of its matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The tensor.
    pub(super) tensor: String,
    /// Rows of each matrix of a stack; all, where none are said.
    pub(super) rows: Option<Range<usize>>,
    /// How values change on the way.
    pub(super) change: Change,
}

/// How values change on the way to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Not at all.
    None,
    /// Of so many heads each: rows of halves that turn together become neighbours.
    Heads(usize),
    /// One is added.
    PlusOne,
}

impl Change {
    /// Values of rows as the file has them.
    pub(super) fn forward(self, values: &mut Vec<f32>, rows: usize) {
        match self {
            Self::None => {}
            Self::PlusOne => values.iter_mut().for_each(|value| *value += 1.0),
            Self::Heads(heads) => *values = reordered(values, rows, heads, |d, at| at % 2 * (d / 2) + at / 2),
        }
    }

    /// Values of rows as the model has them.
    pub(super) fn backward(self, values: &mut Vec<f32>, rows: usize) {
        match self {
            Self::None => {}
            Self::PlusOne => values.iter_mut().for_each(|value| *value -= 1.0),
            Self::Heads(heads) => {
                *values = reordered(values, rows, heads, |d, at| at % (d / 2) * 2 + at / (d / 2))
            }
        }
    }
}

/// Rows in another order within each head: `from(rows of a head, place)` is where a place's row was.
fn reordered(values: &[f32], rows: usize, heads: usize, from: impl Fn(usize, usize) -> usize) -> Vec<f32> {
    let (width, d) = (values.len() / rows.max(1), rows / heads.max(1));
    let mut all = Vec::with_capacity(values.len());
    for head in 0..heads {
        for at in 0..d {
            let row = head * d + from(d, at);
            all.extend_from_slice(&values[row * width..][..width]);
        }
    }
    all
}

/// The parts of every parameter, by its name.
pub(super) struct Tensors(BTreeMap<String, Vec<Part>>);

impl Tensors {
    /// Those of a model; `head` says that the head is written though it is the embedding.
    pub(super) fn new(spec: &Spec, arch: Arch) -> Self {
        let mut all = Self(BTreeMap::new());
        let (names, none) = (&spec.names, Change::None);
        let norm = if arch.adds_one { Change::PlusOne } else { none };
        let heads = |heads: usize| if arch.turns_neighbours { Change::Heads(heads) } else { none };
        all.module(names.embed, "token_embd", none);
        all.module(names.positions, "position_embd", none);
        all.module(names.norm, "output_norm", norm);
        all.module(names.head, "output", none);
        for layer in 0..spec.layers.len() {
            let mut add = |module: &str, tensor: &str, change| {
                if !module.is_empty() {
                    all.module(&names.in_block(layer, module), &format!("blk.{layer}.{tensor}"), change);
                }
            };
            add(names.attention_norm, "attn_norm", norm);
            match names.qkv {
                QkvNames::Apart([q, k, v]) => {
                    add(q, "attn_q", heads(spec.heads));
                    add(k, "attn_k", heads(spec.kv_heads));
                    add(v, "attn_v", none);
                }
                QkvNames::Packed(module) => add(module, "attn_qkv", none),
                QkvNames::PerGroup(_) | QkvNames::OfLatent(_) | QkvNames::Quarters(_) => {}
            }
            if spec.qk_norm.is_some() {
                add(names.qk_norms[0], "attn_q_norm", norm);
                add(names.qk_norms[1], "attn_k_norm", norm);
            }
            add(names.o, "attn_output", none);
            if spec.layout.is_post() {
                add(names.attention_post_norm, "post_attention_norm", norm);
                add(names.mlp_post_norm, "post_ffw_norm", norm);
            }
            if spec.layout.is_pre() {
                add(names.mlp_norm, "ffn_norm", norm);
            }
            if let Some(experts) = spec.experts_of(layer) {
                add(names.experts.router, "ffn_gate_inp", none);
                let width = experts.intermediate;
                let name = |module: &str| names.in_block(layer, module);
                let part = |tensor: &str, rows| Part {
                    tensor: format!("blk.{layer}.{tensor}.weight"),
                    rows,
                    change: none,
                };
                let halves =
                    [part("ffn_gate_exps", Some(0..width)), part("ffn_up_exps", Some(width..2 * width))];
                all.0.insert(name(names.experts.gate_up), halves.to_vec());
                all.0.insert(name(names.experts.down), vec![part("ffn_down_exps", None)]);
                continue;
            }
            match names.up {
                UpNames::Gated([gate, up]) => {
                    add(gate, "ffn_gate", none);
                    add(up, "ffn_up", none);
                }
                UpNames::Packed(module) | UpNames::Plain(module) => add(module, "ffn_up", none),
            }
            add(names.down, "ffn_down", none);
        }
        all
    }

    fn module(&mut self, module: &str, tensor: &str, change: Change) {
        for part in ["weight", "bias"] {
            let tensor = format!("{tensor}.{part}");
            self.0.insert(format!("{module}.{part}"), vec![Part { tensor, rows: None, change }]);
        }
    }

    /// The parts of a parameter.
    ///
    /// # Errors
    /// If there is no tensor for it.
    pub(super) fn of(&self, parameter: &str) -> Result<&[Part], ModelError> {
        let unknown = || ModelError::UnknownParameter { name: parameter.to_owned() };
        self.0.get(parameter).map(Vec::as_slice).ok_or_else(unknown)
    }

    /// Fails unless every parameter of the base has its tensors.
    pub(super) fn check(&self, registry: &Registry, base: usize) -> Result<(), ModelError> {
        registry.iter().take(base).try_for_each(|parameter| self.of(&parameter.name).map(drop))
    }
}
