//! Every shape, rank and dtype that does not fit is an error that says so, and none reaches a kernel.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{FloatDType, Tensor};
use burnish_ops::{
    AnyTensor, AttentionShape, Coefficient, Dropout, EmbeddingLowRank, HeadNorm, HeadOptions, Linear,
    LinearInput, LowRank, OpsError, Rotary, attention, embedding, head_log_probs, head_logits, head_loss,
    linears, linears_decode, rms_norm, select_rows,
};

use crate::case::tensor;

fn message<T>(result: Result<T, OpsError>) -> String {
    result.err().expect("an error").to_string()
}

fn half(t: &AnyTensor) -> AnyTensor {
    t.cast(FloatDType::BF16)
}

const F32_ONLY: &str = "expected float32 on the CPU; cast it where it is loaded or gathered";
const FLOATS: &str =
    "expected float32, bfloat16 or float16 on the CPU; cast it where it is loaded or gathered";

fn x() -> AnyTensor {
    tensor("x", &[3, 4])
}

fn layer() -> Linear {
    let low_rank = LowRank {
        a: tensor("a", &[2, 4]),
        b: tensor("b", &[5, 2]),
        b_bias: Some(tensor("b_bias", &[5])),
        scale: 1.0,
        dropout: Some(Dropout { key: 1, p: 0.5, rows: Arc::new(vec![0, 1, 2]), first_column: 0 }),
        magnitude: None,
    };
    let bias = Some(tensor("bias", &[5]));
    Linear { bias, low_rank: Some(low_rank), ..Linear::new(tensor("w", &[5, 4])) }
}

fn low(layer: &mut Linear) -> &mut LowRank {
    layer.low_rank.as_mut().unwrap()
}

/// Ways to spoil a layer, and what is said of it after the operation's name.
fn spoiled_layers() -> Vec<(Linear, String)> {
    let change = |f: &dyn Fn(&mut Linear)| {
        let mut layer = layer();
        f(&mut layer);
        layer
    };
    let shape = |what: &str, got: &str, want: &str| format!("`{what}` has shape {got}, expected {want}");
    let dtype = |what: &str, got: &str, want: &str| format!("`{what}` is Some({got}), {want}");
    let wide = |t: &AnyTensor| t.cast(FloatDType::F64);
    vec![
        (change(&|l| l.weight = tensor("w", &[5, 3])), shape("weight", "[5, 3]", "[5, 4]")),
        (change(&|l| l.weight = tensor("w", &[5])), shape("weight", "[5]", "[5, 4]")),
        (change(&|l| l.bias = Some(tensor("bias", &[4]))), shape("bias", "[4]", "[5]")),
        (change(&|l| low(l).a = tensor("a", &[2, 5])), shape("lora_A", "[2, 5]", "[2, 4]")),
        (change(&|l| low(l).b = tensor("b", &[2, 5])), shape("lora_B", "[2, 5]", "[5, 2]")),
        (change(&|l| low(l).b_bias = Some(tensor("b_bias", &[2]))), shape("lora_B.bias", "[2]", "[5]")),
        (
            change(&|l| low(l).dropout.as_mut().unwrap().rows = Arc::new(vec![0, 1])),
            shape("dropout.rows", "[2]", "[3]"),
        ),
        (change(&|l| l.weight = wide(&l.weight)), dtype("weight", "F64", FLOATS)),
        (change(&|l| l.bias = l.bias.as_ref().map(half)), dtype("bias", "Bf16", F32_ONLY)),
        (change(&|l| low(l).a = half(&low(l).a.clone())), dtype("lora_A", "Bf16", F32_ONLY)),
        (change(&|l| low(l).b = half(&low(l).b.clone())), dtype("lora_B", "Bf16", F32_ONLY)),
        (
            change(&|l| low(l).b_bias = low(l).b_bias.as_ref().map(half)),
            dtype("lora_B.bias", "Bf16", F32_ONLY),
        ),
    ]
}

#[test]
fn layers() {
    let plain = LinearInput::Plain(x());
    linears(&plain, &[layer()], None).unwrap();
    let targets = Arc::new(vec![0, 1, 2]);
    let coefficient: Coefficient = Arc::new(|_, _| 1.0);
    let options = HeadOptions::default();
    for (bad, said) in spoiled_layers() {
        let both = [layer(), bad.clone()];
        assert_eq!(message(linears(&plain, &both, None)), format!("linears: {said}"));
        assert_eq!(message(linears_decode(&plain, &both, None)), format!("linears: {said}"));
        assert_eq!(
            message(head_loss(&x(), &bad, None, &targets, options, &coefficient, |_| 0.0)),
            format!("head: {said}")
        );
        assert_eq!(message(head_log_probs(&x(), &bad, None, &targets, options)), format!("head: {said}"));
        assert_eq!(message(head_logits(&x(), &bad, options)), format!("head: {said}"));
    }
}

