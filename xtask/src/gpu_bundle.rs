//! `cargo xtask gpu-bundle`: one file that checks and measures burnish on a machine with a GPU and nothing else.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::step::{self, cargo};

/// What the file may weigh.
const MOST: u64 = 40 << 20;

/// Libraries that a bundle must not need: they are loaded when they are used.
const NOT_LINKED: [&str; 7] = ["cuda", "nvrtc", "nccl", "cublas", "cudnn", "LLVM", "mpi"];

/// Programs of the bundle, with their packages.
const PROGRAMS: [(&str, &str); 2] = [("burnish", "burnish-cli"), ("burnish-check", "burnish-checks")];

/// Files and folders of the repository, and what they are called in the bundle.
const DATA: [(&str, &str); 6] = [
    ("examples", "examples"),
    ("crates/trainers/tests/fixtures", "fixtures"),
    ("benches/gpu.py", "gpu.py"),
    ("xtask/gpu-bundle/cubecl.toml", "checks/cubecl.toml"),
    ("xtask/gpu-bundle/run.sh", "run.sh"),
    ("xtask/gpu-bundle/README.md", "README.md"),
];

/// Builds the programs, looks at what they need, and packs them with their data, and with kernels that they have compiled;
/// the file.
pub(crate) fn run(root: &Path, output: Option<PathBuf>, kernels: Option<&Path>) -> Result<PathBuf> {
    let mut build = cargo(root, &["build", "--release"]);
    for (_, package) in PROGRAMS {
        build.args(["-p", package, "--features", &format!("{package}/cuda")]);
    }
    ensure!(step::run("release build with CUDA", &mut build)?, "the build failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("gpu-bundle").join("burnish-gpu");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder.join("bin"))?;
    for (program, _) in PROGRAMS {
        let built = target.join("release").join(program);
        linked(&built)?;
        copy(&built, &folder.join("bin").join(program))?;
    }
    for (from, to) in DATA {
        copy_all(&root.join(from), &folder.join(to))?;
    }
    if let Some(kernels) = kernels {
        copy_all(kernels, &folder.join("kernels"))?;
    }
    let output = output.unwrap_or_else(|| target.join("gpu-bundle").join("burnish-gpu.run"));
    pack(root, &folder, &output)?;
    let bytes = std::fs::metadata(&output)?.len();
    ensure!(bytes < MOST, "{}: {bytes} bytes, more than {MOST}", output.display());
    println!(
        "{}: {:.1} MiB; `sh {} --help` says how it runs",
        output.display(),
        bytes as f64 / f64::from(1 << 20),
        output.display()
    );
    Ok(output)
}

/// Fails when a program needs a library that a bare machine lacks.
fn linked(program: &Path) -> Result<()> {
    let listing = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    let needs =
        |line: &&str| NOT_LINKED.iter().any(|name| line.trim_start().starts_with(&format!("lib{name}")));
    let wrong: Vec<&str> = listing.lines().filter(needs).collect();
    ensure!(wrong.is_empty(), "{} is linked with {}", program.display(), wrong.join(", "));
    print!("== {} needs only:\n{listing}", program.display());
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    std::fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return copy(from, to);
    }
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        copy_all(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// A script that unpacks what follows it.
fn pack(root: &Path, folder: &Path, output: &Path) -> Result<()> {
    let within = folder.parent().context("the bundle's folder has a parent")?;
    let packed = within.join("burnish-gpu.tar.xz");
    let mut tar = Command::new("tar");
    tar.current_dir(within).env("XZ_OPT", "-9e -T1").args(["--sort=name", "--owner=0", "--group=0", "-cJf"]);
    ensure!(step::run("packing", tar.arg(&packed).arg("burnish-gpu"))?, "tar failed; it needs xz (xz-utils)");
    let head = std::fs::read(root.join("xtask/gpu-bundle/unpack.sh")).context("cannot read unpack.sh")?;
    let mut file = File::create(output).with_context(|| format!("cannot write {}", output.display()))?;
    file.write_all(&head)?;
    file.write_all(&std::fs::read(&packed)?)?;
    file.set_permissions(Permissions::from_mode(0o755))?;
    std::fs::remove_file(&packed)?;
    Ok(())
}
