//! Linears: inputs, adapters, dropout, magnitudes, weights in f32 and bf16.

use std::sync::Arc;

use burn::tensor::DType;
use burnish_core::random::Stream;
use burnish_core::{Quantization, Scheme};
use burnish_ops::{
    Activation, AnyTensor, Dropout, Linear, LinearInput, LowRank, Magnitude, linears, reference,
};

use super::{Bound, check, name_of};
use crate::Check;
use crate::case::{Body, Case, Input};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reads {
    Plain,
    RmsNorm,
    SwiGlu,
    LayerNorm,
    /// GELU without a gate.
    Gelu,
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    out: usize,
    bias: bool,
    rank: usize,
    dropout: f32,
    magnitude: bool,
    /// Whether the weight itself trains.
    trains: bool,
    /// How the weight rests in fewer bits.
    packed: Option<Quantization>,
}

const BARE: Layer =
    Layer { out: 96, bias: false, rank: 0, dropout: 0.0, magnitude: false, trains: true, packed: None };
const LORA: Layer = Layer { rank: 8, trains: false, ..BARE };

fn case(tokens: usize, dim: usize, dtype: DType, reads: Reads, layers: &[Layer], residual: bool) -> Case {
    let width = if reads == Reads::SwiGlu { 2 * dim } else { dim };
    let mut inputs = vec![Input::new("x", &[tokens, width], 1.0)];
    if reads == Reads::LayerNorm {
        inputs.push(Input::new("gamma", &[dim], 0.3).shifted(1.0));
        inputs.push(Input::new("beta", &[dim], 0.3));
    }
    if reads == Reads::RmsNorm {
        inputs.push(Input::new("gamma", &[dim], 0.3).shifted(1.0));
    }
    let scale = 1.0 / (dim as f32).sqrt();
    for (i, layer) in layers.iter().enumerate() {
        let weight = Input::new(["w0", "w1", "w2"][i], &[layer.out, dim], scale).held(dtype);
        inputs.push(match layer.packed {
            Some(packed) => weight.packed(packed),
            None if layer.trains => weight,
            None => weight.frozen(),
        });
        if layer.bias {
            inputs.push(Input::new(["bias0", "bias1", "bias2"][i], &[layer.out], 0.5));
        }
        if layer.rank > 0 {
            inputs.push(Input::new(["a0", "a1", "a2"][i], &[layer.rank, dim], scale));
            inputs.push(Input::new(["b0", "b1", "b2"][i], &[layer.out, layer.rank], 0.5));
            if layer.magnitude {
                inputs.push(Input::new(["m0", "m1", "m2"][i], &[layer.out], 0.5).shifted(1.5));
                inputs.push(Input::new("norm", &[layer.out], 0.2).shifted(1.5).frozen());
            }
        }
    }
    if residual {
        inputs.push(Input::new("residual", &[tokens, layers.iter().map(|l| l.out).sum()], 1.0));
    }
    let layers = layers.to_vec();
    let rows: Arc<Vec<u64>> = Arc::new((0..tokens as u64).map(|t| (1 << 33) + 7 * t % 1000).collect());
    let run = move |body: Body, tensors: &[AnyTensor]| {
        let mut tensors = tensors.iter().cloned();
        let mut next = || tensors.next().expect("invariant: as many tensors as inputs");
        let input = match reads {
            Reads::Plain => LinearInput::Plain(next()),
            Reads::SwiGlu => LinearInput::SwiGlu(next()),
            Reads::RmsNorm => LinearInput::RmsNorm { x: next(), gamma: next(), eps: 1e-5 },
            Reads::LayerNorm => {
                LinearInput::LayerNorm { x: next(), gamma: next(), beta: Some(next()), eps: 1e-5 }
            }
            Reads::Gelu => LinearInput::Activated { x: next(), activation: Activation::Gelu, gated: false },
        };
        let layers: Vec<Linear> = layers
            .iter()
            .enumerate()
            .map(|(i, layer)| Linear {
                compute: Default::default(),
                weight: next(),
                bias: layer.bias.then(&mut next),
                low_rank: (layer.rank > 0).then(|| LowRank {
                    a: next(),
                    b: next(),
                    b_bias: None,
                    scale: 0.75,
                    dropout: (layer.dropout > 0.0).then(|| Dropout {
                        key: Stream::new(3, "site").at(i as u64).dropout_key(),
                        p: layer.dropout,
                        rows: rows.clone(),
                        first_column: 5,
                    }),
                    magnitude: layer.magnitude.then(|| Magnitude { value: next(), norm: next() }),
                }),
            })
            .collect();
        let residual = residual.then(&mut next);
        match body {
            Body::Device => linears(&input, &layers, residual.as_ref()),
            Body::Reference => reference::linears(&input, &layers, residual.as_ref()),
        }
    };
    Case { inputs, run: Box::new(run) }
}

