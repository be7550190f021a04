//! `Documents`: where the texts of a row of tokens lie.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// Where each text of a row of tokens lies; attention stays inside. Cheap to clone. Layers share one: what a device's kernels
/// need of it is made once for all that see alike.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    ranges: Arc<Vec<Range<usize>>>,
    #[cfg(feature = "cube")]
    pub(crate) plans: crate::gpu::Plans,
    pub(crate) convolved: crate::conv_heads::ConvPlans,
    #[cfg(feature = "cube")]
    pub(crate) walked: crate::gpu::TextPlans,
}

impl Deref for Documents {
    type Target = [Range<usize>];

    fn deref(&self) -> &[Range<usize>] {
        &self.ranges
    }
}

impl From<Vec<Range<usize>>> for Documents {
    fn from(ranges: Vec<Range<usize>>) -> Self {
        Self {
            ranges: Arc::new(ranges),
            #[cfg(feature = "cube")]
            plans: Default::default(),
            convolved: Default::default(),
            #[cfg(feature = "cube")]
            walked: Default::default(),
        }
    }
}

impl FromIterator<Range<usize>> for Documents {
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(ranges: I) -> Self {
        ranges.into_iter().collect::<Vec<_>>().into()
    }
}
