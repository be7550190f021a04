//! Generated tokens equal Transformers', whoever else is in the batch.

use std::collections::BTreeSet;
use std::path::Path;

use burnish_core::Dtype;
use burnish_models::{
    Completion, ConfigFile, Decoder, Decoding, FinishReason, Generation, GenerationConfig, Model, ModelError,
    ModelFolder, Sampling, Tuning, first_maximum, load,
};
use burnish_peft::AdapterFolder;
use serde_json::{Value, json};

use crate::families::folders;
use crate::recordings::{close, device, fixtures, floats, ids, json as read_json, logits};

fn decoder(name: &str) -> Decoder {
    load(fixtures().join(name), &device()).unwrap().decoder
}

fn generate(model: &Decoder, prompts: &[Vec<u32>], options: &Generation) -> Vec<Completion> {
    model.generate(prompts, options, &mut |_, _| true).unwrap()
}

fn settings(folder: &Path) -> GenerationConfig {
    GenerationConfig::read(folder, &ConfigFile::read(folder).unwrap()).unwrap()
}

/// Four prompts of different lengths and a repeated one.
fn prompts() -> Vec<Vec<u32>> {
    vec![vec![3, 1, 4, 1, 5], vec![9], vec![2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2], vec![9], vec![38, 4, 6]]
}

fn sampled() -> Generation {
    let sampling = Sampling { do_sample: true, temperature: 1.5, seed: 11, ..Sampling::default() };
    Generation { max_new_tokens: 12, sampling, ..Generation::default() }
}

/// A stop token that `model`'s greedy completions of [`prompts`] meet at different steps.
fn stop_of(model: &Decoder, options: &Generation) -> u32 {
    let free = generate(model, &prompts(), options);
    free[0].token_ids[free[0].token_ids.len() / 2]
}

#[test]
fn greedy_tokens_equal_transformers() {
    let (mut cases, mut stopped) = (0, 0);
    for folder in folders() {
        let (model, settings) = (load(&folder, &device()).unwrap().decoder, settings(&folder));
        for case in read_json(&folder.join("expected.json"))["generate"].as_array().unwrap() {
            let wanted = ids(&case["tokens"]);
            let options = Generation {
                max_new_tokens: case["max_new_tokens"].as_u64().unwrap() as usize,
                sampling: Sampling {
                    repetition_penalty: case["repetition_penalty"].as_f64().unwrap() as f32,
                    ..settings.generation(0).sampling
                },
                ..settings.generation(0)
            };
            let got = generate(&model, &[ids(&case["prompt"])], &options).remove(0);
            assert_eq!(got.token_ids, wanted, "{}: {case}", folder.display());
            let stops = settings.stop.contains(wanted.last().unwrap());
            let reason = if stops { FinishReason::Stop } else { FinishReason::Length };
            assert_eq!(got.finish_reason, reason, "{}", folder.display());
            (cases, stopped) = (cases + 1, stopped + usize::from(stops));
        }
    }
    assert!(cases >= 48 && stopped >= 2, "{cases} cases, {stopped} met a stop token");
}

/// What ends a text is held back for so many tokens and comes where it would after them.
#[test]
fn least_lengths_equal_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/least_lengths.json");
    let (cases, mut stopped) = (read_json(&path), 0);
    for case in cases.as_array().unwrap() {
        let model = decoder(case["model"].as_str().unwrap());
        let count = |key: &str| case[key].as_u64().unwrap() as usize;
        let options = Generation {
            max_new_tokens: count("max_new_tokens"),
            min_new_tokens: count("min_new_tokens"),
            stop: ids(&case["eos_token_id"]),
            ..Generation::default()
        };
        let (got, wanted) =
            (generate(&model, &[ids(&case["prompt"])], &options).remove(0), ids(&case["tokens"]));
        assert_eq!(got.token_ids, wanted, "{case}");
        stopped += usize::from(got.finish_reason == FinishReason::Stop);
    }
    assert!(cases.as_array().unwrap().len() >= 8 && stopped >= 4, "{stopped} met a stop token");
}

