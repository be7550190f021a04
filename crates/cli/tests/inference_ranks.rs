//! `generate`, `score` and `eval` on several ranks say what one rank says.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::mpi::mpirun;
use crate::program::{LORA, adapter, burnish, fails, fixtures, model, ok, rows, run, sft, stderr};

/// fp32 sums in another order, relative.
const ROUNDING: f64 = 1e-5;
/// (ranks, tp_size): layers shared, rows shared, both; more places for rows than rows in a batch; uneven parts.
const MESHES: [(usize, usize); 6] = [(2, 2), (2, 1), (4, 2), (3, 3), (4, 4), (5, 1)];

fn words(command: &str, model: &Path, more: &[&str]) -> Vec<String> {
    let mut words = vec![command.to_owned(), format!("--model_name_or_path={}", model.display())];
    words.extend(more.iter().map(|w| (*w).to_owned()));
    words
}

fn on((nproc, tp_size): (usize, usize), words: &[String]) -> Vec<String> {
    [words, &[format!("--nproc={nproc}"), format!("--tp_size={tp_size}")]].concat()
}

fn data(name: &str) -> String {
    format!("--dataset_name={}", rows(name).display())
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// An adapter whose completions end by themselves, at different lengths.
fn tuned(root: &Path) -> PathBuf {
    let out = root.join("tuned");
    let mut words = vec!["--max_steps=40", "--save_strategy=no", "--per_device_train_batch_size=8"];
    words.extend(LORA);
    words.push("--use_dora");
    ok(&sft(&out, "prompt_completion.jsonl", &words));
    out
}

/// Whether in some batch of `size` rows one row ends while another goes on.
fn end_apart(said: &str, size: usize) -> bool {
    let lengths: Vec<usize> = lines(said).iter().map(|l| l["token_ids"].as_array().unwrap().len()).collect();
    lengths.chunks(size).any(|batch| batch.iter().any(|length| *length != batch[0]))
}

/// Waits, but not for ever.
#[track_caller]
fn ends(child: &mut Child) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("still there after a minute");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One process for each rank, as torchrun starts them.
fn processes(ranks: usize, words: &[String]) -> Vec<Child> {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let process = |rank: usize| {
        burnish()
            .args(words)
            .envs([("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", port.to_string())])
            .envs([("WORLD_SIZE", ranks.to_string()), ("RANK", rank.to_string())])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (0..ranks).map(process).collect()
}

/// What the first of some processes says; the others succeed and say nothing.
#[track_caller]
fn said_by_processes(ranks: usize, words: &[String]) -> String {
    let outputs: Vec<Output> =
        processes(ranks, words).into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    for (rank, output) in outputs.iter().enumerate() {
        assert!(output.status.success(), "rank {rank}: {}", stderr(output));
        assert!(rank == 0 || output.stdout.is_empty(), "rank {rank} spoke");
    }
    String::from_utf8(outputs[0].stdout.clone()).unwrap()
}

#[test]
fn text_is_one_rank_s_where_rows_end_at_different_lengths() {
    let root = tempfile::tempdir().unwrap();
    let adapter = format!("--adapter_name_or_path={}", tuned(root.path()).display());
    let prompts = data("prompt_completion.jsonl");
    let batch = "--per_device_eval_batch_size=3";
    let common = [adapter.as_str(), &prompts, batch, "--max_new_tokens=12"];
    let file = root.path().join("lines.jsonl");
    for choice in [&["--do_sample=false"][..], &["--do_sample", "--temperature=1.2", "--seed=7"]] {
        let words = words("generate", &model(), &[&common[..], choice].concat());
        let one = ok(&words);
        assert_eq!(lines(&one).len(), 40);
        assert!(end_apart(&one, 3) && one.contains("\"stop\""), "{one}");
        for mesh in MESHES {
            assert_eq!(ok(&on(mesh, &words)), one, "{mesh:?} {choice:?}");
        }
        let longer = [&words[..], &["--min_new_tokens=9".to_owned()]].concat();
        let one_longer = ok(&longer);
        let least = |said: &str| lines(said).iter().map(|l| l["token_ids"].as_array().unwrap().len()).min();
        assert!(least(&one) < Some(9) && least(&one_longer) >= Some(9), "{one_longer}");
        assert_eq!(ok(&on((4, 2), &longer)), one_longer, "{choice:?}");
        let to_file = [words, vec![format!("--output_file={}", file.display())]].concat();
        assert_eq!(ok(&on((4, 2), &to_file)), "");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), one);
    }
}

