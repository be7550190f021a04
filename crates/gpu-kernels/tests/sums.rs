use burnish_gpu_kernels::{Buffer, FloatType, accumulate, over_rows, sum_rows, sums_of_squares};

use crate::on_device::{client, close, download, dtypes, numbers, upload};

#[test]
fn sums_of_rows_and_over_rows_are_those_in_f64() {
    let client = client();
    for &(rows, columns) in &[(1, 1), (3, 7), (5, 64), (1, 5003), (600, 130), (9, 4096), (17_000, 1)] {
        for &dtype in dtypes() {
            let x = numbers(dtype, rows * columns, 1);
            let at = upload(&client, dtype, &x);
            for squares in [false, true] {
                let of = |x: &f32| if squares { f64::from(*x).powi(2) } else { f64::from(*x) };
                let want: Vec<f64> = x.chunks(columns).map(|row| row.iter().map(of).sum()).collect();
                let got = download(&client, &sum_rows(&client, &at, rows, squares));
                close(
                    &format!("{rows} rows of {columns} in {dtype:?}, squares {squares}"),
                    &got,
                    &want,
                    1e-5,
                );
            }
        }
        let x = numbers(FloatType::F32, rows * columns, 2);
        let mut want = vec![0.0; columns];
        x.chunks(columns).for_each(|row| want.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x)));
        let got = over_rows(&client, &upload(&client, FloatType::F32, &x), columns);
        close(&format!("over {rows} rows of {columns}"), &download(&client, &got), &want, 1e-4);
    }
}

#[test]
fn squares_of_pieces_of_one_memory_are_summed() {
    let client = client();
    let x = numbers(FloatType::F32, 3000, 7);
    let whole = upload(&client, FloatType::F32, &x);
    let piece = |first: usize, len: usize| Buffer {
        handle: whole.handle.clone().offset_start(4 * first as u64),
        len,
        dtype: FloatType::F32,
    };
    let pieces = [(0, 64), (64, 300), (364, 1), (512, 2000)];
    let want: Vec<f64> =
        pieces.iter().map(|&(at, n)| x[at..at + n].iter().map(|&x| f64::from(x).powi(2)).sum()).collect();
    let got = sums_of_squares(&client, &pieces.map(|(at, n)| piece(at, n)));
    close("pieces", &download(&client, &got), &want, 1e-5);
}

#[test]
fn squares_of_tensors_of_any_lengths_are_summed() {
    let client = client();
    let lengths = [1, 5003, 64, 40_000, 130, 7, 4096, 98_304, 12, 3];
    for &dtype in dtypes() {
        for count in [1, 3, 8, lengths.len()] {
            let all: Vec<Vec<f32>> =
                lengths[..count].iter().zip(1..).map(|(&n, seed)| numbers(dtype, n, seed)).collect();
            let at: Vec<_> = all.iter().map(|x| upload(&client, dtype, x)).collect();
            let want: Vec<f64> = all.iter().map(|x| x.iter().map(|&x| f64::from(x).powi(2)).sum()).collect();
            for (i, (got, want)) in
                download(&client, &sums_of_squares(&client, &at)).iter().zip(&want).enumerate()
            {
                close(&format!("tensor {i} of {count} in {dtype:?}"), &[*got], &[*want], 1e-5);
            }
        }
    }
}

#[test]
fn pairs_of_one_launch_are_added_in_place_and_not() {
    let client = client();
    for lengths in [vec![4099], vec![16, 70_000, 4, 64, 8, 12, 4096, 20], vec![64, 1, 640]] {
        let of = |seed: u32| -> Vec<Vec<f32>> {
            lengths.iter().zip(seed..).map(|(&n, seed)| numbers(FloatType::F32, n, seed)).collect()
        };
        let (into, more) = (of(1), of(30));
        let pairs = || -> Vec<_> {
            let up = |values: &Vec<f32>| upload(&client, FloatType::F32, values);
            into.iter().zip(&more).map(|(a, b)| (up(a), up(b))).collect()
        };
        let held = pairs();
        let apart = accumulate(&client, held.clone());
        let own = accumulate(&client, pairs());
        for (i, (own, apart)) in own.iter().zip(&apart).enumerate() {
            let want: Vec<f32> = into[i].iter().zip(&more[i]).map(|(a, b)| a + b).collect();
            assert_eq!(download(&client, own), want, "{i} of {lengths:?}");
            assert_eq!(download(&client, apart), want, "{i} of {lengths:?}");
            assert_eq!(download(&client, &held[i].0), into[i], "what another holds stays");
        }
    }
}
