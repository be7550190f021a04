//! Peak resident memory of this process.

use std::process::Command;

/// Reads the process's peak resident memory.
///
/// On Linux the kernel keeps the peak (`VmHWM`). Elsewhere on Unix the present size is asked of `ps` at each reading and
/// the largest answer kept; where neither exists there is no figure.
#[derive(Debug, Default)]
pub struct PeakMemory {
    largest: u64,
}

impl PeakMemory {
    /// A reader that has seen nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The peak so far, in bytes.
    pub fn read(&mut self) -> Option<u64> {
        let now = kernel_peak().or_else(present)?;
        self.largest = self.largest.max(now);
        Some(self.largest)
    }
}

fn kernel_peak() -> Option<u64> {
    high_water_mark(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// The kernel's line, such as `VmHWM: 123456 kB`, in bytes.
fn high_water_mark(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

fn present() -> Option<u64> {
    if !cfg!(unix) {
        return None;
    }
    let output =
        Command::new("ps").args(["-o", "rss=", "-p", &std::process::id().to_string()]).output().ok()?;
    let kilobytes: u64 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_line_is_read() {
        assert_eq!(high_water_mark("Name:\tx\nVmPeak:\t 900 kB\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(high_water_mark("Name:\tx\n"), None);
    }

    #[test]
    fn the_peak_covers_what_was_allocated() {
        if !cfg!(target_os = "linux") {
            println!("no kernel peak on this system: nothing to compare");
            return;
        }
        let mut peak = PeakMemory::new();
        let before = peak.read().expect("Linux reports VmHWM");
        let block = vec![1u8; 64 << 20];
        let touched: u64 = block.iter().step_by(4096).map(|byte| u64::from(*byte)).sum();
        assert_eq!(touched, 64 << 8);
        let with = peak.read().expect("Linux reports VmHWM");
        drop(block);
        assert!(with >= (64 << 20) && with >= before, "{before} then {with}");
        assert!(peak.read() >= Some(with), "a peak never falls");
    }
}
