use burnish_gpu_kernels::{
    AdapterSize, Add, Buffer, Client, Finish, FloatType, GROUP_ROWS, Gemm, Groups, Matrices, More, Product,
    cast,
};

use crate::on_device::{client, close, download, numbers, rounded, rounding, upload, upload_integers};

/// One number, of few rows, of thin and of long ones, less than tiles and more, of many parts, and of several batches.
const SHAPES: &[[usize; 4]] = &[
    [1, 1, 1, 1],
    [2, 3, 5, 7],
    [1, 64, 64, 32],
    [1, 65, 130, 33],
    [1, 16, 200, 1100],
    [1, 200, 16, 1030],
    [3, 70, 72, 40],
    [1, 300, 260, 96],
    [1, 8, 8, 2048],
    [1, 3, 37, 264],
    [1, 5, 130, 1100],
    [1, 1030, 16, 200],
    [1, 1024, 5, 40],
    [1, 16, 136, 1100],
    [1, 72, 35, 1030],
    [3, 136, 152, 200],
];

/// Of large and of wide tiles of tensor cores.
const LARGE: &[[usize; 4]] = &[[1, 72, 72, 4104], [1, 72, 136, 4104]];

fn shapes(factors: FloatType) -> impl Iterator<Item = &'static [usize; 4]> {
    SHAPES.iter().chain(if factors == FloatType::F32 { &[] } else { LARGE })
}

/// Which factors and matrices a device computes with.
fn factors() -> Vec<(FloatType, Vec<FloatType>)> {
    let mut all = vec![(FloatType::F32, vec![FloatType::F32])];
    if cfg!(feature = "cuda") {
        all.push((FloatType::Bf16, vec![FloatType::Bf16, FloatType::F32]));
    }
    all
}

/// Matrices whose lines lie in a wider buffer, from its third line and `before` elements of it; and their elements by row and
/// column.
struct Placed {
    at: Matrices,
    values: Vec<f32>,
}

impl Placed {
    fn new(
        client: &Client,
        dtype: FloatType,
        [batches, rows, columns]: [usize; 3],
        (transposed, before): (bool, usize),
        seed: u32,
    ) -> Self {
        let [lines, each] = if transposed { [columns, rows] } else { [rows, columns] };
        let line = each + before;
        let all = numbers(dtype, (batches * lines + 2) * line, seed);
        let (first, matrix) = (2 * line + before, lines * line);
        let mut values = Vec::with_capacity(batches * rows * columns);
        for batch in 0..batches {
            for row in 0..rows {
                for column in 0..columns {
                    let [of_line, of_each] = if transposed { [column, row] } else { [row, column] };
                    values.push(all[first + batch * matrix + of_line * line + of_each]);
                }
            }
        }
        let buffer = upload(client, dtype, &all);
        Self { at: Matrices { buffer, first, line, matrix, transposed }, values }
    }
}

fn product(of: Product, factors: FloatType, a: &[f32], b: &[f32]) -> Vec<f64> {
    let Product { batches, rows, columns, depth } = of;
    let mut d = vec![0.0; batches * rows * columns];
    for batch in 0..batches {
        for row in 0..rows {
            let d = &mut d[(batch * rows + row) * columns..][..columns];
            for k in 0..depth {
                let a = f64::from(rounded(factors, a[(batch * rows + row) * depth + k]));
                let b = &b[(batch * depth + k) * columns..][..columns];
                d.iter_mut().zip(b).for_each(|(d, &b)| *d += a * f64::from(rounded(factors, b)));
            }
        }
    }
    d
}

/// Elements of a sum cancel, so what is off is held against what they come to without.
fn bound(depth: usize, out: FloatType) -> f64 {
    1e-6 * (depth as f64).sqrt().max(4.0) * 100.0 + rounding(out)
}

