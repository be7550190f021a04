//! `Ways`: how each check ended in each way that its kernels are run, and what they take on the hardware: one table.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::assembled::{Assembler, Taken};
use super::own_kernels::{self, Own};

/// How a check ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// It holds: the figure, and seconds.
    Passed(String, f64),
    /// It does not apply there.
    LeftOut(String),
    /// It does not hold, or there is no answer.
    Failed(String),
}

impl Outcome {
    /// From a row's verdict and figure; `faults` are what the driver says went wrong.
    pub(super) fn new(verdict: &str, figure: &str, seconds: f64, faults: &[&str]) -> Self {
        match verdict {
            "passed" => Self::Passed(figure.to_owned(), seconds),
            "left out" => Self::LeftOut(figure.to_owned()),
            _ => {
                let said: Vec<&str> = [figure].into_iter().chain(faults.iter().copied()).collect();
                Self::Failed(said.join(" / "))
            }
        }
    }

    /// In a cell of the table: the error alone.
    fn cell(&self) -> String {
        match self {
            Self::Passed(figure, _) => figure.split([' ', ',']).next().unwrap_or_default().to_owned(),
            Self::LeftOut(_) => "-".to_owned(),
            Self::Failed(_) => "**FAILED**".to_owned(),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(figure, seconds) => write!(f, "passed   {seconds:7.1} s  {figure}"),
            Self::LeftOut(why) => write!(f, "left out  {why}"),
            Self::Failed(why) => write!(f, "FAILED    {why}"),
        }
    }
}

/// The name of a check in a row of its table, how it ended, and what was measured.
pub(super) fn row_of(line: &str) -> Option<(&str, &str, &str)> {
    let (_, rest) = line.split_once(' ')?;
    let rest = rest.trim_start();
    let verdict = ["passed", "FAILED", "left out"].into_iter().find(|verdict| rest.starts_with(verdict))?;
    let words = rest[verdict.len()..].trim_start();
    let end = words.find("  ").unwrap_or(words.len());
    let figure = words[end..].trim_start();
    // Behind the name stand the seconds.
    let figure = figure.split_once(" s ").map_or(figure, |(_, figure)| figure.trim());
    Some((words[..end].trim(), verdict, figure))
}

/// A check.
#[derive(Clone, Debug, Default)]
pub(super) struct Way {
    pub(super) vulkan: Option<Outcome>,
    pub(super) interpreter: Option<Outcome>,
    kernels: usize,
    taken: Option<Taken>,
}

/// All checks, in their order, and kernels.
#[derive(Default)]
pub(super) struct Ways {
    names: Vec<String>,
    checks: BTreeMap<String, Way>,
    /// By kernel: its variants, and the worst of them.
    kernels: BTreeMap<String, (Vec<String>, Taken)>,
    /// What is wrong with burnish's own.
    wrong: Vec<String>,
}

impl Ways {
    pub(super) fn of(&mut self, name: &str) -> &mut Way {
        if !self.checks.contains_key(name) {
            self.names.push(name.to_owned());
        }
        self.checks.entry(name.to_owned()).or_default()
    }

    pub(super) fn checks(&self) -> usize {
        self.names.len()
    }

    /// Checks that failed in any way.
    pub(super) fn failed(&self) -> usize {
        let failed = |outcome: &Option<Outcome>| matches!(outcome, Some(Outcome::Failed(_)));
        self.checks.values().filter(|way| failed(&way.vulkan) || failed(&way.interpreter)).count()
    }

