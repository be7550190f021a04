//! Values go out of a module into a store, and back into copies of it.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{Flag, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};
use burnish_ops::AnyTensor;

use super::survey::restored;

/// A value that is made when it is asked for.
pub(super) type Source = Box<dyn FnOnce() -> AnyTensor + Send>;

/// One place of a module.
pub(super) struct Place {
    /// The registry index of its value: its own, or that of what it is tied to.
    pub(super) index: usize,
    /// The registry index of its path.
    pub(super) own: usize,
    pub(super) path: String,
    /// The parameter's own id.
    pub(super) id: ParamId,
    /// The block it is in, and the id that its placeholders have: unlike the parameter's own, it is of this place alone.
    pub(super) block: Option<(usize, ParamId)>,
    pub(super) shape: Vec<usize>,
    pub(super) trainable: bool,
    /// Whether Burn derives its value from others too.
    pub(super) derived: bool,
    pub(super) device: Device,
    pub(super) mapper: Box<dyn Any + Send + Sync>,
}

/// The places of a module, by path.
#[derive(Default)]
pub(super) struct Places {
    all: Vec<Place>,
    by_path: HashMap<String, usize>,
}

impl Places {
    pub(super) fn add(&mut self, place: Place) {
        self.by_path.insert(place.path.clone(), self.all.len());
        self.all.push(place);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.all.iter()
    }

    pub(super) fn at(&self, path: &str) -> Option<&Place> {
        self.by_path.get(path).map(|&i| &self.all[i])
    }
}

impl Place {
    /// A parameter that cannot be used by mistake.
    pub(super) fn placeholder<const D: usize>(&self) -> Param<Tensor<D>> {
        let path = self.path.clone();
        let id = self.block.map_or(self.id, |(_, id)| id);
        let advice = match self.block {
            Some(_) => "run its block with `Pass::block`",
            None => "begin a pass with `Wrapped::micro_batch` or `Wrapped::evaluation`",
        };
        Param::uninitialized(
            id,
            move |_, _| {
                panic!(
                    "parameter `{path}` has no value here: its rows are with the ranks; {advice}, or read it with `Wrapped::read`"
                )
            },
            self.device.clone(),
            self.trainable,
            self.shape.clone().into(),
        )
    }

    /// The parameter with a value.
    fn filled<const D: usize>(&self, value: &AnyTensor) -> Param<Tensor<D>> {
        restored(self.id, shaped(value, &self.shape), &*self.mapper)
    }
}

/// The shape in which a store keeps a parameter: at most three dimensions.
pub(super) fn stored_shape(shape: &[usize]) -> Vec<usize> {
    match shape {
        [rows, rest @ ..] if rest.len() > 2 => vec![*rows, rest.iter().product()],
        _ => shape.to_vec(),
    }
}

/// A stored value in the shape of its parameter, on the same tape.
pub(super) fn shaped<const D: usize>(value: &AnyTensor, shape: &[usize]) -> Tensor<D> {
    if D <= 3 {
        return value.rank::<D>().expect("invariant: up to three dimensions are stored as they are");
    }
    let mut to = [0; D];
    to.copy_from_slice(shape);
    value.rank::<2>().expect("invariant: more than three dimensions are stored as two").reshape(to)
}

/// A parameter's value as it is stored, outside autodiff.
fn flat<const D: usize>(value: Tensor<D>) -> AnyTensor {
    let value = value.without_autodiff();
    if D <= 3 {
        return AnyTensor::new(value);
    }
    let [rows, rest] = [value.dims()[0], value.dims()[1..].iter().product()];
    AnyTensor::new(value.reshape([rows, rest]))
}

/// Takes the values out and leaves placeholders. The values of one index come once.
pub(super) struct Extract<'a> {
    pub(super) places: &'a Places,
    pub(super) path: Vec<String>,
    pub(super) sources: HashMap<usize, Source>,
}

impl ModuleMapper for Extract<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(place) = self.places.at(&self.path.join(".")) else { return param };
        let placeholder = place.placeholder();
        self.sources.entry(place.index).or_insert_with(|| Box::new(move || flat(param.into_value())));
        placeholder
    }
}

/// Puts values where there are some, and new placeholders elsewhere.
pub(super) struct Fill<'a> {
    pub(super) places: &'a Places,
    pub(super) path: Vec<String>,
    pub(super) value: &'a mut dyn FnMut(&Place) -> Option<AnyTensor>,
    /// Whether training flags are turned off.
    pub(super) quiet: bool,
}

impl ModuleMapper for Fill<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(place) = self.places.at(&self.path.join(".")) else { return param };
        match (self.value)(place) {
            Some(value) => place.filled(&value),
            None => place.placeholder(),
        }
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        if self.quiet { flag.with_value(false) } else { flag }
    }
}