#[test]
fn products_of_all_layouts_are_those_in_f64() {
    let client = client();
    for (factors, dtypes) in factors() {
        let gemm = Gemm::new(&client, factors).expect("a device for tests multiplies these");
        for &[batches, rows, columns, depth] in shapes(factors) {
            let of = Product { batches, rows, columns, depth };
            // Every kernel is compiled for a layout: all of them where a product is small.
            let layouts: &[usize] = if batches == 3 { &[0, 1, 2, 3, 4, 5, 6, 7] } else { &[2, 1] };
            for &layout in layouts {
                let (a_turned, b_turned, before) = (layout & 1 == 1, layout & 2 == 2, layout / 4 * 3);
                for &of_a in &dtypes {
                    for &of_b in &dtypes {
                        let a = Placed::new(&client, of_a, [batches, rows, depth], (a_turned, before), 1);
                        let b = Placed::new(&client, of_b, [batches, depth, columns], (b_turned, before), 2);
                        let expected = product(of, factors, &a.values, &b.values);
                        let what = format!("{of:?} of {factors:?} from {of_a:?} {of_b:?}, layout {layout}");
                        let got =
                            gemm.multiply(&client, of, &a.at, &b.at, FloatType::F32, &Finish::default());
                        let got = download(&client, &got);
                        close(&what, &got, &expected, bound(depth, FloatType::F32));
                        let again =
                            gemm.multiply(&client, of, &a.at, &b.at, FloatType::F32, &Finish::default());
                        assert_eq!(download(&client, &again), got, "{what}: bits repeat");
                    }
                }
            }
        }
    }
}

#[test]
fn sums_are_scaled_and_added_to() {
    let client = client();
    for (factors, dtypes) in factors() {
        let gemm = Gemm::new(&client, factors).expect("a device for tests multiplies these");
        for &[batches, rows, columns, depth] in shapes(factors) {
            let of = Product { batches, rows, columns, depth };
            let a = Placed::new(&client, dtypes[0], [batches, rows, depth], (false, 0), 1);
            let b = Placed::new(&client, dtypes[0], [batches, depth, columns], (true, 0), 2);
            let sums = product(of, factors, &a.values, &b.values);
            let rank = 21;
            let low = Product { depth: rank, ..of };
            // Of another dtype than the first product's factors where there is one.
            let of_low = *dtypes.last().expect("some dtype");
            let p = Placed::new(&client, of_low, [batches, rows, rank], (false, 0), 5);
            let q = Placed::new(&client, of_low, [batches, rank, columns], (true, 0), 6);
            let more_sums = product(low, factors, &p.values, &q.values);
            for &out in &dtypes {
                let c = numbers(out, batches * rows * columns, 3);
                let bias = numbers(FloatType::F32, columns, 4);
                let matrices = |buffer: Buffer| Matrices::rows(buffer, rows, columns);
                for case in [0, 3, 5, 6] {
                    let [adds, biased, twice] = [1, 2, 4].map(|bit| case & bit != 0);
                    let expected: Vec<f64> = (0..sums.len())
                        .map(|i| {
                            let more = if twice { more_sums[i] } else { 0.0 };
                            let add = if adds { f64::from(c[i]) } else { 0.0 };
                            let bias = if biased { f64::from(bias[i % columns]) } else { 0.0 };
                            -0.5 * (sums[i] + more) + add + bias
                        })
                        .collect();
                    let c_at = matrices(upload(&client, out, &c));
                    let bias_at = upload(&client, FloatType::F32, &bias);
                    let mut finish = Finish {
                        more: twice.then(|| More { a: p.at.clone(), b: q.at.clone(), depth: rank }),
                        scale: -0.5,
                        add: if adds { Add::Other(c_at.clone()) } else { Add::Nothing },
                        bias: biased.then_some(bias_at),
                    };
                    let what = format!("{of:?} of {factors:?} to {out:?}, case {case}");
                    let got = gemm.multiply(&client, of, &a.at, &b.at, out, &finish);
                    let got = download(&client, &got);
                    close(&what, &got, &expected, bound(depth, out));
                    if adds {
                        finish.add = Add::Itself;
                        gemm.multiply_into(&client, of, &a.at, &b.at, &c_at, &finish);
                        assert_eq!(download(&client, &c_at.buffer), got, "{what}: in place");
                    }
                }
            }
        }
    }
}

#[test]
fn an_output_may_be_columns_of_a_wider_one() {
    let client = client();
    for (factors, dtypes) in factors() {
        let gemm = Gemm::new(&client, factors).expect("a device for tests multiplies these");
        for (&out, rows) in dtypes.iter().flat_map(|out| [(out, 70), (out, 6)]) {
            let of = Product { batches: 1, rows, columns: 36, depth: 50 };
            let a = Placed::new(&client, dtypes[0], [1, rows, 50], (false, 0), 1);
            let b = Placed::new(&client, dtypes[0], [1, 50, 36], (true, 0), 2);
            let wide = upload(&client, out, &vec![7.0; rows * 80]);
            let d = Matrices { buffer: wide.clone(), first: 4, line: 80, matrix: 0, transposed: false };
            gemm.multiply_into(&client, of, &a.at, &b.at, &d, &Finish::default());
            let mut expected = vec![7.0; rows * 80];
            let sums = product(of, factors, &a.values, &b.values);
            for (row, sums) in sums.chunks(36).enumerate() {
                expected[row * 80 + 4..][..36].copy_from_slice(sums);
            }
            close("columns 4 to 40 of 80", &download(&client, &wide), &expected, bound(50, out));
        }
    }
}