    /// Whether burnish's own kernels are as the kept table has them.
    pub(super) fn kernels_hold(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Assembles the modules of a check; burnish's own for all hardware that they are kept for.
    pub(super) fn assemble(
        &mut self,
        name: &str,
        modules: &Path,
        assembler: &mut Assembler,
        target: &str,
    ) -> Result<()> {
        let (mut worst, mut count): (Option<Taken>, usize) = (None, 0);
        for module in listed(modules)? {
            let stem = module.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let taken = assembler.take(&module, target)?;
            count += 1;
            worst = Some(worst.map_or(taken, |worst| worst.worst(taken)));
            let (variants, of_kernel) = self.kernels.entry(kernel_of(&stem).to_owned()).or_default();
            if variants.contains(&stem) {
                continue;
            }
            variants.push(stem.clone());
            *of_kernel = of_kernel.worst(taken);
            let Some(own) = own_kernels::of_module(&stem) else { continue };
            for target in own.targets.iter().filter(|to| number(to) >= number(target)) {
                match assembler.take(&module, target) {
                    Ok(taken) => self.wrong.extend(fault(own, &stem, target, taken)),
                    Err(error) => self.wrong.push(format!("{error:#}")),
                }
            }
        }
        let way = self.of(name);
        (way.kernels, way.taken) = (count, worst);
        Ok(())
    }

    /// One row for each check, one column for each way.
    pub(super) fn table(&self, target: &str) -> String {
        let mut out = format!(
            "| check | Vulkan, f32 | interpreter | kernels on {target} | registers | spilled, bytes | shared, bytes | tensor cores |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|\n"
        );
        let cell = |outcome: &Option<Outcome>| outcome.as_ref().map_or_else(String::new, Outcome::cell);
        for name in &self.names {
            let way = &self.checks[name];
            out += &format!("| {name} | {} | {} |", cell(&way.vulkan), cell(&way.interpreter));
            out += &match way.taken {
                Some(taken) => format!(" {} | {} |\n", way.kernels, columns(&taken)),
                None => " | | | | |\n".to_owned(),
            };
        }
        for wrong in &self.wrong {
            out += &format!("\nFAILED: {wrong}\n");
        }
        out
    }

    /// One row for each kernel: the worst of its variants.
    pub(super) fn kernels(&self, target: &str) -> String {
        let mut out = format!(
            "# Kernels on {target}\n\n| kernel | variants | registers | spilled, bytes | shared, bytes | tensor cores | burnish's |\n\
             |---|---:|---:|---:|---:|---:|---|\n"
        );
        for (name, (variants, taken)) in &self.kernels {
            let own = variants.first().and_then(|stem| own_kernels::of_module(stem));
            let own = if own.is_some() { "yes" } else { "" };
            out += &format!("| {name} | {} | {} | {own} |\n", variants.len(), columns(taken));
        }
        out
    }
}

fn columns(taken: &Taken) -> String {
    let Taken { registers, spilled, shared, products } = taken;
    let products = products.map_or_else(String::new, |count| count.to_string());
    format!("{registers} | {spilled} | {shared} | {products}")
}

/// What is wrong with one of burnish's kernels on a target.
fn fault(own: Own, stem: &str, target: &str, taken: Taken) -> Option<String> {
    if taken.spilled > own.spills {
        return Some(format!(
            "{stem} spills {} bytes on {target}; the table of burnish's kernels has {}",
            taken.spilled, own.spills
        ));
    }
    let uses = taken.products? > 0;
    (uses != own.tensor_cores).then(|| {
        let verb = if uses { "uses" } else { "does not use" };
        format!("{stem} {verb} tensor cores on {target}; the table of burnish's kernels says otherwise")
    })
}

/// The number in `sm_90a`.
fn number(target: &str) -> u32 {
    target.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

/// The modules of a folder.
fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut all = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    all.retain(|path| path.extension().is_some_and(|end| end == "ptx"));
    all.sort();
    Ok(all)
}

/// A kernel's name: without CubeCL's digest of the variant and the digest of the text.
fn kernel_of(stem: &str) -> &str {
    let entry = stem.rsplit_once('-').map_or(stem, |(entry, _)| entry);
    entry.rsplit_once('_').map_or(entry, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read() {
        let line =
            "operation passed   linears plain, f32, 3 x 19                     1.0 s  3e-4 (x), bound 1e-3";
        assert_eq!(row_of(line), Some(("linears plain, f32, 3 x 19", "passed", "3e-4 (x), bound 1e-3")));
        let line = "operation left out embedding, bf16                     0.0 s  WebGPU has no bf16";
        assert_eq!(row_of(line), Some(("embedding, bf16", "left out", "WebGPU has no bf16")));
        let line = "TRL       passed   reward-full, f32                          11.0 s  3.0e-6 from TRL, bound 2e-4";
        assert_eq!(row_of(line), Some(("reward-full, f32", "passed", "3.0e-6 from TRL, bound 2e-4")));
        assert_eq!(row_of("cuda: 1 passed, 0 failed, 0 left out"), None);
    }

    #[test]
    fn ways_stand_side_by_side() {
        let mut ways = Ways::default();
        ways.of("b").vulkan = Some(Outcome::new("passed", "3e-4 (x), bound 1e-3", 1.0, &[]));
        ways.of("b").interpreter = Some(Outcome::new("FAILED", "off", 1.0, &["fake CUDA: x"]));
        ways.of("a").vulkan = Some(Outcome::new("left out", "no bf16", 0.0, &[]));
        let table = ways.table("sm_90a");
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows, ["| b | 3e-4 | **FAILED** | | | | | |", "| a | - |  | | | | | |"]);
        assert_eq!((ways.checks(), ways.failed()), (2, 1));
    }

    #[test]
    fn own_kernels_spill_nothing_and_use_tensor_cores_where_they_are_meant_to() {
        let own = Own { name: "update", tensor_cores: false, spills: 0, targets: &own_kernels::TARGETS };
        let taken = Taken { registers: 40, products: Some(0), ..Taken::default() };
        assert_eq!(fault(own, "update_1", "sm_80", taken), None);
        assert!(fault(own, "update_1", "sm_80", Taken { spilled: 8, ..taken }).is_some());
        assert!(fault(own, "update_1", "sm_80", Taken { products: Some(3), ..taken }).is_some());
        assert!(fault(Own { tensor_cores: true, ..own }, "update_1", "sm_80", taken).is_some());
        assert_eq!(fault(own, "update_1", "sm_80", Taken { products: None, ..taken }), None);
        assert_eq!(kernel_of("update_g_f32_n_4_024f2c38-f53fdc4de9549c7f"), "update_g_f32_n_4");
    }
}
