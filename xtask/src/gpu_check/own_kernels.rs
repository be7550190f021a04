//! The kept table of burnish's own kernels: which of them are meant for tensor cores, and what they may spill on any
//! hardware that is asked for.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Where their source is.
const SOURCE: &str = "crates/gpu-kernels/src";
/// Hardware that they are assembled for beside that of the checks, as far as it is no older: NVRTC's text is of the hardware
/// that it was asked for.
pub(super) const TARGETS: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Own {
    /// Its function's name, with which its entry point begins.
    pub(super) name: &'static str,
    /// Whether products in it are those of tensor cores.
    pub(super) tensor_cores: bool,
    /// Bytes that a thread may keep in memory: what the worst variant does now. `ptxas` keeps them there to have one more cube on a
    /// multiprocessor (80 registers are three cubes of 256 units, 128 two, 168 three of 128). Asked for one cube alone
    /// (`.minnctapersm 1`, which CubeCL does not write) it spills nothing but in `of_keys` and `of_queries`, whose loops it then
    /// unrolls further.
    pub(super) spills: u32,
    /// Hardware that it is assembled for.
    pub(super) targets: &'static [&'static str],
}

const fn plain(name: &'static str) -> Own {
    Own { name, tensor_cores: false, spills: 0, targets: &TARGETS }
}

const fn by_cores(name: &'static str) -> Own {
    Own { tensor_cores: true, ..plain(name) }
}

impl Own {
    const fn spilling(self, spills: u32) -> Self {
        Self { spills, ..self }
    }

    /// With instructions of some hardware alone.
    const fn only(self, targets: &'static [&'static str]) -> Self {
        Self { targets, ..self }
    }
}

/// All of them.
pub(super) const OWN: [Own; 65] = [
    plain("a_block_of_each"),
    plain("add_pairs"),
    plain("add_parts"),
    plain("attend").spilling(24),
    by_cores("attend_by_cores").spilling(36),
    by_cores("attend_by_warpgroups").only(&["sm_90a"]),
    plain("backward"),
    plain("blocks_of_logits"),
    plain("by_codes_of_experts").spilling(24),
    by_cores("by_columns").spilling(8),
    plain("by_few_places"),
    plain("by_few_rows"),
    by_cores("by_rows"),
    plain("cast_tensors"),
    plain("choose"),
    plain("choose_backward"),
    plain("clamped_forward"),
    plain("columns_of"),
    plain("combine"),
    plain("copy"),
    plain("count_places"),
    plain("forward"),
    plain("gathered"),
    plain("gradient"),
    plain("join"),
    plain("join_parts"),
    plain("masked"),
    by_cores("multiply_by_cores").spilling(8),
    plain("multiply_by_units"),
    by_cores("multiply_by_warpgroups").only(&["sm_90a"]),
    plain("multiply_codes").spilling(16),
    plain("of_channels"),
    plain("of_chunks").spilling(8),
    plain("of_keys").spilling(60),
    by_cores("of_keys_by_cores").spilling(80),
    by_cores("of_keys_by_warpgroups").only(&["sm_90a"]).spilling(160),
    plain("of_queries").spilling(4),
    by_cores("of_queries_by_cores").spilling(4),
    by_cores("of_queries_by_warpgroups").only(&["sm_90a"]),
    plain("of_rows"),
    plain("of_sinks"),
    plain("of_weights"),
    plain("parts_of"),
    plain("place"),
    plain("put"),
    plain("put_decayed"),
    plain("row_sums"),
    plain("scan").spilling(8),
    plain("scan_back"),
    plain("scan_chunks"),
    plain("scattered"),
    plain("sort_places"),
    plain("squares_of_parts"),
    plain("sum_of_row"),
    plain("sum_parts"),
    plain("sum_probabilities"),
    plain("through_gate"),
    plain("through_silu"),
    plain("unplace").spilling(16),
    plain("update"),
    plain("walk").spilling(8),
    plain("walk_back").spilling(24),
    plain("weigh"),
    plain("weigh_backward"),
    plain("widened"),
];

/// The kernel that an entry point is of. Behind its name stands a parameter of one letter, or CubeCL's digest: others may begin
/// as it does (`copy_kernel_t_f32`).
pub(super) fn of_module(stem: &str) -> Option<Own> {
    let of = |own: &&Own| {
        let next = stem.strip_prefix(own.name)?.strip_prefix('_')?.split(['_', '-']).next()?;
        let digest = next.len() == 8 && next.bytes().all(|byte| byte.is_ascii_hexdigit());
        (next.len() == 1 || digest).then_some(())
    };
    OWN.iter().find(|own| of(own).is_some()).copied()
}

/// Kernels in the source that the table lacks.
pub(super) fn unlisted(root: &Path) -> Result<Vec<String>> {
    let folder = root.join(SOURCE);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut missing = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                missing.extend(
                    kernels(&text).filter(|name| !OWN.iter().any(|own| own.name == *name)).map(str::to_owned),
                );
            }
        }
    }
    missing.sort();
    Ok(missing)
}

/// Names of functions that are launched.
fn kernels(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[cube(launch").skip(1).filter_map(|rest| {
        let name = rest.split("fn ").nth(1)?;
        Some(&name[..name.find(|c: char| !c.is_alphanumeric() && c != '_')?])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_by_what_launches_them() {
        let text = "#[cube]\nfn helper() {}\n#[cube(launch, address_type = \"dynamic\")]\npub(crate) fn rows<N: Size>(x: &[f32]) {}\n\
                    #[cube(launch_unchecked)]\nfn more(y: u32) {}";
        assert_eq!(kernels(text).collect::<Vec<_>>(), ["rows", "more"]);
    }

    #[test]
    fn entry_points_are_told_by_what_stands_behind_their_name() {
        assert_eq!(of_module("forward_i_bf16_n_8_024f2c38-f53f").map(|own| own.name), Some("forward"));
        assert_eq!(of_module("attend_by_cores_024f2c38-f53f").map(|own| own.tensor_cores), Some(true));
        assert_eq!(of_module("attend_i_bf16_024f2c38-f53f").map(|own| own.tensor_cores), Some(false));
        assert_eq!(of_module("forwarded_i_bf16"), None);
        assert_eq!(of_module("copy_kernel_t_f32_n_1_024f2c38-f53f"), None);
        assert_eq!(of_module("elemwise_fuse_024f2c38"), None);
    }
}
