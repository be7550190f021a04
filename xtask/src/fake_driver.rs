//! The driver and NCCL that need no device (`tests/fake-cuda`), as libraries in a folder of the loader's path.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::step::built;

/// All names that the library is looked for by; the first is the driver's.
pub(crate) const NAMES: [&str; 4] = ["libcuda.so.1", "libcuda.so", "libnccl.so.2", "libnccl.so"];

/// Builds the library; its file.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    built(root, &["-p", "fake-cuda"], "fake_cuda")
}

/// Links the library into a folder under some of its names, in the place of links that are there.
#[cfg(unix)]
pub(crate) fn link(library: &Path, folder: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let place = folder.join(name);
        if place.is_symlink() {
            std::fs::remove_file(&place)?;
        }
        std::os::unix::fs::symlink(library, place)?;
    }
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn link(_library: &Path, _folder: &Path, _names: &[&str]) -> Result<()> {
    anyhow::bail!("the driver without a device needs Linux")
}
