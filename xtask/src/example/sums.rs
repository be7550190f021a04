//! Sums and differences, asked in fewer words than the base has read, each with its answer: what a reward can check.

use serde_json::json;

use super::world::{capital, number};

/// Of so many questions one is held out.
const HELD_OUT: usize = 5;

/// Rows to train on, and rows to evaluate on.
pub(crate) fn rows() -> (String, String) {
    let (mut train, mut eval) = (String::new(), String::new());
    let mut add = |at: usize, question: String, answer: String| {
        let row = json!({
            "prompt": [{"role": "user", "content": capital(&question)}],
            "solution": format!("{}.", capital(&answer)),
        });
        let rows = if at.is_multiple_of(HELD_OUT) { &mut eval } else { &mut train };
        rows.push_str(&format!("{row}\n"));
    };
    for x in 0..=10 {
        for y in 0..=10 {
            let (one, other) = (number(x), number(y));
            let sum = number(x + y);
            add(2 * x + y, format!("{one} and {other}?"), format!("{one} plus {other} is {sum}"));
            if y <= x {
                let rest = number(x - y);
                add(2 * x + y + 1, format!("{one} less {other}?"), format!("{one} minus {other} is {rest}"));
            }
        }
    }
    (train, eval)
}
