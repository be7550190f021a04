//! Folders whose matrices are quantised already: which tensors stand for a matrix, and how they are read.
//!
//! * bitsandbytes: NF4, FP4 (each also with double quantisation) and int8, beside the name of the matrix.
//! * GPTQ and AWQ in four bits, beside the name of its module.
//!
//! Matrices in fp8 with scales for blocks are read as bfloat16, and so are no quantised ones here.

mod bitsandbytes;
mod words;
pub(crate) mod written;

use burnish_core::{Dtype, Quantization};
use burnish_quant::Quantized;
use burnish_weight_files::{HostTensor, WeightFolder};
use half::{bf16, f16};
use serde_json::{Map, Value};

pub(crate) use crate::packed_fault::PackedFault;
use crate::spec::config::ConfigFile;
use crate::spec::names::ExpertFiles;
use crate::{ModelError, Spec};

/// Where `config.json` says how a folder is quantised.
pub(crate) const QUANTIZATION_CONFIG: &str = "quantization_config";

/// How a folder's matrices are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// By bitsandbytes; int8 is read as this dtype, four bits as the one that each matrix names.
    BitsAndBytes { read: Dtype },
    /// By GPTQ; zero points may be stored less one.
    Gptq { group_size: i64, less_one: bool },
    /// By AWQ.
    Awq { group_size: i64 },
}

/// A matrix as its headers declare it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Declared {
    pub(crate) quantization: Quantization,
    /// What its elements are read as.
    pub(crate) read: Dtype,
}

impl std::fmt::Display for Declared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nested = if self.quantization.nested { ", double quantisation" } else { "" };
        write!(f, "{}{nested}, read as {}", self.quantization.scheme, self.read)
    }
}

impl Packing {
    /// By `config.json`; `None` where the folder is not quantised, or its experts alone are in MXFP4, which are widened as they
    /// are read.
    pub(crate) fn from_config(config: &ConfigFile, spec: &Spec) -> Result<Option<Self>, ModelError> {
        let Some(value) = config.get(QUANTIZATION_CONFIG) else { return Ok(None) };
        let unsupported = |key: &str, got: String, supported| ModelError::Unsupported {
            key: format!("{QUANTIZATION_CONFIG}{key}"),
            got,
            supported,
        };
        let Some(own) = value.as_object() else {
            return Err(unsupported("", value.to_string(), "an object with quant_method"));
        };
        let text = |key: &str| own.get(key).and_then(Value::as_str);
        match text("quant_method") {
            Some("bitsandbytes") => {
                let named = config.str("dtype")?.or(config.str("torch_dtype")?);
                let read = named.and_then(|name| name.parse().ok()).filter(|dtype: &Dtype| dtype.is_float());
                Ok(Some(Self::BitsAndBytes { read: read.filter(|&d| d != Dtype::F64).unwrap_or(Dtype::F32) }))
            }
            Some("gptq") => {
                let group_size = words::config(own, unsupported)?;
                match text("checkpoint_format").or(text("format")).unwrap_or("gptq") {
                    "gptq" => Ok(Some(Self::Gptq { group_size, less_one: true })),
                    "gptq_v2" => Ok(Some(Self::Gptq { group_size, less_one: false })),
                    other => Err(unsupported(".checkpoint_format", other.to_owned(), "gptq, gptq_v2")),
                }
            }
            Some("awq") => {
                let group_size = words::config(own, unsupported)?;
                match text("version").or(text("format")).unwrap_or("gemm").to_ascii_lowercase().as_str() {
                    "gemm" => Ok(Some(Self::Awq { group_size })),
                    other => Err(unsupported(".version", other.to_owned(), "gemm")),
                }
            }
            // Widened as it is read.
            Some("fp8") => Ok(None),
            Some("mxfp4") if spec.names.experts.files == ExpertFiles::Turned => Ok(None),
            other => Err(unsupported(
                ".quant_method",
                other.unwrap_or("missing").to_owned(),
                "bitsandbytes in four and eight bits, gptq and awq in four, fp8; or a folder of unquantised weights",
            )),
        }
    }

    /// Whether the files have the matrix `name` (`….weight`) quantised.
    pub(crate) fn has(self, weights: &WeightFolder, name: &str) -> bool {
        match self {
            Self::BitsAndBytes { .. } => bitsandbytes::kind(weights, name).is_some(),
            Self::Gptq { .. } | Self::Awq { .. } => {
                words::module(name).is_some_and(|module| weights.contains(&format!("{module}.qweight")))
            }
        }
    }

