//! Columns of activations in another order.

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::{AnyTensor, OpsError, apply};

/// An order of columns, and the way back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnOrder {
    from: Arc<Vec<u32>>,
    back: Arc<Vec<u32>>,
}

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
        Some(Self { from: Arc::new(from), back: Arc::new(back) })
    }

    /// The number of columns.
    #[must_use]
    pub fn len(&self) -> usize {
        self.from.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from.is_empty()
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
        return crate::flex::columns::permute(x, &order.from, &order.back);
    }
    apply(OP, std::slice::from_ref(x), |plain, _| {
        let y = select(plain[0].rank()?, &order.from);
        let back = order.back.clone();
        let backward = move |upstream: AnyTensor| {
            let upstream = upstream.rank().expect("invariant: of the rank of the output");
            vec![Some(AnyTensor::new(select(upstream, &back)))]
        };
        Ok((AnyTensor::new(y), Box::new(backward)))
    })
}

fn select(x: Tensor<2>, columns: &[u32]) -> Tensor<2> {
    let indices = |device: &Device| -> Tensor<1, Int> {
        Tensor::from_data(
            TensorData::new(columns.iter().map(|&c| c as i32).collect(), [columns.len()]),
            device,
        )
    };
    let indices = indices(&x.device());
    x.select(1, indices)
}
