//! The tensors of a linear layer or an embedding: which there are, in which order, of which shape.
//!
//! A layer is a weight, perhaps a bias, and perhaps an adapter: LoRA's A and B, a bias of B (`lora_bias`), a magnitude
//! (DoRA). Whatever there is one of per tensor (indices, tensors, names, wanted gradients, gradients) is a
//! [`LinearParts`] with another `T`; this file alone knows the order.

use std::convert::Infallible;
use std::fmt;

/// Which tensor of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinearPart {
    /// The weight: `[out, in]`, of an embedding `[in, out]` (vocabulary, width).
    Weight,
    /// The bias, `[out]`.
    Bias,
    /// LoRA's A, `[rank, in]`.
    LoraA,
    /// LoRA's B, `[out, rank]`.
    LoraB,
    /// The bias of B, `[out]` (PEFT's `lora_bias`).
    LoraBBias,
    /// DoRA's magnitude, `[out]`.
    Magnitude,
}

/// What a dimension of a part counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinearDim {
    /// Output features; an embedding's width.
    Out,
    /// Input features; an embedding's vocabulary.
    In,
    /// The adapter's rank.
    Rank,
}

impl LinearPart {
    /// All of them, in the order of [`LinearParts`].
    pub const ALL: [Self; 6] =
        [Self::Weight, Self::Bias, Self::LoraA, Self::LoraB, Self::LoraBBias, Self::Magnitude];

    /// Its name, as PEFT has it for linear layers (without the `.weight` of A and B).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Bias => "bias",
            Self::LoraA => "lora_A",
            Self::LoraB => "lora_B",
            Self::LoraBBias => "lora_B.bias",
            Self::Magnitude => "lora_magnitude_vector",
        }
    }

    /// Whether it belongs to the adapter.
    #[must_use]
    pub const fn is_lora(self) -> bool {
        !matches!(self, Self::Weight | Self::Bias)
    }

    /// What its dimensions count. An embedding reads rows of its table: its weight is a linear's transposed.
    ///
    /// ```
    /// use burnish_core::{LinearDim, LinearPart};
    ///
    /// assert_eq!(LinearPart::LoraA.dims(false), [LinearDim::Rank, LinearDim::In]);
    /// assert_eq!(LinearPart::Weight.dims(true), [LinearDim::In, LinearDim::Out]);
    /// ```
    #[must_use]
    pub const fn dims(self, embedding: bool) -> &'static [LinearDim] {
        match self {
            Self::Weight if embedding => &[LinearDim::In, LinearDim::Out],
            Self::Weight => &[LinearDim::Out, LinearDim::In],
            Self::LoraA => &[LinearDim::Rank, LinearDim::In],
            Self::LoraB => &[LinearDim::Out, LinearDim::Rank],
            Self::Bias | Self::LoraBBias | Self::Magnitude => &[LinearDim::Out],
        }
    }

    /// Its shape in a layer of such sizes.
    #[must_use]
    pub fn shape(self, embedding: bool, out: usize, input: usize, rank: usize) -> Vec<usize> {
        let size = |dim: &LinearDim| match dim {
            LinearDim::Out => out,
            LinearDim::In => input,
            LinearDim::Rank => rank,
        };
        self.dims(embedding).iter().map(size).collect()
    }
}

impl fmt::Display for LinearPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One `T` for each tensor that a layer has.
///
/// ```
/// use burnish_core::{LinearPart, LinearParts, LoraParts};
///
/// let lora = LoraParts { a: 3, b: 4, b_bias: None, magnitude: Some(5) };
/// let indices = LinearParts { weight: 7, bias: None, lora: Some(lora) };
/// let order: Vec<(LinearPart, usize)> = indices.into_iter().collect();
/// assert_eq!(order[0], (LinearPart::Weight, 7));
/// assert_eq!(order[3], (LinearPart::Magnitude, 5));
///
/// // The same layer's tensors, from a list in that order.
/// let names = indices.fill(&mut ["w", "a", "b", "m"].into_iter());
/// assert_eq!(names.get(LinearPart::LoraB), Some(&"b"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearParts<T> {
    /// [`LinearPart::Weight`].
    pub weight: T,
    /// [`LinearPart::Bias`].
    pub bias: Option<T>,
    /// The adapter's.
    pub lora: Option<LoraParts<T>>,
}

