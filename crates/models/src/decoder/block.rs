//! `run_block`: a transformer block's operations and collectives, written once, on tensors or on sizes.
//!
//! A pass runs it on tensors ([`OnTensors`]); a plan runs it on sizes, and so counts what it would move. Neither has a
//! list of its own.
//!
//! # Collectives
//! With several tensor-parallel ranks the input's gradient is summed before each pair of column-parallel layers, and the
//! output of each row-parallel layer, with its adapter's, in one call; the norms' gradients are addends. Where
//! [`BlockRun::sums`] says so adapters run beside their layers ([`lora_rank_reduce`](super::lora_rank_reduce)).

use burnish_ops::{AnyTensor, Linear, LinearInput, OpsError};
use burnish_tp::{AdapterSum, AdapterSums};

use crate::decoder::Linears;
use crate::decoder::lora_rank_reduce::{lora_down, lora_up, runs_apart, without_adapters};
use crate::decoder::tp_plan::Shard;

/// What a block runs on.
pub(crate) trait BlockRun {
    /// An activation, `[tokens, features]`.
    type X: Clone;
    /// A norm's weight.
    type Norm: Clone;
    /// What linears read.
    type Input;
    /// A linear layer with its adapter.
    type Linear;

    /// Whether ranks share layers.
    fn divided(&self) -> bool;

    /// Which adapters run beside their layers.
    fn sums(&self) -> AdapterSums;

    /// Whether a layer has an adapter, and of it whether that has a magnitude.
    fn adapter(&self, layer: &Self::Linear) -> Option<bool>;

    /// `x` as it is.
    fn plain(&self, x: Self::X) -> Self::Input;

    /// `x` normed.
    fn normed(&self, x: Self::X, norm: Self::Norm) -> Self::Input;

    /// SwiGLU of gate and up.
    fn swiglu(&self, x: Self::X) -> Self::Input;

    /// Layers side by side, plus `residual`; without their adapters where `bare`.
    fn linears(
        &self,
        input: &Self::Input,
        layers: &[Self::Linear],
        bare: bool,
        residual: Option<&Self::X>,
    ) -> Result<Self::X, OpsError>;

    /// The activations of rank r of the layers' adapters, side by side.
    fn lora_down(&self, input: &Self::Input, layers: &[Self::Linear]) -> Result<Self::X, OpsError>;

    /// What the adapters add to the layers' outputs, plus `residual`.
    fn lora_up(
        &self,
        h: &Self::X,
        layers: &[Self::Linear],
        residual: Option<&Self::X>,
    ) -> Result<Self::X, OpsError>;

    /// [`Tp::copy_to_tp`](burnish_tp::Tp::copy_to_tp).
    fn copy_to_tp(&self, x: &Self::X, what: &str) -> Result<Self::X, OpsError>;

    /// [`Tp::grad_on_rank0`](burnish_tp::Tp::grad_on_rank0).
    fn grad_on_rank0(&self, norm: &Self::Norm) -> Result<Self::Norm, OpsError>;

    /// [`Tp::reduce_from_tp`](burnish_tp::Tp::reduce_from_tp).
    fn reduce_from_tp(&self, x: &Self::X, what: &str) -> Result<Self::X, OpsError>;

    /// [`Tp::reduce_from_tp_add`](burnish_tp::Tp::reduce_from_tp_add).
    fn reduce_from_tp_add(&self, x: &Self::X, add: &Self::X, what: &str) -> Result<Self::X, OpsError>;
}

/// A block's layers, ready to run.
pub(crate) struct BlockLayers<'a, R: BlockRun> {
    pub(crate) input_norm: &'a R::Norm,
    pub(crate) qkv: &'a [R::Linear],
    pub(crate) o: &'a R::Linear,
    pub(crate) post_norm: &'a R::Norm,
    pub(crate) gate_up: &'a [R::Linear],
    pub(crate) down: &'a R::Linear,
}

/// One block around an attention function (causal over documents, or with a cache). `name` appears in errors.
///
/// # Shapes
/// - x: `[tokens, hidden]`, output: the same
pub(crate) fn run_block<R: BlockRun>(
    run: &R,
    x: &R::X,
    block: &BlockLayers<'_, R>,
    name: &str,
    attend: impl FnOnce(&R::X) -> Result<R::X, OpsError>,
) -> Result<R::X, OpsError> {
    let qkv = columns(run, x, block.input_norm, block.qkv, name)?;
    let attended = attend(&qkv)?;
    drop(qkv);
    let x = row(run, run.plain(attended), block.o, x, name)?;
    let gate_up = columns(run, &x, block.post_norm, block.gate_up, name)?;
    row(run, run.swiglu(gate_up), block.down, &x, name)
}

