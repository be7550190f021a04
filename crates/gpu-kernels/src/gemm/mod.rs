//! Products of matrices, `op(A) op(B)`, with what is done to the sum before it is written.
//!
//! Operands are bf16, f16 or f32 in memory, transposed or not, and multiplied by tensor cores as bf16 or f16 (`mma.sync`): f32
//! is rounded on its way into shared memory. By units they are multiplied as f32. Sums are in f32. How an output is cut
//! into tiles, and its sums into parts that another launch adds in order, depends on sizes alone: bits repeat. On Hopper
//! whole tiles of factors that are copied as they are have a kernel of their own (`wgmma`), which adds in another order.

mod adapters;
mod cores;
mod few;
mod finish;
mod stage;
mod thin;
mod tiles;
mod units;
mod warpgroup;

pub use adapters::{AdapterGradients, AdapterSize, Adapters};

use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::{elements, mma, row};
use finish::{GroupingArgs, PlaceLaunch, SizesLaunch};
use stage::Held;
use tiles::Cut;

/// Matrices in a buffer, distances in its elements.
#[derive(Clone, Debug)]
pub struct Matrices {
    /// Where they are.
    pub buffer: Buffer,
    /// The first one's first element.
    pub first: usize,
    /// From line to line; a line's elements lie one behind the other.
    pub line: usize,
    /// From matrix to matrix.
    pub matrix: usize,
    /// Whether lines are columns.
    pub transposed: bool,
}

impl Matrices {
    /// Rows of so many `columns` one behind the other, of matrices of so many `rows`.
    #[must_use]
    pub fn rows(buffer: Buffer, rows: usize, columns: usize) -> Self {
        Self { buffer, first: 0, line: columns, matrix: rows * columns, transposed: false }
    }

    /// The same memory as the transposed matrices.
    #[must_use]
    pub fn transpose(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// The widest vectors, of at most `most` elements, in which lines of `elements` can be read.
    fn vector(&self, elements: usize, most: usize) -> usize {
        let all = [elements, self.first, self.line, self.matrix];
        [8, 4, 2]
            .into_iter()
            .filter(|&size| size <= most)
            .find(|size| {
                all.iter().all(|n| n.is_multiple_of(*size))
                    && self.buffer.len.is_multiple_of(*size)
                    && self.buffer.is_aligned(*size)
            })
            .unwrap_or(1)
    }

    fn place(&self, size: usize) -> PlaceLaunch {
        PlaceLaunch::new(self.first / size, self.line / size, self.matrix / size)
    }
}

/// The sizes of a product: of each of `batches`, `[rows, depth] [depth, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Products beside each other.
    pub batches: usize,
    /// Rows of the output.
    pub rows: usize,
    /// Columns of the output.
    pub columns: usize,
    /// Factors of a sum.
    pub depth: usize,
}

/// What is added to sums, of the output's shape.
#[derive(Clone, Debug, Default)]
pub enum Add {
    /// Nothing.
    #[default]
    Nothing,
    /// What the output holds before.
    Itself,
    /// Matrices that are not transposed.
    Other(Matrices),
}

/// Another product, whose sums are added to the first one's; transposed as that one's matrices are.
#[derive(Clone, Debug)]
pub struct More {
    /// `[rows, depth]`.
    pub a: Matrices,
    /// `[depth, columns]`.
    pub b: Matrices,
    /// Factors of a sum.
    pub depth: usize,
}

/// What is done to sums before they are written: `scale (sum + more) + add + bias`.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Another product.
    pub more: Option<More>,
    /// Multiplies the sums.
    pub scale: f32,
    /// Added to them.
    pub add: Add,
    /// `[columns]`, f32: added to every row.
    pub bias: Option<Buffer>,
}

impl Default for Finish {
    fn default() -> Self {
        Self { more: None, scale: 1.0, add: Add::Nothing, bias: None }
    }
}

/// Each group of rows of a grouped product begins at a multiple of so many, and ends at one.
pub use burnish_core::GROUP_ROWS;

/// How rows in groups, as tokens by their experts, are multiplied with matrices of which each group has one.
#[derive(Clone, Debug)]
pub enum Groups {
    /// Rows of `a`, each by the matrix of its group of `b`, as 32-bit integers.
    Rows {
        /// Of each [`GROUP_ROWS`] rows.
        of: Buffer,
        /// The first group that there is a matrix of: rows of others are left as they are.
        first: usize,
        /// The matrices.
        count: usize,
    },
    /// For each group, a batch of the output, the sum over the group's lines of both operands: where they begin, as 32-bit
    /// integers, and once more where the last one's end.
    Depth(Buffer),
}

