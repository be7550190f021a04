//! bitsandbytes' tensors of a matrix.

use burnish_core::{Dtype, Quantization, Scheme};
use burnish_quant::{Quantized, Scales, blockwise, code_values};
use burnish_weight_files::WeightFolder;
use serde::Deserialize;

use super::{Declared, PackedFault, tensor};

/// What stands beside a matrix' name in four bits, besides one of [`STATES`].
const BESIDE: [&str; 4] = [".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"];
/// What describes four bits, by scheme.
pub(super) const STATES: [(Scheme, &str); 2] =
    [(Scheme::Nf4, ".quant_state.bitsandbytes__nf4"), (Scheme::Fp4, ".quant_state.bitsandbytes__fp4")];
/// What stands beside the module's name in eight bits.
pub(super) const ROWS: &str = ".SCB";
pub(super) const FORMAT: &str = ".weight_format";

/// The longest description that is read.
const MOST: usize = 4096;

/// What a matrix of four bits is.
#[derive(Deserialize)]
struct State {
    quant_type: String,
    blocksize: usize,
    dtype: String,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_dtype: Option<String>,
    nested_offset: Option<f64>,
}

pub(super) fn kind(weights: &WeightFolder, name: &str) -> Option<Scheme> {
    if !weights.contains(name) {
        return None;
    }
    let four = STATES.iter().find(|(_, state)| weights.contains(&format!("{name}{state}")));
    let eight = || weights.contains(&of_module(name, ROWS)).then_some(Scheme::Int8);
    four.map(|(scheme, _)| *scheme).or_else(eight)
}

/// What stands beside a matrix' module.
pub(super) fn of_module(name: &str, what: &str) -> String {
    format!("{}{what}", name.strip_suffix(".weight").unwrap_or(name))
}

pub(super) fn tensors(name: &str) -> impl Iterator<Item = String> {
    let beside = BESIDE.into_iter().chain(STATES.map(|(_, state)| state));
    let beside = beside.map(move |what| format!("{name}{what}"));
    std::iter::once(name.to_owned()).chain(beside).chain([ROWS, FORMAT].map(|what| of_module(name, what)))
}

/// The description of a matrix in four bits.
fn state(
    weights: &WeightFolder,
    name: &str,
    scheme: Scheme,
    shape: [usize; 2],
) -> Result<(State, Dtype), PackedFault> {
    let (_, beside) = STATES.iter().find(|(own, _)| *own == scheme).expect("invariant: in four bits");
    let full = format!("{name}{beside}");
    let wrong =
        |key, got: String, expected: String| PackedFault::State { tensor: full.clone(), key, got, expected };
    let info = weights.info(&full)?;
    let bytes = info.shape.iter().product::<usize>();
    if info.dtype != Dtype::U8 || info.shape.len() != 1 || bytes > MOST {
        return Err(PackedFault::Tensor {
            tensor: full.clone(),
            got: format!("{} {:?}", info.dtype, info.shape),
            expected: format!("up to {MOST} bytes of JSON"),
        });
    }
    let text = weights.read(&full)?.bytes;
    let state: State = serde_json::from_slice(&text)
        .map_err(|e| wrong("the JSON", e.to_string(), "bitsandbytes' quant_state".to_owned()))?;
    let named = if scheme == Scheme::Nf4 { "nf4" } else { "fp4" };
    if state.quant_type != named {
        return Err(wrong("quant_type", state.quant_type, named.to_owned()));
    }
    if state.blocksize != Quantization::BLOCK {
        return Err(wrong("blocksize", state.blocksize.to_string(), Quantization::BLOCK.to_string()));
    }
    if state.shape != shape {
        return Err(wrong("shape", format!("{:?}", state.shape), format!("{shape:?}")));
    }
    let read = match state.dtype.parse() {
        Ok(dtype @ (Dtype::F32 | Dtype::Bf16 | Dtype::F16)) => dtype,
        _ => return Err(wrong("dtype", state.dtype, "float32, bfloat16 or float16".to_owned())),
    };
    let nested = state.nested_blocksize.is_some() || state.nested_offset.is_some();
    if nested {
        let size = state.nested_blocksize.unwrap_or(0);
        if size != Quantization::NESTED_BLOCK {
            return Err(wrong("nested_blocksize", size.to_string(), Quantization::NESTED_BLOCK.to_string()));
        }
        let dtype = state.nested_dtype.clone().unwrap_or_default();
        if dtype != "float32" {
            return Err(wrong("nested_dtype", dtype, "float32".to_owned()));
        }
        if !state.nested_offset.is_some_and(|offset| (offset as f32).is_finite()) {
            let got = format!("{:?}", state.nested_offset);
            return Err(wrong("nested_offset", got, "a finite number".to_owned()));
        }
    }
    Ok((state, read))
}