#[test]
fn what_linears_read_and_add() {
    let run =
        |input: LinearInput, residual: Option<&AnyTensor>| message(linears(&input, &[layer()], residual));
    let rank = run(LinearInput::Plain(tensor("x", &[4])), None);
    assert_eq!(rank, "expected a tensor of rank 2, got shape [4]");
    assert_eq!(
        run(LinearInput::SwiGlu(tensor("x", &[3, 9])), None),
        "linears: `gate and up` has shape [3, 9], expected [3, 8]"
    );
    assert_eq!(run(LinearInput::Plain(half(&x())), None), format!("linears: `x` is Some(Bf16), {F32_ONLY}"));
    let norm = |gamma: AnyTensor| run(LinearInput::RmsNorm { x: x(), gamma, eps: 1e-6 }, None);
    assert_eq!(norm(tensor("gamma", &[3])), "linears: `gamma` has shape [3], expected [4]");
    assert_eq!(norm(half(&tensor("gamma", &[4]))), format!("linears: `gamma` is Some(Bf16), {F32_ONLY}"));
    let residual = |r: AnyTensor| run(LinearInput::Plain(x()), Some(&r));
    assert_eq!(residual(tensor("r", &[3, 4])), "linears: `residual` has shape [3, 4], expected [3, 5]");
    assert_eq!(
        residual(half(&tensor("r", &[3, 5]))),
        format!("linears: `residual` is Some(Bf16), {F32_ONLY}")
    );
}

#[test]
fn norms() {
    let gamma = tensor("gamma", &[4]);
    assert_eq!(message(rms_norm(&gamma, &gamma, 1e-6)), "expected a tensor of rank 2, got shape [4]");
    assert_eq!(
        message(rms_norm(&x(), &tensor("gamma", &[3]), 1e-6)),
        "rms_norm: `gamma` has shape [3], expected [4]"
    );
    assert_eq!(
        message(rms_norm(&half(&x()), &gamma, 1e-6)),
        format!("rms_norm: `x` is Some(Bf16), {F32_ONLY}")
    );
    assert_eq!(
        message(rms_norm(&x(), &half(&gamma), 1e-6)),
        format!("rms_norm: `gamma` is Some(Bf16), {F32_ONLY}")
    );
}

#[test]
fn embeddings_and_rows() {
    let (ids, weight) = (Arc::new(vec![1, 2]), tensor("weight", &[7, 4]));
    let low = |a: &[usize], b: &[usize]| EmbeddingLowRank {
        a: tensor("a", a),
        b: tensor("b", b),
        scale: 1.0,
        magnitude: None,
    };
    assert_eq!(
        message(embedding(&ids, &tensor("w", &[7]), None)),
        "expected a tensor of rank 2, got shape [7]"
    );
    assert_eq!(
        message(embedding(&Arc::new(vec![0, 7]), &weight, None)),
        "embedding: index 7 is outside 0..7"
    );
    assert_eq!(
        message(embedding(&ids, &weight, Some(&low(&[2, 6], &[4, 2])))),
        "embedding: `lora_embedding_A` has shape [2, 6], expected [2, 7]"
    );
    assert_eq!(
        message(embedding(&ids, &weight, Some(&low(&[2, 7], &[2, 4])))),
        "embedding: `lora_embedding_B` has shape [2, 4], expected [4, 2]"
    );
    let mut narrow = low(&[2, 7], &[4, 2]);
    narrow.a = half(&narrow.a);
    assert_eq!(
        message(embedding(&ids, &weight, Some(&narrow))),
        format!("embedding: `lora_embedding_A` is Some(Bf16), {F32_ONLY}")
    );
    assert_eq!(message(select_rows(&x(), &Arc::new(vec![0, 3]))), "select_rows: index 3 is outside 0..3");
    assert_eq!(
        message(select_rows(&tensor("x", &[4]), &Arc::new(vec![0]))),
        "expected a tensor of rank 2, got shape [4]"
    );
    assert_eq!(
        message(select_rows(&half(&x()), &Arc::new(vec![0]))),
        format!("select_rows: `x` is Some(Bf16), {F32_ONLY}")
    );
}

