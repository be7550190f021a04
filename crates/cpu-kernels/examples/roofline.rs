//! Per cent of the processor's peak that each operation of a training step reaches, in fp32 and with products of bfloat16.
//!
//! Peaks are measured in this process beside the operations: fused multiply-adds and dot products that stay in registers, and
//! a read of memory. Every operation runs alternately with the others; the table has medians.
//!
//! `cargo run --release -p burnish-cpu-kernels --example roofline [30m|0.6b|1m] [rounds] [--only NAME] [--busy]`
//!
//! `--only NAME`: operations whose names contain it, or `decode`, how fast the weights are read when text is generated. `--busy`, on Linux: processor time instead of time, for a machine that
//! other programs use, with `RAYON_NUM_THREADS=1`.

use burnish_cpu_kernels::{
    AttentionShape, Compute, HeadOptions, HeadWanted, Input, Linear, LinearPart, LinearParts, LowRank,
    Rotary, Wanted, Weight, attention_backward, attention_forward, head_fused, isa, linears_backward,
    linears_decode, linears_forward, on_pool,
};
use half::bf16;
use rayon::prelude::*;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const RANK: usize = 16;

/// A model's shapes and a step's tokens.
struct Model {
    name: &'static str,
    hidden: usize,
    inter: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    layers: usize,
    documents: usize,
    length: usize,
}

const MODELS: [Model; 4] = [
    Model {
        name: "30m",
        hidden: 512,
        inter: 1408,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        vocab: 4096,
        layers: 8,
        documents: 4,
        length: 512,
    },
    Model {
        name: "0.6b",
        hidden: 1024,
        inter: 3072,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        vocab: 151_936,
        layers: 28,
        documents: 1,
        length: 1024,
    },
    Model {
        name: "1b",
        hidden: 2048,
        inter: 8192,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocab: 128_256,
        layers: 16,
        documents: 1,
        length: 1024,
    },
    Model {
        name: "1m",
        hidden: 128,
        inter: 384,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        vocab: 1024,
        layers: 4,
        documents: 8,
        length: 256,
    },
];

fn values(n: usize, seed: u64) -> Vec<f32> {
    // SplitMix64: hundreds of millions of values, none of which matters.
    let one = |i: u64| {
        let mut z = (seed << 40 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        0.2 * ((z >> 40) as f32 / (1 << 24) as f32 - 0.5)
    };
    (0..n as u64).into_par_iter().map(one).collect()
}

/// Lets glibc's allocator keep what is freed, as the program does: fresh pages cost more than the arithmetic done in them.
fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            safe fn mallopt(name: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
        }
        const TRIM_THRESHOLD: std::ffi::c_int = -1;
        const MMAP_MAX: std::ffi::c_int = -4;
        let kept = mallopt(MMAP_MAX, 0) == 1 && mallopt(TRIM_THRESHOLD, std::ffi::c_int::MAX) == 1;
        assert!(kept, "mallopt knows these names");
    }
}

/// Whether operations are timed by the processor time of all threads over their number, which other programs do not
/// lengthen (as long as no thread waits for another: with one).
static BUSY: AtomicBool = AtomicBool::new(false);

