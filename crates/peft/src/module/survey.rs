//! Survey of a Burn module: what can be adapted and what it holds, under the names that files have.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor};
use burnish_core::{BurnParameter, Dtype, Orientation, Parameter, Registry, Role};
use burnish_weight_files::HostTensor;

use crate::{LoraConfig, LoraPlan, ModuleInfo, ModuleKind, PeftError, Purpose};

/// A module's linear layers, embeddings and parameters.
#[derive(Default)]
pub(super) struct Survey {
    at: Vec<(String, String)>,
    modules: Vec<ModuleInfo>,
    /// By their names in files, with the shapes that files have.
    registry: Registry,
    places: BTreeMap<String, Place>,
    /// Paths of the factors that are attached.
    pub(super) attached: Vec<String>,
}

/// Where a base parameter lies.
struct Place {
    path: String,
    turned: bool,
}

impl Survey {
    /// Of a module without adapters.
    pub(super) fn of<M: Module>(module: &M) -> Result<Self, PeftError> {
        let survey = Self::with_adapters(module);
        match survey.attached.first() {
            Some(path) => Err(PeftError::Adapted { path: path.clone() }),
            None => Ok(survey),
        }
    }

    pub(super) fn with_adapters<M: Module>(module: &M) -> Self {
        let mut survey = Self::default();
        module.visit(&mut survey);
        survey
    }

    /// The adapter that `config` describes on this module.
    pub(super) fn plan(&self, config: &LoraConfig, purpose: Purpose) -> Result<LoraPlan, PeftError> {
        LoraPlan::new(config, purpose, "burn module", &self.modules, &self.registry)
    }

    /// Where the base parameter of that name lies.
    pub(super) fn path(&self, name: &str) -> &str {
        &self.place(name).path
    }

    fn place(&self, name: &str) -> &Place {
        self.places.get(name).expect("invariant: a plan names parameters of its survey")
    }

    /// A base parameter's values as Burn holds them, from those of a file.
    pub(super) fn burn_values(&self, name: &str, tensor: &HostTensor) -> Vec<f32> {
        match (self.place(name).turned, &tensor.shape[..]) {
            (true, [_, columns]) => turned(&tensor.to_f32(), *columns),
            _ => tensor.to_f32(),
        }
    }

    /// A base parameter as files hold it, from what Burn holds.
    pub(super) fn file_tensor(&self, name: &str, values: Vec<f32>) -> Result<HostTensor, PeftError> {
        let parameter = self.registry.get(name).expect("invariant: a plan names parameters of its survey");
        let values = match (self.place(name).turned, &parameter.shape[..]) {
            (true, [out, _]) => turned(&values, *out),
            _ => values,
        };
        Ok(HostTensor::from_f32(&values, &parameter.shape, parameter.precision.store)?)
    }
}

impl ModuleVisitor for Survey {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.at.push((name.to_owned(), container.to_owned()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.at.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some((field, container)) = self.at.last() else { return };
        let known = BurnParameter { container, field, dims: D };
        let names: Vec<&str> = self.at.iter().map(|(name, _)| name.as_str()).collect();
        let (path, module) = (names.join("."), names[..names.len() - 1].join("."));
        if known.role() == Role::Adapter {
            self.attached.push(path);
            return;
        }
        let value = param.base();
        let turned = D == 2 && known.orientation() == Orientation::InOut;
        let mut shape = value.dims().to_vec();
        if turned {
            shape.reverse();
        }
        let kind = match known.role() {
            Role::Embedding => Some(ModuleKind::Embedding),
            Role::Matrix if turned => Some(ModuleKind::Linear),
            _ => None,
        };
        if let (Some(kind), [out, input]) = (kind, &shape[..]) {
            self.modules.push(ModuleInfo::new(&module, kind, *out, *input));
        }
        let name = if module.is_empty() {
            known.torch_field().to_owned()
        } else {
            format!("{module}.{}", known.torch_field())
        };
        let store = match value.dtype() {
            DType::BF16 => Dtype::Bf16,
            DType::F16 => Dtype::F16,
            _ => Dtype::F32,
        };
        let parameter = Parameter::new(&name, &shape, known.role(), store);
        // Two fields of one name in files (`gamma` beside `weight`) cannot both be told apart there: the first counts.
        if self.registry.add(parameter).is_ok() {
            self.places.insert(name, Place { path, turned });
        }
    }
}

/// `[rows, columns]` as `[columns, rows]`.
pub(super) fn turned(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns.max(1);
    (0..values.len()).map(|i| values[(i % rows) * columns + i / rows]).collect()
}
