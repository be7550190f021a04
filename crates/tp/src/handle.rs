//! The ranks of the tensor-parallel axis, as one of them sees them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;
use burnish_comm::{Bucket, CommError, Gathered, Group, Reduction};
use burnish_core::Dtype;
use burnish_ops::{AnyTensor, OpsError};
use burnish_tensor_comm::{bucket, tensor};

use crate::TpError;

/// This rank among those that share each layer. Cheap to clone, one state.
///
/// Its operations take the same tensors in the same order on every rank. Where they run (inside a forward that is
/// repeated in backward, or in backward itself) no error can be returned: the first one is kept, everything gives zeros
/// from then on without communicating, and [`check`](Self::check) returns it. One rank alone communicates nothing.
///
/// `what`, a layer's name, appears in errors.
///
/// The operations one by one: an MLP on two ranks, with an adapter on its second layer, whose partial gradient is summed.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burnish_comm::local;
/// use burnish_ops::{AnyTensor, Linear, LinearInput, LowRank, linears};
/// use burnish_tp::{LinearPart, PartialGrad, Split, Style, Tp, TpLayout};
///
/// fn ramp(n: usize) -> Vec<f32> {
///     (0..n).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect()
/// }
///
/// // 4 features, 5 in between
/// let gradients = |ranks: usize| {
///     local::run(ranks, |world| {
///         let tp = Tp::new(&world.group());
///         let inner = Split::balanced(5, tp.size())?;
///         let device = Device::flex();
///         // a rank makes its part of each tensor
///         let part = |style, part, shape: &[usize]| {
///             let layout = TpLayout::of(style, part, shape, &inner)?;
///             let own = layout.layout().shard(&ramp(shape.iter().product()), tp.rank());
///             let own = AnyTensor::from_elements(own, &layout.layout().local_shape(tp.rank()), &device).leaf();
///             Ok::<_, burnish_tp::TpError>((own, layout))
///         };
///         let (up, _) = part(Style::Colwise, LinearPart::Weight, &[5, 4])?;
///         let (down, _) = part(Style::Rowwise, LinearPart::Weight, &[4, 5])?;
///         let (a, _) = part(Style::Rowwise, LinearPart::LoraA, &[2, 5])?;
///         let (b, b_layout) = part(Style::Rowwise, LinearPart::LoraB, &[4, 2])?;
///         let x = AnyTensor::from_elements(ramp(12), &[3, 4], &device).leaf();
///
///         let h = linears(&LinearInput::Plain(tp.copy_to_tp(&x, "up")?), &[Linear::new(up)], None)?;
///         let low_rank = Some(LowRank { a, b: b.clone(), b_bias: None, scale: 2.0, dropout: None, magnitude: None });
///         let y = linears(&LinearInput::Plain(h), &[Linear { low_rank, ..Linear::new(down) }], None)?;
///         let y = tp.reduce_from_tp_add(&y, &x, "down")?;
///
///         let mut gradients = y.rank::<2>()?.powi_scalar(2).sum().backward();
///         let gradient = b.take_gradient(&mut gradients).expect("`b` is a leaf");
///         let mut sum = [PartialGrad { name: "down.lora_B", layout: &b_layout, rows: 0..4, gradient }];
///         tp.sum_partial(&mut sum)?;
///         tp.check()?;
///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(sum[0].gradient.to_f32())
///     })
/// };
/// let one = gradients(1).remove(0).unwrap().unwrap();
/// for two in gradients(2) {
///     for (one, two) in one.iter().zip(two.unwrap().unwrap()) {
///         assert!((one - two).abs() < 1e-6);
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Tp {
    inner: Arc<Inner>,
}

struct Inner {
    /// The order of calls of forward and backward, and that of saving and loading.
    group: Group,
    files: Group,
    failure: Arc<Mutex<Option<TpError>>>,
}

impl Tp {
    /// This rank of `group`: the ranks along the mesh's `tp` axis.
    #[must_use]
    pub fn new(group: &Group) -> Self {
        Self::keeping(group, Arc::default())
    }

    /// The same rank on another axis: what fails on either is kept as the failure of both.
    #[must_use]
    pub fn along(&self, group: &Group) -> Self {
        Self::keeping(group, self.inner.failure.clone())
    }

    fn keeping(group: &Group, failure: Arc<Mutex<Option<TpError>>>) -> Self {
        let (group, files) = (group.channel("tp"), group.channel("tp files"));
        Self { inner: Arc::new(Inner { group, files, failure }) }
    }

