//! A module's linear layers divided over ranks by a plan, and put together again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn;
use burn::tensor::{DType, FloatDType, Tensor, module};
use burnish_comm::Bucket;
use burnish_ops::{AnyTensor, OpsError};
use burnish_tensor_comm::{Number, bucket, tensor, tensors};
use half::{bf16, f16};

use crate::layout::sharded_dim;
use crate::{Linear, LinearPart, Split, Style, Tp, TpError, TpPlan};

/// Divides the linear layers of a module that `plan` names: [`Linear`]s, by their paths (`layers.*.up`). Everything else
/// stays whole on every rank. The module's own forward is then that of all ranks together.
///
/// Attach adapters (`apply_lora`) first. A module on several ranks trains with any optimizer: every gradient is complete.
///
/// # Collectives
/// Every rank of `tp` calls it with a module of the same structure. Every float parameter is broadcast: the values are
/// those of rank 0.
///
/// # Errors
/// If a pattern matches nothing, a parameter it matches is not of a [`Linear`], a layer is divided already or has fewer
/// features than there are ranks, or a style is not one of a linear layer (`colwise`, `colwise_gather_output`, `rowwise`,
/// `rowwise_split_input`, `replicated`); if a rank fails.
pub fn parallelize<M: Module>(module: M, plan: &TpPlan, tp: &Tp) -> Result<M, TpError> {
    let mut survey = Survey::default();
    module.visit(&mut survey);
    plan.check(survey.shapes.keys().map(String::as_str))?;
    walk(module, tp, Task::Divide { styles: Styles::Plan(plan.clone()), shapes: survey.shapes })
}

/// The whole module of one that is divided, on every rank: to be saved, or run without ranks.
///
/// # Collectives
/// Every rank of `tp` calls it. What is divided is gathered.
///
/// # Errors
/// If a rank fails.
pub fn gather<M: Module>(module: M, tp: &Tp) -> Result<M, TpError> {
    walk(module, tp, Task::Gather)
}

/// One layer.
pub(crate) fn linear(linear: nn::Linear, style: Style, tp: &Tp) -> Result<Linear, TpError> {
    let module = Linear::from(linear);
    let mut survey = Survey::default();
    module.visit(&mut survey);
    walk(module, tp, Task::Divide { styles: Styles::All(style), shapes: survey.shapes })
}

/// How a divided layer runs.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    name: String,
    pub(crate) style: Style,
    tp: Tp,
    /// Of the divided features.
    split: Split,
    /// Whether the weight had an adapter when it was divided.
    adapted: bool,
}

impl Shard {
    /// The layer's output for `x` `[tokens, in]`.
    pub(crate) fn forward(
        &self,
        x: Tensor<2>,
        weight: &Param<Tensor<2>>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<2> {
        let adapter = weight.adapter();
        assert!(
            adapter.is_none() || self.adapted,
            "`{}` got an adapter after it was divided, so that ranks drew different factors; call `apply_lora` before \
             `parallelize`",
            self.name
        );
        let (tp, what) = (&self.tp, self.name.as_str());
        let copied = |x: &Tensor<2>| self.wide(x, |x| tp.copy_to_tp(x, what));
        let summed = |x: Tensor<2>| self.wide(&x, |x| tp.reduce_from_tp(x, what));
        let w = if adapter.is_some() { weight.base() } else { weight.val() };
        if self.style.is_colwise() {
            let mut out = module::linear(copied(&x), w, bias);
            if let Some(lora) = adapter {
                // The gradient of `A x` is summed, so that those of `A` and `x` are whole.
                let low = copied(&x.matmul(lora.a.val()));
                out = out + low.matmul(lora.b.val()).mul_scalar(lora.scale);
            }
            return match self.style {
                Style::ColwiseGather => self.wide(&out, |out| tp.gather_columns(out, &self.split, what)),
                _ => out,
            };
        }
        let x = match self.style {
            Style::RowwiseSplitInput => self.wide(&x, |x| tp.scatter_columns(x, &self.split, what)),
            _ => x,
        };
        let mut out = summed(module::linear(x.clone(), w, None));
        if let Some(lora) = adapter {
            out = out + summed(x.matmul(lora.a.val())).matmul(lora.b.val()).mul_scalar(lora.scale);
        }
        match bias {
            Some(bias) => out + bias.unsqueeze(),
            None => out,
        }
    }

    /// A collective of f32 on `x` of any float dtype.
    fn wide(&self, x: &Tensor<2>, run: impl FnOnce(&AnyTensor) -> Result<AnyTensor, OpsError>) -> Tensor<2> {
        let dtype = x.dtype();
        let narrow = dtype != DType::F32;
        let wide = if narrow { x.clone().cast(FloatDType::F32) } else { x.clone() };
        let out = run(&AnyTensor::new(wide)).and_then(|out| out.rank::<2>());
        let out = out.unwrap_or_else(|error| panic!("`{}`: {error}", self.name));
        if narrow { out.cast(dtype) } else { out }
    }
}

thread_local! {
    /// What is being done to the module that this thread maps: Burn's mappers see parameters, not layers.
    static WALK: RefCell<Option<Walk>> = const { RefCell::new(None) };
}

/// What a layer that is mapped becomes.
pub(crate) fn mapped(shard: Option<Shard>) -> Option<Shard> {
    WALK.with_borrow_mut(|walk| match walk {
        Some(walk) => walk.layer(shard),
        None => shard,
    })
}

fn walk<M: Module>(module: M, tp: &Tp, task: Task) -> Result<M, TpError> {
    /// Leaves no walk behind, also when Burn panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            WALK.set(None);
        }
    }
    WALK.set(Some(Walk { tp: tp.clone(), task, path: Vec::new(), layers: BTreeMap::new(), error: None }));
    let end = End;
    let module = module.map(&mut Walker);
    let error = WALK.with_borrow_mut(|walk| walk.as_mut().and_then(|walk| walk.error.take()));
    drop(end);
    match error {
        Some(error) => Err(error),
        None => Ok(module),
    }
}

