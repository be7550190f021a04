//! That the ranks of a run agree, before the first of them trains: on options, parameters, files and rows.
//!
//! Ranks that differ would train on and finish: sums have the same shapes whatever the learning rate. So the first collective
//! of a run compares what must be the same. Where all is, it is one exchange of 64 bytes. Files are compared by content, but
//! read for it only where ranks do not read the very same file of the same machine.

pub(crate) mod facts;
mod files;

use std::collections::BTreeMap;

use burnish_comm::{Bucket, Group, World};

pub(crate) use self::facts::Facts;
use crate::TrainError;
use crate::error::Difference;

/// Bytes of a digest.
const DIGEST: usize = 32;
/// Most characters of a value in a message.
const SHOWN: usize = 80;

/// Compares what the ranks of `world` have; the same outcome on all of them.
///
/// # Errors
/// [`TrainError::RanksDiffer`], which names ranks and things; if a file cannot be read, or a rank fails.
pub(crate) fn agree(
    world: &World,
    facts: impl FnOnce() -> Result<Facts, TrainError>,
) -> Result<(), TrainError> {
    if world.size() == 1 {
        return Ok(());
    }
    let group = world.group().channel("agreement");
    let facts = facts()?;
    let differences = differences(&group, &facts)?;
    if differences.is_empty() {
        return Ok(());
    }
    // So that every rank has its own error before it hears of another's; one that is gone has had it.
    let _ = group.barrier("agreement");
    Err(TrainError::RanksDiffer { differences })
}

fn differences(group: &Group, facts: &Facts) -> Result<Vec<Difference>, TrainError> {
    let (texts, places) = (facts.encoded(), facts.places());
    let own = [*blake3::hash(&texts).as_bytes(), *blake3::hash(places.as_flattened()).as_bytes()];
    let all = group.all_gather_v(
        Bucket::new(own.as_flattened().to_vec()),
        &vec![2 * DIGEST; group.size()],
        "digests of what ranks must agree on",
    );
    let all = all.wait()?;
    if !(0..group.size()).all(|rank| all.of(rank)[..DIGEST] == own[0]) {
        let all = group.all_gather_any(Bucket::new(texts), "what ranks must agree on")?;
        return Ok(compared(&all.iter().map(Facts::decoded).collect::<Vec<_>>()));
    }
    if (0..group.size()).all(|rank| all.of(rank)[DIGEST..] == own[1]) {
        return Ok(Vec::new());
    }
    // As many files on every rank, since the texts agree, which name them.
    let count = places.len() * DIGEST;
    let all = group.all_gather_v(
        Bucket::new(places.as_flattened().to_vec()),
        &vec![count; group.size()],
        "where files lie",
    );
    let all = all.wait()?;
    let mut found = Vec::new();
    for (index, file) in facts.files().enumerate() {
        let place = |rank: usize| &all.of(rank)[index * DIGEST..][..DIGEST];
        // The first rank of each place reads the file for those that have the same.
        let reader = |rank: usize| (0..rank).find(|&other| place(other) == place(rank)).unwrap_or(rank);
        if (0..group.size()).all(|rank| reader(rank) == 0) {
            continue;
        }
        let reads = reader(group.rank()) == group.rank();
        let own = if reads { file.digest()? } else { [0; DIGEST] };
        let what = format!("digest of {}", file.name());
        let digests =
            group.all_gather_v(Bucket::new(own.to_vec()), &vec![DIGEST; group.size()], &what).wait()?;
        let values = (0..group.size()).map(|rank| hex(digests.of(reader(rank))));
        found.extend(difference(file.name(), &values.collect::<Vec<_>>()));
    }
    Ok(found)
}

/// What ranks differ in, by the texts of each.
fn compared(ranks: &[Vec<(String, String)>]) -> Vec<Difference> {
    let mut names: Vec<&str> = Vec::new();
    let mut known = BTreeMap::new();
    for (rank, texts) in ranks.iter().enumerate() {
        for (name, value) in texts {
            let values = known.entry(name.as_str()).or_insert_with(|| {
                names.push(name);
                vec!["absent"; ranks.len()]
            });
            values[rank] = value;
        }
    }
    let different = |name: &&str| difference(name, &lines(&known[name]));
    names.iter().filter_map(different).collect()
}

/// Of texts of several lines the first that is not the same on all ranks.
fn lines(values: &[&str]) -> Vec<String> {
    let line = |value: &str, number: usize| value.lines().nth(number).unwrap_or("no more").to_owned();
    let most = values.iter().map(|value| value.lines().count()).max().unwrap_or(0);
    let differs =
        |number: &usize| values.iter().any(|value| line(value, *number) != line(values[0], *number));
    match (0..most).find(differs) {
        Some(number) => values.iter().map(|value| line(value, number)).collect(),
        None => values.iter().map(|value| (*value).to_owned()).collect(),
    }
}

