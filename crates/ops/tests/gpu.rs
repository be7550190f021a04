//! GPU bodies of operations against the host's kernels and references: dropout masks, dtypes, sums of squares, Adam, attention.

use std::sync::Arc;

use burn::tensor::{DType, IntDType, Tensor};
use burnish_core::random::{Stream, dropout_bits, dropout_row, dropout_threshold};
use burnish_ops::{
    Adam, AdamState, AnyTensor, AttentionShape, Documents, Dropout, HeadNorm, HeadOptions, Linear,
    LinearInput, LowRank, OpsError, gpu, reference, sum_of_squares,
};
use proptest::prelude::*;

use crate::case::{HALF, Input, assert_close, device, tensor, to_f64};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever integers the device has.
    #[test]
    fn a_mask_of_the_device_has_the_host_s_bits(
        seed in any::<u64>(),
        p in prop_oneof![Just(0.5_f32), 0.0_f32..0.999],
        rows in prop::collection::vec(any::<u64>(), 1..6),
        first_column in any::<u32>(),
        dim in 1_usize..70,
    ) {
        let key = Stream::new(seed, "site").dropout_key();
        let (keep, threshold) = (1.0 / (1.0 - p), dropout_threshold(p));
        let want: Vec<f32> = rows.iter().flat_map(|&row| {
            let key = dropout_row(key, row);
            (0..dim as u32).map(move |c| {
                if dropout_bits(key, first_column.wrapping_add(c)) >= threshold { keep } else { 0.0 }
            })
        }).collect();
        let tokens = rows.len();
        let dropout = Dropout { key, p, rows: Arc::new(rows), first_column };
        for int in [IntDType::I32, IntDType::I64] {
            let got = gpu::dropout_mask(&dropout, [0, tokens, dim], (&device(), DType::F32), int);
            prop_assert_eq!(AnyTensor::new(got).to_f32(), want.clone());
        }
    }
}

fn half(name: &'static str, shape: &[usize]) -> AnyTensor {
    AnyTensor::from_data(Input { dtype: DType::BF16, ..Input::new(name, shape, 0.3) }.values(), &device())
}

fn dtype(t: &AnyTensor) -> DType {
    t.to_data().dtype()
}

/// What lies behind a norm is read by attention and SwiGLU, which compute in it; sums are in f32, and so are the
/// gradients of parameters.
#[test]
fn only_what_is_behind_a_norm_is_narrow() {
    let (x, gamma) = (tensor("x", &[3, 8]).leaf(), tensor("gamma", &[8]).leaf());
    let weights = [half("w0", &[4, 8]).leaf(), half("w1", &[6, 8]).leaf()];
    let layers = weights.clone().map(Linear::new);
    let normed = LinearInput::RmsNorm { x: x.clone(), gamma: gamma.clone(), eps: 1e-6 };
    let behind = gpu::linears(&normed, &layers, None).unwrap();
    assert_eq!(dtype(&behind), DType::BF16);
    // Kernels of the processor give f32.
    assert_eq!((gpu::linears_dtype(&normed, &layers), normed.out_dtype(&layers)), (DType::BF16, DType::F32));
    let mut gradients = behind.rank::<2>().unwrap().sum().backward();
    for t in [&x, &gamma, &weights[0], &weights[1]] {
        assert_eq!(dtype(&t.take_gradient(&mut gradients).unwrap()), DType::F32);
    }
    let residual = tensor("residual", &[3, 10]);
    let wide = tensor("w1", &[6, 8]);
    for out in [
        gpu::linears(&normed, &layers, Some(&residual)),
        gpu::linears(&LinearInput::Plain(x.clone()), &layers, None),
        gpu::linears(&LinearInput::SwiGlu(half("gates", &[3, 16])), &layers, None),
        gpu::linears(&normed, &[layers[0].clone(), Linear::new(wide)], None),
    ] {
        assert_eq!(dtype(&out.unwrap()), DType::F32);
    }
}

