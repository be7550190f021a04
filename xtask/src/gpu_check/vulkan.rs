//! Checks on a software driver of Vulkan: the arithmetic of kernels without CUDA.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Options;
use crate::step::built;

/// Folders where drivers' descriptions lie.
const FOLDERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
/// How descriptions of drivers that compute on the processor are called: lavapipe's and SwiftShader's.
const SOFTWARE: [&str; 2] = ["lvp_icd", "vk_swiftshader"];
/// What to install where there is none.
pub(super) const MISSING: &str = "there is no software driver of Vulkan: install lavapipe (Debian's mesa-vulkan-drivers), or \
                                  name a driver's description by VK_ICD_FILENAMES";

/// A program that checks on a driver.
pub(super) struct Vulkan {
    program: PathBuf,
    driver: PathBuf,
}

impl Vulkan {
    /// Builds the program, where a driver is.
    pub(super) fn new(root: &Path, options: &Options, output: &Path) -> Result<Option<Self>> {
        let Some(driver) = driver() else { return Ok(None) };
        let program = match &options.vulkan_bin {
            Some(program) => program.canonicalize().with_context(|| program.display().to_string())?,
            None => {
                let built = built(
                    root,
                    &["-p", "burnish-checks", "--features", "burnish-checks/wgpu"],
                    "burnish-check",
                )?;
                // The build with CUDA has the same place.
                let aside = output.join("burnish-check-wgpu");
                fs::copy(&built, &aside).with_context(|| aside.display().to_string())?;
                aside
            }
        };
        Ok(Some(Self { program, driver }))
    }

    /// What it checks with.
    pub(super) fn driver(&self) -> &Path {
        &self.driver
    }

    /// The program; it finds that driver alone.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.arg(super::machine::HUNG).arg(&self.program);
        command.env("VK_ICD_FILENAMES", &self.driver).env("VK_DRIVER_FILES", &self.driver);
        command
    }
}

/// The description of a driver: what the loader's variables name, or a software driver in the usual folders.
fn driver() -> Option<PathBuf> {
    let named = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].into_iter().filter_map(env::var_os);
    let named: Vec<PathBuf> = named.flat_map(|list| env::split_paths(&list).collect::<Vec<_>>()).collect();
    named
        .into_iter()
        .find(|file| file.is_file())
        .or_else(|| FOLDERS.iter().find_map(|folder| software(Path::new(folder))))
}

/// A software driver's description in a folder.
fn software(folder: &Path) -> Option<PathBuf> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    all.sort();
    let named = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        SOFTWARE.iter().any(|known| name.starts_with(known)) && name.ends_with(".json")
    };
    all.into_iter().find(named)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn software_drivers_are_found_by_name() {
        let folder = std::env::temp_dir().join(format!("burnish-vulkan-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(software(&folder), None);
        for name in ["intel_icd.x86_64.json", "lvp_icd.x86_64.json", "lvp_icd.txt"] {
            fs::write(folder.join(name), "{}").unwrap();
        }
        assert_eq!(software(&folder), Some(folder.join("lvp_icd.x86_64.json")));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(software(&folder), None);
    }
}
