//! GRPO and RLOO: the same on any layout, stopped or not, and clear where they cannot run.

use std::path::Path;

use serde_json::Value;

use crate::preferences::{LORA, number};
use crate::program::{fails, metrics, model, ok, rows, run_example};
use crate::ranks::close_within;
use crate::resume::goes_on;

pub(crate) fn words(command: &str, output: &Path, more: &[&str]) -> Vec<String> {
    let mut words = vec![
        command.to_owned(),
        format!("--model_name_or_path={}", model().display()),
        format!("--dataset_name={}", rows("prompt_completion.jsonl").display()),
        format!("--output_dir={}", output.display()),
    ];
    let common = [
        "--per_device_train_batch_size=2",
        "--num_generations=4",
        "--max_completion_length=24",
        "--reward_funcs=length_reward",
        "--length_scale=-0.1",
        "--learning_rate=1e-3",
        "--logging_steps=1",
        "--beta=0.1",
    ];
    words.extend(common.iter().chain(more).map(|word| (*word).to_owned()));
    words
}

/// Everything that several ranks log, whatever it is.
#[track_caller]
fn close_figures(what: &str, one: &Path, many: &Path) {
    for (a, b) in metrics(one).iter().zip(metrics(many)) {
        for (name, a) in a.as_object().unwrap() {
            let known = ["reward", "completions/", "kl", "entropy", "clip_ratio", "num_tokens"];
            if known.iter().any(|part| name.contains(part)) {
                let (a, b) = (a.as_f64().unwrap(), number(&b, name));
                assert!((a - b).abs() <= 2e-5 * a.abs().max(1.0), "{what}: {name}: {a} and {b}");
            }
        }
    }
}

/// One rank, then others: (ranks, tp_size, zero_stage).
pub(crate) fn check(command: &str, common: &[&str], meshes: &[(usize, usize, u8)]) {
    let root = tempfile::tempdir().unwrap();
    let mut all = vec!["--max_steps=4", "--global_batch_size=8", "--save_strategy=no"];
    all.extend(["--stage3_param_persistence_threshold=50"]);
    all.extend(common);
    let one = root.path().join("one");
    ok(&words(command, &one, &all));
    for &(nproc, tp, stage) in meshes {
        let many = root.path().join(format!("{nproc}-{tp}-{stage}"));
        let given = [format!("--nproc={nproc}"), format!("--tp_size={tp}"), format!("--zero_stage={stage}")];
        let given: Vec<&str> = all.iter().copied().chain(given.iter().map(String::as_str)).collect();
        ok(&words(command, &many, &given));
        let what = format!("{command} {common:?} on {nproc} ranks, tp {tp}, stage {stage}");
        // RLOO's ratios are exponentials of sums over whole completions, which processors add up in different orders.
        close_within(if command == "rloo" { 1e-4 } else { 1e-5 }, &what, &one, &many);
        close_figures(&what, &one, &many);
    }
}

/// Elements whose gradients cancel move by rounding alone, if the epsilon does not stop them.
const SMALL: [&str; 1] = ["--adam_epsilon=1e-4"];
const MESHES: [(usize, usize, u8); 3] = [(2, 1, 2), (2, 2, 0), (4, 2, 3)];

#[test]
fn completions_train_alike_on_every_layout() {
    check("grpo", &LORA, &MESHES);
    check("rloo", &[&LORA[..], &SMALL].concat(), &MESHES[2..]);
    check("grpo", &SMALL, &MESHES[2..]);
    // Adapters that act from a token on, which prompts have, and completions may have again.
    check("grpo", &[&LORA[..], &["--alora_invocation_tokens=71"]].concat(), &MESHES[1..]);
}

/// Several steps and passes on what was sampled once; a quantile of all tokens; a bonus that follows the entropy.
#[test]
fn what_looks_at_the_whole_step_does_not_depend_on_its_layout() {
    let late = ["--generation_batch_size=16", "--num_iterations=2", "--max_steps=6", "--adam_epsilon=1e-4"];
    check("grpo", &[&late[..], &["--top_entropy_quantile=0.5"]].concat(), &[(3, 1, 0), (4, 2, 3)]);
    let bonus = ["--use_adaptive_entropy", "--entropy_coef=0.01", "--entropy_target=9", "--loss_type=bnpo"];
    check("grpo", &[&bonus[..], &["--adam_epsilon=1e-4"]].concat(), &[(4, 2, 3)]);
}

/// An adapter in bf16's company: fp32 factors over a bf16 base, gathered together.
#[test]
fn adapters_over_a_bf16_base_equal_one_rank_after_ten_steps() {
    for command in ["grpo", "rloo"] {
        let more = ["--max_steps=10", "--dtype=auto"];
        check(command, &[&LORA[..], &SMALL, &more].concat(), &[(4, 2, 3)]);
    }
}

