//! A transformer block by hand: fused norms and linears, attention with per-head norms, SwiGLU, adapters on all seven
//! linears. Its parameters are a table of global shapes; a rank makes its part of each.

use std::sync::{Arc, Mutex};

use burn::tensor::{Device, Tensor};
use burnish_comm::Traffic;
use burnish_core::random::Stream;
use burnish_ops::{
    AnyTensor, AttentionShape, HeadNorm, Linear, LinearInput, LowRank, OpsError, Rotary, Weights, attention,
    linears, segment,
};
use burnish_tp::{Gradient, HeadSplit, LinearPart, PartialGrad, Split, Style, Tp, TpError, TpLayout};

/// What a block is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) inner: usize,
    pub(crate) rank: usize,
}

const EPS: f32 = 1e-6;
const SCALE: f32 = 1.5;
pub(crate) const TOKENS: usize = 9;

/// The block on one rank: its parameters' names and placements.
pub(crate) struct Block {
    pub(crate) sizes: Sizes,
    heads: HeadSplit,
    pub(crate) table: Vec<(String, TpLayout)>,
}

impl Block {
    pub(crate) fn new(sizes: Sizes, ranks: usize) -> Self {
        let heads = HeadSplit::new(sizes.heads, sizes.kv_heads, ranks).unwrap();
        let (q, kv) = (heads.q(sizes.head_dim), heads.kv(sizes.head_dim));
        let inner = Split::balanced(sizes.inner, ranks).unwrap();
        let mut table = Vec::new();
        for (name, length) in [
            ("norm1", sizes.hidden),
            ("norm2", sizes.hidden),
            ("q_norm", sizes.head_dim),
            ("k_norm", sizes.head_dim),
        ] {
            // inside a column-parallel layer: an addend on each rank
            let placement =
                TpLayout::of(Style::ReplicatedWithGradAllreduce, LinearPart::Weight, &[length], &q).unwrap();
            table.push((name.to_owned(), placement));
        }
        let h = sizes.hidden;
        for (name, style, split, bias) in [
            ("q", Style::Colwise, &q, true),
            ("k", Style::Colwise, &kv, true),
            ("v", Style::Colwise, &kv, false),
            ("o", Style::Rowwise, &q, true),
            ("gate", Style::Colwise, &inner, false),
            ("up", Style::Colwise, &inner, true),
            ("down", Style::Rowwise, &inner, true),
        ] {
            let (out, input) =
                if style == Style::Colwise { (split.length(), h) } else { (h, split.length()) };
            let mut add = |suffix: &str, part: LinearPart, shape: &[usize]| {
                table.push((format!("{name}.{suffix}"), TpLayout::of(style, part, shape, split).unwrap()));
            };
            add("weight", LinearPart::Weight, &[out, input]);
            add("lora_A", LinearPart::LoraA, &[sizes.rank, input]);
            add("lora_B", LinearPart::LoraB, &[out, sizes.rank]);
            if bias {
                add("bias", LinearPart::Bias, &[out]);
                add("lora_B.bias", LinearPart::LoraBBias, &[out]);
            }
        }
        Self { sizes, heads, table }
    }

    /// This rank's part of every parameter.
    fn parameters(&self, rank: usize) -> Vec<AnyTensor> {
        let part = |(name, placement): &(String, TpLayout)| {
            let stream = Stream::new(7, name);
            let one = if name.contains("norm") { 1.0 } else { 0.0 };
            let all: Vec<f32> = (0..placement.layout().shape().iter().product::<usize>())
                .map(|i| one + 0.3 * stream.normal(i as u64))
                .collect();
            AnyTensor::from_elements(
                placement.layout().shard(&all, rank),
                &placement.layout().local_shape(rank),
                &Device::flex(),
            )
        };
        self.table.iter().map(part).collect()
    }

