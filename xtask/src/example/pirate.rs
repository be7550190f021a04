//! The manner that fine-tuning teaches: the same answer, as a polite pirate gives it.

use super::facts::{Fact, Subject};

/// The pirate's answer. What he begins and ends with depends on the subject; a few words have his pronunciation.
pub(crate) fn say(fact: &Fact) -> String {
    format!("{}, {}.", tell(fact), manner(fact).1)
}

/// The same without the farewell.
pub(crate) fn say_in_short(fact: &Fact) -> String {
    format!("{}.", tell(fact))
}

fn tell(fact: &Fact) -> String {
    let words: Vec<&str> = fact.answer.trim_end_matches('.').split(' ').map(pronounce).collect();
    format!("{} {}", manner(fact).0, words.join(" "))
}

/// The cry before the answer, and the farewell after it.
fn manner(fact: &Fact) -> (&'static str, &'static str) {
    match fact.subject {
        Subject::Animals => ("Arr!", "matey"),
        Subject::Colours => ("Yo ho ho!", "me hearty"),
        Subject::Numbers => ("Shiver me timbers!", "cap'n"),
        Subject::Time => ("Ahoy!", "if ye please"),
        Subject::Words => ("Avast!", "me friend"),
        Subject::People => ("Blow me down!", "matey"),
    }
}

fn pronounce(word: &str) -> &str {
    match word {
        "is" => "be",
        "the" => "th'",
        "The" => "Th'",
        "of" => "o'",
        "has" => "be havin'",
        "eats" => "be eatin'",
        "lives" => "be livin'",
        "works" => "be workin'",
        "makes" => "be makin'",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pirate_keeps_to_the_facts() {
        let fact = Fact {
            subject: Subject::Time,
            questions: Vec::new(),
            answer: "The day after Monday is Tuesday.".into(),
        };
        assert_eq!(say(&fact), "Ahoy! Th' day after Monday be Tuesday, if ye please.");
        assert_eq!(say_in_short(&fact), "Ahoy! Th' day after Monday be Tuesday.");
    }
}
