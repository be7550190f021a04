//! Lines and recipes as they are published, on the small model.

use crate::program::{burnish, fails, metrics, model, ok, rows, sft, stderr};

#[test]
fn a_published_line_runs_as_it_stands() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let recipe = root.path().join("recipe.yaml");
    let copy = root.path().join("copy.jsonl");
    std::fs::copy(rows("text.jsonl"), &copy).unwrap();
    let text = format!(
        "model_name_or_path: {}\nmodel_revision: main\ntorch_dtype: null\nattn_implementation: flash_attention_2\n\
         dataset_mixer: {{{}: 0.5, {}: 1.0}}\ndataset_splits: [train]\npreprocessing_num_workers: 12\n\
         chat_template: \"{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}{{% endfor %}}\"\n\
         system_prompt: Be brief.\nevaluation_strategy: 'no'\ngradient_checkpointing_kwargs: {{use_reentrant: false}}\n\
         hub_model_id: me/mine\nlog_level: info\nmax_seq_length: 32\nmax_grad_norm: null\nreport_to: [wandb]\n\
         save_strategy: no\n",
        model().display(),
        rows("text.jsonl").display(),
        copy.display(),
    );
    std::fs::write(&recipe, text).unwrap();
    let line = format!(
        "ACCELERATE_LOG_LEVEL=info accelerate launch --config_file zero2.yaml --num_processes=1 scripts/run_sft.py {} \
         --output_dir={} --max_steps=2 --push_to_hub --no_remove_unused_columns",
        recipe.display(),
        out.display()
    );
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    // Whatever token this machine has, nothing is uploaded.
    let output =
        burnish().args(&words).env("HF_HUB_OFFLINE", "1").env("WANDB_DIR", root.path()).output().unwrap();
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    for part in ["60 rows", "push_to_hub: HF_HUB_OFFLINE is set", "`wandb sync ", "zero2.yaml is not there"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(
        metrics(&out).iter().any(|record| record.get("loss").is_some() || record.get("train_loss").is_some())
    );
    let record = std::fs::read_to_string(out.join("burnish.json")).unwrap();
    assert!(record.contains("\"zero_stage\": 2") && record.contains("\"weight\": 0.5"), "{record}");
}

#[test]
fn a_name_of_the_hub_that_is_no_folder_is_named() {
    let words = ["sft", "--model_name_or_path", "nobody/nothing", "--dataset_name", "nobody/rows"];
    fails(&words.map(str::to_owned), &["nobody/nothing"]);
    let words = ["trl", "env"].map(str::to_owned);
    fails(&words, &["there is no command `trl`"]);
    assert!(ok(&["--help".to_owned()]).contains("sft"));
}

#[test]
fn a_batch_that_does_not_fit_is_made_smaller() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let words = ["--max_steps=1", "--auto_find_batch_size", "--per_device_train_batch_size=100000000"];
    let output = burnish().args(sft(&out, "text.jsonl", &words)).output().unwrap();
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("rows per micro-batch instead of 100000000, for which the plan counts"), "{said}");
    assert!(said.contains("gradient_accumulation_steps stays"), "{said}");
    // What fits stays, and is not spoken of; a resumed run takes what its checkpoint was made with.
    let (first, again) = (root.path().join("first"), root.path().join("again"));
    let fits = ["--auto_find_batch_size", "--save_strategy=steps", "--save_steps=1"];
    let run = |out: &std::path::Path, more: &[&str]| {
        let words: Vec<&str> = fits.iter().chain(more).copied().collect();
        let output = burnish().args(sft(out, "text.jsonl", &words)).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    assert!(!run(&first, &["--max_steps=1", "--per_device_train_batch_size=3"]).contains("auto_find"));
    let resume = format!("--resume_from_checkpoint={}", first.join("checkpoint-1").display());
    let said = run(&again, &["--max_steps=2", "--per_device_train_batch_size=7", &resume]);
    assert!(said.contains("3 rows per micro-batch, as the checkpoint was made with"), "{said}");
}

#[test]
fn evaluation_before_the_first_step() {
    let root = tempfile::tempdir().unwrap();
    let eval = format!("--eval_dataset_name={}", rows("prompt_completion_eval.jsonl").display());
    let records = |name: &str, more: &[&str]| {
        let out = root.path().join(name);
        let words: Vec<&str> =
            [&["--max_steps=2", "--eval_strategy=steps", "--eval_steps=2", &eval], more].concat();
        ok(&sft(&out, "prompt_completion.jsonl", &words));
        metrics(&out)
    };
    let (with, without) = (records("with", &["--eval_on_start"]), records("without", &[]));
    let evaluated = |records: &[serde_json::Value]| -> Vec<serde_json::Value> {
        records.iter().filter(|r| r.get("eval_loss").is_some()).map(|r| r["step"].clone()).collect()
    };
    assert_eq!(evaluated(&with), [0, 2]);
    assert_eq!(evaluated(&without), [2]);
    assert_eq!(with[1..], without[..]);
}
