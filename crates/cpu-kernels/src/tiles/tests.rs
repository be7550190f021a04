#![allow(clippy::undocumented_unsafe_blocks, reason = "tests")]

use super::emulated::Emulated;
use super::*;
use crate::micro::{LDP, NR};
use crate::operand::{Bf16, Operand};
use half::bf16;

/// A word of two values.
fn word(first: f32, second: f32) -> f32 {
    Bf16::word(first, second)
}

/// One product of registers of `rows` x `depth` by `depth` x `columns` words, added to `c`.
fn product(rows: usize, depth: usize, columns: usize, a: &[f32], b: &[f32], c: f32) -> Vec<f32> {
    let mut left = [[0.0; SIDE]; SIDE];
    let mut right = [[0.0; SIDE]; SIDE];
    for k in 0..depth {
        (0..rows).for_each(|i| left[i][k] = a[i * depth + k]);
        right[k][..columns].copy_from_slice(&b[k * columns..(k + 1) * columns]);
    }
    let mut sums = [[c; SIDE]; SIDE];
    let mut engine = Emulated::new();
    unsafe {
        engine.configure(Shape { rows, columns: [columns, columns] });
        engine.load::<4>(left.as_ptr().cast(), SIDE);
        engine.load::<6>(right.as_ptr().cast(), SIDE);
        engine.load::<0>(sums.as_ptr().cast(), SIDE);
        engine.dot::<0, 4, 6>();
        engine.store::<0>(sums.as_mut_ptr().cast(), SIDE);
        engine.release();
    }
    (0..rows * columns).map(|e| sums[e / columns][e % columns]).collect()
}

/// First and second values are summed apart, each by one rounding a step, and their sum is added once.
#[test]
fn the_unit_sums_in_the_manuals_order() {
    // 2^24 + 1 is 2^24: added one by one to the first sum the ones are lost, in the second they are not.
    let a = [word(4096.0, 1.0), word(1.0, 1.0), word(1.0, 1.0)];
    let b = [word(4096.0, 1.0), word(1.0, 1.0), word(1.0, 1.0)];
    assert_eq!(product(1, 3, 1, &a, &b, 0.0), [16_777_216.0 + 4.0]); // 3 rounds to 4, to even
    // The sum joins C once: 2^25 + (1 + 1) is 2^25, added or not.
    assert_eq!(product(1, 1, 1, &[word(1.0, 1.0)], &[word(1.0, 1.0)], 33_554_432.0), [33_554_432.0]);
    // 2^25 + (2 + 2) is seen, 2 alone is not.
    assert_eq!(product(1, 1, 1, &[word(2.0, 2.0)], &[word(1.0, 1.0)], 33_554_432.0), [33_554_436.0]);
}

/// Denormals are zeros before and after: in operands, products, sums and C.
#[test]
fn the_unit_flushes_denormals() {
    let tiny = f32::from_bits(1 << 16);
    assert!(tiny.is_subnormal() && bf16::from_f32(tiny).to_f32() == tiny);
    let large = bf16::MAX.to_f32();
    assert_eq!(product(1, 1, 1, &[word(tiny, 0.0)], &[word(large, 0.0)], 0.0), [0.0]);
    let small = f32::MIN_POSITIVE;
    assert_eq!(product(1, 1, 1, &[word(small, 0.0)], &[word(0.5, 0.0)], 0.0), [0.0]);
    assert_eq!(product(1, 1, 1, &[word(-small, 0.0)], &[word(0.5, 0.0)], 1.0), [1.0]);
    // 1.5 small - small is denormal.
    assert_eq!(product(1, 1, 1, &[word(1.5 * small, -small)], &[word(1.0, 1.0)], 0.0), [0.0]);
    assert_eq!(product(1, 1, 1, &[word(0.0, 0.0)], &[word(1.0, 1.0)], 0.5 * small), [0.0]);
    // Normal numbers stay: a product below the range that a sum brings back is rounded once.
    assert_eq!(product(1, 1, 1, &[word(small, 0.0)], &[word(1.0, 0.0)], 0.0), [small]);
    assert!(product(1, 1, 1, &[word(f32::NAN, 0.0)], &[word(1.0, 1.0)], 0.0)[0].is_nan());
    assert_eq!(product(1, 1, 1, &[word(large, 0.0)], &[word(large, 0.0)], 0.0), [f32::INFINITY]);
}

/// Registers smaller than sixteen by sixteen.
#[test]
fn the_unit_keeps_to_its_shapes() {
    // The depth of a product is A's columns: words beyond are zeros here.
    let a: Vec<f32> = (0..6).map(|i| word(i as f32, 1.0)).collect();
    let b: Vec<f32> = (0..15).map(|i| word(1.0, i as f32)).collect();
    let got = product(2, 3, 5, &a, &b, 100.0);
    for (e, got) in got.into_iter().enumerate() {
        let (i, j) = (e / 5, e % 5);
        let want: usize = (0..3).map(|k| i * 3 + k + k * 5 + j).sum();
        assert_eq!(got, 100.0 + want as f32);
    }
}

