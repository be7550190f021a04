//! Products by the tensor cores of Hopper (`wgmma`): 64 by up to 256 by 16, of a warpgroup of four planes, read from shared memory.
//!
//! Tiles lie there in lines of 128 bytes, whose eighths are in an order of the line's own (the swizzle of 128 bytes). Along the
//! depth a line has 64 factors of a row; across it has 64 rows or columns of one factor, and lines of the next 64 are behind all
//! of these. The hardware brings them so, box by box of a tensor (TMA), for which one plane asks that does nothing else;
//! barriers in shared memory say that a slab is there, and that its place is free. Sums are in registers that the kernel names
//! itself, since they are in use while it does other things. They are added in the order of the hardware, which is another than
//! that of [`super::cores`].

use cubecl_core as cubecl;
use cubecl_core::ir::features::Tma;
use cubecl_core::prelude::barrier::Barrier;
use cubecl_core::prelude::*;
use cubecl_core::zspace::{shape, strides};

use super::finish::{Form, Place, Share, Sizes, put_run, share, written_from};
use super::tiles::Tiles;
use super::{Finish, Matrices, Product};
use crate::buffer::FloatType;
use crate::mma::{Eight, PLANE, Pair, STRIP, pair};

/// Planes of a warpgroup.
const PLANES: usize = 4;
/// Rows that it multiplies at a time.
const ROWS: usize = 64;
/// Factors of a sum that are in shared memory together.
const DEPTH: usize = 64;
/// Bytes of a barrier.
const BARRIER: usize = 8;
/// Eights of a line.
const WIDTH: usize = 8;
/// Elements of a line.
const LINE: usize = 8 * WIDTH;
/// Lines of which each has its order of eights.
const ORDERS: usize = 8;
/// What tiles begin at multiples of, in bytes: where the orders begin anew.
const ALIGNMENT: usize = 1024;
/// Fewer rows or columns are others' to multiply.
const LEAST: usize = 128;

/// Whether a device has such tensor cores: of compute capability 9, of which alone CubeCL says just this about tensor maps.
pub(super) fn multiplies(client: &Client) -> bool {
    let properties = client.properties();
    let tma = properties.features.tma;
    tma.contains(Tma::Base)
        && !tma.contains(Tma::Im2colWide)
        && properties.hardware.max_shared_memory_size >= bytes(LARGE)
}

const fn new(rows: usize, columns: usize, stages: usize) -> Tiles {
    Tiles { rows, columns, down: 2 * PLANES, across: 1, depth: DEPTH, stages }
}

/// The most factors are used twice.
const LARGE: Tiles = new(128, 256, 4);
/// Two cubes are on a multiprocessor, so that one multiplies while the other begins or writes.
const SMALL: Tiles = new(128, 128, 3);
/// Cubes of large tiles from which on these are taken: two turns of a device.
const MANY: usize = 264;

/// Shared memory of a cube.
const fn bytes(tiles: Tiles) -> usize {
    ((tiles.rows + tiles.columns) * tiles.depth * 2 + 2 * BARRIER) * tiles.stages
}

/// The tiles of a product that can be multiplied so: where all operands are copied as they are, and tiles are filled.
pub(super) fn tiles(
    factors: FloatType,
    of: Product,
    a: &Matrices,
    b: &Matrices,
    finish: &Finish,
) -> Option<Tiles> {
    let copied = |m: &Matrices, along: bool, across: usize, depth: usize| {
        let apart = of.batches == 1 || m.matrix > 0;
        m.buffer.dtype == factors && apart && m.vector(if along { depth } else { across }, 8) == 8
    };
    let both = |a: &Matrices, b: &Matrices, depth: usize| {
        copied(a, !a.transposed, of.rows, depth) && copied(b, b.transposed, of.columns, depth)
    };
    let more = finish.more.as_ref().is_none_or(|more| both(&more.a, &more.b, more.depth));
    let fits = of.rows.min(of.columns) >= LEAST && of.depth >= DEPTH;
    let large = of.batches * of.rows.div_ceil(LARGE.rows) * of.columns.div_ceil(LARGE.columns) >= MANY;
    (fits && more && both(a, b, of.depth)).then_some(if large { LARGE } else { SMALL })
}

