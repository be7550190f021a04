//! What travels is what the plan says, call by call and element by element.

use std::convert::Infallible;
use std::sync::Arc;

use burn::tensor::Device;
use burnish_comm::{Group, Op, Traffic, local};
use burnish_core::{Dtype, Parameter};
use burnish_ops::Parameters;
use burnish_optim::{AdamW, Unscale};
use burnish_zero::{Plan, Policy, ReduceWhen, ShardedParams, Stage, ZeroError};

use crate::net::Net;
use crate::toy_model::{STAGES, initial, options, share};

/// The traffic of the second step of a net.
fn measured(net: &Net, plan: &Arc<Plan>, group: &Group) -> Result<Traffic, ZeroError> {
    let (registry, units) = net.registry();
    let device = Device::flex();
    let store = Arc::new(ShardedParams::new(plan.clone(), group, &device, |i, rows| {
        Ok::<_, Infallible>(initial(registry.at(i), rows, &device))
    })?);
    let parameters: Arc<dyn Parameters> = store.clone();
    let mut optimizer = AdamW::new(&store.local_registry(), options());
    for step in 0..2 {
        group.clear_traffic();
        let mine = share(24, group.rank(), group.size());
        for m in 0..net.micro_batches {
            let some = share(mine.len(), m, net.micro_batches);
            store.begin_micro_batch(m + 1 == net.micro_batches);
            let samples = mine.start + some.start..mine.start + some.end;
            net.micro_batch(&parameters, &units, step, samples, 1.0).unwrap();
            store.end_micro_batch()?;
        }
        if let Unscale::Finite(finite) = store.gradients()?.unscale(1.0, |s| store.sum_squares(s))? {
            optimizer.step(finite.clip(None), &*store, 0.01);
        }
        store.all_gather_params()?;
    }
    Ok(group.traffic())
}

#[test]
fn a_step_moves_what_the_plan_says() {
    let nets = [
        Net::default(),
        Net { recompute: false, ..Net::default() },
        Net { tied: true, ..Net::default() },
        Net { lora: true, store: Dtype::Bf16, ..Net::default() },
        Net { micro_batches: 3, ..Net::default() },
    ];
    for (number, net) in nets.iter().enumerate() {
        let (registry, units) = net.registry();
        for stage in STAGES {
            for change in 0..6 {
                let mut policy = Policy { persist_below: 0, ..Policy::new(stage) };
                match change {
                    0 => {}
                    1 => policy.persist_below = 20,
                    2 => policy.bucket_elements = 40,
                    3 => policy.keep_root = false,
                    4 => policy.prefetch = false,
                    _ => policy.reduce = ReduceWhen::MicroBatch,
                }
                for world in [1, 2, 3] {
                    let plan = Arc::new(Plan::new(&registry, units.clone(), world, policy.clone()).unwrap());
                    let planned = plan.traffic_of(net.micro_batches, &plan.reads(net.recompute));
                    for traffic in local::run(world, |w| measured(net, &plan, &w.group())) {
                        let traffic = traffic.unwrap().unwrap();
                        assert_eq!(
                            traffic, planned,
                            "net {number}, stage {stage}, change {change}, {world} ranks"
                        );
                    }
                }
            }
        }
    }
}

/// In units of the model: 1 all-reduce at stage 0 (2 on a ring), 1 + 1 at stages 1 and 2 whatever the accumulation, and
/// at stage 3 one reduction and two gathers of blocks, one of the roots, per micro-batch.
#[test]
fn measured_volumes_are_two_and_three_models() {
    let net = Net { micro_batches: 4, blocks: 5, ..Net::default() };
    let (registry, units) = net.registry();
    let psi = registry.iter().map(Parameter::elements).sum::<usize>() as u64;
    let roots = [0, units.len() - 1].into_iter().flat_map(|u: usize| &units[u].parameters);
    let roots = roots.map(|&i| registry.at(i).elements()).sum::<usize>() as u64;
    for (stage, sums, gathers) in [
        (Stage::Zero, (Op::AllReduce, psi), 0),
        (Stage::One, (Op::ReduceScatter, psi), psi),
        (Stage::Two, (Op::ReduceScatter, psi), psi),
        (Stage::Three, (Op::ReduceScatter, 4 * psi), 4 * (2 * psi - roots)),
    ] {
        let policy = Policy { persist_below: 0, ..Policy::new(stage) };
        let plan = Arc::new(Plan::new(&registry, units.clone(), 2, policy).unwrap());
        for traffic in local::run(2, |w| measured(&net, &plan, &w.group())) {
            let traffic = traffic.unwrap().unwrap();
            assert_eq!(traffic.of(sums.0, Dtype::F32).elements, sums.1, "stage {stage}");
            assert_eq!(traffic.of(Op::AllGather, Dtype::F32).elements, gathers, "stage {stage}");
        }
    }
}

/// Parameters of two units in one reading, in turn: each unit is gathered once.
#[test]
fn a_reading_over_two_units_gathers_each_once() {
    let net = Net::default();
    let (registry, units) = net.registry();
    let policy = Policy { persist_below: 0, prefetch: false, ..Policy::new(Stage::Three) };
    let plan = Arc::new(Plan::new(&registry, units.clone(), 2, policy).unwrap());
    let (a, b) = (&units[1].parameters, &units[2].parameters);
    let indices = [a[0], b[1], a[2], b[0], a[0]];
    let ends = local::run(2, |w| {
        let (group, device) = (w.group(), Device::flex());
        let store = ShardedParams::new(plan.clone(), &group, &device, |i, rows| {
            Ok::<_, Infallible>(initial(registry.at(i), rows, &device))
        })?;
        let values = store.read_all(&indices);
        assert_eq!(group.traffic().calls(Op::AllGather), 2);
        for (value, index) in values.iter().zip(indices) {
            let parameter = registry.at(index);
            assert_eq!(value.to_f32(), initial(parameter, 0..parameter.shape[0], &device).to_f32());
        }
        store.check()
    });
    ends.into_iter().for_each(|e| e.unwrap().unwrap());
}
