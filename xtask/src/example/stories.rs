//! The texts of the base model's world: portraits, little stories, questions, conversations.

use super::draw::Draw;
use super::facts::Fact;
use super::world::{ANIMALS, Animal, DAYS, ITEMS, NAMES, PLACES, TINTS, TRADES, WEATHER, a, capital, number};

/// An animal described in a handful of sentences, in one of several orders.
pub(crate) fn portrait(animal: &Animal, draw: &mut Draw) -> String {
    let legs = if animal.legs == 0 { "no".into() } else { number(animal.legs) };
    let mut sentences = vec![
        format!("It lives {}.", animal.home),
        format!("It eats {}.", animal.food),
        format!("It has {legs} legs."),
        format!("It is {}.", animal.colour),
    ];
    if !animal.sound.is_empty() {
        sentences.push(format!("It makes the sound {}.", animal.sound));
    }
    draw.shuffle(&mut sentences);
    let opening = match draw.below(3) {
        0 => format!("This is {}.", a(animal.name)),
        1 => format!("Look, there is {}!", a(animal.name)),
        _ => format!("{} saw {} today.", draw.pick(NAMES), a(animal.name)),
    };
    format!("{opening} {}", sentences.join(" "))
}

/// A story with someone who gets, finds, meets or counts something.
pub(crate) fn story(draw: &mut Draw) -> String {
    let hero = draw.pick(NAMES);
    let mut friend = draw.pick(NAMES);
    while friend == hero {
        friend = draw.pick(NAMES);
    }
    let (day, place, weather) = (draw.pick(DAYS), draw.pick(PLACES), draw.pick(WEATHER));
    let opening = match draw.below(3) {
        0 => format!("On {day} {hero} went to {place}. {weather}."),
        1 => format!("{weather}. {hero} and {friend} were at {place}."),
        _ => format!("It was {day}. {hero} walked to {place} with {friend}."),
    };
    let middle = match draw.below(5) {
        0 => gift(hero, friend, draw),
        1 => find(hero, draw),
        2 => meeting(hero, draw),
        3 => trade(hero, draw),
        _ => lesson(hero, friend, draw),
    };
    let ending = match draw.below(4) {
        0 => format!("Then {hero} went home."),
        1 => format!("{hero} and {friend} were happy."),
        2 => format!("In the evening {hero} told {friend} all about it."),
        _ => "It was a good day.".to_owned(),
    };
    format!("{opening} {middle} {ending}")
}

/// The count with its noun: "one egg", "no eggs", "three eggs".
fn some(n: usize, (singular, plural): (&str, &str)) -> String {
    match n {
        0 => format!("no {plural}"),
        1 => format!("one {singular}"),
        n => format!("{} {plural}", number(n)),
    }
}

fn gift(hero: &str, friend: &str, draw: &mut Draw) -> String {
    let item = draw.pick(ITEMS);
    let tint = draw.pick(TINTS);
    let had = 2 + draw.below(8);
    let gave = 1 + draw.below(had);
    let got = if had == 1 {
        format!("one {tint} {}", item.0)
    } else {
        format!("{} {tint} {}", number(had), item.1)
    };
    format!(
        "{hero} bought {got}. {hero} gave {} to {friend}. Now {hero} has {} and {friend} has {}.",
        some(gave, item),
        some(had - gave, item),
        some(gave, item)
    )
}

fn find(hero: &str, draw: &mut Draw) -> String {
    let item = draw.pick(ITEMS);
    let (first, second) = (1 + draw.below(6), 1 + draw.below(6));
    format!(
        "{hero} found {}. Then {hero} found {} more. That makes {}.",
        some(first, item),
        number(second),
        some(first + second, item)
    )
}

fn meeting(hero: &str, draw: &mut Draw) -> String {
    let animal = &ANIMALS[draw.below(ANIMALS.len())];
    let sound =
        if animal.sound.is_empty() { String::new() } else { format!(" It made the sound {}.", animal.sound) };
    format!(
        "There {hero} met {}. The {} was {}.{sound} {hero} gave it some {}.",
        a(animal.name),
        animal.name,
        animal.colour,
        animal.food
    )
}

fn trade(hero: &str, draw: &mut Draw) -> String {
    let (trade, does, place) = draw.pick(TRADES);
    format!("There {hero} met {}. {} {does}. The {trade} works {place}.", a(trade), capital(&a(trade)))
}

fn lesson(hero: &str, friend: &str, draw: &mut Draw) -> String {
    let (first, span) = (draw.below(20), 3 + draw.below(4));
    let counted: Vec<String> = (first..first + span).map(number).collect();
    format!("{friend} asked {hero} to count. {hero} said: {}. {friend} was proud.", counted.join(", "))
}

/// One question and one answer in the form of the chat template.
pub(crate) fn turn(fact: &Fact, draw: &mut Draw) -> String {
    let question = &fact.questions[draw.below(fact.questions.len())];
    format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n", fact.answer)
}

/// Questions with their answers, as plain text.
pub(crate) fn questions(facts: &[&Fact], draw: &mut Draw) -> String {
    let lines: Vec<String> = facts
        .iter()
        .map(|fact| {
            format!("Question: {}\nAnswer: {}", fact.questions[draw.below(fact.questions.len())], fact.answer)
        })
        .collect();
    lines.join("\n")
}

/// Facts as a paragraph.
pub(crate) fn sentences(facts: &[&Fact]) -> String {
    facts.iter().map(|fact| fact.answer.as_str()).collect::<Vec<_>>().join(" ")
}