/// Products in which factors are of one dtype, by the kernel that suits a device.
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    factors: FloatType,
    cores: bool,
    asynchronous: bool,
    /// Bytes of a cube's shared memory at most.
    shared: usize,
    warpgroups: bool,
}

impl Gemm {
    /// Products of factors that are rounded to `factors`; `None` where the device cannot compute them.
    #[must_use]
    pub fn new(client: &Client, factors: FloatType) -> Option<Self> {
        let properties = client.properties();
        let hardware = &properties.hardware;
        let cores = mma::multiplies(client, factors) && hardware.max_shared_memory_size >= tiles::LEAST_BYTES;
        let units = factors == FloatType::F32
            && hardware.max_units_per_cube as usize >= units::UNITS
            && hardware.max_shared_memory_size >= units::BYTES;
        let asynchronous = properties.features.copy_async;
        let shared = hardware.max_shared_memory_size;
        let warpgroups = cores && warpgroup::multiplies(client);
        (cores || units).then_some(Self { factors, cores, asynchronous, shared, warpgroups })
    }

    /// The products, `[batches, rows, columns]` in `dtype`.
    ///
    /// # Panics
    /// As [`Self::multiply_into`].
    #[must_use]
    pub fn multiply(
        &self,
        client: &Client,
        of: Product,
        a: &Matrices,
        b: &Matrices,
        dtype: FloatType,
        finish: &Finish,
    ) -> Buffer {
        let d = Buffer::empty(client, of.batches * of.rows * of.columns, dtype);
        self.multiply_into(client, of, a, b, &Matrices::rows(d.clone(), of.rows, of.columns), finish);
        d
    }

    /// The products, written to `d`.
    ///
    /// One launch, two where few tiles share long sums. `2 batches rows columns depth` flops; each tile, of 128 by 256 at most, reads
    /// its rows of `a` and columns of `b` once. Of [`FEW_ROWS`](burnish_core::FEW_ROWS) rows at most and a `b` whose columns lie one
    /// behind the other one launch, in which every four columns are read once and all rows for them.
    ///
    /// # Panics
    /// If `d` or what is added is transposed, or factors of another product lie otherwise than those of the first.
    pub fn multiply_into(
        &self,
        client: &Client,
        of: Product,
        a: &Matrices,
        b: &Matrices,
        d: &Matrices,
        finish: &Finish,
    ) {
        let Product { batches, rows, columns, depth } = of;
        if batches * rows * columns == 0 {
            return;
        }
        let other = match &finish.add {
            Add::Other(c) => Some(c),
            _ => None,
        };
        assert!(!d.transposed && other.is_none_or(|c| !c.transposed), "invariant: rows");
        let alike = |more: &More| [more.a.transposed, more.b.transposed] == [a.transposed, b.transposed];
        assert!(finish.more.as_ref().is_none_or(alike), "invariant: both products are of one layout");
        if few::fits(of, a, b) {
            few::multiply(client, (self.factors, of), [a, b, d], finish);
            return;
        }
        if self.cores && thin::of_rows(self.factors, of, a, finish, self.shared) {
            let whole = thin::Bounds::of(&[depth]);
            thin::multiply_rows(client, (self.factors, of), [a, b, d], (columns, whole), finish.scale);
            return;
        }
        let columns_of = self.cores.then(|| thin::of_columns(self.factors, of, a, b, finish)).flatten();
        let (sums, parts) = if let Some(operands) = columns_of {
            let whole = thin::Bounds::of(&[rows.max(columns)]);
            thin::sums_of_columns(client, (self.factors, of), operands, (rows.min(columns), whole))
        } else {
            let (by, cut) = self.cut(of, a, b, finish);
            if cut.parts == 1 {
                self.launch(client, of, a, b, d, finish, (by, cut), None);
                return;
            }
            let sums = Buffer::empty(client, batches * cut.parts * rows * columns, FloatType::F32);
            let parts = Matrices::rows(sums.clone(), rows, columns);
            let sum = Finish { more: finish.more.clone(), ..Finish::default() };
            self.launch(client, of, a, b, &parts, &sum, (by, cut), None);
            (sums, cut.parts)
        };
        let size = written(columns, d, other, 4);
        let (count, dim) = elements::launch(client, batches * rows * columns / size);
        let c = other.unwrap_or(d);
        // SAFETY: a unit for each vector of the output, of matrices that lie in their buffers.
        unsafe {
            finish::add_parts::launch_unchecked(
                client,
                count,
                dim,
                address(&[&sums, &d.buffer, &c.buffer]),
                size,
                sums.arg(size),
                c.buffer.arg(size),
                finish.bias.as_ref().unwrap_or(&sums).arg(1),
                if other.is_none() { BufferArg::alias(1, d.buffer.len / size) } else { d.buffer.arg(size) },
                c.place(size),
                d.place(size),
                SizesLaunch::new(rows, columns, depth, 0, depth, parts, batches, finish.scale, 0, 0),
                finish.form(true),
                c.buffer.dtype.elem(),
                d.buffer.dtype.elem(),
            );
        }
    }

