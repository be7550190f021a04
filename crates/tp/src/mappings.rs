//! Megatron's pair of operations around a divided layer: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.

use burnish_ops::{AnyTensor, BackwardFn, OpsError, accumulate, apply};

use crate::Tp;
use crate::handle::{expect_f32, expect_shape, zeros};

impl Tp {
    /// `copy_to_tp`, before column-parallel layers: `x` as it is; in backward the sum of its gradient over the ranks.
    ///
    /// One for all layers that read the same input. It may stand before a norm that is fused into them: the norm's
    /// backward is linear in what it gets, so that the sum may come after it. The norm's own gradient is then an addend
    /// ([`Gradient::Partial`](crate::Gradient::Partial)).
    ///
    /// # Shapes
    /// Any, in f32. Backward: one all-reduce of as many elements.
    ///
    /// # Errors
    /// If `x` is tracked and not f32.
    pub fn copy_to_tp(&self, x: &AnyTensor, what: &str) -> Result<AnyTensor, OpsError> {
        if self.size() == 1 || !x.is_tracked() {
            return Ok(x.clone());
        }
        expect_f32("copy_to_tp", "x", x)?;
        let (tp, what) = (self.clone(), format!("{what}: gradient of the input"));
        apply("copy_to_tp", std::slice::from_ref(x), move |plain, _| {
            let backward = move |upstream: AnyTensor| vec![Some(tp.summed(&upstream, &what))];
            Ok((plain[0].clone(), Box::new(backward)))
        })
    }

    /// `x` as it is; in backward its gradient on the first rank, zeros on the others: an addend
    /// ([`Gradient::Partial`](crate::Gradient::Partial)) of a gradient that every rank has whole.
    ///
    /// # Errors
    /// If `x` cannot be recorded.
    pub fn grad_on_rank0(&self, x: &AnyTensor) -> Result<AnyTensor, OpsError> {
        if self.rank() == 0 || !x.is_tracked() {
            return Ok(x.clone());
        }
        apply("grad_on_rank0", std::slice::from_ref(x), |plain, _| {
            let (shape, device) = (plain[0].shape(), plain[0].device());
            Ok((plain[0].clone(), Box::new(move |_| vec![Some(zeros(&shape, &device))])))
        })
    }

    /// `reduce_from_tp`, after row-parallel layers: the sum of `x` over the ranks; in backward the gradient as it is.
    ///
    /// # Shapes
    /// Any, in f32. Forward: one all-reduce of as many elements.
    ///
    /// # Errors
    /// If `x` is not f32.
    pub fn reduce_from_tp(&self, x: &AnyTensor, what: &str) -> Result<AnyTensor, OpsError> {
        if self.size() == 1 {
            return Ok(x.clone());
        }
        expect_f32("reduce_from_tp", "x", x)?;
        apply("reduce_from_tp", std::slice::from_ref(x), |plain, _| {
            let backward = |upstream| vec![Some(upstream)];
            Ok((self.summed(&plain[0], &output(what)), Box::new(backward)))
        })
    }

    /// [`Tp::reduce_from_tp`] of `x`, plus `residual`, which is the same on every rank.
    ///
    /// # Shapes
    /// As [`Tp::reduce_from_tp`]; `x` and `residual` have the same.
    ///
    /// # Errors
    /// If the shapes differ or one is not f32.
    pub fn reduce_from_tp_add(
        &self,
        x: &AnyTensor,
        residual: &AnyTensor,
        what: &str,
    ) -> Result<AnyTensor, OpsError> {
        expect_f32("reduce_from_tp_add", "x", x)?;
        expect_f32("reduce_from_tp_add", "residual", residual)?;
        expect_shape("reduce_from_tp_add", "residual", residual.shape(), &x.shape())?;
        apply("reduce_from_tp_add", &[x.clone(), residual.clone()], |plain, wanted| {
            let sum = self.summed(&plain[0], &output(what));
            let out = accumulate(Some(sum), plain[1].clone());
            let wanted = wanted.to_vec();
            let backward =
                move |upstream: AnyTensor| wanted.iter().map(|&w| w.then(|| upstream.clone())).collect();
            Ok((out, Box::new(backward)))
        })
    }
    /// Zeros of `shape` that depend on `inputs`, whose gradients are zero: what a rank without any feature of a layer puts
    /// in its place. What stands before it ([`Tp::copy_to_tp`]) then runs in backward as on the other ranks.
    ///
    /// # Errors
    /// If there are too many inputs for one operation.
    ///
    /// # Panics
    /// Without inputs.
    pub fn zeros_like_output(&self, inputs: &[AnyTensor], shape: &[usize]) -> Result<AnyTensor, OpsError> {
        apply("zeros_like_output", inputs, |plain, wanted| {
            let device = plain[0].device();
            let out = zeros(shape, &device);
            let gradients: Vec<Option<Vec<usize>>> =
                plain.iter().zip(wanted).map(|(input, &wanted)| wanted.then(|| input.shape())).collect();
            let backward = move |_| gradients.iter().map(|g| Some(zeros(g.as_ref()?, &device))).collect();
            Ok((out, Box::new(backward) as BackwardFn))
        })
    }
}

/// What a sum of outputs is called.
pub(crate) fn output(what: &str) -> String {
    format!("{what}: output")
}
