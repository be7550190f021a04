//! Values of a file's metadata.

use std::fmt;

/// The type of a value, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    /// An unsigned byte.
    U8 = 0,
    /// A signed byte.
    I8 = 1,
    /// 16 bits, unsigned.
    U16 = 2,
    /// 16 bits, signed.
    I16 = 3,
    /// 32 bits, unsigned.
    U32 = 4,
    /// 32 bits, signed.
    I32 = 5,
    /// A float.
    F32 = 6,
    /// A byte that is 0 or 1.
    Bool = 7,
    /// UTF-8 behind its length.
    String = 8,
    /// Values of one type behind that type and their number.
    Array = 9,
    /// 64 bits, unsigned.
    U64 = 10,
    /// 64 bits, signed.
    I64 = 11,
    /// A double.
    F64 = 12,
}

impl ValueType {
    /// The type with this number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        use ValueType::{Array, Bool, F32, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(number as usize).copied()
    }

    /// The fewest bytes that a value of it takes in a file.
    #[must_use]
    pub(crate) fn least_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An unsigned byte.
    U8(u8),
    /// A signed byte.
    I8(i8),
    /// 16 bits, unsigned.
    U16(u16),
    /// 16 bits, signed.
    I16(i16),
    /// 32 bits, unsigned.
    U32(u32),
    /// 32 bits, signed.
    I32(i32),
    /// A float.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// Text.
    String(String),
    /// Values of one type.
    Array(ValueType, Vec<Value>),
    /// 64 bits, unsigned.
    U64(u64),
    /// 64 bits, signed.
    I64(i64),
    /// A double.
    F64(f64),
}

impl Value {
    /// Its type.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(..) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// An array of texts.
    #[must_use]
    pub fn strings(values: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::Array(ValueType::String, values.into_iter().map(|value| Self::String(value.into())).collect())
    }

    /// An array of floats.
    #[must_use]
    pub fn floats(values: impl IntoIterator<Item = f32>) -> Self {
        Self::Array(ValueType::F32, values.into_iter().map(Self::F32).collect())
    }

    /// An array of 32-bit integers.
    #[must_use]
    pub fn integers(values: impl IntoIterator<Item = i32>) -> Self {
        Self::Array(ValueType::I32, values.into_iter().map(Self::I32).collect())
    }

    /// An array of truths.
    #[must_use]
    pub fn truths(values: impl IntoIterator<Item = bool>) -> Self {
        Self::Array(ValueType::Bool, values.into_iter().map(Self::Bool).collect())
    }

    /// The text, if it is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// The number, if it is a whole one that is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::U64(value) => Some(value),
            Self::I8(value) => value.try_into().ok(),
            Self::I16(value) => value.try_into().ok(),
            Self::I32(value) => value.try_into().ok(),
            Self::I64(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// Writes it as it lies in a file, without its type.
    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        match self {
            Self::U8(value) => into.push(*value),
            Self::I8(value) => into.extend(value.to_le_bytes()),
            Self::U16(value) => into.extend(value.to_le_bytes()),
            Self::I16(value) => into.extend(value.to_le_bytes()),
            Self::U32(value) => into.extend(value.to_le_bytes()),
            Self::I32(value) => into.extend(value.to_le_bytes()),
            Self::F32(value) => into.extend(value.to_le_bytes()),
            Self::Bool(value) => into.push(u8::from(*value)),
            Self::String(text) => write_text(text, into),
            Self::Array(of, values) => {
                into.extend((*of as u32).to_le_bytes());
                into.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| value.write(into));
            }
            Self::U64(value) => into.extend(value.to_le_bytes()),
            Self::I64(value) => into.extend(value.to_le_bytes()),
            Self::F64(value) => into.extend(value.to_le_bytes()),
        }
    }
}

/// Text behind its length.
pub(crate) fn write_text(text: &str, into: &mut Vec<u8>) {
    into.extend((text.len() as u64).to_le_bytes());
    into.extend(text.as_bytes());
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<f32> for Value {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(value) => write!(f, "{value}"),
            Self::I8(value) => write!(f, "{value}"),
            Self::U16(value) => write!(f, "{value}"),
            Self::I16(value) => write!(f, "{value}"),
            Self::U32(value) => write!(f, "{value}"),
            Self::I32(value) => write!(f, "{value}"),
            Self::F32(value) => write!(f, "{value}"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::String(text) => f.write_str(text),
            Self::Array(of, values) => write!(f, "{} × {of:?}", values.len()),
            Self::U64(value) => write!(f, "{value}"),
            Self::I64(value) => write!(f, "{value}"),
            Self::F64(value) => write!(f, "{value}"),
        }
    }
}
