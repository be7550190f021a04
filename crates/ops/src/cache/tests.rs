//! The cache of keys and values against attention over whole sequences.

use std::sync::Arc;

use burn::tensor::{Device, TensorData};
use burnish_core::random::Stream;

use super::*;

fn values(name: &str, n: usize) -> Vec<f32> {
    let stream = Stream::new(3, name);
    (0..n as u64).map(|i| stream.normal(i)).collect()
}

fn tensor(name: &str, shape: &[usize]) -> AnyTensor {
    let data = TensorData::new(values(name, shape.iter().product()), shape.to_vec());
    AnyTensor::from_data(data, &Device::flex())
}

fn close(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() < 2e-5, "{what}: element {i} is {g}, expected {e}");
    }
}

fn shape(window: Option<usize>) -> AttentionShape {
    AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        scale: 0.35,
        softcap: None,
        slopes: Arc::default(),
        window,
        parents: Arc::default(),
        compute: Default::default(),
    }
}

const WIDTH: usize = 64;

fn rotary(positions: &[u32]) -> Rotary {
    let table = (0..64).flat_map(|p| {
        let angle = move |i: usize| p as f32 * 0.3f32.powi(i as i32);
        (0..3).map(move |i| angle(i).cos()).chain((0..3).map(move |i| angle(i).sin()))
    });
    Rotary::new(Arc::new(table.collect()), Arc::new(positions.to_vec()), 6)
}

/// Rows of `all`, as a tensor.
fn rows(all: &[f32], of: &[Range<usize>]) -> AnyTensor {
    let values: Vec<f32> = of.iter().flat_map(|r| all[r.start * WIDTH..r.end * WIDTH].to_vec()).collect();
    let count = of.iter().map(ExactSizeIterator::len).sum::<usize>();
    AnyTensor::from_data(TensorData::new(values, [count, WIDTH]), &Device::flex())
}

/// Two sequences of 7 and 5 rows, in three calls of uneven sizes, against attention over the whole.
#[test]
fn pieces_equal_the_whole_on_kernels_and_on_plain_operations() {
    let norm = HeadNorm { q: tensor("q", &[8]), k: tensor("k", &[8]), eps: 1e-6 };
    let sinks = tensor("sinks", &[4]);
    for (window, biased, sunk) in
        [(None, false, false), (Some(3), false, false), (None, true, false), (Some(3), false, true)]
    {
        let sinks = sunk.then_some(&sinks);
        let slopes = if biased { vec![0.5, 0.25, 0.1, 0.05] } else { vec![] };
        let shape = AttentionShape { slopes: Arc::new(slopes), ..shape(window) };
        let all = values("qkv", 12 * WIDTH);
        let positions: Vec<u32> = (0..7).chain(0..5).collect();
        let documents = crate::Documents::from(vec![0..7, 7..12]);
        let qkv = AnyTensor::from_data(TensorData::new(all.clone(), [12, WIDTH]), &Device::flex());
        let whole = crate::attention(&qkv, &shape, &documents, Some(&rotary(&positions)), Some(&norm), sinks);
        let whole = whole.unwrap().to_f32();
        for plain in [false, true] {
            let mut cache = KvCache::new(shape.clone(), 2);
            if plain {
                cache.store = Store::Plain(vec![None, None]);
            }
            let mut got = vec![0.0; whole.len()];
            for [a, b] in [[0..3, 7..8], [3..4, 8..8], [4..7, 8..12]] {
                let mut own = positions[a.clone()].to_vec();
                own.extend(&positions[b.clone()]);
                let ranges = [0..a.len(), a.len()..a.len() + b.len()];
                let out = cache.attend(
                    &rows(&all, &[a.clone(), b.clone()]),
                    &ranges,
                    Some(&rotary(&own)),
                    Some(&norm),
                    sinks,
                );
                let out = out.unwrap().to_f32();
                for (from, to) in ranges.iter().zip([a, b]) {
                    got[to.start * 32..to.end * 32].copy_from_slice(&out[from.start * 32..from.end * 32]);
                }
            }
            close(&format!("window {window:?}, biased {biased}, sinks {sunk}, plain {plain}"), &got, &whole);
            assert_eq!((cache.len(0), cache.len(1)), (7, 5));
            assert!(cache.bytes() >= 12 * 2 * 16 * 4);
        }
    }
}

