//! Hints at the end of a run: the commands that go on from its output.

use std::path::Path;

use crate::train::quoted;

/// The commands that go on from the output of a trainer over the model `base`.
pub(crate) fn after_training(trainer: &str, base: &str, output: &Path) -> String {
    let output = output.display().to_string();
    let line = |command: &str, words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        format!("\n  burnish {command} {}", quoted(&words))
    };
    let is_adapter = Path::new(&output).join("adapter_config.json").is_file();
    let mut said = "next:".to_owned();
    said += &match (trainer, is_adapter) {
        ("reward", true) => line("grpo", &["--reward_model_name_or_path", &output, "..."]),
        ("reward", false) => line("score", &["--model_name_or_path", &output, "--dataset_name", "..."]),
        (_, true) => {
            let merged = format!("{}-merged", output.trim_end_matches('/'));
            let over = ["--model_name_or_path", base, "--adapter_name_or_path", &output];
            line("chat", &[base, "--adapter_name_or_path", &output])
                + &line("merge", &[&over[..], &["--output_dir", &merged]].concat())
        }
        (_, false) => line("chat", &[&output]) + &line("serve", &["--model_name_or_path", &output]),
    };
    said + &line("watch", &[&output])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_is_next_depends_on_what_was_made() {
        let root = tempfile::tempdir().unwrap();
        let out = root.path().join("my run");
        std::fs::create_dir(&out).unwrap();
        let said = after_training("sft", "base", &out);
        assert!(said.contains(&format!("\n  burnish chat '{}'\n", out.display())), "{said}");
        std::fs::write(out.join("adapter_config.json"), "{}").unwrap();
        let said = after_training("sft", "base", &out);
        assert!(
            said.contains(&format!("\n  burnish chat base --adapter_name_or_path '{}'\n", out.display())),
            "{said}"
        );
        assert!(said.contains(&format!("--output_dir '{}-merged'\n", out.display())), "{said}");
        let said = after_training("reward", "base", &out);
        assert!(said.contains("burnish grpo") && !said.contains("chat"), "{said}");
    }
}
