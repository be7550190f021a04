use burnish_gpu_kernels::{CAST_TOGETHER, join};

use crate::on_device::{client, download, dtypes, upload};

/// More pieces than a launch takes, of lengths and beginnings that vectors fit and do not fit, and one without elements.
#[test]
fn pieces_lie_one_behind_the_other() {
    let client = client();
    for &dtype in dtypes() {
        let values: Vec<f32> = (0..6000).map(|i| (i % 251) as f32).collect();
        let all = upload(&client, dtype, &values);
        let mut pieces = Vec::new();
        let mut want = Vec::new();
        for (first, len) in [(0, 4096), (3, 5), (8, 8), (9, 1), (16, 0), (128, 1024), (5001, 999)] {
            pieces.push(all.piece(first, len));
            want.extend_from_slice(&values[first..first + len]);
        }
        pieces.extend_from_within(..CAST_TOGETHER - 3);
        want.extend_from_slice(&want.clone()[..4096 + 5 + 8 + 1]);
        assert!(pieces.len() > CAST_TOGETHER);
        assert!(download(&client, &join(&client, &pieces)) == want, "{dtype:?}");
    }
}
