use burnish_gpu_kernels::{FewMore, FewPlaces, FewRows, FloatType, multiply_few_places};

use crate::on_device::{
    client, close, download, dtypes, numbers, rounded, rounding, upload, upload_integers,
};

/// A token's experts, tokens, experts, outputs, columns, and columns of another product.
const SHAPES: &[[usize; 6]] =
    &[[1, 1, 1, 1, 1, 0], [2, 3, 5, 7, 24, 0], [4, 2, 8, 40, 96, 16], [8, 1, 16, 6, 260, 3]];

#[test]
fn rows_are_multiplied_by_the_matrices_of_their_experts() {
    let client = client();
    for &[per_token, tokens, experts, outputs, columns, more] in SHAPES {
        let places = per_token * tokens;
        // The third is of another rank, two of one expert.
        let id = |place: usize| if place == 2 { u32::MAX } else { (place * 5 / 2 % experts) as u32 };
        let ids: Vec<u32> = (0..places).map(id).collect();
        let chosen = upload_integers(&client, &ids);
        for (&dtype, each) in dtypes().iter().flat_map(|dtype| [(dtype, per_token), (dtype, 1)]) {
            let what = format!(
                "{places} places of {experts}, {outputs} x {columns} + {more}, {each} a row, {dtype:?}"
            );
            let [x, w] = [places / each * columns, experts * outputs * columns]
                .map(|len| numbers(dtype, len, len as u32));
            // Kept wider than they are multiplied.
            let [p, q] = [places * more, experts * outputs * more].map(|len| numbers(FloatType::F32, len, 7));
            let [bias, add] =
                [experts * outputs, places * outputs].map(|len| numbers(FloatType::F32, len, 9));
            let [x_at, w_at] = [&x, &w].map(|values| upload(&client, dtype, values));
            let [p_at, q_at, bias_at, add_at] =
                [&p, &q, &bias, &add].map(|values| upload(&client, FloatType::F32, values));
            for finished in [false, true] {
                let of = FewPlaces { chosen: &chosen, experts, each };
                let with = (more > 0).then_some(FewMore { p: &p_at, q: &q_at, depth: more });
                let finish = FewRows {
                    scale: 0.5,
                    bias: finished.then_some(&bias_at),
                    add: finished.then_some(&add_at),
                    dtype: if finished { FloatType::F32 } else { dtype },
                };
                let y =
                    multiply_few_places(&client, &x_at, (&w_at, [outputs, columns]), of, with, dtype, finish);
                let products = |a: &[f32], b: &[f32]| -> f64 {
                    let one =
                        |(&a, &b): (&f32, &f32)| f64::from(rounded(dtype, a)) * f64::from(rounded(dtype, b));
                    a.iter().zip(b).map(one).sum()
                };
                let output = |at: usize| {
                    let (place, output) = (at / outputs, at % outputs);
                    if ids[place] == u32::MAX {
                        return 0.0;
                    }
                    let line = ids[place] as usize * outputs + output;
                    let sum =
                        products(&x[place / each * columns..][..columns], &w[line * columns..][..columns])
                            + products(&p[place * more..][..more], &q[line * more..][..more]);
                    0.5 * sum + if finished { f64::from(bias[line]) + f64::from(add[at]) } else { 0.0 }
                };
                let expected: Vec<f64> = (0..places * outputs).map(output).collect();
                close(&what, &download(&client, &y), &expected, 1e-4 + rounding(finish.dtype));
            }
        }
    }
}