/// A tile in shared memory: `across` of the output's rows or columns by [`DEPTH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tile {
    along: bool,
    across: usize,
}

impl Tile {
    /// Eights of all.
    fn eights(self) -> usize {
        self.across * DEPTH / 8
    }

    /// From products of [`STRIP`] factors to the next ones, in units of 16 bytes.
    fn step(self) -> usize {
        if self.along { STRIP / 8 } else { STRIP * WIDTH }
    }

    /// The lower half of what `wgmma` is told of a tile, but for where it begins: from lines of 64 rows or columns to the next,
    /// in units of 16 bytes.
    fn described(self) -> u32 {
        let blocks = if self.along { 1 } else { DEPTH * WIDTH };
        (blocks << 16) as u32
    }
}

/// The upper half: from eight lines to the next, in units of 16 bytes, and the order of eights.
const DESCRIBED: u64 = ((ORDERS * WIDTH) as u64 | 1 << 30) << 32;

/// The address in shared memory, as instructions of it take it.
#[cube]
fn address<T: CubePrimitive>(at: *const T) -> u32 {
    let found: u32;
    gpu_asm!(
        "{{ .reg .u64 shared_at; cvta.to.shared.u64 shared_at, {at}; cvt.u32.u64 {found}, shared_at; }}",
        found = out(_) found,
        at = mem_in(_) at,
        options(explicit_mem)
    );
    found
}

/// Names of `count` sums from `first`.
fn names(first: usize, count: usize) -> String {
    (first..first + count).map(|i| format!("wgmma_sum{i}")).collect::<Vec<_>>().join(", ")
}

fn zeros(count: usize) -> String {
    (0..count).map(|i| format!("mov.f32 wgmma_sum{i}, 0f00000000;")).collect::<Vec<_>>().join("\n")
}

/// The registers of sums, zeros.
#[cube]
fn begin_sums(#[comptime] count: usize) {
    gpu_asm!(".reg .f32 wgmma_sum<{count}>;\n{zeros}", count = const count, zeros = const zeros(count), options(nomem));
}

/// A sum, after all products.
#[cube]
fn sum(#[comptime] at: usize) -> f32 {
    let sum: f32;
    gpu_asm!("mov.f32 {sum}, wgmma_sum{at};", sum = out(_) sum, at = const at, options(nomem));
    sum
}

fn name(factors: FloatType) -> &'static str {
    match factors {
        FloatType::Bf16 => "bf16",
        FloatType::F16 => "f16",
        FloatType::F32 => unreachable!("invariant: factors of 16 bits"),
    }
}

/// Adds a product of 64 by 16 and 16 by `columns` to the sums from `first`, at some time.
#[cube]
fn add(
    left: u64,
    right: u64,
    #[comptime] first: usize,
    #[comptime] columns: usize,
    #[comptime] along: [bool; 2],
    #[comptime] factors: FloatType,
) {
    gpu_asm!(
        "{{\n.reg .pred wgmma_add;\nsetp.eq.u32 wgmma_add, 0, 0;\n",
        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{of}.{of} {{{sums}}}, {left}, {right}, wgmma_add, 1, 1, {a}, {b};\n}}",
        columns = const columns,
        of = const name(factors),
        sums = const names(first, columns / 2),
        left = in(_) left,
        right = in(_) right,
        a = const u32::from(!along[0]),
        b = const u32::from(!along[1]),
    );
}

/// Begins products.
#[cube]
fn begin() {
    gpu_asm!("wgmma.fence.sync.aligned;");
}

/// Ends a group of products.
#[cube]
fn commit() {
    gpu_asm!("wgmma.commit_group.sync.aligned;");
}

/// Waits until all groups of products but the last so many are done.
#[cube]
fn wait(#[comptime] but: usize) {
    gpu_asm!("wgmma.wait_group.sync.aligned {but};", but = const but);
}