    /// A grouped product, written to `d`: `[rows, columns]` or, of groups of the depth, `[batches, rows, columns]`, where `of` has a batch
    /// for each group and the lines of all of them as its depth. Its sums are scaled and, of groups of rows, another product's and a
    /// bias of each group, `[count, columns]`, are added.
    ///
    /// One launch. The rows between a group's last and the next one's first are computed as any: they are the caller's to fill,
    /// with zeros in one operand of groups of the depth. Rows of a group that has no matrix keep what `d` holds.
    ///
    /// # Panics
    /// If there are batches of groups of rows, their number is no multiple of [`GROUP_ROWS`], `d` is of another size, or something
    /// else is to be done to sums.
    pub fn multiply_groups(
        &self,
        client: &Client,
        of: Product,
        [a, b]: [&Matrices; 2],
        groups: &Groups,
        d: &Buffer,
        finish: &Finish,
    ) {
        let plain = matches!(finish.add, Add::Nothing);
        let fits = match groups {
            Groups::Rows { .. } => of.batches == 1 && of.rows.is_multiple_of(GROUP_ROWS),
            Groups::Depth(_) => finish.more.is_none() && finish.bias.is_none(),
        };
        assert!(plain && fits, "invariant: a product of groups that is finished by itself");
        assert_eq!(d.len, of.batches * of.rows * of.columns, "invariant: room for the products");
        if d.len > 0 {
            let each = match groups {
                Groups::Rows { .. } => of,
                Groups::Depth(_) => Product { depth: of.depth.div_ceil(of.batches), ..of },
            };
            let (by, cut) = self.cut(each, a, b, finish);
            let to = Matrices::rows(d.clone(), of.rows, of.columns);
            self.launch(client, of, a, b, &to, finish, (by, cut.whole(of)), Some(groups));
        }
    }

    /// Which kernel multiplies, in which tiles and parts.
    fn cut(&self, of: Product, a: &Matrices, b: &Matrices, finish: &Finish) -> (By, Cut) {
        let by_warpgroups =
            self.warpgroups.then(|| warpgroup::tiles(self.factors, of, a, b, finish)).flatten();
        if let Some(tiles) = by_warpgroups {
            (By::Warpgroups, Cut::new(of, tiles))
        } else if self.cores {
            let [(left, _), (right, _)] = self.held([a, b], of.rows, of.columns, of.depth);
            (By::Cores, tiles::cut(of, left.asynchronous && right.asynchronous, self.shared))
        } else {
            (By::Units, units::cut(of))
        }
    }

    /// How both operands are held in shared memory, and the vectors in which they are read.
    fn held(&self, [a, b]: [&Matrices; 2], rows: usize, columns: usize, depth: usize) -> [(Held, usize); 2] {
        let held = |m: &Matrices, along: bool, across: usize| {
            let size = m.vector(if along { depth } else { across }, 16 / m.buffer.dtype.bytes());
            let asynchronous = self.asynchronous && m.buffer.dtype == self.factors && size == 8;
            (Held { along, asynchronous }, size)
        };
        [held(a, !a.transposed, rows), held(b, b.transposed, columns)]
    }

