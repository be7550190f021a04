//! The common prompt of a chosen and a rejected conversation (TRL's `extract_prompt`).

use crate::row::{Message, Text};

/// Splits off what `chosen` and `rejected` have in common from their start: (prompt, chosen, rejected).
///
/// Plain text is compared by character and conversations by message. A space before the first difference belongs to
/// the answers. Where one is the start of the other, the last character or message they share is left to both, so
/// that neither is empty.
///
/// TRL reads the character before the first as the last one and may then split at the wrong end; here there is no
/// character before the first.
#[must_use]
pub fn extract_prompt(chosen: &Text, rejected: &Text) -> (Text, Text, Text) {
    match (chosen, rejected) {
        (Text::Plain(chosen), Text::Plain(rejected)) => {
            let mut shared: Vec<char> =
                (chosen.chars().zip(rejected.chars())).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
            let bytes = |shared: &[char]| shared.iter().map(|c| c.len_utf8()).sum::<usize>();
            let ends = bytes(&shared) == chosen.len().min(rejected.len());
            if ends || shared.last() == Some(&' ') {
                shared.pop();
            }
            let at = bytes(&shared);
            let plain = |text: &str| Text::Plain(text.to_owned());
            (plain(&chosen[..at]), plain(&chosen[at..]), plain(&rejected[at..]))
        }
        (Text::Chat(chosen), Text::Chat(rejected)) => {
            let shared = chosen.iter().zip(rejected).take_while(|(a, b)| a == b).count();
            let shared = shared.min(chosen.len().min(rejected.len()).saturating_sub(1));
            let chat = |messages: &[Message]| Text::Chat(messages.to_vec());
            (chat(&chosen[..shared]), chat(&chosen[shared..]), chat(&rejected[shared..]))
        }
        _ => unreachable!("`Row::parse` refuses rows that mix text and messages"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(chosen: &str, rejected: &str) -> [String; 3] {
        let plain = |text: &str| Text::Plain(text.to_owned());
        let text = |text| match text {
            Text::Plain(text) => text,
            Text::Chat(_) => panic!("text in, text out"),
        };
        let (prompt, chosen, rejected) = extract_prompt(&plain(chosen), &plain(rejected));
        [text(prompt), text(chosen), text(rejected)]
    }

    #[test]
    fn a_space_before_the_difference_belongs_to_the_answers() {
        assert_eq!(split("It is blue.", "It is red."), ["It is", " blue.", " red."]);
        assert_eq!(split("It is  blue.", "It is  red."), ["It is ", " blue.", " red."]);
        assert_eq!(split("It is\nblue.", "It is\nred."), ["It is\n", "blue.", "red."]);
        assert_eq!(split("Größe – ja", "Größe – né"), ["Größe –", " ja", " né"]);
        assert_eq!(split("🌧🌧a", "🌧🌦b"), ["🌧", "🌧a", "🌦b"]);
    }

    #[test]
    fn neither_answer_is_empty() {
        assert_eq!(split("It is", "It is blue"), ["It i", "s", "s blue"]);
        assert_eq!(split("same", "same"), ["sam", "e", "e"]);
        assert_eq!(split("ends ", "ends "), ["ends", " ", " "]);
        assert_eq!(split("ends x", "ends "), ["ends", " x", " "]);
    }

    #[test]
    fn nothing_in_common() {
        assert_eq!(split("ab ", "cd "), ["", "ab ", "cd "]);
        assert_eq!(split("", "cd"), ["", "", "cd"]);
    }
}