/// Seconds that `work` takes.
fn seconds(work: impl FnOnce()) -> f64 {
    #[cfg(target_os = "linux")]
    if BUSY.load(Ordering::Relaxed) {
        let before = processor_time();
        work();
        return (processor_time() - before) / rayon::current_num_threads() as f64;
    }
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Seconds that this process has run.
#[cfg(target_os = "linux")]
fn processor_time() -> f64 {
    #[repr(C)]
    struct Time {
        seconds: std::ffi::c_long,
        nanoseconds: std::ffi::c_long,
    }
    unsafe extern "C" {
        safe fn clock_gettime(clock: std::ffi::c_int, to: &mut Time) -> std::ffi::c_int;
    }
    const PROCESS: std::ffi::c_int = 2;
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    assert_eq!(clock_gettime(PROCESS, &mut time), 0, "the processor's time of this process");
    time.seconds as f64 + 1e-9 * time.nanoseconds as f64
}

/// Loops that do nothing but multiply and add in registers, twelve sums at once: enough to hide any latency.
#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::asm;

    macro_rules! loop_of {
        ($name:ident, $feature:literal, $op:literal, $register:literal) => {
            #[target_feature(enable = $feature)]
            pub(crate) fn $name(rounds: u64) {
                // SAFETY: registers alone are changed, and all of them are named.
                unsafe {
                    asm!(
                        "vzeroall",
                        "2:",
                        concat!($op, " ", $register, "0, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "1, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "2, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "3, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "4, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "5, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "6, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "7, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "8, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "9, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "10, ", $register, "14, ", $register, "15"),
                        concat!($op, " ", $register, "11, ", $register, "14, ", $register, "15"),
                        "dec {rounds}",
                        "jnz 2b",
                        rounds = inout(reg) rounds => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nomem, nostack),
                    );
                }
            }
        };
    }

    loop_of!(fma512, "avx512f", "vfmadd231ps", "zmm");
    loop_of!(fma256, "avx,fma", "vfmadd231ps", "ymm");
    loop_of!(dots, "avx512f,avx512bf16", "vdpbf16ps", "zmm");

    /// As the loops above, on AMX's registers: six sums, full shapes.
    #[cfg(target_os = "linux")]
    fn tiles(rounds: u64) {
        #[repr(align(64))]
        struct Config([u8; 64]);
        let mut config = Config([0; 64]);
        config.0[0] = 1;
        for register in 0..8 {
            config.0[16 + 2 * register] = 64;
            config.0[48 + register] = 16;
        }
        // SAFETY: the caller has seen that the kernels use AMX; registers alone are changed, and all of them are named.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "2:",
                "tdpbf16ps tmm0, tmm6, tmm7",
                "tdpbf16ps tmm1, tmm6, tmm7",
                "tdpbf16ps tmm2, tmm6, tmm7",
                "tdpbf16ps tmm3, tmm6, tmm7",
                "tdpbf16ps tmm4, tmm6, tmm7",
                "tdpbf16ps tmm5, tmm6, tmm7",
                "dec {rounds}",
                "jnz 2b",
                "tilerelease",
                config = in(reg) &raw const config,
                rounds = inout(reg) rounds => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(readonly, nostack),
            );
        }
    }

    const ROUNDS: u64 = 1 << 20;

    /// Operations of one call; `None` where the processor lacks the instruction.
    pub(crate) fn run(dot: bool) -> Option<f64> {
        let sums = 12.0 * ROUNDS as f64;
        #[cfg(target_os = "linux")]
        if dot && burnish_cpu_kernels::isa() == burnish_cpu_kernels::Isa::Amx {
            let rounds = ROUNDS / 8;
            tiles(rounds);
            return Some(6.0 * rounds as f64 * 16_384.0);
        }
        // SAFETY: the instructions were detected.
        unsafe {
            if dot {
                is_x86_feature_detected!("avx512bf16").then(|| {
                    dots(ROUNDS);
                    sums * 64.0
                })
            } else if is_x86_feature_detected!("avx512f") {
                fma512(ROUNDS);
                Some(sums * 32.0)
            } else {
                is_x86_feature_detected!("fma").then(|| {
                    fma256(ROUNDS);
                    sums * 16.0
                })
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod registers {
    pub(crate) fn run(_: bool) -> Option<f64> {
        None
    }
}

/// Operations a second of all threads of the pool together: the median of nine.
fn peak(dot: bool) -> Option<f64> {
    registers::run(dot)?;
    let mut rates: Vec<f64> = (0..9)
        .map(|_| {
            let mut done = 0.0;
            let taken =
                seconds(|| done = rayon::broadcast(|_| registers::run(dot).unwrap_or(0.0)).iter().sum());
            done / taken
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    Some(rates[rates.len() / 2])
}

/// Bytes a second that all threads read of a buffer far larger than the caches.
fn bandwidth() -> f64 {
    let data = vec![1.0_f32; 64 << 20];
    let mut rates: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            let sum: f32 = data
                .par_chunks(1 << 18)
                .map(|chunk| {
                    let mut lanes = [0.0_f32; 64];
                    for part in chunk.chunks_exact(64) {
                        lanes.iter_mut().zip(part).for_each(|(l, x)| *l += x);
                    }
                    lanes.iter().sum::<f32>()
                })
                .sum();
            black_box(sum);
            4.0 * data.len() as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

struct Layer {
    out: usize,
    weight: Vec<bf16>,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Layer {
    fn new(out: usize, input: usize, seed: u64) -> Self {
        let weight = values(out * input, seed).into_par_iter().map(bf16::from_f32).collect();
        Self { out, weight, a: values(RANK * input, seed + 1), b: values(out * RANK, seed + 2) }
    }

    fn linear(&self, compute: Compute) -> Linear<'_> {
        let (dropout, magnitude) = (None, None);
        let low_rank =
            LowRank { rank: RANK, a: &self.a, b: &self.b, b_bias: None, scale: 2.0, dropout, magnitude };
        Linear {
            out: self.out,
            weight: Weight::Bf16(&self.weight),
            bias: None,
            low_rank: Some(low_rank),
            compute,
        }
    }
}

/// An operation in one precision.
struct Piece<'a> {
    name: String,
    operations: f64,
    /// How often a step does it.
    times: usize,
    run: Box<dyn FnMut() + 'a>,
}

fn linear_pieces<'a>(
    pieces: &mut Vec<Piece<'a>>,
    m: &Model,
    name: &str,
    dim: usize,
    input: Input<'a>,
    layers: &'a [Layer],
    compute: Compute,
) {
    let tokens = m.documents * m.length;
    let linears: Vec<Linear<'_>> = layers.iter().map(|l| l.linear(compute)).collect();
    let total: usize = linears.iter().map(|l| l.out).sum();
    let base = 2.0 * (tokens * dim * total) as f64;
    let low = 2.0 * (tokens * RANK * (layers.len() * dim + total)) as f64;
    let saved = linears_forward(tokens, dim, input, &linears, None).saved;
    let dy = values(tokens * total, 30);
    let mut add = |what: &str, operations: f64, times: usize, run: Box<dyn FnMut() + 'a>| {
        pieces.push(Piece { name: format!("{name} {what}"), operations, times, run });
    };
    {
        let linears = linears.clone();
        let run = move || drop(linears_forward(tokens, dim, input, &linears, None));
        add("forward", base + low, m.layers, Box::new(run));
    }
    for (what, one, operations, times) in [
        ("backward", LinearParts::of(&[LinearPart::LoraA, LinearPart::LoraB]), base + 2.0 * low, m.layers),
        ("backward, weights", LinearParts::of(&[LinearPart::Weight]), 2.0 * base + low, 0),
    ] {
        let wanted = Wanted { dx: true, dgamma: false, dbeta: false, linears: vec![one; linears.len()] };
        let saved = burnish_cpu_kernels::LinearsSaved {
            t: saved.t.clone(),
            z: vec![None; linears.len()],
            rstd: saved.rstd.clone(),
        };
        let (linears, dy) = (linears.clone(), dy.clone());
        let run = move || drop(linears_backward(tokens, dim, input, &linears, &saved, &dy, &wanted));
        add(what, operations, times, Box::new(run));
    }
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

fn measure(m: &Model, rounds: usize, only: Option<&str>) {
    let tokens = m.documents * m.length;
    let (q, kv) = (m.heads * m.head_dim, m.kv_heads * m.head_dim);
    let gamma = vec![1.0; m.hidden];
    let (x, attended, inner) =
        (values(tokens * m.hidden, 1), values(tokens * q, 2), values(tokens * 2 * m.inter, 3));
    let qkv = [Layer::new(q, m.hidden, 4), Layer::new(kv, m.hidden, 7), Layer::new(kv, m.hidden, 10)];
    let o = [Layer::new(m.hidden, q, 13)];
    let gate_up = [Layer::new(m.inter, m.hidden, 16), Layer::new(m.inter, m.hidden, 19)];
    let down = [Layer::new(m.hidden, m.inter, 22)];
    let norm = Input::RmsNorm { x: &x, gamma: &gamma, eps: 1e-5 };

    let documents: Vec<_> = (0..m.documents).map(|i| i * m.length..(i + 1) * m.length).collect();
    let table = rotary_table(m.length, m.head_dim);
    let positions: Vec<u32> = (0..tokens).map(|r| (r % m.length) as u32).collect();
    let rotary = Rotary { table: &table, positions: &positions, rotary_dim: m.head_dim };
    let (rows, d_out) = (values(tokens * (q + 2 * kv), 40), values(tokens * q, 41));
    let targets: Vec<u32> = (0..tokens).map(|r| (r * 7 % m.vocab) as u32).collect();
    let head_weight: Vec<bf16> = values(m.vocab * m.hidden, 42).into_par_iter().map(bf16::from_f32).collect();
    // Of a document, query and key pairs that causality leaves.
    let pairs = (m.documents * m.length * (m.length + 1) / 2) as f64;
    let product = 2.0 * pairs * q as f64;

    let mut pieces = Vec::new();
    for &compute in precisions() {
        linear_pieces(&mut pieces, m, "norm, q/k/v", m.hidden, norm, &qkv, compute);
        linear_pieces(&mut pieces, m, "o", q, Input::Plain(&attended), &o, compute);
        linear_pieces(&mut pieces, m, "norm, gate/up", m.hidden, norm, &gate_up, compute);
        linear_pieces(&mut pieces, m, "swiglu, down", m.inter, Input::SwiGlu(&inner), &down, compute);
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
            compute,
        };
        let out = attention_forward(&rows, &shape, Some(&rotary), None);
        let (rows, rotary, d_out) = (&rows, &rotary, &d_out);
        pieces.push(Piece {
            name: "attention forward".into(),
            operations: 2.0 * product,
            times: m.layers,
            run: Box::new(move || drop(attention_forward(rows, &shape, Some(rotary), None))),
        });
        pieces.push(Piece {
            name: "attention backward".into(),
            operations: 5.0 * product,
            times: m.layers,
            run: Box::new(move || {
                drop(attention_backward(rows, &shape, Some(rotary), None, &out.out, &out.lse, d_out));
            }),
        });
        let (weight, targets, hidden) = (Weight::Bf16(&head_weight), &targets, &x);
        let head = Linear { out: m.vocab, weight, bias: None, low_rank: None, compute };
        let wanted = HeadWanted { hidden: true, ..Default::default() };
        pieces.push(Piece {
            name: "head and its gradient".into(),
            operations: 4.0 * (tokens * m.hidden * m.vocab) as f64,
            times: 1,
            run: Box::new(move || {
                let by = |_: usize, _: f32| -1.0 / tokens as f32;
                drop(head_fused(hidden, &head, None, targets, &HeadOptions::default(), &by, &wanted));
            }),
        });
    }

    if let Some(only) = only {
        pieces.retain(|piece| piece.name.contains(only));
    }
    let mut times = vec![Vec::new(); pieces.len()];
    let mut peaks = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for (dot, peaks) in [false, true].into_iter().zip(&mut peaks) {
            peaks.extend(peak(dot).filter(|_| round > 0));
        }
        for (piece, times) in pieces.iter_mut().zip(&mut times) {
            let taken = seconds(|| (piece.run)());
            if round > 0 {
                times.push(taken);
            }
        }
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let [fp32, dots] = peaks.each_mut().map(median);
    let shown = |rate: Option<f64>| rate.map_or("unknown".to_string(), |r| format!("{:.0} GF/s", r * 1e-9));
    println!(
        "\n{}: {tokens} tokens, {} threads; peak fp32 {}, bf16 {}, memory {:.1} GB/s",
        m.name,
        rayon::current_num_threads(),
        shown(fp32),
        shown(dots),
        bandwidth() * 1e-9
    );
    let columns = precisions().len();
    let each = pieces.len() / columns;
    print!("{:28} {:>9} {:>6} {:>5}", "", "fp32 ms", "GF/s", "%");
    println!("{}", if columns == 2 { "   bf16 ms   GF/s     %      x" } else { "" });
    let mut sums = [[0.0; 2]; 2];
    let line = |name: &str, both: &[[f64; 2]]| {
        let cells = both.iter().zip([fp32, dots]).map(|(&[s, ops], peak)| row(s, ops, peak));
        let faster = both.get(1).map(|bf16| format!(" {:6.2}", both[0][0] / bf16[0]));
        println!("{name:28}{}{}", cells.collect::<String>(), faster.unwrap_or_default());
    };
    for i in 0..each {
        let mut both = [[0.0; 2]; 2];
        for (k, at) in (i..pieces.len()).step_by(each).enumerate() {
            let (piece, seconds) = (&pieces[at], median(&mut times[at]).unwrap_or(f64::NAN));
            both[k] = [seconds, piece.operations];
            sums[k][0] += seconds * piece.times as f64;
            sums[k][1] += piece.operations * piece.times as f64;
        }
        line(&pieces[i].name, &both[..columns]);
    }
    let name = only.map_or(format!("{} layers and the head", m.layers), |only| format!("a step's {only}"));
    line(&name, &sums[..columns]);
}

/// What is measured: bfloat16 where the processor multiplies it.
fn precisions() -> &'static [Compute] {
    let both = &[Compute::Fp32, Compute::Bf16];
    if isa().has_bf16_dots() { both } else { &both[..1] }
}

/// Bytes of weights that a decoding pass reads at least: more than caches hold.
const READ: usize = 192 << 20;

/// A token of each of some sequences through the layers of as many blocks as caches do not hold: bytes of weights a second.
fn decode(m: &Model, rounds: usize) {
    let (q, kv) = (m.heads * m.head_dim, m.kv_heads * m.head_dim);
    let groups = [
        (m.hidden, vec![q, kv, kv]),
        (q, vec![m.hidden]),
        (m.hidden, vec![m.inter; 2]),
        (m.inter, vec![m.hidden]),
    ];
    let elements: usize = groups.iter().map(|(input, outs)| input * outs.iter().sum::<usize>()).sum();
    let pool: Vec<bf16> = values(elements, 50).into_par_iter().map(bf16::from_f32).collect();
    let blocks: Vec<Vec<bf16>> = (0..READ.div_ceil(2 * elements)).map(|_| pool.clone()).collect();
    let bytes = (2 * elements * blocks.len()) as f64;
    let memory = bandwidth();
    for batch in [1, 16] {
        let x = values(batch * m.hidden.max(q).max(m.inter), 51);
        let rates = precisions().iter().map(|&compute| {
            let pass = || {
                for block in &blocks {
                    let mut at = 0;
                    for (input, outs) in &groups {
                        let linears: Vec<Linear<'_>> = outs
                            .iter()
                            .map(|&out| {
                                let weight = Weight::Bf16(&block[at..at + out * input]);
                                at += out * input;
                                Linear { out, weight, bias: None, low_rank: None, compute }
                            })
                            .collect();
                        drop(linears_decode(
                            batch,
                            *input,
                            Input::Plain(&x[..batch * input]),
                            &linears,
                            None,
                        ));
                    }
                }
            };
            let mut times: Vec<f64> = (0..=rounds).map(|_| seconds(|| on_pool(pass))).skip(1).collect();
            times.sort_by(f64::total_cmp);
            bytes / times[times.len() / 2]
        });
        let shown = rates.zip(["fp32", "bf16"]).map(|(rate, precision)| {
            format!("{:.1} GB/s ({:.0} %) in {precision}", rate * 1e-9, 100.0 * rate / memory)
        });
        println!(
            "decode, {batch} at once: weights in bfloat16 at {}, of {:.1} GB/s",
            shown.collect::<Vec<_>>().join(", "),
            memory * 1e-9
        );
    }
}

/// Milliseconds, rate and share of the peak.
fn row(seconds: f64, operations: f64, peak: Option<f64>) -> String {
    let rate = operations / seconds;
    let share = peak.map_or("-".to_string(), |peak| format!("{:.0}", 100.0 * rate / peak));
    format!(" {:9.2} {:6.0} {share:>5}", seconds * 1e3, rate * 1e-9)
}

fn main() {
    keep_freed_memory();
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let only = names.iter().position(|a| a == "--only").map(|at| {
        let only = names.drain(at..names.len().min(at + 2)).nth(1);
        only.unwrap_or_else(|| {
            eprintln!("roofline: `--only` needs a part of an operation's name");
            std::process::exit(2)
        })
    });
    let rounds = names.iter().position(|a| a.parse::<usize>().is_ok()).map_or(9, |at| {
        let rounds = names.remove(at).parse().unwrap_or(9);
        usize::max(rounds, 1)
    });
    if let Some(at) = names.iter().position(|a| a == "--busy") {
        names.remove(at);
        BUSY.store(true, Ordering::Relaxed);
    }
    if names.is_empty() {
        names = vec!["30m".into()];
    }
    let models: Vec<&Model> = names
        .iter()
        .map(|name| {
            MODELS.iter().find(|m| m.name == name).unwrap_or_else(|| {
                eprintln!("roofline: no model {name}; expected 30m, 0.6b or 1m, and a number of rounds");
                std::process::exit(2)
            })
        })
        .collect();
    println!("{:?}, dot products of bfloat16: {}", isa(), isa().has_bf16_dots());
    for m in models {
        if only.as_deref() != Some("decode") {
            measure(m, rounds, only.as_deref());
        }
        if only.as_deref().is_none_or(|only| only == "decode") {
            decode(m, rounds);
        }
    }
}
