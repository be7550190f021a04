//! Bytes at rest and at peak against the plan, counted by the allocator over all ranks of a process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering::SeqCst};

use burn::tensor::Device;
use burnish_comm::{Group, local};
use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_ops::{AnyTensor, Parameters};
use burnish_optim::{AdamWOptions, LearningRates, MuonOptions, Optimizer, SlotSpec, Unscale};
use burnish_zero::{
    MatrixAllToAll, OrthoCost, Plan, Policy, ReduceWhen, ShardedParams, Stage, Unit, ZeroError,
};
use half::bf16;

struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: isize) {
    let now = LIVE.fetch_add(bytes, SeqCst) + bytes;
    PEAK.fetch_max(now, SeqCst);
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches two atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks may exist at once.
        count(size as isize);
        // SAFETY: the caller's contract is passed on.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        count(-(layout.size() as isize));
        moved
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const H: usize = 128;
const VOCAB: usize = 400;
const BLOCKS: usize = 12;
/// Threads that the kernels share, on every machine.
const THREADS: usize = 2;

/// A bf16 model of 2.5 M parameters in blocks of 0.2 M.
fn model() -> (Registry, Vec<Unit>) {
    let mut registry = Registry::new();
    let mut add = |name: String, shape: &[usize], role| {
        let parameter = Parameter { trainable: true, ..Parameter::new(name, shape, role, Dtype::Bf16) };
        registry.add(parameter).unwrap()
    };
    let mut units = vec![Unit::root("embed", vec![add("embed".into(), &[VOCAB, H], Role::Embedding)])];
    for b in 0..BLOCKS {
        let mut parameters: Vec<usize> =
            (0..4).map(|m| add(format!("{b}.{m}"), &[H, H], Role::Matrix)).collect();
        parameters.push(add(format!("{b}.up"), &[4 * H, H], Role::Matrix));
        parameters.push(add(format!("{b}.down"), &[H, 4 * H], Role::Matrix));
        parameters.push(add(format!("{b}.norm"), &[H], Role::Norm));
        units.push(Unit::block(format!("{b}"), parameters));
    }
    units.push(Unit::root("head", vec![add("head".into(), &[VOCAB, H], Role::Head)]));
    (registry, units)
}

struct Measured {
    /// With gradients in hand.
    rest: isize,
    /// In a micro-batch, and in the step.
    peak: isize,
}

fn measure(
    world: usize,
    policy: Policy,
    micro_batches: usize,
    muon: Option<MuonOptions>,
) -> (Measured, u64, u64) {
    let (registry, units) = model();
    let takes = |p: &Parameter| muon.is_some_and(|options| options.takes(p));
    let work = |_: usize, p: &Parameter| {
        takes(p).then(|| OrthoCost { flops: p.elements() as f64, elements: p.elements() })
    };
    let plan = Arc::new(Plan::with_owners(&registry, units, world, policy, work).unwrap());
    let adam =
        ["master", "exp_avg", "exp_avg_sq"].map(|name| SlotSpec { name: name.into(), dtype: Dtype::F32 });
    let slots = |index: usize| match muon {
        Some(options) if takes(registry.at(index)) => {
            options.slots().into_iter().map(|(slot, _)| slot).collect()
        }
        _ => adam.to_vec(),
    };
    let memory = |rank| plan.memory(rank, micro_batches, &slots);
    let (rest, peak) =
        (0..world).map(memory).fold((0, 0), |(rest, peak), m| (rest + m.rest(), peak + m.peak()));
    let before = LIVE.load(SeqCst);
    let ranks = local::run(world, |w| {
        let (group, device) = (w.group(), Device::flex());
        let store = ShardedParams::new(plan.clone(), &group, &device, |i, rows| {
            let row: usize = registry.at(i).shape[1..].iter().product();
            let mut shape = registry.at(i).shape.clone();
            shape[0] = rows.len();
            let values = vec![bf16::from_f32(0.5); rows.len() * row];
            Ok::<_, Infallible>(AnyTensor::from_elements(values, &shape, &device))
        })?;
        let alone = plan.policy().stage == Stage::Zero;
        let meeting = if alone { Group::alone() } else { group.clone() };
        let matrices = plan.matrices(group.rank());
        let mut exchange = MatrixAllToAll::new(&meeting, &device, matrices, plan.policy().bucket_elements)?;
        let owns = |index| exchange.owns(index);
        let mut optimizer = {
            let (local, adam) = (store.local_registry(), AdamWOptions::default());
            match muon {
                None => Optimizer::adamw(&local, adam),
                Some(muon) => Optimizer::muon(&local, &registry, muon, adam, &owns).unwrap(),
            }
        };
        let mut measured = Measured { rest: 0, peak: 0 };
        for step in 0..2 {
            group.barrier("a step begins")?;
            PEAK.store(LIVE.load(SeqCst), SeqCst);
            group.barrier("counting begins")?;
            for m in 0..micro_batches {
                store.begin_micro_batch(m + 1 == micro_batches);
                for unit in plan.units() {
                    drop(store.read_all(&unit.parameters));
                }
                for unit in plan.units().iter().rev() {
                    if !unit.root {
                        drop(store.read_all(&unit.parameters));
                    }
                    for &index in &unit.parameters {
                        let p = registry.at(index);
                        let gradient = vec![1.0_f32; p.elements()];
                        store.accumulate(index, AnyTensor::from_elements(gradient, &p.shape, &device));
                    }
                }
                store.end_micro_batch()?;
            }
            let gradients = store.gradients()?;
            group.barrier("at rest")?;
            if step == 1 {
                measured.rest = LIVE.load(SeqCst) - before;
            }
            group.barrier("counted")?;
            let Unscale::Finite(finite) = gradients.unscale(1.0, |s| store.sum_squares(s))? else {
                panic!("ones are finite")
            };
            optimizer.step(finite.clip(Some(1.0)), &store, &mut exchange, LearningRates::both(0.01))?;
            store.all_gather_params()?;
            group.barrier("a step ended")?;
            measured.peak = PEAK.load(SeqCst) - before;
        }
        group.barrier("measured")?;
        Ok::<_, ZeroError>(measured)
    });
    let first = ranks.into_iter().next().unwrap().unwrap().unwrap();
    (first, rest, peak)
}

fn main() {
    rayon::ThreadPoolBuilder::new().num_threads(THREADS).build_global().unwrap();
    // What threads and the first use of everything allocate is not the model's.
    measure(4, Policy::new(Stage::Three), 1, Some(MuonOptions::default()));
    let mut failed = false;
    for world in [1, 2, 4] {
        for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
            for (reduce, micro_batches) in
                [(ReduceWhen::MicroBatch, 1), (ReduceWhen::MicroBatch, 2), (ReduceWhen::Step, 2)]
            {
                for muon in [None, Some(MuonOptions::default())] {
                    let policy = Policy { reduce, ..Policy::new(stage) };
                    let (measured, rest, peak) = measure(world, policy, micro_batches, muon);
                    // Bookkeeping of ranks and tensors; with Muon the scratch that each thread keeps of an
                    // orthogonalisation (which one takes part is the scheduler's choice); and one gradient per
                    // rank in the hands of backward.
                    let scratch = if muon.is_some() { (world + THREADS) * (256 << 10) } else { 0 };
                    let own = (world * (128 << 10) + scratch) as f64;
                    let gradient = (world * 4 * 4 * H * H) as f64;
                    let of = |got: isize, planned: u64| got as f64 / planned as f64;
                    println!(
                        "stage {stage}, {world} ranks, {micro_batches} micro-batches, {reduce:?}, {}: rest {:.3} of {rest}, peak {:.3} of {peak}",
                        if muon.is_some() { "muon" } else { "adamw" },
                        of(measured.rest, rest),
                        of(measured.peak, peak),
                    );
                    let rests = measured.rest as f64 <= 1.01 * rest as f64 + own
                        && measured.rest as f64 >= 0.99 * rest as f64;
                    let peaks = measured.peak as f64 <= 1.01 * peak as f64 + own + gradient;
                    if !(rests && peaks) {
                        failed = true;
                        println!("  not as planned");
                    }
                }
            }
        }
    }
    assert!(!failed, "memory is not as planned");
}
