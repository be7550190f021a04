//! Flags in every spelling.

use burnish_config::help::{nearest_command, options_page, overview};
use burnish_config::table::COMMANDS;
use burnish_config::values::{Resume, Steps};
use burnish_config::{Command, GenerateOptions, Invocation, SftOptions};
use burnish_peft::{Init, Targets};

use crate::scratch::Scratch;

#[test]
fn names_and_values_in_every_spelling() {
    let scratch = Scratch::new();
    for words in [
        ["--learning_rate", "1e-4"].as_slice(),
        &["--learning-rate", "1e-4"],
        &["--learning_rate=1e-4"],
        &["--learning-rate=0.0001"],
        &["--learning_rate", "1", "--learning_rate", "1e-4"],
    ] {
        assert_eq!(scratch.sft(words).unwrap().options.training.learning_rate, 1e-4, "{words:?}");
    }
    assert_eq!(scratch.sft(&["--max_steps", "-1"]).unwrap().options.training.max_steps, -1);
}

#[test]
fn inits_of_adapters() {
    let scratch = Scratch::new();
    for (word, init) in [
        ("true", Init::Default),
        ("False", Init::Random),
        ("gaussian", Init::Gaussian),
        ("orthogonal", Init::Orthogonal),
        ("pissa", Init::Pissa { iterations: None }),
        ("pissa_niter_16", Init::Pissa { iterations: Some(16) }),
        ("olora", Init::Olora),
        ("mica", Init::Mica),
        ("eva", Init::Eva),
        ("corda", Init::Corda),
        ("lora_ga", Init::LoraGa),
    ] {
        let options =
            scratch.sft(&["--use_peft", "--use_dora", "--init_lora_weights", word]).unwrap().options;
        assert_eq!((options.lora.init_lora_weights, options.lora.use_dora), (init, true), "{word}");
        assert_eq!(init.to_string(), word.to_lowercase());
    }
    for word in ["pissa_niter_", "pissa_niter_x", "new"] {
        assert!(scratch.sft(&["--use_peft", "--init_lora_weights", word]).is_err(), "{word}");
    }
    assert!(scratch.sft(&["--use_peft", "--lora_r", "3", "--init_lora_weights", "orthogonal"]).is_err());
    let loftq = ["--use_peft", "--load_in_8bit", "--init_lora_weights", "loftq"];
    let config = |more: &[&str]| {
        let options = scratch.sft(&[&loftq[..], more].concat()).unwrap().options;
        assert_eq!(options.lora.init_lora_weights, Init::Loftq);
        options.lora.config(std::path::Path::new("base")).rest["loftq_config"].to_string()
    };
    assert_eq!(config(&["--loftq_config", r#"{"loftq_bits": 8}"#]), r#"{"loftq_bits":8}"#);
    let eva = ["--use_peft", "--init_lora_weights", "eva", "--eva_config", r#"{"rho": 1.5}"#];
    let options = scratch.sft(&eva).unwrap().options;
    assert_eq!(options.lora.config(std::path::Path::new("base")).rest["eva_config"]["rho"], 1.5);
    for (words, parts) in [
        (&["--eva_config", r#"{"rho": 1.5}"#][..], ["eva_config", "init_lora_weights: true"]),
        (&["--init_lora_weights", "corda", "--init_lora_rows", "0"], ["init_lora_rows", "at least 1"]),
    ] {
        let said = scratch.sft(&[&["--use_peft"], words].concat()).unwrap_err().to_string();
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[test]
fn switches_in_every_spelling() {
    let scratch = Scratch::new();
    for (words, expected) in [
        (["--packing"].as_slice(), true),
        (&["--packing", "true"], true),
        (&["--packing=True"], true),
        (&["--packing", "--no-packing"], false),
        (&["--no_packing"], false),
        (&["--no-packing", "--seed", "1"], false),
        (&["--packing", "false"], false),
        (&["--packing=no"], false),
        (&["--no-packing=false"], true),
    ] {
        assert_eq!(scratch.sft(words).unwrap().options.packing.packing, expected, "{words:?}");
    }
    // Switches whose default is unset take the same words.
    let options = scratch.sft(&["--no-completion-only-loss", "--disable_tqdm"]).unwrap().options;
    assert_eq!(options.preparation.completion_only_loss, Some(false));
    assert_eq!(options.logging.disable_tqdm, Some(true));
}

#[test]
fn lists_in_every_spelling() {
    let scratch = Scratch::new();
    let names = Targets::List(vec!["q_proj".into(), "v_proj".into()]);
    for (words, expected) in [
        (["--lora_target_modules", "q_proj", "v_proj"].as_slice(), &names),
        (&["--lora_target_modules", "q_proj,v_proj"], &names),
        (&["--lora_target_modules=q_proj,v_proj"], &names),
        (&["--lora_target_modules", "[\"q_proj\", \"v_proj\"]"], &names),
        (&["--lora_target_modules", "all-linear"], &Targets::Pattern("all-linear".into())),
        (&["--lora_target_modules", r".*\.(q|v)_proj"], &Targets::Pattern(r".*\.(q|v)_proj".into())),
        (&["--lora_target_modules", r"[^.]*.{1,2}_proj"], &Targets::Pattern(r"[^.]*.{1,2}_proj".into())),
        (&["--lora_target_modules", "q_proj"], &Targets::List(vec!["q_proj".into()])),
    ] {
        let mut all = words.to_vec();
        all.push("--use_peft");
        let options = scratch.sft(&all).unwrap().options;
        assert_eq!(options.lora.lora_target_modules.as_ref(), Some(expected), "{words:?}");
    }
    let words = ["--use_peft", "--layers_to_transform", "0", "2", "--rank_pattern", "{\"q_proj\": 4}"];
    let options = scratch.sft(&words).unwrap().options;
    assert_eq!(options.lora.layers_to_transform, [0, 2]);
    assert_eq!(options.lora.rank_pattern["q_proj"], 4);
    let ranges = "[[0, 2], [1, 3]]";
    for words in [&["--layer_replication", ranges][..], &[&format!("--layer_replication={ranges}")]] {
        let words = [&["--use_peft"], words].concat();
        assert_eq!(scratch.sft(&words).unwrap().options.lora.layer_replication.0, [(0, 2), (1, 3)]);
    }
    for wrong in ["[[0, 2, 4]]", "[0, 2]", "0,2", "{}"] {
        let error = scratch.sft(&["--use_peft", "--layer_replication", wrong]).unwrap_err().to_string();
        assert!(error.contains("layer_replication: expected a list of pairs"), "{wrong}: {error}");
    }
}

#[test]
fn nothing_is_a_value() {
    let scratch = Scratch::new();
    for word in ["null", "None", "none"] {
        assert_eq!(scratch.sft(&["--max_length", word]).unwrap().options.preparation.max_length, None);
    }
    // As a prompt it is text.
    let model = scratch.path("model");
    let words = ["--model_name_or_path", model.as_str(), "--prompt", "None"];
    let generate = GenerateOptions::parse(words).unwrap().run().unwrap();
    assert_eq!(generate.options.prompts.prompt.0.as_deref(), Some("None"));
}

#[test]
fn resuming() {
    let scratch = Scratch::new();
    let checkpoint = scratch.path("adapter");
    for (words, expected) in [
        (["--resume_from_checkpoint", "true"].as_slice(), Resume::Newest),
        (&["--resume_from_checkpoint=True"], Resume::Newest),
        (&["--resume_from_checkpoint", "false"], Resume::No),
        (&["--resume_from_checkpoint", &checkpoint], Resume::From(checkpoint.clone().into())),
        (&[], Resume::No),
    ] {
        assert_eq!(scratch.sft(words).unwrap().options.training.resume_from_checkpoint, expected);
    }
}

#[test]
fn shares_of_the_run() {
    let scratch = Scratch::new();
    let options = scratch.sft(&["--logging_steps", "0.1", "--warmup_ratio", "0.03"]).unwrap().options;
    assert_eq!(options.logging.logging_steps, Steps(0.1));
    assert_eq!(options.logging.logging_steps.of(205), 21);
    assert_eq!(options.training.warmup_of(100), 3);
}

#[test]
fn what_was_written_is_recorded_in_reading_order() {
    let scratch = Scratch::new();
    let resolved =
        scratch.sft(&["--learning_rate", "1e-4", "--lora_target_modules=all-linear", "--use_peft"]).unwrap();
    let written: Vec<String> =
        resolved.written().into_iter().skip(2).map(|(name, value)| name + "=" + &value).collect();
    assert_eq!(written, ["use_peft=true", "lora_target_modules=all-linear", "learning_rate=0.0001"]);
}

#[test]
fn the_overview_names_every_command() {
    for command in COMMANDS {
        assert!(overview().contains(command.about), "{}", command.name);
    }
    assert_eq!(nearest_command("generat"), Some("generate"));
    assert_eq!(nearest_command("sfl"), Some("sft"));
    assert_eq!(nearest_command("train"), None);
}

#[test]
fn help_names_every_option_of_every_command() {
    let reference = options_page();
    for command in COMMANDS {
        for entry in (command.entries)() {
            assert!(reference.contains(&format!("`{}`", entry.name)), "{}: {}", command.name, entry.name);
            assert!(entry.doc.len() > 10, "{}: {} has no line of help", command.name, entry.name);
        }
    }
    let help = |words: &[&str]| match SftOptions::parse(words.iter().copied()) {
        Ok(Invocation::Help(help)) => help,
        other => panic!("--help was not taken as a request for help: {other:?}"),
    };
    let brief = help(&["--seed", "1", "--help"]);
    assert!(brief.lines().count() < 30 && brief.lines().all(|line| line.len() <= 140), "{brief}");
    assert!(brief.contains("--model_name_or_path PATH (required)"), "{brief}");
    assert_eq!(help(&["--help", "packing"]), help(&["-h", "Packing"]));
    assert!(help(&["--help", "learning-rate"]).starts_with("  --learning_rate FLOAT [2e-5]"));
    let wrong = SftOptions::parse(["--help", "lorra"]).unwrap_err().to_string();
    assert!(wrong.contains("`lorra`") && wrong.contains("did you mean `LoRA`"), "{wrong}");
    let help = help(&["--help", "all"]);
    assert!(help.contains("--learning_rate FLOAT [2e-5]"), "{help}");
    assert!(help.contains("--model_name_or_path PATH (required)"), "{help}");
    assert!(help.contains("--packing_strategy bfd|bfd_split|wrapped [bfd]"), "{help}");
}
