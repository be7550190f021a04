//! The floors of the workspace (ARCHITECTURE.md): dependencies point down.

use serde_json::Value;

/// Floor of each package. Tests may also use crates of their own floor.
const FLOORS: &[(&str, u32)] = &[
    ("burnish-core", 0),
    ("burnish-cpu-kernels", 0),
    ("burnish-gpu-kernels", 0),
    ("faults", 0),
    ("ptx", 0),
    ("loopback-hub", 0),
    ("recordings", 0),
    ("shared-features", 0),
    ("fake-cuda", 1),
    ("burnish-weight-files", 1),
    ("burnish-device", 1),
    ("burnish-ops", 1),
    ("burnish-comm", 1),
    ("burnish-hub", 1),
    ("burnish-quant", 1),
    ("burnish-rewards", 1),
    ("burnish-gguf", 2),
    ("burnish-losses", 2),
    ("burnish-optim", 2),
    ("burnish-peft", 2),
    ("burnish-tensor-comm", 2),
    ("burnish-tp", 2),
    ("burnish-data", 2),
    ("burnish-report", 2),
    ("burnish-checkpoint", 2),
    ("burnish-models", 3),
    ("burnish-zero", 3),
    ("burnish-config", 4),
    ("burnish-serve", 5),
    ("burnish-trainers", 5),
    ("burnish-checks", 6),
    ("burnish-cli", 6),
    ("fuzz-entries", 6),
    ("xtask", 6),
];

/// `core` lies below `kernels` although both are on the ground floor: it holds only names. `transit` is how `tp` and what
/// lies above it give tensors to collectives.
const WITHIN_A_FLOOR: &[(&str, &str)] = &[
    ("burnish-cpu-kernels", "burnish-core"),
    ("burnish-gpu-kernels", "burnish-core"),
    ("burnish-tp", "burnish-tensor-comm"),
];

fn floor_of(name: &str) -> Option<u32> {
    FLOORS.iter().find(|(known, _)| *known == name).map(|(_, floor)| *floor)
}

/// Packages without a floor, and dependencies that do not point down.
pub(super) fn complaints(packages: &[Value]) -> Vec<String> {
    let names: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut complaints = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(floor) = floor_of(name) else {
            complaints
                .push(format!("{name} has no floor; add it to xtask/src/tidy/floors.rs and ARCHITECTURE.md"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = dependency["name"].as_str().unwrap_or_default();
            if !names.contains(&other) {
                continue;
            }
            let test_only = dependency["kind"] == "dev";
            let allowed = WITHIN_A_FLOOR.contains(&(name, other))
                || floor_of(other).is_none_or(|below| below < floor || (test_only && below == floor));
            if !allowed {
                complaints.push(format!(
                    "{name} (floor {floor}) depends on {other} (floor {}); a crate may name only crates on lower floors",
                    floor_of(other).unwrap_or_default()
                ));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn packages(dependency: &str, kind: Option<&str>) -> Vec<Value> {
        let dependencies = json!([{"name": dependency, "kind": kind}, {"name": "serde", "kind": null}]);
        vec![
            json!({"name": "burnish-losses", "dependencies": dependencies}),
            json!({"name": "burnish-ops", "dependencies": []}),
            json!({"name": "burnish-optim", "dependencies": []}),
            json!({"name": "burnish-models", "dependencies": []}),
        ]
    }

    #[test]
    fn edges_point_down() {
        assert!(complaints(&packages("burnish-ops", None)).is_empty());
        assert!(complaints(&packages("burnish-optim", Some("dev"))).is_empty());
        for (dependency, kind) in
            [("burnish-optim", None), ("burnish-models", None), ("burnish-models", Some("dev"))]
        {
            assert_eq!(complaints(&packages(dependency, kind)).len(), 1, "{dependency} {kind:?}");
        }
    }

    #[test]
    fn every_package_has_a_floor() {
        let complaints = complaints(&[json!({"name": "burnish-new", "dependencies": []})]);
        assert!(complaints[0].contains("has no floor"), "{complaints:?}");
    }
}
