//! Folders whose matrices are quantised already: which tensors stand for a matrix, and how they are read.
//!
//! * bitsandbytes: NF4, FP4 (each also with double quantisation) and int8, beside the name of the matrix.
//! * GPTQ, AWQ, AutoRound (in words of either) and compressed-tensors in four bits, beside the name of its module.
//!
//! Matrices in eight bits with scales, fine-grained FP8 and those of compressed-tensors, are read as floats of 16 or 32 bits
//! ([`ScaleLayout`]), and so are no quantised ones here.

mod bitsandbytes;
mod compressed;
mod words;
pub(crate) mod written;

use burnish_core::{Dtype, Quantization};
use burnish_quant::Quantized;
use burnish_weight_files::{HostTensor, ScaleLayout, WeightFolder};
use half::{bf16, f16};
use serde_json::{Map, Value};

pub(crate) use crate::packed_fault::PackedFault;
use crate::spec::config::ConfigFile;
use crate::spec::names::ExpertFiles;
use crate::{ModelError, Spec};

/// Where `config.json` says how a folder is quantised.
pub(crate) const QUANTIZATION_CONFIG: &str = "quantization_config";

/// How AutoRound has matrices where it does not say.
const AUTO_GPTQ: &str = "auto_round:auto_gptq";

/// How a folder's matrices are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// By bitsandbytes; int8 is read as this dtype, four bits as the one that each matrix names.
    BitsAndBytes { read: Dtype },
    /// By GPTQ, or AutoRound in its words; zero points may be stored less one.
    Gptq { group_size: i64, less_one: bool },
    /// By AWQ.
    Awq { group_size: i64 },
    /// By compressed-tensors; matrices with scales in float32 are read as this dtype.
    CompressedTensors { read: Dtype },
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
            Some("bitsandbytes") => Ok(Some(Self::BitsAndBytes { read: named_dtype(config)? })),
            Some(compressed::METHOD) => {
                let four_bits = compressed::config(own, unsupported)?.four_bits;
                Ok(if four_bits {
                    Some(Self::CompressedTensors { read: named_dtype(config)? })
                } else {
                    None
                })
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
            Some("auto-round") => {
                let group_size = words::config(own, unsupported)?;
                if let Some(other) = text("data_type").filter(|kind| *kind != "int") {
                    return Err(unsupported(".data_type", other.to_owned(), "int"));
                }
                match text("packing_format").unwrap_or(AUTO_GPTQ) {
                    AUTO_GPTQ => Ok(Some(Self::Gptq { group_size, less_one: true })),
                    "auto_round" | "auto_round:gptqmodel" => {
                        Ok(Some(Self::Gptq { group_size, less_one: false }))
                    }
                    "auto_round:auto_awq" => Ok(Some(Self::Awq { group_size })),
                    other => Err(unsupported(
                        ".packing_format",
                        other.to_owned(),
                        "auto_round, auto_round:auto_gptq, auto_round:gptqmodel, auto_round:auto_awq",
                    )),
                }
            }
            // Widened as it is read.
            Some("fp8") => Ok(None),
            Some("mxfp4") if spec.names.experts.files == ExpertFiles::Turned => Ok(None),
            other => Err(unsupported(
                ".quant_method",
                other.unwrap_or("missing").to_owned(),
                "bitsandbytes in four and eight bits, gptq, awq and auto-round in four, compressed-tensors, fp8; or a folder of unquantised weights",
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
            Self::CompressedTensors { .. } => compressed::has(weights, name),
        }
    }

    /// The tensors that stand for the matrix `name`.
    pub(crate) fn tensors(self, weights: &WeightFolder, name: &str) -> Vec<String> {
        let known = |name: &String| weights.contains(name);
        match self {
            Self::BitsAndBytes { .. } => bitsandbytes::tensors(name).filter(known).collect(),
            Self::Gptq { .. } | Self::Awq { .. } => words::tensors(name).filter(known).collect(),
            Self::CompressedTensors { .. } => compressed::tensors(name).filter(known).collect(),
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
            Self::CompressedTensors { read } => compressed::declared(weights, name, shape, read),
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
            Self::CompressedTensors { read } => compressed::read(weights, name, shape, read),
        }
    }
}

/// The dtype that `config.json` names, else float32.
fn named_dtype(config: &ConfigFile) -> Result<Dtype, ModelError> {
    let named = config.str("dtype")?.or(config.str("torch_dtype")?);
    let read = named.and_then(|name| name.parse().ok());
    Ok(read.filter(|dtype: &Dtype| dtype.is_float() && *dtype != Dtype::F64).unwrap_or(Dtype::F32))
}

/// How the matrices of a folder in eight bits lie beside their scales, where it has such.
pub(crate) fn scales(config: &ConfigFile) -> Result<Option<ScaleLayout>, ModelError> {
    let Some(own) = config.get(QUANTIZATION_CONFIG).and_then(Value::as_object) else { return Ok(None) };
    let unsupported = |key: &str, got: String, supported| ModelError::Unsupported {
        key: format!("{QUANTIZATION_CONFIG}{key}"),
        got,
        supported,
    };
    match own.get("quant_method").and_then(Value::as_str) {
        Some("fp8") => {
            if let Some(format) = own.get("fmt").filter(|format| **format != "e4m3" && !format.is_null()) {
                return Err(unsupported(".fmt", format.to_string(), "e4m3"));
            }
            let block = match own.get("weight_block_size").filter(|size| !size.is_null()) {
                None => None,
                Some(size) => Some(block_of(size).ok_or_else(|| {
                    unsupported(".weight_block_size", size.to_string(), "[rows, columns] of a block, or null")
                })?),
            };
            Ok(Some(ScaleLayout::FineGrained { block }))
        }
        Some(compressed::METHOD) => {
            let block = compressed::config(own, unsupported)?.block;
            Ok(Some(ScaleLayout::CompressedTensors { block, read: named_dtype(config)? }))
        }
        _ => Ok(None),
    }
}

/// Rows and columns of a block.
fn block_of(value: &Value) -> Option<[usize; 2]> {
    let sides = value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<_>>>()?;
    let &[rows, columns] = &sides[..] else { return None };
    let side = 1..1 << 20;
    (side.contains(&rows) && side.contains(&columns)).then_some([rows as usize, columns as usize])
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