/// An activation in 16 bits gets its gradient in them.
#[test]
fn gates_in_16_bits_are_the_gates_in_32() {
    let gates = half("gates", &[5, 12]);
    let (narrow, wide) = (gates.leaf(), gates.cast(burn::tensor::FloatDType::F32).leaf());
    let layer = Linear::new(tensor("w", &[4, 6]));
    let found = [&narrow, &wide].map(|x| {
        let out = gpu::linears(&LinearInput::SwiGlu(x.clone()), std::slice::from_ref(&layer), None).unwrap();
        let mut gradients = (out.rank::<2>().unwrap().powi_scalar(2)).sum().backward();
        (to_f64(&out), x.take_gradient(&mut gradients).unwrap())
    });
    assert_eq!(found[0].0, found[1].0);
    assert_eq!((dtype(&found[0].1), dtype(&found[1].1)), (DType::BF16, DType::F32));
    assert_close(&to_f64(&found[0].1), &to_f64(&found[1].1), 4e-3, "gradient");
}

#[test]
fn sums_of_squares_are_those_of_each_tensor() {
    let tensors = [tensor("a", &[3, 5]), tensor("b", &[10_001]), tensor("c", &[2, 3, 4096])];
    let none = AnyTensor::from_elements(Vec::<f32>::new(), &[0, 4], &device());
    let all = [&tensors[0], &none, &tensors[1], &tensors[2]];
    let got = gpu::sums_of_squares(&all);
    assert_eq!(got.len(), 4);
    for (got, t) in got.iter().zip(all) {
        let want = sum_of_squares(t);
        assert!((got - want).abs() <= 1e-6 * want, "{got} is not {want}");
    }
    assert!(gpu::sums_of_squares(&[]).is_empty());
}

#[test]
fn adam_is_the_kernel_s() {
    for decoupled in [true, false] {
        let zeros = || AnyTensor::new(Tensor::<2>::zeros([5, 27], &device()));
        let mut here = (tensor("master", &[5, 27]), None);
        let mut there = (here.0.clone(), AdamState { exp_avg: zeros(), exp_avg_sq: zeros() });
        for step in 1..=5 {
            let gradient = tensor(["g0", "g1"][step as usize % 2], &[5, 27]);
            let (lr, weight_decay) = (0.05, 0.1);
            let h = Adam {
                lr,
                beta1: 0.9,
                beta2: 0.99,
                eps: 1e-6,
                weight_decay,
                decoupled,
                step,
                grad_scale: 0.5,
            };
            let (p, state) = burnish_ops::adam_step(here.0, here.1, &gradient, &h);
            here = (p, Some(state));
            there = gpu::adam_steps(vec![(there.0, there.1, gradient.clone())], &h).remove(0);
            assert_eq!(there.0.shape(), [5, 27]);
            assert_close(&to_f64(&there.0), &to_f64(&here.0), 1e-6, &format!("step {step}"));
        }
    }
}

#[test]
fn attention_in_16_bits_is_that_in_32() {
    let shape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        scale: 0.35,
        softcap: None,
        slopes: Arc::default(),
        window: None,
        parents: Arc::default(),
        compute: Default::default(),
    };
    let documents = Documents::from(vec![0..7, 7..20]);
    let (narrow, upstream) = (half("qkv", &[20, 64]), tensor("upstream", &[20, 32]));
    let found = [true, false].map(|is_narrow| {
        let qkv = if is_narrow { narrow.leaf() } else { narrow.cast(burn::tensor::FloatDType::F32).leaf() };
        let (q, k) = (tensor("q_norm", &[8]).leaf(), tensor("k_norm", &[8]).leaf());
        let norm = HeadNorm { q: q.clone(), k: k.clone(), eps: 1e-6 };
        let attention = if is_narrow { gpu::attention } else { reference::attention };
        let out = attention(&qkv, &shape, &documents, None, Some(&norm), None).unwrap();
        let upstream = upstream.rank::<2>().unwrap().cast(out.rank::<2>().unwrap().dtype());
        let mut gradients = (out.rank::<2>().unwrap() * upstream).sum().backward();
        let mut all = vec![out];
        all.extend([qkv, q, k].map(|t| t.take_gradient(&mut gradients).unwrap()));
        all
    });
    let dtypes: Vec<DType> = found[0].iter().map(dtype).collect();
    assert_eq!(dtypes, [DType::BF16, DType::BF16, DType::F32, DType::F32]);
    for (got, want) in found[0].iter().zip(&found[1]) {
        assert_close(&to_f64(got), &to_f64(want), HALF, "attention");
    }
}