    fn run(&self, tp: &Tp, x: &AnyTensor, weights: &[AnyTensor]) -> Result<AnyTensor, OpsError> {
        let find = |name: &str| self.table.iter().position(|(n, _)| n == name).map(|i| weights[i].clone());
        let get = |name: &str| find(name).unwrap();
        let linear = |name: &str, bias: bool| {
            let optional = |suffix: &str| if bias { find(&format!("{name}.{suffix}")) } else { None };
            Linear {
                compute: Default::default(),
                weight: get(&format!("{name}.weight")),
                bias: optional("bias"),
                low_rank: Some(LowRank {
                    a: get(&format!("{name}.lora_A")),
                    b: get(&format!("{name}.lora_B")),
                    b_bias: optional("lora_B.bias"),
                    scale: SCALE,
                    dropout: None,
                    magnitude: None,
                }),
            }
        };
        let normed = |x: AnyTensor, gamma: &str| LinearInput::RmsNorm { x, gamma: get(gamma), eps: EPS };
        // the bias of a row-parallel layer is added once
        let first = tp.rank() == 0;

        let mine = self.heads.of(tp.rank());
        let input = normed(tp.copy_to_tp(x, "attention")?, "norm1");
        let qkv = linears(&input, &[linear("q", true), linear("k", true), linear("v", true)], None)?;
        let (d, tokens) = (self.sizes.head_dim, x.shape()[0]);
        let shape = AttentionShape {
            heads: mine.q.len(),
            kv_heads: mine.kv.len(),
            head_dim: d,
            scale: (d as f32).powf(-0.5),
            softcap: None,
            slopes: Default::default(),
            window: None,
            parents: Arc::default(),
            compute: Default::default(),
        };
        let angle = |i: usize| (i / d) as f32 * 0.3 + (i % (d / 2)) as f32;
        let table = (0..tokens * d).map(|i| if i % d < d / 2 { angle(i).cos() } else { angle(i).sin() });
        let positions: Arc<Vec<u32>> = Arc::new((0..tokens as u32).collect());
        let rotary = Rotary::new(Arc::new(table.collect()), positions, d);
        let norms = HeadNorm { q: get("q_norm"), k: get("k_norm"), eps: EPS };
        let documents = vec![0..tokens / 2, tokens / 2..tokens].into();
        let mixed = attention(&qkv, &shape, &documents, Some(&rotary), Some(&norms), None)?;
        let out = linears(&LinearInput::Plain(mixed), &[linear("o", first)], None)?;
        let x = tp.reduce_from_tp_add(&out, x, "o")?;

        let shared = tp.copy_to_tp(&x, "mlp")?;
        let out = if get("gate.weight").shape()[0] == 0 {
            tp.zeros_like_output(&[shared, get("norm2")], &[tokens, self.sizes.hidden])?
        } else {
            let input = normed(shared, "norm2");
            let gated = linears(&input, &[linear("gate", true), linear("up", true)], None)?;
            linears(&LinearInput::SwiGlu(gated), &[linear("down", first)], None)?
        };
        // the two halves of `reduce_from_tp_add`, to have both tested
        let out = tp.reduce_from_tp(&out, "down")?;
        Ok(AnyTensor::new(out.rank::<2>()? + x.rank::<2>()?))
    }
}

/// Parameters of a rank with a place for their gradients.
struct Held {
    values: Vec<AnyTensor>,
    gradients: Mutex<Vec<Option<AnyTensor>>>,
}

impl Held {
    fn add(&self, index: usize, gradient: &AnyTensor) {
        let slot = &mut self.gradients.lock().unwrap()[index];
        *slot = Some(match slot.take() {
            None => gradient.clone(),
            Some(sum) => {
                let values = sum.to_f32().iter().zip(gradient.to_f32()).map(|(a, b)| a + b).collect();
                AnyTensor::from_elements::<f32>(values, &sum.shape(), &sum.device())
            }
        });
    }
}

impl Weights for Held {
    fn gather(&self) -> Vec<AnyTensor> {
        self.values.clone()
    }
    fn trainable(&self) -> Vec<bool> {
        vec![true; self.values.len()]
    }
    fn sink(&self, index: usize, gradient: AnyTensor) {
        self.add(index, &gradient);
    }
}

/// What a rank has at the end of a step.
pub(crate) struct Outcome {
    /// Per micro-batch.
    pub(crate) outputs: Vec<Vec<f32>>,
    pub(crate) inputs: Vec<Vec<f32>>,
    /// Of this rank's parts, before the sums over ranks.
    pub(crate) traffic: Traffic,
    pub(crate) summed: Traffic,
    pub(crate) gradients: Vec<Vec<f32>>,
    pub(crate) squares: f64,
}

