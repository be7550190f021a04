//! Agreement of all ranks on a plan by its digest.

use burnish_comm::{Bucket, CommError, Group};

use super::Plan;
use crate::ZeroError;

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

    /// Compares this plan with those of all ranks. Called once by each of them, before anything else is.
    ///
    /// # Errors
    /// [`ZeroError::Plans`] on every rank if one has another plan: it names the first parameter that differs, if one
    /// does.
    pub fn agree(&self, group: &Group) -> Result<(), ZeroError> {
        if group.size() != self.world {
            return Err(ZeroError::World { plan: self.world, group: group.size() });
        }
        let group = group.channel("plan");
        let mine = vec![self.digest(), self.registry.len() as u64];
        let all = gather(&group, mine.clone(), &vec![2; self.world], "plan")?;
        let other: Vec<usize> = (0..self.world).filter(|&r| all[r] != mine).collect();
        if all.iter().all(|theirs| *theirs == all[0]) {
            return Ok(());
        }
        let lengths: Vec<usize> = all.iter().map(|theirs| theirs[1] as usize).collect();
        let each = gather(&group, self.parameter_digests(), &lengths, "plan by parameter")?;
        let longest = lengths.into_iter().max().unwrap_or(0);
        let first = (0..longest).find(|&i| each.iter().any(|theirs| theirs.get(i) != each[0].get(i)));
        let ranks = other.into_iter().filter_map(|member| group.global_rank(member)).collect();
        let parameter = first.map(|i| match i < self.registry.len() {
            true => self.registry.at(i).name.clone(),
            false => format!("number {i}, which this rank does not have"),
        });
        Err(ZeroError::Plans { ranks, parameter })
    }

    /// A digest of each parameter and where it is.
    fn parameter_digests(&self) -> Vec<u64> {
        let digest = |((parameter, placement), work)| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(format!("{parameter:?} {placement:?} {work:?}").as_bytes());
            short(&hasher)
        };
        self.registry.iter().zip(&self.placements).zip(&self.works).map(digest).collect()
    }
}

fn gather(group: &Group, mine: Vec<u64>, counts: &[usize], what: &str) -> Result<Vec<Vec<u64>>, CommError> {
    let parts = group.all_gather_v(Bucket::new(mine), counts, what).wait()?;
    Ok(parts.iter().map(<[u64]>::to_vec).collect())
}

fn short(hasher: &blake3::Hasher) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}
