//! `cargo xtask nccl`: the transport `nccl` over a driver and an NCCL that need no device (`tests/fake-cuda`).
//!
//! The ranks' suite and every way to fail, as processes and as threads of one process; elements that stay on the
//! device; and what libraries and devices do wrong.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::fake_driver;
use crate::step::built;
use crate::test::Tally;

/// The program whose processes or threads are the ranks: an example of burnish-comm.
const PROGRAM: &str = "nccl_ranks";
/// Seconds after which a job is taken for hung.
const HUNG: u64 = 120;
/// Checks of the suite that leave no world behind; a process has one world, so each is a job.
const BREAKING: &[&str] = &[
    "another operation",
    "another number of elements",
    "another root",
    "another axis",
    "a call too few",
    "another length between two",
    "a send met by a collective",
    "a rank is silent",
    "a rank ends",
    "a rank stops with a reason",
    "wrong arguments on one rank",
];

/// How a job must end.
#[derive(Debug, Clone)]
enum End {
    /// All processes with status 0, and this line so often.
    Passes(&'static str, usize),
    /// All processes with another status, and each saying all of these; but for the one that is named, if any, which
    /// does not end by itself.
    Fails(&'static [&'static str], Option<usize>),
}

/// So many processes of the program, with these words and variables.
#[derive(Debug, Clone)]
struct Job {
    processes: usize,
    words: String,
    variables: Vec<(&'static str, &'static str)>,
    end: End,
}

impl Job {
    fn new(processes: usize, words: impl Into<String>, end: End) -> Self {
        Self { processes, words: words.into(), variables: Vec::new(), end }
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    fn name(&self) -> String {
        let variables = self.variables.iter().map(|(name, value)| format!(", {name}={value}"));
        format!("nccl {} ({} processes{})", self.words, self.processes, variables.collect::<String>())
    }
}

fn jobs() -> Vec<Job> {
    let passes = |count| End::Passes("checks passed", count);
    let kept = "device memory passed";
    let mut jobs = Vec::new();
    for ranks in [1, 2, 4] {
        jobs.push(Job::new(ranks, "suite", passes(ranks)));
        jobs.push(Job::new(1, format!("--threads {ranks} suite"), passes(ranks)));
        jobs.push(Job::new(1, format!("--threads {ranks} device"), End::Passes(kept, ranks)));
    }
    jobs.push(Job::new(3, "device", End::Passes(kept, 3)));
    // Streams that dawdle, each in its own way.
    let slow = |job: Job| job.with("FAKE_CUDA_JITTER", "300");
    jobs.push(slow(Job::new(1, "--threads 3 suite", passes(3))));
    jobs.push(slow(Job::new(1, "--threads 3 device", End::Passes(kept, 3))));
    for ranks in [2, 3] {
        jobs.push(Job::new(
            1,
            format!("--threads {ranks} breaking"),
            End::Passes("breaking checks passed", 1),
        ));
    }
    jobs.extend(BREAKING.iter().map(|check| Job::new(3, format!("check {check}"), passes(3))));
    // What the libraries and the devices do wrong.
    let steps = |words: &'static [&'static str], stopped| {
        Job::new(3, "--deadline 2000 steps", End::Fails(words, stopped))
    };
    let fault = "FAKE_NCCL_FAULT";
    jobs.extend([
        Job::new(1, "doctor", End::Passes("NCCL 2.28.3 from", 1)),
        Job::new(1, "--threads 5 steps", End::Fails(&["5 ranks for 4 CUDA devices"], None)),
        Job::new(1, "--threads 1 steps", End::Fails(&["1 ranks for 0 CUDA devices"], None))
            .with("FAKE_CUDA_DEVICES", "0"),
        Job::new(1, "steps", End::Fails(&["rank 0 should use device 7, but this machine has 4"], None))
            .with("LOCAL_RANK", "7"),
        Job::new(2, "--deadline 3000 steps", End::Fails(&["ncclInvalidUsage", "layer.0.weight"], None))
            .with("LOCAL_RANK", "1"),
        steps(&["ncclSystemError", "layer.1.weight", "rank 1"], None).with(fault, "async:1:1"),
        steps(&["ncclSystemError", "layer.0.weight", "rank 2"], None).with(fault, "init:2"),
        steps(&["not complete after 2s although all ranks are there", "layer.1.weight"], None)
            .with(fault, "hang:1:1"),
        steps(&["rank 2 does not answer any more", "layer.1.weight"], Some(2)).with(fault, "stop:2:1"),
        Job::new(2, "sum 1000000", End::Fails(&["has no memory for 4000000 bytes", "layer.0.weight"], None))
            .with("FAKE_CUDA_MEMORY", "1000000"),
    ]);
    jobs
}

/// Whether the jobs can run here: the fake is found by the loader's path of Linux.
pub(crate) fn here() -> bool {
    cfg!(target_os = "linux")
}

