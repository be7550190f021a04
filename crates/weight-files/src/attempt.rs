//! `Attempt`: the identity of one try at writing a folder, and of one of its writers.

use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// One try at writing a folder. The unfinished folder's name is made of it, so that all ranks know the name without
/// talking, and no other run has it.
///
/// Rank 0 makes one and tells the others its [words](Self::to_words).
///
/// ```
/// use burnish_weight_files::Attempt;
/// let attempt = Attempt::fresh();
/// assert_eq!(Attempt::from_words(attempt.to_words()), attempt);
/// assert_ne!(Attempt::fresh(), attempt);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    /// The process that leads it.
    pub(crate) pid: u32,
    /// Where that number means something: a digest of the running system and its space of process numbers.
    pub(crate) host: u32,
    pub(crate) nonce: u64,
}

impl Attempt {
    /// One that nobody had before, led by this process.
    #[must_use]
    pub fn fresh() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let digest = blake3::hash(format!("{now} {count} {}", std::process::id()).as_bytes());
        Self { pid: std::process::id(), host: this_host(), nonce: first_word(&digest) }
    }

    /// What to send to other ranks.
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        [u64::from(self.pid) << 32 | u64::from(self.host), self.nonce]
    }

    /// From what was received.
    #[must_use]
    pub fn from_words([owner, nonce]: [u64; 2]) -> Self {
        Self { pid: (owner >> 32) as u32, host: owner as u32, nonce }
    }

    /// The end of the unfinished name.
    pub(crate) fn suffix(self) -> String {
        format!("{}-{:08x}-{:016x}", self.pid, self.host, self.nonce)
    }

    /// The attempt behind the end of a name.
    pub(crate) fn parse(suffix: &str) -> Option<Self> {
        let mut parts = suffix.split('-');
        let (pid, host, nonce) = (parts.next()?, parts.next()?, parts.next()?);
        let attempt = Self {
            pid: pid.parse().ok()?,
            host: u32::from_str_radix(host, 16).ok()?,
            nonce: u64::from_str_radix(nonce, 16).ok()?,
        };
        (attempt.suffix() == suffix).then_some(attempt)
    }
}

/// One of the ranks that write a folder together. Rank 0 leads: it creates the unfinished folder, writes what is the same
/// on all ranks, and makes the result visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The try that all of them are part of.
    pub attempt: Attempt,
    /// Which one this is.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
}

impl Share {
    /// The only writer.
    #[must_use]
    pub fn alone() -> Self {
        Self { attempt: Attempt::fresh(), rank: 0, ranks: 1 }
    }

    /// Whether this rank leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.rank == 0
    }
}

/// A digest of the running system (its boot), its space of process numbers (containers have their own) and its name.
pub(crate) fn this_host() -> u32 {
    static HOST: OnceLock<u32> = OnceLock::new();
    *HOST.get_or_init(|| {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let name = std::env::var("COMPUTERNAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_default();
        let text = [
            read("/proc/sys/kernel/random/boot_id"),
            space.to_string_lossy().into_owned(),
            // The environment's name may differ between a shell and a job of the same host: only where there is no other.
            if cfg!(target_os = "linux") { read("/proc/sys/kernel/hostname") } else { name },
        ];
        first_word(&blake3::hash(text.join("\n").as_bytes())) as u32
    })
}

fn first_word(digest: &blake3::Hash) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&digest.as_bytes()[..8]);
    u64::from_le_bytes(word)
}
