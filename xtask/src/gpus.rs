//! Detection of NVIDIA GPUs from device files; nothing of CUDA is loaded.

use std::path::{Path, PathBuf};

/// The GPUs that a CUDA program would see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gpus {
    /// None, and how that was seen.
    None(String),
    Found(usize),
}

/// Where the driver's library lies, besides `LD_LIBRARY_PATH`.
const LIBRARIES: [&str; 9] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/compat",
    "lib/x86_64-linux-gnu",
    "run/opengl-driver/lib",
    "usr/lib/wsl/lib",
];

impl Gpus {
    /// Those of this machine that `CUDA_VISIBLE_DEVICES` leaves.
    pub(crate) fn here() -> Self {
        let folders = std::env::var_os("LD_LIBRARY_PATH");
        let folders: Vec<PathBuf> =
            folders.map(|all| std::env::split_paths(&all).collect()).unwrap_or_default();
        Self::under(Path::new("/"), &folders, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())
    }

    /// Those of the machine whose root folder is `root`; `folders` are searched for the driver's library first.
    fn under(root: &Path, folders: &[PathBuf], visible: Option<&str>) -> Self {
        let library =
            |folder: PathBuf| folder.join("libcuda.so.1").exists() || folder.join("libcuda.so").exists();
        let library =
            folders.iter().cloned().any(library) || LIBRARIES.iter().any(|at| library(root.join(at)));
        // A container has the nodes of its own GPUs; /proc names all of the host's. WSL has neither.
        let nodes = entries(&root.join("dev"), |name| {
            name.strip_prefix("nvidia")
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        });
        let listed = entries(&root.join("proc/driver/nvidia/gpus"), |_| true);
        let wsl = usize::from(root.join("dev/dxg").exists());
        let driver = root.join("proc/driver/nvidia/version").exists() || wsl > 0;
        let count = [nodes, listed, wsl].into_iter().find(|&count| count > 0).unwrap_or(0);
        if !driver && count == 0 {
            return Self::None(
                "no NVIDIA driver is loaded (no /proc/driver/nvidia, no /dev/nvidia0)".to_owned(),
            );
        }
        if count == 0 {
            return Self::None(
                "the NVIDIA driver is loaded, but no GPU is given here (no /dev/nvidia0)".to_owned(),
            );
        }
        if !library {
            let why =
                "the driver's library libcuda.so.1 is in none of the usual folders nor in LD_LIBRARY_PATH";
            return Self::None(why.to_owned());
        }
        match visible.map(left) {
            Some(0) => {
                Self::None(format!("CUDA_VISIBLE_DEVICES={:?} hides every GPU", visible.unwrap_or_default()))
            }
            Some(left) => Self::Found(left.min(count)),
            None => Self::Found(count),
        }
    }
}

/// Devices that `CUDA_VISIBLE_DEVICES` names: as CUDA reads it, a list that ends at the first -1 or empty entry.
fn left(visible: &str) -> usize {
    visible.split(',').map(str::trim).take_while(|entry| !entry.is_empty() && *entry != "-1").count()
}

/// How many entries a folder has whose names fit; none if it cannot be read.
fn entries(folder: &Path, fits: impl Fn(&str) -> bool) -> usize {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    names.filter(|entry| entry.file_name().to_str().is_some_and(&fits)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine: a root folder with these files, taken away at the end.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, files: &[&str]) -> Self {
            let root = std::env::temp_dir().join(format!("burnish-gpus-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&root).expect("a folder");
            let machine = Self(root);
            for file in files {
                let path = machine.0.join(file);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                std::fs::write(path, "").expect("a file");
            }
            machine
        }

        fn gpus(&self, visible: Option<&str>) -> Gpus {
            Gpus::under(&self.0, &[], visible)
        }

        fn lacks(&self, visible: Option<&str>) -> String {
            match self.gpus(visible) {
                Gpus::None(why) => why,
                Gpus::Found(count) => panic!("{count} GPUs found"),
            }
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const DRIVER: &str = "proc/driver/nvidia/version";
    const LIBRARY: &str = "usr/lib/x86_64-linux-gnu/libcuda.so.1";

    #[test]
    fn a_machine_without_a_driver_a_gpu_or_the_library_has_none() {
        assert!(Machine::new("bare", &["dev/null"]).lacks(None).contains("no NVIDIA driver is loaded"));
        let idle = Machine::new("idle", &[DRIVER, LIBRARY, "dev/nvidiactl", "dev/nvidia-uvm"]);
        assert!(idle.lacks(None).contains("no GPU is given here"));
        let mute = Machine::new("mute", &[DRIVER, "dev/nvidia0"]);
        assert!(mute.lacks(None).contains("libcuda.so.1"));
        let folder = mute.0.join("opt");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("libcuda.so.1"), "").expect("a file");
        assert_eq!(Gpus::under(&mute.0, &[folder], None), Gpus::Found(1));
    }

    #[test]
    fn gpus_are_those_given_and_visible() {
        let files = [
            DRIVER,
            LIBRARY,
            "dev/nvidiactl",
            "dev/nvidia0",
            "dev/nvidia1",
            "dev/nvidia-uvm",
            "proc/driver/nvidia/gpus/0/information",
            "proc/driver/nvidia/gpus/1/information",
            "proc/driver/nvidia/gpus/2/information",
        ];
        let machine = Machine::new("two", &files);
        assert_eq!(machine.gpus(None), Gpus::Found(2));
        assert_eq!(machine.gpus(Some("1")), Gpus::Found(1));
        assert_eq!(machine.gpus(Some("0,1,2,3")), Gpus::Found(2));
        assert_eq!(machine.gpus(Some("0,-1,1")), Gpus::Found(1));
        for hidden in ["", "-1", " "] {
            assert!(machine.lacks(Some(hidden)).contains("hides every GPU"), "{hidden:?}");
        }
        let bare = Machine::new("listed", &[DRIVER, LIBRARY, "proc/driver/nvidia/gpus/0/information"]);
        assert_eq!(bare.gpus(None), Gpus::Found(1));
        assert_eq!(
            Machine::new("wsl", &["dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"]).gpus(None),
            Gpus::Found(1)
        );
    }
}