#[test]
fn draws_depend_on_the_seed_and_the_row_and_on_nothing_else() {
    let prompts = data("prompt_completion_eval.jsonl");
    let tied = fixtures().join("models/qwen3-tied");
    let say = |seed: &str, mesh: (usize, usize), size: &str| {
        let more = [prompts.as_str(), "--do_sample", "--max_new_tokens=8", seed, size];
        ok(&on(mesh, &words("generate", &tied, &more)))
    };
    let (size, other_size) = ("--per_device_eval_batch_size=2", "--per_device_eval_batch_size=5");
    let one = say("--seed=1", (1, 1), size);
    // Seven rows: some ranks have none in the last round, or in any.
    for mesh in [(2, 2), (4, 2), (3, 1), (8, 1)] {
        for size in [size, other_size] {
            assert_eq!(say("--seed=1", mesh, size), one, "{mesh:?} {size}");
        }
    }
    assert_ne!(say("--seed=2", (2, 2), size), one);
    // The same prompt twice is drawn twice.
    let root = tempfile::tempdir().unwrap();
    let twice = root.path().join("twice.jsonl");
    std::fs::write(&twice, "{\"prompt\": \"a\"}\n{\"prompt\": \"a\"}\n").unwrap();
    let twice = format!("--dataset_name={}", twice.display());
    let said = lines(&ok(&on((2, 1), &words("generate", &tied, &[&twice, "--do_sample", "--seed=1"]))));
    assert_ne!(said[0]["token_ids"], said[1]["token_ids"]);
}