#[test]
fn sequences_leave_and_are_copied() {
    for plain in [false, true] {
        let mut cache = KvCache::new(shape(None), 3);
        assert!(cache.is_empty());
        if plain {
            cache.store = Store::Plain(vec![None, None, None]);
        }
        let all = values("leave", 6 * WIDTH);
        cache
            .attend(&rows(&all, std::slice::from_ref(&(0..6))), &[0..1, 1..3, 3..6], None, None, None)
            .unwrap();
        cache.reorder(&[2, 0, 2]).unwrap();
        assert_eq!([0, 1, 2].map(|s| cache.len(s)), [3, 1, 3]);
        let out =
            cache.attend(&rows(&all, &[5..6, 5..6]), &[0..1, 1..1, 1..2], None, None, None).unwrap().to_f32();
        assert_eq!(out[..32], out[32..], "copies see the same");
        assert_eq!([0, 1, 2].map(|s| cache.len(s)), [4, 1, 4]);
        let error = cache.reorder(&[0, 3]).unwrap_err().to_string();
        assert_eq!(error, "cached attention: index 3 is outside 0..3");
    }
}

#[test]
fn sequences_join_and_keep_what_they_have_seen() {
    for plain in [false, true] {
        let (mut first, mut second) = (KvCache::new(shape(None), 1), KvCache::new(shape(None), 2));
        if plain {
            first.store = Store::Plain(vec![None]);
            second.store = Store::Plain(vec![None, None]);
        }
        let all = values("join", 6 * WIDTH);
        let feed = |cache: &mut KvCache, of: Range<usize>, documents: &[Range<usize>]| {
            cache.attend(&rows(&all, &[of]), documents, None, None, None).unwrap().to_f32()
        };
        feed(&mut first, 0..3, std::slice::from_ref(&(0..3)));
        feed(&mut second, 3..5, &[0..2, 2..2]);
        let (mut alone, mut empty) = (second.clone(), KvCache::new(shape(None), 1));
        // Those that have seen nothing join too, and are joined.
        first.append(KvCache::new(shape(None), 1));
        first.append(second);
        empty.append(first);
        assert_eq!([0, 1, 2, 3, 4].map(|s| empty.len(s)), [0, 3, 0, 2, 0]);
        let together = feed(&mut empty, 5..6, &[0..0, 0..0, 0..0, 0..1, 1..1]);
        assert_eq!(together, feed(&mut alone, 5..6, &[0..1, 1..1]), "plain {plain}");
        assert_eq!(empty.len(3), 3);
        let last = empty.split_off(3);
        assert_eq!((empty.sequences(), last.sequences(), last.len(0), empty.len(1)), (3, 2, 3, 3));
        assert_eq!(KvCache::new(shape(None), 3).split_off(1).sequences(), 2);
    }
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() {
    let mut cache = KvCache::new(shape(None), 2);
    let error = |r: Result<AnyTensor, OpsError>| r.unwrap_err().to_string();
    let qkv = tensor("qkv", &[2, WIDTH]);
    assert_eq!(
        error(cache.attend(&tensor("x", &[2, 60]), &[0..1, 1..2], None, None, None)),
        "cached attention: `qkv` has shape [2, 60], expected [2, 64]"
    );
    assert_eq!(
        error(cache.attend(&qkv, std::slice::from_ref(&(0..2)), None, None, None)),
        "cached attention: `documents` has shape [1], expected [2]"
    );
    assert_eq!(
        error(cache.attend(&qkv, &[0..1, 1..2], Some(&rotary(&[0])), None, None)),
        "cached attention: `rotary positions` has shape [1], expected [2]"
    );
    assert_eq!(
        error(cache.attend(&qkv, &[0..1, 1..3], None, None, None)),
        "cached attention: index 3 is outside 0..3"
    );
    assert!(cache.is_empty() && cache.bytes() == 0);
}
