//! `Assembler`: kernels' PTX as an assembler and a disassembler see it: registers, spills, shared memory, and instructions of
//! tensor cores. Without them the columns stay empty.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Instructions of tensor cores in SASS: of Ampere, of Hopper, and of Blackwell.
const TENSOR_CORES: [&str; 4] = ["HMMA", "HGMMA", "UTCHMMA", "OMMA"];

/// What a kernel takes on one kind of hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) registers: u32,
    /// Bytes that do not fit into registers.
    pub(super) spilled: u32,
    /// Bytes of shared memory that its code states; what is given at a launch comes beside it.
    pub(super) shared: u32,
    /// Instructions of tensor cores; none where nothing disassembles.
    pub(super) products: Option<u32>,
}

impl Taken {
    /// The worst of both.
    pub(super) fn worst(self, other: Self) -> Self {
        Self {
            registers: self.registers.max(other.registers),
            spilled: self.spilled.max(other.spilled),
            shared: self.shared.max(other.shared),
            products: self.products.max(other.products),
        }
    }
}

/// Where the assembler and the disassembler are.
pub(super) struct Assembler {
    ptxas: PathBuf,
    nvdisasm: Option<PathBuf>,
    /// Where what is known lies: a line for each module and hardware.
    known: PathBuf,
    taken: BTreeMap<String, Taken>,
}

impl Assembler {
    /// Those of a toolkit's folder, or of the path; what is missing is said, with where it comes from.
    pub(super) fn find(cuda: Option<&Path>, output: &Path) -> Option<Self> {
        let program = |name: &str| {
            let own = cuda.map(|cuda| cuda.join("bin").join(name)).filter(|file| file.exists());
            let program = own.unwrap_or_else(|| PathBuf::from(name));
            Command::new(&program).arg("--version").output().is_ok().then_some(program)
        };
        let Some(ptxas) = program("ptxas") else {
            println!(
                "ptxas is not there (pip install nvidia-cuda-nvcc-cu12, or nvidia-cuda-nvcc): kernels are not assembled"
            );
            return None;
        };
        let nvdisasm = program("nvdisasm");
        if nvdisasm.is_none() {
            println!(
                "nvdisasm is not there (pip install nvidia-cuda-nvdisasm): instructions of tensor cores are not counted"
            );
        }
        let known = output.join(if nvdisasm.is_some() { "assembled.txt" } else { "assembled-only.txt" });
        let taken = fs::read_to_string(&known).unwrap_or_default().lines().filter_map(line).collect();
        Some(Self { ptxas, nvdisasm, known, taken })
    }

    /// What a module's kernel takes on `target` (`sm_90a`).
    pub(super) fn take(&mut self, module: &Path, target: &str) -> Result<Taken> {
        let stem = module.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let key = format!("{stem} {target}");
        if let Some(taken) = self.taken.get(&key) {
            return Ok(*taken);
        }
        let text = fs::read_to_string(module).with_context(|| module.display().to_string())?;
        let scratch = self.known.with_extension(format!("{}.ptx", std::process::id()));
        let cubin = scratch.with_extension("cubin");
        fs::write(&scratch, retargeted(&text, target))?;
        let done = Command::new(&self.ptxas)
            .args(["-v", &format!("-arch={target}"), "-o"])
            .arg(&cubin)
            .arg(&scratch)
            .output()
            .context("cannot run ptxas")?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(done.status.success(), "ptxas refuses {} for {target}:\n{said}", module.display());
        let mut taken = read(&said);
        if let Some(nvdisasm) = &self.nvdisasm {
            let done =
                Command::new(nvdisasm).arg("-c").arg(&cubin).output().context("cannot run nvdisasm")?;
            ensure!(done.status.success(), "nvdisasm refuses {} for {target}", module.display());
            taken.products = Some(products(&String::from_utf8_lossy(&done.stdout)));
        }
        fs::remove_file(&scratch)?;
        fs::remove_file(&cubin)?;
        self.taken.insert(key, taken);
        Ok(taken)
    }

    /// Keeps what is known for other runs.
    pub(super) fn keep(&self) -> Result<()> {
        let line = |(key, taken): (&String, &Taken)| {
            let Taken { registers, spilled, shared, products } = taken;
            let products = products.map_or_else(|| "-".to_owned(), |count| count.to_string());
            format!("{key} {registers} {spilled} {shared} {products}\n")
        };
        fs::write(&self.known, self.taken.iter().map(line).collect::<String>())?;
        Ok(())
    }
}

/// A line of what is known: module, target, registers, spilled, shared, products.
fn line(line: &str) -> Option<(String, Taken)> {
    let mut words = line.split(' ');
    let key = format!("{} {}", words.next()?, words.next()?);
    let mut next = || words.next()?.parse().ok();
    let (registers, spilled, shared) = (next()?, next()?, next()?);
    Some((key, Taken { registers, spilled, shared, products: next() }))
}

/// The text for other hardware than it was written for. `ptxas` refuses it where it has instructions of the one alone.
fn retargeted(text: &str, target: &str) -> String {
    let line = |line: &str| {
        if line.starts_with(".target") { format!(".target {target}\n") } else { format!("{line}\n") }
    };
    text.lines().map(line).collect()
}

/// What `ptxas -v` says of a module's kernel.
fn read(said: &str) -> Taken {
    let before = |words: &str| {
        let at = said.find(words)?;
        said[..at].trim_end().rsplit([' ', ',']).next()?.parse().ok()
    };
    Taken {
        registers: before(" registers").unwrap_or(0),
        spilled: before(" bytes spill stores").unwrap_or(0),
        shared: before(" bytes smem").unwrap_or(0),
        products: None,
    }
}

/// Instructions of tensor cores in a listing.
fn products(listing: &str) -> u32 {
    let of_tensor_cores = |word: &str| {
        TENSOR_CORES.iter().any(|name| word.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
    };
    listing.lines().filter(|line| line.split_whitespace().any(of_tensor_cores)).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assembler_s_words_are_read() {
        let said = "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'k' for 'sm_90a'\n\
                    ptxas info    : Function properties for k\n    \
                    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
                    ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem, 400 bytes cmem[0]\n";
        assert_eq!(read(said), Taken { registers: 40, spilled: 8, shared: 2048, products: None });
    }

    #[test]
    fn products_are_counted_in_a_listing() {
        let listing = "        /*0c70*/                   HMMA.16816.F32.BF16 R4, R8, R12, RZ ;\n\
                       .text.HMMA_kernel:\n        /*0c80*/  @!P0 HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4] ;\n";
        assert_eq!(products(listing), 2);
    }

    #[test]
    fn what_is_known_is_read_again() {
        let taken = Taken { registers: 72, spilled: 0, shared: 512, products: Some(12) };
        assert_eq!(line("a-b sm_90a 72 0 512 12"), Some(("a-b sm_90a".to_owned(), taken)));
        let without = Taken { products: None, ..taken };
        assert_eq!(line("a-b sm_90a 72 0 512 -"), Some(("a-b sm_90a".to_owned(), without)));
        assert_eq!(line("a-b sm_90a"), None);
        assert_eq!(
            retargeted(".version 8.7\n.target sm_90a\n.entry", "sm_80"),
            ".version 8.7\n.target sm_80\n.entry\n"
        );
    }
}