    /// One rank on its own.
    #[must_use]
    pub fn alone() -> Self {
        Self::new(&Group::alone())
    }

    /// This rank on the axis.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.group.rank()
    }

    /// Ranks of the axis.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.group.size()
    }

    /// The ranks, in the order of calls of forward and backward.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.inner.group
    }

    pub(crate) fn files(&self) -> &Group {
        &self.inner.files
    }

    /// The first error of anything that ran on this handle.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<(), TpError> {
        match &*self.failure() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// The element-wise reduction of every rank's values, the same bits on every rank; zeros after an error.
    #[must_use]
    pub fn all_reduce(&self, values: Vec<f32>, reduction: Reduction, what: &str) -> Vec<f32> {
        let elements = values.len();
        let reduced = self.reduced(Bucket::new(values), reduction, what);
        reduced.map_or_else(|| vec![0.0; elements], Bucket::into_vec)
    }

    /// Every rank's values, `counts[r]` from rank r; `None` after an error.
    #[must_use]
    pub fn all_gather(&self, values: Vec<f32>, counts: &[usize], what: &str) -> Option<Gathered<f32>> {
        self.gathered(Bucket::new(values), counts, what)
    }

    /// Sums of a few scalars over the ranks, in rank order, as of the squares that each rank counts
    /// ([`PartialGrad::squares`](crate::PartialGrad::squares)).
    ///
    /// # Errors
    /// If a rank fails; the first error of this handle.
    pub fn sum_f64(&self, values: &[f64], what: &str) -> Result<Vec<f64>, TpError> {
        self.check()?;
        if self.size() == 1 {
            return Ok(values.to_vec());
        }
        self.kept(self.group().sum_f64(values, what))
    }

    pub(crate) fn reduced(
        &self,
        bucket: Bucket<f32>,
        reduction: Reduction,
        what: &str,
    ) -> Option<Bucket<f32>> {
        if self.check().is_err() {
            return None;
        }
        if self.size() == 1 {
            return Some(bucket);
        }
        self.kept(self.group().all_reduce(bucket, reduction, what).wait()).ok()
    }

    pub(crate) fn gathered(
        &self,
        bucket: Bucket<f32>,
        counts: &[usize],
        what: &str,
    ) -> Option<Gathered<f32>> {
        if self.check().is_err() {
            return None;
        }
        self.kept(self.group().all_gather_v(bucket, counts, what).wait()).ok()
    }

    /// The sum over the ranks of a plain tensor of f32, the same bits on every rank; zeros after an error. Nothing is
    /// recorded for backward.
    #[must_use]
    pub fn summed(&self, x: &AnyTensor, what: &str) -> AnyTensor {
        let (shape, device) = (x.shape(), x.device());
        let sum = bucket(x).and_then(|bucket| self.reduced(bucket, Reduction::Sum, what));
        sum.map_or_else(|| zeros(&shape, &device), |sum| tensor(sum, &shape, &device))
    }

    /// The same result, its error kept.
    pub(crate) fn kept<T>(&self, result: Result<T, CommError>) -> Result<T, TpError> {
        result.map_err(|error| {
            let error = TpError::Comm(error);
            self.failure().get_or_insert(error.clone());
            error
        })
    }

    fn failure(&self) -> MutexGuard<'_, Option<TpError>> {
        self.inner.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tp(rank {} of {})", self.rank(), self.size())
    }
}

/// Zeros of f32.
pub(crate) fn zeros(shape: &[usize], device: &Device) -> AnyTensor {
    AnyTensor::from_elements(vec![0.0_f32; shape.iter().product()], shape, device)
}

/// Fails unless the tensor is of f32.
pub(crate) fn expect_f32(op: &'static str, what: &'static str, x: &AnyTensor) -> Result<(), OpsError> {
    match x.dtype() {
        Some(Dtype::F32) => Ok(()),
        got => Err(OpsError::Dtype { op, what, got, expected: "float32" }),
    }
}

/// Fails unless the shapes are equal.
pub(crate) fn expect_shape(
    op: &'static str,
    what: &'static str,
    got: Vec<usize>,
    expected: &[usize],
) -> Result<(), OpsError> {
    if got == expected {
        return Ok(());
    }
    Err(OpsError::Shape { op, what, got, expected: expected.to_vec() })
}
