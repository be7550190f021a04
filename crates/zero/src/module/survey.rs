//! The survey of a Burn module: parameters by path, without initializing what is lazy.

use std::any::Any;

use burn::module::{Flag, ModuleVisitor, Param, ParamId, ParamMapper};
use burn::tensor::{Bool, DType, Device, Int, Tensor};
use burnish_core::{BurnParameter, Orientation, Role};

/// One float parameter where it stands in a module.
pub(super) struct Found {
    /// Its path, `layers.0.weight`.
    pub(super) path: String,
    pub(super) id: ParamId,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    pub(super) trainable: bool,
    pub(super) device: Device,
    pub(super) role: Role,
    pub(super) orientation: Orientation,
    /// Burn's own state of a batch normalisation: a buffer that changes in forward.
    pub(super) buffer: bool,
    /// Whether Burn derives its value from others too (`apply_lora`).
    pub(super) derived: bool,
    /// The parameter's `ParamMapper<Tensor<D>>`.
    pub(super) mapper: Box<dyn Any + Send + Sync>,
}

/// Everything that a module holds.
#[derive(Default)]
pub(super) struct Survey {
    at: Vec<(String, String)>,
    pub(super) found: Vec<Found>,
    /// Training flags that are on, and whether running statistics move with them.
    pub(super) flags: Vec<(String, bool)>,
    /// Integer and boolean parameters, with a digest of their values.
    pub(super) constants: Vec<(String, u64)>,
}

impl Survey {
    fn path(&self) -> String {
        self.at.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".")
    }

    fn constant(&mut self, data: burn::tensor::TensorData) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{:?}{:?}", data.shape(), data.dtype()).as_bytes());
        hasher.update(data.as_bytes());
        self.constants.push((self.path(), digest(&hasher)));
    }
}

impl ModuleVisitor for Survey {
    fn enter_module(&mut self, name: &str, container: &str) {
        if container == "Reparameterization"
            && let Some(base) = self.found.last_mut()
        {
            base.derived = true;
        }
        self.at.push((name.to_owned(), container.to_owned()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.at.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let device = param.lazy_device();
        // A stand-in takes over what the parameter is set to, and its mapper.
        let (dtype, stand_in) = if param.is_initialized() {
            let value = param.base();
            (value.dtype(), Param::clone(param).consume())
        } else {
            let small = Tensor::<D>::zeros([1; D], &device);
            (small.dtype(), param.clone().transform_for_load(small, param.id).consume())
        };
        let (id, value, mapper) = stand_in;
        let (name, container) = self.at.last().map_or(("", ""), |(n, c)| (n.as_str(), c.as_str()));
        let known = BurnParameter { container, field: name, dims: D };
        let buffer = container == "Struct:BatchNorm" && name.starts_with("running_");
        self.found.push(Found {
            path: self.path(),
            id,
            shape: param.lazy_shape().to_vec(),
            dtype,
            trainable: value.is_require_grad(),
            device,
            role: known.role(),
            orientation: known.orientation(),
            buffer,
            derived: false,
            mapper: Box::new(mapper) as Box<dyn Any + Send + Sync>,
        });
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.constant(param.val().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.constant(param.val().into_data());
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        if flag.is_enabled() {
            let statistics = self.at.last().is_some_and(|(_, container)| container == "Struct:BatchNorm");
            self.flags.push((self.path(), statistics));
        }
    }
}

/// The first eight bytes of a hash.
pub(super) fn digest(hasher: &blake3::Hasher) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

/// A parameter with its value, as it was mapped and with what it was set to.
pub(super) fn restored<const D: usize>(
    id: ParamId,
    value: Tensor<D>,
    mapper: &(dyn Any + Send + Sync),
) -> Param<Tensor<D>> {
    let mapper = mapper
        .downcast_ref::<ParamMapper<Tensor<D>>>()
        .expect("invariant: a parameter's place keeps its number of dimensions");
    Param::from_mapped_value(id, value, mapper.clone())
}