/// The sampler and the first pass are one model: their log-probabilities differ in rounding, and no ratio is clipped.
#[test]
fn the_first_pass_is_on_policy() {
    let root = tempfile::tempdir().unwrap();
    for (name, more) in [
        ("lora", &LORA[..]),
        ("cut", &["--temperature=0.7", "--top_k=7", "--repetition_penalty=1.3"]),
        ("divided", &["--nproc=4", "--tp_size=2", "--zero_stage=3"]),
        ("bf16", &["--dtype=bfloat16"]),
    ] {
        let out = root.path().join(name);
        ok(&words(
            "grpo",
            &out,
            &[&["--max_steps=3", "--save_strategy=no", "--per_device_train_batch_size=8"], more].concat(),
        ));
        for line in metrics(&out) {
            assert!(number(&line, "sampling/sampling_logp_difference/max") < 1e-4, "{name}: {line}");
            assert_eq!(number(&line, "clip_ratio/region_mean"), 0.0, "{name}: {line}");
        }
    }
}

/// A copy in int8 samples: near the policy, corrected for by GRPO, alike on every layout, and with the same end of training.
#[test]
fn a_sampler_in_int8_is_corrected_for() {
    let root = tempfile::tempdir().unwrap();
    let run = |command: &str, name: &str, more: &[&str]| {
        let out = root.path().join(name);
        let common = ["--max_steps=4", "--save_strategy=no", "--global_batch_size=8"];
        ok(&words(command, &out, &[&LORA[..], &common, more].concat()));
        metrics(&out)
    };
    let int8 = "--rollout_quantization=int8";
    let truncated = "--vllm_importance_sampling_mode=token_truncate";
    for (command, mode) in [("grpo", truncated), ("rloo", "--beta=0.1")] {
        let lines = run(command, command, &[int8, mode]);
        for line in &lines {
            let (mean, most) = (
                number(line, "sampling/sampling_logp_difference/mean"),
                number(line, "sampling/sampling_logp_difference/max"),
            );
            assert!(mean > 1e-5 && mean < 0.05 && most < 0.5, "{command}: {line}");
            let ratio = line.get("sampling/importance_sampling_ratio/mean");
            assert_eq!(ratio.is_some(), command == "grpo", "{command}: {line}");
            assert!(ratio.is_none_or(|ratio| (ratio.as_f64().unwrap() - 1.0).abs() < 0.1), "{line}");
        }
    }
    check("grpo", &[&LORA[..], &[int8, truncated]].concat(), &[(2, 1, 0), (2, 1, 3)]);
    let out = root.path().join("refused");
    let server = "--rollout_url=http://localhost:1/v1";
    fails(&words("grpo", &out, &[int8, server]), &["rollout_quantization", "rollout_url"]);
}

fn resumes(command: &str, more: &[&str]) {
    let more = [&["--log_completions"], more].concat();
    goes_on(|output, more| words(command, output, more), &more, Some("completions.jsonl"));
}

#[test]
fn stopping_and_going_on_equals_never_stopping() {
    // In the middle of what was sampled.
    resumes("grpo", &[&LORA[..], &["--steps_per_generation=8", "--lora_dropout=0.1"]].concat());
    resumes("grpo", &["--num_iterations=4", "--use_adaptive_entropy", "--entropy_coef=0.01"]);
    resumes("grpo", &["--sync_ref_model", "--ref_model_sync_steps=2", "--nproc=2", "--zero_stage=3"]);
    resumes("rloo", &[&LORA[..], &["--nproc=2", "--tp_size=2"]].concat());
}