/// Where a device has tensor cores that take both operands as they lie in memory, they multiply these.
#[test]
fn another_product_of_every_layout_is_added() {
    let client = client();
    for (factors, dtypes) in factors() {
        let gemm = Gemm::new(&client, factors).expect("a device for tests multiplies these");
        let of = Product { batches: 2, rows: 264, columns: 136, depth: 328 };
        let low = Product { depth: 24, ..of };
        for layout in 0..4 {
            let (a_turned, b_turned) = (layout & 1 == 1, layout & 2 == 2);
            let place = |of: Product, seed| {
                let a = Placed::new(&client, dtypes[0], [of.batches, of.rows, of.depth], (a_turned, 0), seed);
                let b = [of.batches, of.depth, of.columns];
                (a, Placed::new(&client, dtypes[0], b, (b_turned, 0), seed + 1))
            };
            let ((a, b), (p, q)) = (place(of, 1), place(low, 3));
            let sums = product(of, factors, &a.values, &b.values);
            let more = product(low, factors, &p.values, &q.values);
            for &out in &dtypes {
                let c = numbers(out, sums.len(), 5);
                let bias = numbers(FloatType::F32, of.columns, 6);
                let expected: Vec<f64> = (0..sums.len())
                    .map(|i| 0.5 * (sums[i] + more[i]) + f64::from(c[i]) + f64::from(bias[i % of.columns]))
                    .collect();
                let c = Matrices::rows(upload(&client, out, &c), of.rows, of.columns);
                let finish = Finish {
                    more: Some(More { a: p.at.clone(), b: q.at.clone(), depth: low.depth }),
                    scale: 0.5,
                    add: Add::Other(c),
                    bias: Some(upload(&client, FloatType::F32, &bias)),
                };
                let got = download(&client, &gemm.multiply(&client, of, &a.at, &b.at, out, &finish));
                close(&format!("layout {layout} to {out:?}"), &got, &expected, bound(of.depth, out));
            }
        }
    }
}

/// As many cubes as have larger tiles.
#[test]
fn many_products_beside_each_other_are_each_its_own() {
    let client = client();
    let dtype = if cfg!(feature = "cuda") { FloatType::Bf16 } else { FloatType::F32 };
    let gemm = Gemm::new(&client, dtype).expect("a device for tests multiplies these");
    let of = Product { batches: 132, rows: 136, columns: 128, depth: 64 };
    for turned in [false, true] {
        let a = Placed::new(&client, dtype, [of.batches, of.rows, of.depth], (turned, 0), 1);
        let b = Placed::new(&client, dtype, [of.batches, of.depth, of.columns], (!turned, 0), 2);
        let got = gemm.multiply(&client, of, &a.at, &b.at, FloatType::F32, &Finish::default());
        let expected = product(of, dtype, &a.values, &b.values);
        close("many", &download(&client, &got), &expected, bound(of.depth, FloatType::F32));
    }
}

