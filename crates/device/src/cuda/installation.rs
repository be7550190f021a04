//! `Installation`: the paths of NVRTC, CUDA's headers and NCCL, in a toolkit or in the wheels that PyTorch installs.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::nvrtc::sys;
use libloading::Library;

use crate::DeviceError;

/// Names of NVRTC that the interface serves, newest first.
const COMPILERS: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Headers that kernels include, of three of NVIDIA's packages: numbers of 16 bits, products of tensor cores, and what
/// cooperative groups ask of the target. `crt/mma.h` and `nv/target` are in no wheel that PyTorch brings for CUDA 12.
const HEADERS: [&str; 3] = ["cuda_bf16.h", "crt/mma.h", "nv/target"];

/// A version of NVRTC that ends the process: 12.9.86 uses a null pointer when it is to keep line numbers of a program
/// without a name, which is what CubeCL gives it. Its third number cannot be asked for.
const BROKEN: (i32, i32) = (12, 9);

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
        if Path::new("/usr/include").join(HEADERS[0]).exists() {
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
    /// [`DeviceError::NoHeaders`], with what is missing in the best place that there is.
    pub fn headers(&self) -> Result<&Path, DeviceError> {
        let lacks = |root: &PathBuf| -> Vec<&'static str> {
            let include = root.join("include");
            // CubeCL gives NVRTC `include/cccl` as well.
            let held = |name: &&str| include.join(name).exists() || include.join("cccl").join(name).exists();
            HEADERS.into_iter().filter(|name| !held(name)).collect()
        };
        let best = self.roots.iter().map(|root| (lacks(root), root)).min_by_key(|(lacking, _)| lacking.len());
        match best {
            Some((lacking, root)) if lacking.is_empty() => Ok(root),
            best => {
                let missing = best.map_or_else(|| HEADERS.to_vec(), |(lacking, _)| lacking);
                Err(DeviceError::NoHeaders { searched: self.searched(), missing: missing.join(", ") })
            }
        }
    }

    /// Loads NVRTC, from the loader's path or from a root, for the rest of the process. Gives its version.
    ///
    /// `driver` is CUDA's version that the driver serves, as 1000 × major + 10 × minor: what a newer NVRTC writes it
    /// cannot read.
    ///
    /// # Errors
    /// [`DeviceError::NoCompiler`] where there is none, [`DeviceError::UnusableCompiler`] where none will do.
    pub fn compiler(&self, driver: Option<i32>) -> Result<(i32, i32), DeviceError> {
        static LOADED: OnceLock<Vec<Library>> = OnceLock::new();
        let fits = |version: (i32, i32)| unfit(version, driver).is_none();
        let found = LOADED.get_or_init(|| {
            let fitting = self.library(&COMPILERS, &|library| compiler_version(library).is_some_and(fits));
            if fitting.is_empty() { self.library(&COMPILERS, &|_| true) } else { fitting }
        });
        // SAFETY: as above.
        if found.is_empty() || !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoCompiler { searched: self.searched() });
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library was loaded; it writes two numbers.
        unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        match unfit((major, minor), driver) {
            None => Ok((major, minor)),
            Some(why) => Err(DeviceError::UnusableCompiler { got: 1000 * major + 10 * minor, why }),
        }
    }
}

/// Why a version of NVRTC is of no use.
fn unfit((major, minor): (i32, i32), driver: Option<i32>) -> Option<String> {
    if (major, minor) == BROKEN {
        return Some("ends the process with the first kernel that it compiles (12.9.86 does)".to_owned());
    }
    let newest = driver.filter(|newest| 1000 * major + 10 * minor > *newest)?;
    Some(format!("writes what the driver, which serves CUDA {}, cannot read", crate::error::version(newest)))
}

/// The version of a loaded NVRTC.
fn compiler_version(library: &Library) -> Option<(i32, i32)> {
    type Ask = unsafe extern "C" fn(*mut i32, *mut i32) -> i32;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the function has this signature in every version.
    let ask = unsafe { library.get::<Ask>(b"nvrtcVersion") }.ok()?;
    // SAFETY: it writes two numbers.
    (unsafe { ask(&raw mut major, &raw mut minor) } == 0).then_some((major, minor))
}

/// NCCL's name.
const COLLECTIVES: [&str; 1] = ["libnccl.so.2"];

impl Installation {
    /// Loads NCCL for the rest of the process, where it is in the loader's path or in a root: it is then found by its name.
    /// What is missing is said by whoever looks for it.
    pub fn load_nccl(&self) {
        static LOADED: OnceLock<Vec<Library>> = OnceLock::new();
        LOADED.get_or_init(|| self.library(&COLLECTIVES, &|_| true));
    }

    /// The first library of these names that `fits`, in the loader's path or in a root, there with what lies beside it for
    /// it. They stay loaded for as long as they are kept, and are found by their names then, wherever they lay.
    fn library(&self, names: &[&str], fits: &dyn Fn(&Library) -> bool) -> Vec<Library> {
        // SAFETY: the initialisers of NVIDIA's libraries have no conditions.
        let any = |name: &Path| unsafe { Library::new(name) }.ok();
        let load = |name: &Path| any(name).filter(|library| fits(library));
        if let Some(found) = names.iter().find_map(|name| load(Path::new(name))) {
            return vec![found];
        }
        let folders = self.roots.iter().flat_map(|root| LIBRARIES.map(|folder| root.join(folder)));
        for folder in folders {
            // NVRTC opens its companion by name, for which nothing searches a wheel's folder.
            let companions = entries(&folder).into_iter().filter(|file| named(file, "libnvrtc-builtins.so"));
            if let Some(found) = names.iter().find_map(|name| load(&folder.join(name))) {
                return companions.filter_map(|file| any(&file)).chain([found]).collect();
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
        let roots = wheels(std::slice::from_ref(&packages));
        assert_eq!(roots, [packages.join("nvidia/cuda_runtime")]);
        let installation = Installation { roots };
        let error = installation.headers().unwrap_err().to_string();
        assert!(error.contains("nvidia/cuda_runtime") && error.contains("CUDA_PATH"), "{error}");
        assert!(error.contains("(cuda_bf16.h, crt/mma.h, nv/target)"), "{error}");
        // What PyTorch's wheels have is not enough.
        std::fs::write(include.join("cuda_bf16.h"), "").unwrap();
        let error = installation.headers().unwrap_err().to_string();
        assert!(error.contains("(crt/mma.h, nv/target)"), "{error}");
        for (folder, name) in [("crt", "mma.h"), ("cccl/nv", "target")] {
            std::fs::create_dir_all(include.join(folder)).unwrap();
            std::fs::write(include.join(folder).join(name), "").unwrap();
        }
        assert_eq!(installation.headers().unwrap(), packages.join("nvidia/cuda_runtime"));
    }

    #[test]
    fn a_compiler_must_be_no_newer_than_the_driver() {
        assert_eq!(unfit((12, 8), Some(12_080)), None);
        assert_eq!(unfit((13, 2), None), None);
        assert!(unfit((13, 0), Some(12_080)).unwrap().contains("CUDA 12.8"));
        assert!(unfit((12, 9), Some(13_000)).unwrap().contains("ends the process"));
    }
}
