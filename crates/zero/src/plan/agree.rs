//! Whether all ranks made the same plan.

use super::Plan;

impl Plan {
    /// A digest of everything in the plan.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        for digest in self.parameter_digests() {
            hasher.update(&digest.to_le_bytes());
        }
        hasher.update(format!("{:?} {} {:?}", self.policy, self.world, self.units).as_bytes());
        short(&hasher)
    }

    /// A digest of each parameter and where it is.
    fn parameter_digests(&self) -> Vec<u64> {
        let digest = |(parameter, placement)| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(format!("{parameter:?} {placement:?}").as_bytes());
            short(&hasher)
        };
        self.registry.iter().zip(&self.placements).map(digest).collect()
    }
}

fn short(hasher: &blake3::Hasher) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}
