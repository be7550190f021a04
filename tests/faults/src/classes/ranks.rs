//! Ranks that are processes: some differ from the others, do not come, end early, are stopped or killed.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::lab::{Lab, copy};
use crate::random::Random;
use crate::running::Ended;
use crate::verdict::{Outcome, Verdict, judge};

/// Options with the value that most ranks have and the one that one of them has.
const DIFFER: [(&str, &str, &str); 30] = [
    ("learning_rate", "1e-3", "2e-3"),
    ("seed", "1", "2"),
    ("data_seed", "3", "4"),
    ("per_device_train_batch_size", "2", "1"),
    ("gradient_accumulation_steps", "1", "2"),
    ("max_length", "48", "32"),
    ("packing", "false", "true"),
    ("loss_type", "nll", "dft"),
    ("adam_beta1", "0.9", "0.8"),
    ("adam_beta2", "0.999", "0.99"),
    ("adam_epsilon", "1e-8", "1e-6"),
    ("weight_decay", "0.0", "0.1"),
    ("max_grad_norm", "1.0", "0.5"),
    ("lr_scheduler_type", "linear", "cosine"),
    ("warmup_steps", "0", "1"),
    ("shuffle_dataset", "false", "true"),
    ("lora_r", "2", "4"),
    ("lora_alpha", "8", "16"),
    ("lora_dropout", "0.0", "0.1"),
    ("zero_stage", "0", "2"),
    ("max_steps", "2", "3"),
    ("dtype", "float32", "bfloat16"),
    ("gradient_checkpointing", "true", "false"),
    ("train_sampling_strategy", "random", "sequential"),
    ("save_strategy", "no", "steps"),
    ("eos_token", "<eos>", "<bos>"),
    ("peft_type", "LORA", "IA3"),
    ("load_in_4bit", "true", "false"),
    ("bf16", "false", "true"),
    ("optim", "adamw_torch", "muon"),
];

/// Variables that contradict themselves or each other, and what an error names.
const VARIABLES: [(&str, &str); 12] = [
    ("WORLD_SIZE=two", "WORLD_SIZE"),
    ("WORLD_SIZE=", "WORLD_SIZE"),
    ("WORLD_SIZE=0", "WORLD_SIZE"),
    ("WORLD_SIZE=3.0", "WORLD_SIZE"),
    ("WORLD_SIZE=99999999999999999", "WORLD_SIZE"),
    ("RANK=2", "rank 2"),
    ("RANK=-1", "RANK"),
    ("RANK=one", "RANK"),
    ("MASTER_PORT=0", "MASTER_PORT"),
    ("MASTER_PORT=70000", "MASTER_PORT"),
    ("MASTER_ADDR=", "MASTER_ADDR"),
    ("BURNISH_DDP_SECRET=short", "BURNISH_DDP_SECRET"),
];

/// Files of which one rank has another copy.
const FILES: [&str; 4] = ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"];

const OTHERS: [&str; 11] = [
    "rows",
    "absent",
    "fails early",
    "same rank",
    "other size",
    "killed",
    "stopped",
    "stopped lead",
    "hides alone",
    "does not hide",
    "another secret",
];

pub(crate) fn written(_: &Lab) -> usize {
    DIFFER.len() + VARIABLES.len() + FILES.len() + OTHERS.len()
}

/// Processes that meet on this machine.
struct Job<'a> {
    lab: &'a Lab,
    port: u16,
    ranks: usize,
}