enum Styles {
    Plan(TpPlan),
    All(Style),
}

enum Task {
    Divide { styles: Styles, shapes: BTreeMap<String, Vec<usize>> },
    Gather,
}

struct Walk {
    tp: Tp,
    task: Task,
    path: Vec<String>,
    /// Divided layers that were met.
    layers: BTreeMap<String, Shard>,
    error: Option<TpError>,
}

/// The tensors of a layer, by their names below it.
const PARTS: [(&str, LinearPart); 4] = [
    ("weight.lora.a", LinearPart::LoraA),
    ("weight.lora.b", LinearPart::LoraB),
    ("weight", LinearPart::Weight),
    ("bias", LinearPart::Bias),
];

impl Walk {
    fn layer(&mut self, shard: Option<Shard>) -> Option<Shard> {
        let name = self.path[..self.path.len().saturating_sub(1)].join(".");
        match (&self.task, shard) {
            (Task::Gather, Some(shard)) => {
                self.layers.insert(name, shard);
                None
            }
            (Task::Gather, None) => None,
            (Task::Divide { styles, shapes }, shard) => {
                let style = match styles {
                    Styles::Plan(plan) => plan.style(&name),
                    Styles::All(style) => Some(*style),
                };
                let Some(style) = style.filter(|&style| style != Style::Replicated) else { return shard };
                match self.divided(&name, style, shapes, shard.is_some()) {
                    Ok(shard) => {
                        self.layers.insert(name, shard.clone());
                        Some(shard)
                    }
                    Err(error) => {
                        self.error.get_or_insert(error);
                        None
                    }
                }
            }
        }
    }

    fn divided(
        &self,
        name: &str,
        style: Style,
        shapes: &BTreeMap<String, Vec<usize>>,
        again: bool,
    ) -> Result<Shard, TpError> {
        use Style::{Colwise, ColwiseGather, Rowwise, RowwiseSplitInput};
        let layer = || name.to_owned();
        if again {
            return Err(TpError::Divided { layer: layer() });
        }
        if !matches!(style, Colwise | ColwiseGather | Rowwise | RowwiseSplitInput) {
            return Err(TpError::LinearStyle { layer: layer(), style });
        }
        let below = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
        let weight = &shapes[&below("weight")];
        let features = weight[dim(style, LinearPart::Weight).unwrap_or(0)];
        let ranks = self.tp.size();
        if features < ranks {
            return Err(TpError::Narrow { layer: layer(), features, ranks });
        }
        Ok(Shard {
            name: layer(),
            style,
            tp: self.tp.clone(),
            split: Split::balanced(features, ranks)?,
            adapted: shapes.contains_key(&below("weight.lora.a")),
        })
    }

    fn parameter<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.error.is_some() {
            return param;
        }
        let path = self.path.join(".");
        match self.changed(&path, &param) {
            Ok(None) => param,
            Ok(Some(value)) => param.map(|old| {
                let value = if old.is_autodiff() { value.autodiff() } else { value };
                if old.is_require_grad() { value.require_grad() } else { value }
            }),
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }

    /// The new value of a parameter, outside autodiff.
    fn changed<const D: usize>(
        &self,
        path: &str,
        param: &Param<Tensor<D>>,
    ) -> Result<Option<Tensor<D>>, TpError> {
        let of = PARTS.iter().find_map(|(below, part)| {
            let layer = path.strip_suffix(below)?;
            let layer = if layer.is_empty() { layer } else { layer.strip_suffix('.')? };
            Some((self.layers.get(layer)?, *part))
        });
        let along = of.and_then(|(shard, part)| Some((shard, dim(shard.style, part)?)));
        let value = || param.base().without_autodiff();
        match &self.task {
            Task::Gather => {
                along.map(|(shard, dim)| self.together(path, value(), dim, &shard.split)).transpose()
            }
            Task::Divide { styles, .. } => {
                if let (None, Styles::Plan(plan)) = (of, styles)
                    && let Some(style) = plan.style(path).filter(|&style| style != Style::Replicated)
                {
                    return Err(TpError::NotLinear { parameter: path.to_owned(), style });
                }
                let whole = self.broadcast_first(path, value())?;
                Ok(Some(match along {
                    Some((shard, dim)) => cut(whole, dim, shard.split.pieces(self.tp.rank())),
                    None => whole,
                }))
            }
        }
    }

