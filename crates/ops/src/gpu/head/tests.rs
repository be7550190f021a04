//! The head by chunks.

use burnish_core::random::Stream;

use super::*;
use crate::{Dropout, LowRank};

fn leaf(name: &str, shape: &[usize]) -> AnyTensor {
    let stream = Stream::new(5, name);
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n as u64).map(|i| 0.4 * stream.normal(i)).collect();
    AnyTensor::from_elements(values, shape, &Device::flex()).leaf()
}

/// Value, statistics and gradients with chunks of `chunk` rows.
fn found(chunk: usize, entropies: bool) -> (Vec<f32>, TokenStats, Vec<Vec<f32>>) {
    let (tokens, dim, vocab, rank) = (11, 6, 9, 2);
    let hidden = leaf("hidden", &[tokens, dim]);
    let low_rank = LowRank {
        a: leaf("a", &[rank, dim]),
        b: leaf("b", &[vocab, rank]),
        b_bias: None,
        scale: 0.5,
        dropout: Some(Dropout {
            key: 3,
            p: 0.4,
            rows: Arc::new((7..7 + tokens as u64).collect()),
            first_column: 0,
        }),
        magnitude: None,
    };
    let head = Linear {
        weight: leaf("weight", &[vocab, dim]),
        bias: Some(leaf("bias", &[vocab])),
        low_rank: Some(low_rank),
        compute: Default::default(),
    };
    let targets: Vec<u32> = (0..tokens as u32).map(|i| i * 5 % 9).collect();
    let options =
        HeadOptions { temperature: 0.8, softcap: Some(3.0), logit_scale: 1.5, label_smoothing: 0.2 };
    let (out, stats) = log_probs(&hidden, &head, None, &targets, options, (entropies, Some(chunk))).unwrap();
    let both = out.rank::<2>().unwrap();
    // Of log-probabilities alone, or of both, each row with a factor of its own.
    let rows = if entropies { 2 } else { 1 };
    let factors = leaf("factors", &[2, tokens]).plain().rank::<2>().unwrap();
    let sum = (both * factors).slice([0..rows, 0..tokens]).sum();
    let mut gradients = sum.backward();
    let inputs = inputs(&hidden, &head);
    let gradients = inputs.iter().map(|t| t.take_gradient(&mut gradients).unwrap().to_f32()).collect();
    (out.to_f32(), stats, gradients)
}

#[test]
fn chunks_make_the_whole() {
    for entropies in [true, false] {
        let whole = found(64, entropies);
        for chunk in [1, 4, 10] {
            let parts = found(chunk, entropies);
            let pairs = [(parts.0, &whole.0)].into_iter().chain(parts.2.into_iter().zip(&whole.2));
            for (got, want) in pairs {
                assert_eq!(got.len(), want.len());
                let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
                for (g, w) in got.iter().zip(want) {
                    assert!((g - w).abs() <= 1e-5 * largest, "chunks of {chunk}: {g} is not {w}");
                }
            }
            assert_eq!(parts.1.is_top1, whole.1.is_top1);
        }
    }
}

#[test]
fn a_chunk_is_bounded_and_of_some_rows() {
    for vocab in [1, 1000, 32_000, 151_936, 262_144, 1 << 20] {
        let rows = chunk([vocab, 4096], false);
        assert!(rows * vocab <= LOGITS && rows.is_multiple_of(TILE), "{vocab}");
        let trains = chunk([vocab, 4096], true);
        assert!(4 * trains <= 3 * 4096 || trains == rows, "{vocab}: {trains} rows");
    }
    assert_eq!(chunk([1 << 24, 64], true), TILE, "never less than units for matrices want");
    assert_eq!([chunk([151_936, 4096], false), chunk([151_936, 4096], true)], [768, 3072]);
}

#[test]
fn chunks_are_about_as_long() {
    for tokens in [0, 1, 127, 128, 129, 8192, 8193, 100_000] {
        for most in [TILE, 768, 3072] {
            let rows = even(tokens, most);
            let (chunks, least) = (tokens.div_ceil(rows), tokens.div_ceil(most));
            assert!(
                rows <= most && chunks == least,
                "{tokens} tokens, {most} at most: {chunks} chunks of {rows}"
            );
        }
    }
    assert_eq!(even(8192, 3072), 2816);
    assert_eq!(even(11, 4), 4);
}
