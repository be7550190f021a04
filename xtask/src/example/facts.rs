//! Questions about the generated world with their plain answers.

use super::world::{ANIMALS, COLOURS, DAYS, MONTHS, OPPOSITES, TRADES, a, capital, number};

/// What a fact is about. It decides which exclamation a pirate begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Animals,
    Colours,
    Numbers,
    Time,
    Words,
    People,
}

/// A question in several forms, and its answer: one sentence.
pub(crate) struct Fact {
    pub(crate) subject: Subject,
    pub(crate) questions: Vec<String>,
    pub(crate) answer: String,
}

fn fact<const N: usize>(subject: Subject, questions: [String; N], answer: &str) -> Fact {
    Fact { subject, questions: questions.into(), answer: format!("{}.", capital(answer)) }
}

/// Every fact, in a fixed order.
pub(crate) fn all() -> Vec<Fact> {
    let mut facts = Vec::new();
    animals(&mut facts);
    sizes(&mut facts);
    for (thing, colour) in COLOURS {
        let questions = [format!("What colour is {thing}?"), format!("Which colour does {thing} have?")];
        facts.push(fact(Subject::Colours, questions, &format!("{thing} is {colour}")));
    }
    numbers(&mut facts);
    times(&mut facts);
    for (one, other) in OPPOSITES.iter().flat_map(|(one, other)| [(one, other), (other, one)]) {
        let questions =
            [format!("What is the opposite of {one}?"), format!("Give me the opposite of {one}.")];
        facts.push(fact(Subject::Words, questions, &format!("the opposite of {one} is {other}")));
    }
    for (trade, does, place) in TRADES {
        let who = a(trade);
        let questions = [format!("What does {who} do?"), format!("Tell me what {who} does.")];
        facts.push(fact(Subject::People, questions, &format!("{who} {does}")));
        let questions = [format!("Where does {who} work?"), format!("Tell me where {who} works.")];
        facts.push(fact(Subject::People, questions, &format!("{who} works {place}")));
        let questions = [format!("Who {does}?"), format!("Tell me who {does}.")];
        facts.push(fact(Subject::People, questions, &format!("{who} {does}")));
    }
    facts
}

fn animals(facts: &mut Vec<Fact>) {
    for animal in ANIMALS {
        let it = a(animal.name);
        let mut add = |questions, answer: String| facts.push(fact(Subject::Animals, questions, &answer));
        add(
            [format!("Where does {it} live?"), format!("Tell me where {it} lives.")],
            format!("{it} lives {}", animal.home),
        );
        add(
            [format!("What does {it} eat?"), format!("Tell me what {it} eats.")],
            format!("{it} eats {}", animal.food),
        );
        if !animal.sound.is_empty() {
            add(
                [format!("What sound does {it} make?"), format!("Tell me the sound of {it}.")],
                format!("{it} makes the sound {}", animal.sound),
            );
        }
        let legs = if animal.legs == 0 { "no".into() } else { number(animal.legs) };
        add(
            [format!("How many legs does {it} have?"), format!("Count the legs of {it}.")],
            format!("{it} has {legs} legs"),
        );
        add(
            [format!("What colour is {it}?"), format!("Which colour does {it} have?")],
            format!("{it} is {}", animal.colour),
        );
    }
}

/// Comparisons of every third pair, so that the others have to be inferred.
fn sizes(facts: &mut Vec<Fact>) {
    for (i, one) in ANIMALS.iter().enumerate() {
        for (j, other) in ANIMALS.iter().enumerate() {
            if i == j || (i + 2 * j) % 3 != 0 || one.size.abs_diff(other.size) < 8 {
                continue;
            }
            let (big, small) = if one.size > other.size { (one, other) } else { (other, one) };
            let (one, other) = (a(one.name), a(other.name));
            let questions =
                [format!("Which is bigger, {one} or {other}?"), format!("Is {one} bigger than {other}?")];
            let answer = format!("{} is bigger than {}", a(big.name), a(small.name));
            facts.push(fact(Subject::Animals, questions, &answer));
        }
    }
}

fn numbers(facts: &mut Vec<Fact>) {
    let mut add = |questions, answer: String| facts.push(fact(Subject::Numbers, questions, &answer));
    for x in 0..=10 {
        for y in 0..=10 {
            let (one, other) = (number(x), number(y));
            add(
                [format!("What is {one} plus {other}?"), format!("Add {one} and {other}.")],
                format!("{one} plus {other} is {}", number(x + y)),
            );
            if y <= x {
                add(
                    [format!("What is {one} minus {other}?"), format!("Take {other} from {one}.")],
                    format!("{one} minus {other} is {}", number(x - y)),
                );
            }
        }
    }
    for n in 0..40 {
        let (one, next) = (number(n), number(n + 1));
        add(
            [format!("What number comes after {one}?"), format!("Which number follows {one}?")],
            format!("the number after {one} is {next}"),
        );
        add(
            [format!("What number comes before {next}?"), format!("Which number stands before {next}?")],
            format!("the number before {next} is {one}"),
        );
    }
    for first in 0..16 {
        for last in first + 2..=first + 6 {
            let counted: Vec<String> = (first..=last).map(number).collect();
            let (one, other) = (number(first), number(last));
            add(
                [format!("Count from {one} to {other}."), format!("Please count from {one} up to {other}.")],
                counted.join(", "),
            );
        }
    }
}

fn times(facts: &mut Vec<Fact>) {
    for (what, names) in [("day", DAYS), ("month", MONTHS)] {
        for (i, name) in names.iter().enumerate() {
            let next = names[(i + 1) % names.len()];
            let questions =
                [format!("Which {what} comes after {name}?"), format!("What {what} follows {name}?")];
            facts.push(fact(Subject::Time, questions, &format!("the {what} after {name} is {next}")));
            let questions =
                [format!("Which {what} comes before {next}?"), format!("What {what} stands before {next}?")];
            facts.push(fact(Subject::Time, questions, &format!("the {what} before {next} is {name}")));
        }
    }
    for (i, month) in MONTHS.iter().enumerate() {
        let season = ["winter", "spring", "summer", "autumn"][((i + 1) % 12) / 3];
        let questions = [format!("In which season is {month}?"), format!("Tell me the season of {month}.")];
        facts.push(fact(Subject::Time, questions, &format!("{month} is in {season}")));
    }
}
