//! TRL's `RepeatSampler`, case by case, and what a trainer adds: batches, epochs, resuming.

use burnish_data::{Cursor, GroupSampler, Order};

use crate::cases::{golden, numbers};

fn known(case: &serde_json::Value) -> Result<(), String> {
    if case["shuffle"] == false { Ok(()) } else { Err("it shuffles, with PyTorch's generator".to_owned()) }
}

#[test]
fn repeats_as_trl() {
    for (i, case) in golden("repeat_sampler.json", known).iter().enumerate() {
        let known = ["n", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "out"];
        for key in case.as_object().unwrap().keys() {
            assert!(known.contains(&key.as_str()), "case {i}: an unknown kind of case, {key}");
        }
        assert_eq!(case["shuffle"], false, "case {i}: an unknown kind of case");
        let count = |key: &str| usize::try_from(case[key].as_u64().unwrap()).unwrap();
        let or_one = |key: &str| if case.get(key).is_some() { count(key) } else { 1 };
        let sampler = GroupSampler::new(count("n"), Order::Sequential, 0)
            .prompts(or_one("batch_size"))
            .generations(count("mini_repeat_count"))
            .repeats(or_one("repeat_count"));
        assert_eq!(sampler.epoch(0), numbers::<usize>(&case["out"]), "case {i}");
    }
}

#[test]
fn batches_are_the_epochs_chunks() {
    let sampler = GroupSampler::new(17, Order::Random, 7).prompts(4).generations(3).repeats(2);
    let batches: Vec<_> = sampler.batches(Cursor::default()).unwrap().take(8).collect();
    for (epoch, chunk) in batches.chunks(4).enumerate() {
        let mut rows = Vec::new();
        for batch in chunk {
            assert_eq!(batch.completions(), 12);
            rows.extend(batch.rows());
            rows.extend(batch.rows());
        }
        assert_eq!(rows, sampler.epoch(epoch as u64));
        let mut prompts: Vec<usize> = chunk.iter().flat_map(|b| b.prompts.clone()).collect();
        prompts.sort_unstable();
        prompts.dedup();
        assert_eq!(prompts.len(), 16, "a prompt comes once an epoch");
        assert_eq!(chunk.iter().map(|b| b.ends_epoch).collect::<Vec<_>>(), [false, false, false, true]);
    }
    assert_ne!(sampler.epoch(0), sampler.epoch(1));
    assert_ne!(
        sampler.epoch(0),
        GroupSampler::new(17, Order::Random, 8).prompts(4).generations(3).repeats(2).epoch(0)
    );
}

#[test]
fn a_run_resumes_anywhere() {
    let sampler = GroupSampler::new(11, Order::Random, 3).prompts(2).generations(2);
    let whole: Vec<_> = sampler.batches(Cursor::default()).unwrap().take(12).collect();
    let mut run = sampler.batches(Cursor::default()).unwrap();
    for done in 0..12 {
        let rest: Vec<_> = sampler.batches(run.cursor()).unwrap().take(12 - done).collect();
        assert_eq!(rest, whole[done..]);
        run.next();
    }
    let wrong = sampler.batches(Cursor { epoch: 0, index: 3 }).unwrap_err().to_string();
    assert!(wrong.contains("row 3 of an epoch, this data set has 10 rows"), "{wrong}");
}

#[test]
fn sizes_that_make_no_batch() {
    let plain = GroupSampler::new(3, Order::Random, 0);
    for (sampler, option) in [
        (plain.prompts(0), "generation_batch_size"),
        (plain.generations(0), "num_generations"),
        (plain.repeats(0), "steps_per_generation"),
        (plain.prompts(4), "fewer prompts"),
    ] {
        let message = sampler.batches(Cursor::default()).unwrap_err().to_string();
        assert!(message.contains(option), "{message}");
    }
}
