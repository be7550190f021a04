//! Clipping of queries and keys: what is found, what is scaled, and what the model then does.

use burnish_models::{Clip, Decoder, Mode, ModelError, ModelFolder, Tokens, Tuning};
use burnish_peft::LoraConfig;

use crate::part::{Part, on_ranks};
use crate::recordings::{close, fixtures};

const NONE: f32 = f32::NEG_INFINITY;
/// Grouped key heads, biases, one matrix for all, a window, one matrix with grouped key heads and a window.
const FAMILIES: [&str; 5] = ["llama", "qwen2", "phi3", "mistral-window", "phi3-window"];

fn open(base: &str) -> ModelFolder {
    ModelFolder::open(fixtures().join(base)).unwrap()
}

/// Of different lengths, longer than the windows.
fn sequences() -> Vec<Vec<u32>> {
    [13, 5, 1, 9]
        .iter()
        .enumerate()
        .map(|(s, &n)| (0..n).map(|i| (7 * s as u32 + 3 * i + i * i) % 37).collect())
        .collect()
}

/// Logits of some size; biases, which are zero in a fresh model, count.
fn lively(part: &Part) {
    part.perturb(|i| 0.3 * (i as f32 * 1.7).sin());
}

fn peaks(part: &Part) -> Vec<f32> {
    part.peaks(&[&sequences()], false)
}

/// A threshold that some of the heads exceed.
fn between(peaks: &[f32]) -> f32 {
    let mut sorted = peaks.to_vec();
    sorted.sort_by(f32::total_cmp);
    let middle = sorted.len() / 2;
    let tau = (sorted[middle - 1] + sorted[middle]) / 2.0;
    assert!(tau > 0.0 && sorted[middle - 1] < tau && tau < sorted[middle], "{sorted:?}");
    tau
}

fn parameter(model: &Decoder, name: &str) -> Option<Vec<f64>> {
    let index = model.parameters().registry().index_of(name)?;
    Some(model.parameters().read(index).to_f32().into_iter().map(f64::from).collect())
}

/// The largest logit of each head of the first layer, in f64, one pair after another.
fn naive(model: &Decoder) -> Vec<f64> {
    let spec = model.spec();
    let (hidden, d, heads, kv) = (spec.hidden, spec.head_dim, spec.heads, spec.kv_heads);
    let at = |part: &str| format!("model.layers.0.{part}");
    let embed = parameter(model, "model.embed_tokens.weight").unwrap();
    let gamma = parameter(model, &at("input_layernorm.weight")).unwrap();
    let (weight, bias) = match parameter(model, &at("self_attn.qkv_proj.weight")) {
        Some(all) => (all, vec![0.0; (heads + 2 * kv) * d]),
        None => {
            let of = |p: &str, end: &str| parameter(model, &at(&format!("self_attn.{p}_proj.{end}")));
            let bias = |p: &str, n: usize| of(p, "bias").unwrap_or_else(|| vec![0.0; n * d]);
            let weight = [of("q", "weight").unwrap(), of("k", "weight").unwrap()].concat();
            (weight, [bias("q", heads), bias("k", kv)].concat())
        }
    };
    let table = spec.ropes[0].table(32);
    let half = spec.ropes[0].dim / 2;
    let row = |id: u32, position: usize, head: usize| -> Vec<f64> {
        let x = &embed[id as usize * hidden..][..hidden];
        let rms = (x.iter().map(|v| v * v).sum::<f64>() / hidden as f64 + f64::from(spec.norm_eps)).sqrt();
        let project = |r: usize| -> f64 {
            let w = &weight[r * hidden..][..hidden];
            w.iter().zip(x).zip(&gamma).map(|((w, x), g)| w * x * g / rms).sum::<f64>() + bias[r]
        };
        let y: Vec<f64> = (head * d..(head + 1) * d).map(project).collect();
        let mut turned = y.clone();
        for i in 0..half {
            let c = f64::from(table[position * spec.ropes[0].dim + i]);
            let s = f64::from(table[position * spec.ropes[0].dim + half + i]);
            (turned[i], turned[half + i]) = (y[i] * c - y[half + i] * s, y[half + i] * c + y[i] * s);
        }
        turned
    };
    let mut peaks = vec![f64::NEG_INFINITY; heads];
    for (head, peak) in peaks.iter_mut().enumerate() {
        for ids in sequences() {
            let keys: Vec<Vec<f64>> =
                ids.iter().enumerate().map(|(j, &id)| row(id, j, heads + head / (heads / kv))).collect();
            for (i, &id) in ids.iter().enumerate() {
                let q = row(id, i, head);
                let first = spec.layers[0].window.map_or(0, |w| (i + 1).saturating_sub(w));
                for key in &keys[first..=i] {
                    let dot: f64 = q.iter().zip(key).map(|(a, b)| a * b).sum();
                    *peak = peak.max(dot / (d as f64).sqrt());
                }
            }
        }
    }
    peaks
}