/// Sampled rows of several lengths: each counts its own new tokens, and only they matter.
#[test]
fn least_lengths_hold_for_every_row_of_a_batch() {
    let model = decoder("llama");
    let free = generate(&model, &prompts(), &sampled());
    // What every row would say early; the last is beyond the vocabulary.
    let mut stop: Vec<u32> = free.iter().map(|c| c.token_ids[1]).collect();
    stop.push(1_000_000);
    let ended = |min_new_tokens: usize| {
        let options = Generation { min_new_tokens, stop: stop.clone(), ..sampled() };
        generate(&model, &prompts(), &options)
    };
    assert!(ended(0).iter().all(|c| c.token_ids.len() <= 2), "every row ends early when it may");
    for least in [3, 7, 12, 20] {
        let done = ended(least);
        for completion in &done {
            let (length, held) = (completion.token_ids.len(), least.min(12));
            assert!(length >= held, "{length} tokens, at least {held}");
            assert!(completion.token_ids[..held.min(length - 1)].iter().all(|t| !stop.contains(t)));
        }
        // The first token after the least length is free again.
        assert!(least >= 12 || done.iter().any(|c| c.token_ids.len() < 12), "at least {least}");
    }
}

/// Frequencies that follow the length, past the length they were trained on; batched, each row has its own.
#[test]
fn tokens_past_the_original_length_equal_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/past_original.json");
    let cases = read_json(&path);
    let options = |case: &Value| Generation {
        max_new_tokens: case["max_new_tokens"].as_u64().unwrap() as usize,
        ..Generation::default()
    };
    for pair in cases.as_array().unwrap().chunks(2) {
        let model = decoder(pair[0]["model"].as_str().unwrap());
        for case in pair {
            assert_eq!(case["model"], pair[0]["model"]);
            let got = generate(&model, &[ids(&case["prompt"])], &options(case));
            assert_eq!(got[0].token_ids, ids(&case["tokens"]), "{case}");
        }
        let prompts: Vec<Vec<u32>> = pair.iter().map(|c| ids(&c["prompt"])).collect();
        for (got, case) in generate(&model, &prompts, &options(&pair[0])).iter().zip(pair) {
            assert_eq!(got.token_ids, ids(&case["tokens"]), "batched: {case}");
        }
    }
    assert_eq!(cases.as_array().unwrap().len(), 6);
}

#[test]
fn cached_logits_equal_uncached() {
    for folder in folders() {
        let model = load(&folder, &device()).unwrap().decoder;
        if model.spec().depends_on_length() {
            continue; // Keys stay as they were rotated: the recorded tokens are the reference.
        }
        let vocab = model.spec().vocab;
        let rows = [vec![3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7], vec![5, 3, 5, 8, 9, 7, 9, 3, 2, 3]];
        let whole = logits(&model, &rows);
        let mut decoding = Decoding::new(&model, 2);
        assert!(decoding.is_empty());
        // Uneven pieces: a prompt, single tokens, several at once.
        for (a, b) in [(0..4, 0..1), (4..5, 1..2), (5..6, 2..8), (6..13, 8..9), (13..14, 9..10)] {
            let got = decoding.logits(&[&rows[0][a.clone()], &rows[1][b.clone()]]).unwrap();
            let what = format!("{}, tokens {a:?} and {b:?}", folder.display());
            close(&what, &got[..vocab], &whole[(a.end - 1) * vocab..a.end * vocab], 1e-5);
            close(&what, &got[vocab..], &whole[(13 + b.end) * vocab..(14 + b.end) * vocab], 1e-5);
        }
        assert_eq!((decoding.sequences(), decoding.len(0), decoding.len(1)), (2, 14, 10));
        assert!(decoding.bytes() > 0);
    }
}

