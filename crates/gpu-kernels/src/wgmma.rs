//! Products by the tensor cores of Hopper (`wgmma`): 64 by up to 256 by 16, of a warpgroup of four planes.
//!
//! The right factors are read from shared memory, the left ones from there or from registers. Tiles lie in lines of 128
//! bytes, whose eighths are in an order of the line's own (the swizzle of 128 bytes). Along the depth a line has 64 factors of a
//! row; across it has 64 rows or columns of one factor, and lines of the next 64 are behind all of these. Sums are in registers
//! that a kernel names itself, since they are in use while it does other things. They are added in the order of the hardware,
//! which is another than that of [`crate::mma`].

use cubecl_core as cubecl;
use cubecl_core::ir::features::Tma;
use cubecl_core::prelude::*;

use crate::buffer::FloatType;
use crate::mma::{Pair, STRIP};

/// Planes of a warpgroup.
pub(crate) const PLANES: usize = 4;
/// Rows that it multiplies at a time.
pub(crate) const ROWS: usize = 64;
/// Eights of a line.
pub(crate) const WIDTH: usize = 8;
/// Elements of a line.
pub(crate) const LINE: usize = 8 * WIDTH;
/// Lines of which each has its order of eights.
const ORDERS: usize = 8;
/// What tiles begin at multiples of, in bytes: where the orders begin anew.
pub(crate) const ALIGNMENT: usize = 1024;

/// Whether a device has such tensor cores and so much shared memory for a cube: of compute capability 9, of which alone CubeCL
/// says just this about tensor maps.
pub(crate) fn multiplies(client: &Client, bytes: usize) -> bool {
    let properties = client.properties();
    let tma = properties.features.tma;
    tma.contains(Tma::Base)
        && !tma.contains(Tma::Im2colWide)
        && properties.hardware.max_shared_memory_size >= bytes
}

/// A tile in shared memory: `across` rows or columns of factors by `depth`, in boxes of a line by all of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    /// Whether lines are along the depth.
    pub(crate) along: bool,
    pub(crate) across: usize,
    pub(crate) depth: usize,
}

impl Tile {
    /// Eights of all.
    pub(crate) fn eights(self) -> usize {
        self.across * self.depth / 8
    }

    /// Lines of a box.
    pub(crate) fn lines(self) -> usize {
        if self.along { self.across } else { self.depth }
    }

    /// Boxes.
    pub(crate) fn boxes(self) -> usize {
        self.eights() / self.lines() / WIDTH
    }

    /// Where the product number `step` of [`STRIP`] factors begins, in units of 16 bytes.
    pub(crate) fn step(self, step: usize) -> usize {
        if self.along {
            let steps = LINE / STRIP;
            step / steps * self.across * WIDTH + step % steps * STRIP / 8
        } else {
            step * STRIP * WIDTH
        }
    }

    /// Where rows or columns from `first` on, whole lines of them, begin, in units of 16 bytes.
    pub(crate) fn from(self, first: usize) -> usize {
        if self.along { first * WIDTH } else { first / LINE * self.depth * WIDTH }
    }

    /// The lower half of what `wgmma` is told of a tile, but for where it begins: from lines of 64 rows or columns to the next,
    /// in units of 16 bytes.
    pub(crate) fn described(self) -> u32 {
        let blocks = if self.along { 1 } else { self.depth * WIDTH };
        (blocks << 16) as u32
    }
}

/// The upper half: from eight lines to the next, in units of 16 bytes, and the order of eights.
pub(crate) const DESCRIBED: u64 = ((ORDERS * WIDTH) as u64 | 1 << 30) << 32;

/// What `wgmma` is told of a tile that begins `further` behind what `at` says, in units of 16 bytes. It is put together where it is
/// used: kept for a loop, those of all steps take many registers.
#[cube]
pub(crate) fn told(at: u32, #[comptime] further: usize) -> u64 {
    let lower: u32;
    gpu_asm!(
        "add.u32 {lower}, {at}, {further};",
        lower = out(_) lower,
        at = in(_) at,
        further = const further,
        options(nomem)
    );
    u64::cast_from(lower) | DESCRIBED
}