/// Rows, and columns of all first factors at most, from which on adapters of layers that read one input are multiplied together on a
/// GPU; also for those who plan without it.
pub const ADAPTERS_TOGETHER: [usize; 2] = [1024, 64];

/// One `T` for each tensor of an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoraParts<T> {
    /// [`LinearPart::LoraA`].
    pub a: T,
    /// [`LinearPart::LoraB`].
    pub b: T,
    /// [`LinearPart::LoraBBias`].
    pub b_bias: Option<T>,
    /// [`LinearPart::Magnitude`].
    pub magnitude: Option<T>,
}

impl<T> LoraParts<T> {
    /// The same parts, made of these, in order.
    ///
    /// # Errors
    /// The first that `make` returns.
    pub fn try_map<U, E>(
        self,
        mut make: impl FnMut(LinearPart, T) -> Result<U, E>,
    ) -> Result<LoraParts<U>, E> {
        Ok(LoraParts {
            a: make(LinearPart::LoraA, self.a)?,
            b: make(LinearPart::LoraB, self.b)?,
            b_bias: self.b_bias.map(|t| make(LinearPart::LoraBBias, t)).transpose()?,
            magnitude: self.magnitude.map(|t| make(LinearPart::Magnitude, t)).transpose()?,
        })
    }

    /// The same parts, made of these, in order.
    pub fn map<U>(self, mut make: impl FnMut(LinearPart, T) -> U) -> LoraParts<U> {
        let Ok(made) = self.try_map(|part, t| Ok::<_, Infallible>(make(part, t)));
        made
    }

    /// The same parts, borrowed.
    #[must_use]
    pub const fn as_ref(&self) -> LoraParts<&T> {
        LoraParts { a: &self.a, b: &self.b, b_bias: self.b_bias.as_ref(), magnitude: self.magnitude.as_ref() }
    }

    /// The parts that both have, in pairs.
    #[must_use]
    pub fn zip<U>(self, other: LoraParts<U>) -> LoraParts<(T, U)> {
        LoraParts {
            a: (self.a, other.a),
            b: (self.b, other.b),
            b_bias: self.b_bias.zip(other.b_bias),
            magnitude: self.magnitude.zip(other.magnitude),
        }
    }

    /// The part, if the adapter has it.
    #[must_use]
    pub fn get(&self, part: LinearPart) -> Option<&T> {
        self.as_ref().into_iter().find_map(|(p, t)| (p == part).then_some(t))
    }
}

impl<T> LinearParts<T> {
    /// A weight alone.
    #[must_use]
    pub const fn new(weight: T) -> Self {
        Self { weight, bias: None, lora: None }
    }

    /// The same parts, made of these, in order.
    ///
    /// # Errors
    /// The first that `make` returns.
    pub fn try_map<U, E>(
        self,
        mut make: impl FnMut(LinearPart, T) -> Result<U, E>,
    ) -> Result<LinearParts<U>, E> {
        Ok(LinearParts {
            weight: make(LinearPart::Weight, self.weight)?,
            bias: self.bias.map(|t| make(LinearPart::Bias, t)).transpose()?,
            lora: self.lora.map(|lora| lora.try_map(make)).transpose()?,
        })
    }

    /// The same parts, made of these, in order.
    pub fn map<U>(self, mut make: impl FnMut(LinearPart, T) -> U) -> LinearParts<U> {
        let Ok(made) = self.try_map(|part, t| Ok::<_, Infallible>(make(part, t)));
        made
    }

    /// The same parts, borrowed.
    #[must_use]
    pub fn as_ref(&self) -> LinearParts<&T> {
        LinearParts {
            weight: &self.weight,
            bias: self.bias.as_ref(),
            lora: self.lora.as_ref().map(LoraParts::as_ref),
        }
    }