#[test]
fn adapters_of_one_input_are_each_its_own_products() {
    if !cfg!(feature = "cuda") {
        return;
    }
    let client = client();
    let dtype = FloatType::Bf16;
    let gemm = Gemm::new(&client, dtype).expect("a device for tests multiplies these");
    for (rows, input, rank, outputs) in
        [(1030, 136, 16, vec![192, 128, 80]), (1024, 72, 8, vec![256, 72]), (1100, 80, 32, vec![72])]
    {
        let count = outputs.len();
        let size = AdapterSize { rows, input, rank, count };
        let adapters = gemm.adapters(size).expect("these are multiplied together");
        let width: usize = outputs.iter().sum();
        let x = Placed::new(&client, dtype, [1, rows, input], (false, 0), 1);
        let wide = upload(&client, dtype, &numbers(dtype, rows * width, 2));
        let whole = Matrices::rows(wide, rows, width);
        let mut first = 0;
        let upstream = outputs.iter().map(|output| {
            first += output;
            Matrices { first: first - output, ..whole.clone() }
        });
        let upstream: Vec<Matrices> = upstream.collect();
        assert!(adapters.outputs(&outputs));
        assert!(adapters.reads(&x.at, &whole, &outputs));
        let of = |n: usize, seed: u32| upload(&client, FloatType::F32, &numbers(dtype, n, seed));
        let a: Vec<Buffer> = (0..count).map(|i| of(rank * input, 10 + i as u32)).collect();
        let b: Vec<Buffer> = outputs.iter().zip(20..).map(|(&n, seed)| of(n * rank, seed)).collect();
        let (stack_of_b, b) = cast(&client, &b, dtype);
        let (stack, narrow) = cast(&client, &a, dtype);
        for (narrow, wide) in narrow.iter().zip(&a) {
            assert_eq!(download(&client, narrow), download(&client, wide), "numbers of that dtype");
        }
        let all = adapters.low(&client, &x.at, &stack, 0.5);
        let got = adapters.gradients(&client, &x.at, (&whole, &outputs), (&stack_of_b, &all), 2.0);
        let low: Vec<Buffer> = (0..count).map(|at| all.piece(at * rows * rank, rows * rank)).collect();
        let alone = |of, a: &Matrices, b: &Matrices, out, scale| {
            gemm.multiply(&client, of, a, b, out, &Finish { scale, ..Finish::default() })
        };
        for (at, &output) in outputs.iter().enumerate() {
            let of_a = Matrices::rows(narrow[at].clone(), rank, input);
            let of_b = Matrices::rows(b[at].clone(), output, rank);
            let by = |columns, depth| Product { batches: 1, rows, columns, depth };
            let want = alone(by(rank, input), &x.at, &of_a.clone().transpose(), dtype, 0.5);
            assert_eq!(download(&client, &low[at]), download(&client, &want), "low {at} of {size:?}");
            let want = alone(by(rank, output), &upstream[at], &of_b, dtype, 2.0);
            assert_eq!(download(&client, &got.low[at]), download(&client, &want), "of low {at} of {size:?}");
            let over = |rows_out, columns| Product { batches: 1, rows: rows_out, columns, depth: rows };
            let thin = |b: &Buffer| Matrices::rows(b.clone(), rows, rank);
            let up = upstream[at].clone().transpose();
            for (what, got, want) in [
                ("b", &got.b[at], alone(over(output, rank), &up, &thin(&low[at]), FloatType::F32, 1.0)),
                (
                    "a",
                    &got.a[at],
                    alone(over(rank, input), &thin(&got.low[at]).transpose(), &x.at, FloatType::F32, 1.0),
                ),
            ] {
                let want: Vec<f64> = download(&client, &want).iter().map(|&n| f64::from(n)).collect();
                close(&format!("{what} {at} of {size:?}"), &download(&client, got), &want, 1e-4);
            }
        }
    }
}

/// Columns and factors of a sum: by units and by tensor cores of every kind, and whether an adapter is added.
const GROUPED: &[([usize; 2], bool)] =
    &[([5, 7], false), ([16, 72], true), ([136, 96], false), ([264, 200], true)];

/// Rows of each group, as a table says them and as beginnings.
fn grouped(client: &Client, sizes: &[usize]) -> (Vec<u32>, Buffer, Buffer) {
    let tiles = |(group, rows): (usize, &usize)| vec![group as u32; rows.div_ceil(GROUP_ROWS)];
    let of: Vec<u32> = sizes.iter().enumerate().flat_map(tiles).collect();
    let mut starts = vec![0];
    starts.extend(sizes.iter().scan(0, |start, rows| {
        *start += rows.next_multiple_of(GROUP_ROWS) as u32;
        Some(*start)
    }));
    (of.clone(), upload_integers(client, &of), upload_integers(client, &starts))
}

