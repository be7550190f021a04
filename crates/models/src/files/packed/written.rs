//! Matrices as bitsandbytes stores them, on their way into a folder.

use std::collections::BTreeMap;

use burnish_core::{Dtype, Quantization, Scheme};
use burnish_quant::{Quantized, Scales, blockwise, code_values};
use burnish_weight_files::TensorSpec;
use serde_json::{Value, json};

use super::bitsandbytes::{FORMAT, ROWS, STATES, of_module};

/// Bytes of the longest offset of double quantisation, as a number of JSON.
const OFFSET: usize = 24;

/// A matrix that is written.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    /// `….weight`.
    pub(crate) name: String,
    pub(crate) shape: [usize; 2],
    /// What it was quantised from.
    pub(crate) dtype: Dtype,
}

/// What says how a matrix in four bits is read. Its length is known before the offset is: readers pass over what stands
/// behind JSON.
fn state(matrix: &Matrix, quantization: Quantization, offset: Option<f32>) -> Vec<u8> {
    let scheme = quantization.scheme;
    let [rows, row] = matrix.shape;
    let dtype = matrix.dtype;
    let mut text = format!(
        r#"{{"quant_type": "{scheme}", "blocksize": {}, "dtype": "{dtype}", "shape": [{rows}, {row}]"#,
        Quantization::BLOCK
    );
    let mut length = text.len() + 1;
    if quantization.nested {
        text += &format!(
            r#", "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": "#,
            Quantization::NESTED_BLOCK
        );
        length = text.len() + OFFSET + 1;
        text += &Value::from(f64::from(offset.unwrap_or(0.0))).to_string();
    }
    text.push('}');
    let mut bytes = text.into_bytes();
    bytes.resize(length.max(bytes.len()), b' ');
    bytes
}

/// The tensors that a matrix becomes.
pub(crate) fn specs(matrix: &Matrix, quantization: Quantization) -> Vec<TensorSpec> {
    let Matrix { name, shape: [rows, row], .. } = matrix;
    let spec = |what: &str, dtype, shape: &[usize]| TensorSpec::new(format!("{name}{what}"), dtype, shape);
    let Some((_, of_state)) = STATES.iter().find(|(scheme, _)| *scheme == quantization.scheme) else {
        return vec![
            spec("", Dtype::I8, &[*rows, *row]),
            TensorSpec::new(of_module(name, ROWS), Dtype::F32, &[*rows]),
            TensorSpec::new(of_module(name, FORMAT), Dtype::U8, &[]),
        ];
    };
    let elements = rows * row;
    let blocks = elements.div_ceil(Quantization::BLOCK);
    let scales = if quantization.nested { Dtype::U8 } else { Dtype::F32 };
    let mut specs = vec![
        spec("", Dtype::U8, &[elements.div_ceil(2), 1]),
        spec(".absmax", scales, &[blocks]),
        spec(".quant_map", Dtype::F32, &[16]),
        spec(of_state, Dtype::U8, &[state(matrix, quantization, None).len()]),
    ];
    if quantization.nested {
        specs.push(spec(".nested_absmax", Dtype::F32, &[blocks.div_ceil(Quantization::NESTED_BLOCK)]));
        specs.push(spec(".nested_quant_map", Dtype::F32, &[256]));
    }
    specs
}

/// The bytes of those tensors, by name.
pub(crate) fn bytes(matrix: &Matrix, quantized: &Quantized) -> BTreeMap<String, Vec<u8>> {
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let quantization = quantized.quantization();
    let name = &matrix.name;
    let mut all = BTreeMap::from([(name.clone(), quantized.codes().to_vec())]);
    let mut put = |what: &str, bytes: Vec<u8>| all.insert(format!("{name}{what}"), bytes);
    let Some((_, of_state)) = STATES.iter().find(|(scheme, _)| *scheme == quantization.scheme) else {
        if let Scales::Plain(scales) = quantized.scales() {
            all.insert(of_module(name, ROWS), floats(&scales));
        }
        all.insert(of_module(name, FORMAT), vec![0]);
        return all;
    };
    put(".quant_map", floats(&code_values(quantization.scheme)));
    let offset = match quantized.scales() {
        Scales::Plain(scales) => {
            put(".absmax", floats(&scales));
            None
        }
        Scales::Nested { codes, scales, offset } => {
            put(".absmax", codes);
            put(".nested_absmax", floats(&scales));
            let map: Vec<f32> = (0..=u8::MAX).map(|code| blockwise::value(code, true)).collect();
            put(".nested_quant_map", floats(&map));
            Some(offset)
        }
    };
    put(of_state, state(matrix, quantization, offset));
    all
}

/// `quantization_config` as Transformers writes it.
pub(crate) fn config(quantization: Quantization, compute: Dtype) -> Value {
    let eight = quantization.scheme == Scheme::Int8;
    // Transformers' default, where there are none.
    let kind = if quantization.scheme == Scheme::Nf4 { "nf4" } else { "fp4" };
    json!({
        "_load_in_4bit": !eight,
        "_load_in_8bit": eight,
        "bnb_4bit_compute_dtype": compute.name(),
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": quantization.nested && !eight,
        "llm_int8_enable_fp32_cpu_offload": false,
        "llm_int8_has_fp16_weight": false,
        "llm_int8_skip_modules": null,
        "llm_int8_threshold": 6.0,
        "load_in_4bit": !eight,
        "load_in_8bit": eight,
        "quant_method": "bitsandbytes",
    })
}