/// Whether the adapters of these layers run beside them.
fn apart<R: BlockRun>(run: &R, layers: &[R::Linear], sum: AdapterSum) -> bool {
    let mut adapters = layers.iter().filter_map(|layer| run.adapter(layer)).peekable();
    adapters.peek().is_some() && adapters.all(|magnitude| runs_apart(sum, magnitude))
}

/// Layers whose outputs are divided, behind a norm: the input is whole on every rank.
fn columns<R: BlockRun>(
    run: &R,
    x: &R::X,
    norm: &R::Norm,
    layers: &[R::Linear],
    name: &str,
) -> Result<R::X, OpsError> {
    let input = run.normed(run.copy_to_tp(x, name)?, norm.clone());
    if !apart(run, layers, run.sums().colwise) {
        return run.linears(&input, layers, false, None);
    }
    // Here the gradients of input and norm are whole, and the norm's is an addend.
    let whole = run.normed(x.clone(), run.grad_on_rank0(norm)?);
    let h = run.copy_to_tp(&run.lora_down(&whole, layers)?, &format!("{name}: adapters"))?;
    let added = run.lora_up(&h, layers, None)?;
    run.linears(&input, layers, true, Some(&added))
}

/// A layer whose inputs are divided, plus the residual.
fn row<R: BlockRun>(
    run: &R,
    input: R::Input,
    layer: &R::Linear,
    residual: &R::X,
    name: &str,
) -> Result<R::X, OpsError> {
    let layer = std::slice::from_ref(layer);
    if !run.divided() {
        return run.linears(&input, layer, false, Some(residual));
    }
    if !apart(run, layer, run.sums().rowwise) {
        return run.reduce_from_tp_add(&run.linears(&input, layer, false, None)?, residual, name);
    }
    let h = run.reduce_from_tp(&run.lora_down(&input, layer)?, &format!("{name}: adapters"))?;
    let added = run.lora_up(&h, layer, Some(residual))?;
    run.reduce_from_tp_add(&run.linears(&input, layer, true, None)?, &added, name)
}

/// A block on tensors, with what a rank has of it.
pub(crate) struct OnTensors<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) eps: f32,
    pub(crate) linears: Linears,
}

impl BlockRun for OnTensors<'_> {
    type X = AnyTensor;
    type Norm = AnyTensor;
    type Input = LinearInput;
    type Linear = Linear;

    fn divided(&self) -> bool {
        self.shard.divided()
    }

    fn sums(&self) -> AdapterSums {
        self.shard.sums
    }

    fn adapter(&self, layer: &Linear) -> Option<bool> {
        layer.low_rank.as_ref().map(|adapter| adapter.magnitude.is_some())
    }

    fn plain(&self, x: AnyTensor) -> LinearInput {
        LinearInput::Plain(x)
    }

    fn normed(&self, x: AnyTensor, gamma: AnyTensor) -> LinearInput {
        LinearInput::RmsNorm { x, gamma, eps: self.eps }
    }

    fn swiglu(&self, x: AnyTensor) -> LinearInput {
        LinearInput::SwiGlu(x)
    }

    fn linears(
        &self,
        input: &LinearInput,
        layers: &[Linear],
        bare: bool,
        residual: Option<&AnyTensor>,
    ) -> Result<AnyTensor, OpsError> {
        if bare {
            return (self.linears)(input, &without_adapters(layers), residual);
        }
        (self.linears)(input, layers, residual)
    }

    fn lora_down(&self, input: &LinearInput, layers: &[Linear]) -> Result<AnyTensor, OpsError> {
        lora_down(input, layers, self.linears)
    }

    fn lora_up(
        &self,
        h: &AnyTensor,
        layers: &[Linear],
        residual: Option<&AnyTensor>,
    ) -> Result<AnyTensor, OpsError> {
        lora_up(h, layers, residual, self.linears)
    }

    fn copy_to_tp(&self, x: &AnyTensor, what: &str) -> Result<AnyTensor, OpsError> {
        self.shard.tp.copy_to_tp(x, what)
    }

    fn grad_on_rank0(&self, gamma: &AnyTensor) -> Result<AnyTensor, OpsError> {
        self.shard.tp.grad_on_rank0(gamma)
    }

    fn reduce_from_tp(&self, x: &AnyTensor, what: &str) -> Result<AnyTensor, OpsError> {
        self.shard.tp.reduce_from_tp(x, what)
    }

    fn reduce_from_tp_add(&self, x: &AnyTensor, add: &AnyTensor, what: &str) -> Result<AnyTensor, OpsError> {
        self.shard.tp.reduce_from_tp_add(x, add, what)
    }
}