#[test]
fn a_batch_equals_its_rows_one_by_one() {
    for folder in folders() {
        let model = load(&folder, &device()).unwrap().decoder;
        for options in [Generation { max_new_tokens: 12, ..Generation::default() }, sampled()] {
            for stop in [vec![], vec![stop_of(&model, &options)]] {
                let options = Generation { stop, ..options.clone() };
                let together = generate(&model, &prompts(), &options);
                for (row, prompt) in prompts().into_iter().enumerate() {
                    let alone = Generation { first_row: row as u64, ..options.clone() };
                    let alone = generate(&model, &[prompt], &alone).remove(0);
                    assert_eq!(together[row], alone, "{} row {row}", folder.display());
                }
            }
        }
    }
}

#[test]
fn draws_depend_on_seed_row_and_position() {
    let model = decoder("llama");
    let all = generate(&model, &prompts(), &sampled());
    assert_eq!(all, generate(&model, &prompts(), &sampled()), "the same again");
    assert_ne!(all[1], all[3], "one prompt in two rows");
    let seeded = |seed| Generation { sampling: Sampling { seed, ..sampled().sampling }, ..sampled() };
    assert_ne!(all, generate(&model, &prompts(), &seeded(12)));
    // Rows keep their draws when the list is split into calls, in any grouping.
    let from = |first: usize| Generation { first_row: first as u64, ..sampled() };
    let mut split = generate(&model, &prompts()[..2], &from(0));
    split.extend(generate(&model, &prompts()[2..], &from(2)));
    assert_eq!(all, split);
    let uniform = vec![0.0; 64];
    let drawn: Vec<u32> = (0..8).map(|p| sampled().sampling.next(&mut uniform.clone(), &[], 0, p)).collect();
    assert!(drawn.iter().any(|&t| t != drawn[0]), "{drawn:?}");
}

#[test]
fn finished_rows_leave_the_batch() {
    let model = decoder("llama");
    let options = Generation { max_new_tokens: 12, ..Generation::default() };
    let options = Generation { stop: vec![stop_of(&model, &options)], ..options };
    let mut heard = vec![Vec::new(); prompts().len()];
    let done = model
        .generate(&prompts(), &options, &mut |row, token| {
            heard[row].push(token);
            true
        })
        .unwrap();
    for (heard, done) in heard.iter().zip(&done) {
        assert_eq!(heard, &done.token_ids, "every token is told once, none after the end");
        let stopped = done.token_ids.last() == Some(&options.stop[0]);
        assert_eq!(done.finish_reason == FinishReason::Stop, stopped);
        assert!(stopped || done.token_ids.len() == 12);
        assert!(!done.token_ids[..done.token_ids.len() - 1].contains(&options.stop[0]));
    }
    let lengths: Vec<usize> = done.iter().map(|d| d.token_ids.len()).collect();
    assert!(lengths.iter().any(|&l| l != lengths[0]), "rows end at different steps: {lengths:?}");

    let mut decoding = Decoding::new(&model, 3);
    decoding.logits(&[vec![3, 1, 4], vec![1, 5], vec![9, 2]]).unwrap();
    let full = decoding.bytes();
    decoding.reorder(&[2, 0]).unwrap();
    assert!(decoding.bytes() < full);
    assert_eq!((decoding.sequences(), decoding.len(0), decoding.len(1)), (2, 2, 3));
    let vocab = model.spec().vocab;
    let got = decoding.logits(&[[6], [5]]).unwrap();
    let whole = logits(&model, &[vec![9, 2, 6], vec![3, 1, 4, 5]]);
    close("first", &got[..vocab], &whole[2 * vocab..3 * vocab], 1e-5);
    close("second", &got[vocab..], &whole[6 * vocab..], 1e-5);
}