/// Boxes of so many matrices, as tiles of `across` rows or columns take them.
pub(super) fn boxes(
    m: &Matrices,
    batches: usize,
    along: bool,
    [all_across, depth]: [usize; 2],
    across: usize,
) -> TensorMapArg<Tiled> {
    let bytes = m.buffer.dtype.bytes();
    let handle = m.buffer.handle.clone().offset_start((m.first * bytes) as u64);
    let [lines, elements, boxed] =
        if along { [all_across, depth, across] } else { [depth, all_across, DEPTH] };
    let matrix = if batches == 1 { lines * m.line } else { m.matrix };
    // SAFETY: the matrices lie in their buffer.
    let tensor = unsafe {
        TensorArg::from_raw_parts(handle, strides![matrix, m.line, 1], shape![batches, lines, elements])
    };
    TensorMapArg::new(TiledArgs { tile_size: shape![1, boxed, LINE] }, tensor, m.buffer.dtype.elem())
        .with_swizzle(TensorMapSwizzle::B128)
        .with_prefetch(TensorMapPrefetch::B256)
}

/// Begins a barrier's first phase, which so many arrivals end.
#[cube]
fn init(barrier: u32, #[comptime] arrivals: usize) {
    gpu_asm!(
        "mbarrier.init.shared::cta.b64 [{barrier}], {arrivals};",
        barrier = in(_) barrier,
        arrivals = const arrivals,
    );
}

/// What was begun is known to the hardware that copies.
#[cube]
fn publish() {
    gpu_asm!("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;");
}

/// Arrives at a barrier if `arrives` is not 0, without a branch: the plane goes on together.
#[cube]
fn arrive(barrier: u32, arrives: u32) {
    gpu_asm!(
        "{{\n.reg .pred arrives;\nsetp.ne.u32 arrives, {arrives}, 0;\n",
        "@arrives mbarrier.arrive.shared::cta.b64 _, [{barrier}];\n}}",
        arrives = in(_) arrives,
        barrier = in(_) barrier,
    );
}

/// Arrives at a barrier, and announces bytes that end its phase.
#[cube]
fn announce(barrier: u32, #[comptime] bytes: usize) {
    gpu_asm!(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {bytes};",
        barrier = in(_) barrier,
        bytes = const bytes,
    );
}

/// Waits for the end of a barrier's phase, of which `parity` is whether it is an odd one.
#[cube]
fn pass(barrier: u32, parity: u32) {
    gpu_asm!(
        "{{\n.reg .pred over;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 over, [{barrier}], {parity};\n",
        "@over bra done;\nbra again;\ndone:\n}}",
        barrier = in(_) barrier,
        parity = in(_) parity,
    );
}

