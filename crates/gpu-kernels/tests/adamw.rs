use burnish_gpu_kernels::{Adam, AdamStep, Buffer, Client, FloatType, adam_step};

use crate::on_device::{client, close, download, dtypes, in_f64, numbers, upload};

const STEP: AdamStep = AdamStep {
    grad_scale: 0.5,
    keep: 0.999,
    decay: 0.0,
    beta1: 0.9,
    rest1: 0.1,
    beta2: 0.99,
    rest2: 0.01,
    root: 2.0,
    eps: 1e-6,
    rate: 0.01,
};

fn in_host(state: &mut [Vec<f64>; 3], g: &[f32], s: &AdamStep) {
    let of = f64::from;
    let [p, m, v] = state;
    for (i, &g) in g.iter().enumerate() {
        let g = of(g) * of(s.grad_scale) + p[i] * of(s.decay);
        m[i] = m[i] * of(s.beta1) + g * of(s.rest1);
        v[i] = v[i] * of(s.beta2) + g * g * of(s.rest2);
        p[i] = p[i] * of(s.keep) - m[i] / (v[i].sqrt() * of(s.root) + of(s.eps)) * of(s.rate);
    }
}

fn one(client: &Client, from: Adam, g: &Buffer, step: &AdamStep) -> Adam {
    adam_step(client, vec![(from, g.clone())], step).remove(0)
}

#[test]
fn parameters_of_one_launch_are_stepped_each_as_alone() {
    let client = client();
    for lengths in [vec![4099, 8], vec![16, 70_000, 4], vec![64, 1, 640, 12_288]] {
        let at = |n: usize, seed: u32| upload(&client, FloatType::F32, &numbers(FloatType::F32, n, seed));
        let of = |i: usize, n: usize| {
            let seed = 10 * i as u32;
            let squares = numbers(FloatType::F32, n, seed + 2).iter().map(|x| x * x).collect::<Vec<f32>>();
            let from =
                Adam { p: at(n, seed), m: at(n, seed + 1), v: upload(&client, FloatType::F32, &squares) };
            (from, at(n, seed + 3))
        };
        let all = |()| lengths.iter().enumerate().map(|(i, &n)| of(i, n)).collect::<Vec<_>>();
        let together = adam_step(&client, all(()), &STEP);
        for ((from, g), got) in all(()).into_iter().zip(together) {
            let want = one(&client, from, &g, &STEP);
            for (got, want) in [(got.p, want.p), (got.m, want.m), (got.v, want.v)] {
                assert_eq!(download(&client, &got), download(&client, &want));
            }
        }
    }
}

#[test]
fn three_steps_are_those_in_f64_in_place_and_not() {
    let client = client();
    for step in [STEP, AdamStep { keep: 1.0, decay: 0.01, ..STEP }] {
        for n in [1, 7, 1024, 4099] {
            for &dtype in dtypes() {
                let first = [numbers(FloatType::F32, n, 1), vec![0.0; n], vec![0.0; n]];
                let at = |i: usize| upload(&client, FloatType::F32, &first[i]);
                let mut own = Adam { p: at(0), m: at(1), v: at(2) };
                let held = Adam { p: at(0), m: at(1), v: at(2) };
                let mut shared = held.clone();
                let mut expected = first.each_ref().map(|values| in_f64(values));
                for seed in 0..3 {
                    let g = numbers(dtype, n, 20 + seed);
                    let g_at = upload(&client, dtype, &g);
                    own = one(&client, own, &g_at, &step);
                    let before = shared.clone();
                    shared = one(&client, shared, &g_at, &step);
                    drop(before);
                    in_host(&mut expected, &g, &step);
                }
                for (what, got, held, expected) in [
                    ("parameter", [&own.p, &shared.p], &held.p, &expected[0]),
                    ("first moment", [&own.m, &shared.m], &held.m, &expected[1]),
                    ("second moment", [&own.v, &shared.v], &held.v, &expected[2]),
                ] {
                    let [own, shared] = got.map(|b| download(&client, b));
                    close(what, &own, expected, 1e-5);
                    assert_eq!(own, shared, "{what}: in place and not");
                    let i = ["parameter", "first moment", "second moment"].iter().position(|w| *w == what);
                    assert_eq!(
                        download(&client, held),
                        first[i.unwrap()],
                        "{what}: what another holds stays"
                    );
                }
            }
        }
    }
}