#[test]
fn a_listener_ends_one_completion() {
    let model = decoder("llama");
    let options = Generation { max_new_tokens: 6, ..Generation::default() };
    let free = generate(&model, &prompts(), &options);
    let mut count = 0;
    let done = model
        .generate(&prompts(), &options, &mut |row, _| {
            count += usize::from(row == 2);
            row != 2 || count < 3
        })
        .unwrap();
    assert_eq!(
        (done[2].token_ids.as_slice(), done[2].finish_reason),
        (&free[2].token_ids[..3], FinishReason::Stop)
    );
    for row in [0, 1, 3, 4] {
        assert_eq!(done[row], free[row]);
    }
    assert_eq!(
        (FinishReason::Stop.to_string(), FinishReason::Length.to_string()),
        ("stop".into(), "length".into())
    );
}

/// Twenty prompts of several lengths, some of which follow each other in groups.
fn queue() -> Vec<Vec<u32>> {
    let prompt = |i: u32| (0..1 + i * 5 % 9).map(|t| (i * 11 + t * 7) % 38).collect();
    (0..20_u32).map(|i| prompt(if i < 12 { i / 4 } else { i })).collect()
}

/// A queue through a few places says what all its prompts at once say.
#[test]
fn limited_sequences_say_the_same() {
    for (family, folder) in folders().into_iter().enumerate() {
        let model = load(&folder, &device()).unwrap().decoder;
        let greedy = Generation { max_new_tokens: 12, ..Generation::default() };
        for (drawn, options) in [greedy, sampled()].into_iter().enumerate() {
            let free = generate(&model, &queue(), &options);
            // Of three rows, so that several end, at their first token or later; in turn greedy and sampled ones.
            let stops = vec![free[2].token_ids[0], free[7].token_ids[4], free[13].token_ids[6]];
            let stop = if (family + drawn).is_multiple_of(2) { vec![] } else { stops };
            let options = Generation { stop, log_probs: true, ..options };
            let all = generate(&model, &queue(), &options);
            let apart = all.iter().any(|c| c.token_ids.len() != all[0].token_ids.len());
            assert_eq!(apart, !options.stop.is_empty());
            for max_sequences in [3, [1, 8, 100][family % 3]] {
                let what = format!("{}, {max_sequences} at once", folder.display());
                let (limited, most) = limited(&model, &Generation { max_sequences, ..options.clone() });
                // All places are taken, unless rows end with their first token.
                assert!(most == max_sequences.min(20) || apart && most <= max_sequences, "{what}: {most}");
                for (row, (got, expected)) in limited.iter().zip(&all).enumerate() {
                    let of = |c: &Completion| (c.token_ids.clone(), c.finish_reason);
                    assert_eq!(of(got), of(expected), "{what}, row {row}");
                    close(&what, &got.log_probs, &expected.log_probs, 1e-5);
                }
            }
        }
    }
}

/// What [`queue`] says with `options`, and how many sequences were in progress at most.
fn limited(model: &Decoder, options: &Generation) -> (Vec<Completion>, usize) {
    let mut heard = vec![Vec::new(); 20];
    let (mut running, mut most) = (BTreeSet::new(), 0);
    let done = model.generate(&queue(), options, &mut |row, token| {
        heard[row].push(token);
        running.insert(row);
        most = most.max(running.len());
        if options.stop.contains(&token) || heard[row].len() == options.max_new_tokens {
            running.remove(&row);
        }
        true
    });
    let done = done.unwrap();
    assert!(done.iter().map(|c| &c.token_ids).eq(&heard), "every token is told once");
    (done, most)
}

