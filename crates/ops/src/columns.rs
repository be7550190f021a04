//! Columns of activations in another order.

use std::sync::{Arc, OnceLock};

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::{AnyTensor, OpsError, apply};

/// An order of columns, and the way back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnOrder {
    from: Arc<Columns>,
    back: Arc<Columns>,
}

/// The columns that are chosen, in their order.
#[derive(Debug)]
struct Columns {
    chosen: Arc<Vec<u32>>,
    /// On the device that first asked for them.
    resting: OnceLock<Tensor<1, Int>>,
}

impl Columns {
    fn new(chosen: Vec<u32>) -> Arc<Self> {
        Arc::new(Self { chosen: Arc::new(chosen), resting: OnceLock::new() })
    }

    fn on(&self, device: &Device) -> Tensor<1, Int> {
        let indices = || {
            let indices = self.chosen.iter().map(|&column| column.cast_signed()).collect();
            Tensor::from_data(TensorData::new(indices, [self.chosen.len()]), device)
        };
        let resting = self.resting.get_or_init(indices);
        if resting.device() == *device { resting.clone() } else { indices() }
    }

    fn select(&self, x: Tensor<2>) -> Tensor<2> {
        let indices = self.on(&x.device());
        x.select(1, indices)
    }
}

impl PartialEq for Columns {
    fn eq(&self, other: &Self) -> bool {
        self.chosen == other.chosen
    }
}

impl Eq for Columns {}

impl ColumnOrder {
    /// Column `j` of what comes out is column `from[j]` of what goes in.
    ///
    /// ```
    /// use burnish_ops::ColumnOrder;
    ///
    /// assert!(ColumnOrder::new(&[2, 0, 1]).is_some());
    /// assert!(ColumnOrder::new(&[0, 0, 1]).is_none());
    /// ```
    ///
    /// `None` where a column is missing or named twice.
    #[must_use]
    pub fn new(from: &[usize]) -> Option<Self> {
        // Burn's indices are signed.
        i32::try_from(from.len()).ok()?;
        let mut back = vec![u32::MAX; from.len()];
        for (to, &from) in from.iter().enumerate() {
            *back.get_mut(from).filter(|place| **place == u32::MAX)? = to as u32;
        }
        let from = from.iter().map(|&from| from as u32).collect();
        Some(Self { from: Columns::new(from), back: Columns::new(back) })
    }

    /// The number of columns.
    #[must_use]
    pub fn len(&self) -> usize {
        self.from.chosen.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from.chosen.is_empty()
    }
}

/// The columns of `x` in another order.
///
/// # Shapes
/// - x: `[tokens, order.len()]`, output: the same
///
/// # Errors
/// If `x` has another number of columns.
pub fn permute_columns(x: &AnyTensor, order: &ColumnOrder) -> Result<AnyTensor, OpsError> {
    const OP: &str = "permute_columns";
    let [tokens, width] = crate::check::matrix(x)?;
    if width != order.len() {
        let (got, expected) = (vec![tokens, width], vec![tokens, order.len()]);
        return Err(OpsError::Shape { op: OP, what: "x", got, expected });
    }
    #[cfg(feature = "flex")]
    if crate::flex::holds([x]) {
        return crate::flex::columns::permute(x, &order.from.chosen, &order.back.chosen);
    }
    apply(OP, std::slice::from_ref(x), |plain, _| {
        let y = order.from.select(plain[0].rank()?);
        let back = order.back.clone();
        let backward = move |upstream: AnyTensor| {
            let upstream = upstream.rank().expect("invariant: of the rank of the output");
            vec![Some(AnyTensor::new(back.select(upstream)))]
        };
        Ok((AnyTensor::new(y), Box::new(backward)))
    })
}
