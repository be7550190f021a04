//! Labels of a token loss: the token that is right at each position.

use std::sync::Arc;

use burn::tensor::{Int, Tensor};

/// The token that is right at each position, in their order; some positions may have none.
///
/// Made of token ids, of optional ones, or of a Burn tensor of any rank, in which every negative number (PyTorch's -100)
/// is none.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use burnish_losses::Labels;
/// let tensor = Tensor::<2, Int>::from_data([[3, -100], [1, 2]], &Device::flex());
/// assert_eq!(Labels::from(tensor).ids(), [Some(3), None, Some(1), Some(2)]);
/// assert_eq!(Labels::from(vec![3, 1]).ids(), [Some(3), Some(1)]);
/// ```
#[derive(Clone, Debug)]
pub struct Labels(pub(crate) Kind);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Every position has one.
    Every(Arc<Vec<u32>>),
    /// Some positions have one.
    Some(Vec<Option<u32>>),
}

impl Labels {
    /// By position.
    #[must_use]
    pub fn ids(&self) -> Vec<Option<u32>> {
        match &self.0 {
            Kind::Every(ids) => ids.iter().copied().map(Some).collect(),
            Kind::Some(labels) => labels.clone(),
        }
    }
}

impl From<Arc<Vec<u32>>> for Labels {
    fn from(ids: Arc<Vec<u32>>) -> Self {
        Self(Kind::Every(ids))
    }
}

impl From<&Arc<Vec<u32>>> for Labels {
    fn from(ids: &Arc<Vec<u32>>) -> Self {
        Self(Kind::Every(Arc::clone(ids)))
    }
}

impl From<Vec<u32>> for Labels {
    fn from(ids: Vec<u32>) -> Self {
        Self(Kind::Every(Arc::new(ids)))
    }
}

impl From<Vec<Option<u32>>> for Labels {
    fn from(labels: Vec<Option<u32>>) -> Self {
        Self(Kind::Some(labels))
    }
}

impl From<&[Option<u32>]> for Labels {
    fn from(labels: &[Option<u32>]) -> Self {
        Self(Kind::Some(labels.to_vec()))
    }
}

impl<const D: usize> From<Tensor<D, Int>> for Labels {
    fn from(labels: Tensor<D, Int>) -> Self {
        let ids = labels.into_data().convert::<i64>();
        Self(Kind::Some(ids.iter::<i64>().map(|id| u32::try_from(id).ok()).collect()))
    }
}
