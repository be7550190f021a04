//! `Kept`: rows of a parameter as a rank keeps them.

use std::sync::{Arc, OnceLock};

use burn::tensor::Device;
use burnish_core::Parameter;
use burnish_ops::AnyTensor;
use burnish_quant::{Quantized, Values};

use crate::ZeroError;

/// Rows of a parameter as a rank keeps them.
#[derive(Clone, Debug)]
pub enum Kept {
    /// In the dtype that they are read in.
    Tensor(AnyTensor),
    /// In fewer bits; a tensor whenever they are read. Clones share what a device has of them.
    Quantized(Arc<Quantized>, Arc<OnceLock<AnyTensor>>),
}

impl From<AnyTensor> for Kept {
    fn from(value: AnyTensor) -> Self {
        Self::Tensor(value)
    }
}

impl From<Quantized> for Kept {
    fn from(value: Quantized) -> Self {
        Self::Quantized(Arc::new(value), Arc::default())
    }
}

impl Kept {
    /// Off the tape.
    pub(super) fn plain(self) -> Self {
        match self {
            Self::Tensor(value) => Self::Tensor(value.plain()),
            quantized @ Self::Quantized(..) => quantized,
        }
    }

    /// In the dtype that the parameter is read in.
    pub(super) fn read(&self, parameter: &Parameter, device: &Device) -> AnyTensor {
        match self {
            Self::Tensor(value) => value.clone(),
            Self::Quantized(quantized, read_as) => {
                read_as.get_or_init(|| read(quantized, parameter, device)).clone()
            }
        }
    }

    /// Rows that rest in fewer bits, as they go to other ranks.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Quantized(quantized, _) if quantized.shape()[0] > 0 => quantized.to_bytes(),
            Self::Quantized(..) => Vec::new(),
            Self::Tensor(_) => panic!("invariant: what is declared in fewer bits is kept so"),
        }
    }

    /// Fails unless it is `rows` rows of a parameter as it is declared.
    pub(super) fn expect(&self, parameter: &Parameter, rows: usize) -> Result<(), ZeroError> {
        let (got, dtype) = match self {
            Self::Tensor(value) if parameter.quantization.is_none() => {
                return super::expect(parameter, "the loaded value", value, rows);
            }
            Self::Tensor(value) => (value.shape(), value.dtype()),
            Self::Quantized(quantized, _) => {
                if quantized.shape() == parameter.as_matrix(rows)
                    && Some(quantized.quantization()) == parameter.quantization
                {
                    return Ok(());
                }
                (quantized.shape().to_vec(), None)
            }
        };
        Err(super::unexpected(parameter, "the loaded value", (got, dtype), rows))
    }
}

/// Rows of a parameter in the dtype that it is read in.
pub(super) fn read(quantized: &Arc<Quantized>, parameter: &Parameter, device: &Device) -> AnyTensor {
    let values = Values::new(quantized.clone(), parameter.precision.store);
    let mut shape = parameter.shape.clone();
    if let Some(rows) = shape.first_mut() {
        *rows = quantized.shape()[0] / parameter.as_matrix(1)[0].max(1);
    }
    AnyTensor::packed(Arc::new(values), &shape, device)
}