#[test]
fn peaks_are_those_of_the_scores() {
    for base in FAMILIES {
        on_ranks(1, &open(base), &Tuning::Full, |part| {
            lively(&part);
            let got = peaks(&part);
            let want: Vec<f32> = naive(&part.model.decoder).iter().map(|&x| x as f32).collect();
            let heads = part.model.decoder.spec().heads;
            assert_eq!(got.len(), heads * part.model.decoder.spec().layers.len(), "{base}");
            close(base, &got[..heads], &want, 2e-6 * want.iter().fold(1.0, |m, x| x.abs().max(m)));
        });
    }
}

#[test]
fn micro_batches_and_recomputation_find_the_same() {
    on_ranks(1, &open("qwen2"), &Tuning::Full, |part| {
        lively(&part);
        let all = sequences();
        let one = part.peaks(&[&all], false);
        assert_eq!(part.peaks(&[&all], true), one);
        for recompute in [false, true] {
            close("two", &part.peaks(&[&all[..1], &all[1..]], recompute), &one, 1e-6);
            // One of them alone finds less.
            let part = part.peaks(&[&all[1..]], recompute);
            assert!(part.iter().zip(&one).all(|(a, b)| *a <= b + 1e-6) && part != one, "{part:?} {one:?}");
        }
    });
}

#[test]
fn a_pass_that_is_not_asked_notes_nothing_and_gives_the_same() {
    on_ranks(1, &open("llama"), &Tuning::None, |part| {
        let model = &part.model.decoder;
        let tokens = Tokens::from_sequences(&sequences());
        let noted = model.logit_peaks();
        let plain = model.hidden(&tokens, &model.pass(Mode::Score)).unwrap();
        assert_eq!(noted.take(), vec![NONE; noted.len()]);
        let asked = model.pass(Mode::Score).with_logit_peaks(noted.clone());
        assert_eq!(model.hidden(&tokens, &asked).unwrap().to_f32(), plain.to_f32());
        assert!(noted.take().iter().all(|x| x.is_finite()));
        assert_eq!(noted.take(), vec![NONE; noted.len()]);
    });
}

#[test]
fn clipped_heads_come_to_the_threshold_and_others_stay() {
    for base in FAMILIES {
        let folder = open(base);
        let (layers, heads) = (folder.spec().layers.len(), folder.spec().heads);
        for layer in 0..layers {
            on_ranks(1, &folder, &Tuning::Full, |part| {
                lively(&part);
                let before = peaks(&part);
                let here = layer * heads..(layer + 1) * heads;
                let tau = between(&before[here.clone()]);
                // The layers after it see other inputs.
                let mut only = vec![NONE; before.len()];
                only[here.clone()].copy_from_slice(&before[here.clone()]);
                let Clip { rows, heads: clipped, largest } =
                    part.clip.as_ref().unwrap().factors(&only, tau).unwrap();
                assert_eq!(clipped, only.iter().filter(|&&p| p > tau).count());
                assert_eq!(largest, only.iter().copied().fold(NONE, f32::max));
                let names: Vec<&str> = rows.iter().map(|r| part.registry.at(r.index).name.as_str()).collect();
                let prefix = format!("model.layers.{layer}.self_attn.");
                assert!(names.iter().all(|n| n.starts_with(&prefix)), "{names:?}");
                assert_eq!(
                    names.len(),
                    if base == "qwen2" {
                        4
                    } else if base.starts_with("phi3") {
                        1
                    } else {
                        2
                    }
                );
                rows.iter().for_each(|r| part.scale(r));
                let after = peaks(&part);
                assert_eq!(after[..here.start], before[..here.start], "{base}");
                for head in here {
                    let want = before[head].min(tau);
                    let off = (after[head] - want).abs();
                    assert!(
                        off <= 1e-5 * want.abs(),
                        "{base}, head {head}: {} became {}, threshold {tau}",
                        before[head],
                        after[head]
                    );
                }
                // What is within the threshold needs nothing more.
                let again = part.clip.as_ref().unwrap().factors(&only, largest).unwrap();
                assert!(again.rows.is_empty() && again.heads == 0);
            });
        }
    }
}

/// What ranks find and scale: the peaks, the indices, and every weight after.
type Scaled = (Vec<f32>, Vec<usize>, Vec<(String, Vec<f32>)>);

