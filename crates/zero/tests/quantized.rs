//! Quantised parameters under stage 3: gathers move packed rows, with the values of the whole and the bytes of the plan.

use std::convert::Infallible;
use std::sync::Arc;

use burn::tensor::Device;
use burnish_comm::{Op, local};
use burnish_core::{Dtype, Parameter, Quantization, Registry, Role, Scheme};
use burnish_ops::Parameters;
use burnish_quant::{PackedWords, Quantized};
use burnish_zero::{Kept, Plan, Policy, ShardedParams, Stage, Unit, ZeroError};

/// A frozen matrix of `[rows, row]` (of `experts` such) in fewer bits, and its values there.
fn matrix(name: &str, scheme: Scheme, nested: bool, shape: &[usize]) -> (Parameter, Quantized) {
    let row = *shape.last().unwrap();
    let rows = shape.iter().product::<usize>() / row;
    let values: Vec<f32> = (0..rows * row).map(|i| ((i * 7919 % 1013) as f32 / 500.0 - 1.0) * 0.1).collect();
    let quantization = Quantization { scheme, nested };
    let word = |i: usize| (i as i32).wrapping_mul(0x9e37_79b9_u32 as i32) ^ 0x5bd1_e995;
    let quantized = match scheme {
        Scheme::Int4 { group, .. } => {
            let groups = row / group;
            let qweight: Vec<i32> = (0..rows * row / 8).map(word).collect();
            let qzeros: Vec<i32> = (0..groups * rows / 8).map(word).collect();
            let scales: Vec<f32> = (0..groups * rows).map(|i| 0.01 + (i % 37) as f32 / 512.0).collect();
            let parts = PackedWords { qweight: &qweight, qzeros: &qzeros, scales: &scales };
            Quantized::from_gptq([rows, row], group, parts, None, true).unwrap()
        }
        Scheme::Nvfp4 => {
            let codes = (0..rows * row / 2).map(|i| (i * 37 % 251) as u8).collect();
            let scales = (0..rows * row / 16).map(|i| 0.01 + (i % 37) as f32 / 512.0).collect();
            Quantized::from_nvfp4([rows, row], codes, scales).unwrap()
        }
        Scheme::Mxfp4 => {
            let blocks = (0..rows * row / 2).map(|i| (i * 37 % 251) as u8).collect();
            let scales = (0..rows * row / 32).map(|i| 120 + (i % 9) as u8).collect();
            Quantized::from_mxfp4([rows, row], blocks, scales).unwrap()
        }
        _ if shape.len() == 3 => {
            let each = shape[1] * row;
            Quantized::stacked(values.chunks(each).map(|v| Quantized::new(quantization, v, row)).collect())
        }
        _ => Quantized::new(quantization, &values, row),
    };
    let role = if shape.len() == 3 { Role::Expert } else { Role::Matrix };
    let mut parameter = Parameter::new(name, shape, role, Dtype::Bf16);
    parameter.quantization = Some(quantization);
    (parameter, quantized)
}

#[test]
fn every_scheme_is_gathered_as_it_rests() {
    let int4 = Scheme::Int4 { group: 32, ordered: false };
    let cases = [
        (matrix("nf4", Scheme::Nf4, false, &[7, 128]), Some(7 * (64 + 8))),
        (matrix("nested", Scheme::Nf4, true, &[5, 192]), Some(5 * (96 + 12))),
        (matrix("fp4", Scheme::Fp4, true, &[2, 64]), Some(2 * (32 + 4))),
        (matrix("int8", Scheme::Int8, false, &[4, 30]), Some(4 * (30 + 4))),
        (matrix("int4", int4, false, &[8, 64]), Some(8 * (32 + 2 * 5))),
        (matrix("mxfp4", Scheme::Mxfp4, false, &[3, 4, 64]), Some(12 * (32 + 2))),
        (matrix("nvfp4", Scheme::Nvfp4, false, &[5, 48]), Some(5 * (24 + 3 * 4))),
        (matrix("experts", Scheme::Nf4, true, &[3, 2, 64]), Some(6 * (32 + 4))),
        // Blocks that go on in the next row.
        (matrix("ragged", Scheme::Nf4, false, &[6, 40]), None),
    ];
    let mut registry = Registry::new();
    for ((parameter, _), _) in &cases {
        registry.add(parameter.clone()).unwrap();
    }
    let packed: usize = cases.iter().filter_map(|(_, bytes)| *bytes).sum();
    let unit = Unit::block("all", (0..registry.len()).collect::<Vec<_>>());
    for world in [2, 3, 5] {
        let policy = Policy { persist_below: 0, ..Policy::new(Stage::Three) };
        let plan = Arc::new(Plan::new(&registry, vec![unit.clone()], world, policy).unwrap());
        let planned = plan.traffic_of_reads(&[0]);
        assert_eq!(planned.of(Op::AllGather, Dtype::U8).elements, packed as u64);
        assert_eq!(planned.of(Op::AllGather, Dtype::Bf16).elements, 6 * 40);
        // Gathered as bytes, and the largest once more as it is read.
        let gathered = plan.memory(0, 1, &|_| vec![]).gathered;
        assert_eq!(gathered, (packed + 2 * 6 * 40 + 2 * 5 * 192) as u64);
        let measured = local::run(world, |w| {
            let (group, device) = (w.group(), Device::flex());
            let store = ShardedParams::new(plan.clone(), &group, &device, |i, rows| {
                let ((parameter, quantized), _) = &cases[i];
                let each = parameter.as_matrix(1)[0];
                let own = quantized.rows(rows.start * each..rows.end * each);
                Ok::<_, Infallible>(Kept::from(own))
            })
            .unwrap();
            group.clear_traffic();
            for (i, ((parameter, quantized), _)) in cases.iter().enumerate() {
                let value = store.read(i);
                assert_eq!(value.shape(), parameter.shape, "{}", parameter.name);
                assert_eq!(value.dtype(), Some(Dtype::Bf16));
                let whole: Vec<f32> = quantized.values::<half::bf16>().iter().map(|x| x.to_f32()).collect();
                assert!(value.to_f32() == whole, "{} over {world}", parameter.name);
            }
            assert!(matches!(store.write(0).map(drop), Err(ZeroError::Quantized { .. })));
            store.check().unwrap();
            group.traffic()
        });
        for traffic in measured {
            assert_eq!(traffic.unwrap(), planned, "{world} ranks");
        }
    }
}