#[test]
fn targets() {
    let head = Linear::new(tensor("w", &[5, 4]));
    let options = HeadOptions::default();
    let run = |hidden: &AnyTensor, targets: Vec<u32>| {
        message(head_log_probs(hidden, &head, None, &Arc::new(targets), options))
    };
    assert_eq!(run(&x(), vec![0, 5, 1]), "head: index 5 is outside 0..5");
    assert_eq!(run(&x(), vec![0, 1]), "head: `targets` has shape [2], expected [3]");
    assert_eq!(run(&x(), vec![]), "head: `targets` has shape [0], expected [3]");
    assert_eq!(run(&tensor("x", &[4]), vec![0]), "expected a tensor of rank 2, got shape [4]");
    assert_eq!(run(&half(&x()), vec![0, 1, 2]), format!("head: `hidden` is Some(Bf16), {F32_ONLY}"));
}

fn attend(
    qkv: &AnyTensor,
    documents: Vec<Range<usize>>,
    rotary: Option<Rotary>,
    norm: Option<HeadNorm>,
) -> Result<AnyTensor, OpsError> {
    attend_tree(qkv, documents, vec![], rotary, norm)
}

fn attend_tree(
    qkv: &AnyTensor,
    documents: Vec<Range<usize>>,
    parents: Vec<Option<usize>>,
    rotary: Option<Rotary>,
    norm: Option<HeadNorm>,
) -> Result<AnyTensor, OpsError> {
    let shape = AttentionShape {
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        scale: 0.5,
        softcap: None,
        slopes: Arc::default(),
        window: None,
        parents: Arc::new(parents),
        compute: Default::default(),
    };
    attention(qkv, &shape, &documents.into(), rotary.as_ref(), norm.as_ref(), None)
}

#[test]
fn attentions() {
    let qkv = tensor("qkv", &[6, 16]);
    attend(&qkv, vec![0..6], None, None).unwrap();
    let one = || vec![0..6];
    let said = |t: &AnyTensor| message(attend(t, vec![0..6], None, None));
    assert_eq!(said(&tensor("qkv", &[6, 15])), "attention: `qkv` has shape [6, 15], expected [6, 16]");
    assert_eq!(said(&tensor("qkv", &[16])), "expected a tensor of rank 2, got shape [16]");
    assert_eq!(said(&half(&qkv)), format!("attention: `qkv` is Some(Bf16), {F32_ONLY}"));

    assert_eq!(
        message(attend(&qkv, vec![3..7, 0..3], None, None)),
        "attention documents: index 6 is outside 0..6"
    );
    let overlap = attend(&qkv, vec![3..6, 0..4], None, None).unwrap_err();
    assert!(matches!(&overlap, OpsError::Overlap { first, second } if *first == (0..4) && *second == (3..6)));
    assert_eq!(
        overlap.to_string(),
        "attention: documents 0..4 and 3..6 overlap; every token belongs to at most one"
    );

    let tree = |parents| message(attend_tree(&qkv, vec![0..2, 2..4, 4..6], parents, None, None));
    assert_eq!(tree(vec![None]), "attention: `parents` has shape [1], expected [3]");
    assert_eq!(tree(vec![None, Some(3), None]), "attention parents: index 3 is outside 0..3");
    let nested = "attention: document 2 continues 1, which continues another; continue the first of them";
    assert_eq!(tree(vec![None, Some(0), Some(1)]), nested);

    let rotary = |positions: Vec<u32>| Some(Rotary::new(Arc::new(vec![1.0; 5 * 4]), Arc::new(positions), 4));
    assert_eq!(
        message(attend(&qkv, one(), rotary(vec![0; 5]), None)),
        "attention: `rotary.positions` has shape [5], expected [6]"
    );
    assert_eq!(
        message(attend(&qkv, one(), rotary(vec![0, 1, 2, 3, 4, 5]), None)),
        "rotary: index 5 is outside 0..5"
    );

    let norm =
        |q: AnyTensor, k: AnyTensor| message(attend(&qkv, one(), None, Some(HeadNorm { q, k, eps: 1e-6 })));
    let (good, bad) = (tensor("good", &[4]), tensor("bad", &[8]));
    assert_eq!(norm(bad.clone(), good.clone()), "attention: `q_norm` has shape [8], expected [4]");
    assert_eq!(norm(good.clone(), bad), "attention: `k_norm` has shape [8], expected [4]");
    assert_eq!(norm(good.clone(), half(&good)), format!("attention: `k_norm` is Some(Bf16), {F32_ONLY}"));
}

#[test]
fn ranks() {
    let t = tensor("t", &[3, 4]);
    assert_eq!(t.rank::<2>().unwrap().dims(), [3, 4]);
    assert_eq!(message(t.rank::<1>()), "expected a tensor of rank 1, got shape [3, 4]");
    let t = AnyTensor::new(Tensor::<3>::ones([1, 2, 3], &crate::case::device()));
    assert_eq!(message(t.rank::<2>()), "expected a tensor of rank 2, got shape [1, 2, 3]");
}
