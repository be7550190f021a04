//! One walk through a model: what is tracked, what is recomputed, and where gradients go in the end.

use std::sync::{Arc, OnceLock};

use burn::tensor::Tensor;
use burnish_core::Compute;
use burnish_ops::{AnyTensor, OpsError, Parameters, RouterBalance, Run, Weights, recorded, segment_keeping};

use crate::decoder::embedding_noise::EmbeddingNoise;
use crate::decoder::input_tap::InputTap;
use crate::decoder::layers::{Assembly, DropoutStep, Norms};
use crate::{LogitPeaks, Orthogonality};

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Plain tensors, no graph: evaluation, scoring, rollouts, reference models.
    Score,
    /// A graph whose backward fills the parameters' gradients.
    Train {
        /// Recompute each block in backward instead of keeping its activations.
        recompute: bool,
        /// Dropout of this step.
        dropout: Option<DropoutStep>,
    },
}

/// One walk through a model over one micro-batch.
pub struct ForwardContext {
    parameters: Arc<dyn Parameters>,
    mode: Mode,
    adapters: bool,
    /// What trained parameters hang from on the tape.
    root: OnceLock<AnyTensor>,
    norms: Norms,
    peaks: Option<Arc<LogitPeaks>>,
    noise: Option<EmbeddingNoise>,
    balance: Option<Arc<RouterBalance>>,
    orthogonality: Option<Arc<Orthogonality>>,
    tap: Option<Arc<dyn InputTap>>,
    /// Of several adapters the one of each document.
    by_document: Option<Arc<Vec<Option<usize>>>>,
    keeps_attention: bool,
}

impl ForwardContext {
    /// A pass over `parameters`; `adapters` off runs the base model.
    #[must_use]
    pub fn new(parameters: Arc<dyn Parameters>, mode: Mode, adapters: bool) -> Self {
        let (root, norms) = (OnceLock::new(), Norms::default());
        let (peaks, noise, balance, orthogonality) = (None, None, None, None);
        let (tap, by_document) = (None, None);
        Self {
            parameters,
            mode,
            adapters,
            root,
            norms,
            peaks,
            noise,
            balance,
            orthogonality,
            tap,
            by_document,
            keeps_attention: false,
        }
    }

    /// The same pass, of whose linear layers `tap` hears the inputs; one that scores, on a whole model.
    #[must_use]
    pub fn with_input_tap(self, tap: Arc<dyn InputTap>) -> Self {
        Self { tap: Some(tap), ..self }
    }

    /// The same pass, each document by its adapter ([`Decoder::adapted_pass`](crate::Decoder::adapted_pass)).
    pub(crate) fn by_document(self, adapters: Vec<Option<usize>>) -> Self {
        Self { by_document: Some(Arc::new(adapters)), ..self }
    }

    /// The adapters of documents, where a pass has several.
    pub(crate) fn adapters_of_documents(&self) -> Option<&[Option<usize>]> {
        self.by_document.as_ref().map(|adapters| adapters.as_slice())
    }

    pub(crate) fn input_tap(&self) -> Option<&Arc<dyn InputTap>> {
        self.tap.as_ref()
    }

    /// The same pass, which merges the largest attention logit of each head into `peaks`
    /// ([`Decoder::logit_peaks`](crate::Decoder::logit_peaks)).
    #[must_use]
    pub fn with_logit_peaks(self, peaks: Arc<LogitPeaks>) -> Self {
        Self { peaks: Some(peaks), ..self }
    }

    /// The same pass, with noise on embeddings where it trains.
    #[must_use]
    pub fn with_embedding_noise(self, noise: Option<EmbeddingNoise>) -> Self {
        Self { noise, ..self }
    }

    /// The same pass, whose routers note their choices in `balance` and feel its pull in backward
    /// ([`Decoder::router_balance`](crate::Decoder::router_balance)).
    #[must_use]
    pub fn with_router_balance(self, balance: Option<Arc<RouterBalance>>) -> Self {
        Self { balance, ..self }
    }

    /// The same pass, whose factors of AdaLoRA feel a pull towards orthogonal ones in backward, and note how far they are.
    #[must_use]
    pub fn with_orthogonality(self, orthogonality: Option<Arc<Orthogonality>>) -> Self {
        Self { orthogonality, ..self }
    }

    /// The same pass, which keeps what attention gave where it recomputes blocks: its outputs are not computed again.
    #[must_use]
    pub fn with_attention_kept(self, keeps_attention: bool) -> Self {
        Self { keeps_attention, ..self }
    }

    pub(crate) fn router_balance(&self) -> Option<&Arc<RouterBalance>> {
        self.balance.as_ref()
    }

