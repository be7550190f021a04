//! Every recording that lies in a given folder is replayed, or known not to be yet.

use std::path::PathBuf;

/// Replayed by the crate named; or by none, since what they are of is not there yet (README).
const KNOWN: [(&str, Option<&str>); 16] = [
    ("README.md", None),
    ("advantages.json", Some("losses")),
    ("chunked_logprob.json", Some("kernels, losses")),
    ("collator_lm.json", Some("data")),
    ("cpo.json", None),
    ("dpo.json", Some("losses")),
    ("gkd_jsd.json", None),
    ("grpo.json", Some("losses")),
    ("kto.json", Some("losses")),
    ("moe_load_balancing.json", None),
    ("orpo.json", None),
    ("packing.json", Some("data")),
    ("repeat_sampler.json", Some("data")),
    ("reward.json", Some("losses")),
    ("rloo.json", Some("losses")),
    ("sft.json", Some("losses")),
];

#[test]
fn no_golden_file_is_passed_over_in_silence() {
    let Some(root) = std::env::var_os("BURNISH_RECORDINGS").map(PathBuf::from) else {
        println!("BURNISH_RECORDINGS is not set: there is no folder to look through");
        return;
    };
    let Ok(folder) = std::fs::read_dir(root.join("golden")) else {
        println!("{}: no golden recordings there", root.display());
        return;
    };
    for name in folder.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()) {
        let known = KNOWN.iter().find(|(known, _)| *known == name);
        match known.unwrap_or_else(|| panic!("golden/{name}: an unknown kind of recording")).1 {
            Some(replayed) => println!("golden/{name}: replayed by {replayed}"),
            None => println!("golden/{name}: not replayed, burnish does not compute this yet"),
        }
    }
}
