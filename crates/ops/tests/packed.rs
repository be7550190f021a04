//! Weights in fewer bits: bit for bit what the same weights give as tensors, on kernels and on plain operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{DType, FloatDType};
use burnish_core::random::Stream;
use burnish_core::{Activation, Compute, Dtype, ExpertGate, PackedRows};
use burnish_ops::{
    AnyTensor, ExpertLayer, Experts, Linear, LinearInput, LowRank, Routing, WIDENED_TOGETHER, column_norms,
    gpu, linears, linears_decode, row_norms,
};

use crate::case::device;

/// A matrix of which a test counts what is read of it.
#[derive(Debug)]
struct Matrix {
    row: usize,
    values: Vec<f32>,
    dtype: Dtype,
}

impl PackedRows for Matrix {
    fn shape(&self) -> [usize; 2] {
        [self.values.len() / self.row, self.row]
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn read(&self, row: usize, column: usize, out: &mut [f32]) {
        let at = row * self.row + column;
        assert!(column + out.len() <= self.row, "pieces lie in rows");
        out.copy_from_slice(&self.values[at..at + out.len()]);
    }

    fn bytes(&self) -> Vec<u8> {
        match self.dtype {
            Dtype::Bf16 => self.values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
            _ => self.values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }
}

/// A matrix that counts the elements that are read of it, and is never widened as a whole.
#[derive(Debug)]
struct Counted(Matrix, Arc<AtomicUsize>);

impl PackedRows for Counted {
    fn shape(&self) -> [usize; 2] {
        self.0.shape()
    }

    fn dtype(&self) -> Dtype {
        self.0.dtype
    }

    fn read(&self, row: usize, column: usize, out: &mut [f32]) {
        self.1.fetch_add(out.len(), Ordering::Relaxed);
        self.0.read(row, column, out);
    }

    fn bytes(&self) -> Vec<u8> {
        panic!("all rows are widened")
    }
}

fn random(name: &str, shape: [usize; 2]) -> Vec<f32> {
    let stream = Stream::new(3, name);
    (0..(shape[0] * shape[1]) as u64).map(|i| stream.normal(i) / (shape[1] as f32).sqrt()).collect()
}

fn tensor(name: &str, shape: [usize; 2]) -> AnyTensor {
    AnyTensor::from_elements(random(name, shape), &shape, &device())
}

/// The same weight as a tensor and in fewer bits.
fn weights(shape: [usize; 2], dtype: Dtype) -> [AnyTensor; 2] {
    let dense = tensor("w", shape);
    let dense = if dtype == Dtype::Bf16 { dense.cast(FloatDType::BF16) } else { dense };
    let matrix = Matrix { row: shape[1], values: dense.to_f32(), dtype };
    [dense, AnyTensor::packed(Arc::new(matrix), &shape, &device())]
}

/// Output and gradients of `x`, `a` and `b`.
fn run(weight: &AnyTensor, tokens: usize, compute: Compute, on_gpu: bool) -> Vec<Vec<f32>> {
    let [out, dim] = weight.shape()[..] else { panic!("a matrix") };
    let [x, a, b] =
        [("x", [tokens, dim]), ("a", [4, dim]), ("b", [out, 4])].map(|(name, s)| tensor(name, s).leaf());
    let low =
        LowRank { a: a.clone(), b: b.clone(), b_bias: None, magnitude: None, scale: 0.5, dropout: None };
    let layer = Linear { weight: weight.clone(), bias: None, low_rank: Some(low), compute };
    let input = LinearInput::Plain(x.clone());
    let y = if on_gpu {
        gpu::linears(&input, &[layer], None).unwrap()
    } else {
        linears(&input, &[layer], None).unwrap()
    };
    let square = y.rank::<2>().unwrap();
    let mut gradients = (square.clone() * square).sum().backward();
    let mut all = vec![y.to_f32()];
    all.extend([x, a, b].map(|leaf| leaf.take_gradient(&mut gradients).unwrap().to_f32()));
    all
}

#[test]
fn products_and_gradients_are_those_of_the_tensor() {
    // Few tokens and many; rows shorter and longer than a piece, in odd numbers too.
    for (tokens, out, dim) in [(3, 5, 7), (90, 70, 513), (20, 33, 1100), (130, 600, 48)] {
        for (dtype, compute) in
            [(Dtype::F32, Compute::Fp32), (Dtype::Bf16, Compute::Fp32), (Dtype::Bf16, Compute::Bf16)]
        {
            let [dense, packed] = weights([out, dim], dtype);
            assert_eq!((packed.dtype(), packed.shape()), (dense.dtype(), dense.shape()));
            let what = format!("{tokens} x {out} x {dim}, {dtype}, {compute:?}");
            assert_eq!(run(&packed, tokens, compute, false), run(&dense, tokens, compute, false), "{what}");
        }
        let [dense, packed] = weights([out, dim], Dtype::F32);
        assert_eq!(run(&packed, 3, Compute::Fp32, true), run(&dense, 3, Compute::Fp32, true));
    }
}

/// Experts on plain operations: of a stack in fewer bits each expert that has tokens is widened by itself, once a pass.
#[test]
fn experts_are_widened_one_by_one() {
    let (tokens, hidden, inner, count) = (6, 12, 7, 4);
    let routing = Routing {
        weights: tensor("weights", [tokens, 2]),
        experts: (0..tokens as u32 * 2).map(|i| [3, 1][i as usize % 2]).collect::<Vec<_>>().into(),
    };
    let run = |is_packed: bool| {
        let read = Arc::new(AtomicUsize::new(0));
        let stack = |name: &str, [out, input]: [usize; 2]| {
            let values = random(name, [count * out, input]);
            let matrix = Counted(Matrix { row: input, values, dtype: Dtype::F32 }, read.clone());
            let shape = [count, out, input];
            let weight = match is_packed {
                true => AnyTensor::packed(Arc::new(matrix), &shape, &device()),
                false => AnyTensor::from_elements(matrix.0.values, &shape, &device()),
            };
            ExpertLayer { weight, bias: None, low_rank: None }
        };
        let experts = Experts {
            gate_up: stack("up", [2 * inner, hidden]),
            down: stack("down", [hidden, inner]),
            gate: ExpertGate::Halves(Activation::Silu),
            compute: Compute::Fp32,
            widened_together: WIDENED_TOGETHER,
        };
        let x = tensor("x", [tokens, hidden]).leaf();
        let y = gpu::experts(&x, &routing, &experts).unwrap();
        let mut gradients = y.rank::<2>().unwrap().sum().backward();
        let gradient = x.take_gradient(&mut gradients).unwrap().to_f32();
        (y.to_f32(), gradient, read.load(Ordering::Relaxed))
    };
    let (dense, packed) = (run(false), run(true));
    assert_eq!((packed.0, packed.1), (dense.0, dense.1));
    assert_eq!(packed.2, 2 * 2 * 3 * inner * hidden);
}

#[test]
fn what_else_reads_a_weight_has_its_values() {
    for (out, dim) in [(9, 21), (70, 600)] {
        let [dense, packed] = weights([out, dim], Dtype::Bf16);
        let (a, b) = (tensor("a", [4, dim]), tensor("b", [out, 4]));
        let same = |name: &str, of: &dyn Fn(&AnyTensor) -> AnyTensor| {
            assert_eq!(of(&packed).to_f32(), of(&dense).to_f32(), "{name}");
        };
        same("row norms", &|w| row_norms(w, &a, &b, 0.5).unwrap());
        let (a, b) = (tensor("a", [4, out]), tensor("b", [dim, 4]));
        same("column norms", &|w| column_norms(w, &a, &b, 0.5).unwrap());
        for tokens in [1, 5] {
            let input = LinearInput::Plain(tensor("x", [tokens, dim]));
            same("decoding", &|w| linears_decode(&input, &[Linear::new(w.clone())], None).unwrap());
        }
        let hidden = tensor("x", [6, dim]);
        let logits = |w: &AnyTensor| {
            burnish_ops::head_logits(&hidden, &Linear::new(w.clone()), burnish_core::HeadOptions::default())
                .unwrap()
        };
        assert_eq!(logits(&packed), logits(&dense));
        assert_eq!(packed.to_f32(), dense.to_f32());
        assert_eq!(packed.plain().rank::<2>().unwrap().dtype(), DType::BF16);
        assert!(!packed.is_tracked() && packed.as_packed().is_some() && packed.is_on_host());
    }
}
