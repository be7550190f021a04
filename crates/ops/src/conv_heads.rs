//! The convolution before linear attention, causal and depthwise, with SiLU and the first heads of unit length behind it.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::dispatch::dispatch;
use crate::once_for::OnceFor;
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
    /// What sequences that go on hold of them.
    behind: OnceLock<Tensor<1, Int>>,
    /// `rows` of each tap, on a device.
    by_tap: OnceLock<Vec<Tensor<1, Int>>>,
    /// The same where a device has them.
    #[cfg(feature = "cube")]
    pub(crate) on_device: crate::gpu::DeviceRows,
}

/// Those of the documents of a row, one for all layers that convolve them alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConvPlans(OnceFor<Kept>);

#[derive(Clone, Debug)]
struct Kept {
    taps: usize,
    /// Of sequences whose last rows are held, none.
    parents: Option<Arc<[Option<usize>]>>,
    rows: Arc<ConvRows>,
}

impl ConvPlans {
    /// The rows for a kernel of `taps` over `of` rows, which `make` finds for each tap back where there are none yet.
    fn of(
        &self,
        (of, taps): (usize, usize),
        parents: Option<&[Option<usize>]>,
        make: impl FnMut(usize) -> Vec<i32>,
    ) -> Arc<ConvRows> {
        let fits = |kept: &Kept| (kept.taps, kept.rows.of, kept.parents.as_deref()) == (taps, of, parents);
        let new = || {
            let rows = ConvRows {
                rows: (0..taps).rev().map(make).collect(),
                of,
                behind: OnceLock::new(),
                by_tap: OnceLock::new(),
                #[cfg(feature = "cube")]
                on_device: Default::default(),
            };
            Kept { taps, parents: parents.map(Into::into), rows: Arc::new(rows) }
        };
        self.0.get(fits, new).rows
    }
}

impl ConvPlans {
    /// The rows of new tokens behind those that a cache holds, all `(rows, taps)`.
    pub(crate) fn held(
        &self,
        cache: &ConvCache,
        of: (usize, usize),
        documents: &[Range<usize>],
        tokens: usize,
    ) -> Arc<ConvRows> {
        self.of(of, None, |back| cache.earlier(tokens, documents, back))
    }
}

impl ConvRows {
    /// The rows that the tokens behind `documents` read.
    pub(crate) fn behind(
        &self,
        cache: &ConvCache,
        documents: &[Range<usize>],
        device: &Device,
    ) -> Tensor<1, Int> {
        self.behind.get_or_init(|| cache.last_rows(documents, device)).clone()
    }

    /// The row that each tap of each token reads; any of a token of no sequence.
    pub(crate) fn by_tap(&self, device: &Device) -> &[Tensor<1, Int>] {
        let index = |rows: &Vec<i32>| {
            let rows: Vec<i32> = rows.iter().map(|&row| row.max(0)).collect();
            let count = rows.len();
            Tensor::from_data(TensorData::new(rows, [count]), device)
        };
        self.by_tap.get_or_init(|| self.rows.iter().map(index).collect())
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
    if let Some(bias) = bias {
        crate::check::shape(OP, "bias", bias.shape(), &[channels])?;
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
    let none = |row: i32| if row < tokens as i32 { row } else { -1 };
    let rows = documents.convolved.of((tokens, taps), Some(parents), |back| {
        earlier(tokens, documents, parents, back).into_iter().map(none).collect()
    });
    over(x, (kernel, bias), units, rows)
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
        documents: &Documents,
    ) -> Result<AnyTensor, OpsError> {
        let (tokens, taps) = check(x, (kernel, bias), units, documents)?;
        self.rows.settle_for(documents.len());
        let all = self.behind_held(x.plain().rank::<2>()?, documents, taps)?;
        let of = (all.dims()[0], taps);
        let rows = documents.convolved.held(self, of, documents, tokens);
        self.keep(&all, rows.behind(self, documents, &all.device()));
        let (kernel, bias) = (kernel.plain(), bias.map(AnyTensor::plain));
        over(&AnyTensor::new(all), (&kernel, bias.as_ref()), units, rows)
    }
}