#[test]
fn ranks_scale_as_one_does() {
    for base in FAMILIES {
        let folder = open(base);
        let one = |part: Part| {
            lively(&part);
            let found = peaks(&part);
            let tau = between(&found);
            let clip = part.clip.as_ref().unwrap().factors(&found, tau).unwrap();
            clip.rows.iter().for_each(|r| part.scale(r));
            (found, tau, clip, part.trained())
        };
        let (found, tau, whole, values) = on_ranks(1, &folder, &Tuning::Full, one).remove(0);
        assert!(!whole.rows.is_empty() && whole.heads > 1);
        for ranks in [2, 4] {
            let many = on_ranks(ranks, &folder, &Tuning::Full, |part| -> Scaled {
                lively(&part);
                let own = peaks(&part);
                let clip = part.clip.as_ref().unwrap().factors(&found, tau).unwrap();
                assert_eq!((clip.heads, clip.largest), (whole.heads, whole.largest));
                for (own, all) in clip.rows.iter().zip(&whole.rows) {
                    assert_eq!(own.factors, part.own_rows(all.index, &all.factors), "{base} over {ranks}");
                    part.scale(own);
                }
                (own, clip.rows.iter().map(|r| r.index).collect(), part.trained())
            });
            for (own, indices, scaled) in many {
                close(&format!("{base} over {ranks} ranks"), &own, &found, 2e-5);
                assert_eq!(indices, whole.rows.iter().map(|r| r.index).collect::<Vec<_>>());
                assert!(scaled == values, "{base} over {ranks} ranks: the weights differ");
            }
        }
    }
}

fn refused(base: &str, tuning: &Tuning<'_>) -> String {
    on_ranks(1, &open(base), tuning, |part| part.clip.unwrap_err().to_string()).remove(0)
}

fn adapter(more: &str) -> LoraConfig {
    LoraConfig::from_json(&format!(r#"{{"peft_type": "LORA", "r": 4, {more}}}"#)).unwrap()
}

#[test]
fn models_without_a_scale_of_their_own_are_refused() {
    let error = refused("qwen3", &Tuning::Full);
    assert!(
        error.starts_with(
            "qk_clip: queries and keys of this model are normed per head (`model.layers.0.self_attn.q_norm.weight`)"
        ),
        "{error}"
    );
    let error = refused("llama", &Tuning::None);
    assert!(error.starts_with("qk_clip: `model.layers.0.self_attn.q_proj.weight` is not trained"), "{error}");
    let config = adapter(r#""target_modules": ["v_proj", "k_proj"], "modules_to_save": ["q_proj"]"#);
    let error = refused("llama", &Tuning::NewAdapter(&config));
    assert!(
        error.starts_with("qk_clip: an adapter on the layer of `model.layers.0.self_attn.k_proj.weight`"),
        "{error}"
    );
}

#[test]
fn copies_that_train_in_place_of_projections_are_scaled() {
    let config = adapter(r#""target_modules": ["v_proj"], "modules_to_save": ["q_proj", "k_proj"]"#);
    on_ranks(1, &open("llama"), &Tuning::NewAdapter(&config), |part| {
        lively(&part);
        let before = peaks(&part);
        let tau = between(&before[..4]);
        let clip = part.clip.as_ref().unwrap().factors(&[&before[..4], &[NONE; 4]].concat(), tau).unwrap();
        assert_eq!(clip.rows.len(), 2);
        for rows in &clip.rows {
            assert!(part.registry.at(rows.index).trainable);
            part.scale(rows);
        }
        for (after, before) in peaks(&part)[..4].iter().zip(&before) {
            assert!((after - before.min(tau)).abs() <= 1e-5 * before.abs(), "{after} {before} {tau}");
        }
    });
}

#[test]
fn what_cannot_be_clipped_by_is_said() {
    on_ranks(1, &open("llama"), &Tuning::Full, |part| {
        let clip = part.clip.as_ref().unwrap();
        let said = |peaks: &[f32], tau| clip.factors(peaks, tau).unwrap_err().to_string();
        for tau in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(matches!(clip.factors(&[0.0; 8], tau), Err(ModelError::QkClipThreshold { .. })), "{tau}");
        }
        assert_eq!(
            said(&[1.0; 4], 100.0),
            "qk_clip: got 4 largest logits, expected 8: one per layer and query head of the whole model"
        );
        for bad in [f32::NAN, f32::INFINITY] {
            let mut peaks = [1.0; 8];
            peaks[6] = bad;
            let error = said(&peaks, 100.0);
            assert!(
                error.starts_with("qk_clip: a logit of head 2 of `model.layers.1` is not finite"),
                "{error}"
            );
        }
        // A step in which nothing was seen.
        let clip = clip.factors(&[NONE; 8], 100.0).unwrap();
        assert!(clip.rows.is_empty() && clip.heads == 0 && clip.largest == NONE);
    });
}
