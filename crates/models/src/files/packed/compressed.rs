//! compressed-tensors' tensors of a matrix in four bits, and what its configuration says of all.

use burnish_core::{Dtype, Quantization, Scheme};
use burnish_quant::{PackedRows, Quantized, gptq_order};
use burnish_weight_files::WeightFolder;
use serde_json::{Map, Value};

use super::{Declared, PackedFault, integer, tensor};
use crate::ModelError;

/// How it names itself.
pub(super) const METHOD: &str = "compressed-tensors";

/// What stands beside a matrix, whose name it goes on from.
const BESIDE: [&str; 6] = ["_packed", "_scale", "_zero_point", "_global_scale", "_shape", "_g_idx"];
/// Formats that are read.
const FORMATS: [&str; 8] = [
    "dense",
    "naive-quantized",
    "int-quantized",
    "float-quantized",
    "mxfp8-quantized",
    "pack-quantized",
    "mxfp4-pack-quantized",
    "nvfp4-pack-quantized",
];
const FORMATS_READ: &str = "naive-, int-, float- and mxfp8-quantized, pack-quantized, mxfp4- and nvfp4-pack-quantized; or a folder \
                            of unquantised weights";

/// What a configuration says that is not said by the tensors themselves.
pub(super) struct Described {
    /// Whether there are matrices in four bits, which stay so.
    pub(super) four_bits: bool,
    /// Rows and columns that share a scale, where blocks do.
    pub(super) block: Option<[usize; 2]>,
}

