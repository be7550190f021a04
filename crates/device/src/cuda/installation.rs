//! `Installation`: the paths of NVRTC, CUDA's headers and NCCL, in a toolkit or in the wheels that PyTorch installs.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::nvrtc::sys;
use libloading::Library;

use crate::DeviceError;

/// Names of NVRTC that the interface serves, newest first.
const COMPILERS: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// A header that every kernel in half precision includes.
const HEADER: &str = "cuda_bf16.h";

/// Folders of libraries within a root.
const LIBRARIES: [&str; 4] = ["lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu"];

/// What of CUDA is installed.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Folders that may hold `include` and `lib`, in the order of preference.
    pub roots: Vec<PathBuf>,
}

impl Installation {
    /// Looks at the environment and the usual places.
    #[must_use]
    pub fn find() -> Self {
        let mut roots: Vec<PathBuf> = ["CUDA_PATH", "CUDA_HOME"]
            .iter()
            .filter_map(std::env::var_os)
            .map(PathBuf::from)
            .chain(["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from))
            .collect();
        roots.extend(wheels(&pythons()));
        if Path::new("/usr/include").join(HEADER).exists() {
            roots.push(PathBuf::from("/usr"));
        }
        Self { roots }
    }

    fn searched(&self) -> String {
        self.roots.iter().map(|root| root.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// The root whose `include` holds the headers: what CUDA_PATH must name.
    ///
    /// # Errors
    /// [`DeviceError::NoHeaders`].
    pub fn headers(&self) -> Result<&Path, DeviceError> {
        let holds = |root: &&PathBuf| root.join("include").join(HEADER).exists();
        let found = self.roots.iter().find(holds);
        found.map(PathBuf::as_path).ok_or_else(|| DeviceError::NoHeaders { searched: self.searched() })
    }

    /// Loads NVRTC, from the loader's path or from a root, for the rest of the process. Gives its version.
    ///
    /// # Errors
    /// [`DeviceError::NoCompiler`].
    pub fn compiler(&self) -> Result<(i32, i32), DeviceError> {
        static LOADED: OnceLock<Vec<Library>> = OnceLock::new();
        let found = LOADED.get_or_init(|| self.library(&COMPILERS));
        // SAFETY: as above.
        if found.is_empty() || !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoCompiler { searched: self.searched() });
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library was loaded; it writes two numbers.
        unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        Ok((major, minor))
    }
}

/// NCCL's name.
const COLLECTIVES: [&str; 1] = ["libnccl.so.2"];

impl Installation {
    /// Loads NCCL for the rest of the process, where it is in the loader's path or in a root: it is then found by its name.
    /// What is missing is said by whoever looks for it.
    pub fn load_nccl(&self) {
        static LOADED: OnceLock<Vec<Library>> = OnceLock::new();
        LOADED.get_or_init(|| self.library(&COLLECTIVES));
    }

    /// The first library of these names, in the loader's path or in a root, there with what lies beside it for it. They stay
    /// loaded for as long as they are kept, and are found by their names then, wherever they lay.
    fn library(&self, names: &[&str]) -> Vec<Library> {
        // SAFETY: the initialisers of NVIDIA's libraries have no conditions.
        let load = |name: &Path| unsafe { Library::new(name) }.ok();
        if let Some(found) = names.iter().find_map(|name| load(Path::new(name))) {
            return vec![found];
        }
        let folders = self.roots.iter().flat_map(|root| LIBRARIES.map(|folder| root.join(folder)));
        for folder in folders {
            // NVRTC opens its companion by name, for which nothing searches a wheel's folder.
            let companions = entries(&folder).into_iter().filter(|file| named(file, "libnvrtc-builtins.so"));
            if let Some(found) = names.iter().find_map(|name| load(&folder.join(name))) {
                return companions.filter_map(|file| load(&file)).chain([found]).collect();
            }
        }
        Vec::new()
    }
}

/// Folders of packages of the Python installations that the environment names or that are usual.
fn pythons() -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    // The interpreter that the shell would start.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let interpreter =
        std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|file| file.exists());
    let interpreter = interpreter.and_then(|file| Some(file.parent()?.parent()?.to_path_buf()));
    let user = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local"));
    let usual = ["/usr/local", "/usr"].map(PathBuf::from);
    let mut packages = Vec::new();
    for prefix in environments.chain(interpreter).chain(user).chain(usual) {
        for folder in entries(&prefix.join("lib")).into_iter().filter(|f| named(f, "python3")) {
            packages.extend(["site-packages", "dist-packages"].map(|name| folder.join(name)));
        }
    }
    packages.dedup();
    packages
}

/// NVIDIA's wheels: a folder per package (CUDA 12) or one for all (`cu13`).
fn wheels(packages: &[PathBuf]) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    for folder in packages.iter().map(|packages| packages.join("nvidia")) {
        let mut found = entries(&folder);
        found.retain(|root| ["cu1", "cuda_", "nccl"].iter().any(|start| named(root, start)));
        found.sort_unstable_by(|a, b| b.cmp(a));
        roots.extend(found);
    }
    roots
}

fn named(path: &Path, start: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(start))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn headers_of_wheels_are_found_and_missing_ones_say_where_they_were_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let packages = folder.path().join("lib/python3.12/site-packages");
        let include = packages.join("nvidia/cuda_runtime/include");
        std::fs::create_dir_all(&include).unwrap();
        std::fs::create_dir_all(packages.join("nvidia/cublas/lib")).unwrap();
        let roots = wheels(&[packages.clone()]);
        assert_eq!(roots, [packages.join("nvidia/cuda_runtime")]);
        let installation = Installation { roots };
        let error = installation.headers().unwrap_err().to_string();
        assert!(error.contains("nvidia/cuda_runtime") && error.contains("CUDA_PATH"), "{error}");
        std::fs::write(include.join(HEADER), "").unwrap();
        assert_eq!(installation.headers().unwrap(), packages.join("nvidia/cuda_runtime"));
    }
}