/// The prompt of a group stays as long as its samples wait for a place.
#[test]
fn a_group_s_prompt_is_held_for_samples_that_join_later() {
    for name in ["llama", "qwen2-window", "phi3-longrope"] {
        let model = decoder(name);
        let vocab = model.spec().vocab;
        let (long, short) = (vec![3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], vec![9]);
        let (mut decoding, mut first) = (Decoding::new(&model, 0), Vec::new());
        first.extend(decoding.join(&[&short, &long], Some(&long)).unwrap());
        let held = decoding.bytes();
        decoding.logits(&[[7], [8]]).unwrap();
        decoding.reorder(&[0]).unwrap();
        // Its sequence has left; what follows are copies of what was held, and one of another prompt.
        first.extend(decoding.join(&[&long, &long], Some(&long)).unwrap());
        first.extend(decoding.join(&[&long, &short], None).unwrap());
        assert_eq!(first[vocab..2 * vocab], first[2 * vocab..3 * vocab], "{name}: to the bit");
        assert_eq!(first[vocab..2 * vocab], first[4 * vocab..5 * vocab], "{name}: to the bit");
        close(name, &first[5 * vocab..], &first[..vocab], 1e-5);
        let lengths: Vec<usize> = (0..decoding.sequences()).map(|s| decoding.len(s)).collect();
        assert_eq!(lengths, [2, 11, 11, 11, 1], "{name}");
        let next: Vec<[u32; 1]> = (0..5).map(|row| [7 * row]).collect();
        let mut own = Decoding::new(&model, 5);
        own.logits(&[&[9, 7][..], &long, &long, &long, &short]).unwrap();
        close(name, &decoding.logits(&next).unwrap(), &own.logits(&next).unwrap(), 1e-5);
        assert!(held > own.bytes() / 5);
        assert!(decoding.join::<Vec<u32>>(&[], None).unwrap().is_empty());
    }
}

/// More rows than the decoding kernels take at once.
#[test]
fn large_batches_agree() {
    let model = decoder("qwen3");
    let rows: Vec<Vec<u32>> = (0..70).map(|i| vec![3 + i % 50, 1 + i % 7, i % 11]).collect();
    let options = Generation { max_new_tokens: 5, ..Generation::default() };
    let together = generate(&model, &rows, &options);
    for (row, prompt) in rows.iter().enumerate().step_by(9) {
        assert_eq!(together[row], generate(&model, std::slice::from_ref(prompt), &options)[0], "row {row}");
    }
}

#[test]
fn processors_equal_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sampling.json");
    let cases = read_json(&path);
    for case in cases.as_array().unwrap() {
        let mut sampling = Sampling { do_sample: true, ..Sampling::default() };
        for (key, value) in case["settings"].as_object().unwrap() {
            let number = value.as_f64().unwrap() as f32;
            match key.as_str() {
                "temperature" => sampling.temperature = number,
                "top_k" => sampling.top_k = value.as_u64().unwrap() as usize,
                "top_p" => sampling.top_p = number,
                "min_p" => sampling.min_p = Some(number),
                "repetition_penalty" => sampling.repetition_penalty = number,
                other => panic!("unknown setting {other}"),
            }
        }
        let got = sampling.distribution(&floats(&case["logits"]), &ids(&case["previous"]));
        let wanted = floats(&case["probabilities"]);
        let kept = |p: &[f32]| p.iter().map(|&p| p > 0.0).collect::<Vec<_>>();
        assert_eq!(kept(&got), kept(&wanted), "{}", case["settings"]);
        close(&case["settings"].to_string(), &got, &wanted, 2e-6);
        // A draw is never a token that was dropped.
        for position in 0..50 {
            let token = sampling.next(&mut floats(&case["logits"]), &ids(&case["previous"]), 0, position);
            assert!(wanted[token as usize] > 0.0, "{}: drew {token}", case["settings"]);
        }
    }
    assert!(cases.as_array().unwrap().len() >= 18);
}

