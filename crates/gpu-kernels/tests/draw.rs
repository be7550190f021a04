use burnish_gpu_kernels::{DRAW_BLOCK, DRAW_NUMBERS, FloatType, logit_blocks, logits_of_blocks};

use crate::on_device::{client, close, download, dtypes, numbers, upload, upload_integers};

#[test]
fn blocks_say_their_part_of_a_sum_and_their_first_largest() {
    let client = client();
    for &vocab in &[1, 700, DRAW_BLOCK, 2 * DRAW_BLOCK + 77] {
        for &dtype in dtypes() {
            let temperatures = [1.0, 0.5, 1.7];
            let rows = temperatures.len();
            let mut z = numbers(dtype, rows * vocab, 3);
            // As large twice.
            z[vocab - 1] = 3.0;
            z[vocab / 2] = 3.0;
            let at = upload(&client, dtype, &z);
            let by = upload(&client, FloatType::F32, &temperatures);
            let got = download(&client, &logit_blocks(&client, &at, &by));
            let mut expected = Vec::new();
            for (row, t) in z.chunks(vocab).zip(temperatures) {
                for block in row.chunks(DRAW_BLOCK) {
                    let scaled: Vec<f32> = block.iter().map(|z| z / t).collect();
                    let top = scaled.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let sum: f64 = scaled.iter().map(|z| f64::from(z - top).exp()).sum();
                    let first = scaled.iter().position(|&z| z == top).unwrap();
                    expected.extend([f64::from(top), sum, first as f64]);
                }
            }
            close(&format!("blocks of {vocab} in {dtype:?}"), &got, &expected, 1e-5);
            let blocks = vocab.div_ceil(DRAW_BLOCK);
            assert_eq!(got.len(), rows * blocks * DRAW_NUMBERS);

            let wanted: Vec<u32> = (0..rows).map(|row| (row % blocks) as u32).collect();
            let got = logits_of_blocks(&client, &at, &upload_integers(&client, &wanted));
            let got = download(&client, &got);
            for ((row, &block), got) in z.chunks(vocab).zip(&wanted).zip(got.chunks(DRAW_BLOCK)) {
                let own = row.chunks(DRAW_BLOCK).nth(block as usize).unwrap();
                assert_eq!(&got[..own.len()], own, "a block of {vocab} in {dtype:?}");
                assert!(got[own.len()..].iter().all(|&z| z == f32::MIN));
            }
        }
    }
}