/// Builds what is needed, runs every job, and counts.
///
/// # Errors
/// If something cannot be built or started.
pub(crate) fn run(root: &Path) -> Result<Tally> {
    if !here() {
        bail!("the jobs need Linux");
    }
    let words = ["--workspace", "--features", "burnish-comm/cuda", "--example", PROGRAM];
    let program = built(root, &words, PROGRAM)?;
    let place = Place::new(&fake_driver::build(root)?)?;
    let mut tally = Tally::default();
    let mut note = |passed: bool| if passed { tally.passed += 1 } else { tally.failed += 1 };
    for job in jobs() {
        note(place.run(&job, &program, &place.whole)?);
    }
    let driver: &'static [&str] = &["no CUDA driver on this machine"];
    let library: &'static [&str] = &["no NCCL library on this machine"];
    for (expected, folder) in [(driver, &place.nothing), (library, &place.half)] {
        if Command::new(&program).arg("doctor").output().is_ok_and(|output| output.status.success()) {
            println!("== nccl: {}: left out, as the real one is here", expected[0]);
        } else {
            note(place.run(&Job::new(1, "doctor", End::Fails(expected, None)), &program, folder)?);
        }
    }
    let left: Vec<OsString> =
        fs::read_dir(&place.meetings)?.flatten().map(|entry| entry.file_name()).collect();
    // Ranks that never came together, on purpose, leave what they met in.
    println!("== nccl: {} meetings were left behind by failures", left.len());
    Ok(tally)
}

/// Folders of the jobs, removed with everything in them.
struct Place {
    folder: PathBuf,
    /// Of the loader's path: all names of the fake, the driver's only, none.
    whole: PathBuf,
    half: PathBuf,
    nothing: PathBuf,
    /// Where ranks of a communicator meet.
    meetings: PathBuf,
}

impl Place {
    fn new(fake: &Path) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("burnish-nccl-{}", std::process::id()));
        let [whole, half, nothing, meetings] =
            ["whole", "half", "nothing", "meet"].map(|name| folder.join(name));
        let place = Self { folder, whole, half, nothing, meetings };
        for folder in [&place.whole, &place.half, &place.nothing, &place.meetings] {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        fake_driver::link(fake, &place.whole, &fake_driver::NAMES)?;
        fake_driver::link(fake, &place.half, &fake_driver::NAMES[..1])?;
        Ok(place)
    }

    /// Runs one job and says how it went.
    fn run(&self, job: &Job, program: &Path, libraries: &Path) -> Result<bool> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let began = Instant::now();
        let mut children = Vec::new();
        for rank in 0..job.processes {
            let output = File::create(self.log(rank))?;
            let mut command = Command::new(program);
            command
                .args(words(&job.words))
                .env("LD_LIBRARY_PATH", libraries)
                .env("FAKE_NCCL_DIR", &self.meetings)
                .env("FAKE_CUDA_DEVICES", "4")
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .env("WORLD_SIZE", job.processes.to_string())
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("RUST_BACKTRACE", "0")
                .envs(job.variables.iter().copied());
            command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
            children.push(command.spawn().context("cannot run the program")?);
        }
        let wrong = self.ended(job, &mut children, began)?;
        let verdict = if wrong.is_none() { "passed" } else { "FAILED" };
        println!("== {}: {verdict} in {:.1} s", job.name(), began.elapsed().as_secs_f64());
        if let Some(wrong) = &wrong {
            for rank in 0..job.processes {
                println!("{}", self.said(rank)?);
            }
            println!("== {}: {wrong}", job.name());
        }
        Ok(wrong.is_none())
    }

    fn log(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("output {rank}"))
    }

    fn said(&self, rank: usize) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.log(rank))?).into_owned())
    }

    /// Waits for the processes; what is wrong with their end.
    fn ended(&self, job: &Job, children: &mut [Child], began: Instant) -> Result<Option<String>> {
        let excused = if let End::Fails(_, stopped) = job.end { stopped } else { None };
        let mut wrong = None;
        let mut succeeded = Vec::new();
        for (rank, child) in children.iter_mut().enumerate().filter(|(rank, _)| Some(*rank) != excused) {
            loop {
                if let Some(status) = child.try_wait()? {
                    succeeded.push((rank, status.success()));
                    break;
                }
                if began.elapsed() > Duration::from_secs(HUNG) {
                    wrong = Some(format!("rank {rank} did not end in {HUNG} s"));
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        for child in children {
            // Those that have ended are not there to be killed.
            let _ = child.kill();
            child.wait()?;
        }
        if wrong.is_some() {
            return Ok(wrong);
        }
        match job.end {
            End::Passes(line, count) => {
                let mut lines = 0;
                for rank in 0..job.processes {
                    lines += self.said(rank)?.lines().filter(|said| said.contains(line)).count();
                }
                let all = succeeded.iter().all(|(_, success)| *success) && lines == count;
                Ok((!all).then(|| format!("`{line}` {lines} times, expected {count}")))
            }
            End::Fails(expected, _) => {
                for (rank, success) in succeeded {
                    let said = self.said(rank)?;
                    let absent: Vec<_> = expected.iter().filter(|words| !said.contains(**words)).collect();
                    if success || !absent.is_empty() || said.contains("panicked") {
                        return Ok(Some(format!(
                            "rank {rank} ended with success = {success}, without {absent:?}"
                        )));
                    }
                }
                Ok(None)
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Left-overs are harmless, and there is nothing to do about a folder that cannot be removed.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ')
}
