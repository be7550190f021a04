//! Every family, divided over ranks, gives the logits and the text of one rank.

use burnish_comm::{World, local};
use burnish_core::Dtype;
use burnish_models::{Decoder, Decoding, Generation, ModelError, ModelFolder, ModelPlan, Tuning, load};
use burnish_tp::{Tp, TpError};

use crate::families::folders;
use crate::recordings::{close, device, fixtures};

/// fp32 sums in another order; logits are of order 1.
const TOLERANCE: f32 = 1e-5;

/// One rank's part of a model.
fn part(path: &std::path::Path, world: &World) -> Result<Decoder, ModelError> {
    let folder = ModelFolder::open(path)?;
    let planned = ModelPlan::new(&folder, &Tuning::None, Dtype::F32, 0)?;
    Ok(planned.over(&Tp::new(&world.group()))?.resident(&device())?.0.decoder)
}

/// Whether ranks would share heads of this fixture's packed matrices unevenly, or a group of them at all.
pub(crate) fn is_uneven(name: &str, ranks: usize) -> bool {
    let uneven = ["phi3-window", "gpt-bigcode", "codegen", "chatglm"];
    let grouped = ["falcon-new", "falcon-rw-groups", "internlm2"];
    ranks == 3 && (uneven.contains(&name) || ["falcon", "falcon-rw-shared"].contains(&name))
        || ranks > 2 && grouped.contains(&name)
}

const PROMPTS: [&[u32]; 3] = [&[3, 1, 4, 1, 5, 9, 2, 6], &[5, 3], &[5, 8, 9, 7, 9]];

/// The logits after each of some steps over the prompts, with a cache of keys and values.
fn steps(model: &Decoder) -> Vec<f32> {
    let mut decoding = Decoding::new(model, PROMPTS.len());
    let mut all = decoding.logits(&PROMPTS).unwrap();
    for token in [7, 2, 11] {
        all.extend(decoding.logits(&[[token], [token + 1], [token + 2]]).unwrap());
    }
    all
}

#[test]
fn logits_equal_one_rank_s_in_every_family() {
    for folder in folders() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let expected = steps(&load(&folder, &device()).unwrap().decoder);
        for ranks in [2, 3, 4] {
            let results = local::run(ranks, |world| part(&folder, &world).map(|model| steps(&model)));
            for result in results {
                match result.unwrap() {
                    Ok(got) => close(&format!("{name} over {ranks} ranks"), &got, &expected, TOLERANCE),
                    Err(ModelError::Tp(TpError::Heads { heads, .. })) => assert!(heads < ranks, "{name}"),
                    Err(ModelError::UnevenPacked { .. } | ModelError::Quartered { .. }) => {
                        assert!(is_uneven(&name, ranks), "{name} over {ranks} ranks");
                    }
                    Err(error) => panic!("{name} over {ranks} ranks: {error}"),
                }
            }
        }
    }
}

#[test]
fn text_equals_one_rank_s_and_ranks_stay_together_when_rows_end_at_different_lengths() {
    for name in ["llama", "qwen2-tied", "qwen3", "mistral-window", "phi3-window"] {
        let folder = fixtures().join(name);
        let prompts: Vec<Vec<u32>> = PROMPTS.iter().map(|p| p.to_vec()).collect();
        let say_of = |model: &Decoder, stop: Vec<u32>, min_new_tokens: usize, max_sequences: usize| {
            let settings = Generation {
                max_new_tokens: 25,
                min_new_tokens,
                stop,
                max_sequences,
                ..Generation::default()
            };
            let done = model.generate(&prompts, &settings, &mut |_, _| true).unwrap();
            done.into_iter().map(|c| c.token_ids).collect::<Vec<_>>()
        };
        let say = |model: &Decoder, stop: Vec<u32>, least: usize| say_of(model, stop, least, 0);
        let one = load(&folder, &device()).unwrap().decoder;
        let free = say(&one, vec![], 0);
        // A token that the first row says early and another row does not (or later): rows end apart.
        let stop = vec![free[0][3]];
        let expected = say(&one, stop.clone(), 0);
        let longer = say(&one, stop.clone(), 9);
        assert!(
            longer.iter().all(|row| row.len() >= 9) && expected.iter().any(|row| row.len() < 9),
            "{name}"
        );
        for ranks in [2, 4] {
            let results = local::run(ranks, |world| {
                let model = part(&folder, &world).unwrap();
                // The last through two places.
                let limited = say_of(&model, stop.clone(), 0, 2);
                [say(&model, vec![], 0), say(&model, stop.clone(), 0), say(&model, stop.clone(), 9), limited]
            });
            for result in results {
                let said = [&free, &expected, &longer, &expected].map(Clone::clone);
                assert_eq!(result.unwrap(), said, "{name} over {ranks} ranks");
            }
        }
    }
}

#[test]
fn more_ranks_than_heads_are_refused() {
    let results = local::run(8, |world| part(&fixtures().join("llama"), &world).map(|_| ()));
    for result in results {
        let said = result.unwrap().unwrap_err().to_string();
        assert!(said.contains("heads"), "{said}");
    }
}

#[test]
fn packed_heads_that_ranks_share_unevenly_are_refused() {
    let results = local::run(3, |world| part(&fixtures().join("phi3-window"), &world).map(|_| ()));
    for result in results {
        let said = result.unwrap().unwrap_err().to_string();
        assert!(said.contains("4 query heads with 2 key and value heads"), "{said}");
    }
}
