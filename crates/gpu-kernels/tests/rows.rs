use burnish_gpu_kernels::{FloatType, Places, gather_rows, scatter_rows};

use crate::on_device::{client, close, download, dtypes, numbers, rounding, upload, upload_integers};

/// Ids with repetitions, with one that is rare, and without some.
fn ids(n: usize, rows: usize) -> Vec<u32> {
    (0..n).map(|i| if i % 5 == 0 { 0 } else { (i * i * 7 % rows) as u32 }).collect()
}

#[test]
fn rows_come_by_index_and_their_gradients_go_back() {
    let client = client();
    for &(rows, columns, n) in &[(1, 1, 1), (5, 7, 9), (40, 64, 33), (300, 130, 700)] {
        for &dtype in dtypes() {
            let what = format!("{n} of {rows} rows of {columns} in {dtype:?}");
            let table = numbers(dtype, rows * columns, 1);
            let ids = ids(n, rows);
            let (table_at, ids_at) = (upload(&client, dtype, &table), upload_integers(&client, &ids));
            let got = download(&client, &gather_rows(&client, &table_at, &ids_at, columns, FloatType::F32));
            let row = |id: u32| &table[id as usize * columns..][..columns];
            let expected: Vec<f32> = ids.iter().flat_map(|&id| row(id)).copied().collect();
            assert_eq!(got, expected, "{what}");

            let dy = numbers(dtype, n * columns, 2);
            let mut order: Vec<u32> = (0..n as u32).collect();
            order.sort_by_key(|&place| ids[place as usize]);
            let before = |row: u32| ids.iter().filter(|&&id| id < row).count() as u32;
            let starts: Vec<u32> = (0..=rows as u32).map(before).collect();
            let places =
                Places { starts: upload_integers(&client, &starts), order: upload_integers(&client, &order) };
            let mut expected = vec![0.0f64; rows * columns];
            for (dy, &id) in dy.chunks(columns).zip(&ids) {
                let into = &mut expected[id as usize * columns..][..columns];
                into.iter_mut().zip(dy).for_each(|(sum, &d)| *sum += f64::from(d));
            }
            let dy_at = upload(&client, dtype, &dy);
            let got = scatter_rows(&client, &dy_at, &places, columns, dtype);
            close(&what, &download(&client, &got), &expected, 1e-4 + rounding(dtype));
        }
    }
}