/// A folder of a few megabytes whose positions end at 40, its JSON files with byte order marks.
fn of_40_positions(root: &Path) -> PathBuf {
    let folder = root.join("short");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(model()).unwrap().map(Result::unwrap) {
        let (name, mut bytes) = (entry.file_name(), std::fs::read(entry.path()).unwrap());
        if name == "config.json" {
            let mut config: Value = serde_json::from_slice(&bytes).unwrap();
            config["max_position_embeddings"] = 40.into();
            bytes = serde_json::to_vec(&config).unwrap();
        }
        if name.to_string_lossy().ends_with(".json") {
            bytes.splice(0..0, *b"\xef\xbb\xbf");
        }
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    folder
}

#[test]
fn a_text_that_leaves_the_models_positions_is_named() {
    let root = tempfile::tempdir().unwrap();
    let model = of_40_positions(root.path());
    for (tokens, leaves) in [("60", true), ("4", false)] {
        let more = ["--prompt=Name a colour.", "--max_new_tokens", tokens, "--min_new_tokens", tokens];
        let words = words("generate", &model, &more);
        let said = run(&on((2, 2), &words));
        assert!(said.status.success(), "{}", stderr(&said));
        let named = stderr(&said).matches("max_position_embeddings is 40").count();
        assert_eq!(named, usize::from(leaves), "{}", stderr(&said));
    }
}

#[test]
fn one_prompt_is_said_once() {
    for choice in ["--do_sample=false", "--do_sample"] {
        let words = words("generate", &model(), &["--prompt=Name a colour.", "--max_new_tokens=20", choice]);
        let one = ok(&words);
        assert!(one.len() > 10, "{one}");
        for mesh in [(2, 2), (4, 2), (3, 1)] {
            assert_eq!(ok(&on(mesh, &words)), one, "{mesh:?}");
        }
    }
    let least = words("generate", &model(), &["--prompt=a", "--min_new_tokens=300"]);
    fails(&least, &["min_new_tokens: 300", "max_new_tokens is 256", "raise max_new_tokens"]);
}

#[track_caller]
fn close_scores(what: &str, one: &str, many: &str) {
    let (one, many) = (lines(one), lines(many));
    assert_eq!(one.len(), many.len(), "{what}");
    for (index, (x, y)) in one.iter().zip(&many).enumerate() {
        assert_eq!((&y["index"], &x["num_tokens"]), (&index.into(), &y["num_tokens"]), "{what}");
        let [x, y] = [x, y].map(|l| l["sum_logprob"].as_f64().unwrap());
        assert!((x - y).abs() <= ROUNDING * x.abs().max(1.0), "{what}, row {index}: {x} and {y}");
    }
}

#[track_caller]
fn close_evaluations(what: &str, one: &str, many: &str) {
    let [one, many]: [Value; 2] = [one, many].map(|text| serde_json::from_str(text).unwrap());
    for name in ["eval_rows", "eval_target_tokens"] {
        assert_eq!(one[name], many[name], "{what}: {name}");
    }
    for name in ["eval_loss", "eval_perplexity", "eval_mean_token_accuracy", "eval_entropy"] {
        let [x, y] = [&one, &many].map(|r| r[name].as_f64().unwrap());
        assert!((x - y).abs() <= ROUNDING * x.abs(), "{what}: {name}: {x} and {y}");
    }
}

/// Each row by the adapter that it names, all in one batch: what the adapter says alone, on every mesh.
#[test]
fn rows_are_continued_by_the_adapter_that_they_name() {
    let root = tempfile::tempdir().unwrap();
    let train = |name: &str, more: &[&str]| adapter(&root.path().join(name), more);
    let wide = train("wide", &["--lora_r=6", "--lora_target_modules=all-linear"]);
    let narrow = train("narrow", &["--lora_r=2", "--use_rslora", "--lora_target_modules=q_proj,v_proj"]);
    let file = root.path().join("rows.jsonl");
    let names = [None, Some("wide"), Some("narrow"), Some("wide"), None, Some("narrow")];
    let row = |adapter: &Option<&str>| match adapter {
        Some(name) => format!("{{\"prompt\": \"the colour\", \"adapter\": \"{name}\"}}\n"),
        None => "{\"prompt\": \"the colour\"}\n".to_owned(),
    };
    std::fs::write(&file, names.iter().map(row).collect::<String>()).unwrap();
    let rows = format!("--dataset_name={}", file.display());
    let more = |more: &[&str]| {
        let all = [&[rows.as_str(), "--max_new_tokens=10", "--per_device_eval_batch_size=3"], more].concat();
        words("generate", &model(), &all)
    };
    let said = |words: &[String]| ok(words).lines().map(str::to_owned).collect::<Vec<_>>();
    // Draws are those of the row.
    for draws in ["--do_sample=false", "--do_sample"] {
        let by = |path: &str| said(&more(&[draws, &format!("--adapter_name_or_path={path}")]));
        let alone = [said(&more(&[draws])), by(&wide), by(&narrow)];
        let of = |name: &Option<&str>| match name {
            Some("wide") => 1,
            Some(_) => 2,
            None => 0,
        };
        let want: Vec<String> =
            names.iter().enumerate().map(|(at, name)| alone[of(name)][at].clone()).collect();
        assert!(alone[0] != alone[1] && alone[1] != alone[2], "{alone:?}");
        let modules = [format!("wide={wide}"), format!("narrow={narrow}")];
        let mixed = more(&[draws, "--lora_modules", &modules[0], &modules[1]]);
        assert_eq!(said(&mixed), want, "{draws}");
        for mesh in MESHES {
            assert_eq!(said(&on(mesh, &mixed)), want, "{mesh:?}, {draws}");
        }
    }
    let modules = format!("--lora_modules=wide={wide}");
    fails(&more(&[&modules]), &["rows.jsonl, line 3", "narrow", "lora_modules"]);
    fails(
        &more(&[&modules, &format!("--adapter_name_or_path={wide}")]),
        &["lora_modules", "adapter_name_or_path"],
    );
    let twice = ["--lora_modules".to_owned(), format!("a={wide}"), format!("a={narrow}")];
    fails(&more(&[&twice[0], &twice[1], &twice[2]]), &["lora_modules", "differ"]);
    let dora = train("dora", &["--lora_r=2", "--use_dora", "--lora_target_modules=q_proj"]);
    let both = ["--lora_modules", &format!("wide={wide}"), &format!("narrow={dora}")];
    fails(&more(&both), &["narrow", "use_dora"]);
}

/// Each row by the adapter that it names, all in one batch: what the adapter says alone, on every mesh; texts' scores too.
#[test]
fn rows_are_scored_by_the_adapter_that_they_name() {
    let root = tempfile::tempdir().unwrap();
    let train = |name: &str, more: &[&str]| adapter(&root.path().join(name), more);
    let wide = train("wide", &["--lora_r=6", "--lora_target_modules=all-linear"]);
    let narrow = train("narrow", &["--lora_r=2", "--use_rslora", "--lora_target_modules=q_proj,v_proj"]);
    let file = root.path().join("rows.jsonl");
    let names = [None, Some("wide"), Some("narrow"), Some("narrow"), None, Some("wide"), Some("wide")];
    let text = std::fs::read_to_string(rows("prompt_completion.jsonl")).unwrap();
    let row = |(line, name): (&str, &Option<&str>)| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        row["adapter"] = (*name).into();
        format!("{row}\n")
    };
    std::fs::write(&file, text.lines().zip(&names).map(row).collect::<String>()).unwrap();
    let rows = format!("--dataset_name={}", file.display());
    let scorer = fixtures().join("trl-runs/reward-full/model_start");
    for (model, what) in [(model(), "sum_logprob"), (scorer, "score")] {
        let score = |rows: &str, more: &[&str]| {
            words("score", &model, &[&[rows, "--per_device_eval_batch_size=4"], more].concat())
        };
        let of_rows = |more: &[&str]| score(&rows, more);
        let said = |words: &[String]| -> Vec<f64> {
            lines(&ok(words)).iter().map(|line| line[what].as_f64().unwrap()).collect()
        };
        let by = |path: &str| said(&of_rows(&[&format!("--adapter_name_or_path={path}")]));
        let alone = [said(&of_rows(&[])), by(&wide), by(&narrow)];
        let of = |name: &Option<&str>| match name {
            Some("wide") => 1,
            Some(_) => 2,
            None => 0,
        };
        let want: Vec<f64> = names.iter().enumerate().map(|(at, name)| alone[of(name)][at]).collect();
        let differ = |a: &[f64], b: &[f64]| a.iter().zip(b).any(|(a, b)| (a - b).abs() > 1e-3 * a.abs());
        assert!(differ(&alone[0], &alone[1]) && differ(&alone[0], &alone[2]), "{alone:?}");
        let modules = [format!("wide={wide}"), format!("narrow={narrow}")];
        let mixed = of_rows(&["--lora_modules", &modules[0], &modules[1]]);
        for mesh in [(1, 1)].into_iter().chain(MESHES) {
            let got = said(&on(mesh, &mixed));
            assert_eq!(got.len(), want.len(), "{mesh:?}");
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                let near = (got - want).abs() <= ROUNDING * want.abs().max(1.0);
                assert!(near, "{mesh:?}, row {at}: {got} and {want}");
            }
        }
        // A batch of the base alone is the base's to the bit.
        let none = data("prompt_completion.jsonl");
        assert_eq!(ok(&score(&none, &["--lora_modules", &modules[0]])), ok(&score(&none, &[])));
        fails(&of_rows(&["--lora_modules", &modules[0]]), &["rows.jsonl, line 3", "narrow", "lora_modules"]);
    }
    let own = format!("--adapter_name_or_path={wide}");
    let both = [rows.as_str(), &own, "--lora_modules", &format!("wide={wide}")];
    fails(&words("score", &model(), &both), &["lora_modules", "adapter_name_or_path"]);
}

