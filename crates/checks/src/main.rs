//! `burnish-check`: checks of a device, or benchmarks, as one table.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use burnish_checks::{Check, Context, Table, bench, checks};
use burnish_device::{DeviceKind, open};
use clap::{Parser, ValueEnum};

/// What one thread allocates for a launch another frees: under glibc's allocator both wait for one lock, a fifth of a step on a GPU.
#[cfg(feature = "cuda")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Checks what a device computes against the CPU, and prints one table. Ends with status 1 if a check fails.
#[derive(Parser)]
#[command(name = "burnish-check", version)]
struct Arguments {
    /// Groups of checks (`--list` names them), or `bench` for the benchmarks; by default every check.
    groups: Vec<String>,
    /// What is checked.
    #[arg(long, value_enum, default_value = "cuda")]
    device: Device,
    /// The device's number.
    #[arg(long, default_value_t = 0)]
    ordinal: usize,
    /// Folder with `examples` and `fixtures`: the repository, or an unpacked bundle.
    #[arg(long, default_value = ".")]
    data: PathBuf,
    /// Only checks or benchmarks whose name holds this.
    #[arg(long)]
    only: Option<String>,
    /// One of so many parts of these checks, such as `2/8`: for processes beside each other.
    #[arg(long, value_parser = part)]
    part: Option<[usize; 2]>,
    /// Short forms of the long ones.
    #[arg(long)]
    quick: bool,
    /// Blocks of each model that is measured, in place of all of it: to try a benchmark, or to have its kernels compiled.
    #[arg(long)]
    layers: Option<usize>,
    /// Also write each line of the table as JSON into this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Say which there are.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Device {
    Cpu,
    Cuda,
    Wgpu,
}

/// `K/N`, of 1 to N.
fn part(text: &str) -> Result<[usize; 2], String> {
    let parsed = text.split_once('/').and_then(|(k, n)| Some([k.parse().ok()?, n.parse().ok()?]));
    parsed
        .filter(|&[k, n]| (1..=n).contains(&k))
        .ok_or_else(|| "expected K/N with K of 1 to N, as 2/8".to_owned())
}

fn main() -> Result<ExitCode> {
    // SAFETY: no other thread has been started.
    unsafe { burnish_device::prepare() };
    burnish_device::quiet();
    let arguments = Arguments::parse();
    let kind = match arguments.device {
        Device::Cpu => DeviceKind::Cpu,
        Device::Cuda => DeviceKind::Cuda,
        Device::Wgpu => DeviceKind::Wgpu,
    };
    let device = open(kind, arguments.ordinal)?;
    let context = Context { device, kind, data: arguments.data.clone(), quick: arguments.quick };
    let mut json = arguments
        .json
        .as_ref()
        .map(|path| File::create(path).with_context(|| format!("cannot write {}", path.display())))
        .transpose()?;
    if arguments.groups.iter().any(|group| group == "bench") {
        if arguments.list {
            bench::names(&context).iter().for_each(|name| println!("bench     {name}"));
            return Ok(ExitCode::SUCCESS);
        }
        let rows = bench::run(&context, arguments.only.as_deref(), arguments.layers, &mut |row| {
            println!("{row}");
            json.as_mut().map_or(Ok(()), |file| writeln!(file, "{}", row.json()))
        })?;
        anyhow::ensure!(rows > 0, "no benchmark's name holds {:?}", arguments.only.unwrap_or_default());
        return Ok(ExitCode::SUCCESS);
    }
    let all = chosen(&arguments, checks(&context)?)?;
    if arguments.list {
        all.iter().for_each(|check| println!("{:9} {}", check.group, check.name));
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::default();
    for check in &all {
        let row = check.row(&context);
        println!("{row}");
        if let Some(file) = &mut json {
            writeln!(file, "{}", row.json()).context("cannot write the table")?;
        }
        table.rows.push(row);
    }
    let [passed, failed, left_out] = table.counts();
    println!("{kind}: {passed} passed, {failed} failed, {left_out} left out");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The checks of the groups that were named, whose name holds what was asked for.
fn chosen(arguments: &Arguments, all: Vec<Check>) -> Result<Vec<Check>> {
    let mut groups: Vec<&str> = all.iter().map(|check| check.group).collect();
    groups.dedup();
    for wanted in &arguments.groups {
        anyhow::ensure!(
            groups.contains(&wanted.as_str()),
            "there is no group of checks `{wanted}`; there are {} and bench",
            groups.join(", ")
        );
    }
    let of_group = |check: &Check| {
        arguments.groups.is_empty() || arguments.groups.iter().any(|group| group == check.group)
    };
    let named = |check: &Check| arguments.only.as_ref().is_none_or(|part| check.name.contains(part.as_str()));
    let own = |number: usize| arguments.part.is_none_or(|[k, n]| number % n == k - 1);
    let wanted = all.into_iter().filter(|check| of_group(check) && named(check)).enumerate();
    Ok(wanted.filter(|&(number, _)| own(number)).map(|(_, check)| check).collect())
}