/// The address in shared memory, as instructions of it take it.
#[cube]
pub(crate) fn address<T: CubePrimitive>(at: *const T) -> u32 {
    let found: u32;
    gpu_asm!(
        "{{ .reg .u64 shared_at; cvta.to.shared.u64 shared_at, {at}; cvt.u32.u64 {found}, shared_at; }}",
        found = out(_) found,
        at = mem_in(_) at,
        options(explicit_mem)
    );
    found
}

/// Has a line of memory brought to the second-level cache.
#[cube]
pub(crate) fn prefetch<T: CubePrimitive>(at: *const T) {
    gpu_asm!("prefetch.L2 [{at}];", at = mem_in(_) at, options(explicit_mem));
}

/// Registers of a kernel by the name that it gives them.
pub(crate) type Name = &'static str;

/// Names of `count` registers from `first`.
fn names(name: Name, first: usize, count: usize) -> String {
    (first..first + count).map(|i| format!("wgmma_{name}{i}")).collect::<Vec<_>>().join(", ")
}

fn zeros(name: Name, count: usize) -> String {
    (0..count).map(|i| format!("mov.f32 wgmma_{name}{i}, 0f00000000;")).collect::<Vec<_>>().join("\n")
}

/// Registers of sums, zeros. A kernel begins with them.
#[cube]
pub(crate) fn begin_sums(#[comptime] name: Name, #[comptime] count: usize) {
    name_sums(name, count);
    zero_sums(name, count);
}

/// Registers of sums, of which none is anything yet. A kernel begins with them.
#[cube]
pub(crate) fn name_sums(#[comptime] name: Name, #[comptime] count: usize) {
    gpu_asm!(".reg .f32 wgmma_{name}<{count}>;", name = const name, count = const count, options(nomem));
}

/// Makes sums zeros, while no product is under way.
#[cube]
pub(crate) fn zero_sums(#[comptime] name: Name, #[comptime] count: usize) {
    gpu_asm!("{zeros}", zeros = const zeros(name, count), options(nomem));
}

/// A sum, while no product is under way.
#[cube]
pub(crate) fn sum(#[comptime] name: Name, #[comptime] at: usize) -> f32 {
    let sum: f32;
    gpu_asm!(
        "mov.f32 {sum}, wgmma_{name}{at};",
        sum = out(_) sum,
        name = const name,
        at = const at,
        options(nomem)
    );
    sum
}

fn scaled(name: Name, count: usize) -> String {
    let by = |i: usize| if (i / 2).is_multiple_of(2) { "upper" } else { "lower" };
    let one = |i: usize| format!("mul.f32 wgmma_{name}{i}, wgmma_{name}{i}, wgmma_{};", by(i));
    (0..count).map(one).collect::<Vec<_>>().join("\n")
}

/// Multiplies the sums of a row, and those of the row eight below, while no product is under way.
#[cube]
pub(crate) fn scale(#[comptime] name: Name, #[comptime] count: usize, upper: f32, lower: f32) {
    gpu_asm!(
        "{{\n.reg .f32 wgmma_upper, wgmma_lower;\nmov.f32 wgmma_upper, {upper};\nmov.f32 wgmma_lower, {lower};",
        "{scaled}\n}}",
        upper = in(_) upper,
        lower = in(_) lower,
        scaled = const scaled(name, count),
        options(nomem)
    );
}

fn instruction(factors: FloatType, columns: usize) -> String {
    let of = match factors {
        FloatType::Bf16 => "bf16",
        FloatType::F16 => "f16",
        FloatType::F32 => unreachable!("invariant: factors of 16 bits"),
    };
    format!("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{of}.{of}")
}

/// Adds a product of 64 by 16 and 16 by `columns` to the sums from `first`, at some time.
#[cube]
pub(crate) fn add(
    left: u64,
    right: u64,
    #[comptime] name: Name,
    #[comptime] first: usize,
    #[comptime] columns: usize,
    #[comptime] along: [bool; 2],
    #[comptime] factors: FloatType,
) {
    put_product(left, right, name, first, columns, true, along, factors);
}

