//! One run of the program, watched: its time, its memory, how it ended.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// No run on the tiny model may hold more.
pub(crate) const MEMORY: u64 = 1 << 30;
/// What is kept of what a run says.
const KEPT: u64 = 1 << 20;

/// What is run, and what is done to it meanwhile.
pub(crate) struct Running<'a> {
    pub(crate) program: &'a Path,
    pub(crate) words: Vec<OsString>,
    /// Commands of the shell before the program, such as `ulimit -f 1;`.
    pub(crate) before: String,
    /// Whether nobody reads standard output, standard error.
    pub(crate) closed: [bool; 2],
    pub(crate) seconds: f64,
    /// A signal, and after how many seconds it is sent.
    pub(crate) signal: Option<(&'static str, f64)>,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) seconds: f64,
    pub(crate) peak: u64,
    pub(crate) hung: bool,
    pub(crate) grew: bool,
}

impl Running<'_> {
    /// Runs to the end, or to a bound.
    pub(crate) fn go(self) -> Result<Ended> {
        let mut command = Command::new("sh");
        // Far above what any run needs: what asks for more at once has not looked at what it was asked.
        command.args(["-c", &format!("ulimit -v 25165824; {} exec \"$0\" \"$@\"", self.before)]);
        command.arg(self.program).args(&self.words).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_remove("RUST_BACKTRACE").env("HF_HUB_OFFLINE", "1");
        let begun = Instant::now();
        let mut child = command.spawn().context("cannot start sh")?;
        let out = heard(child.stdout.take(), self.closed[0]);
        let err = heard(child.stderr.take(), self.closed[1]);
        let mut ended = Ended {
            code: None,
            signal: None,
            stdout: String::new(),
            stderr: String::new(),
            seconds: 0.0,
            peak: 0,
            hung: false,
            grew: false,
        };
        let mut signal = self.signal;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            ended.peak = ended.peak.max(peak(&child));
            let gone = begun.elapsed().as_secs_f64();
            if let Some((name, at)) = signal
                && gone >= at
            {
                send(&child, name, false);
                signal = None;
            }
            ended.hung = gone > self.seconds;
            ended.grew = ended.peak > MEMORY;
            if ended.hung || ended.grew {
                send(&child, "KILL", true);
                break child.wait()?;
            }
            std::thread::sleep(Duration::from_millis(4));
        };
        // What it started must not outlive it.
        send(&child, "KILL", true);
        ended.seconds = begun.elapsed().as_secs_f64();
        (ended.code, ended.signal) = (status.code(), status.signal());
        let text = |thread: Option<std::thread::JoinHandle<Vec<u8>>>| {
            let bytes = thread.and_then(|thread| thread.join().ok()).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        (ended.stdout, ended.stderr) = (text(out), text(err));
        Ok(ended)
    }
}

/// Reads to the end and keeps the beginning; where nobody is to read, the pipe is closed at once.
fn heard(pipe: Option<impl Read + Send + 'static>, closed: bool) -> Option<std::thread::JoinHandle<Vec<u8>>> {
    let mut pipe = pipe.filter(|_| !closed)?;
    Some(std::thread::spawn(move || {
        let mut kept = Vec::new();
        let _ = pipe.by_ref().take(KEPT).read_to_end(&mut kept);
        // What follows a flood is how it ended.
        let (mut end, mut part) = (Vec::new(), [0; 1 << 16]);
        while let Ok(read @ 1..) = pipe.read(&mut part) {
            end.extend_from_slice(&part[..read]);
            let beyond = end.len().saturating_sub(1 << 14);
            end.drain(..beyond);
        }
        kept.extend(end);
        kept
    }))
}

/// The most that the process has held, in bytes.
fn peak(child: &Child) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

fn send(child: &Child, signal: &str, group: bool) {
    let whom = format!("{}{}", if group { "-" } else { "" }, child.id());
    let mut kill = Command::new("kill");
    let _ = kill.args([&format!("-{signal}"), "--", &whom]).stderr(Stdio::null()).status();
}
