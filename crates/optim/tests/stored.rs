//! Parameters at rest in 16 bits are updated in f32.

use burn::tensor::DType;
use burnish_core::{Dtype, Role};
use burnish_optim::{AdamW, AdamWOptions};

use crate::store::{Store, normal, registry, rounded, slot, step, tensor};

#[test]
fn sixteen_bit_weights_are_the_f32_run_rounded() {
    let shape: &[usize] = &[6, 7];
    for (dtype, burn) in [(Dtype::Bf16, DType::BF16), (Dtype::F16, DType::F16)] {
        let options = AdamWOptions { weight_decay: 0.1, ..AdamWOptions::default() };
        let start = rounded(&normal("start", 42), shape, burn);
        let wide = Store::new([tensor(&start.to_f32(), shape)]);
        let narrow = Store::new([start]);
        let mut in_f32 = AdamW::new(&registry(&[(Role::Matrix, shape, Dtype::F32)]), options);
        let mut stored = AdamW::new(&registry(&[(Role::Matrix, shape, dtype)]), options);
        for k in 0..50 {
            // Updates of about 1e-4: below half a unit of bf16 at 1, so rounding at rest must not lose them.
            let gradient = || vec![tensor(&normal(&format!("g{k}"), 42), shape)];
            let a = step(&mut in_f32, &wide, gradient(), Some(1.0), 1e-4).unwrap();
            let b = step(&mut stored, &narrow, gradient(), Some(1.0), 1e-4).unwrap();
            assert_eq!(a, b);
            assert_eq!(narrow.data(0).dtype(), burn);
            assert_eq!(narrow.data(0), rounded(&wide.f32(0), shape, burn).to_data(), "{dtype}, step {k}");
        }
        assert_eq!(slot(&stored.slots(), "p0", "master").unwrap(), wide.f32(0), "the master is the f32 run");
        assert_eq!(slot(&in_f32.slots(), "p0", "master"), None);
        for moment in ["exp_avg", "exp_avg_sq"] {
            assert_eq!(slot(&stored.slots(), "p0", moment), slot(&in_f32.slots(), "p0", moment));
        }
    }
}
