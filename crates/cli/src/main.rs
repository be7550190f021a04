//! The burnish program: fine-tune, generate, score, evaluate, merge, quantise and export language models.

mod chat;
mod completions;
mod convert;
mod data;
mod device;
mod doctor;
mod eval;
mod explain;
mod export;
mod generate;
mod hints;
#[cfg(feature = "hub")]
mod hub;
mod inspect;
mod interrupt;
mod merge;
mod model;
mod panics;
mod plan;
mod quantize;
mod refusal;
mod runs;
mod sampled;
mod score;
mod serve;
mod served;
mod train;
mod voice;
mod win_rate;

use std::process::ExitCode;

use burnish_config::groups::MOST_THREADS;
use burnish_config::help::overview;
use burnish_config::table::COMMANDS;
use burnish_config::{Command, Invocation, Resolved, published};
use burnish_device::Cores;
use burnish_trainers::with_trainer;

use refusal::{refusal, refuse, require};

/// What one thread allocates for a launch another frees: under glibc's allocator both wait for one lock, a fifth of a step on a GPU.
#[cfg(feature = "cuda")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    panics::listen();
    burnish_device::quiet();
    burnish_device::files_too_large_are_errors();
    let ended = std::panic::catch_unwind(|| {
        let words = match stacks().and_then(|()| amx()).and_then(|()| words()) {
            Ok(words) => words,
            Err(error) => return voice::failed(&error),
        };
        // SAFETY: no other thread has been started.
        unsafe { burnish_device::prepare() };
        burnish_device::keep_freed_memory();
        if leads() {
            // Talk: without a thread nobody hears of it.
            let _ = burnish_report::show_work();
        }
        // After an error a device may wait for ranks that are gone.
        let ended = run(&words).inspect(|_| burnish_device::settle());
        ended.unwrap_or_else(|error| voice::failed(&error))
    });
    match ended {
        Ok(code) if !panics::happened() => code,
        _ => ExitCode::from(panics::STATUS),
    }
}

/// Whether threads have room for what they call: an overflow would end the process without a word.
fn stacks() -> anyhow::Result<()> {
    const LEAST: u64 = 1 << 20;
    const MOST: u64 = 1 << 30;
    let first = burnish_device::stack_limit();
    require!(
        first.is_none_or(|bytes| bytes >= LEAST),
        BadEnvironment,
        "the stack may have {} kB here (`ulimit -s`), expected at least {} kB; usual are 8192: `ulimit -s 8192`",
        first.unwrap_or_default() >> 10,
        LEAST >> 10
    );
    let others = std::env::var("RUST_MIN_STACK").ok().and_then(|value| value.parse::<u64>().ok());
    require!(
        others.is_none_or(|bytes| (LEAST..=MOST).contains(&bytes)),
        BadEnvironment,
        "RUST_MIN_STACK is {} bytes, expected {LEAST} to {MOST}, or none: `unset RUST_MIN_STACK`",
        others.unwrap_or_default()
    );
    Ok(())
}

/// Leaves the processor's tile registers alone where `BURNISH_AMX` is 0.
fn amx() -> anyhow::Result<()> {
    match std::env::var_os("BURNISH_AMX") {
        Some(said) if said == "0" => {
            burnish_device::forgo_amx();
        }
        Some(said) => {
            require!(
                said == "1",
                BadEnvironment,
                "BURNISH_AMX is {said:?}, expected 0 (products of bfloat16 by AVX-512 where the processor has AMX) or 1"
            );
        }
        None => {}
    }
    Ok(())
}

/// Whether this process speaks for the ranks that a launcher started, by its variables.
fn leads() -> bool {
    const RANKS: [&str; 5] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"];
    RANKS.iter().find_map(std::env::var_os).is_none_or(|rank| rank == "0")
}

/// The words after the program's name.
fn words() -> anyhow::Result<Vec<String>> {
    let mut words = Vec::new();
    for (index, word) in std::env::args_os().enumerate().skip(1) {
        match word.into_string() {
            Ok(word) => words.push(word),
            Err(word) => refuse!(
                BadEnvironment,
                "word {index} of the command line, {word:?}, is not UTF-8; names of files have to be for burnish: rename it"
            ),
        }
    }
    Ok(published(&words).unwrap_or(words))
}

fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let (command, rest) = match words.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("--help", &[][..]),
    };
    if let Some(done) = with_trainer(command, train::Train(rest)) {
        return done;
    }
    match command {
        "generate" => generate::run(rest),
        "chat" => chat::run(rest),
        "serve" => serve::run(rest),
        "score" => score::run(rest),
        "eval" => eval::run(rest),
        "win-rate" => win_rate::run(rest),
        "data" => data::run(rest),
        "inspect" => inspect::run(rest),
        "watch" => runs::watch::run(rest),
        "compare" => runs::compare::run(rest),
        "plan" => plan::run(rest),
        "merge" => merge::run(rest),
        "quantize" => quantize::run(rest),
        "export" => export::run(rest),
        "convert" => convert::run(rest),
        "doctor" => doctor::run(rest),
        "explain" => explain::run(rest),
        "completions" => completions::print(rest),
        "man" => completions::manual(rest),
        "help" if !rest.is_empty() => helped(rest),
        "--help" | "-h" | "help" => {
            voice::result(overview())?;
            Ok(ExitCode::SUCCESS)
        }
        "--version" | "-V" => {
            voice::result(format_args!("burnish {}", env!("CARGO_PKG_VERSION")))?;
            Ok(ExitCode::SUCCESS)
        }
        other => {
            let known = COMMANDS.iter().map(|c| c.name);
            let nearest = known
                .max_by(|a, b| strsim::jaro_winkler(a, other).total_cmp(&strsim::jaro_winkler(b, other)));
            refuse!(
                UnknownCommand,
                "there is no command `{other}`; did you mean `burnish {}`? `burnish --help` lists all",
                nearest.unwrap_or("sft")
            )
        }
    }
}

/// `burnish help COMMAND [TOPIC]`.
fn helped(words: &[String]) -> anyhow::Result<ExitCode> {
    let (command, topic) = words.split_at(1);
    require!(
        !command[0].starts_with('-') && command[0] != "help",
        UnknownCommand,
        "expected `burnish help COMMAND [TOPIC]`"
    );
    run(&[command, &["--help".to_owned()], topic].concat())
}

/// The words with one that stands before any option as the option `name`.
fn first_as(name: &str, words: &[String]) -> Vec<String> {
    let mut words = words.to_vec();
    if let Some(first) = words.first_mut().filter(|first| !first.starts_with('-')) {
        *first = format!("--{name}={first}");
    }
    words
}

/// The options of a command, or `None` when its help was asked for and printed.
fn options<C: Command>(words: &[String]) -> anyhow::Result<Option<Resolved<C>>> {
    resolved(C::parse(words.iter().cloned())?)
}

fn resolved<C: Command>(invocation: Invocation<C>) -> anyhow::Result<Option<Resolved<C>>> {
    match invocation {
        #[cfg_attr(not(feature = "hub"), expect(unused_mut, reason = "names are then paths"))]
        Invocation::Run(mut resolved) => {
            resolved.notes.iter().for_each(voice::note);
            #[cfg(feature = "hub")]
            hub::resolve(&mut resolved)?;
            Ok(Some(resolved))
        }
        Invocation::Help(text) => {
            voice::result(text)?;
            Ok(None)
        }
    }
}

/// Starts the process' worker threads: as many as asked, or as there are processors (`RAYON_NUM_THREADS`); with `cores` one for
/// each of these, which keep to them.
fn use_threads(threads: Option<usize>, cores: Option<&Cores>) -> anyhow::Result<()> {
    let variable = std::env::var("RAYON_NUM_THREADS").ok().and_then(|said| said.parse::<usize>().ok());
    if let Some(said) = variable.filter(|said| threads.is_none() && *said > MOST_THREADS) {
        refuse!(
            BadEnvironment,
            "RAYON_NUM_THREADS is {said}, expected at most {MOST_THREADS}; `--threads` asks for fewer"
        );
    }
    let mut pool = rayon::ThreadPoolBuilder::new();
    if let Some(cores) = cores.cloned() {
        pool = pool.num_threads(cores.count()).start_handler(move |thread| drop(cores.bind_worker(thread)));
    }
    if let Some(threads) = threads {
        pool = pool.num_threads(threads);
    }
    pool.build_global().map_err(|error| {
        let asked = match (threads, std::env::var("RAYON_NUM_THREADS")) {
            (Some(threads), _) => format!("{threads} threads (threads)"),
            (None, Ok(threads)) => format!("threads (RAYON_NUM_THREADS={threads})"),
            (None, Err(_)) => "a thread for each processor".to_owned(),
        };
        refusal!(
            BadEnvironment,
            "cannot start {asked}: {error}; `--threads` asks for fewer, and `ulimit -u` and `ulimit -v` say how much the system allows"
        )
    })
}
