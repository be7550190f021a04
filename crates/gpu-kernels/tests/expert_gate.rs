use burnish_core::{Activation, ExpertGate};
use burnish_gpu_kernels::{FloatType, NO_ROW, expert_gate, expert_gate_backward};

use crate::gate::{sigmoid, value};
use crate::on_device::{
    client, close, download, dtypes, in_f64, numbers, rounded, rounding, upload, upload_integers,
};

const LIMIT: f32 = 7.0;

const GATES: [ExpertGate; 8] = [
    ExpertGate::Halves(Activation::Silu),
    ExpertGate::Halves(Activation::Gelu),
    ExpertGate::Halves(Activation::GeluTanh),
    ExpertGate::Halves(Activation::Relu),
    ExpertGate::Halves(Activation::Relu2),
    ExpertGate::Plain(Activation::Relu2),
    ExpertGate::Clamped { alpha: 1.702, limit: LIMIT },
    ExpertGate::ClampedHalves { alpha: 1.702, limit: LIMIT },
];

/// By a central difference.
fn slope(f: impl Fn(f64) -> f64, x: f64) -> f64 {
    let h = 1e-5;
    (f(x + h) - f(x - h)) / (2.0 * h)
}

/// Where element `i`'s gate (or what alone it is of) and up are in a row.
fn columns(gate: ExpertGate, inner: usize, i: usize) -> [usize; 2] {
    match gate {
        ExpertGate::Halves(_) | ExpertGate::ClampedHalves { .. } => [i, inner + i],
        ExpertGate::Plain(_) => [i, i],
        ExpertGate::Clamped { .. } => [2 * i, 2 * i + 1],
    }
}

/// Value, and its gradients in gate and up.
fn naive(gate: ExpertGate, g: f64, u: f64) -> [f64; 3] {
    match gate {
        ExpertGate::Halves(f) => {
            let a = value(f, g);
            [a * u, slope(|g| value(f, g), g) * u, a]
        }
        ExpertGate::Plain(f) => [value(f, g), slope(|g| value(f, g), g), 0.0],
        ExpertGate::Clamped { alpha, limit } | ExpertGate::ClampedHalves { alpha, limit } => {
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            let of = |g: f64| g * sigmoid(alpha * g);
            let (least, up) = (g.min(limit), u.clamp(-limit, limit) + 1.0);
            let of_gate = if g > limit { 0.0 } else { slope(of, least) * up };
            [of(least) * up, of_gate, if u.abs() > limit { 0.0 } else { of(least) }]
        }
    }
}

/// Rows, some of no place and with NaN.
struct Rows {
    places: Vec<u32>,
    weights: Vec<f32>,
    x: Vec<f32>,
    d: Vec<f32>,
}

impl Rows {
    fn new(gate: ExpertGate, rows: usize, inner: usize, of_x: FloatType, of_d: FloatType) -> Self {
        let reads = gate.reads(inner);
        let (size, clamped) = match gate {
            ExpertGate::Clamped { .. } | ExpertGate::ClampedHalves { .. } => (10.0, true),
            _ => (4.0, false),
        };
        let mut x: Vec<f32> =
            numbers(of_x, rows * reads, 7).iter().map(|x| rounded(of_x, x * size)).collect();
        let mut d = numbers(of_d, rows * inner, 8);
        if clamped {
            // At the limits is not beyond them.
            x[..2].copy_from_slice(&[LIMIT, -LIMIT]);
            x[(rows - 1) * reads + 1] = LIMIT;
        }
        let count = 2 * rows + 1;
        let place = |r: usize| if r % 3 == 1 { NO_ROW } else { (r * 3 + 1) as u32 % count as u32 };
        let places: Vec<u32> = (0..rows).map(place).collect();
        for r in (0..rows).filter(|&r| places[r] == NO_ROW) {
            x[r * reads..][..reads].fill(f32::NAN);
            d[r * inner..][..inner].fill(f32::NAN);
        }
        Self { places, weights: numbers(FloatType::F32, count, 9), x, d }
    }
}

/// What is expected of a row that has a place, each in f64.
struct Expected {
    value: Vec<f64>,
    dx: Vec<f64>,
    /// Of the value and `d`, and of their sizes.
    dot: [f64; 2],
}

impl Expected {
    fn new(gate: ExpertGate, x: &[f32], d: &[f32]) -> Self {
        let (x, d) = (in_f64(x), in_f64(d));
        let mut expected = Self { value: Vec::new(), dx: vec![0.0; x.len()], dot: [0.0; 2] };
        for (i, &of_value) in d.iter().enumerate() {
            let [g, u] = columns(gate, d.len(), i);
            let [value, of_gate, of_up] = naive(gate, x[g], x[u]);
            expected.dx[u] = of_value * of_up;
            expected.dx[g] = of_value * of_gate;
            expected.value.push(value);
            expected.dot[0] += of_value * value;
            expected.dot[1] += (of_value * value).abs();
        }
        expected
    }
}