    pub(crate) fn embedding_noise(&self) -> Option<&EmbeddingNoise> {
        self.noise.as_ref().filter(|_| self.training())
    }

    /// Whether gradients are wanted.
    #[must_use]
    pub fn training(&self) -> bool {
        matches!(self.mode, Mode::Train { .. })
    }

    pub(crate) fn adapters(&self) -> bool {
        self.adapters
    }

    pub(crate) fn logit_peaks(&self) -> Option<&Arc<LogitPeaks>> {
        self.peaks.as_ref()
    }

    pub(crate) fn assembly(&self, rows: &Arc<Vec<u64>>, compute: Compute) -> Assembly {
        let dropout = self.dropout_step().map(|step| (step, rows.clone()));
        let (norms, orthogonality) = (self.norms.clone(), self.orthogonality.clone());
        Assembly { adapters: self.adapters, dropout, norms, compute, orthogonality }
    }

    /// The step whose dropout this pass has, if it has any.
    pub(crate) fn dropout_step(&self) -> Option<DropoutStep> {
        match self.mode {
            Mode::Train { dropout, .. } => dropout,
            Mode::Score => None,
        }
    }

    /// Parameters: on this pass's tape where they train, plain otherwise.
    pub(crate) fn read_all(&self, indices: &[usize]) -> Result<Vec<AnyTensor>, OpsError> {
        let values = self.parameters.read_all(indices);
        indices.iter().zip(values).map(|(&index, value)| self.on_tape(index, value)).collect()
    }

    fn on_tape(&self, index: usize, value: AnyTensor) -> Result<AnyTensor, OpsError> {
        if !(self.training() && self.trainable(index)) {
            return Ok(value);
        }
        recorded(&self.parameters, index, value.clone(), self.root(&value))
    }

    /// [`Self::root`], on the device of `like`.
    fn root(&self, like: &AnyTensor) -> &AnyTensor {
        let root = || AnyTensor::new(Tensor::<1>::zeros([1], &like.plain().device())).leaf();
        self.root.get_or_init(root)
    }

    /// Runs one block on `inputs`: as a segment when it is to be recomputed, on this pass's tape otherwise. Where no input
    /// is tracked, gradients reach the block's own parameters and stop there; a block that trains none is a constant
    /// (where no parameter of it is sharded).
    pub(crate) fn block(
        &self,
        name: &str,
        inputs: &[AnyTensor],
        indices: Vec<usize>,
        run: Run,
    ) -> Result<AnyTensor, OpsError> {
        if matches!(self.mode, Mode::Train { recompute: true, .. }) {
            let trainable: Vec<bool> = indices.iter().map(|&i| self.trainable(i)).collect();
            let again = trainable.contains(&true) || indices.iter().any(|&i| self.parameters.gathers(i));
            let hangs = again && !inputs.iter().any(AnyTensor::is_tracked);
            let weights = Arc::new(BlockWeights { parameters: self.parameters.clone(), indices, trainable });
            let keeps = self.keeps_attention;
            if !hangs {
                return segment_keeping(name, inputs, weights, true, keeps, run);
            }
            // A segment is recorded for an input's sake.
            let own = inputs.len();
            let inputs: Vec<AnyTensor> =
                inputs.iter().cloned().chain([self.root(&inputs[0]).clone()]).collect();
            let run: Run = Arc::new(move |inputs, weights| run(&inputs[..own], weights));
            return segment_keeping(name, &inputs, weights, true, keeps, run);
        }
        run(inputs, &self.read_all(&indices)?)
    }

    /// Backward from a scalar; gradients go to the parameters.
    ///
    /// # Errors
    /// If `loss` is not of shape `[1]`.
    pub fn backward(self, loss: &AnyTensor) -> Result<(), OpsError> {
        let loss = loss.rank::<1>()?;
        if loss.is_tracked() {
            drop(loss.backward());
        }
        Ok(())
    }

    fn trainable(&self, index: usize) -> bool {
        self.parameters.registry().at(index).trainable
    }
}

/// A segment's weights, read from the parameters each time they are needed.
struct BlockWeights {
    parameters: Arc<dyn Parameters>,
    indices: Vec<usize>,
    trainable: Vec<bool>,
}

impl Weights for BlockWeights {
    fn gather(&self) -> Vec<AnyTensor> {
        self.parameters.read_all(&self.indices)
    }

    fn trainable(&self) -> Vec<bool> {
        self.trainable.clone()
    }

    fn sink(&self, index: usize, gradient: AnyTensor) {
        self.parameters.accumulate(self.indices[index], gradient);
    }
}
