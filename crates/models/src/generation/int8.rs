//! Matrices in int8 for generation: a token reads half of bfloat16's bytes, and its products are of integers.

use std::sync::Arc;

use burnish_core::{Parameter, Quantization, Scheme};
use burnish_ops::AnyTensor;
use burnish_quant::Values;

use crate::ModelError;
use crate::files::folder::{quantize, to_host};
use crate::files::load::is_of_a_block;

/// Whether a decoder that only generates may have a parameter in int8: a matrix of a block.
#[must_use]
pub fn rests_in_int8(parameter: &Parameter) -> bool {
    is_of_a_block(parameter, false)
}

/// Int8 as bitsandbytes has it, a scale a row.
pub const INT8: Quantization = Quantization { scheme: Scheme::Int8, nested: false };

/// A parameter's value for a decoder that only generates: a block's matrix in int8, a scale a row, whose products with the
/// newest tokens are of int8 on the CPU (`Values::with_int8_products`); any other as it is. Prompts are computed with the
/// elements that the codes stand for. As in LLM.int8 embedding, head, routers and experts keep their dtype.
///
/// # Errors
/// If the value is no matrix of floats.
pub fn int8_for_generation(parameter: &Parameter, value: AnyTensor) -> Result<AnyTensor, ModelError> {
    if !rests_in_int8(parameter) {
        return Ok(value);
    }
    let matrix = Arc::new(quantize(&to_host(&value), INT8)?);
    let values = Values::new(matrix, parameter.precision.store).with_int8_products();
    Ok(AnyTensor::packed(Arc::new(values), &value.shape(), &value.plain().device()))
}
