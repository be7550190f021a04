//! Roles and orientations of the parameters of a Burn module, by the words of Burn's traversal.
//!
//! Burn's module visitors tell a parameter's field (`weight`) and the type that holds it (`Struct:Linear`), and nothing
//! of what it is for. What follows from them is here once, for every crate that walks a module. No Burn in here: words
//! only.

use crate::{Orientation, Role};

/// A float parameter where Burn's traversal meets it.
///
/// ```
/// use burnish_core::{BurnParameter, Orientation, Role};
/// let weight = BurnParameter { container: "Struct:Linear", field: "weight", dims: 2 };
/// assert_eq!((weight.role(), weight.orientation()), (Role::Matrix, Orientation::InOut));
/// // Nothing says whether a matrix in a struct of one's own is `[in, out]` or `[out, in]`.
/// let own = BurnParameter { container: "Struct:Mixer", field: "mix", dims: 2 };
/// assert_eq!((own.role(), own.orientation()), (Role::Matrix, Orientation::Undeclared));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurnParameter<'a> {
    /// What holds it: `Struct:Linear`, `Vec`.
    pub container: &'a str,
    /// Its name there: `weight`, `gamma`, `0`.
    pub field: &'a str,
    /// Its number of dimensions.
    pub dims: usize,
}

impl BurnParameter<'_> {
    fn of(&self, name: &str) -> bool {
        self.container.strip_prefix("Struct:") == Some(name)
    }

    fn convolves(&self) -> bool {
        self.container.strip_prefix("Struct:").is_some_and(|name| {
            ["Conv", "DeformConv"].iter().any(|family| name.starts_with(family)) && self.dims > 2
        })
    }

    /// What it is for: vectors are biases (`bias`, `beta`) or norms; an `Embedding`'s matrix is one, factors of Burn's
    /// `LoraAdapter` are an adapter's, kernels of convolutions are those; anything else is a matrix.
    #[must_use]
    pub fn role(&self) -> Role {
        match self.dims {
            0 | 1 if matches!(self.field, "bias" | "beta") => Role::Bias,
            0 | 1 => Role::Norm,
            _ if self.of("Embedding") => Role::Embedding,
            _ if self.of("LoraAdapter") => Role::Adapter,
            _ if self.convolves() => Role::Convolution,
            _ => Role::Matrix,
        }
    }

    /// How its fans lie: the weights of Burn's `Linear` and the factors of its `LoraAdapter` are `[in, out]`; kernels of
    /// its convolutions `[out, in, ...]`, of its transposed ones `[in, out, ...]`. Of other matrices nothing is known.
    #[must_use]
    pub fn orientation(&self) -> Orientation {
        match self.role() {
            Role::Matrix if self.of("Linear") => Orientation::InOut,
            Role::Adapter => Orientation::InOut,
            Role::Convolution if self.container.contains("Transpose") => Orientation::InOut,
            Role::Matrix => Orientation::Undeclared,
            _ => Orientation::OutIn,
        }
    }

    /// Its field's name in PyTorch: norms have `weight` and `bias` there where Burn has `gamma` and `beta`.
    #[must_use]
    pub fn torch_field(&self) -> &str {
        match self.field {
            "gamma" if self.container.ends_with("Norm") => "weight",
            "beta" if self.container.ends_with("Norm") => "bias",
            field => field,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burns_own_modules_are_known() {
        let known = |container, field, dims| {
            let p = BurnParameter { container, field, dims };
            (p.role(), p.orientation())
        };
        use Orientation::{InOut, OutIn, Undeclared};
        for (container, field, dims, want) in [
            ("Struct:Linear", "weight", 2, (Role::Matrix, InOut)),
            ("Struct:Linear", "bias", 1, (Role::Bias, OutIn)),
            ("Struct:Embedding", "weight", 2, (Role::Embedding, OutIn)),
            ("Struct:RmsNorm", "gamma", 1, (Role::Norm, OutIn)),
            ("Struct:LayerNorm", "beta", 1, (Role::Bias, OutIn)),
            ("Struct:LoraAdapter", "a", 2, (Role::Adapter, InOut)),
            ("Struct:Conv2d", "weight", 4, (Role::Convolution, OutIn)),
            ("Struct:ConvTranspose1d", "weight", 3, (Role::Convolution, InOut)),
            ("Struct:Mine", "weight", 2, (Role::Matrix, Undeclared)),
            ("Struct:Mine", "experts", 3, (Role::Matrix, Undeclared)),
            ("Vec", "0", 2, (Role::Matrix, Undeclared)),
        ] {
            assert_eq!(known(container, field, dims), want, "{container}.{field}");
        }
    }

    #[test]
    fn norms_have_pytorchs_names_in_files() {
        let name = |container, field| BurnParameter { container, field, dims: 1 }.torch_field().to_owned();
        assert_eq!(name("Struct:RmsNorm", "gamma"), "weight");
        assert_eq!(name("Struct:LayerNorm", "beta"), "bias");
        assert_eq!(name("Struct:Mine", "gamma"), "gamma");
    }
}
