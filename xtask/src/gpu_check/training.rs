//! Training on the machine: the same short run on the CPU and on devices, figure by figure, and each twice; and what the driver
//! counted of a step beside what its plan counts.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Options;
use super::machine::Machine;
use super::step_counts::{self, StepCounts, held};
use crate::fake_driver;

/// The package of the program.
const PROGRAM: &str = "burnish-cli";
/// Rows of the data that are trained on.
const ROWS: usize = 8;
/// Steps of a run, and of the one that is taken from it to count a step.
const STEPS: u64 = 3;
/// What all runs have in common. All rows are longer than that and predict every token, so that steps have one shape, and
/// few kernels.
const COMMON: [&str; 18] = [
    "--bf16",
    "false",
    "--max_length",
    "24",
    "--completion_only_loss",
    "false",
    "--learning_rate",
    "2e-4",
    "--lr_scheduler_type",
    "constant",
    "--logging_steps",
    "1",
    "--save_strategy",
    "no",
    "--seed",
    "1",
    "--report_to",
    "none",
];
/// Bytes that a step sends to one device at most: tokens, plans and numbers, and no weight however it rests.
const SENT: u64 = 1 << 16;
/// The model of the examples.
const BASE: &str = "examples/base";
/// Figures of a step that are compared.
const FIGURES: [&str; 3] = ["loss", "grad_norm", "entropy"];

/// A way to train.
struct Case {
    name: &'static str,
    work: Work,
    dtype: &'static str,
    /// How two devices share the work; none where there is one.
    layout: &'static [&'static str],
    /// Whether each rank is a process, as `torchrun` starts them.
    processes: bool,
}

/// What is trained.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// The first rows of the example's data, cut to one length, by a method's words.
    Short(&'static [&'static str]),
    /// The same rows, by one of the models whose weights are drawn ([`drawn`]).
    Drawn(&'static str, &'static [&'static str]),
    /// A file of options, as it is shipped but for [`BRIEFLY`].
    File(&'static str),
}

/// What a file of options is run with.
const BRIEFLY: [&str; 14] = [
    "--bf16",
    "false",
    "--per_device_train_batch_size",
    "2",
    "--eval_strategy",
    "no",
    "--logging_steps",
    "1",
    "--save_strategy",
    "no",
    "--report_to",
    "none",
    "--overwrite_output_dir",
    "true",
];

const FULL: Work = Work::Short(&[]);
const LORA: Work = Work::Short(&["--use_peft", "true", "--lora_r", "4", "--lora_dropout", "0.0"]);
/// From the last message's beginning on: beside the layers, with a factor of each token.
const ALORA: Work = Work::Short(&[
    "--use_peft",
    "true",
    "--lora_r",
    "4",
    "--lora_dropout",
    "0.0",
    "--alora_invocation_tokens",
    "[1]",
]);
/// A base in four bits, its scales in eight.
const QLORA: Work = Work::Short(&[
    "--use_peft",
    "true",
    "--lora_r",
    "4",
    "--lora_dropout",
    "0.0",
    "--load_in_4bit",
    "true",
    "--use_bnb_nested_quant",
    "true",
]);
const MIXTURE: Work = Work::Drawn("mixture", &["--random_weights", "true", "--router_aux_loss_coef", "0.05"]);
const SCANS: Work = Work::Drawn("scans", &["--random_weights", "true"]);
const EXAMPLE: Work = Work::File("examples/sft-lora.yaml");
const ALONE: &[&str] = &[];
const STAGE_3: &[&str] = &["--zero_stage", "3"];
const TENSOR_PARALLEL: &[&str] = &["--tp_size", "2"];

const fn case(name: &'static str, work: Work, dtype: &'static str, layout: &'static [&'static str]) -> Case {
    Case { name, work, dtype, layout, processes: false }
}

const CASES: [Case; 18] = [
    case("LoRA, f32", LORA, "float32", ALONE),
    case("full, f32", FULL, "float32", ALONE),
    case("LoRA, bf16", LORA, "bfloat16", ALONE),
    case("LoRA that is invoked, bf16", ALORA, "bfloat16", ALONE),
    case("QLoRA, bf16", QLORA, "bfloat16", ALONE),
    case("full, bf16", FULL, "bfloat16", ALONE),
    case("full, f32, stage 3, two devices", FULL, "float32", STAGE_3),
    Case { processes: true, ..case("full, f32, stage 3, two devices, processes", FULL, "float32", STAGE_3) },
    case("full, f32, tensor parallel, two devices", FULL, "float32", TENSOR_PARALLEL),
    case("LoRA, bf16, stage 3, two devices", LORA, "bfloat16", STAGE_3),
    case("LoRA, bf16, tensor parallel, two devices", LORA, "bfloat16", TENSOR_PARALLEL),
    case("QLoRA, bf16, stage 3, two devices", QLORA, "bfloat16", STAGE_3),
    case("mixture, f32", MIXTURE, "float32", ALONE),
    case("mixture, bf16", MIXTURE, "bfloat16", ALONE),
    case("mixture, f32, tensor parallel, two devices", MIXTURE, "float32", TENSOR_PARALLEL),
    case("selective scans, f32", SCANS, "float32", ALONE),
    case("selective scans, bf16", SCANS, "bfloat16", ALONE),
    case("examples/sft-lora.yaml", EXAMPLE, "float32", ALONE),
];

impl Case {
    fn devices(&self) -> usize {
        if self.layout.is_empty() { 1 } else { 2 }
    }

    /// How far from the CPU's its figures may be, relative to them, as in `crates/checks/src/tolerance.rs`: products of bf16
    /// or of f32.
    fn bound(&self) -> f64 {
        if self.dtype == "bfloat16" { 3e-2 } else { 1e-4 }
    }
}

/// The figures of each step of a run, as they were written.
type Figures = Vec<Vec<f64>>;

fn figures(folder: &Path) -> Result<Figures> {
    let file = folder.join("metrics.jsonl");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let steps = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let steps = steps.filter(|step| step["grad_norm"].is_number());
    Ok(steps.map(|step| FIGURES.map(|name| step[name].as_f64().unwrap_or(f64::NAN)).to_vec()).collect())
}

/// The largest difference, relative to what is expected; infinite where steps are missing.
fn difference(got: &Figures, expected: &Figures) -> f64 {
    if got.len() != expected.len() || got.is_empty() {
        return f64::INFINITY;
    }
    let pairs = got.iter().flatten().zip(expected.iter().flatten());
    let relative = pairs.map(|(got, expected)| (got - expected).abs() / expected.abs().max(1e-12));
    relative.fold(0.0, |most, one| if one.is_nan() { f64::INFINITY } else { f64::max(most, one) })
}

/// What a run left behind that two runs must have in common, bit by bit: figures, and weights that it saved.
fn results(folder: &Path) -> Result<(Figures, Vec<u8>)> {
    let saved = ["adapter_model.safetensors", "model.safetensors"].map(|name| folder.join(name));
    let weights = saved.iter().find_map(|file| fs::read(file).ok());
    Ok((figures(folder)?, weights.with_context(|| format!("{} has no weights", folder.display()))?))
}

struct Trainings<'a> {
    root: &'a Path,
    machine: &'a Machine<'a>,
    program: PathBuf,
    data: PathBuf,
    folder: PathBuf,
}

