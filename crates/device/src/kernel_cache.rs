//! The kernel cache: compiled kernels in a folder, so that the next process need not compile them.
//!
//! CubeCL asks its environment for a kernel before it compiles one, and keeps what it compiled in an environment that has a
//! name (`vendor/cubecl-server`). It is given one here, for each version of the compiler, which is none that the driver
//! cannot read (`cuda::Installation::compiler`); within it kernels are told apart by the program's build and the GPU's
//! architecture. What is read from it runs on the GPU in this user's name, so the folder has to be this user's own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::DeviceError;

/// Names the folder; empty or `0` for none.
pub(crate) const VARIABLE: &str = "BURNISH_KERNEL_CACHE";
/// How the names of its environments begin; the compiler's version follows.
const ENVIRONMENT: &str = "nvrtc-";
/// Bytes that it may have before what was written first goes.
const ROOM: u64 = 512 << 20;

/// Has kernels kept from now on, as a compiler of this version makes them. The first call decides, and none does where
/// the program or its `cubecl.toml` names an environment of CubeCL's itself.
///
/// # Errors
/// [`DeviceError::KernelCache`] if the folder that the environment names is of no use; of the usual one nothing is said.
#[cfg(feature = "cuda")]
pub(crate) fn keep((major, minor): (i32, i32)) -> Result<(), DeviceError> {
    use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig as _};
    use cubecl::environment;

    static ONCE: std::sync::Once = std::sync::Once::new();

    let Some(folder) = opened()? else { return Ok(()) };
    ONCE.call_once(|| {
        // Which sets the environment, and would later set it anew.
        CubeClRuntimeConfig::get();
        if *environment::active() == *environment::DEFAULT {
            make_room(&folder, ROOM);
            environment::activate(format!("{ENVIRONMENT}{major}.{minor}"));
            environment::set_root(folder);
        }
    });
    Ok(())
}

/// The folder, made if it was not there. None where none is wanted, or the usual one cannot be had.
///
/// # Errors
/// As [`keep`].
pub(crate) fn opened() -> Result<Option<PathBuf>, DeviceError> {
    let (folder, asked) = match chosen(|name| std::env::var_os(name)) {
        Choice::None => return Ok(None),
        Choice::Asked(folder) => (folder, true),
        Choice::Usual(folder) => (folder, false),
    };
    match own(&folder) {
        Ok(()) => Ok(Some(folder)),
        Err(why) if asked => Err(DeviceError::KernelCache { folder, why }),
        Err(_) => Ok(None),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Choice {
    None,
    Asked(PathBuf),
    Usual(PathBuf),
}

fn chosen(variable: impl Fn(&str) -> Option<OsString>) -> Choice {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match variable(VARIABLE) {
        Some(said) if said.is_empty() || said == "0" => return Choice::None,
        Some(said) => return Choice::Asked(PathBuf::from(said)),
        None => {}
    }
    let caches = path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")));
    caches.map_or(Choice::None, |caches| Choice::Usual(caches.join("burnish/kernels")))
}

/// Makes the folder, and says why it is not this user's alone to write in.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn own(folder: &Path) -> Result<(), String> {
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};

    if folder.is_file() {
        return Err("it is a file".to_owned());
    }
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let found = made.and_then(|()| std::fs::metadata(folder)).map_err(|error| error.to_string())?;
    // SAFETY: it has no arguments, touches no memory and cannot fail.
    let user = unsafe { libc::geteuid() };
    if found.uid() != user || found.mode() & 0o022 != 0 {
        return Err("others than this user can write in it".to_owned());
    }
    Ok(())
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn own(_: &Path) -> Result<(), String> {
    Err("whose a folder is cannot be asked on this system".to_owned())
}

/// Bytes of the kernels in a folder.
pub(crate) fn size(folder: &Path) -> u64 {
    kernels(folder).iter().map(|file| file.bytes).sum()
}

struct Kernel {
    path: PathBuf,
    bytes: u64,
    written: SystemTime,
}

/// The kernels in a folder, whole ones and those whose writing was cut off; nothing else that may lie there.
fn kernels(folder: &Path) -> Vec<Kernel> {
    let entries =
        |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let of_compiler = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(ENVIRONMENT))
    };
    let is_one = |path: &PathBuf| path.extension().is_some_and(|end| end == "artifact" || end == "partial");
    let files = entries(folder.to_owned()).filter(of_compiler).flat_map(entries).flat_map(entries);
    let found = files.filter(is_one).filter_map(|path| {
        let data = std::fs::symlink_metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
        let written = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Some(Kernel { path, bytes: data.len(), written })
    });
    found.collect()
}

/// Removes the kernels that were written first, until half of `room` is left of what had grown beyond it.
fn make_room(folder: &Path, room: u64) {
    let mut kernels = kernels(folder);
    let mut held: u64 = kernels.iter().map(|file| file.bytes).sum();
    if held <= room {
        return;
    }
    kernels.sort_by_key(|file| file.written);
    for file in kernels {
        if held <= room / 2 {
            break;
        }
        // Another process may have removed it.
        let _ = std::fs::remove_file(&file.path);
        held -= file.bytes;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_variable_s_or_the_user_s() {
        let with = |set: &[(&str, &str)]| {
            chosen(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
        };
        let usual = |path: &str| Choice::Usual(PathBuf::from(path));
        assert_eq!(with(&[]), Choice::None);
        assert_eq!(with(&[("HOME", "/u")]), usual("/u/.cache/burnish/kernels"));
        assert_eq!(with(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")]), usual("/x/burnish/kernels"));
        assert_eq!(with(&[("HOME", "/u"), (VARIABLE, "/k")]), Choice::Asked(PathBuf::from("/k")));
        assert_eq!(with(&[("HOME", "/u"), (VARIABLE, "0")]), Choice::None);
        assert_eq!(with(&[("HOME", "/u"), (VARIABLE, "")]), Choice::None);
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_folder_that_others_can_write_in_is_none() {
        use std::os::unix::fs::PermissionsExt as _;

        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        assert_eq!(own(&folder), Ok(()));
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(own(&folder).unwrap_err().contains("others"));
        std::fs::write(root.path().join("file"), "").unwrap();
        assert!(own(&root.path().join("file/below")).is_err());
    }

    #[test]
    fn what_was_written_first_makes_room() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("nvrtc-12.8/cuda");
        std::fs::create_dir_all(&folder).unwrap();
        let at = |second| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(second);
        let write = |path: PathBuf, second| {
            let file = std::fs::File::create(path).unwrap();
            file.set_len(100).unwrap();
            file.set_modified(at(second)).unwrap();
        };
        for (name, second) in [("b.artifact", 2), ("a.partial", 1), ("c.artifact", 3), ("d.artifact", 4)] {
            write(folder.join(name), second);
        }
        // What is no kernel is nobody's to remove, whatever folder was named.
        let others =
            [folder.join("notes"), root.path().join("x.artifact"), root.path().join("nvrtc-12.8/y.artifact")];
        others.iter().for_each(|path| write(path.clone(), 0));
        make_room(root.path(), 400);
        assert_eq!(size(root.path()), 400);
        make_room(root.path(), 399);
        assert_eq!(size(root.path()), 100);
        assert!(folder.join("d.artifact").exists() && others.iter().all(|path| path.exists()));
    }
}