#[test]
fn scores_and_evaluations_are_one_rank_s() {
    let root = tempfile::tempdir().unwrap();
    let adapter = format!("--adapter_name_or_path={}", tuned(root.path()).display());
    let pairs = data("prompt_completion.jsonl");
    let (text, batch) = (data("text.jsonl"), "--per_device_eval_batch_size=3");
    let tied = fixtures().join("models/qwen3-tied");
    let cases: [(PathBuf, &[&str]); 3] = [
        (model(), &[&adapter, &pairs, batch]),
        (tied, &[&text, batch]),
        (model(), &[&pairs, "--max_length=24"]),
    ];
    for (model, more) in cases {
        let (score, eval) = (words("score", &model, more), words("eval", &model, more));
        let packed = [eval.clone(), vec!["--packing".to_owned()]].concat();
        let one = [&score, &eval, &packed].map(|words| ok(words));
        for mesh in MESHES {
            let what = format!("{mesh:?} {more:?}");
            close_scores(&what, &one[0], &ok(&on(mesh, &score)));
            close_evaluations(&what, &one[1], &ok(&on(mesh, &eval)));
            close_evaluations(&what, &one[2], &ok(&on(mesh, &packed)));
        }
    }
}

/// Compares what one rank and what several say.
type Compare = fn(&str, &str, &str);