    /// The value of rank 0.
    fn broadcast_first<const D: usize>(&self, path: &str, value: Tensor<D>) -> Result<Tensor<D>, TpError> {
        match value.dtype() {
            _ if self.tp.size() == 1 => Ok(value),
            DType::BF16 => self.broadcast::<bf16, D>(path, value),
            DType::F16 => self.broadcast::<f16, D>(path, value),
            DType::F32 | DType::Flex32 => self.broadcast::<f32, D>(path, value),
            got => Err(TpError::ParameterDtype { parameter: path.to_owned(), got }),
        }
    }

    fn broadcast<E: Number, const D: usize>(
        &self,
        path: &str,
        value: Tensor<D>,
    ) -> Result<Tensor<D>, TpError> {
        let (shape, device) = (value.dims(), value.device());
        let flat: Tensor<1> = value.reshape([-1]);
        let all = flat.dims();
        let posted = posted::<E>(flat);
        let what = format!("{path}: the value of rank 0");
        let first = self.tp.kept(self.tp.files().broadcast(posted, 0, &what).wait())?;
        Ok(unflattened(&tensor(first, &all, &device), shape))
    }

    /// The whole of what is divided along `dim`.
    fn together<const D: usize>(
        &self,
        path: &str,
        own: Tensor<D>,
        dim: usize,
        split: &Split,
    ) -> Result<Tensor<D>, TpError> {
        match own.dtype() {
            _ if self.tp.size() == 1 => Ok(own),
            DType::BF16 => self.all_gather::<bf16, D>(path, own, dim, split),
            DType::F16 => self.all_gather::<f16, D>(path, own, dim, split),
            DType::F32 | DType::Flex32 => self.all_gather::<f32, D>(path, own, dim, split),
            got => Err(TpError::ParameterDtype { parameter: path.to_owned(), got }),
        }
    }

    fn all_gather<E: Number, const D: usize>(
        &self,
        path: &str,
        own: Tensor<D>,
        dim: usize,
        split: &Split,
    ) -> Result<Tensor<D>, TpError> {
        let (shape, device) = (own.dims(), own.device());
        let others: usize = shape.iter().enumerate().filter(|(at, _)| *at != dim).map(|(_, n)| n).product();
        let counts: Vec<usize> = (0..split.ranks()).map(|rank| others * split.len(rank)).collect();
        let posted = posted::<E>(own.reshape([-1]));
        let what = format!("{path}: the whole of it");
        let parts = self.tp.kept(self.tp.files().all_gather_v(posted, &counts, &what).wait())?;
        let whole = tensors(&parts, &device).into_iter().enumerate().map(|(rank, part)| {
            let mut shape = shape;
            shape[dim] = split.len(rank);
            unflattened(&part, shape)
        });
        Ok(Tensor::cat(whole.collect(), dim))
    }
}

fn posted<E: Number>(flat: Tensor<1>) -> Bucket<E> {
    bucket(&AnyTensor::new(flat)).expect("invariant: its dtype was looked at")
}

fn unflattened<const D: usize>(flat: &AnyTensor, shape: [usize; D]) -> Tensor<D> {
    flat.rank::<1>().expect("invariant: it travelled flat").reshape(shape)
}

/// A copy of a range along `dim`.
fn cut<const D: usize>(whole: Tensor<D>, dim: usize, pieces: &[Range<usize>]) -> Tensor<D> {
    let device = whole.device();
    let pieces = pieces.iter().map(|piece| whole.clone().slice_dim(dim, piece.clone())).collect();
    let part = Tensor::cat(pieces, dim);
    // A view would keep the memory of the whole.
    let (data, dtype) = (part.to_data(), part.dtype());
    Tensor::from_data(data, (&device, dtype))
}

/// The dimension that a style divides of a tensor as Burn has it: `[in, out]` where Hugging Face has `[out, in]`.
fn dim(style: Style, part: LinearPart) -> Option<usize> {
    let dim = sharded_dim(style, part)?;
    Some(if part == LinearPart::Bias { dim } else { 1 - dim })
}

/// The shapes of a module's float parameters, by path.
#[derive(Default)]
struct Survey {
    path: Vec<String>,
    shapes: BTreeMap<String, Vec<usize>>,
}

impl ModuleVisitor for Survey {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.shapes.insert(self.path.join("."), param.lazy_shape().to_vec());
    }
}

/// Maps a module by this thread's [`Walk`].
struct Walker;

impl Walker {
    fn walk<T>(run: impl FnOnce(&mut Walk) -> T) -> T {
        WALK.with_borrow_mut(|walk| {
            run(walk.as_mut().expect("invariant: set for as long as a module is mapped"))
        })
    }
}

impl ModuleMapper for Walker {
    fn enter_module(&mut self, name: &str, _: &str) {
        Self::walk(|walk| walk.path.push(name.to_owned()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        Self::walk(|walk| walk.path.pop());
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Self::walk(|walk| walk.parameter(param))
    }
}
