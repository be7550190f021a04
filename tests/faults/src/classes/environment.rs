//! Environments: stacks, threads, limits, variables and patterns of paths.

use anyhow::Result;

use crate::lab::Lab;
use crate::random::Random;
use crate::running::Ended;
use crate::verdict::{Outcome, judge};

/// What comes before the program in the shell, its rows (the usual where none are named), and what an error names; where
/// nothing is named, the result has to be the usual one.
const CASES: [(&str, &str, &str); 38] = [
    ("ulimit -s 64", "", "ulimit -s"),
    ("ulimit -s 128", "", "ulimit -s"),
    ("ulimit -s 512", "", "ulimit -s"),
    ("ulimit -s 1024", "", ""),
    ("ulimit -s 65536", "", ""),
    ("ulimit -s unlimited", "", ""),
    ("export RUST_MIN_STACK=1", "", "RUST_MIN_STACK"),
    ("export RUST_MIN_STACK=65536", "", "RUST_MIN_STACK"),
    ("export RUST_MIN_STACK=99999999999999", "", "RUST_MIN_STACK"),
    ("export RUST_MIN_STACK=18446744073709551615", "", "RUST_MIN_STACK"),
    ("export RUST_MIN_STACK=word", "", ""),
    ("export RUST_MIN_STACK=4194304", "", ""),
    ("export RAYON_NUM_THREADS=0", "", ""),
    ("export RAYON_NUM_THREADS=1", "", ""),
    ("export RAYON_NUM_THREADS=64", "", ""),
    ("export RAYON_NUM_THREADS=word", "", ""),
    ("export RAYON_NUM_THREADS=-1", "", ""),
    ("ulimit -v 4000000; export RAYON_NUM_THREADS=60000", "", "RAYON_NUM_THREADS"),
    ("export BURNISH_AMX=0", "", ""),
    ("export BURNISH_AMX=word", "", "BURNISH_AMX"),
    ("ulimit -n 64", "", ""),
    ("ulimit -c 0; ulimit -t 60", "", ""),
    ("export TMPDIR=/nowhere", "", ""),
    ("export HF_HOME=/dev/null", "", ""),
    ("export HF_HOME=", "", ""),
    ("export LC_ALL=C LANG=xx_YY", "", ""),
    ("export TZ=Nowhere/Else", "", ""),
    ("export COLUMNS=0 TERM=", "", ""),
    ("export RUST_LOG=trace", "", ""),
    ("export RUST_BACKTRACE=full", "", ""),
    ("unset HOME PATH USER", "", ""),
    ("export WORLD_SIZE=1 RANK=0", "", ""),
    ("umask 777", "", ""),
    ("exec 0<&-", "", ""),
    ("mkdir gone; cd gone; rmdir ../gone", "", ""),
    ("true", "/**/**/**/**/**/**/nothing-is-called-so.jsonl", "nothing-is-called-so"),
    ("true", "/proc/self/**/**/nothing-is-called-so.jsonl", "nothing-is-called-so"),
    ("true", "/[", "/["),
];

pub(crate) fn written(_: &Lab) -> usize {
    CASES.len()
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let (before, rows, named) = if attempt < CASES.len() { CASES[attempt] } else { *random.of_these(&CASES) };
    let folder = lab.fresh()?;
    let path = if rows.is_empty() { lab.rows("text.jsonl") } else { rows.into() };
    let mut running = lab.running(lab.score(&lab.model(), &path, &[]));
    running.before = format!("cd {}; {before};", folder.path().display());
    let ended = running.go()?;
    let right = |e: &Ended| {
        let other = e.stdout != lab.scores[0];
        if named.is_empty() {
            other.then(|| "another result".to_owned())
        } else {
            Some("no error".to_owned())
        }
    };
    let what = if rows.is_empty() { before.to_owned() } else { format!("rows {rows}") };
    let mut outcome = judge(what, &ended, &[named], right);
    // What leaves the result alone may not be refused either.
    if named.is_empty() && ended.code.is_some_and(|code| code != 0) && outcome.verdict.is_fine() {
        outcome.verdict = crate::verdict::Verdict::Unclear;
    }
    Ok(outcome)
}