    fn launch(
        &self,
        client: &Client,
        of: Product,
        a: &Matrices,
        b: &Matrices,
        d: &Matrices,
        finish: &Finish,
        (by, cut): (By, Cut),
        groups: Option<&Groups>,
    ) {
        let Product { batches, rows, columns, depth } = of;
        let [lefts, rights] = match groups {
            None => [batches; 2],
            Some(Groups::Rows { count, .. }) => [1, *count],
            Some(Groups::Depth(_)) => [1; 2],
        };
        let first = match groups {
            Some(Groups::Rows { first, .. }) => *first,
            _ => 0,
        };
        let groups = match groups {
            None => GroupingArgs::Batches,
            Some(Groups::Rows { of, .. }) => GroupingArgs::Rows(of.arg(1)),
            Some(Groups::Depth(starts)) => GroupingArgs::Depth(starts.arg(1)),
        };
        let other = match &finish.add {
            Add::Other(c) => Some(c),
            _ => None,
        };
        let most = if by == By::Warpgroups { warpgroup::written(other.unwrap_or(d), d) } else { 4 };
        let size = written(columns, d, other, most);
        let c = other.unwrap_or(d);
        let (more, form) = (finish.more.as_ref(), finish.form(cut.parts == 1));
        let (p, q) = more.map_or((a, b), |more| (&more.a, &more.b));
        let more_depth = more.map_or(0, |more| more.depth);
        let sizes = SizesLaunch::new(
            rows,
            columns,
            depth,
            more_depth,
            cut.each,
            cut.parts,
            batches,
            finish.scale,
            first,
            rights,
        );
        let bias = finish.bias.as_ref().unwrap_or(&d.buffer);
        let to = |at: usize| match other {
            Some(_) => d.buffer.arg(size),
            None => BufferArg::alias(at, d.buffer.len / size),
        };
        let count = row::cubes(client, cut.cubes(of));
        let all = [&a.buffer, &b.buffer, &p.buffer, &q.buffer, &c.buffer, &d.buffer];
        let address = address(&all);
        let dtypes = all.map(|b| b.dtype.elem());
        // SAFETY: kernels read and write what the sizes say, of matrices that lie in their buffers.
        unsafe {
            if by == By::Warpgroups {
                let left = |m: &Matrices, depth: usize| {
                    warpgroup::boxes(m, lefts, !m.transposed, [rows, depth], cut.tiles.rows)
                };
                let right = |m: &Matrices, depth: usize| {
                    warpgroup::boxes(m, rights, m.transposed, [columns, depth], cut.tiles.columns)
                };
                let of_more = more.map_or(depth, |more| more.depth);
                warpgroup::multiply_by_warpgroups::launch_unchecked(
                    client,
                    count,
                    CubeDim::new_1d(warpgroup::units(cut.tiles) as u32),
                    address,
                    size,
                    left(a, depth),
                    right(b, depth),
                    left(p, of_more),
                    right(q, of_more),
                    c.buffer.arg(size),
                    bias.arg(1),
                    to(4),
                    c.place(size),
                    d.place(size),
                    sizes,
                    groups,
                    [!a.transposed, b.transposed],
                    form,
                    cut.tiles,
                    self.factors,
                    warpgroup::of_line(c, size),
                    self.factors.elem(),
                    dtypes[4],
                    dtypes[5],
                );
            } else if by == By::Cores {
                let [(left, l), (right, r)] = self.held([a, b], rows, columns, depth);
                let of_more = more.map_or(depth, |more| more.depth);
                let [(left_more, s), (right_more, t)] = self.held([p, q], rows, columns, of_more);
                cores::multiply_by_cores::launch_unchecked(
                    client,
                    count,
                    CubeDim::new_1d(cut.tiles.units() as u32),
                    address,
                    l,
                    r,
                    s,
                    t,
                    size,
                    a.buffer.arg(l),
                    b.buffer.arg(r),
                    p.buffer.arg(s),
                    q.buffer.arg(t),
                    c.buffer.arg(size),
                    bias.arg(1),
                    to(4),
                    a.place(l),
                    b.place(r),
                    p.place(s),
                    q.place(t),
                    c.place(size),
                    d.place(size),
                    sizes,
                    groups,
                    [left, right],
                    [left_more, right_more],
                    form,
                    cut.tiles,
                    dtypes[0],
                    dtypes[1],
                    dtypes[2],
                    dtypes[3],
                    dtypes[4],
                    dtypes[5],
                    self.factors.elem(),
                );
            } else {
                units::multiply_by_units::launch_unchecked(
                    client,
                    count,
                    CubeDim::new_1d(units::UNITS as u32),
                    address,
                    size,
                    a.buffer.arg(1),
                    b.buffer.arg(1),
                    p.buffer.arg(1),
                    q.buffer.arg(1),
                    c.buffer.arg(size),
                    bias.arg(1),
                    to(4),
                    a.place(1),
                    b.place(1),
                    p.place(1),
                    q.place(1),
                    c.place(size),
                    d.place(size),
                    sizes,
                    groups,
                    !a.transposed,
                    b.transposed,
                    form,
                    dtypes[0],
                    dtypes[1],
                    dtypes[2],
                    dtypes[3],
                    dtypes[4],
                    dtypes[5],
                );
            }
        }
    }
}

/// Which kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Warpgroups,
    Cores,
    Units,
}

impl Finish {
    fn form(&self, whole: bool) -> finish::Form {
        let add = !matches!(self.add, Add::Nothing);
        finish::Form { add, bias: self.bias.is_some(), more: self.more.is_some(), whole }
    }
}

/// Elements of a vector in which the output is written.
fn written(columns: usize, d: &Matrices, add: Option<&Matrices>, most: usize) -> usize {
    let size = d.vector(columns, most);
    add.map_or(size, |add| add.vector(columns, size))
}