/// The commands, and how what they say is compared.
fn commands() -> [(Vec<String>, Compare); 3] {
    let more = [&data("prompt_completion.jsonl"), "--per_device_eval_batch_size=3"];
    let generate = words("generate", &model(), &[&more[..], &["--max_new_tokens=8", "--do_sample"]].concat());
    [
        (generate, |what, one, many| assert_eq!(one, many, "{what}")),
        (words("score", &model(), &more), close_scores),
        (words("eval", &model(), &more), close_evaluations),
    ]
}

#[test]
fn processes_say_what_one_rank_says() {
    for (words, compare) in commands() {
        let one = ok(&words);
        for (ranks, tp_size) in [(2, 2), (2, 1), (4, 2)] {
            let words = [words.clone(), vec![format!("--tp_size={tp_size}")]].concat();
            let what = format!("{} over tcp, {ranks} ranks, tp_size {tp_size}", words[0]);
            compare(&what, &one, &said_by_processes(ranks, &words));
        }
    }
    let prompt = words("generate", &model(), &["--prompt=Name a colour.", "--max_new_tokens=20"]);
    assert_eq!(said_by_processes(3, &prompt), ok(&prompt));
}

#[test]
fn a_job_of_mpi_says_what_one_rank_says() {
    for (words, compare) in commands() {
        let one = ok(&words);
        for (ranks, tp_size) in [(2, 2), (2, 1), (4, 2)] {
            let Some(mut command) = mpirun(ranks) else { return };
            let output = command.args(&words).arg(format!("--tp_size={tp_size}")).output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
            let said = String::from_utf8(output.stdout).unwrap();
            compare(&format!("{} over mpi, {ranks} ranks, tp_size {tp_size}", words[0]), &one, &said);
        }
    }
}

#[test]
fn a_row_that_one_rank_cannot_take_ends_all_with_one_error() {
    let root = tempfile::tempdir().unwrap();
    let bad = root.path().join("bad.jsonl");
    let good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n".repeat(9);
    std::fs::write(&bad, format!("{good}{{\"prompt\": 5, \"completion\": \"b\"}}\n{good}")).unwrap();
    let bad_data = format!("--dataset_name={}", bad.display());
    let more = [bad_data.as_str(), "--per_device_eval_batch_size=3"];
    let one_error = |said: &str| said.lines().filter(|l| l.starts_with("error:")).count() == 1;
    for words in [
        words("generate", &model(), &[&more[..], &["--max_new_tokens=4"]].concat()),
        words("score", &model(), &more),
    ] {
        for mesh in [(1, 1), (2, 2), (4, 1), (4, 2)] {
            let output = run(&on(mesh, &words));
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{mesh:?}: {said}");
            assert!(one_error(&said) && said.contains("bad.jsonl, line 10"), "{mesh:?}: {said}");
        }
        // Over processes the lead says so too, and whose it was.
        let outputs: Vec<Output> =
            processes(4, &words).into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        assert!(outputs.iter().all(|output| output.status.code() == Some(1)));
        let said: Vec<String> = outputs.iter().map(stderr).collect();
        assert!(said[0].contains("line 10") && one_error(&said[0]), "{said:?}");
        assert!(said[1..].iter().any(|said| said.contains("line 10") && one_error(said)), "{said:?}");
    }
}

/// Text without an end: the likeliest tokens of the small model go round in a circle.
fn endless(more: &[&str]) -> Vec<String> {
    let common = ["--prompt=Hello", "--max_new_tokens=1000000", "--do_sample=false", "--ddp_timeout=30"];
    words("generate", &model(), &[&common[..], more].concat())
}

#[track_caller]
fn speaks(child: &mut Child) {
    let mut first = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
}