pub(super) fn declared(
    weights: &WeightFolder,
    name: &str,
    shape: [usize; 2],
    read: Dtype,
) -> Result<Declared, PackedFault> {
    let scheme = kind(weights, name).expect("invariant: it is quantised");
    if scheme == Scheme::Int8 {
        return Ok(Declared { quantization: Quantization { scheme, nested: false }, read });
    }
    let (state, read) = state(weights, name, scheme, shape)?;
    let nested = state.nested_offset.is_some();
    Ok(Declared { quantization: Quantization { scheme, nested }, read })
}

pub(super) fn read(weights: &WeightFolder, name: &str, shape: [usize; 2]) -> Result<Quantized, PackedFault> {
    let scheme = kind(weights, name).expect("invariant: it is quantised");
    let [rows, row] = shape;
    if scheme == Scheme::Int8 {
        let codes = tensor(weights, name, Dtype::I8, &[rows, row])?;
        let scales = tensor(weights, &of_module(name, ROWS), Dtype::F32, &[rows])?;
        let format = of_module(name, FORMAT);
        if weights.contains(&format) && tensor(weights, &format, Dtype::U8, &[])?.bytes != [0] {
            let (got, expected) = ("another".to_owned(), "0 (rows)".to_owned());
            return Err(PackedFault::State { tensor: format, key: "the layout", got, expected });
        }
        return Ok(Quantized::from_rows(shape, codes.bytes, scales.to_f32())?);
    }
    let (state, _) = state(weights, name, scheme, shape)?;
    // The elements may be declared as any type (`bnb_4bit_quant_storage`): their bytes count.
    let info = weights.info(name)?;
    let expected = rows.checked_mul(row).map(|elements| elements.div_ceil(2));
    let bytes = info.shape.iter().try_fold(info.dtype.bytes(), |bytes, &dim| bytes.checked_mul(dim));
    if expected.is_none() || bytes != expected {
        return Err(PackedFault::Tensor {
            tensor: name.to_owned(),
            got: format!("{} {:?}", info.dtype, info.shape),
            expected: format!("{} bytes, two elements to each", expected.unwrap_or(usize::MAX)),
        });
    }
    let blocks = (rows * row).div_ceil(Quantization::BLOCK);
    let beside =
        |what: &str, dtype, length: usize| tensor(weights, &format!("{name}{what}"), dtype, &[length]);
    same_map(weights, &format!("{name}.quant_map"), &code_values(scheme))?;
    let scales = match state.nested_offset {
        None => Scales::Plain(beside(".absmax", Dtype::F32, blocks)?.to_f32()),
        Some(offset) => {
            let map: [f32; 256] = std::array::from_fn(|code| blockwise::value(code as u8, true));
            same_map(weights, &format!("{name}.nested_quant_map"), &map)?;
            let groups = blocks.div_ceil(Quantization::NESTED_BLOCK);
            Scales::Nested {
                codes: beside(".absmax", Dtype::U8, blocks)?.bytes,
                scales: beside(".nested_absmax", Dtype::F32, groups)?.to_f32(),
                offset: offset as f32,
            }
        }
    };
    Ok(Quantized::from_blocks(scheme, shape, weights.read(name)?.bytes, scales)?)
}

/// Fails if codes stand for other values than they are computed with.
fn same_map(weights: &WeightFolder, name: &str, expected: &[f32]) -> Result<(), PackedFault> {
    let got = tensor(weights, name, Dtype::F32, &[expected.len()])?.to_f32();
    match got.iter().zip(expected).position(|(got, expected)| (got - expected).abs() > 1e-7 || got.is_nan()) {
        None => Ok(()),
        Some(at) => Err(PackedFault::State {
            tensor: name.to_owned(),
            key: "a value",
            got: format!("{} for code {at}", got[at]),
            expected: expected[at].to_string(),
        }),
    }
}
