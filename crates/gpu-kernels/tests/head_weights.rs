use burnish_gpu_kernels::{FloatType, HeadSteps, head_weights, head_weights_backward};

use crate::on_device::{client, close, download, dtypes, numbers, rounded, rounding, upload};

const F32: FloatType = FloatType::F32;

#[test]
fn weights_of_heads_and_their_gradients_are_those_in_f64() {
    let client = client();
    let (tokens, heads) = (37, 6);
    for &dtype in dtypes() {
        for learns in [true, false] {
            let n = tokens * heads;
            let mut steps: Vec<f32> = numbers(dtype, n, 1);
            // Steps on the line, too.
            steps.iter_mut().step_by(5).for_each(|x| *x = rounded(dtype, *x * 32.0));
            // And small ones alone, of which an ordinary logarithm keeps few digits.
            if !learns {
                steps.iter_mut().for_each(|x| *x = rounded(dtype, -9.0 + *x / 32.0));
            }
            let (learning, dy) = (numbers(dtype, n, 2), numbers(F32, 2 * n, 3));
            let (bias, log_rate) = (numbers(F32, heads, 4), numbers(F32, heads, 5));
            let mut want = vec![0.0; 2 * n];
            let (mut of_steps, mut of_learning) = (vec![0.0; n], vec![0.0; n]);
            let (mut of_bias, mut of_rate) = (vec![0.0; heads], vec![0.0; heads]);
            let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
            for i in 0..n {
                let (head, at) = (i % heads, |x: &[f32], i: usize| f64::from(x[i]));
                let x = at(&steps, i) + at(&bias, head);
                let (step, rate) = (x.exp().ln_1p(), at(&log_rate, head).exp());
                let share = sigmoid(at(&learning, i));
                want[i] = -step * rate;
                want[n + i] = if learns { share } else { step };
                let (d_keeps, d_learns) = (at(&dy, i), at(&dy, n + i));
                let of_step = -d_keeps * rate + if learns { 0.0 } else { d_learns };
                of_steps[i] = of_step * sigmoid(x);
                of_learning[i] = d_learns * share * (1.0 - share);
                of_bias[head] += of_steps[i];
                of_rate[head] += d_keeps * want[i];
            }
            let at = |dtype, values: &[f32]| upload(&client, dtype, values);
            let (steps, learning) = (at(dtype, &steps), at(dtype, &learning));
            let (bias, log_rate) = (at(F32, &bias), at(F32, &log_rate));
            let learning = learns.then_some(&learning);
            let of = HeadSteps { steps: &steps, learning, bias: &bias, log_rate: &log_rate };
            close("weights", &download(&client, &head_weights(&client, of)), &want, 1e-5);
            let got = head_weights_backward(&client, of, &at(F32, &dy), true);
            let bound = 1e-5 + 2.0 * rounding(dtype);
            close("steps", &download(&client, &got.steps), &of_steps, bound);
            if let Some(got) = &got.learning {
                close("learning", &download(&client, got), &of_learning, bound);
            }
            close("bias", &download(&client, &got.bias.unwrap()), &of_bias, 1e-4);
            close("rate", &download(&client, &got.log_rate.unwrap()), &of_rate, 1e-4);
            let alone = head_weights_backward(&client, of, &at(F32, &dy), false);
            assert!(alone.bias.is_none() && alone.learning.is_some() == learns);
            assert_eq!(download(&client, &alone.steps), download(&client, &got.steps));
        }
    }
}