    /// The parts that both have, in pairs.
    #[must_use]
    pub fn zip<U>(self, other: LinearParts<U>) -> LinearParts<(T, U)> {
        LinearParts {
            weight: (self.weight, other.weight),
            bias: self.bias.zip(other.bias),
            lora: self.lora.zip(other.lora).map(|(lora, other)| lora.zip(other)),
        }
    }

    /// The same parts with the next `values`, in order; what follows them stays in the iterator.
    ///
    /// # Panics
    /// If there are fewer values than parts.
    pub fn fill<U>(&self, values: &mut (impl Iterator<Item = U> + ?Sized)) -> LinearParts<U> {
        self.as_ref().map(|part, _| match values.next() {
            Some(value) => value,
            None => panic!("invariant: one value for each part of the layer; none is left for `{part}`"),
        })
    }

    /// Weight and bias alone.
    #[must_use]
    pub fn base(self) -> Self {
        Self { lora: None, ..self }
    }

    /// The part, if the layer has it.
    #[must_use]
    pub fn get(&self, part: LinearPart) -> Option<&T> {
        self.as_ref().into_iter().find_map(|(p, t)| (p == part).then_some(t))
    }

    /// The part, if the layer has it.
    #[must_use]
    pub fn get_mut(&mut self, part: LinearPart) -> Option<&mut T> {
        match part {
            LinearPart::Weight => Some(&mut self.weight),
            LinearPart::Bias => self.bias.as_mut(),
            LinearPart::LoraA => self.lora.as_mut().map(|lora| &mut lora.a),
            LinearPart::LoraB => self.lora.as_mut().map(|lora| &mut lora.b),
            LinearPart::LoraBBias => self.lora.as_mut().and_then(|lora| lora.b_bias.as_mut()),
            LinearPart::Magnitude => self.lora.as_mut().and_then(|lora| lora.magnitude.as_mut()),
        }
    }

    /// The parts in order.
    pub fn iter(&self) -> LinearPartsIter<&T> {
        self.as_ref().into_iter()
    }
}

impl LinearParts<bool> {
    /// True of these parts, of a layer that may have any.
    ///
    /// ```
    /// use burnish_core::{LinearPart, LinearParts};
    ///
    /// let wanted = LinearParts::of(&[LinearPart::LoraA, LinearPart::LoraB]);
    /// assert!(wanted.wants(LinearPart::LoraB) && !wanted.wants(LinearPart::Weight));
    /// ```
    #[must_use]
    pub fn of(parts: &[LinearPart]) -> Self {
        let lora = LoraParts { a: (), b: (), b_bias: Some(()), magnitude: Some(()) };
        let all = LinearParts { weight: (), bias: Some(()), lora: Some(lora) };
        all.map(|part, ()| parts.contains(&part))
    }

    /// Whether the part is there and true: whether its gradient is wanted.
    #[must_use]
    pub fn wants(&self, part: LinearPart) -> bool {
        self.get(part).copied().unwrap_or(false)
    }
}

impl<T> LinearParts<Option<T>> {
    /// What there is of a part: its gradient, where one was wanted.
    #[must_use]
    pub fn found(&self, part: LinearPart) -> Option<&T> {
        self.get(part).and_then(Option::as_ref)
    }

    /// What there is of a part.
    #[must_use]
    pub fn found_mut(&mut self, part: LinearPart) -> Option<&mut T> {
        self.get_mut(part).and_then(Option::as_mut)
    }
}

/// The parts of a [`LinearParts`] or [`LoraParts`], in order.
pub type LinearPartsIter<T> =
    std::iter::Flatten<std::array::IntoIter<Option<(LinearPart, T)>, { LinearPart::ALL.len() }>>;

impl<T> IntoIterator for LinearParts<T> {
    type Item = (LinearPart, T);
    type IntoIter = LinearPartsIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        let mut parts = [const { None }; LinearPart::ALL.len()];
        self.map(|part, t| parts[part as usize] = Some((part, t)));
        parts.into_iter().flatten()
    }
}

