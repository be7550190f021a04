//! `TokenizerParts`: what `tokenizer.json` says of how much its parts make of a text. The library has no bounds of its own.

use serde::Deserialize;
use serde_json::Value;

/// Most characters of a word that WordPiece looks up piece by piece, in time that grows with their square; usual are 100.
const MOST_WORD: u64 = 1000;
/// Most bytes that stand for one byte of a token's text, and pieces that a post-processor puts together.
const MOST: usize = 64;
/// Most bytes that are put before a text.
const MOST_BEFORE: usize = 1 << 10;

#[derive(Deserialize)]
pub(crate) struct TokenizerParts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    model: Option<ModelParts>,
}

#[derive(Deserialize)]
struct ModelParts {
    #[serde(default)]
    max_input_chars_per_word: Option<u64>,
}

impl TokenizerParts {
    /// How many times its bytes a text may have when it is normalised.
    ///
    /// # Errors
    /// Why no such tokenizer is used.
    pub(crate) fn growth(&self) -> Result<usize, String> {
        let word = self.model.as_ref().and_then(|model| model.max_input_chars_per_word).unwrap_or(0);
        if word > MOST_WORD {
            return Err(format!(
                "`max_input_chars_per_word` of its model is {word}, expected at most {MOST_WORD}"
            ));
        }
        let decoded = growth(&self.decoder)?;
        if decoded > MOST {
            return Err(format!("its decoder makes up to {decoded} bytes of one, expected at most {MOST}"));
        }
        let (pieces, times) = pieces(&self.post_processor);
        if pieces > MOST || times > 4 {
            return Err(format!(
                "its post_processor puts {pieces} pieces together and repeats a text {times} times, expected at most {MOST} and 4"
            ));
        }
        growth(&self.normalizer)
    }
}

/// The product over all that follow one another.
fn growth(part: &Value) -> Result<usize, String> {
    let length = |value: &Value| value.as_str().map_or(0, str::len);
    let before = length(&part["prepend"]);
    if before > MOST_BEFORE {
        return Err(format!(
            "its normalizer puts {before} bytes before a text, expected at most {MOST_BEFORE}"
        ));
    }
    let mut product = 1_usize;
    if !part["pattern"].is_null() {
        // An expression may match a single byte; at a text's beginning it does so once.
        let once = part["pattern"]["Regex"]
            .as_str()
            .is_some_and(|regex| regex.starts_with(r"\A") && !regex.contains('|'));
        let matched = length(&part["pattern"]["String"]).max(1);
        product = if once { 1 } else { length(&part["content"]).div_ceil(matched).max(1) };
    }
    for within in ["normalizers", "decoders"] {
        for part in part[within].as_array().into_iter().flatten() {
            product = product.saturating_mul(growth(part)?);
        }
    }
    Ok(product)
}

/// How many pieces a post-processor puts together, and how often the text is among them.
fn pieces(part: &Value) -> (usize, usize) {
    let single = part["single"].as_array();
    let count = single.map_or(0, Vec::len);
    let texts = single.map_or(1, |all| all.iter().filter(|piece| !piece["Sequence"].is_null()).count());
    let within = part["processors"].as_array().into_iter().flatten().map(pieces);
    within.fold((count, texts), |(all, times), (count, texts)| {
        (all + count, times.saturating_mul(texts.max(1)))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn growth_of(tokenizer: &Value) -> Result<usize, String> {
        serde_json::from_value::<TokenizerParts>(tokenizer.clone()).unwrap().growth()
    }

    fn replace(pattern: &Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    #[test]
    fn parts_are_counted() {
        assert_eq!(growth_of(&json!({"normalizer": null, "model": {"vocab": {"a": 0}}})), Ok(1));
        let sentence_piece = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"}, replace(&json!({"String": " "}), "\u{2581}"),
            replace(&json!({"String": "``"}), "\""),
        ]});
        assert_eq!(growth_of(&json!({"normalizer": sentence_piece})), Ok(3));
        let ten = replace(&json!({"Regex": "."}), "aaaaaaaaaa");
        let nested = json!({"type": "Sequence", "normalizers": [ten, {"type": "Sequence", "normalizers": [ten, ten]}]});
        assert_eq!(growth_of(&json!({"normalizer": nested})), Ok(1000));
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let once = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, text]});
        assert_eq!(growth_of(&json!({"post_processor": once})), Ok(1));
        let twice = json!({"single": [text, text]});
        for refused in [
            json!({"normalizer": {"type": "Prepend", "prepend": "x".repeat(2000)}}),
            json!({"decoder": replace(&json!({"String": "a"}), &"b".repeat(65))}),
            json!({"post_processor": {"single": vec![text.clone(); 65]}}),
            json!({"post_processor": {"type": "Sequence", "processors": [twice, twice, twice]}}),
            json!({"model": {"type": "WordPiece", "max_input_chars_per_word": 1_000_000}}),
        ] {
            assert!(growth_of(&refused).is_err(), "{refused}");
        }
    }
}
