//! Damage: to bytes, to JSON.

use serde_json::{Map, Value, json};

use crate::random::Random;

/// Damages bytes; what was done.
pub(crate) fn bytes(random: &mut Random, bytes: &mut Vec<u8>) -> String {
    let length = bytes.len();
    let at = random.below(length);
    match random.below(9) {
        0 | 1 if length > 0 => {
            let bit = random.below(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} flipped")
        }
        2 if length > 0 => {
            bytes[at] = *random.of_these(&[0, 0xff, b'{', b'"', b'\\', 0x1b, b'9', b'-']);
            format!("byte {at} is {:#04x}", bytes[at])
        }
        3 => {
            bytes.truncate(at);
            format!("cut off at {at}")
        }
        4 if length > 0 => {
            let end = (at + 1 + random.below(64)).min(length);
            bytes[at..end].fill(0);
            format!("bytes {at}..{end} are zero")
        }
        5 if length > 0 => {
            let end = (at + 1 + random.below(32)).min(length);
            bytes.drain(at..end);
            format!("bytes {at}..{end} are gone")
        }
        6 if length > 0 => {
            let end = (at + 1 + random.below(64)).min(length);
            let copy = bytes[at..end].to_vec();
            bytes.splice(at..at, copy);
            format!("bytes {at}..{end} are there twice")
        }
        7 => {
            let more = 1 + random.below(100);
            bytes.extend((0..more).map(|_| random.next() as u8));
            format!("{more} bytes more at the end")
        }
        _ => {
            let count = 1 + random.below(16);
            for _ in 0..count.min(length) {
                let at = random.below(length);
                bytes[at] = random.next() as u8;
            }
            format!("{count} bytes at random")
        }
    }
}

/// A change to JSON.
pub(crate) struct Change {
    /// The place, and what it became.
    pub(crate) what: String,
    /// The last key on the way to the place.
    pub(crate) key: String,
    /// Whether the place has now a value of another type than it had.
    pub(crate) other_type: bool,
}

/// Values by type, none of them likely.
pub(crate) fn unlikely(random: &mut Random) -> Value {
    let deep = || {
        let mut deep = json!([]);
        for _ in 0..200 {
            deep = json!([deep]);
        }
        deep
    };
    match random.below(22) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(false),
        3 => json!(""),
        4 => json!("\u{1b}[2Jx"),
        5 => json!("a".repeat(5_000)),
        6 => json!(0),
        7 => json!(-1),
        8 => json!(1),
        9 => json!(7),
        10 => json!(1_000_000_007_u64),
        11 => json!(u64::MAX),
        12 => json!(i64::MIN),
        13 => json!(1e308),
        14 => json!(-0.5),
        15 => json!(1e-30),
        16 => json!([]),
        17 => json!({}),
        18 => json!([1, "a", null]),
        19 => json!("../../../etc/passwd"),
        20 => json!("NaN"),
        _ => deep(),
    }
}

/// Changes one place of a JSON value.
pub(crate) fn value(random: &mut Random, whole: &mut Value) -> Change {
    let mut places = Vec::new();
    collect(whole, String::new(), &mut places);
    let place = random.of_these(&places).clone();
    let key = place.rsplit('/').find(|part| part.parse::<usize>().is_err()).unwrap_or_default().to_owned();
    if random.below(5) == 0
        && let Some((parent, last)) = place.rsplit_once('/')
    {
        match whole.pointer_mut(parent) {
            Some(Value::Object(object)) => {
                let last = last.replace("~1", "/").replace("~0", "~");
                if random.below(3) == 0
                    && let Some(value) = object.remove(&last)
                {
                    object.insert(format!("{last}_"), value);
                    return Change { what: format!("{place} renamed"), key, other_type: false };
                }
                object.remove(&last);
            }
            Some(Value::Array(list)) => {
                if let Ok(at) = last.parse::<usize>() {
                    list.remove(at);
                }
            }
            _ => {}
        }
        return Change { what: format!("{place} removed"), key, other_type: false };
    }
    let Some(found) = whole.pointer_mut(&place) else {
        return Change { what: "nothing".to_owned(), key, other_type: false };
    };
    let scaled = found.as_f64().filter(|_| random.below(3) == 0);
    let new = match scaled {
        Some(number) if found.is_u64() => {
            let factors = [0.5, 2.0, 3.0, 10.0, 1e3, 1e6, 1e12];
            json!((number * random.of_these(&factors)) as u64 + random.below(2) as u64)
        }
        Some(number) => json!(number * random.of_these(&[-1.0, 0.5, 2.0, 1e3, 1e30])),
        None => unlikely(random),
    };
    let kind = |value: &Value| match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    };
    let other_type = kind(found) != kind(&new);
    let shown: String = new.to_string().chars().take(60).collect();
    *found = new;
    Change { what: format!("{place} = {shown}"), key, other_type }
}

fn collect(value: &Value, path: String, into: &mut Vec<String>) {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(object) => {
            object.iter().for_each(|(key, value)| collect(value, format!("{path}/{}", escaped(key)), into));
        }
        Value::Array(list) => {
            // Long lists (vocabularies) would drown everything else.
            list.iter()
                .enumerate()
                .take(8)
                .for_each(|(i, value)| collect(value, format!("{path}/{i}"), into));
        }
        _ => {}
    }
    into.push(path);
}

/// Changes one column of one row.
pub(crate) fn row(random: &mut Random, row: &mut Map<String, Value>) -> Change {
    let mut value_of = Value::Object(std::mem::take(row));
    let change = value(random, &mut value_of);
    if let Value::Object(changed) = value_of {
        *row = changed;
    }
    change
}
