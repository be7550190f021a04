//! Times the Newton–Schulz iteration against its GEMMs alone, interleaved; medians (`least`: the least) in milliseconds.
//!
//! "GEMMs" are the `gemm` crate's of the same number and shapes on all threads, products known to be symmetric counted
//! at half the time of the full one; "ratio" is the iteration's time over theirs (of the form that runs). Two iterations
//! are timed at once, and the GEMMs of two: symmetric products half as often, so that what is compared takes equally
//! long and other work on the machine hits both alike. GFLOP/s count symmetric products at half cost as well. "batch" is
//! many matrices of one call.
//!
//! With `cpu` the times are those that the process's threads spent running (Linux), which on a shared machine says more
//! than the clock; run it with `RAYON_NUM_THREADS=1`, since waiting threads count.
//!
//! `bf16`: products of bfloat16, against the same GEMMs in fp32.
//!
//! `cargo run --release -p burnish-cpu-kernels --example orthogonal [rounds] [cpu] [least] [bf16] [ROWSxCOLUMNS ...]`

use burnish_cpu_kernels::Compute;
use burnish_cpu_kernels::orthogonal::{
    Coefficients, Form, Iteration, Matrix, orthogonalize, orthogonalize_all,
};
use std::hint::black_box;
use std::time::Instant;

const SHAPES: [(usize, usize); 13] = [
    (128, 128),
    (256, 256),
    (512, 512),
    (576, 1536),
    (768, 3072),
    (1024, 1024),
    (2048, 512),
    (1536, 576),
    (1024, 1152),
    (1024, 1280),
    (512, 768),
    (256, 512),
    (1408, 512),
];
const BATCHES: [(usize, usize, usize); 5] =
    [(64, 64, 64), (32, 256, 256), (64, 64, 512), (16, 512, 512), (8, 768, 3072)];

fn values(n: usize) -> Vec<f32> {
    let stream = burnish_core::random::Stream::new(1, "orthogonal");
    (0..n as u64).map(|i| stream.uniform(i) - 0.5).collect()
}

/// `c = a b`, `[m, k] x [k, n]`, `b` transposed if asked.
fn plain(m: usize, k: usize, n: usize, a: &[f32], b: &[f32], transposed: bool, c: &mut [f32]) {
    assert!(a.len() >= m * k && b.len() >= k * n && c.len() >= m * n);
    let (row, column) = if transposed { (1, k) } else { (n, 1) };
    // SAFETY: the lengths were checked; strides are those of row-major matrices.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.as_ptr(),
            1,
            k as isize,
            b.as_ptr(),
            column as isize,
            row as isize,
            0.0_f32,
            1.0_f32,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(0),
        );
    }
}

/// Seconds that all threads of this process have run.
fn running() -> Option<f64> {
    let mut total = 0.0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let line = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        total += line.split_whitespace().next()?.parse::<f64>().ok()? * 1e-9;
    }
    Some(total)
}

fn asked(word: &str) -> bool {
    std::env::args().any(|a| a == word)
}

fn name(&(rows, columns): &(usize, usize)) -> String {
    format!("{rows}x{columns}")
}

/// Seconds of one call, of as many as make `flops` long enough to be timed.
fn seconds(flops: f64, work: &mut dyn FnMut()) -> f64 {
    let cpu = asked("cpu");
    // The kernel counts a running thread at its ticks, milliseconds apart.
    let calls = if cpu { (1e10 / flops).ceil() } else { 1.0 };
    let now = || running().expect("/proc/self/task/*/schedstat is readable");
    let (start, before) = (Instant::now(), if cpu { now() } else { 0.0 });
    for _ in 0..calls as usize {
        work();
    }
    let total = if cpu { now() - before } else { start.elapsed().as_secs_f64() };
    total / calls
}

