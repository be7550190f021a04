//! Values of Arrow arrays as `datasets` gives them to Python, in JSON's types.

use std::cell::Cell;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, TimeUnit};
use serde_json::{Map, Number, Value};

use crate::source::lines::MOST_ROW_BYTES;

/// Lists and structs within each other that are followed.
const DEEPEST: usize = 64;

/// Bytes that a value takes beside its text.
const EACH: usize = 8;

/// A row of a batch, and the bytes that it takes; `None` where it has more than a row may have.
pub(super) fn row(batch: &RecordBatch, at: usize) -> Option<(Map<String, Value>, usize)> {
    let schema = batch.schema();
    let mut row = Map::new();
    let budget = Budget(Cell::new(MOST_ROW_BYTES as usize));
    budget.spend(EACH)?;
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        if is_readable(field.data_type(), 0) {
            budget.spend(EACH + field.name().len())?;
            row.insert(field.name().clone(), budget.value(field, column.as_ref(), at)?);
        }
    }
    Some((row, MOST_ROW_BYTES as usize - budget.0.get()))
}

/// Whether values of this type can be told in JSON.
pub(super) fn is_readable(kind: &DataType, depth: usize) -> bool {
    if depth > DEEPEST {
        return false;
    }
    let field = |field: &Field| is_readable(field.data_type(), depth + 1);
    match kind {
        DataType::Null
        | DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32
        | DataType::UInt64
        | DataType::Float16
        | DataType::Float32
        | DataType::Float64
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Timestamp(..)
        | DataType::Date32
        | DataType::Date64 => true,
        DataType::List(inner)
        | DataType::LargeList(inner)
        | DataType::FixedSizeList(inner, _)
        | DataType::Map(inner, _) => field(inner),
        DataType::Struct(fields) => fields.iter().all(|f| field(f)),
        DataType::Dictionary(_, values) => is_readable(values, depth + 1),
        _ => false,
    }
}

macro_rules! number {
    ($array:expr, $at:expr, $type:ty) => {
        Value::from($array.as_primitive::<$type>().value($at))
    };
}

macro_rules! time {
    ($array:expr, $at:expr, $type:ty) => {
        $array.as_primitive::<$type>().value_as_datetime($at).map_or(Value::Null, |t| {
            // As Python writes it: microseconds where there are any.
            let text = t.format("%Y-%m-%dT%H:%M:%S%.6f").to_string();
            Value::String(text.strip_suffix(".000000").map_or(text.clone(), str::to_owned))
        })
    };
}

/// Bytes that a row may still take: a column of nothing but nulls takes none in its file, however long its lists are.
struct Budget(Cell<usize>);

impl Budget {
    fn spend(&self, bytes: usize) -> Option<()> {
        self.0.set(self.0.get().checked_sub(bytes)?);
        Some(())
    }

    fn items(&self, inner: &Field, items: &dyn Array) -> Option<Value> {
        self.spend(items.len().checked_mul(EACH)?)?;
        (0..items.len()).map(|i| self.value(inner, items, i)).collect::<Option<Vec<_>>>().map(Value::Array)
    }

    /// The value at `at` of a column of readable type.
    fn value(&self, field: &Field, array: &dyn Array, at: usize) -> Option<Value> {
        if array.is_null(at) {
            return Some(Value::Null);
        }
        Some(match array.data_type() {
            DataType::Utf8 => self.text(field, array.as_string::<i32>().value(at))?,
            DataType::LargeUtf8 => self.text(field, array.as_string::<i64>().value(at))?,
            DataType::Utf8View => self.text(field, array.as_string_view().value(at))?,
            DataType::List(inner) => self.items(inner, array.as_list::<i32>().value(at).as_ref())?,
            DataType::LargeList(inner) => self.items(inner, array.as_list::<i64>().value(at).as_ref())?,
            DataType::FixedSizeList(inner, _) => {
                self.items(inner, array.as_fixed_size_list().value(at).as_ref())?
            }
            DataType::Struct(fields) => {
                self.spend(fields.len() * EACH)?;
                let columns = array.as_struct().columns();
                let pair = |(f, c): (&Arc<Field>, &ArrayRef)| {
                    Some((f.name().clone(), self.value(f, c.as_ref(), at)?))
                };
                Value::Object(fields.iter().zip(columns).map(pair).collect::<Option<_>>()?)
            }
            // Pairs of key and value, in the file's order.
            DataType::Map(inner, _) => {
                let DataType::Struct(fields) = inner.data_type() else { return Some(Value::Null) };
                let entries = array.as_map().value(at);
                self.spend(entries.len().checked_mul(3 * EACH)?)?;
                let pair = |i| {
                    let pairs = fields.iter().zip(entries.columns());
                    pairs
                        .map(|(f, c)| self.value(f, c.as_ref(), i))
                        .collect::<Option<Vec<_>>>()
                        .map(Value::Array)
                };
                Value::Array((0..entries.len()).map(pair).collect::<Option<_>>()?)
            }
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let key = Field::new("", dictionary.keys().data_type().clone(), true);
                let key = self.value(&key, dictionary.keys(), at)?;
                let key = key.as_u64().and_then(|key| usize::try_from(key).ok());
                match key.filter(|&key| key < dictionary.values().len()) {
                    Some(key) => self.value(field, dictionary.values().as_ref(), key)?,
                    None => Value::Null,
                }
            }
            _ => plain(array, at),
        })
    }

    /// Text, or what it says where the column holds JSON (`datasets.Json`).
    fn text(&self, field: &Field, text: &str) -> Option<Value> {
        self.spend(text.len())?;
        let json = field.metadata().get("ARROW:extension:name").is_some_and(|name| name == "arrow.json");
        let read = if json { serde_json::from_str(text).ok() } else { None };
        Some(read.unwrap_or_else(|| Value::String(text.to_owned())))
    }
}

/// A number, a truth value or a time, which is there.
fn plain(array: &dyn Array, at: usize) -> Value {
    let float = |number: f64| Number::from_f64(number).map_or(Value::Null, Value::Number);
    match array.data_type() {
        DataType::Boolean => Value::Bool(array.as_boolean().value(at)),
        DataType::Int8 => number!(array, at, Int8Type),
        DataType::Int16 => number!(array, at, Int16Type),
        DataType::Int32 => number!(array, at, Int32Type),
        DataType::Int64 => number!(array, at, Int64Type),
        DataType::UInt8 => number!(array, at, UInt8Type),
        DataType::UInt16 => number!(array, at, UInt16Type),
        DataType::UInt32 => number!(array, at, UInt32Type),
        DataType::UInt64 => number!(array, at, UInt64Type),
        DataType::Float16 => float(array.as_primitive::<Float16Type>().value(at).to_f64()),
        DataType::Float32 => float(f64::from(array.as_primitive::<Float32Type>().value(at))),
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(at)),
        DataType::Timestamp(unit, _) => match unit {
            TimeUnit::Second => time!(array, at, TimestampSecondType),
            TimeUnit::Millisecond => time!(array, at, TimestampMillisecondType),
            TimeUnit::Microsecond => time!(array, at, TimestampMicrosecondType),
            TimeUnit::Nanosecond => time!(array, at, TimestampNanosecondType),
        },
        DataType::Date32 => date(array.as_primitive::<Date32Type>().value_as_date(at)),
        DataType::Date64 => date(array.as_primitive::<Date64Type>().value_as_date(at)),
        _ => Value::Null,
    }
}

fn date(date: Option<impl std::fmt::Display>) -> Value {
    date.map_or(Value::Null, |date| Value::String(date.to_string()))
}
