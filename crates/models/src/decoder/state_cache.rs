//! Linear attention behind a convolution, over texts or over sequences that are generated, of which a state is kept that does not
//! grow.

use burnish_ops::{
    AnyTensor, ConvCache, Documents, LinearAttentionShape, OpsError, RecurrentStates, SelectiveScan,
    UnitHeads, channel_linear_attention, conv_heads, linear_attention,
};

/// How much of a state each token forgets, and learns.
pub(crate) enum StateWeights<'a> {
    /// Each head.
    OfHeads(&'a AnyTensor),
    /// Each channel of a key forgets, and each head learns.
    OfChannels([&'a AnyTensor; 2]),
}

/// What is convolved and then walked.
pub(crate) struct Scanned<'a> {
    /// `[tokens, channels]`.
    pub(crate) x: &'a AnyTensor,
    /// Heads of it that are of unit length.
    pub(crate) units: Option<&'a UnitHeads>,
    pub(crate) weights: StateWeights<'a>,
    pub(crate) shape: &'a LinearAttentionShape,
}

/// A convolution's kernel `[channels, 1, taps]`, and its bias.
pub(crate) type Kernel<'a> = (&'a AnyTensor, Option<&'a AnyTensor>);

impl Scanned<'_> {
    /// What is walked `[tokens, channels]`, and what texts give `[tokens, heads * value_dim]`, each from nothing or from what the one
    /// that it continues left (`parents`, as in attention); f32.
    pub(crate) fn over(
        &self,
        (kernel, bias): Kernel<'_>,
        documents: &Documents,
        parents: &[Option<usize>],
    ) -> Result<(AnyTensor, AnyTensor), OpsError> {
        let qkv = conv_heads(self.x, kernel, bias, self.units, documents, parents)?;
        let out = match self.weights {
            StateWeights::OfHeads(weights) => {
                linear_attention(&qkv, weights, self.shape, documents, parents)?
            }
            StateWeights::OfChannels([decays, betas]) => {
                channel_linear_attention([&qkv, decays, betas], self.shape, documents, parents)?
            }
        };
        Ok((qkv, out))
    }
}

/// What rows stand behind: texts begin from nothing, or from what the one that they continue left (`parents`, as in attention), or
/// rows are each sequence's new ones; these of plain tensors.
pub(crate) enum Behind<'a> {
    Texts { parents: &'a [Option<usize>] },
    Said(&'a mut StateCache),
}

/// What a convolution and the walk behind it remember of sequences being generated.
pub(crate) struct StateCache {
    convolved: ConvCache,
    states: RecurrentStates,
}

impl StateCache {
    /// Of a convolution with so many taps.
    pub(crate) fn new(taps: usize, sequences: usize) -> Self {
        Self { convolved: ConvCache::new(taps, sequences), states: RecurrentStates::new(sequences) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.convolved.bytes() + self.states.bytes()
    }

    pub(crate) fn reorder(&mut self, order: &[usize]) -> Result<(), OpsError> {
        self.convolved.reorder(order)?;
        self.states.reorder(order)
    }

    pub(crate) fn append(&mut self, more: Self) {
        self.convolved.append(more.convolved);
        self.states.append(more.states);
    }

    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        Self { convolved: self.convolved.split_off(at), states: self.states.split_off(at) }
    }

    /// What it has of each sequence, for steps that are recorded.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn rows(&mut self) -> [&mut burnish_ops::SequenceRows; 2] {
        [self.convolved.rows(), self.states.rows()]
    }

    /// [`Scanned::over`] of each sequence's new rows behind what it has said; plain tensors.
    pub(crate) fn over(
        &mut self,
        scanned: Scanned<'_>,
        (kernel, bias): Kernel<'_>,
        documents: &Documents,
    ) -> Result<(AnyTensor, AnyTensor), OpsError> {
        let Scanned { x, units, weights, shape } = scanned;
        let qkv = self.convolved.run_heads(x, kernel, bias, units, documents)?;
        let out = match weights {
            StateWeights::OfHeads(weights) => {
                self.states.linear_attention(&qkv, weights, shape, documents)?
            }
            StateWeights::OfChannels([decays, betas]) => {
                self.states.channel_linear_attention([&qkv, decays, betas], shape, documents)?
            }
        };
        Ok((qkv, out))
    }

    /// The convolution alone of each sequence's new rows behind what it has said; plain tensors.
    pub(crate) fn convolve(
        &mut self,
        x: &AnyTensor,
        (kernel, bias): Kernel<'_>,
        documents: &Documents,
    ) -> Result<AnyTensor, OpsError> {
        self.convolved.run_heads(x, kernel, bias, None, documents)
    }

    /// A selective scan of each sequence's new rows behind what it has said; plain tensors.
    pub(crate) fn scan(
        &mut self,
        scan: &SelectiveScan,
        documents: &Documents,
    ) -> Result<AnyTensor, OpsError> {
        self.states.selective_scan(scan, documents)
    }
}
