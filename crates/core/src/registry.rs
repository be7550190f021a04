//! The ordered set of a model's parameters.

use std::collections::HashMap;

use crate::Parameter;

/// A model's parameters in a fixed order, addressed by name.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    entries: Vec<Parameter>,
    by_name: HashMap<String, usize>,
}

/// A registry that cannot be built.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Two parameters share a name.
    #[error("parameter `{name}` is registered twice")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// An alias names a parameter that is not there.
    #[error("parameter `{name}` is tied to `{target}`, which is not registered")]
    DanglingAlias {
        /// The tied parameter.
        name: String,
        /// What it names.
        target: String,
    },
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a parameter and returns its index.
    ///
    /// # Errors
    /// If the name is taken, or it is an alias of an unknown parameter.
    pub fn add(&mut self, parameter: Parameter) -> Result<usize, RegistryError> {
        if self.by_name.contains_key(&parameter.name) {
            return Err(RegistryError::Duplicate { name: parameter.name });
        }
        if let Some(target) = &parameter.alias_of
            && !self.by_name.contains_key(target)
        {
            return Err(RegistryError::DanglingAlias {
                name: parameter.name.clone(),
                target: target.clone(),
            });
        }
        let index = self.entries.len();
        self.by_name.insert(parameter.name.clone(), index);
        self.entries.push(parameter);
        Ok(index)
    }

    /// The parameter of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.by_name.get(name).map(|&i| &self.entries[i])
    }

    /// The parameter of that name, to change its facts.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Parameter> {
        self.by_name.get(name).map(|&i| &mut self.entries[i])
    }

    /// The parameter at `index`.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn at(&self, index: usize) -> &Parameter {
        &self.entries[index]
    }

    /// The position of that name.
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// All parameters, in registration order.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.entries.iter()
    }

    /// All parameters, to change their facts.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.entries.iter_mut()
    }

    /// The parameter whose tensor `parameter` is: that which it is an alias of, else itself.
    #[must_use]
    pub fn owner<'a>(&'a self, parameter: &'a Parameter) -> &'a Parameter {
        parameter.alias_of.as_deref().and_then(|name| self.get(name)).unwrap_or(parameter)
    }

    /// The parameters that the optimizer updates, each logical tensor once.
    pub fn trainable(&self) -> impl Iterator<Item = &Parameter> {
        self.entries.iter().filter(|p| p.trainable && p.alias_of.is_none())
    }

    /// The number of parameters, aliases included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