impl<T> IntoIterator for LoraParts<T> {
    type Item = (LinearPart, T);
    type IntoIter = LinearPartsIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        let mut parts = [const { None }; LinearPart::ALL.len()];
        self.map(|part, t| parts[part as usize] = Some((part, t)));
        parts.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Every layer that there may be, its parts numbered in the order of iteration.
    fn layers() -> Vec<LinearParts<usize>> {
        let mut all = Vec::new();
        for mask in 0..16_u8 {
            let has = |bit: u8| (mask >> bit & 1 == 1).then_some(());
            let lora = has(1).map(|()| LoraParts { a: (), b: (), b_bias: has(2), magnitude: has(3) });
            all.push(LinearParts { weight: (), bias: has(0), lora }.fill(&mut (0..)));
        }
        all
    }

    #[test]
    fn parts_come_in_one_order_whatever_is_missing() {
        for layer in layers() {
            let parts: Vec<(LinearPart, usize)> = layer.into_iter().collect();
            assert!(parts.windows(2).all(|w| w[0].0 < w[1].0), "{parts:?}");
            assert!(parts.iter().enumerate().all(|(i, (_, at))| i == *at), "{parts:?}");
            assert_eq!(parts, layer.iter().map(|(part, at)| (part, *at)).collect::<Vec<_>>());
            for part in LinearPart::ALL {
                let at = parts.iter().find(|(p, _)| *p == part).map(|(_, at)| at);
                assert_eq!(layer.get(part), at);
            }
        }
        let mut full = layers().pop().unwrap();
        for (part, at) in full {
            *full.get_mut(part).unwrap() += at;
        }
        assert!(full.iter().enumerate().all(|(i, (_, at))| 2 * i == *at), "{full:?}");
        assert!(full.into_iter().map(|(part, _)| part).eq(LinearPart::ALL));
        assert!(full.lora.unwrap().into_iter().eq(full.into_iter().filter(|(part, _)| part.is_lora())));
    }

    #[test]
    fn a_pair_has_what_both_have() {
        for left in layers() {
            for right in layers() {
                let both: Vec<LinearPart> = left.zip(right).into_iter().map(|(part, _)| part).collect();
                let has = |part: &LinearPart| left.get(*part).is_some() && right.get(*part).is_some();
                assert!(both.iter().copied().eq(LinearPart::ALL.into_iter().filter(has)));
                for (part, (l, r)) in left.zip(right) {
                    assert_eq!((Some(&l), Some(&r)), (left.get(part), right.get(part)));
                }
            }
        }
    }

    #[test]
    fn values_fill_parts_and_leave_the_rest() {
        let layer = LinearParts { weight: (), bias: Some(()), lora: None };
        let mut values = [1, 2, 3].into_iter();
        assert_eq!(layer.fill(&mut values), LinearParts { weight: 1, bias: Some(2), lora: None });
        assert_eq!(values.next(), Some(3));
    }

    #[test]
    #[should_panic(expected = "none is left for `bias`")]
    fn too_few_values_are_told() {
        let _ = LinearParts { weight: (), bias: Some(()), lora: None }.fill(&mut [1].into_iter());
    }

    #[test]
    fn what_is_wanted_and_found() {
        let wanted = LinearParts { weight: false, bias: Some(true), lora: None };
        assert_eq!(
            [LinearPart::Weight, LinearPart::Bias, LinearPart::LoraA].map(|p| wanted.wants(p)),
            [false, true, false]
        );
        let found = wanted.map(|_, wanted| wanted.then_some("gradient"));
        assert_eq!(found.found(LinearPart::Bias), Some(&"gradient"));
        assert_eq!(found.found(LinearPart::Weight), None);
    }

    #[test]
    fn shapes_follow_what_dimensions_count() {
        let shapes = |embedding| LinearPart::ALL.map(|part| part.shape(embedding, 5, 7, 2));
        let [.., b_bias, magnitude] = shapes(false);
        assert_eq!((b_bias, magnitude), (vec![5], vec![5]));
        assert_eq!(shapes(false)[..4], [vec![5, 7], vec![5], vec![2, 7], vec![5, 2]]);
        assert_eq!(shapes(true)[..4], [vec![7, 5], vec![5], vec![2, 7], vec![5, 2]]);
    }
}