/// Reads `quantization_config`.
pub(super) fn config(
    own: &Map<String, Value>,
    unsupported: impl Fn(&str, String, &'static str) -> ModelError,
) -> Result<Described, ModelError> {
    let text = |of: &Map<String, Value>, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
    let part = |of: &Map<String, Value>, key: &str| {
        of.get(key).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    if let Some(status) = text(own, "quantization_status").filter(|status| status != "compressed") {
        return Err(unsupported(".quantization_status", status, "compressed"));
    }
    if let Some(sparse) = text(&part(own, "sparsity_config"), "format").filter(|format| format != "dense") {
        return Err(unsupported(".sparsity_config.format", sparse, "dense"));
    }
    let transforms = part(&part(own, "transform_config"), "config_groups");
    if let Some(first) = transforms.keys().next() {
        return Err(unsupported(".transform_config", first.clone(), "none: weights that are not turned"));
    }
    let all = text(own, "format");
    let mut described = Described { four_bits: false, block: None };
    for (name, group) in part(own, "config_groups") {
        let Some(group) = group.as_object() else { continue };
        let at = |key: &str| format!(".config_groups.{name}.{key}");
        let weights = part(group, "weights");
        if weights.is_empty() {
            continue;
        }
        let format = text(group, "format").or_else(|| all.clone()).unwrap_or_else(|| "missing".to_owned());
        if !FORMATS.contains(&&*format) {
            return Err(unsupported(&at("format"), format, FORMATS_READ));
        }
        let bits = integer(&weights, "num_bits");
        if format == "pack-quantized" && !matches!(bits, Some(4 | 8)) {
            let got = weights.get("num_bits").map_or_else(|| "missing".to_owned(), Value::to_string);
            return Err(unsupported(&at("weights.num_bits"), got, "4 or 8"));
        }
        let order = text(&weights, "actorder").filter(|order| order == "group" && bits == Some(8));
        if let Some(order) = order.filter(|_| format == "pack-quantized") {
            return Err(unsupported(&at("weights.actorder"), order, "static or none in eight bits"));
        }
        described.four_bits |= format.contains("pack") && bits == Some(4);
        if let Some(block) = weights.get("block_structure").filter(|block| !block.is_null()) {
            let own = super::block_of(block);
            let Some(own) = own.filter(|own| described.block.is_none_or(|first| first == *own)) else {
                return Err(unsupported(
                    &at("weights.block_structure"),
                    block.to_string(),
                    "[rows, columns], the same in all groups",
                ));
            };
            described.block = Some(own);
        }
    }
    Ok(described)
}

pub(super) fn has(weights: &WeightFolder, name: &str) -> bool {
    !weights.contains(name) && weights.contains(&format!("{name}_packed"))
}

pub(super) fn tensors(name: &str) -> impl Iterator<Item = String> {
    BESIDE.iter().map(move |what| format!("{name}{what}"))
}

/// How a matrix lies.
enum Kind {
    /// Even steps; inputs of a group.
    Int4 {
        group: usize,
        order: Option<Vec<u32>>,
        read: Dtype,
    },
    Mxfp4,
    Nvfp4,
}

/// `read` is what matrices with scales in float32 are read as.
fn kind(
    weights: &WeightFolder,
    name: &str,
    [rows, row]: [usize; 2],
    read: Dtype,
) -> Result<Kind, PackedFault> {
    let [packed, scale] = ["_packed", "_scale"].map(|what| format!("{name}{what}"));
    let (codes, scales) = (weights.info(&packed)?, weights.info(&scale)?);
    let wrong = |tensor: &str, got: String, expected: String| PackedFault::Tensor {
        tensor: tensor.to_owned(),
        got,
        expected,
    };
    match (codes.dtype, scales.dtype) {
        (Dtype::U8, Dtype::U8) => Ok(Kind::Mxfp4),
        (Dtype::U8, Dtype::F32) => Ok(Kind::Nvfp4),
        (Dtype::I32, dtype @ (Dtype::F32 | Dtype::Bf16 | Dtype::F16)) => {
            let groups = match scales.shape[..] {
                [own, groups] if own == rows && groups > 0 && row.is_multiple_of(groups) => groups,
                _ => {
                    let expected = format!("[{rows}, groups that share {row} inputs evenly]");
                    return Err(wrong(&scale, format!("{:?}", scales.shape), expected));
                }
            };
            let group = row / groups;
            let listed = format!("{name}_g_idx");
            let order = if weights.contains(&listed) {
                let list = tensor(weights, &listed, Dtype::I32, &[row])?;
                let list = list.as_slice::<i32>()?;
                // All of them -1 where none was found.
                if list.iter().all(|&own| own == -1) { None } else { gptq_order(&list, group, [rows, row])? }
            } else {
                None
            };
            let read = if dtype == Dtype::F32 { read } else { dtype };
            Ok(Kind::Int4 { group, order, read })
        }
        (codes, scales) => Err(wrong(
            &packed,
            format!("{codes} with scales in {scales}"),
            "int32 with scales in float32, bfloat16 or float16; uint8 with scales in uint8 or F8_E4M3"
                .to_owned(),
        )),
    }
}

pub(super) fn declared(
    weights: &WeightFolder,
    name: &str,
    shape: [usize; 2],
    read: Dtype,
) -> Result<Declared, PackedFault> {
    let (scheme, read) = match kind(weights, name, shape, read)? {
        Kind::Int4 { group, order, read } => (Scheme::Int4 { group, ordered: order.is_some() }, read),
        Kind::Mxfp4 => (Scheme::Mxfp4, Dtype::Bf16),
        Kind::Nvfp4 => (Scheme::Nvfp4, Dtype::Bf16),
    };
    Ok(Declared { quantization: Quantization { scheme, nested: false }, read })
}

pub(super) fn read(
    weights: &WeightFolder,
    name: &str,
    shape: [usize; 2],
    read: Dtype,
) -> Result<Quantized, PackedFault> {
    let [rows, row] = shape;
    let beside = |what: &str, dtype, shape: &[usize]| tensor(weights, &format!("{name}{what}"), dtype, shape);
    match kind(weights, name, shape, read)? {
        Kind::Int4 { group, order, .. } => {
            let codes = beside("_packed", Dtype::I32, &[rows, row.div_ceil(8)])?;
            let scales = weights.read(&format!("{name}_scale"))?.to_f32();
            let zero_points = if weights.contains(&format!("{name}_zero_point")) {
                Some(beside("_zero_point", Dtype::I32, &[rows.div_ceil(8), row.div_ceil(group)])?)
            } else {
                None
            };
            let zero_points = zero_points.as_ref().map(|words| words.as_slice::<i32>()).transpose()?;
            let parts = PackedRows {
                codes: &codes.as_slice::<i32>()?,
                zero_points: zero_points.as_deref(),
                scales: &scales,
            };
            Ok(Quantized::from_packed_rows(shape, group, parts, order)?)
        }
        Kind::Mxfp4 => {
            let codes = beside("_packed", Dtype::U8, &[rows, row / 2])?.bytes;
            let scales = beside("_scale", Dtype::U8, &[rows, row / Scheme::MXFP4_BLOCK])?.bytes;
            Ok(Quantized::from_mxfp4(shape, codes, scales)?)
        }
        Kind::Nvfp4 => {
            let codes = beside("_packed", Dtype::U8, &[rows, row / 2])?.bytes;
            let whole = beside("_global_scale", Dtype::F32, &[1])?.to_f32()[0];
            let scales = beside("_scale", Dtype::F32, &[rows, row / Scheme::NVFP4_BLOCK])?.to_f32();
            Ok(Quantized::from_nvfp4(shape, codes, scales.iter().map(|scale| scale / whole).collect())?)
        }
    }
}