/// A vocabulary large enough that only part of it is sorted.
#[test]
fn likeliest_tokens_of_a_large_vocabulary() {
    let logits: Vec<f32> =
        (0..20_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 4e6).collect();
    for top_p in [0.0, 0.2, 0.9, 0.999] {
        let sampling = Sampling { do_sample: true, top_p, ..Sampling::default() };
        let got = sampling.distribution(&logits, &[]);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let weights: Vec<f64> =
            order.iter().map(|&i| f64::from(logits[i] - logits[order[0]]).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut before = 0.0;
        for (rank, (&token, w)) in order.iter().zip(&weights).enumerate() {
            // Leave out the edge, where rounding of the sum decides.
            if (before / total - f64::from(top_p)).abs() > 1e-6 || rank == 0 {
                let kept = rank == 0 || before < f64::from(top_p) * total;
                assert_eq!(got[token] > 0.0, kept, "top_p {top_p}, rank {rank}");
            }
            before += w;
        }
    }
    assert_eq!(first_maximum(&[1.0, 3.0, 3.0]), 1);
}

#[test]
fn what_cannot_be_generated_is_named() {
    let model = decoder("llama");
    let error = |prompts: &[Vec<u32>], options: &Generation| {
        model.generate(prompts, options, &mut |_, _| true).unwrap_err().to_string()
    };
    let options = Generation { max_new_tokens: 2, ..Generation::default() };
    assert_eq!(
        error(&[vec![1], vec![]], &options),
        "prompt 1 is empty; give it at least one token, or set `bos` to the token that begins a text"
    );
    let begun = Generation { bos: Some(1), ..options.clone() };
    assert_eq!(generate(&model, &[vec![]], &begun), generate(&model, &[vec![1]], &options));
    assert_eq!(
        error(&[vec![7; 129]], &options),
        "sequence of 129 tokens exceeds max_position_embeddings 128; shorten max_length or the prompt"
    );
    // A full prompt may go on past the end, as in Transformers; scaled positions have no end.
    assert_eq!(generate(&model, &[vec![7; 128]], &options)[0].token_ids.len(), 2);
    let scaled = decoder("llama-rope-linear");
    assert_eq!(generate(&scaled, &[vec![7; 300]], &options)[0].token_ids.len(), 2);
    assert_eq!(error(&[vec![56]], &options), "embedding: index 56 is outside 0..56");
    let mut heard = 0;
    let one = Generation { max_sequences: 1, ..options.clone() };
    let late = model.generate(&[vec![1], vec![56]], &one, &mut |_, _| {
        heard += 1;
        true
    });
    assert!(late.is_err() && heard == 0, "what cannot be generated is said before anything is");

    let with = |change: fn(&mut Sampling)| {
        let mut sampling = Sampling { do_sample: true, ..Sampling::default() };
        change(&mut sampling);
        error(&[vec![1]], &Generation { sampling, ..options.clone() })
    };
    assert_eq!(
        with(|s| s.temperature = 0.0),
        "`temperature` is 0, expected a positive number (or do_sample false for the maximum)"
    );
    assert_eq!(with(|s| s.top_p = 1.5), "`top_p` is 1.5, expected a number from 0 to 1");
    assert_eq!(with(|s| s.min_p = Some(-0.1)), "`min_p` is -0.1, expected a number from 0 to 1");
    assert_eq!(with(|s| s.repetition_penalty = 0.0), "`repetition_penalty` is 0, expected a positive number");

    let none = Generation { max_new_tokens: 0, ..options };
    let empty = Completion { token_ids: vec![], log_probs: vec![], finish_reason: FinishReason::Length };
    assert_eq!(generate(&model, &[vec![1]], &none), [empty]);
    assert!(generate(&model, &[], &begun).is_empty());

    let mut decoding = Decoding::new(&model, 2);
    let got = decoding.logits(&[[1]]).unwrap_err().to_string();
    assert_eq!(got, "got new tokens for 1 sequences, expected 2, one entry each");
}

#[test]
fn completions_say_how_likely_their_tokens_were() {
    let model = decoder("llama");
    let sampling = Sampling {
        do_sample: true,
        temperature: 0.7,
        top_k: 5,
        repetition_penalty: 1.5,
        seed: 3,
        ..Sampling::default()
    };
    // Nothing ends before the fourth token, which does not make the others likelier.
    let options = Generation {
        max_new_tokens: 6,
        min_new_tokens: 4,
        stop: (0..20).collect(),
        log_probs: true,
        sampling: sampling.clone(),
        ..Generation::default()
    };
    let prompts = [vec![1, 5, 9], vec![1, 5, 9], vec![2]];
    for (prompt, done) in prompts.iter().zip(generate(&model, &prompts, &options)) {
        assert_eq!(done.log_probs.len(), done.token_ids.len());
        let whole = [prompt.clone(), done.token_ids.clone()].concat();
        let all = logits(&model, std::slice::from_ref(&whole));
        let rows: Vec<&[f32]> = all.chunks_exact(model.spec().vocab).collect();
        for (at, (&token, &got)) in done.token_ids.iter().zip(&done.log_probs).enumerate() {
            // Over the whole vocabulary, at the temperature, unpenalised.
            let row: Vec<f64> = rows[prompt.len() + at - 1].iter().map(|&l| f64::from(l) / 0.7).collect();
            let total: f64 = row.iter().map(|l| l.exp()).sum();
            let expected = row[token as usize] - total.ln();
            assert!((f64::from(got) - expected).abs() < 2e-5, "{got} {expected}");
        }
    }
    let silent = Generation { log_probs: false, ..options };
    assert!(generate(&model, &prompts, &silent).iter().all(|done| done.log_probs.is_empty()));
}

#[test]
fn an_adapter_takes_part() {
    let root = fixtures().join("peft");
    let adapter = root.join("out_alllin/nonzero");
    let expected = read_json(&adapter.join("expected_logits.json"));
    let base = root.join(expected["base_model"].as_str().unwrap());
    let folder = ModelFolder::open(&base).unwrap();
    let tuning = AdapterFolder::open(&adapter).unwrap();
    let model = Model::load(&folder, &Tuning::Adapter(&tuning), Dtype::F32, 0, &device()).unwrap().decoder;
    let prompt = match &expected["input_ids"][0] {
        Value::Array(_) => ids(&expected["input_ids"][0]),
        _ => ids(&expected["input_ids"]),
    };
    // The last token alone decodes over the cache.
    let mut decoding = Decoding::new(&model, 1);
    let (last, before) = prompt.split_last().unwrap();
    decoding.logits(&[before]).unwrap();
    let got = decoding.logits(&[[*last]]).unwrap();
    close("adapter", &got, &floats(&expected["last_token_logits"]), 1e-5);

    let options = Generation { max_new_tokens: 8, ..Generation::default() };
    let tokens = generate(&model, std::slice::from_ref(&prompt), &options).remove(0).token_ids;
    let mut so_far = prompt.clone();
    for (step, &token) in tokens.iter().enumerate() {
        let all = logits(&model, &[so_far.clone()]);
        assert_eq!(first_maximum(&all[all.len() - model.spec().vocab..]), token, "step {step}");
        so_far.push(token);
    }
    let plain = load(&base, &device()).unwrap().decoder;
    let without = generate(&plain, &[prompt], &options).remove(0).token_ids;
    assert_ne!(tokens, without, "the adapter changes what is said");
}

fn read(generation: Option<Value>, config: Value) -> Result<GenerationConfig, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    if let Some(json) = generation {
        std::fs::write(folder.path().join("generation_config.json"), json.to_string()).unwrap();
    }
    GenerationConfig::read(folder.path(), &ConfigFile::read(folder.path()).unwrap())
}

