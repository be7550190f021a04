//! `room`: how much memory the machine has left for this process.

use std::fs::read_to_string;
use std::path::Path;

/// Bytes of the machine's memory that this process may still take: what the system has available, or less where a control
/// group bounds it. `None` where nobody says (elsewhere than on Linux).
#[must_use]
pub fn room() -> Option<u64> {
    of(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

fn of(proc: &Path, groups: &Path) -> Option<u64> {
    let line = |text: &str, key: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
        rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    let available = line(&read_to_string(proc.join("meminfo")).ok()?, "MemAvailable:")? * 1024;
    let own = read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    // `0::/path` of version 2, `9:memory:/path` of version 1.
    let groups = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        match controllers {
            "" => Some((groups.to_owned(), path, ["memory.max", "memory.current", "inactive_file"])),
            _ if controllers.split(',').any(|c| c == "memory") => {
                let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
                Some((groups.join("memory"), path, names))
            }
            _ => None,
        }
    });
    let left = |group: &Path, [limit, used, idle]: [&str; 3]| {
        let number = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        // `max` is no number.
        let (limit, used) = (number(limit)?, number(used)?);
        // Pages of files that go when memory is asked for.
        let idle =
            read_to_string(group.join("memory.stat")).ok().and_then(|text| line(&text, &format!("{idle} ")));
        Some(limit.saturating_sub(used.saturating_sub(idle.unwrap_or(0))))
    };
    let bounds = groups.flat_map(|(root, path, names)| {
        // A group is bounded by those above it; in a container its own path may not be there.
        let above = Path::new(path).ancestors().map(|at| root.join(at)).collect::<Vec<_>>();
        above.into_iter().filter_map(move |group| left(&group, names))
    });
    Some(bounds.fold(available, u64::min))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_tightest_bound_counts() {
        let root = tempfile::tempdir().unwrap();
        let (proc, groups) = (root.path().join("proc"), root.path().join("cgroup"));
        assert_eq!(of(&proc, &groups), None);
        write(&proc.join("meminfo"), "MemTotal:       16000 kB\nMemAvailable:    9000 kB\n");
        assert_eq!(of(&proc, &groups), Some(9000 * 1024));
        write(&proc.join("self/cgroup"), "0::/user/job\n");
        assert_eq!(of(&proc, &groups), Some(9000 * 1024));
        // Its own group has no bound, the one above has.
        write(&groups.join("user/job/memory.max"), "max\n");
        write(&groups.join("user/job/memory.current"), "5000\n");
        write(&groups.join("user/memory.max"), "7000000\n");
        write(&groups.join("user/memory.current"), "2500000\n");
        assert_eq!(of(&proc, &groups), Some(4_500_000));
        write(&groups.join("user/memory.stat"), "anon 7\ninactive_file 500000\n");
        assert_eq!(of(&proc, &groups), Some(5_000_000));
        // Version 1, whose path is the host's: the mounted root is the container's.
        write(&proc.join("self/cgroup"), "9:cpu,memory:/docker/abc\n");
        write(&groups.join("memory/memory.limit_in_bytes"), "3000000\n");
        write(&groups.join("memory/memory.usage_in_bytes"), "1000000\n");
        assert_eq!(of(&proc, &groups), Some(2_000_000));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_some() {
        assert!(room().unwrap() > 0);
    }
}
