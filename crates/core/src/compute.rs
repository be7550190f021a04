//! `Compute`: operands of matrix products.

/// What the operands of matrix products are; sums are fp32 either way, and so is everything that is no product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compute {
    /// fp32.
    #[default]
    Fp32,
    /// Rounded to bfloat16 (to nearest even) on their way into the product; fp32 on a processor without products of
    /// bfloat16.
    Bf16,
}
