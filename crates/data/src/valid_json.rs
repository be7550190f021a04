//! `ValidJson`: JSON whose texts are texts, read for nothing but that.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Any JSON, every escape in it looked at (what serde ignores it does not look into): a library that reads the same bytes
/// later meets no text that is none.
pub(crate) struct ValidJson;

impl<'de> Deserialize<'de> for ValidJson {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Look)
    }
}

struct Look;

impl<'de> Visitor<'de> for Look {
    type Value = ValidJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_unit<E: Error>(self) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ValidJson, A::Error> {
        while list.next_element::<ValidJson>()?.is_some() {}
        Ok(ValidJson)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ValidJson, A::Error> {
        while map.next_key::<ValidKey>()?.is_some() {
            map.next_value::<ValidJson>()?;
        }
        Ok(ValidJson)
    }
}

/// A key is a text, or a number where an object counts.
struct ValidKey;

impl<'de> Deserialize<'de> for ValidKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Look).map(|_| Self)
    }
}

#[cfg(test)]
mod tests {
    use super::ValidJson;

    #[test]
    fn every_escape_is_looked_at() {
        let valid = |text: &str| serde_json::from_str::<ValidJson>(text).is_ok();
        assert!(valid(r#"{"a": [1, -2, 3.5, null, true, "b\n\u00e9", {"c": {}}]}"#));
        for text in [r#"["\ud800"]"#, r#"{"\udc00x": 1}"#, r#"["a]"#, "[1,]", "{}{}", r#"["\q"]"#] {
            assert!(!valid(text), "{text}");
        }
    }
}
