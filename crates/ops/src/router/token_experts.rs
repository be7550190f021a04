//! [`TokenExperts`]: which experts tokens go to, on the host or where a kernel chose them.

use std::ops::Range;
use std::sync::Arc;
#[cfg(feature = "cube")]
use std::sync::OnceLock;

#[cfg(feature = "cube")]
use burn::tensor::{Int, Tensor};
use burnish_core::ELSEWHERE;

use crate::{AnyTensor, OpsError};

/// The experts of each token, the best first, `[tokens, per_token]`; [`ELSEWHERE`] for one that another rank has. They lie on the host, or
/// on the device whose kernel chose them.
#[derive(Clone, Debug)]
pub struct TokenExperts(Lie);

#[derive(Clone, Debug)]
enum Lie {
    Host(Arc<Vec<u32>>),
    #[cfg(feature = "cube")]
    Device(OnDevice),
}

/// Experts that a kernel chose, of so many.
#[cfg(feature = "cube")]
#[derive(Clone, Debug)]
pub(crate) struct OnDevice {
    pub(crate) ids: Tensor<1, Int>,
    experts: usize,
    host: Arc<OnceLock<Arc<Vec<u32>>>>,
}

impl From<Arc<Vec<u32>>> for TokenExperts {
    fn from(experts: Arc<Vec<u32>>) -> Self {
        Self(Lie::Host(experts))
    }
}

impl From<Vec<u32>> for TokenExperts {
    fn from(experts: Vec<u32>) -> Self {
        Arc::new(experts).into()
    }
}

impl TokenExperts {
    /// Those that a kernel chose among so many `experts`.
    #[cfg(feature = "cube")]
    pub(crate) fn on_device(ids: Tensor<1, Int>, experts: usize) -> Self {
        Self(Lie::Device(OnDevice { ids, experts, host: Arc::default() }))
    }

    /// Where a kernel chose them.
    #[cfg(feature = "cube")]
    pub(crate) fn as_on_device(&self) -> Option<&OnDevice> {
        match &self.0 {
            Lie::Host(_) => None,
            Lie::Device(found) => Some(found),
        }
    }

    /// How many there are, of all tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Lie::Host(experts) => experts.len(),
            #[cfg(feature = "cube")]
            Lie::Device(OnDevice { ids, .. }) => ids.dims()[0],
        }
    }

    /// Whether there is no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their numbers on the host. The first time that waits for a device which has them.
    #[must_use]
    pub fn to_host(&self) -> Arc<Vec<u32>> {
        match &self.0 {
            Lie::Host(experts) => experts.clone(),
            #[cfg(feature = "cube")]
            Lie::Device(OnDevice { ids, host, .. }) => {
                let read = || {
                    let ids = ids.to_data().try_into_vec::<i32>();
                    let ids = ids.expect("invariant: kernels' integers have 32 bits");
                    Arc::new(ids.into_iter().map(i32::cast_unsigned).collect())
                };
                host.get_or_init(read).clone()
            }
        }
    }

    /// The number of each one of `numbers` `[experts]`: `[tokens * per_token]`. Its backward scatters; where the host has to choose rows of what
    /// is tracked, it waits for a device that has the experts.
    ///
    /// # Errors
    /// If there is no such expert, or there is another shape.
    pub fn select(&self, numbers: &AnyTensor) -> Result<AnyTensor, OpsError> {
        let column = AnyTensor::new(numbers.rank::<1>()?.unsqueeze_dim::<2>(1));
        #[cfg(feature = "cube")]
        if let (Lie::Device(found), false) = (&self.0, numbers.is_tracked())
            && self.beyond(numbers.shape()[0]).is_none()
            && let Some(own) = crate::gpu::router::rows_of(&column.plain(), &found.ids)
        {
            return Ok(if numbers.device().is_autodiff() { own.untracked() } else { own });
        }
        let chosen = self.to_host().iter().map(|&expert| expert as usize).collect();
        let own = crate::select_rows(&column, &Arc::new(chosen))?.rank::<2>()?;
        Ok(AnyTensor::new(own.squeeze_dim::<1>(1)))
    }

    /// A number that is none of so many experts.
    pub(crate) fn beyond(&self, count: usize) -> Option<usize> {
        match &self.0 {
            Lie::Host(experts) => {
                let beyond = |&&e: &&u32| e as usize >= count && e != ELSEWHERE;
                experts.iter().find(beyond).map(|&e| e as usize)
            }
            #[cfg(feature = "cube")]
            Lie::Device(OnDevice { experts, .. }) => (*experts > count).then(|| experts - 1),
        }
    }

    /// The same to one who has these experts alone, counted from the first of them.
    #[must_use]
    pub fn to(&self, own: &Range<usize>) -> Self {
        #[cfg(feature = "cube")]
        if self.as_on_device().is_some_and(|found| *own == (0..found.experts)) {
            return self.clone();
        }
        let at = |&e: &u32| if own.contains(&(e as usize)) { e - own.start as u32 } else { ELSEWHERE };
        self.to_host().iter().map(at).collect::<Vec<_>>().into()
    }
}