/// Who has which of `values`, by rank, unless all have the same.
fn difference(what: &str, values: &[String]) -> Option<Difference> {
    let mut groups: Vec<(Vec<usize>, &String)> = Vec::new();
    for (rank, value) in values.iter().enumerate() {
        match groups.iter_mut().find(|(_, other)| *other == value) {
            Some((ranks, _)) => ranks.push(rank),
            None => groups.push((vec![rank], value)),
        }
    }
    if groups.len() < 2 {
        return None;
    }
    groups.sort_by_key(|(ranks, _)| ranks.len());
    let cut: Vec<String> = groups.iter().map(|(_, value)| value.chars().take(SHOWN).collect()).collect();
    let alike = (1..cut.len()).any(|one| cut[..one].contains(&cut[one]));
    let shown = |(place, (ranks, value)): (usize, (Vec<usize>, &String))| {
        let whole = cut[place].len() == value.len();
        let text = match (whole, alike) {
            (true, _) => value.clone(),
            (false, false) => format!("{}...", cut[place]),
            // Values that differ beyond what is shown.
            (false, true) => {
                format!("{}... (blake3 {})", cut[place], hex(blake3::hash(value.as_bytes()).as_bytes()))
            }
        };
        (ranks, text)
    };
    let values = groups.into_iter().enumerate().map(shown).collect();
    Some(Difference { what: what.to_owned(), values })
}

/// The beginning of a digest, for people.
fn hex(digest: &[u8]) -> String {
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use burnish_comm::local;

    use super::*;

    /// What each of four ranks says of the agreement.
    fn outcome(facts: impl Fn(usize) -> Facts + Sync) -> Vec<Result<(), String>> {
        let ranks = local::run(4, |world| {
            agree(&world, || Ok(facts(world.rank()))).map_err(|error| error.to_string())
        });
        ranks.into_iter().map(Result::unwrap).collect()
    }

    fn differs(facts: impl Fn(usize) -> Facts + Sync, expected: &str) {
        for said in outcome(facts) {
            let said = said.unwrap_err();
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn all_ranks_name_the_same_rank_and_thing() {
        let rate = |rank: usize| if rank == 2 { "1e-4" } else { "2e-4" };
        let facts = |rank| Facts::default().and("seed", "1").and("learning_rate", rate(rank));
        differs(facts, "learning_rate: rank 2: 1e-4, ranks 0, 1, 3: 2e-4");
        let facts = |rank| Facts::default().and("seed", if rank < 2 { "1" } else { "2" });
        differs(facts, "seed: ranks 0, 1: 1, ranks 2, 3: 2");
        let facts = |rank| {
            let facts = Facts::default().and("seed", "1");
            if rank == 0 { facts } else { facts.and("new", "x") }
        };
        differs(facts, "new: rank 0: absent, ranks 1, 2, 3: x");
        assert!(outcome(|_| Facts::default().and("seed", "1")).iter().all(Result::is_ok));
    }

    #[test]
    fn of_long_texts_the_line_that_differs_is_named() {
        let shape = |rank: usize| if rank == 3 { "b [2, 4]" } else { "b [2, 3]" };
        differs(
            |rank| Facts::default().and("parameters", &format!("a [1]\n{}\nc [2]", shape(rank))),
            "parameters: rank 3: b [2, 4], ranks 0, 1, 2: b [2, 3]",
        );
        let long = "x".repeat(200);
        let facts = |rank: usize| Facts::default().and("text", &format!("{long}{}", rank % 2));
        differs(facts, "... (blake3 ");
        let many = |rank: usize| {
            (0..9).fold(Facts::default(), |all, one| all.and(&format!("option {one}"), &rank.to_string()))
        };
        differs(many, "and 4 more");
    }

    #[test]
    fn files_are_compared_by_content_where_they_are_not_the_same_file() {
        let root = tempfile::tempdir().unwrap();
        let bytes = vec![7_u8; 3 << 20];
        let mut last = bytes.clone();
        *last.last_mut().unwrap() = 8;
        for (name, bytes) in [("a", &bytes), ("b", &bytes), ("c", &last)] {
            std::fs::write(root.path().join(name), bytes).unwrap();
        }
        let of = |name: &str| Facts::default().and_file("weights", &root.path().join(name)).unwrap();
        assert!(outcome(|_| of("a")).iter().all(Result::is_ok), "one file");
        assert!(outcome(|rank| of(["a", "a", "b", "b"][rank])).iter().all(Result::is_ok), "two copies");
        differs(|rank| of(["a", "b", "a", "c"][rank]), "weights: rank 3: ");
        // Another length is seen without reading.
        std::fs::write(root.path().join("d"), &bytes[1..]).unwrap();
        differs(
            |rank| of(["a", "a", "d", "a"][rank]),
            "weights: rank 2: 3145727 bytes, ranks 0, 1, 3: 3145728 bytes",
        );
        // Small ones are read at once.
        for (name, text) in [("small", "1"), ("other", "2")] {
            std::fs::write(root.path().join(name), text).unwrap();
        }
        differs(|rank| of(["small", "other", "small", "small"][rank]), "weights: rank 1: 1 bytes, blake3 ");
        assert!(Facts::default().and_file("weights", Path::new("nowhere")).is_err());
    }
}