#[test]
fn rows_in_groups_are_multiplied_by_the_matrix_of_their_group() {
    let client = client();
    let sizes = [130, 0, 1, 128, 200];
    let (of_tile, table, _) = grouped(&client, &sizes);
    let (rows, groups) = (of_tile.len() * GROUP_ROWS, sizes.len());
    for (factors, dtypes) in factors() {
        let gemm = Gemm::new(&client, factors).expect("a device for tests multiplies these");
        for &([columns, depth], with_more) in GROUPED {
            for (&dtype, turned) in dtypes.iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
                let of = Product { batches: 1, rows, columns, depth };
                let a = Placed::new(&client, dtype, [1, rows, depth], (false, 0), 1);
                let b = Placed::new(&client, dtype, [groups, depth, columns], (turned, 0), 2);
                let rank = 16;
                let p = Placed::new(&client, dtype, [1, rows, rank], (false, 0), 3);
                let q = Placed::new(&client, dtype, [groups, rank, columns], (turned, 0), 4);
                let biases = &numbers(FloatType::F32, groups * columns, 5);
                let expected: Vec<f64> = (0..rows / GROUP_ROWS)
                    .flat_map(|tile| {
                        let part = |all: &[f32], depth: usize, b: &[f32]| {
                            let of = Product { batches: 1, rows: GROUP_ROWS, columns, depth };
                            let group = of_tile[tile] as usize;
                            let own = &all[tile * GROUP_ROWS * depth..][..GROUP_ROWS * depth];
                            product(of, factors, own, &b[group * depth * columns..][..depth * columns])
                        };
                        let mut sums = part(&a.values, depth, &b.values);
                        if with_more {
                            let more = part(&p.values, rank, &q.values);
                            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                        }
                        let group = of_tile[tile] as usize;
                        let bias = move |i: usize| f64::from(biases[group * columns + i % columns]);
                        let biased =
                            |(i, sum): (usize, f64)| sum * 0.5 + if with_more { bias(i) } else { 0.0 };
                        sums.into_iter().enumerate().map(biased).collect::<Vec<_>>()
                    })
                    .collect();
                let what = format!("{of:?} of {factors:?} from {dtype:?}, turned {turned}");
                let more = with_more.then(|| More { a: p.at.clone(), b: q.at.clone(), depth: rank });
                let bias = with_more.then(|| upload(&client, FloatType::F32, biases));
                let finish = Finish { more, scale: 0.5, bias, ..Finish::default() };
                // All at once, or in two launches of which each has the matrices of some.
                for parts in [vec![0..groups], vec![0..2, 2..groups]] {
                    let got = Buffer::empty(&client, rows * columns, FloatType::F32);
                    for own in parts {
                        let part =
                            |m: &Matrices| Matrices { first: m.first + own.start * m.matrix, ..m.clone() };
                        let mut finish = finish.clone();
                        finish.more = finish.more.map(|more| More { b: part(&more.b), ..more });
                        finish.bias =
                            finish.bias.map(|bias| bias.piece(own.start * columns, own.len() * columns));
                        let groups = Groups::Rows { of: table.clone(), first: own.start, count: own.len() };
                        gemm.multiply_groups(&client, of, [&a.at, &part(&b.at)], &groups, &got, &finish);
                    }
                    close(&what, &download(&client, &got), &expected, bound(depth + rank, FloatType::F32));
                }
            }
        }
    }
}

#[test]
fn each_group_has_the_sum_over_its_lines() {
    let client = client();
    let sizes = [130, 0, 1, 128, 200];
    let (of_tile, _, starts) = grouped(&client, &sizes);
    let (depth, groups) = (of_tile.len() * GROUP_ROWS, sizes.len());
    for (factors, dtypes) in factors() {
        let gemm = Gemm::new(&client, factors).expect("a device for tests multiplies these");
        for [rows, columns] in [[5, 7], [8, 136], [136, 8], [72, 200], [264, 136]] {
            for &dtype in &dtypes {
                let of = Product { batches: groups, rows, columns, depth };
                let a = Placed::new(&client, dtype, [1, rows, depth], (true, 0), 1);
                let b = Placed::new(&client, dtype, [1, depth, columns], (false, 0), 2);
                let mut expected = vec![0.0; groups * rows * columns];
                for line in 0..depth {
                    let group = of_tile[line / GROUP_ROWS] as usize;
                    for row in 0..rows {
                        let left = f64::from(rounded(factors, a.values[row * depth + line]));
                        let into = &mut expected[(group * rows + row) * columns..][..columns];
                        into.iter_mut().zip(&b.values[line * columns..]).for_each(|(sum, &right)| {
                            *sum += left * f64::from(rounded(factors, right));
                        });
                    }
                }
                let what = format!("{of:?} of {factors:?} from {dtype:?}");
                let finish = Finish::default();
                let groups = Groups::Depth(starts.clone());
                let got = Buffer::empty(&client, of.batches * rows * columns, FloatType::F32);
                gemm.multiply_groups(&client, of, [&a.at, &b.at], &groups, &got, &finish);
                close(&what, &download(&client, &got), &expected, bound(depth, FloatType::F32));
            }
        }
    }
}