#[test]
fn settings_are_read_as_transformers_reads_them() {
    let stop = |generation, config| read(generation, config).unwrap().stop;
    let llama = json!({"model_type": "llama"});
    assert_eq!(stop(Some(json!({"eos_token_id": 5})), llama.clone()), [5]);
    assert_eq!(stop(Some(json!({"eos_token_id": [5, 7]})), json!({"eos_token_id": 3})), [5, 7]);
    assert_eq!(stop(Some(json!({})), json!({"eos_token_id": [3, 4]})), [3, 4]);
    assert_eq!(stop(None, json!({"eos_token_id": 3})), [3]);
    assert_eq!(stop(None, llama.clone()), [2], "the class's default");
    assert!(stop(None, json!({"model_type": "llama", "eos_token_id": null})).is_empty());
    assert!(stop(Some(json!({})), llama.clone()).is_empty());
    assert!(stop(None, json!({"model_type": "qwen3"})).is_empty());

    let full = json!({
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "do_sample": true, "temperature": 0.6, "top_k": 20,
        "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05, "max_new_tokens": 77, "min_new_tokens": 5,
    });
    let full = read(Some(full), llama.clone()).unwrap();
    assert_eq!((full.bos, full.pad, full.max_new_tokens), (Some(1), Some(0), Some(77)));
    let wanted = Sampling {
        do_sample: true,
        temperature: 0.6,
        top_k: 20,
        top_p: 0.95,
        min_p: Some(0.01),
        repetition_penalty: 1.05,
        seed: 9,
    };
    assert_eq!(full.generation(9).sampling, wanted);
    assert_eq!((full.generation(9).max_new_tokens, full.generation(9).min_new_tokens), (77, 5));
    let defaults = read(None, llama.clone()).unwrap();
    assert_eq!((defaults.bos, defaults.pad), (Some(1), None));
    assert_eq!(defaults.generation(0).sampling, Sampling { top_k: 50, ..Sampling::default() });

    let error = |generation| read(Some(generation), llama.clone()).unwrap_err().to_string();
    assert_eq!(
        error(json!({"eos_token_id": "two"})),
        "generation_config.json: `eos_token_id` is \"two\", expected a token id or a list of token ids"
    );
    assert_eq!(
        error(json!({"temperature": "hot"})),
        "generation_config.json: `temperature` is \"hot\", expected a number"
    );
    assert_eq!(
        error(json!({"top_k": -1})),
        "generation_config.json: `top_k` is -1, expected a non-negative integer"
    );
    assert!(error(json!([1])).contains("generation_config.json: not valid JSON"));
    assert_eq!(
        read(None, json!({"eos_token_id": -2})).unwrap_err().to_string(),
        "config.json: `eos_token_id` is -2, expected a token id or a list of token ids"
    );
}