impl Trainings<'_> {
    /// The words of a case, without what it writes and where it runs.
    fn words(&self, case: &Case, devices: usize) -> Vec<OsString> {
        let (base, method) = match case.work {
            Work::File(file) => {
                let words = ["sft", "--config", file].into_iter().chain(BRIEFLY);
                return words.map(OsString::from).collect();
            }
            Work::Short(method) => (self.root.join(BASE), method),
            Work::Drawn(model, method) => (self.folder.join(model), method),
        };
        let mut words: Vec<OsString> = vec!["sft".into(), "--model_name_or_path".into(), base.into()];
        words.push("--dataset_name".into());
        words.push(self.data.clone().into());
        words.extend(COMMON.iter().chain(method).chain(&["--dtype", case.dtype]).map(OsString::from));
        // One rank, and the CPU, do what several do together.
        if devices > 1 {
            words.extend(case.layout.iter().map(OsString::from));
        }
        let rows = if devices > 1 && case.layout == STAGE_3 { "1" } else { "2" };
        words.extend(["--per_device_train_batch_size", rows].map(OsString::from));
        words
    }

    /// What its plan counts of a step, on all ranks.
    fn planned(&self, case: &Case) -> Result<StepCounts> {
        let mut command = Command::new(&self.program);
        command.arg("plan").args(self.words(case, case.devices())).args(["--device", "h200", "--json"]);
        let done =
            command.args(["--nproc", &case.devices().to_string()]).output().context("cannot run burnish")?;
        ensure!(done.status.success(), "no plan: {}", String::from_utf8_lossy(&done.stderr));
        StepCounts::planned(&serde_json::from_slice(&done.stdout)?)
    }

    /// Trains so many steps, and says what went wrong if it did.
    fn train(&self, case: &Case, devices: usize, steps: u64, name: &str) -> Result<PathBuf> {
        let output = self.folder.join(name);
        if output.exists() {
            fs::remove_dir_all(&output)?;
        }
        let words = || {
            let mut words = self.words(case, devices);
            words.extend(["--output_dir".into(), output.clone().into()]);
            words.extend(["--max_steps".into(), steps.to_string().into()]);
            words
        };
        let mut ranks = Vec::new();
        let processes = if case.processes { devices } else { devices.min(1) };
        if processes == 0 {
            let mut command = Command::new(&self.program);
            command.current_dir(&self.machine.output).args(words()).args(["--device", "cpu"]);
            ranks.push((command, self.folder.join(format!("{name}.log"))));
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        for rank in 0..processes {
            let mut command = self.machine.command(&self.program);
            command.args(words()).args(["--device", "cuda"]);
            // What the first of these runs compiles the others find.
            command.env("BURNISH_KERNEL_CACHE", self.folder.join("kernels"));
            command.env("FAKE_CUDA_DEVICES", devices.to_string());
            command.env("FAKE_CUDA_REPORT", self.report(name, rank));
            match case.processes {
                false => command.args(["--nproc", &devices.to_string()]),
                true => command
                    .env("WORLD_SIZE", devices.to_string())
                    .env("LOCAL_WORLD_SIZE", devices.to_string())
                    .env("RANK", rank.to_string())
                    .env("LOCAL_RANK", rank.to_string())
                    .env("MASTER_ADDR", "127.0.0.1")
                    .env("MASTER_PORT", &port),
            };
            let end = if rank == 0 { String::new() } else { format!(".{rank}") };
            ranks.push((command, self.folder.join(format!("{name}{end}.log"))));
        }
        let mut begun = Vec::new();
        for (mut command, log) in ranks {
            let file = fs::File::create(&log).with_context(|| log.display().to_string())?;
            command.stdout(Stdio::null()).stderr(file);
            begun.push((command.spawn().context("cannot run burnish")?, log));
        }
        // Each is waited for, whatever became of the others.
        let ended: Vec<_> = begun.into_iter().map(|(mut rank, log)| (rank.wait(), log)).collect();
        for (status, log) in ended {
            let status = status.context("cannot wait for burnish")?;
            let said = fs::read_to_string(&log).unwrap_or_default();
            let last: Vec<&str> = said.lines().rev().take(3).collect();
            ensure!(status.success(), "{name} ended with {status}: {}", last.join(" / "));
        }
        Ok(output)
    }

    /// Where a rank's driver writes what it counted.
    fn report(&self, name: &str, rank: usize) -> PathBuf {
        self.folder.join(format!("{name}.{rank}.json"))
    }

    /// What the drivers of all processes counted.
    fn counted(&self, case: &Case, name: &str) -> Result<Value> {
        let processes = if case.processes { case.devices() } else { 1 };
        let reports = (0..processes).map(|rank| {
            let report = self.report(name, rank);
            let report = fs::read_to_string(&report).with_context(|| report.display().to_string())?;
            Ok(serde_json::from_str(&report)?)
        });
        step_counts::together(&reports.collect::<Result<Vec<_>>>()?)
    }

    /// A row of the table, and whether it is as it should be.
    fn row(&self, case: &Case) -> Result<(String, bool)> {
        let file = |what: &str| format!("{}-{what}", case.name.replace([',', ' ', '/'], "-"));
        let expected = figures(&self.train(case, 0, STEPS, &file("cpu"))?)?;
        let begun = Instant::now();
        let first = results(&self.train(case, case.devices(), STEPS, &file("cuda"))?)?;
        let seconds = begun.elapsed().as_secs_f64();
        let again = results(&self.train(case, case.devices(), STEPS, &file("again"))?)?;
        self.train(case, case.devices(), 1, &file("one"))?;
        let report = |what: &str| self.counted(case, &file(what));
        let (whole, one) = (report("again")?, report("one")?);
        let traced = StepCounts::traced(&whole, &one, STEPS - 1)?;
        // Rows of a file are of many lengths; its plan is of the longest.
        let planned = match case.work {
            Work::Short(_) | Work::Drawn(..) => Some(self.planned(case)?),
            Work::File(_) => None,
        };
        let (off, same) = (difference(&first.0, &expected), first == again);
        let sums = report("cuda")?["atomic_sums"].as_u64().unwrap_or(0);
        let (loss, on_cpu) = (last_loss(&first.0), last_loss(&expected));
        let repeats = if same { "bit for bit" } else { "DIFFERS" };
        let row = format!(
            "| {} | {on_cpu:.5} | {loss:.5} | {off:.1e} | {:.0e} | {repeats} | {sums} | {seconds:.1} | {} |\n",
            case.name,
            case.bound(),
            traced.beside(planned.as_ref()),
        );
        let alone = case.devices() == 1;
        let sent = (alone && traced.from_host > SENT)
            .then(|| format!("{} bytes from the host a step, not {SENT} at most", traced.from_host));
        let counted = planned.and_then(|planned| held(&planned, &traced, alone)).or(sent);
        if let Some(wrong) = &counted {
            println!("FAILED: {}: {wrong}", case.name);
        }
        // The interpreter has one order of them, a GPU another one each time.
        Ok((row, off <= case.bound() && same && sums == 0 && counted.is_none()))
    }
}

