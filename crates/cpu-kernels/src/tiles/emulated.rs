//! Tile registers in plain Rust, as Intel's manual (volume 2, TDPBF16PS) states them.

use super::{SIDE, Shape, TileEngine};

/// Eight registers, of which nothing outside their shapes is ever kept.
pub(crate) struct Emulated {
    shape: Option<Shape>,
    words: Box<[[[f32; SIDE]; SIDE]; 8]>,
}

/// Denormals are zero, as before and after each operation of the unit.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

/// `a * b + c` of values of bfloat16 and a sum, rounded once.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let product = a * b;
    // A product of two values of eight bits has sixteen: it is exact as long as it is a normal number.
    let sum = if product.is_normal() { product + c } else { a.mul_add(b, c) };
    flushed(sum)
}

/// The values of a word.
fn halves(word: f32) -> [f32; 2] {
    [word.to_bits() << 16, word.to_bits() & 0xffff_0000].map(|bits| flushed(f32::from_bits(bits)))
}

impl Emulated {
    /// Rows of a register, and words of each.
    fn size(&self, register: u8) -> (usize, usize) {
        let shape = self.shape.expect("a register is used before its shape is known");
        let (rows, bytes) = shape.register(usize::from(register));
        assert!(
            (1..=SIDE).contains(&rows) && (4..=4 * SIDE).contains(&bytes),
            "a shape that no register has"
        );
        (rows, bytes / 4)
    }
}

impl TileEngine for Emulated {
    fn new() -> Self {
        Self { shape: None, words: Box::new([[[f32::NAN; SIDE]; SIDE]; 8]) }
    }
    unsafe fn configure(&mut self, shape: Shape) {
        self.shape = Some(shape);
        *self.words = [[[0.0; SIDE]; SIDE]; 8];
    }
    unsafe fn zero<const T: u8>(&mut self) {
        let _ = self.size(T);
        self.words[usize::from(T)] = [[0.0; SIDE]; SIDE];
    }
    unsafe fn load<const T: u8>(&mut self, from: *const f32, stride: usize) {
        let (rows, words) = self.size(T);
        let register = &mut self.words[usize::from(T)];
        *register = [[0.0; SIDE]; SIDE];
        for (i, row) in register[..rows].iter_mut().enumerate() {
            // SAFETY: the caller's.
            unsafe { row.as_mut_ptr().copy_from_nonoverlapping(from.add(i * stride), words) };
        }
    }
    unsafe fn store<const T: u8>(&mut self, to: *mut f32, stride: usize) {
        let (rows, words) = self.size(T);
        for (i, row) in self.words[usize::from(T)][..rows].iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { to.add(i * stride).copy_from_nonoverlapping(row.as_ptr(), words) };
        }
    }
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self) {
        let ((rows, columns), (a_rows, depth), (b_rows, b_columns)) =
            (self.size(C), self.size(A), self.size(B));
        // Other shapes are a fault of the processor.
        assert_eq!((rows, depth, columns), (a_rows, b_rows, b_columns), "shapes of registers disagree");
        assert!(C != A && C != B && A != B, "one register twice");
        let [a, b] = [A, B].map(|register| self.words[usize::from(register)]);
        let c = &mut self.words[usize::from(C)];
        for i in 0..rows {
            let mut sums = [[0.0_f32; 2]; SIDE];
            for k in 0..depth {
                let x = halves(a[i][k]);
                for (sums, &word) in sums[..columns].iter_mut().zip(&b[k]) {
                    let y = halves(word);
                    sums.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (&x, y))| *sum = fused(x, y, *sum));
                }
            }
            for (c, [first, second]) in c[i][..columns].iter_mut().zip(sums) {
                *c = flushed(flushed(*c) + flushed(first + second));
            }
        }
    }
    unsafe fn release(&mut self) {
        self.shape = None;
    }
}
