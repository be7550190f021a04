//! Processor cores that a rank keeps to.

use std::collections::BTreeSet;
use std::path::Path;

use crate::DeviceError;

/// Cores of this machine, by the number of one hardware thread of each, NUMA node by NUMA node.
///
/// Memory lies on the node of the core that first writes it: threads that stay on a node's cores read their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// The cores that this process may run on. Of a core's hardware threads one counts: two share its units.
    ///
    /// # Errors
    /// Elsewhere than under Linux.
    pub fn allowed() -> Result<Self, DeviceError> {
        let allowed = mask()?;
        let read = |path: String| std::fs::read_to_string(Path::new("/sys/devices/system").join(path)).ok();
        let mut cores = Vec::new();
        for &thread in &allowed {
            let siblings = read(format!("cpu/cpu{thread}/topology/thread_siblings_list"));
            let siblings = siblings.and_then(|list| numbers(list.trim())).unwrap_or_default();
            if siblings.iter().all(|sibling| *sibling >= thread || !allowed.contains(sibling)) {
                cores.push(thread);
            }
        }
        let nodes = read("node/online".to_owned()).and_then(|list| numbers(list.trim())).unwrap_or_default();
        let of = |node: usize| read(format!("node/node{node}/cpulist")).and_then(|list| numbers(list.trim()));
        let nodes: Vec<BTreeSet<usize>> = nodes.into_iter().filter_map(of).collect();
        cores.sort_by_key(|core| nodes.iter().position(|node| node.contains(core)));
        Ok(Self(cores))
    }

    /// The cores of a list such as `0-27,32-59`, in that order.
    ///
    /// # Errors
    /// If it is no such list, or this process may not run on one of them.
    pub fn listed(list: &str) -> Result<Self, DeviceError> {
        let wrong = |why: String| DeviceError::CoreList { list: list.to_owned(), why };
        let allowed = mask()?;
        let mut cores = Vec::new();
        for part in list.split(',') {
            let part =
                numbers(part.trim()).ok_or_else(|| wrong(format!("`{part}` is no range of numbers")))?;
            cores.extend(part);
        }
        if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
            let allowed: Vec<String> = allowed.iter().map(usize::to_string).collect();
            return Err(wrong(format!("this process may run on {}, not on {core}", allowed.join(","))));
        }
        Ok(Self(cores))
    }

    /// The cores of one of `ranks` ranks of this machine: as many of each, those that follow each other.
    ///
    /// # Errors
    /// If there are fewer cores than ranks.
    ///
    /// # Panics
    /// If `rank` is none of them.
    pub fn of_rank(&self, rank: usize, ranks: usize) -> Result<Self, DeviceError> {
        assert!(rank < ranks, "invariant: rank {rank} of {ranks}");
        let each = self.0.len() / ranks;
        if each == 0 {
            return Err(DeviceError::TooFewCores { cores: self.0.len(), ranks });
        }
        Ok(Self(self.0[rank * each..(rank + 1) * each].to_vec()))
    }

    /// How many they are: as many threads are worth starting.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Keeps the calling thread, and those that it starts, to these cores.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn bind(&self) -> Result<(), DeviceError> {
        bind(&self.0)
    }

    /// Keeps the calling thread to one of these cores: that of worker `thread`, in turn where there are more.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn bind_worker(&self, thread: usize) -> Result<(), DeviceError> {
        let own = self.0.get(thread % self.0.len().max(1));
        own.map_or(Ok(()), |&core| bind(&[core]))
    }
}

/// Most hardware threads of a machine.
const MOST: usize = 1 << 16;

/// The numbers of a list of numbers and ranges.
fn numbers(list: &str) -> Option<BTreeSet<usize>> {
    let mut all = BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Words of the system's masks.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
type Mask = [libc::c_ulong; MOST / libc::c_ulong::BITS as usize];

/// The hardware threads that the calling thread may run on.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn mask() -> Result<BTreeSet<usize>, DeviceError> {
    let mut mask: Mask = [0; _];
    // SAFETY: the mask is writable and as large as is said; 0 is the calling thread.
    let failed = unsafe { libc::sched_getaffinity(0, size_of::<Mask>(), mask.as_mut_ptr().cast()) } != 0;
    if failed {
        return Err(DeviceError::CannotBind { text: std::io::Error::last_os_error().to_string() });
    }
    let bits = libc::c_ulong::BITS as usize;
    Ok((0..MOST).filter(|thread| mask[thread / bits] >> (thread % bits) & 1 == 1).collect())
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn bind(cores: &[usize]) -> Result<(), DeviceError> {
    let mut mask: Mask = [0; _];
    let bits = libc::c_ulong::BITS as usize;
    for core in cores {
        mask[core / bits] |= 1 << (core % bits);
    }
    // SAFETY: the mask is readable and as large as is said; 0 is the calling thread.
    let failed = unsafe { libc::sched_setaffinity(0, size_of::<Mask>(), mask.as_ptr().cast()) } != 0;
    if failed {
        return Err(DeviceError::CannotBind { text: std::io::Error::last_os_error().to_string() });
    }
    Ok(())
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn mask() -> Result<BTreeSet<usize>, DeviceError> {
    Err(DeviceError::CannotBind { text: "only Linux is told here which cores a thread keeps to".to_owned() })
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn bind(_cores: &[usize]) -> Result<(), DeviceError> {
    mask().map(drop)
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(numbers("0-2,5"), Some([0, 1, 2, 5].into()));
        assert_eq!(numbers("7"), Some([7].into()));
        for wrong in ["", "a", "3-1", "1-", "-1", "0-99999999999", "99999999"] {
            assert_eq!(numbers(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ranks_have_cores_of_their_own() {
        let cores = Cores((0..7).collect());
        let parts: Vec<_> = (0..3).map(|rank| cores.of_rank(rank, 3).unwrap().0).collect();
        assert_eq!(parts, [[0, 1], [2, 3], [4, 5]]);
        assert!(matches!(cores.of_rank(0, 8), Err(DeviceError::TooFewCores { cores: 7, ranks: 8 })));
    }

    #[test]
    fn a_thread_keeps_to_its_cores() {
        let all = Cores::allowed().unwrap();
        assert!(all.count() >= 1);
        let last = all.0[all.count() - 1];
        let bound = std::thread::spawn(move || {
            all.bind_worker(all.count() - 1).unwrap();
            (mask().unwrap(), std::thread::spawn(|| mask().unwrap()).join().unwrap())
        });
        let (own, child) = bound.join().unwrap();
        assert_eq!((own, child), ([last].into(), [last].into()));
        assert_eq!(Cores::listed(&last.to_string()).unwrap().0, [last]);
        for wrong in ["x", "65535", "2-1"] {
            let said = Cores::listed(wrong).unwrap_err().to_string();
            assert!(said.contains("bind_core_list") && said.contains(wrong), "{said}");
        }
    }
}
