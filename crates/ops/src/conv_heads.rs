//! What linear attention reads: a causal depthwise convolution, SiLU, and the first heads of unit length.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::dispatch::dispatch;
use crate::short_conv::{check_documents, earlier};
use crate::{AnyTensor, ConvCache, Documents, OpsError};

pub(crate) const OP: &str = "conv_heads";

/// Heads from the first column on that are made of unit length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitHeads {
    /// How many, an even number.
    pub count: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// What the first and the second half of them are multiplied by.
    pub scales: [f32; 2],
    /// Added to the square of a head's length.
    pub eps: f32,
}

/// The rows that each tap of each token reads, negative where it reads none: `[taps][tokens]`.
#[derive(Debug)]
pub(crate) struct ConvRows {
    pub(crate) rows: Vec<Vec<i32>>,
    /// How many there are to read.
    pub(crate) of: usize,
    /// The same where a device has them.
    #[cfg(feature = "cube")]
    pub(crate) on_device: crate::gpu::DeviceRows,
}

impl ConvRows {
    pub(crate) fn new(rows: Vec<Vec<i32>>, of: usize) -> Arc<Self> {
        Arc::new(Self {
            rows,
            of,
            #[cfg(feature = "cube")]
            on_device: Default::default(),
        })
    }
}

/// Those of the documents of a row, one for all layers that convolve them alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConvPlans(Arc<Mutex<Vec<Kept>>>);

#[derive(Debug)]
struct Kept {
    taps: usize,
    parents: Vec<Option<usize>>,
    rows: Arc<ConvRows>,
}

impl ConvPlans {
    fn of(
        &self,
        (tokens, taps): (usize, usize),
        documents: &[Range<usize>],
        parents: &[Option<usize>],
    ) -> Arc<ConvRows> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |kept: &&Kept| (kept.taps, kept.rows.of, &kept.parents[..]) == (taps, tokens, parents);
        if let Some(kept) = all.iter().find(fits) {
            return kept.rows.clone();
        }
        let none = |row: i32| if row < tokens as i32 { row } else { -1 };
        let back = |back: usize| earlier(tokens, documents, parents, back).into_iter().map(none).collect();
        let rows = ConvRows::new((0..taps).rev().map(back).collect(), tokens);
        all.push(Kept { taps, parents: parents.to_vec(), rows: rows.clone() });
        rows
    }
}

/// A kernel `[channels, 1, taps]`, and a bias `[channels]`.
pub(crate) type Kernel<'a> = (&'a AnyTensor, Option<&'a AnyTensor>);

fn check(
    x: &AnyTensor,
    (kernel, bias): Kernel<'_>,
    units: Option<&UnitHeads>,
    documents: &[Range<usize>],
) -> Result<(usize, usize), OpsError> {
    let [tokens, channels] = crate::check::matrix(x)?;
    let wrong = |what, got: Vec<usize>, expected: Vec<usize>| OpsError::Shape { op: OP, what, got, expected };
    let taps = match kernel.shape().as_slice() {
        &[of, 1, taps] if of == channels && taps > 0 => taps,
        _ => return Err(wrong("kernel", kernel.shape(), vec![channels, 1, 1])),
    };
    if let Some(bias) = bias.filter(|bias| bias.shape() != [channels]) {
        return Err(wrong("bias", bias.shape(), vec![channels]));
    }
    if let Some(units) = units.filter(|u| u.count * u.head_dim > channels || !u.count.is_multiple_of(2)) {
        return Err(wrong("heads", vec![units.count, units.head_dim], vec![channels]));
    }
    check_documents(documents, tokens)?;
    Ok((tokens, taps))
}

/// `silu(conv(x))` of each token, with the heads that `units` names brought to unit length and scaled; tokens of other documents count
/// as zeros, those of the document that one continues (`parents`, as in [`attention`](crate::attention())) as its own.
///
/// # Shapes
/// - x: `[tokens, channels]`; kernel: `[channels, 1, taps]`, bias: `[channels]`
/// - output: `[tokens, channels]`, f32
///
/// # Errors
/// If shapes do not fit, or a document lies outside the rows.
pub fn conv_heads(
    x: &AnyTensor,
    kernel: &AnyTensor,
    bias: Option<&AnyTensor>,
    units: Option<&UnitHeads>,
    documents: &Documents,
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    let (tokens, taps) = check(x, (kernel, bias), units, documents)?;
    over(x, (kernel, bias), units, documents.convolved.of((tokens, taps), documents, parents))
}

fn over(
    x: &AnyTensor,
    (kernel, bias): Kernel<'_>,
    units: Option<&UnitHeads>,
    rows: Arc<ConvRows>,
) -> Result<AnyTensor, OpsError> {
    dispatch!([x, kernel].into_iter().chain(bias) => conv_heads::conv_heads(x, (kernel, bias), units, rows))
}

impl ConvCache {
    /// [`conv_heads`] of new rows, each sequence's behind what it has said; plain tensors.
    ///
    /// # Errors
    /// As [`conv_heads`], or if there is not one range of rows per sequence.
    pub fn run_heads(
        &mut self,
        x: &AnyTensor,
        kernel: &AnyTensor,
        bias: Option<&AnyTensor>,
        units: Option<&UnitHeads>,
        documents: &[Range<usize>],
    ) -> Result<AnyTensor, OpsError> {
        let (tokens, taps) = check(x, (kernel, bias), units, documents)?;
        let all = self.behind_held(x.plain().rank::<2>()?, documents, taps)?;
        let rows = (0..taps).rev().map(|back| self.earlier(tokens, documents, back)).collect();
        let rows = ConvRows::new(rows, all.dims()[0]);
        self.keep(&all, documents);
        let (kernel, bias) = (kernel.plain(), bias.map(AnyTensor::plain));
        over(&AnyTensor::new(all), (&kernel, bias.as_ref()), units, rows)
    }
}
