//! [`OnceFor`]: what all layers of a pass that ask alike are given, made once.

use std::sync::{Arc, Mutex, PoisonError};

/// Values that were made for those who asked. A clone shares them.
#[derive(Clone, Debug)]
pub(crate) struct OnceFor<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for OnceFor<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> OnceFor<T> {
    /// The value that fits, or what `make` makes where none does yet.
    pub(crate) fn get(&self, fits: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = all.iter().find(|value| fits(value)) {
            return there.clone();
        }
        let value = make();
        all.push(value.clone());
        value
    }
}
