//! `Machine`: a driver without a device and a compiler that remembers, as programs find them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Options;
use crate::fake_driver;

/// Names of NVRTC, newest first.
const COMPILERS: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];
/// Kernels of CubeCL that measure the hardware, of which nothing is read.
const PROBES: &str = "compute_,launch_overhead,memory_,prime_buffer";
/// CubeCL's tuning: each kernel that is tried once; the first that runs is taken where it knows the hardware's speed.
const TUNING: &str = "[autotune]\nlevel = \"minimal\"\n\
                      [autotune.bench]\nmin_samples = 1\nmax_samples = 1\nshort_circuit_samples = 1\n";
/// The same, with every kernel tried.
const WHOLE_TUNING: &str = "[autotune]\nlevel = \"minimal\"\ndisable_short_circuit = true\n\
                            [autotune.bench]\nmin_samples = 1\nmax_samples = 1\nadaptive = false\n";
/// Seconds after which a program is taken for hung.
pub(super) const HUNG: &str = "3600";

/// Where programs find a driver and a compiler: what every process is started with.
pub(super) struct Machine<'a> {
    options: &'a Options,
    pub(super) output: PathBuf,
    paths: OsString,
    compiler: Option<PathBuf>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(root: &Path, options: &'a Options) -> Result<Self> {
        let fake = fake_driver::build(root)?;
        let output = root.join(&options.output);
        let libraries = output.join("libraries");
        for folder in ["modules", "libraries", "kept"] {
            let folder = output.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        fake_driver::link(&fake, &libraries, &fake_driver::NAMES)?;
        let real =
            |name: &str| options.nvrtc.as_ref().and_then(|folder| folder.join(name).canonicalize().ok());
        let compiler = COMPILERS.iter().find_map(|name| Some((*name, real(name)?)));
        if let Some((name, _)) = &compiler {
            fake_driver::link(&fake, &libraries, &[name])?;
        }
        fs::write(output.join("cubecl.toml"), if options.tune { WHOLE_TUNING } else { TUNING })?;
        let mut paths = vec![libraries];
        paths.extend(options.nvrtc.clone());
        paths.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
        Ok(Self {
            options,
            output,
            paths: std::env::join_paths(paths)?,
            compiler: compiler.map(|(_, file)| file),
        })
    }

    /// A folder for the modules that a check compiles, empty.
    pub(super) fn modules_of(&self, check: &str) -> Result<PathBuf> {
        let folder = self.modules_of_last(check);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(folder)
    }

    /// That folder, with what is in it.
    pub(super) fn modules_of_last(&self, check: &str) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        self.output.join("modules").join(check.chars().map(plain).collect::<String>())
    }

    /// A program on the machine.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.arg(HUNG).arg(program).current_dir(&self.output).env("LD_LIBRARY_PATH", &self.paths);
        command.env("FAKE_CUDA_MODULES", self.output.join("modules")).env("FAKE_CUDA_SKIP", PROBES);
        command.env("FAKE_CUDA_ARCH", self.options.arch.to_string());
        // Every kernel is compiled, and looked at.
        command.env("BURNISH_KERNEL_CACHE", "0");
        if let Some(compiler) = &self.compiler {
            command.env("FAKE_CUDA_COMPILER", compiler).env("FAKE_CUDA_KEPT", self.output.join("kept"));
        }
        if let Some(cuda) = &self.options.cuda {
            command.env("CUDA_PATH", cuda);
        }
        command
    }
}