/// What a rank is started with.
struct Start {
    rank: usize,
    words: Vec<OsString>,
    /// Variables that are set after those of the job.
    variables: String,
    signal: Option<(&'static str, f64)>,
}

impl Job<'_> {
    /// Runs the ranks side by side to their ends.
    fn run(&self, starts: Vec<Start>) -> Result<Vec<Ended>> {
        std::thread::scope(|scope| {
            let running: Vec<_> = starts
                .into_iter()
                .map(|start| {
                    let mut running = self.lab.running(start.words);
                    running.before = format!(
                        "export MASTER_ADDR=127.0.0.1 MASTER_PORT={} WORLD_SIZE={} RANK={} {};",
                        self.port, self.ranks, start.rank, start.variables
                    );
                    running.signal = start.signal;
                    scope.spawn(move || running.go())
                })
                .collect();
            let ended = |thread: std::thread::ScopedJoinHandle<'_, Result<Ended>>| {
                thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
            };
            running.into_iter().map(ended).collect()
        })
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn words(lab: &Lab, model: &Path, rows: &Path, out: &Path, more: &[&str]) -> Vec<OsString> {
    let output = format!("--output_dir={}", out.display());
    let common = ["--use_peft", "--logging_steps=1", "--ddp_timeout=6", output.as_str()];
    lab.words("sft", model, rows, &[&common[..], more].concat())
}

/// Every rank has to end with one clear error that has one of `names`; the worst of them counts.
fn all_fail(what: String, ended: &[Ended], names: &[&str]) -> Outcome {
    let judged =
        ended.iter().map(|one| judge(what.clone(), one, names, |_| Some("a rank that succeeds".to_owned())));
    let worst = judged.max_by_key(|outcome| outcome.verdict);
    worst.unwrap_or_else(|| Outcome {
        what,
        verdict: Verdict::Wrong,
        said: "no rank".to_owned(),
        seconds: 0.0,
        peak: 0,
    })
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let out = folder.path().join("out");
    let (model, rows) = (lab.model(), lab.rows("text.jsonl"));
    let ranks = 2 + random.below(2);
    let job = Job { lab, port: free_port()?, ranks };
    let odd = random.below(ranks);
    let usual = ["--max_steps=2", "--save_strategy=no", "--max_length=48", "--per_device_train_batch_size=2"];
    let plain = |rank: usize| Start {
        rank,
        words: words(lab, &model, &rows, &out, &usual),
        variables: String::new(),
        signal: None,
    };
    if let Some((option, most, one)) =
        DIFFER.get(if attempt < written(lab) { attempt } else { random.below(DIFFER.len()) })
    {
        let start = |rank: usize| {
            let value = format!("--{option}={}", if rank == odd { one } else { most });
            let named = format!("--{option}=");
            let mut given: Vec<&str> =
                usual.iter().copied().filter(|word| !word.starts_with(&named)).collect();
            given.push(&value);
            Start { words: words(lab, &model, &rows, &out, &given), ..plain(rank) }
        };
        let ended = job.run((0..ranks).map(start).collect())?;
        let what = format!("{option}: rank {odd} of {ranks} has {one}, the others {most}");
        return Ok(all_fail(what, &ended, &[option]));
    }
    let case = attempt - DIFFER.len();
    if let Some((variable, name)) = VARIABLES.get(case) {
        let start = Start { variables: (*variable).to_owned(), ..plain(1) };
        return Ok(all_fail((*variable).to_owned(), &job.run(vec![start])?, &[name]));
    }
    let case = case - VARIABLES.len();
    if let Some(file) = FILES.get(case) {
        let other = folder.path().join("model");
        copy(&model, &other)?;
        let path: PathBuf = other.join(file);
        let mut bytes = std::fs::read(&path)?;
        match bytes.last_mut() {
            // A space more at the end of JSON is another file as well.
            Some(last) if file.ends_with(".safetensors") => *last ^= 1,
            _ => bytes.push(b' '),
        }
        std::fs::write(&path, bytes)?;
        let start = |rank: usize| {
            let model = if rank == odd { &other } else { &model };
            Start { words: words(lab, model, &rows, &out, &usual), ..plain(rank) }
        };
        let ended = job.run((0..ranks).map(start).collect())?;
        return Ok(all_fail(format!("rank {odd} of {ranks} has another {file}"), &ended, &[file]));
    }
    let last = ranks - 1;
    let case = OTHERS[case - FILES.len()];
    let what = format!("{case}, {ranks} ranks");
    let others = |except: usize| (0..ranks).filter(move |rank| *rank != except).map(plain);
    let ended = match case {
        "rows" => {
            let other = folder.path().join("text.jsonl");
            let mut text = std::fs::read_to_string(&rows)?;
            let at = text.rfind('e').unwrap_or_default();
            text.replace_range(at..=at, "a");
            std::fs::write(&other, text)?;
            let odd = Start { words: words(lab, &model, &other, &out, &usual), ..plain(last) };
            return Ok(all_fail(what, &job.run(others(last).chain([odd]).collect())?, &["text.jsonl"]));
        }
        "absent" => {
            let name = format!("rank {last} did not come");
            return Ok(all_fail(what, &job.run(others(last).collect())?, &[&name]));
        }
        "fails early" => {
            let odd =
                Start { words: words(lab, &model, &rows, &out, &["--no_such_option=1"]), ..plain(last) };
            let name = format!("rank {last} did not come");
            return Ok(all_fail(
                what,
                &job.run(others(last).chain([odd]).collect())?,
                &[&name, "no_such_option"],
            ));
        }
        "same rank" => {
            let twice = (0..ranks).map(|rank| plain(if rank == 0 { 0 } else { 1 }));
            if ranks == 2 {
                let three = twice.chain([plain(1)]).collect();
                // The second of them may come when the others have met: then it finds nobody.
                let ended = job.run(three)?;
                let failed: Vec<Ended> = ended.into_iter().filter(|one| one.code != Some(0)).collect();
                return Ok(all_fail(what, &failed, &["rank 1", "rank 0"]));
            }
            return Ok(all_fail(what, &job.run(twice.collect())?, &["which is here already", "rank 0"]));
        }
        "other size" => {
            let odd = Start { variables: format!("WORLD_SIZE={}", ranks + 1), ..plain(last) };
            return Ok(all_fail(
                what,
                &job.run(others(last).chain([odd]).collect())?,
                &["WORLD_SIZE", "did not find"],
            ));
        }
        "hides alone" | "does not hide" | "another secret" => {
            let variables = |odd: bool| match (case, odd) {
                ("hides alone", odd) => format!("BURNISH_DDP_ENCRYPTION={}", u8::from(odd)),
                ("does not hide", odd) => format!("BURNISH_DDP_ENCRYPTION={}", u8::from(!odd)),
                (_, odd) => format!("BURNISH_DDP_SECRET={}", if odd { "b" } else { "a" }.repeat(32)),
            };
            let start = |rank: usize| Start { variables: variables(rank == last), ..plain(rank) };
            let names = ["secret", "ncrypt", "ENCRYPTION", &format!("rank {last} did not come")];
            return Ok(all_fail(what, &job.run((0..ranks).map(start).collect())?, &names));
        }
        "killed" => {
            let mut long = usual;
            long[0] = "--max_steps=100000";
            let start = |rank: usize| Start {
                words: words(lab, &model, &rows, &out, &long),
                signal: (rank == last).then_some(("KILL", 3.0)),
                ..plain(rank)
            };
            job.run((0..ranks).map(start).collect())?
        }
        _ => {
            let mut long = usual;
            long[0] = "--max_steps=100000";
            let stopped = if case == "stopped" { last } else { 0 };
            let start = |rank: usize| Start {
                words: words(lab, &model, &rows, &out, &long),
                signal: (rank == stopped).then_some(("STOP", 3.0)),
                ..plain(rank)
            };
            let mut ended = job.run((0..ranks).map(start).collect())?;
            // The one that is stopped ends by the harness.
            ended.remove(stopped);
            return Ok(all_fail(what, &ended, &[&format!("rank {stopped} does not answer any more")]));
        }
    };
    let survivors: Vec<Ended> = ended.into_iter().filter(|one| one.signal.is_none()).collect();
    Ok(all_fail(what, &survivors, &[&format!("rank {last}")]))
}