/// Samples of one prompt start from its keys and values, computed once, and are as if each had computed them.
#[test]
fn a_group_s_prompt_is_computed_once_and_its_samples_are_their_own() {
    for name in ["llama", "qwen2-window", "phi3-longrope"] {
        let model = decoder(name);
        let (long, short) = (vec![3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], vec![9]);
        let group = [&long, &short, &long, &long, &short];
        let (mut shared, first) = Decoding::of_prompts(&model, &group).unwrap();
        let mut own = Decoding::new(&model, group.len());
        let expected = own.logits(&group).unwrap();
        close(name, &first, &expected, 1e-5);
        assert_eq!(first[..model.spec().vocab], first[2 * model.spec().vocab..3 * model.spec().vocab]);
        // Different tokens follow: no sample sees another's.
        for step in 0..3_u32 {
            let next: Vec<[u32; 1]> = (0..5).map(|row| [7 * row + step]).collect();
            close(name, &shared.logits(&next).unwrap(), &own.logits(&next).unwrap(), 1e-5);
        }
        assert_eq!((shared.len(0), shared.len(1)), (long.len() + 3, 4));
        let options = sampled();
        let prompts: Vec<Vec<u32>> = group.iter().map(|p| p.to_vec()).collect();
        for (row, together) in generate(&model, &prompts, &options).into_iter().enumerate() {
            let options = Generation { first_row: row as u64, ..options.clone() };
            assert_eq!(generate(&model, &prompts[row..=row], &options), [together], "{name}, row {row}");
        }
    }
}