type Found = Result<AnyTensor, OpsError>;
type Linears = fn(&LinearInput, &[Linear], Option<&AnyTensor>) -> Found;
type Attend = fn(
    &AnyTensor,
    &AttentionShape,
    &Documents,
    Option<&burnish_ops::Rotary>,
    Option<&HeadNorm>,
    Option<&AnyTensor>,
) -> Found;

struct Bodies {
    linears: Linears,
    attention: Attend,
}

/// A block with weights in bf16 and adapters in f32, then the head: every dtype meets every other on the tape.
#[test]
fn a_block_in_16_bits_is_that_in_32() {
    let shape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        scale: 0.5,
        softcap: None,
        slopes: Arc::default(),
        window: None,
        parents: Arc::default(),
        compute: Default::default(),
    };
    let documents = Documents::from(vec![0..5, 5..12]);
    let names: [(&str, [usize; 2]); 5] =
        [("qkv", [32, 16]), ("o", [16, 16]), ("gate_up", [48, 16]), ("down", [16, 24]), ("head", [40, 16])];
    let run = |bodies: &Bodies, on_device: bool| {
        let x = tensor("x", &[12, 16]).leaf();
        let gamma =
            AnyTensor::from_data(Input { shift: 1.0, ..Input::new("gamma", &[16], 0.1) }.values(), &device())
                .leaf();
        let weights = names.map(|(name, shape)| half(name, &shape).leaf());
        let (a, b) = (tensor("a", &[2, 16]).leaf(), tensor("b", &[32, 2]).leaf());
        let low_rank =
            LowRank { a: a.clone(), b: b.clone(), b_bias: None, scale: 0.1, dropout: None, magnitude: None };
        let [qkv, o, gate_up, down, head] = weights.clone().map(Linear::new);
        let qkv = Linear { low_rank: Some(low_rank), ..qkv };
        let normed = |x: &AnyTensor| LinearInput::RmsNorm { x: x.clone(), gamma: gamma.clone(), eps: 1e-6 };
        let run = || -> Result<AnyTensor, OpsError> {
            let h = (bodies.linears)(&normed(&x), &[qkv], None)?;
            let h = (bodies.attention)(&h, &shape, &documents, None, None, None)?;
            let x = (bodies.linears)(&LinearInput::Plain(h), &[o], Some(&x))?;
            let h = (bodies.linears)(&normed(&x), &[gate_up], None)?;
            let x = (bodies.linears)(&LinearInput::SwiGlu(h), &[down], Some(&x))?;
            let targets = Arc::new((0..12).map(|i| i * 7 % 40).collect());
            let options = HeadOptions::default();
            let head_log_probs = if on_device { gpu::head_log_probs } else { reference::head_log_probs };
            Ok(head_log_probs(&x, &head, None, &targets, options)?.0)
        };
        let out = run().unwrap();
        let mut gradients = out.rank::<2>().unwrap().sum().backward();
        let mut all = vec![out];
        let leaves = [x, gamma, a, b].into_iter().chain(weights);
        all.extend(leaves.map(|t| t.take_gradient(&mut gradients).unwrap()));
        all
    };
    let got = run(&Bodies { linears: gpu::linears, attention: gpu::attention }, true);
    let want = run(&Bodies { linears: reference::linears, attention: reference::attention }, false);
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_eq!(dtype(got), DType::F32);
        // A dozen roundings in a row.
        assert_close(&to_f64(got), &to_f64(want), 2.0 * HALF, &format!("tensor {i}"));
    }
}
