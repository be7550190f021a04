//! `cargo xtask mpi`: the ranks' suite and every way to fail, across processes and across two hosts.
//!
//! The second host is a network namespace with a hostname of its own; an agent that enters it plays ssh.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::step::built;
use crate::test::Tally;

/// The program whose processes are the ranks: an example of burnish-comm.
const PROGRAM: &str = "mpi_ranks";

/// Seconds after which a job that should pass is taken for hung.
const HUNG: u64 = 240;

/// How a job must end.
#[derive(Debug, Clone)]
enum End {
    /// With status 0, and with this line from every rank.
    Passes(&'static str),
    /// With another status, within so many seconds, its output naming all of these.
    Fails(u64, Vec<String>),
}

/// A job: so many ranks of the program, with these arguments.
#[derive(Debug, Clone)]
struct Job {
    ranks: usize,
    hosts: bool,
    arguments: Vec<String>,
    end: End,
}

impl Job {
    fn new(ranks: usize, arguments: &str, end: End) -> Self {
        let arguments = arguments.split(' ').map(str::to_owned).collect();
        Self { ranks, hosts: false, arguments, end }
    }

    fn across_hosts(self) -> Self {
        Self { hosts: true, ..self }
    }

    fn name(&self) -> String {
        let hosts = if self.hosts { ", two hosts" } else { "" };
        format!("mpi {} (-n {}{hosts})", self.arguments.join(" "), self.ranks)
    }
}

/// The suite, and the failures: each must end within seconds, not with 0, with a message that names it.
fn jobs() -> Vec<Job> {
    let fails =
        |seconds, words: &[&str]| End::Fails(seconds, words.iter().map(|&word| word.to_owned()).collect());
    let mut jobs = vec![
        Job::new(2, "suite", End::Passes("checks passed, 0 failed")),
        Job::new(3, "suite", End::Passes("checks passed, 0 failed")),
        Job::new(4, "suite", End::Passes("checks passed, 0 failed")),
        // Payloads cut as those beyond 2^31 bytes are.
        Job::new(3, "suite 4000", End::Passes("checks passed, 0 failed")),
        Job::new(4, "suite", End::Passes("checks passed, 0 failed")).across_hosts(),
    ];
    for hosts in [false, true] {
        let failures = [
            Job::new(4, "panic 2", fails(15, &["panicked on purpose", "rank 2 of 4 panicked"])),
            Job::new(4, "kill 2", fails(15, &["process rank 2", "signal 9"])),
            Job::new(4, "silent 2", fails(20, &["rank 2 is silent for 3s", "`layer.7.weight`"])),
            Job::new(
                4,
                "disagree 2",
                fails(20, &["the ranks disagree", "rank 2 calls all_reduce(`layer.7.weight`, 99"]),
            ),
            Job::new(4, "leave 2", fails(15, &["rank 2 has ended", "`layer.7.weight`"])),
            Job::new(4, "fail 2", fails(15, &["rank 2 cannot read data.jsonl"])),
            Job::new(4, "exit 2", fails(15, &["process rank 2"])),
        ];
        jobs.extend(failures.into_iter().map(|job| if hosts { job.across_hosts() } else { job }));
    }
    jobs
}

/// Whether jobs can be started here at all.
pub(crate) fn here() -> bool {
    found("mpirun")
}

/// Builds the program, runs every job, and counts. Prints a line for what it leaves out.
///
/// # Errors
/// If the program cannot be built or a job cannot be started.
pub(crate) fn run(root: &Path) -> Result<Tally> {
    if !here() {
        bail!("mpirun is not here: the jobs need Open MPI (Debian: apt-get install openmpi-bin)");
    }
    let program = built(root, &["--workspace", "--example", PROGRAM], PROGRAM)?;
    let folders = Folders::new()?;
    let hosts = match Hosts::up(&folders) {
        Ok(hosts) => Some(hosts),
        Err(why) => {
            println!("== mpi: jobs across two hosts are left out: {why:#}");
            None
        }
    };
    let mut tally = Tally::default();
    for job in jobs() {
        if job.hosts && hosts.is_none() {
            continue;
        }
        if run_job(&job, &program, &folders, hosts.as_ref())? {
            tally.passed += 1;
        } else {
            tally.failed += 1;
        }
    }
    Ok(tally)
}

/// Prints how fast the transports move 64 MiB.
///
/// # Errors
/// If the program cannot be built or a job cannot be started.
pub(crate) fn bench(root: &Path) -> Result<bool> {
    let program = built(root, &["--workspace", "--example", PROGRAM], PROGRAM)?;
    let folders = Folders::new()?;
    let mut passed = true;
    for ranks in [2, 4] {
        let mut command = mpirun(&folders, ranks, HUNG);
        passed &= command.arg(&program).arg("bench").status().context("cannot run mpirun")?.success();
    }
    Ok(passed)
}

/// Runs one job and says how it went.
fn run_job(job: &Job, program: &Path, folders: &Folders, hosts: Option<&Hosts>) -> Result<bool> {
    let limit = match job.end {
        End::Passes(_) => HUNG,
        End::Fails(seconds, _) => seconds,
    };
    let mut command = match hosts {
        Some(hosts) if job.hosts => hosts.mpirun(folders, job.ranks, limit),
        _ => mpirun(folders, job.ranks, limit),
    };
    command.arg(program).args(&job.arguments);
    // To a file: what a killed job leaves behind may hold a pipe open for ever.
    let log = folders.temporary.join("output");
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let began = Instant::now();
    let mut child = command.spawn().context("cannot run mpirun")?;
    let (status, took) = loop {
        let took = began.elapsed();
        if let Some(status) = child.try_wait()? {
            break (Some(status), took);
        }
        if took > Duration::from_secs(limit + 10) {
            child.kill()?;
            child.wait()?;
            break (None, took);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())?;
    let wrong = match (&job.end, status) {
        (_, None) => Some("mpirun did not come back".to_owned()),
        (End::Passes(line), Some(status)) => {
            let ranks = said.lines().filter(|said| said.contains(line)).count();
            let right = status.success() && ranks == job.ranks;
            (!right).then(|| format!("{status}, `{line}` from {ranks} of {} ranks", job.ranks))
        }
        (End::Fails(..), Some(status)) if status.success() => Some("it ended with status 0".to_owned()),
        (End::Fails(seconds, words), Some(_)) => {
            let absent: Vec<&String> = words.iter().filter(|word| !said.contains(word.as_str())).collect();
            let late = took > Duration::from_secs(*seconds);
            (late || !absent.is_empty()).then(|| format!("after {} s, without {absent:?}", took.as_secs()))
        }
    };
    let verdict = if wrong.is_none() { "passed" } else { "FAILED" };
    println!("== {}: {verdict} in {:.1} s", job.name(), took.as_secs_f64());
    if let Some(wrong) = &wrong {
        println!("{said}\n== {}: {wrong}", job.name());
    }
    Ok(wrong.is_none())
}

/// `mpirun` on this machine, with more ranks than cores allowed, and everything it leaves in our folders.
fn mpirun(folders: &Folders, ranks: usize, limit: u64) -> Command {
    let mut command = Command::new("mpirun");
    command.args(options(folders, ranks, limit));
    command
}

fn options(folders: &Folders, ranks: usize, limit: u64) -> Vec<String> {
    let temporary = folders.temporary.display().to_string();
    let memory = folders.memory.display().to_string();
    let (ranks, limit) = (ranks.to_string(), limit.to_string());
    let words = [
        &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", &limit][..],
        // Processes that share a core must give it up while they wait.
        &["--mca", "mpi_yield_when_idle", "1"],
        &["--mca", "orte_tmpdir_base", &temporary],
        &["--mca", "btl_vader_backing_directory", &memory],
        &["-n", &ranks],
    ];
    words.concat().into_iter().map(str::to_owned).collect()
}

/// Whether a program is on the search path.
fn found(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// Where jobs write; removed with everything in them, as a killed job removes nothing.
struct Folders {
    temporary: PathBuf,
    memory: PathBuf,
}

impl Folders {
    fn new() -> Result<Self> {
        let name = format!("burnish-mpi-{}", std::process::id());
        let shared = Path::new("/dev/shm");
        let temporary = std::env::temp_dir().join(&name);
        let memory = if shared.is_dir() { shared.join(&name) } else { temporary.join("memory") };
        for folder in [&temporary, &memory] {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(Self { temporary, memory })
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        // Left-overs are harmless, and there is nothing to do about a folder that cannot be removed.
        let _ = fs::remove_dir_all(&self.memory);
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// Two network namespaces joined by a cable, each with its own hostname.
struct Hosts {
    names: [String; 2],
    agent: PathBuf,
}

/// Plays ssh: `agent ADDRESS COMMAND...` runs the command on the host whose number is the address's last part. The
/// command is parsed by a shell there, as sshd does.
const AGENT: &str = r#"#!/bin/sh
prefix=PREFIX
host=$prefix${1##*.}
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
"#;

impl Hosts {
    /// Addresses of the cable's ends; the namespaces see no other network.
    const NETWORK: &str = "10.77.0";

    fn up(folders: &Folders) -> Result<Self> {
        for program in ["ip", "unshare", "hostname"] {
            if !found(program) {
                bail!("`{program}` is not here (Debian: apt-get install iproute2 util-linux hostname)");
            }
        }
        let prefix = format!("bn{}h", std::process::id());
        let agent = folders.temporary.join("agent");
        let hosts = Self { names: [1, 2].map(|host| format!("{prefix}{host}")), agent };
        // From here on `hosts` is dropped on an error and takes away what was set up.
        let cable = |host: &str| format!("{host}c");
        let [one, two] = &hosts.names;
        ip(&["netns", "add", one])?;
        ip(&["netns", "add", two])?;
        ip(&["link", "add", &cable(one), "type", "veth", "peer", "name", &cable(two)])?;
        for (number, host) in [(1, one), (2, two)] {
            ip(&["link", "set", &cable(host), "netns", host])?;
            ip(&["-n", host, "link", "set", "lo", "up"])?;
            let address = format!("{}.{number}/24", Self::NETWORK);
            ip(&["-n", host, "addr", "add", &address, "dev", &cable(host)])?;
            ip(&["-n", host, "link", "set", &cable(host), "up"])?;
        }
        fs::write(&hosts.agent, AGENT.replace("PREFIX", &prefix))?;
        let mut runnable = Command::new("chmod");
        runnable.arg("+x").arg(&hosts.agent);
        if !runnable.status().context("cannot run chmod")?.success() {
            bail!("cannot make {} a program", hosts.agent.display());
        }
        // Its own hostname per namespace: without, Open MPI takes both for one host and wires them wrongly.
        let mut probe = Command::new(&hosts.agent);
        let probed = probe.args([&format!("{}.2", Self::NETWORK), "hostname"]).output()?;
        if String::from_utf8_lossy(&probed.stdout).trim() != *two {
            bail!(
                "a namespace cannot have its own hostname: {}",
                String::from_utf8_lossy(&probed.stderr).trim()
            );
        }
        Ok(hosts)
    }

    /// `mpirun` on the first host, half of the ranks on each.
    fn mpirun(&self, folders: &Folders, ranks: usize, limit: u64) -> Command {
        let network = format!("{}.0/24", Self::NETWORK);
        let half = ranks.div_ceil(2);
        let hosts = format!("{0}.1:{half},{0}.2:{half}", Self::NETWORK);
        let agent = self.agent.display().to_string();
        let words = [
            &["--mca", "plm_rsh_agent", &agent, "--mca", "plm_rsh_no_tree_spawn", "1"][..],
            &["--host", &hosts, "--map-by", "slot"],
            &["--mca", "oob_tcp_if_include", &network, "--mca", "btl_tcp_if_include", &network],
            &["--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"],
        ];
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[0], "unshare", "--uts", "sh", "-c"]);
        command.args([r#"hostname "$0"; exec "$@""#, &self.names[0], "mpirun"]);
        command.args(options(folders, ranks, limit)).args(words.concat());
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.names {
            // A job that was cut off leaves its daemon in the namespace.
            if let Ok(left) = Command::new("ip").args(["netns", "pids", host]).output() {
                for process in String::from_utf8_lossy(&left.stdout).split_whitespace() {
                    let _ = Command::new("kill").args(["-9", process]).stderr(Stdio::null()).status();
                }
            }
            let _ = Command::new("ip").args(["netns", "delete", host]).stderr(Stdio::null()).status();
        }
    }
}

/// Runs `ip`; what it says of an error is the error.
fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("cannot run ip")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("ip {}: {}", arguments.join(" "), said.trim());
    }
    Ok(())
}