fn random(name: &str, shape: [usize; 2]) -> AnyTensor {
    let stream = Stream::new(11, name);
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| stream.normal(i as u64)).collect();
    AnyTensor::from_elements(values, &shape, &Device::flex())
}

/// One step of `micro_batches`: forward and backward each, then the sums. The loss is the output times fixed numbers.
pub(crate) fn step(
    block: &Arc<Block>,
    tp: &Tp,
    micro_batches: usize,
    recompute: bool,
) -> Result<Outcome, TpError> {
    let held = Arc::new(Held {
        values: block.parameters(tp.rank()),
        gradients: Mutex::new(vec![None; block.table.len()]),
    });
    let shape = [TOKENS, block.sizes.hidden];
    tp.group().clear_traffic();
    let (mut outputs, mut inputs) = (Vec::new(), Vec::new());
    for batch in 0..micro_batches {
        let x = random(&format!("x{batch}"), shape).leaf();
        let loss = |y: &AnyTensor| {
            let weights: Tensor<2> = random(&format!("c{batch}"), shape).rank().unwrap();
            (y.rank::<2>().unwrap() * weights).sum()
        };
        let mut gradients;
        if recompute {
            let (block, tp) = (Arc::clone(block), tp.clone());
            let weights: Arc<dyn Weights> = held.clone();
            let y = segment(
                "block",
                std::slice::from_ref(&x),
                weights,
                true,
                Arc::new(move |inputs, weights| block.run(&tp, &inputs[0], weights)),
            )
            .unwrap();
            outputs.push(y.to_f32());
            gradients = loss(&y).backward();
        } else {
            let leaves: Vec<AnyTensor> = held.values.iter().map(AnyTensor::leaf).collect();
            let y = block.run(tp, &x, &leaves).unwrap();
            outputs.push(y.to_f32());
            gradients = loss(&y).backward();
            for (index, leaf) in leaves.iter().enumerate() {
                if let Some(gradient) = leaf.take_gradient(&mut gradients) {
                    held.add(index, &gradient);
                }
            }
        }
        inputs.push(x.take_gradient(&mut gradients).unwrap().to_f32());
    }
    let traffic = tp.group().clear_traffic();
    let found = held.gradients.lock().unwrap();
    let mut addends: Vec<PartialGrad<'_>> = block
        .table
        .iter()
        .zip(found.iter())
        .map(|((name, placement), gradient)| {
            let local = placement.layout().local_shape(tp.rank());
            // a bias that this rank does not add
            let none =
                || AnyTensor::from_elements(vec![0.0_f32; local.iter().product()], &local, &Device::flex());
            let gradient = gradient.clone().unwrap_or_else(none);
            PartialGrad { name, layout: placement, rows: 0..local[0], gradient }
        })
        .collect();
    tp.sum_partial_in(&mut addends, 200)?;
    let summed = tp.group().clear_traffic();
    let own: f64 = addends.iter().map(|a| a.squares(tp.rank())).sum();
    let squares = tp.sum_f64(&[own], "norm")?[0];
    tp.check()?;
    let gradients = addends.iter().map(|a| a.gradient.to_f32()).collect();
    Ok(Outcome { outputs, inputs, traffic, summed, gradients, squares })
}

/// Elements that travel to sum the partial gradients of a block.
pub(crate) fn partial_elements(block: &Block) -> u64 {
    let shared = |placement: &TpLayout| {
        let (_, split) = placement.layout().split().unwrap();
        let rows = (0..split.length()).filter(|row| {
            let holds = |rank: &usize| split.pieces(*rank).iter().any(|piece| piece.contains(row));
            (0..split.ranks()).filter(holds).count() > 1
        });
        rows.count() * placement.layout().shape()[1..].iter().product::<usize>()
    };
    let elements = |(_, placement): &(String, TpLayout)| match placement.gradient() {
        Gradient::Partial => placement.layout().shape().iter().product(),
        Gradient::Shared => shared(placement),
        Gradient::Own | Gradient::Complete => 0,
    };
    block.table.iter().map(elements).sum::<usize>() as u64
}

pub(crate) fn close(what: &str, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{what}: elements");
    let most = expected.iter().fold(1.0_f32, |m, v| m.max(v.abs()));
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * most, "{what}[{i}]: {a} instead of {b} (of {most} at most)");
    }
}