fn signal(name: &str, child: &Child) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Whether a process runs: is there, and is not one that ended and that nobody has asked about.
fn runs(id: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(id).join("stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

/// The same command where Ctrl-C is not ignored, as it is in what a shell runs in the background.
fn heeding(command: &Command) -> Command {
    let mut heeding = Command::new("env");
    heeding.arg("--default-signal=INT").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => heeding.env(name, value),
            None => heeding.env_remove(name),
        };
    }
    heeding
}

#[test]
fn ctrl_c_ends_all_ranks() {
    let words = endless(&["--nproc=4", "--tp_size=4"]);
    let mut child = heeding(&burnish()).args(words).stdout(Stdio::piped()).spawn().unwrap();
    speaks(&mut child);
    signal("-INT", &child);
    assert!(!ends(&mut child).success());

    let Some(command) = mpirun(2) else { return };
    let words = endless(&["--tp_size=2"]);
    let mut child =
        heeding(&command).args(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    speaks(&mut child);
    let ranks = Command::new("pgrep").arg("-P").arg(child.id().to_string()).output().unwrap();
    let ranks = String::from_utf8(ranks.stdout).unwrap();
    assert!(ranks.lines().count() >= 2, "{ranks}");
    signal("-INT", &child);
    assert!(!ends(&mut child).success());
    let start = Instant::now();
    while ranks.lines().any(runs) {
        assert!(start.elapsed() < Duration::from_secs(20), "a rank is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_rank_ends_the_others() {
    let mut children = processes(2, &endless(&["--tp_size=2"]));
    speaks(&mut children[0]);
    signal("-KILL", &children[1]);
    let mut out = children[0].stdout.take().unwrap();
    let drain = std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()).unwrap());
    let status = ends(&mut children[0]);
    drain.join().unwrap();
    let mut said = String::new();
    children[0].stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("error: ") && said.contains("rank 1"), "{said}");
    ends(&mut children[1]);
}

#[test]
fn meshes_that_cannot_be_are_refused() {
    let prompt = ["--prompt=a"];
    let rows = [data("prompt_completion.jsonl")];
    let rows = [rows[0].as_str()];
    for (command, more) in [("generate", &prompt[..]), ("score", &rows), ("eval", &rows)] {
        let with = |option: &[&str]| words(command, &model(), &[more, option].concat());
        fails(&with(&["--nproc=0"]), &["nproc", "at least 1"]);
        fails(&with(&["--tp_size=0"]), &["tp_size", "at least 1"]);
        fails(&with(&["--ddp_timeout=0"]), &["ddp_timeout", "above 0"]);
        fails(&with(&["--nproc=3", "--tp_size=2"]), &["tp_size", "nproc: 3", "multiple"]);
        fails(&with(&["--tp_size=2"]), &["tp_size: 2 does not divide the number of ranks, 1;"]);
        fails(&with(&["--nproc=5", "--tp_size=5"]), &["4 attention heads", "5 ranks", "at most 4"]);
        fails(&with(&["--transport=mpi", "--nproc=2"]), &["mpirun"]);
        let here = format!("not of `burnish {command}`");
        fails(&with(&["--zero_stage=2"]), &["`zero_stage` is an option of `burnish sft`", &here]);
        fails(&with(&["--global_batch_size=2"]), &["global_batch_size", &here]);
        let launched = burnish().args(with(&["--transport=local"])).env("WORLD_SIZE", "4").output().unwrap();
        let said = stderr(&launched);
        assert!(!launched.status.success() && said.contains("WORLD_SIZE=4"), "{said}");
    }
}

/// A folder that is wrong is found before anything is written.
#[test]
fn nothing_is_written_where_the_model_cannot_be_divided() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out.jsonl");
    let to = format!("--output_file={}", out.display());
    for command in ["generate", "score", "eval"] {
        let words = words(command, &model(), &[&data("prompt_completion.jsonl"), &to]);
        fails(&on((5, 5), &words), &["heads"]);
    }
    assert!(!out.exists());
    let words = words("score", &model(), &[&data("text.jsonl"), "--output_file=/nowhere/at/all.jsonl"]);
    fails(&on((2, 1), &words), &["/nowhere/at/all.jsonl", "cannot write"]);
}
