use burnish_core::random::{Stream, dropout_bits, dropout_row, dropout_threshold};
use burnish_gpu_kernels::{Mask, dropout};

use crate::on_device::{client, download, dtypes, numbers, rounded, upload, upload_integers};

#[test]
fn elements_are_dropped_as_on_the_host() {
    let client = client();
    let key = Stream::new(3, "site").dropout_key();
    for &(rows, columns, first_column) in &[(1, 1, 0), (3, 7, 5), (9, 132, 64), (17, 1000, 0)] {
        for &dtype in dtypes() {
            let p = 0.3f32;
            let x = numbers(dtype, rows * columns, 9);
            let keys: Vec<u32> = (0..rows as u64).map(|row| dropout_row(key, row + 1_000_000)).collect();
            let mask = Mask { threshold: dropout_threshold(p), scale: 1.0 / (1.0 - p), first_column };
            let (x_at, keys_at) = (upload(&client, dtype, &x), upload_integers(&client, &keys));
            let got = download(&client, &dropout(&client, &x_at, &keys_at, mask, dtype));
            let expected: Vec<f32> = x
                .iter()
                .enumerate()
                .map(|(i, &x)| {
                    let column = first_column + (i % columns) as u32;
                    let stays = dropout_bits(keys[i / columns], column) >= mask.threshold;
                    rounded(dtype, if stays { x * mask.scale } else { 0.0 })
                })
                .collect();
            assert_eq!(got, expected, "{rows} rows of {columns} in {dtype:?}");
            let dropped = got.iter().filter(|&&y| y == 0.0).count() as f64 / got.len() as f64;
            assert!(got.len() < 1000 || (dropped - 0.3).abs() < 0.05, "{dropped} dropped");
        }
    }
}