fn scaled(values: &[f64], by: f64) -> Vec<f64> {
    values.iter().map(|v| v * by).collect()
}

/// Dtypes of `x`, `d`, `dx` and the value.
type Dtypes = [FloatType; 4];

fn check(gate: ExpertGate, rows: usize, inner: usize, dtypes: Dtypes, wants: (bool, bool)) {
    let client = client();
    let [of_x, of_d, of_dx, of_value] = dtypes;
    let what = format!("{gate:?} of {rows} rows of {inner} in {dtypes:?}, {wants:?}");
    let Rows { places, weights, x, d } = Rows::new(gate, rows, inner, of_x, of_d);
    let (x_at, d_at) = (upload(&client, of_x, &x), upload(&client, of_d, &d));
    let (weights_at, places_at) =
        (upload(&client, FloatType::F32, &weights), upload_integers(&client, &places));
    let y = download(&client, &expert_gate(&client, &x_at, inner, gate, of_value));
    let (want_value, want_dots) = wants;
    let value = want_value.then_some(of_value);
    let got = expert_gate_backward(
        &client,
        &x_at,
        &d_at,
        &weights_at,
        &places_at,
        inner,
        gate,
        of_dx,
        value,
        want_dots,
    );
    assert_eq!((got.value.is_some(), got.dots.is_some()), wants, "{what}");
    let dx = download(&client, &got.dx);
    let [value, dots] = [got.value, got.dots].map(|b| b.map(|b| download(&client, &b)));
    let lengths = [y.len(), dx.len(), value.as_ref().map_or(0, Vec::len), dots.as_ref().map_or(0, Vec::len)];
    let reads = gate.reads(inner);
    let of = |wanted: bool, n: usize| if wanted { n } else { 0 };
    assert_eq!(lengths, [rows * inner, rows * reads, of(want_value, rows * inner), of(want_dots, rows)]);
    for (r, &place) in places.iter().enumerate() {
        let what = format!("{what}: row {r}");
        let row = |all: &[f32], width: usize| all[r * width..][..width].to_vec();
        let (dx, value) = (row(&dx, reads), value.as_ref().map(|all| row(all, inner)));
        let dot = dots.as_ref().map(|dots| dots[r]);
        if place == NO_ROW {
            let mut all = dx.iter().chain(value.iter().flatten()).chain(&dot);
            assert!(all.all(|&v| v == 0.0), "{what} is of no place");
            continue;
        }
        let weight = f64::from(weights[place as usize]);
        let expected = Expected::new(gate, &row(&x, reads), &row(&d, inner));
        close(&what, &row(&y, inner), &expected.value, 2e-5 + rounding(of_value));
        close(&format!("{what}: gradient"), &dx, &scaled(&expected.dx, weight), 2e-5 + rounding(of_dx));
        if let Some(value) = value {
            let of_weight = scaled(&expected.value, weight);
            close(&format!("{what}: again"), &value, &of_weight, 2e-5 + rounding(of_value));
        }
        if let Some(got) = dot {
            let [dot, size] = expected.dot;
            assert!((f64::from(got) - dot).abs() <= 2e-5 * size, "{what}: {got}, not {dot}");
        }
    }
}

fn all(inners: &[usize], kinds: &[Dtypes], wants: &[(bool, bool)]) {
    for gate in GATES {
        for (&inner, &kind) in inners.iter().flat_map(|inner| kinds.iter().map(move |kind| (inner, kind))) {
            for (&wants, rows) in wants.iter().flat_map(|wants| [1, 5, 9].map(|rows| (wants, rows))) {
                check(gate, rows, inner, kind, wants);
            }
        }
    }
}

#[test]
fn gates_of_experts_and_their_gradients_are_those_in_f64() {
    let kinds: Vec<Dtypes> = dtypes().iter().map(|&dtype| [FloatType::F32, dtype, dtype, dtype]).collect();
    all(&[1, 7, 24, 96, 130, 1030], &kinds, &[(true, true)]);
}

#[test]
fn gates_of_experts_are_of_any_dtype_and_give_what_is_wanted() {
    let f32 = FloatType::F32;
    let kinds: Vec<Dtypes> =
        dtypes().iter().flat_map(|&dtype| [[dtype; 4], [dtype, f32, f32, dtype]]).collect();
    all(&[24], &kinds, &[(true, false), (false, true), (false, false)]);
}

#[test]
fn no_rows_of_experts_are_gated_to_none() {
    let client = client();
    let none = upload(&client, FloatType::F32, &[]);
    for gate in GATES {
        assert_eq!(expert_gate(&client, &none, 24, gate, FloatType::F32).len, 0);
        let got = expert_gate_backward(
            &client,
            &none,
            &none,
            &none,
            &none,
            24,
            gate,
            FloatType::F32,
            Some(FloatType::F32),
            true,
        );
        let [value, dots] = [got.value, got.dots].map(|b| b.map(|b| b.len));
        assert_eq!((got.dx.len, value, dots), (0, Some(0), Some(0)));
    }
}
