//! The parameters of a Burn module, by path.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Tensor};
use burnish_core::{BurnParameter, Dtype, Parameter, Registry};

use crate::OptimError;

/// The float parameters of `module`; clones of one `Param` are aliases of the first.
pub(super) fn parameters<M: Module>(module: &M) -> Registry {
    let mut survey = Survey { at: Vec::new(), first: HashMap::new(), registry: Registry::new() };
    module.visit(&mut survey);
    survey.registry
}

/// Those that `pattern` covers.
pub(super) fn matching<'a>(
    registry: &'a mut Registry,
    pattern: &'a str,
) -> Result<impl Iterator<Item = &'a mut Parameter>, OptimError> {
    if !registry.iter().any(|p| covers(pattern, &p.name)) {
        let paths = registry.iter().map(|p| p.name.clone()).collect();
        return Err(OptimError::Unmatched { pattern: pattern.to_owned(), paths });
    }
    Ok(registry.iter_mut().filter(move |p| covers(pattern, &p.name)))
}

/// Whether a pattern covers a path: the same components, `*` for any one, to the pattern's end.
fn covers(pattern: &str, path: &str) -> bool {
    let mut parts = path.split('.');
    pattern.split('.').all(|expected| parts.next().is_some_and(|part| expected == "*" || expected == part))
}

struct Survey {
    /// Fields and what holds them, from the module down.
    at: Vec<(String, String)>,
    first: HashMap<ParamId, String>,
    registry: Registry,
}

impl ModuleVisitor for Survey {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.at.push((name.to_owned(), container.to_owned()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.at.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.at.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".");
        let (field, container) = self.at.last().map_or(("", ""), |(f, c)| (f.as_str(), c.as_str()));
        let known = BurnParameter { container, field, dims: D };
        let value = param.base();
        let store = match value.dtype() {
            DType::BF16 => Dtype::Bf16,
            DType::F16 => Dtype::F16,
            DType::F64 => Dtype::F64,
            _ => Dtype::F32,
        };
        let mut parameter = Parameter::new(path, &value.dims(), known.role(), store);
        parameter.orientation = known.orientation();
        parameter.trainable = value.is_require_grad();
        parameter.alias_of = self.first.get(&param.id).cloned();
        if parameter.alias_of.is_none() {
            self.first.insert(param.id, parameter.name.clone());
        }
        // A module's paths differ, and an alias names what was met before.
        self.registry.add(parameter).expect("invariant: Burn's traversal gives every parameter its own path");
    }
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn patterns_cover_components() {
        assert!(covers("layers.*", "layers.10.q.weight"));
        assert!(!covers("layers.1", "layers.10.q.weight"));
        assert!(covers("*.weight", "head.weight"));
        assert!(!covers("layers.0.q", "layers.0"));
    }
}
