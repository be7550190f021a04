//! Strangers that knock where ranks meet: the job trains as without them.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::lab::Lab;
use crate::random::Random;
use crate::running::Ended;
use crate::verdict::{Outcome, Verdict, judge};

pub(crate) fn written(_: &Lab) -> usize {
    0
}

/// What two ranks leave that nobody disturbs.
fn undisturbed(lab: &Lab) -> Result<&'static [u8]> {
    static KNOWN: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known);
    }
    let folder = lab.fresh()?;
    let out = folder.path().join("out");
    for ended in job(lab, &out, |_| ())? {
        anyhow::ensure!(ended.code == Some(0), "two ranks do not train: {}", ended.stderr);
    }
    let trained = std::fs::read(out.join("adapter_model.safetensors")).context("no adapter")?;
    Ok(KNOWN.get_or_init(|| trained))
}

/// Two ranks, of which the second comes late, with `strangers` at the port until both have ended.
fn job(lab: &Lab, out: &Path, strangers: impl FnOnce((u16, &AtomicBool)) + Send) -> Result<[Ended; 2]> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let over = AtomicBool::new(false);
    let rank = |rank: usize| {
        let mut running =
            lab.running(lab.sft(out, &["--max_steps=2", "--save_strategy=no", "--ddp_timeout=20"]));
        let late = if rank == 1 { "sleep 1;" } else { "" };
        running.before =
            format!("{late} export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE=2 RANK={rank};");
        running
    };
    std::thread::scope(|scope| {
        let knocking = scope.spawn(|| strangers((port, &over)));
        let [zero, one] = [0, 1].map(|number| {
            let running = rank(number);
            scope.spawn(move || running.go())
        });
        let panicked = |_| anyhow::anyhow!("a thread panicked");
        let ended = [zero.join().map_err(panicked)?, one.join().map_err(panicked)?];
        over.store(true, Ordering::Relaxed);
        knocking.join().map_err(panicked)?;
        let [zero, one] = ended;
        Ok([zero?, one?])
    })
}

/// What one stranger says.
fn words(random: &mut Random) -> Vec<u8> {
    let mut bytes = match random.below(7) {
        0 => Vec::new(),
        1 => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        // The hellos of this version and of one before.
        2 => [b"BRN3\x01\0\0\0\x02\0\0\0\0\0\0\0".as_slice(), &[0; 64]].concat(),
        3 => b"BRN2\x01\0\0\0\x02\0\0\0".to_vec(),
        // A message of a rank, with a length beyond all bounds.
        4 => [&[1, 0, 0, 0, 0, 0, 0, 0][..], b"BRN1", &[0xff; 252]].concat(),
        5 => vec![0xff; 1 + random.below(200_000)],
        _ => (0..random.below(300)).map(|_| random.next() as u8).collect(),
    };
    if random.below(3) == 0 && !bytes.is_empty() {
        let at = random.below(bytes.len());
        bytes.truncate(at);
    }
    bytes
}

pub(crate) fn attempt(lab: &Lab, _: usize, random: &mut Random) -> Result<Outcome> {
    let expected = undisturbed(lab)?;
    let folder = lab.fresh()?;
    let out = folder.path().join("out");
    let kinds: Vec<(Vec<u8>, bool)> =
        (0..1 + random.below(8)).map(|_| (words(random), random.below(2) == 0)).collect();
    let pause = Duration::from_micros(500 + random.below(20_000) as u64);
    let what = format!(
        "{} kinds of strangers ({:?} bytes), one every {pause:?}",
        kinds.len(),
        kinds.iter().map(|(bytes, _)| bytes.len()).collect::<Vec<_>>()
    );
    let ended = job(lab, &out, |(port, over)| {
        let mut staying = std::collections::VecDeque::new();
        let mut kinds = kinds.iter().cycle();
        while !over.load(Ordering::Relaxed) {
            if let (Ok(mut stream), Some((bytes, stays))) =
                (TcpStream::connect(("127.0.0.1", port)), kinds.next())
            {
                let _ = stream.set_write_timeout(Some(Duration::from_millis(50)));
                let _ = stream.write_all(bytes);
                if *stays {
                    staying.push_back(stream);
                }
                if staying.len() > 200 {
                    staying.pop_front();
                }
            }
            std::thread::sleep(pause);
        }
    })?;
    let right = |_: &Ended| {
        let trained = std::fs::read(out.join("adapter_model.safetensors")).unwrap_or_default();
        (trained != expected).then(|| "another result than without strangers".to_owned())
    };
    let outcomes = ended.iter().map(|one| judge(what.clone(), one, &[], right));
    let worst = outcomes.max_by_key(|outcome| outcome.verdict);
    worst
        .map(|outcome| match outcome.verdict {
            // Nobody who does not belong to it may end a job.
            Verdict::Clear | Verdict::Unclear => Outcome { verdict: Verdict::Wrong, ..outcome },
            _ => outcome,
        })
        .context("no rank")
}