#[test]
fn completions_are_written_with_their_rewards() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let more =
        ["--max_steps=2", "--save_strategy=no", "--log_completions", "--gradient_accumulation_steps=4"];
    ok(&words("grpo", &out, &more));
    let text = std::fs::read_to_string(out.join("completions.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 16);
    for group in lines.chunks(4) {
        assert!(group.iter().all(|line| line["prompt"] == group[0]["prompt"]));
        let sum: f64 = group.iter().map(|line| number(line, "advantage")).sum();
        assert!(sum.abs() < 1e-9, "{group:?}");
    }
    let rewards: f64 = lines[..8].iter().map(|line| line["rewards"]["length_reward"].as_f64().unwrap()).sum();
    let first = &metrics(&out)[0];
    assert!((rewards / 8.0 - number(first, "reward")).abs() < 1e-12, "{first}");
    assert_eq!(number(first, "reward"), number(first, "rewards/length_reward/mean"));
}

/// TRL's former RLOO: `scores[~contain_eos_token] -= missing_eos_penalty`.
#[test]
fn a_completion_without_an_end_loses_the_penalty() {
    let root = tempfile::tempdir().unwrap();
    let all = ["--max_steps=1", "--save_strategy=no", "--global_batch_size=16"];
    let first = |name: &str, more: &[&str]| {
        let out = root.path().join(name);
        ok(&words("rloo", &out, &[&all, more].concat()));
        metrics(&out).swap_remove(0)
    };
    let plain = first("plain", &[]);
    let cut = number(&plain, "completions/clipped_ratio");
    assert!(0.0 < cut && cut < 1.0, "some end and some do not: {plain}");
    let penalty = ["--missing_eos_penalty=0.75"];
    for (name, more) in [("one", &[][..]), ("four", &["--nproc=4", "--tp_size=2", "--zero_stage=3"])] {
        let with = first(name, &[&penalty, more].concat());
        let lost = number(&plain, "reward") - number(&with, "reward");
        assert!((lost - 0.75 * cut).abs() < 1e-6, "{name}: {lost}, {cut} of them cut off");
        assert!((number(&with, "rewards/missing_eos_penalty/mean") + lost).abs() < 1e-6, "{with}");
    }
    // `scores = where(contain_eos_token, scores, penalty_reward_value)`: none is worth more than the one given here.
    let instead = ["--non_eos_penalty", "--penalty_reward_value=-40.5"];
    let all_cut = ["--max_completion_length=2"];
    for (name, more) in [("instead", &[][..]), ("instead of four", &["--nproc=4", "--tp_size=2"])] {
        let with = first(name, &[&instead[..], &all_cut, more].concat());
        assert_eq!(number(&with, "completions/clipped_ratio"), 1.0, "{with}");
        assert!((number(&with, "reward") + 40.5).abs() < 1e-6, "{name}: {with}");
        let some = first(&format!("{name}, some"), &[&instead, more].concat());
        let (of_all, of_functions) = (number(&some, "reward"), number(&some, "rewards/length_reward/mean"));
        assert!(
            ((of_functions - of_all) - -number(&some, "rewards/non_eos_penalty/mean")).abs() < 1e-6,
            "{some}"
        );
    }
    // Where no function scored there is nothing to take it off.
    let blind =
        [&penalty[..], &["--per_device_train_batch_size=8", "--reward_funcs=exact_match_reward"]].concat();
    fails(&words("rloo", &root.path().join("blind"), &blind), &["no reward function could score"]);
}

#[test]
fn evaluation_draws_the_same_every_time() {
    let root = tempfile::tempdir().unwrap();
    let eval = format!("--eval_dataset_name={}", rows("prompt_completion.jsonl").display());
    let mut first = None;
    for (name, more) in [("one", &[][..]), ("two", &["--nproc=2"])] {
        let out = root.path().join(name);
        let all = ["--max_steps=2", "--eval_strategy=steps", "--eval_steps=1", "--learning_rate=0", &eval];
        ok(&words(
            "rloo",
            &out,
            &[&all[..], &["--save_strategy=no", "--global_batch_size=8"], more].concat(),
        ));
        let lines: Vec<Value> = metrics(&out).into_iter().filter(|l| l["eval_reward"].is_number()).collect();
        assert_eq!(lines.len(), 2);
        for line in lines {
            let found =
                ["eval_reward", "eval_completions/mean_length", "eval_loss"].map(|n| number(&line, n));
            let first = *first.get_or_insert(found);
            assert!(found.iter().zip(first).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {first:?}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let says = |more: &[&str], parts: &[&str]| fails(&words("grpo", &out, more), parts);
    says(&["--num_generations=1"], &["num_generations", "at least 2"]);
    says(&["--missing_eos_penalty=-1"], &["missing_eos_penalty", "above 0"]);
    says(&["--missing_eos_penalty=1", "--non_eos_penalty"], &["missing_eos_penalty", "keep one of the two"]);
    says(&["--num_generations=3"], &["generation batch of 2 completions", "num_generations 3"]);
    says(&["--generation_batch_size=8", "--steps_per_generation=2"], &["keep one of the two"]);
    says(&["--reward_weights=1,2"], &["reward_weights", "1 reward functions", "give one for each"]);
    says(&["--reward_funcs=lenght"], &["lenght", "length_reward"]);
    says(
        &["--zero_stage=3", "--no_ds3_gather_for_generation"],
        &["ds3_gather_for_generation", "leave it on"],
    );
    let blind = ["--per_device_train_batch_size=8", "--reward_funcs=exact_match_reward"];
    says(&blind, &["no reward function could score", "exact_match_reward", "solution"]);
    let few = ["--max_steps=2", "--per_device_train_batch_size=8", "--save_steps=1"];
    ok(&words("grpo", &out, &few));
    let other = ["--max_steps=3", "--num_generations=2", "--resume_from_checkpoint=true"];
    says(&[&few[1..], &other].concat(), &["cannot resume", "generation batches", "num_generations: 4"]);
    let mut none = words("grpo", &out, &[]);
    none.retain(|word| !word.starts_with("--reward_funcs"));
    fails(&none, &["nothing scores completions", "reward_funcs"]);
}

/// Right answers are twice as frequent after a few steps.
#[test]
fn the_example_learns_by_rewards() {
    let out = tempfile::tempdir().unwrap();
    for command in ["grpo", "rloo"] {
        let out = out.path().join(command);
        let config = format!("examples/{command}.yaml");
        // A quarter of its completions a step.
        let less = ["--max_steps=20", "--eval_strategy=no", "--gradient_accumulation_steps=1"];
        run_example(command, &config, &out, &less);
        let rewards: Vec<f64> = metrics(&out).iter().map(|line| number(line, "reward")).collect();
        assert!(rewards[0] < 0.2 && rewards[3] > 2.0 * rewards[0], "{command}: {rewards:?}");
        assert!(out.join("completions.jsonl").is_file() && out.join("reward.svg").is_file());
    }
}