pub(super) fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    let biased = Layer { bias: true, out: 64, ..BARE };
    let dropped = Layer { dropout: 0.4, bias: true, ..LORA };
    let dora = Layer { magnitude: true, ..LORA };
    let kinds: [(&str, Reads, Vec<Layer>, bool); 10] = [
        ("plain", Reads::Plain, vec![BARE], false),
        ("norm, three side by side", Reads::RmsNorm, vec![BARE, biased, biased], false),
        ("SwiGLU, residual", Reads::SwiGlu, vec![BARE], true),
        ("LayerNorm, biases", Reads::LayerNorm, vec![biased, BARE], false),
        ("GELU, residual", Reads::Gelu, vec![biased], true),
        ("LoRA", Reads::RmsNorm, vec![LORA, LORA, LORA], false),
        ("LoRA, dropout, bias", Reads::Plain, vec![dropped], true),
        ("LoRA on SwiGLU, residual", Reads::SwiGlu, vec![LORA], true),
        ("DoRA", Reads::RmsNorm, vec![dora, LORA], false),
        ("DoRA, dropout", Reads::Plain, vec![Layer { dropout: 0.25, ..dora }], true),
    ];
    let packed = |scheme: Scheme, nested: bool| {
        let quantization = Quantization { scheme, nested };
        move |layer: Layer| Layer { packed: Some(quantization), trains: false, ..layer }
    };
    let (nf4, fp4) = (packed(Scheme::Nf4, true), packed(Scheme::Fp4, false));
    let int8 = packed(Scheme::Int8, false);
    let in_few_bits: [(&str, Reads, Vec<Layer>, bool); 5] = [
        ("LoRA on NF4", Reads::RmsNorm, vec![nf4(LORA), nf4(LORA), nf4(LORA)], false),
        ("NF4 and FP4 side by side", Reads::RmsNorm, vec![nf4(BARE), fp4(biased)], false),
        ("LoRA on FP4, dropout, residual", Reads::SwiGlu, vec![fp4(dropped)], true),
        ("LoRA on int8, residual", Reads::Gelu, vec![int8(LORA)], true),
        ("DoRA on int8", Reads::Plain, vec![int8(dora)], false),
    ];
    // Enough rows for adapters of one input to be multiplied together, and outputs of which kernels tell each other's and not.
    let wide = |out: usize| Layer { out, ..LORA };
    let plain = |out: usize| Layer { out, ..BARE };
    let frozen = |out: usize| Layer { trains: false, ..plain(out) };
    for (name, reads, layers, residual, [tokens, dim]) in [
        ("LoRA of one input", Reads::RmsNorm, vec![wide(192), wide(128), wide(80)], false, [1040, 136]),
        ("LoRA of two on one input", Reads::RmsNorm, vec![wide(136), wide(72)], false, [1040, 136]),
        ("LoRA of one input, residual", Reads::SwiGlu, vec![wide(96)], true, [1040, 136]),
        // Tiles of warpgroups whose edges are not filled, to which something is added: small ones, and large.
        ("LoRA, residual", Reads::SwiGlu, vec![wide(328)], true, [520, 264]),
        ("plain, residual", Reads::Plain, vec![plain(200)], true, [264, 328]),
        ("frozen, residual", Reads::Plain, vec![frozen(7688)], true, [1040, 64]),
    ] {
        let title = format!("linears {name}, {}, {tokens} x {dim}", name_of(DType::BF16));
        all.push(check(title, Bound::of(DType::BF16), move || {
            case(tokens, dim, DType::BF16, reads, &layers, residual)
        }));
    }
    // Tokens and widths on both sides of tiles: few, odd, and enough for tensor cores.
    const SIZES: [(usize, usize); 3] = [(3, 19), (130, 64), (512, 256)];
    let in_few_bits = in_few_bits.into_iter().map(|kind| (kind, [SIZES[0], (8, 128), SIZES[2]]));
    for ((name, reads, layers, residual), sizes) in
        kinds.into_iter().map(|kind| (kind, SIZES)).chain(in_few_bits)
    {
        for dtype in [DType::F32, DType::BF16] {
            for (tokens, dim) in sizes {
                let layers = layers.clone();
                let title = format!("linears {name}, {}, {tokens} x {dim}", name_of(dtype));
                all.push(check(title, Bound::of(dtype), move || {
                    case(tokens, dim, dtype, reads, &layers, residual)
                }));
            }
        }
    }
    all
}