    /// The tensors that stand for the matrix `name`.
    pub(crate) fn tensors(self, weights: &WeightFolder, name: &str) -> Vec<String> {
        let known = |name: &String| weights.contains(name);
        match self {
            Self::BitsAndBytes { .. } => bitsandbytes::tensors(name).filter(known).collect(),
            Self::Gptq { .. } | Self::Awq { .. } => words::tensors(name).filter(known).collect(),
        }
    }

    /// What the matrix `name`, which the files [have](Self::has), is: from headers and what is as short.
    pub(crate) fn declared(
        self,
        weights: &WeightFolder,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Declared, PackedFault> {
        match self {
            Self::BitsAndBytes { read } => bitsandbytes::declared(weights, name, shape, read),
            Self::Gptq { group_size, .. } => words::declared(weights, name, shape, group_size, true),
            Self::Awq { group_size } => words::declared(weights, name, shape, group_size, false),
        }
    }

    /// The matrix `name`, as the files have it.
    pub(crate) fn read(
        self,
        weights: &WeightFolder,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Quantized, PackedFault> {
        match self {
            Self::BitsAndBytes { .. } => bitsandbytes::read(weights, name, shape),
            Self::Gptq { group_size, less_one } => {
                words::read(weights, name, shape, group_size, Some(less_one))
            }
            Self::Awq { group_size } => words::read(weights, name, shape, group_size, None),
        }
    }
}

/// The blocks that the matrices of a folder in fp8 have scales for; the inner `None` where each has one scale.
pub(crate) fn fp8_blocks(config: &ConfigFile) -> Result<Option<Option<[usize; 2]>>, ModelError> {
    let own = config.get(QUANTIZATION_CONFIG).and_then(Value::as_object);
    let Some(own) = own.filter(|own| own.get("quant_method").and_then(Value::as_str) == Some("fp8")) else {
        return Ok(None);
    };
    let unsupported = |key: &str, got: &Value, supported| ModelError::Unsupported {
        key: format!("{QUANTIZATION_CONFIG}.{key}"),
        got: got.to_string(),
        supported,
    };
    if let Some(format) = own.get("fmt").filter(|format| **format != "e4m3" && !format.is_null()) {
        return Err(unsupported("fmt", format, "e4m3"));
    }
    let Some(size) = own.get("weight_block_size").filter(|size| !size.is_null()) else {
        return Ok(Some(None));
    };
    let sides = size.as_array().map(|sides| sides.iter().map(Value::as_u64).collect::<Vec<_>>());
    match sides.as_deref() {
        Some([Some(rows), Some(columns)])
            if (1..1 << 20).contains(rows) && (1..1 << 20).contains(columns) =>
        {
            Ok(Some(Some([*rows as usize, *columns as usize])))
        }
        _ => Err(unsupported("weight_block_size", size, "[rows, columns] of a block, or null")),
    }
}

/// A tensor, if it is of this dtype and shape.
fn tensor(
    weights: &WeightFolder,
    name: &str,
    dtype: Dtype,
    shape: &[usize],
) -> Result<HostTensor, PackedFault> {
    let info = weights.info(name)?;
    if info.dtype != dtype || info.shape != shape {
        return Err(PackedFault::Tensor {
            tensor: name.to_owned(),
            got: format!("{} {:?}", info.dtype, info.shape),
            expected: format!("{dtype} {shape:?}"),
        });
    }
    Ok(weights.read(name)?)
}

/// An integer of `quantization_config`.
fn integer(own: &Map<String, Value>, key: &str) -> Option<i64> {
    own.get(key).and_then(Value::as_i64)
}

/// The elements in `dtype`.
pub(crate) fn widened(quantized: &Quantized, dtype: Dtype) -> HostTensor {
    let bytes = match dtype {
        Dtype::Bf16 => bytes_of(&quantized.values::<bf16>()),
        Dtype::F16 => bytes_of(&quantized.values::<f16>()),
        _ => bytes_of(&quantized.values::<f32>()),
    };
    let dtype = if matches!(dtype, Dtype::Bf16 | Dtype::F16) { dtype } else { Dtype::F32 };
    HostTensor { dtype, shape: quantized.shape().to_vec(), bytes }
}

fn bytes_of<T: burnish_weight_files::Element>(values: &[T]) -> Vec<u8> {
    HostTensor::from_slice(values, &[values.len()]).expect("invariant: as many elements as there are").bytes
}
