//! Randomness of a block that runs twice: the same draws in forward and in backward.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use burn::tensor::{Device, Distribution, Tensor};
use burnish_ops::{AnyTensor, OpsError};

use super::survey::digest;
use crate::{ShardedParams, ZeroError};

/// Held while a block draws: Burn has one generator for all threads of a process.
static GENERATOR: Mutex<()> = Mutex::new(());

/// One run of a block with dropout, and its repetition.
pub(super) struct Replay {
    block: String,
    seed: u64,
    device: Device,
    store: Arc<ShardedParams>,
    /// What the generator gave after forward.
    after: OnceLock<u32>,
}

impl Replay {
    /// The run number `run` of this rank, by the seed of a run.
    pub(super) fn new(store: &Arc<ShardedParams>, block: &str, seed: u64, run: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        for word in [seed, store.rank() as u64, run] {
            hasher.update(&word.to_le_bytes());
        }
        let (seed, device) = (digest(&hasher), store.device().clone());
        Self { block: block.to_owned(), seed, device, store: Arc::clone(store), after: OnceLock::new() }
    }

    /// Runs the block with the draws of its seed. Burn drops out on devices of autodiff only, so that it runs there also
    /// in forward, where nothing is tracked.
    pub(super) fn run(
        &self,
        inputs: &[AnyTensor],
        run: impl FnOnce(&[AnyTensor]) -> Result<AnyTensor, OpsError>,
    ) -> Result<AnyTensor, OpsError> {
        let inputs: Vec<AnyTensor> =
            inputs.iter().map(|x| if x.is_tracked() { x.clone() } else { x.untracked() }).collect();
        let generator: MutexGuard<'_, ()> = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
        self.device.seed(self.seed);
        let out = run(&inputs)?;
        let drawn = Tensor::<1>::random([1], Distribution::Default, &self.device);
        let drawn = drawn.into_scalar::<f32>().to_bits();
        // What is drawn outside does not repeat the block's draws.
        self.device.seed(!self.seed);
        drop(generator);
        if *self.after.get_or_init(|| drawn) != drawn {
            self.store.report(ZeroError::OtherDraws { block: self.block.clone() });
        }
        Ok(if out.is_tracked() { out } else { out.plain() })
    }
}