/// The median, or the least if asked.
fn typical(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[if asked("least") { 0 } else { times.len() / 2 }]
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(15);
    let compute = if asked("bf16") { Compute::Bf16 } else { Compute::Fp32 };
    let iteration = |form| Iteration { coefficients: Coefficients::keller(5), form, compute };
    println!(
        "{:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7}",
        "shape", "standard", "GEMMs", "gram", "GEMMs", "auto is", "ratio", "ratio", "GF/s", "GF/s"
    );
    let some = std::env::args().any(|a| SHAPES.iter().any(|s| a == name(s)));
    for (rows, columns) in SHAPES.into_iter().filter(|s| !some || asked(&name(s))) {
        let (m, n) = (rows.min(columns), rows.max(columns));
        let (x, mut out) = (values(m * n), vec![0.0; m * n]);
        let (square, mut small) = (values(m * m), vec![0.0; m * m]);
        let flops = |form| iteration(form).flops(rows, columns) as f64;
        let rate = |form, time: f64| flops(form) * 1e-9 / time;
        let legs = iteration(Form::Gram).legs(rows, columns);
        let inner: usize = legs.iter().map(|leg| 4 * leg.len() - 3).sum();
        // `X Xᵀ`, `R R`, `P X` of two iterations.
        let counts = [(Form::Standard, [5, 5, 10]), (Form::Gram, [legs.len(), inner, 2 * legs.len()])];
        let mut times = vec![Vec::new(); 4];
        for round in 0..rounds + 2 {
            let mut each = Vec::new();
            for (form, [grams, squares, products]) in counts {
                let it = iteration(form);
                each.push(seconds(2.0 * flops(form), &mut || {
                    for _ in 0..2 {
                        orthogonalize(&x, rows, columns, &it, &mut out).expect("finite");
                    }
                }));
                each.push(seconds(2.0 * flops(form), &mut || {
                    (0..grams).for_each(|_| plain(m, n, m, &x, &x, true, &mut small));
                    (0..squares).for_each(|_| plain(m, m, m, &square, &square, false, &mut small));
                    (0..products).for_each(|_| plain(m, m, n, &square, &x, false, &mut out));
                }));
            }
            black_box((&out, &small));
            if round >= 2 {
                times.iter_mut().zip(each).for_each(|(t, e)| t.push(0.5 * e));
            }
        }
        let t: Vec<f64> = times.iter_mut().map(|t| typical(t)).collect();
        let auto = if iteration(Form::Auto).legs(rows, columns) == legs { "gram" } else { "standard" };
        println!(
            "{:>12} {:9.3} {:9.3} {:9.3} {:9.3} {:>9} {:7.2} {:7.2} {:7.0} {:7.0}",
            name(&(rows, columns)),
            t[0] * 1e3,
            t[1] * 1e3,
            t[2] * 1e3,
            t[3] * 1e3,
            auto,
            t[0] / t[1],
            t[2] / t[3],
            rate(Form::Standard, t[0]),
            rate(Form::Gram, t[2])
        );
    }
    if some {
        return;
    }
    println!("{:>16} {:>9} {:>9} {:>7}", "batch", "one call", "one by one", "GF/s");
    for (count, rows, columns) in BATCHES {
        let it = iteration(Form::Auto);
        let flops = (count as u64 * it.flops(rows, columns)) as f64;
        let data = values(count * rows * columns);
        let mut work = data.clone();
        let (mut together, mut single) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            work.copy_from_slice(&data);
            let mut batch: Vec<Matrix<'_>> =
                work.chunks_mut(rows * columns).map(|values| Matrix { values, rows, columns }).collect();
            together.push(seconds(flops, &mut || orthogonalize_all(&mut batch, &it).expect("finite")));
            single.push(seconds(flops, &mut || {
                for (x, out) in data.chunks(rows * columns).zip(work.chunks_mut(rows * columns)) {
                    orthogonalize(x, rows, columns, &it, out).expect("finite");
                }
            }));
        }
        let (a, b) = (typical(&mut together), typical(&mut single));
        let rate = flops * 1e-9 / a;
        println!("{:>16} {:9.3} {:9.3} {:7.0}", format!("{count} {rows}x{columns}"), a * 1e3, b * 1e3, rate);
    }
}