fn last_loss(figures: &Figures) -> f64 {
    figures.last().and_then(|step| step.first()).copied().unwrap_or(f64::NAN)
}

/// What models whose weights are drawn have in place of the example's: a mixture of experts, and Falcon-Mamba's scans.
fn drawn() -> [(&'static str, Value); 2] {
    let mixture = serde_json::json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 48, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "initializer_range": 0.05,
    });
    let scans = serde_json::json!({
        "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba", "hidden_size": 48, "num_hidden_layers": 2,
        "intermediate_size": 96, "state_size": 16, "time_step_rank": 5, "layer_norm_epsilon": 1e-5, "initializer_range": 0.1,
    });
    [("mixture", mixture), ("scans", scans)]
}

/// A folder of the example's tokenizer and a model of other words in its configuration, without weights.
fn write_drawn(base: &Path, folder: &Path, own: &Value) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"] {
        fs::copy(base.join(name), folder.join(name)).with_context(|| name.to_owned())?;
    }
    let file = base.join("config.json");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let mut config: Value = serde_json::from_str(&text)?;
    for (key, value) in own.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    fs::write(folder.join("config.json"), config.to_string()).context("config.json")
}

/// Trains all cases; whether all were as on the CPU.
pub(super) fn run(root: &Path, machine: &Machine<'_>, options: &Options) -> Result<bool> {
    let program = options.program(root, PROGRAM, "burnish")?;
    let folder = machine.output.join("training");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let whole = root.join("examples/data/sft-train.jsonl");
    let whole = fs::read_to_string(&whole).with_context(|| whole.display().to_string())?;
    let data = folder.join("data.jsonl");
    // Files of options name what lies beside them by paths from the repository's root.
    fake_driver::link(&root.join("examples"), &machine.output, &["examples"])?;
    fs::write(&data, whole.lines().take(ROWS).map(|row| format!("{row}\n")).collect::<String>())?;
    for (name, own) in drawn() {
        write_drawn(&root.join(BASE), &folder.join(name), &own)?;
    }
    let trainings = Trainings { root, machine, program, data, folder };
    let wanted = |case: &&Case| options.only.as_ref().is_none_or(|part| case.name.contains(part.as_str()));
    let mut table =
        "| run | loss on the CPU | loss | largest difference | bound | again | atomic sums | seconds | launches a step (plan) | bytes to the \
         host (plan) | bytes from the host | collectives (plan) |\n\
                     |---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    print!("{table}");
    let (mut all, mut failed) = (0, 0);
    for case in CASES.iter().filter(wanted) {
        all += 1;
        let (row, passed) = trainings.row(case).unwrap_or_else(|error| {
            (format!("| {} | {} |\n", case.name, format!("FAILED: {error:#}").replace('|', "/")), false)
        });
        failed += usize::from(!passed);
        print!("{row}");
        table += &row;
    }
    ensure!(all > 0, "no run's name holds {:?}", options.only.as_deref().unwrap_or_default());
    fs::write(machine.output.join("training.md"), &table)?;
    println!("== gpu-check: {all} runs, {failed} failed");
    Ok(failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_differ_by_their_worst_and_steps_must_be_there() {
        let expected = vec![vec![2.0, 4.0], vec![1.0, 8.0]];
        assert_eq!(difference(&expected, &expected), 0.0);
        assert_eq!(difference(&vec![vec![2.0, 4.0], vec![1.0, 9.0]], &expected), 0.125);
        assert_eq!(difference(&vec![vec![2.0, 4.0], vec![1.0, f64::NAN]], &expected), f64::INFINITY);
        assert_eq!(difference(&expected[..1].to_vec(), &expected), f64::INFINITY);
    }
}