/// Begins to bring a tile.
#[cube]
fn bring<E: Float>(
    from: &TensorMap<E, Tiled>,
    barrier: &Barrier,
    into: &mut [Eight<E>],
    at: usize,
    batch: usize,
    across: usize,
    depth: usize,
    #[comptime] tile: Tile,
) {
    let (batch, across, depth) = (batch as i32, across as i32, depth as i32);
    if comptime!(tile.along) {
        barrier.tma_load_3d(from, &mut into[at..at + comptime!(tile.eights())], batch, across, depth);
    } else {
        #[unroll]
        for block in 0..comptime!(tile.across / LINE) {
            let at = at + comptime!(block * DEPTH * WIDTH);
            let across = across + comptime!((block * LINE) as i32);
            barrier.tma_load_3d(from, &mut into[at..at + comptime!(DEPTH * WIDTH)], batch, depth, across);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn multiply_by_warpgroups<E: Float, C: Float, O: Float, N: Size>(
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    p: &TensorMap<E, Tiled>,
    q: &TensorMap<E, Tiled>,
    c: &[Vector<C, N>],
    bias: &[f32],
    d: &mut [Vector<O, N>],
    of_c: Place,
    of_d: Place,
    sizes: Sizes,
    #[comptime] along: [bool; 2],
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[comptime] dtype: FloatType,
    #[define(E)] _factors: ElemType,
    #[define(C)] _c_type: ElemType,
    #[define(O)] _d_type: ElemType,
) {
    let stages = comptime!(tiles.stages);
    let planes = comptime!(tiles.down);
    begin_sums(comptime!(tiles.rows / planes * tiles.columns / PLANE));
    let share = share(&sizes, tiles.rows, tiles.columns);
    if !share.any {
        terminate!();
    }
    let left = comptime!(Tile { along: along[0], across: tiles.rows });
    let right = comptime!(Tile { along: along[1], across: tiles.columns });
    let both = comptime!(left.eights() + right.eights());
    let mut held = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(both * stages), ALIGNMENT);
    let barriers = Shared::<[Barrier]>::new_aligned_slice(comptime!(2 * stages), BARRIER);
    let there = address::<Barrier>(barriers.as_ptr());
    let free = there + comptime!((stages * BARRIER) as u32);
    if UNIT_POS == 0 {
        #[unroll]
        for stage in 0..stages {
            init(there + comptime!((stage * BARRIER) as u32), 1usize);
            init(free + comptime!((stage * BARRIER) as u32), planes);
        }
        publish();
    }
    sync_cube();
    let own = (share.to - share.from).div_ceil(DEPTH);
    let mut slabs = own;
    if comptime!(form.more) {
        slabs += share.more.div_ceil(DEPTH);
    }
    let plane = plane_broadcast(UNIT_POS / PLANE as u32, 0u32) as usize;
    let lane = UNIT_POS as usize % PLANE;
    if plane == planes {
        if lane == 0 {
            for slab in 0..slabs {
                let stage = slab % stages;
                let of_stage = (stage * BARRIER) as u32;
                // Its place is free from the first.
                pass(free + of_stage, (slab / stages + 1) as u32 % 2);
                announce(there + of_stage, comptime!(both * 16));
                let barrier = &barriers[stage];
                let at = stage * both;
                let right_at = at + comptime!(left.eights());
                if slab < own {
                    let depth = share.from + slab * DEPTH;
                    bring::<E>(a, barrier, &mut held, at, share.batch, share.row, depth, left);
                    bring::<E>(b, barrier, &mut held, right_at, share.batch, share.column, depth, right);
                }
                if comptime!(form.more) {
                    if slab >= own {
                        let depth = (slab - own) * DEPTH;
                        bring::<E>(p, barrier, &mut held, at, share.batch, share.row, depth, left);
                        bring::<E>(q, barrier, &mut held, right_at, share.batch, share.column, depth, right);
                    }
                }
            }
        }
    } else {
        let warpgroup = plane / PLANES;
        let strips = comptime!(tiles.rows * PLANES / planes / ROWS);
        let place = address::<Eight<E>>(held.as_ptr()) / 16u32;
        let lefts =
            place + (warpgroup * comptime!(strips * ROWS * WIDTH)) as u32 + comptime!(left.described());
        let rights = place + comptime!(left.eights() as u32 + right.described());
        for slab in 0..slabs {
            let stage = slab % stages;
            pass(there + (stage * BARRIER) as u32, (slab / stages) as u32 % 2);
            add_slab(lefts, rights, (stage * both) as u32, strips, left, right, along, dtype);
            wait(1usize);
            // The products of the slab before are done.
            let arrives = select(slab > 0 && lane == 0, 1u32, 0u32);
            arrive(free + ((slab + stages - 1) % stages * BARRIER) as u32, arrives);
        }
        wait(0usize);
        write::<C, O, N>(&share, c, bias, d, &of_c, &of_d, &sizes, form, tiles);
    }
}

/// Begins the products of a slab, a group, of which the tiles are `at` further in shared memory than `lefts` and `rights` say.
#[cube]
fn add_slab(
    lefts: u32,
    rights: u32,
    at: u32,
    #[comptime] strips: usize,
    #[comptime] left: Tile,
    #[comptime] right: Tile,
    #[comptime] along: [bool; 2],
    #[comptime] factors: FloatType,
) {
    begin();
    #[unroll]
    for step in 0..comptime!(DEPTH / STRIP) {
        #[unroll]
        for strip in 0..strips {
            let of_left = lefts + at + comptime!((step * left.step() + strip * ROWS * WIDTH) as u32);
            let of_right = rights + at + comptime!((step * right.step()) as u32);
            add(
                u64::cast_from(of_left) | DESCRIBED,
                u64::cast_from(of_right) | DESCRIBED,
                comptime!(strip * right.across / 2),
                comptime!(right.across),
                along,
                factors,
            );
        }
    }
    commit();
}

/// Writes the sums of this unit.
#[cube]
fn write<C: Float, O: Float, N: Size>(
    share: &Share,
    c: &[Vector<C, N>],
    bias: &[f32],
    d: &mut [Vector<O, N>],
    of_c: &Place,
    of_d: &Place,
    sizes: &Sizes,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
) {
    let strips = comptime!(tiles.rows * PLANES / tiles.down / ROWS);
    let of_strip = comptime!(tiles.columns / 2);
    let lane = UNIT_POS as usize % PLANE;
    let plane = UNIT_POS as usize / PLANE;
    let row = share.row + plane / PLANES * comptime!(strips * ROWS) + plane % PLANES * STRIP + lane / 4;
    let column = share.column + lane % QUAD * 8;
    let d_first = written_from(share, sizes, of_d, form);
    let c_first = of_c.first + share.batch * of_c.matrix;
    #[unroll]
    for strip in 0..strips {
        #[unroll]
        for half in 0..2usize {
            #[unroll]
            for group in 0..comptime!(tiles.columns / 8 / QUAD) {
                let mut pairs = Array::<Pair<f32>>::new(QUAD);
                #[unroll]
                for block in 0..QUAD {
                    let at = comptime!(strip * of_strip + (group * QUAD + block) * 4 + half * 2);
                    pairs[block] = pair::<f32>(sum(at), sum(comptime!(at + 1)));
                }
                exchange(&mut pairs, 1usize);
                exchange(&mut pairs, 2usize);
                put_run::<C, O, N>(
                    &pairs,
                    QUAD,
                    row + comptime!(strip * ROWS + half * 8),
                    column + comptime!(group * QUAD * 8),
                    c,
                    bias,
                    d,
                    c_first,
                    of_c.line,
                    d_first,
                    of_d.line,
                    sizes,
                    form,
                );
            }
        }
    }
}

/// Units that have a row's pairs of an eight of columns.
const QUAD: usize = 4;

/// Exchanges pairs with the unit `across` from this one among four, where the bit of `across` of their number is another than
/// the unit's. After 1 and 2, unit n of four has all pairs that were number n.
#[cube]
fn exchange(pairs: &mut Array<Pair<f32>>, #[comptime] across: usize) {
    let second = UNIT_POS as usize / across % 2 == 1;
    #[unroll]
    for i in 0..comptime!(QUAD / 2) {
        let (low, high) = comptime!(if across == 1 { (2 * i, 2 * i + 1) } else { (i, i + 2) });
        let mut of_low = pairs[low];
        let mut of_high = pairs[high];
        #[unroll]
        for k in 0..2usize {
            let (one, other) = (of_low.extract(k), of_high.extract(k));
            let got = plane_shuffle_xor(select(second, one, other), across as u32);
            of_low.insert(k, select(second, got, one));
            of_high.insert(k, select(second, other, got));
        }
        pairs[low] = of_low;
        pairs[high] = of_high;
    }
}

/// Elements of a vector of sixteen bytes at most, of what is written and what is added.
pub(super) fn written(c: &Matrices, d: &Matrices) -> usize {
    16 / c.buffer.dtype.bytes().max(d.buffer.dtype.bytes())
}

/// Units of a cube: those that multiply, and a plane that asks for tiles.
pub(super) fn units(tiles: Tiles) -> usize {
    tiles.units() + PLANE
}
