//! Ranks that are processes: those that differ, that do not come, that are stopped, and who else knocks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::program::{burnish, copy, model, rows, sft, stderr};

/// A job of processes that meet on this machine.
struct Job {
    port: u16,
    ranks: usize,
}

impl Job {
    fn new(ranks: usize) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { port, ranks }
    }

    fn command(&self, rank: usize, words: &[String]) -> Command {
        let mut command = burnish();
        command
            .args(words)
            .envs([("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", self.port.to_string())])
            .envs([("WORLD_SIZE", self.ranks.to_string()), ("RANK", rank.to_string())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a rank with words of its own.
    fn start(&self, rank: usize, words: &[String]) -> Child {
        self.command(rank, words).spawn().unwrap()
    }
}

/// Every child must end within `limit`; what they said.
#[track_caller]
fn ended(children: Vec<Child>, limit: Duration) -> Vec<Output> {
    let began = Instant::now();
    let mut children = children;
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        if began.elapsed() > limit {
            children.iter_mut().for_each(|child| child.kill().unwrap());
            let said: Vec<String> =
                children.into_iter().map(|child| stderr(&child.wait_with_output().unwrap())).collect();
            panic!("still running after {limit:?}: {said:#?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

/// The one line of error that a process ended with.
#[track_caller]
fn error(output: &Output) -> String {
    let said = stderr(output);
    assert!(!output.status.success(), "it succeeded: {said}");
    assert!(!said.contains("panicked"), "{said}");
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    errors[0].to_owned()
}

const LIMIT: Duration = Duration::from_secs(60);
const STEPS: [&str; 3] = ["--max_steps=2", "--save_strategy=no", "--ddp_timeout=20"];

/// Three ranks, of which the last has other words; all end with the same error, which holds `expected`.
#[track_caller]
fn differs(usual: &[&str], odd: &[&str], expected: &str) {
    let root = tempfile::tempdir().unwrap();
    let job = Job::new(3);
    let words = |more: &[&str]| sft(&root.path().join("out"), "text.jsonl", &[&STEPS[..], more].concat());
    let children = (0..3).map(|rank| job.start(rank, &words(if rank == 2 { odd } else { usual }))).collect();
    let errors: Vec<String> = ended(children, LIMIT).iter().map(error).collect();
    assert!(errors[0].contains(expected), "{errors:#?}");
    assert!(errors.iter().all(|one| *one == errors[0]), "{errors:#?}");
}

#[test]
fn ranks_that_differ_in_an_option_end_with_its_name() {
    differs(&[], &["--learning_rate=2e-2"], "learning_rate: rank 2: 0.02, ranks 0, 1: 0.01");
    let usual = ["--seed=1", "--max_grad_norm=0.5"];
    differs(&usual, &["--seed=2", "--max_grad_norm=0.7"], "seed: rank 2: 2, ranks 0, 1: 1");
    differs(&[], &["--max_length=32"], "max_length: rank 2: 32, ranks 0, 1: 48");
    differs(&["--packing"], &[], "packing: rank 2: false, ranks 0, 1: true");
}

#[test]
fn ranks_that_differ_in_rows_or_weights_end_with_the_file() {
    let root = tempfile::tempdir().unwrap();
    let mut text = std::fs::read_to_string(rows("text.jsonl")).unwrap();
    let other = root.path().join("text.jsonl");
    let last = text.rfind('e').unwrap();
    text.replace_range(last..=last, "a");
    std::fs::write(&other, text).unwrap();
    let given = format!("--dataset_name={}", other.display());
    differs(&[], &[&given], "training rows, file 1, text.jsonl: rank 2: ");

    // One bit of one weight, and one word of the tokenizer's configuration.
    let damaged = root.path().join("model");
    copy(&model(), &damaged);
    let name = damaged.join("model.safetensors");
    let mut bytes = std::fs::read(&name).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&name, bytes).unwrap();
    let given = format!("--model_name_or_path={}", damaged.display());
    differs(&[], &[&given], "model_name_or_path, model.safetensors: rank 2: ");
    // The same content elsewhere is the same.
    let same = root.path().join("same");
    copy(&model(), &same);
    let job = Job::new(2);
    let folder = format!("--model_name_or_path={}", same.display());
    let of = |rank: usize| {
        let own: &[&str] = if rank == 1 { &[&folder, "--threads=1"] } else { &[] };
        sft(&root.path().join("out"), "text.jsonl", &[&STEPS[..], own].concat())
    };
    for output in ended((0..2).map(|rank| job.start(rank, &of(rank))).collect(), LIMIT) {
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

#[test]
fn a_rank_that_ends_before_the_meeting_is_named_at_the_deadline() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let job = Job::new(3);
    let words = |more: &[&str]| sft(&out, "text.jsonl", &[&["--max_steps=2"], more].concat());
    let waits = words(&["--ddp_timeout=2"]);
    let began = Instant::now();
    let children = vec![
        job.start(0, &waits),
        // An option that does not exist.
        job.start(1, &words(&["--no_such_option=1"])),
        job.start(2, &waits),
    ];
    let errors: Vec<String> = ended(children, Duration::from_secs(30)).iter().map(error).collect();
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(errors[1].contains("no_such_option"), "{errors:#?}");
    for rank in [0, 2] {
        // Whichever deadline passes first, of the one that waits or of the one that is waited with.
        let named = ["rank 1 did not come", "while rank 1 had not come"]
            .iter()
            .any(|words| errors[rank].contains(words));
        assert!(named, "{errors:#?}");
    }
}

#[test]
fn what_contradicts_itself_ends_each_rank_at_once() {
    let root = tempfile::tempdir().unwrap();
    let words = sft(&root.path().join("out"), "text.jsonl", &STEPS);
    let job = Job::new(2);
    for (name, value) in [
        ("WORLD_SIZE", "two"),
        ("WORLD_SIZE", "99999999999999"),
        ("RANK", "2"),
        ("RANK", "-1"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "port"),
        ("MASTER_ADDR", ""),
        ("BURNISH_DDP_SECRET", "short"),
    ] {
        let child = job.command(1, &words).env(name, value).spawn().unwrap();
        let said = error(&ended(vec![child], Duration::from_secs(10))[0]);
        assert!(said.contains(name), "{name}={value}: {said}");
    }
    let lost = job.command(1, &words).env_remove("WORLD_SIZE").spawn().unwrap();
    assert!(error(&ended(vec![lost], Duration::from_secs(10))[0]).contains("WORLD_SIZE"));
    for value in ["1e30", "inf", "nan", "-1", "0"] {
        let words = sft(&root.path().join("out"), "text.jsonl", &[&format!("--ddp_timeout={value}")]);
        let child = job.start(1, &words);
        let said = error(&ended(vec![child], Duration::from_secs(10))[0]);
        assert!(said.contains("ddp_timeout"), "{value}: {said}");
    }
    for (option, value) in [("nproc", "100000"), ("threads", "100000000")] {
        let words = sft(&root.path().join("out"), "text.jsonl", &[&format!("--{option}={value}")]);
        let said = error(&burnish().args(words).output().unwrap());
        assert!(said.contains(option), "{said}");
    }
}

#[test]
fn without_a_secret_no_other_machine_is_let_in() {
    let root = tempfile::tempdir().unwrap();
    let words = sft(&root.path().join("out"), "text.jsonl", &STEPS);
    let job = Job::new(2);
    for rank in [0, 1] {
        let child = job.command(rank, &words).env("MASTER_ADDR", "0.0.0.0").spawn().unwrap();
        let said = error(&ended(vec![child], Duration::from_secs(10))[0]);
        assert!(said.contains("BURNISH_DDP_SECRET") && said.contains("ddp_secret_file"), "{said}");
    }
    // A file of it, which only its owner may read.
    let secret = root.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let mode = |mode: &str| assert!(Command::new("chmod").arg(mode).arg(&secret).status().unwrap().success());
    let given = format!("--ddp_secret_file={}", secret.display());
    let words = sft(&root.path().join("out"), "text.jsonl", &[&STEPS[..], &[&given]].concat());
    mode("644");
    let said = error(&ended(vec![job.start(0, &words)], Duration::from_secs(10))[0]);
    assert!(said.contains("chmod 600"), "{said}");
    mode("600");
    let start = |rank| job.command(rank, &words).env("MASTER_ADDR", "0.0.0.0").spawn().unwrap();
    for output in ended(vec![start(0), start(1)], LIMIT) {
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

/// Lines of a child's standard error until one holds `text`; the rest goes on to be read.
fn until(child: &mut Child, text: &str) -> std::thread::JoinHandle<String> {
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains(text) {
        assert!(lines.read_line(&mut said).unwrap() > 0, "{said}");
    }
    std::thread::spawn(move || {
        let _ = lines.read_to_string(&mut said);
        said
    })
}

fn send(signal: &str, child: &Child) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// Three ranks train; one of them is stopped: the others end at the deadline and blame that one alone.
#[test]
fn a_rank_that_is_stopped_is_blamed_and_the_others_end() {
    for stopped in [0, 2] {
        let root = tempfile::tempdir().unwrap();
        let words = ["--max_steps=200000", "--save_strategy=no", "--ddp_timeout=5", "--zero_stage=2"];
        let words = sft(&root.path().join("out"), "text.jsonl", &words);
        let job = Job::new(3);
        let mut children: Vec<Child> = (0..3).map(|rank| job.start(rank, &words)).collect();
        let lead = until(&mut children[0], "step");
        let mut frozen = children.remove(stopped);
        send("-STOP", &frozen);
        let said: Vec<String> = ended(children, Duration::from_secs(40)).iter().map(stderr).collect();
        frozen.kill().unwrap();
        frozen.wait().unwrap();
        let lead = lead.join().unwrap();
        let said = if stopped == 0 { said.join("\n") } else { format!("{lead}\n{}", said.join("\n")) };
        assert!(said.contains(&format!("rank {stopped} does not answer any more")), "{said}");
        assert!(!said.contains("is silent") && !said.contains("are silent"), "{said}");
    }
}

/// What two ranks write that meet with `words`, while strangers knock or not.
#[track_caller]
fn trained(out: &Path, words: &[&str], strangers: bool) -> Vec<u8> {
    let words = sft(out, "text.jsonl", &[&STEPS[..], words].concat());
    let job = Job::new(2);
    let zero = job.start(0, &words);
    let stays = strangers.then(|| knock(job.port));
    let one = job.start(1, &words);
    for output in ended(vec![zero, one], LIMIT) {
        assert!(output.status.success(), "{}", stderr(&output));
    }
    drop(stays);
    std::fs::read(out.join("model.safetensors")).unwrap()
}

/// Strangers knock all the while; the ranks meet and train as without them.
#[test]
fn strangers_at_the_door_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    let train = |name: &str, strangers: bool| trained(&root.path().join(name), &[], strangers);
    assert!(train("quiet", false) == train("loud", true));
}

/// Ranks that encrypt train as those that do not, and do not talk to them.
#[test]
fn encrypted_ranks_train_alike_and_among_themselves() {
    let root = tempfile::tempdir().unwrap();
    let train = |name: &str, words: &[&str]| trained(&root.path().join(name), words, false);
    assert!(train("plain", &["--zero_stage=3"]) == train("hidden", &["--zero_stage=3", "--ddp_encryption"]));
    let job = Job::new(2);
    let words = sft(&root.path().join("mixed"), "text.jsonl", &STEPS);
    let hides = job.command(0, &words).env("BURNISH_DDP_ENCRYPTION", "1").spawn().unwrap();
    for output in ended(vec![hides, job.start(1, &words)], LIMIT) {
        assert!(
            error(&output).contains("rank 1, which encrypts nothing; rank 0 encrypts"),
            "{}",
            stderr(&output)
        );
    }
}

/// As many as do not cost the test time, of every kind; those that stay.
fn knock(port: u16) -> Vec<TcpStream> {
    let began = Instant::now();
    let mut stays = Vec::new();
    while stays.len() < 50 && began.elapsed() < Duration::from_secs(20) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let says: &[u8] = match stays.len() % 4 {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\n\r\n",
            2 => &[0xff; 264],
            _ => b"BRNT\x01\0\0\0\x02\0\0\0",
        };
        let _ = stream.write_all(says);
        stays.push(stream);
    }
    assert_eq!(stays.len(), 50, "rank 0 did not listen");
    stays
}
