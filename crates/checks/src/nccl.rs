//! NCCL between the GPUs of the machine; with one GPU, a world of one rank.

use anyhow::Result;
use burn::tensor::{Device, Tensor};
use burnish_comm::transport::conformance;
use burnish_comm::{Reduction, World, local};
use burnish_ops::AnyTensor;
use burnish_tensor_comm::{bucket, tensor, tensors};
use burnish_trainers::Ranks;
use half::bf16;

use crate::check::LeftOut;
use crate::ranks::{against_one, full, lora};
use crate::{Check, Context};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl", "the transports' suite", suite),
        Check::new("nccl", "tensors as they were uploaded", |context| travel(context, false)),
        Check::new("nccl", "tensors that kernels still write", |context| travel(context, true)),
        run("stage 3, full", full(&[]), &["--zero_stage=3", "--stage3_param_persistence_threshold=0"]),
        run("stage 2, LoRA", lora(&[]), &["--zero_stage=2"]),
    ]
}

/// A world of a rank for each GPU.
#[cfg(feature = "cuda")]
fn worlds(context: &Context) -> Result<Vec<World>> {
    use burnish_comm::nccl::{self, NcclError};
    use burnish_device::{DeviceKind, count, cuda::Installation};

    if context.kind != DeviceKind::Cuda {
        return Err(LeftOut("not CUDA".to_owned()).into());
    }
    Installation::find().load_nccl();
    match nccl::worlds(count(DeviceKind::Cuda)?) {
        Err(error @ NcclError::Missing { .. }) => Err(LeftOut(error.to_string()).into()),
        other => Ok(other?),
    }
}

#[cfg(not(feature = "cuda"))]
fn worlds(_: &Context) -> Result<Vec<World>> {
    Err(LeftOut("not CUDA".to_owned()).into())
}

fn suite(context: &Context) -> Result<String> {
    let mut ranks = 0;
    for check in conformance::checks() {
        let worlds = worlds(context)?;
        ranks = worlds.len();
        for result in local::run_worlds(worlds, |world| check.run(world)) {
            result??;
        }
    }
    Ok(format!("{} checks, {ranks} ranks", conformance::checks().len()))
}

/// Rounds of collectives over tensors, in memory that is taken and given back all the time.
fn travel(context: &Context, computed: bool) -> Result<String> {
    let worlds = worlds(context)?;
    let ranks = worlds.len();
    for result in local::run_worlds(worlds, |world| rounds(&world, computed)) {
        result??;
    }
    Ok(format!("{ROUNDS} rounds, {ranks} ranks"))
}

const ROUNDS: usize = 20;
/// Rows and columns of what travels.
const SIDE: usize = 512;

fn rounds(world: &World, computed: bool) -> Result<()> {
    let device = burnish_device::open(burnish_device::DeviceKind::Cuda, world.rank())?;
    let (group, ranks) = (world.group(), world.size());
    for round in 0..ROUNDS {
        // Integers that TF32 and bf16 have.
        let value = |rank: usize| ((rank + round) % 100) as f32;
        let own = vec![value(world.rank()); SIDE * SIDE];
        let mut x = AnyTensor::from_elements(own, &[SIDE, SIDE], &device);
        if computed {
            x = busy(&x, &device)?;
        }
        let posted = bucket::<f32>(&x).expect("invariant: f32");
        anyhow::ensure!(posted.device().is_some(), "the tensor is not posted where it lies");
        drop(x);
        let sum = group.all_reduce(posted, Reduction::Sum, "sum").wait()?;
        anyhow::ensure!(sum.device().is_some(), "the sum came by the host");
        let mut sum = tensor(sum, &[SIDE, SIDE], &device);
        let mut expected: f32 = (0..ranks).map(value).sum();
        if computed {
            sum = AnyTensor::new(sum.rank::<2>()? * 2.0);
            expected *= 2.0;
        }
        same("sum", &sum, expected)?;

        let half = vec![bf16::from_f32(value(world.rank())); SIDE];
        let half = AnyTensor::from_elements(half, &[SIDE], &device);
        let posted = bucket::<bf16>(&half).expect("invariant: bf16");
        let parts = group.all_gather_v(posted, &vec![SIDE; ranks], "parts").wait()?;
        anyhow::ensure!(parts.device(0).is_some(), "the parts came by the host");
        for (rank, part) in tensors(&parts, &device).iter().enumerate() {
            // Parts of one piece of memory are cut from it by a kernel.
            if computed || ranks == 1 {
                same("part", part, value(rank))?;
            }
        }
    }
    Ok(())
}

/// The same values, when the device has multiplied for a while.
fn busy(x: &AnyTensor, device: &Device) -> Result<AnyTensor> {
    let one = Tensor::<2>::eye(SIDE, device);
    let mut x = x.rank::<2>()?;
    for _ in 0..200 {
        x = one.clone().matmul(x);
    }
    Ok(AnyTensor::new(x))
}

fn same(what: &str, got: &AnyTensor, expected: f32) -> Result<()> {
    let other = got.to_f32().into_iter().find(|&got| got != expected);
    anyhow::ensure!(other.is_none(), "{what}: expected {expected}, got {}", other.unwrap_or_default());
    Ok(())
}

/// A run with a GPU for each rank, against one rank.
fn run(name: &str, common: Vec<String>, several: &[&str]) -> Check {
    let several = full(several);
    Check::new("nccl", name, move |context: &Context| {
        let worlds = worlds(context)?;
        let size = worlds.len();
        if size == 1 {
            return Err(LeftOut("one GPU".to_owned()).into());
        }
        against_one(context, 4 * size, false, &common, (&several, &Ranks::Gpus(worlds)))
    })
}