/// Puts such a product into the sums, or adds it to what they are if `adds`.
#[cube]
pub(crate) fn put_product(
    left: u64,
    right: u64,
    #[comptime] name: Name,
    #[comptime] first: usize,
    #[comptime] columns: usize,
    #[comptime] adds: bool,
    #[comptime] along: [bool; 2],
    #[comptime] factors: FloatType,
) {
    gpu_asm!(
        "{{\n.reg .pred wgmma_add;\nsetp.ne.u32 wgmma_add, {adds}, 0;\n",
        "{instruction} {{{sums}}}, {left}, {right}, wgmma_add, 1, 1, {a}, {b};\n}}",
        instruction = const instruction(factors, columns),
        sums = const names(name, first, columns / 2),
        left = in(_) left,
        right = in(_) right,
        adds = const u32::from(adds),
        a = const u32::from(!along[0]),
        b = const u32::from(!along[1]),
    );
}

/// Registers of left factors, two each.
#[cube]
pub(crate) fn begin_lefts(#[comptime] name: Name, #[comptime] count: usize) {
    gpu_asm!(".reg .b32 wgmma_{name}<{count}>;", name = const name, count = const count, options(nomem));
}

/// Puts two factors into such a register: what is earlier along the depth in the lower half.
#[cube]
pub(crate) fn put_left<E: Float>(#[comptime] name: Name, #[comptime] at: usize, factors: Pair<E>) {
    let both = u32::reinterpret(factors);
    gpu_asm!(
        "mov.b32 wgmma_{name}{at}, {both};",
        name = const name,
        at = const at,
        both = in(_) both,
        options(nomem)
    );
}

/// Adds a product of 64 by 16, of which four registers from `from` are this unit's (a row's, that of the row eight below, and both
/// eight columns further), and 16 by `columns`.
#[cube]
pub(crate) fn add_lefts(
    #[comptime] lefts: Name,
    #[comptime] from: usize,
    right: u64,
    #[comptime] name: Name,
    #[comptime] first: usize,
    #[comptime] columns: usize,
    #[comptime] along: bool,
    #[comptime] factors: FloatType,
) {
    gpu_asm!(
        "{{\n.reg .pred wgmma_add;\nsetp.eq.u32 wgmma_add, 0, 0;\n",
        "{instruction} {{{sums}}}, {{{lefts}}}, {right}, wgmma_add, 1, 1, {b};\n}}",
        instruction = const instruction(factors, columns),
        sums = const names(name, first, columns / 2),
        lefts = const names(lefts, from, 4),
        right = in(_) right,
        b = const u32::from(!along),
    );
}

/// Begins products.
#[cube]
pub(crate) fn begin() {
    gpu_asm!("wgmma.fence.sync.aligned;");
}

/// Ends a group of products.
#[cube]
pub(crate) fn commit() {
    gpu_asm!("wgmma.commit_group.sync.aligned;");
}

/// Waits until all groups of products but the last so many are done.
#[cube]
pub(crate) fn wait(#[comptime] but: usize) {
    gpu_asm!("wgmma.wait_group.sync.aligned {but};", but = const but);
}

/// Units that have a row's sums of an eight of columns, two each.
pub(crate) const QUAD: usize = 4;

/// Exchanges what units hold of as many eights of columns with the unit `across` from this one among four, where the bit of
/// `across` of an eight's number is another than the unit's. After 1 and 2, unit n of four has what all of them had of the eight
/// number n, in their order.
#[cube]
pub(crate) fn exchange<T: Scalar>(words: &mut Array<T>, #[comptime] across: usize) {
    let second = UNIT_POS as usize / across % 2 == 1;
    #[unroll]
    for i in 0..comptime!(QUAD / 2) {
        let (low, high) = comptime!(if across == 1 { (2 * i, 2 * i + 1) } else { (i, i + 2) });
        let (one, other) = (words[low], words[high]);
        let got = plane_shuffle_xor(select(second, one, other), across as u32);
        words[low] = select(second, got, one);
        words[high] = select(second, other, got);
    }
}

/// Registers of each unit of a warpgroup that only asks for tiles, and of those of so many beside it that multiply: what a
/// multiprocessor has, shared out anew.
pub(crate) fn registers(warpgroups: usize) -> (usize, usize) {
    if warpgroups < 3 { (24, 240) } else { (32, 160) }
}

/// Has so many registers for each unit of a warpgroup from now on, more or fewer than before.
#[cube]
pub(crate) fn set_registers(#[comptime] count: usize, #[comptime] more: bool) {
    gpu_asm!(
        "setmaxnreg.{to}.sync.aligned.u32 {count};",
        to = const if more { "inc" } else { "dec" },
        count = const count,
    );
}