/// Strips of every edge against sums in f64, by rows and by columns, written and added; what lies beside C stays.
#[test]
fn strips_have_every_edge() {
    let value = |i: usize| (burnish_core::random::mix32(i as u32) % 17) as f32 - 8.0;
    for m in [1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 48, 64, 65, 112] {
        for n in [1, 5, 15, 16, 17, 31, 32] {
            for k in [1, 8, 15, 16, 17, 32, 45, 264] {
                let a: Vec<f32> = (0..m * k).map(|i| word(value(2 * i), value(2 * i + 1))).collect();
                let b: Vec<f32> = (0..k * n).map(|i| word(value(2 * i + 9), value(2 * i + 10))).collect();
                let sum = |i: usize, j: usize| -> f32 {
                    let halves = |word: f32| {
                        let bits = word.to_bits();
                        [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
                    };
                    (0..k)
                        .map(|l| {
                            let (x, y) = (halves(a[i * k + l]), halves(b[l * n + j]));
                            x[0] * y[0] + x[1] * y[1]
                        })
                        .sum()
                };
                // Whole numbers: every order of sums is exact.
                let want: Vec<f32> = (0..m * n).map(|e| sum(e / n, e % n)).collect();
                // Memory beside the operands is no number: nothing of it may be read.
                let mut rows = vec![f32::NAN; m * LDP];
                (0..m * k).for_each(|e| rows[e / k * LDP + e % k] = a[e]);
                let columns: Vec<f32> = (0..k * m).map(|e| a[e % m * k + e / m]).collect();
                let ldc = n + 3;
                for (alpha, add) in [(1.0, false), (1.0, true), (0.5, false), (2.0, true)] {
                    let mut c = vec![3.0_f32; m * ldc];
                    let t = Tile {
                        m,
                        n,
                        k,
                        a: rows.as_ptr(),
                        a_step: 1,
                        b: b.as_ptr(),
                        ldb: n,
                        c: c.as_mut_ptr(),
                        ldc,
                        alpha,
                        add,
                    };
                    let check = |c: &[f32], what: &str| {
                        for (e, got) in c.iter().enumerate() {
                            let (i, j) = (e / ldc, e % ldc);
                            let old = if j >= n || add { 3.0 } else { 0.0 };
                            let want = if j < n { alpha * want[i * n + j] + old } else { old };
                            assert_eq!(*got, want, "{what} {m} x {n} x {k}, {alpha} {add}: [{i}, {j}]");
                        }
                    };
                    let isa = Isa::EmulatedAmx;
                    unsafe { strips::<Emulated, LDP>(isa, std::iter::once(t)) };
                    check(&c, "rows");
                    c.fill(3.0);
                    let t = Tile { a: columns.as_ptr(), a_step: m, c: c.as_mut_ptr(), ..t };
                    unsafe { strips::<Emulated, 1>(isa, std::iter::once(t)) };
                    check(&c, "columns");
                }
            }
        }
    }
}

/// Strips of one session: shapes that change, one A for several, another A at the end.
#[test]
fn strips_of_one_session() {
    let (m, k) = (20, 19);
    let a: Vec<f32> = (0..2 * k * m).map(|i| word((i % 13) as f32 - 6.0, (i % 7) as f32)).collect();
    let b: Vec<f32> = (0..k * NR).map(|i| word((i % 5) as f32, (i % 11) as f32 - 5.0)).collect();
    let mut got = vec![vec![f32::NAN; m * NR]; 4];
    let mut want = got.clone();
    let tiles = |c: &mut [Vec<f32>]| -> Vec<Tile> {
        [(0, m, 32), (0, m, 9), (0, m, 32), (k * m, 3, 32)]
            .into_iter()
            .zip(c)
            .map(|((from, m, n), c)| Tile {
                m,
                n,
                k,
                a: a[from..].as_ptr(),
                a_step: 20,
                b: b.as_ptr(),
                ldb: NR,
                c: c.as_mut_ptr(),
                ldc: NR,
                alpha: 1.0,
                add: false,
            })
            .collect()
    };
    unsafe {
        strips::<Emulated, 1>(Isa::EmulatedAmx, tiles(&mut got).into_iter());
        crate::micro::strips::<Bf16, 1>(Isa::Portable, tiles(&mut want).into_iter());
    }
    let bits = |c: &[Vec<f32>]| c.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&got), bits(&want));
}

/// A unit with a fault.
struct Faulty<const FAULT: u8>(Emulated);

impl<const FAULT: u8> TileEngine for Faulty<FAULT> {
    fn new() -> Self {
        Self(Emulated::new())
    }
    unsafe fn configure(&mut self, shape: Shape) {
        self.0.configure(shape);
    }
    unsafe fn zero<const T: u8>(&mut self) {
        // Registers that keep what was in them.
        if FAULT != 1 {
            self.0.zero::<T>();
        }
    }
    unsafe fn load<const T: u8>(&mut self, from: *const f32, stride: usize) {
        // Another stride.
        let stride = if FAULT == 2 && T == 5 { 0 } else { stride };
        self.0.load::<T>(from, stride);
    }
    unsafe fn store<const T: u8>(&mut self, to: *mut f32, stride: usize) {
        // A register that is not stored.
        if FAULT != 3 || T != 3 {
            self.0.store::<T>(to, stride);
        }
    }
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self) {
        // A product that is not made.
        if FAULT != 4 || C != 1 {
            self.0.dot::<C, A, B>();
        }
    }
    unsafe fn release(&mut self) {
        self.0.release();
    }
}

/// The check before first use passes on a unit as the manual has it, and on no other.
#[test]
fn a_faulty_unit_is_found() {
    for &isa in Isa::available() {
        unsafe {
            assert!(agrees::<Emulated>(isa.lanes()), "{isa:?}");
            assert!(!agrees::<Faulty<1>>(isa.lanes()), "{isa:?}");
            assert!(!agrees::<Faulty<2>>(isa.lanes()), "{isa:?}");
            assert!(!agrees::<Faulty<3>>(isa.lanes()), "{isa:?}");
            assert!(!agrees::<Faulty<4>>(isa.lanes()), "{isa:?}");
        }
    }
}
