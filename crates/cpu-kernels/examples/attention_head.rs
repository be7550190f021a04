//! Times attention and the log-probability head: `cargo run --release --example attention_head -p burnish-cpu-kernels [runs [name]]`.
//!
//! Shapes are those of a 30M model (4 sequences of 512) and a 1M model (8 of 256). Medians; the runs interleave.

use burnish_cpu_kernels::{
    AttentionShape, HeadOptions, HeadWanted, KvCache, Linear, LinearPart, LinearParts, Rotary, Weight,
    append_kv, attention_backward, attention_cached, attention_forward, head_backward, head_forward,
    head_fused, head_logits,
};
use std::ops::Range;
use std::time::Instant;

fn values(n: usize, mut s: u64) -> Vec<f32> {
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// Milliseconds that all threads have spent on a processor; the machine may be shared. Zero where unknown.
fn processor_ms() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let of = |path: std::path::PathBuf| -> Option<f64> {
        std::fs::read_to_string(path.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
    };
    threads.flatten().filter_map(|t| of(t.path())).sum::<f64>() / 1e6
}

fn median(mut t: Vec<f64>) -> f64 {
    t.sort_by(f64::total_cmp);
    t[t.len() / 2]
}

/// A name and what to time.
type Work<'a> = (&'a str, Box<dyn FnMut() + 'a>);

fn medians(runs: usize, works: &mut [Work<'_>]) {
    let only = std::env::args().nth(2).unwrap_or_default();
    let mut works: Vec<_> = works.iter_mut().filter(|(name, _)| name.contains(&only)).collect();
    let mut times = vec![vec![]; works.len()];
    let mut processors = times.clone();
    for run in 0..runs + 2 {
        for (i, w) in works.iter_mut().enumerate() {
            let (start, processor) = (Instant::now(), processor_ms());
            (w.1)();
            if run >= 2 {
                times[i].push(start.elapsed().as_secs_f64() * 1e3);
                processors[i].push(processor_ms() - processor);
            }
        }
    }
    for (i, w) in works.iter().enumerate() {
        let name = w.0;
        let best = times[i].iter().copied().fold(f64::INFINITY, f64::min);
        let (wall, processor) = (median(times[i].clone()), median(processors[i].clone()));
        println!("  {name:32} median {wall:8.3} ms, best {best:8.3} ms, processor time {processor:8.3} ms");
    }
}

struct Model {
    name: &'static str,
    batch: usize,
    length: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    hidden: usize,
    vocab: usize,
    runs: usize,
}

fn rotary_table(positions: usize, dim: usize) -> Vec<f32> {
    let mut table = vec![0.0; positions * dim];
    for p in 0..positions {
        for i in 0..dim / 2 {
            let angle = p as f64 / 10_000f64.powf(2.0 * i as f64 / dim as f64);
            table[p * dim + i] = angle.cos() as f32;
            table[p * dim + dim / 2 + i] = angle.sin() as f32;
        }
    }
    table
}

fn bench(m: &Model) {
    println!("{}", m.name);
    let documents: Vec<Range<usize>> = (0..m.batch).map(|b| b * m.length..(b + 1) * m.length).collect();
    let rows = m.batch * m.length;
    let shape = AttentionShape {
        heads: m.heads,
        kv_heads: m.kv_heads,
        head_dim: m.head_dim,
        scale: 1.0 / (m.head_dim as f32).sqrt(),
        softcap: None,
        slopes: &[],
        sinks: &[],
        window: None,
        documents: &documents,
        parents: &[],
        compute: Default::default(),
    };
    let table = rotary_table(m.length, m.head_dim);
    let positions: Vec<u32> = (0..rows).map(|r| (r % m.length) as u32).collect();
    let rotary = Rotary { table: &table, positions: &positions, rotary_dim: m.head_dim };
    let qkv = values(rows * shape.qkv_width(), 1);
    let d_out = values(rows * shape.out_width(), 2);
    let forward = attention_forward(&qkv, &shape, Some(&rotary), None);

    let hidden = values(rows * m.hidden, 3);
    let scale = 3.0 / (m.hidden as f32).sqrt();
    let weight: Vec<f32> = values(m.vocab * m.hidden, 4).iter().map(|x| x * scale).collect();
    let targets: Vec<u32> = (0..rows).map(|r| (r * 7 % m.vocab) as u32).collect();
    let head = Linear {
        out: m.vocab,
        weight: Weight::F32(&weight),
        bias: None,
        low_rank: None,
        compute: Default::default(),
    };
    let options = HeadOptions::default();
    let frozen = HeadWanted { hidden: true, ..Default::default() };
    let trained = HeadWanted { parts: LinearParts::of(&[LinearPart::Weight]), ..frozen };
    let coefficient = |_: usize, _: f32| -1.0 / rows as f32;
    let stats = head_forward(&hidden, &head, None, &targets, &options);
    let g = vec![-1.0 / rows as f32; rows];

    // Decoding: one more token for each sequence.
    let mut cache = KvCache::new(m.kv_heads, m.head_dim, m.batch);
    append_kv(&qkv, &shape, Some(&rotary), None, &mut cache);
    let ones: Vec<Range<usize>> = (0..m.batch).map(|b| b..b + 1).collect();
    let last = vec![m.length as u32 - 1; m.batch];
    let one = AttentionShape { documents: &ones, ..shape };
    let one_rotary = Rotary { positions: &last, ..rotary };
    let one_qkv = &qkv[..m.batch * shape.qkv_width()];
    let few = &hidden[..m.batch * m.hidden];

    medians(
        m.runs,
        &mut [
            ("attention forward", Box::new(|| drop(attention_forward(&qkv, &shape, Some(&rotary), None)))),
            (
                "attention backward",
                Box::new(|| {
                    let f = &forward;
                    drop(attention_backward(&qkv, &shape, Some(&rotary), None, &f.out, &f.lse, &d_out));
                }),
            ),
            (
                "attention decode, a token each",
                Box::new(|| drop(attention_cached(one_qkv, &one, Some(&one_rotary), None, &cache))),
            ),
            ("head forward", Box::new(|| drop(head_forward(&hidden, &head, None, &targets, &options)))),
            (
                "head fused, frozen",
                Box::new(|| {
                    drop(head_fused(&hidden, &head, None, &targets, &options, &coefficient, &frozen))
                }),
            ),
            (
                "head fused, trained",
                Box::new(|| {
                    drop(head_fused(&hidden, &head, None, &targets, &options, &coefficient, &trained))
                }),
            ),
            (
                "head backward, frozen",
                Box::new(|| {
                    drop(head_backward(
                        &hidden,
                        &head,
                        None,
                        &targets,
                        &options,
                        &stats,
                        &g,
                        Some(&g),
                        &frozen,
                    ));
                }),
            ),
            ("head logits, a token each", Box::new(|| drop(head_logits(few, &head, &options)))),
        ],
    );
}

fn main() {
    let runs = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(21);
    println!("{} threads, {:?}", rayon::current_num_threads(), burnish_cpu_kernels::isa());
    bench(&Model {
        name: "30M: 4 x 512 tokens, 8/4 heads of 64, head 512 -> 4096",
        batch: 4,
        length: 512,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        hidden: 512,
        vocab: 4096,
        runs,
    });
    bench(&Model {
        name: "1M: 8 x 256 tokens, 4/2 heads of 32, head 128 -> 1024",
        batch: 8,
        length: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        hidden: 128,
        vocab: 1024,
        runs: 2 * runs,
    });
}
