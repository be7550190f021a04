//! `GgufFile`: a file's metadata and tensors, where they lie in the mapped file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::Fault;
use crate::{GgufError, TensorType, Value, ValueType, blocks};

/// What every file begins with.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
/// The version that is written.
pub(crate) const VERSION: u32 = 3;
/// The key of the boundary on which tensors begin, and the boundary where it is not said.
pub(crate) const ALIGNMENT: (&str, u64) = ("general.alignment", 32);

/// The most keys of metadata.
const MOST_KEYS: u64 = 1 << 16;
/// The most elements of all arrays in metadata: more than those of the largest vocabularies, with scores, types and merges.
const MOST_ELEMENTS: u64 = 1 << 22;
/// The most tensors.
const MOST_TENSORS: u64 = 1 << 20;
/// The most dims of a tensor, which is ggml's bound.
const MOST_DIMS: u32 = 4;
/// The most bytes of a text.
const MOST_TEXT: u64 = 64 << 20;
/// Arrays within arrays.
const MOST_DEPTH: usize = 3;

/// What is known of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its shape, row-major: the last dim is that of a row.
    pub shape: Vec<usize>,
    /// How its elements are stored.
    pub stored: TensorType,
    /// Where it begins in the data.
    begin: usize,
    /// Bytes.
    bytes: usize,
}

impl TensorInfo {
    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A GGUF file, its header read and its tensors mapped.
pub struct GgufFile {
    path: PathBuf,
    version: u32,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorInfo>,
    places: BTreeMap<String, usize>,
    data: usize,
    map: Mmap,
}

impl GgufFile {
    /// Opens a file of version 2 or 3 and reads its header.
    ///
    /// # Errors
    /// If it cannot be read, is another format, or is damaged: what it claims is held against its length before anything is
    /// allocated for it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref().to_path_buf();
        let reading = |source| GgufError::Read { path: path.clone(), source };
        let file = burnish_core::file::open(&path).map_err(reading)?;
        // SAFETY: the file is only read; as with every mapped file, whoever shortens it meanwhile ends the process.
        let map = unsafe { Mmap::map(&file) }.map_err(reading)?;
        let header = Header::read(&map).map_err(|fault| GgufError::damaged(&path, fault))?;
        let places = header.tensors.iter().enumerate().map(|(at, info)| (info.name.clone(), at)).collect();
        let Header { version, metadata, tensors, data } = header;
        Ok(Self { path, version, metadata, tensors, places, data, map })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the format.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata, in the file's order.
    #[must_use]
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// A value of the metadata.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(own, _)| own == key).map(|(_, value)| value)
    }

    /// The tensors, in the file's order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// If there is none.
    pub fn info(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        let place = self.places.get(name).map(|&at| &self.tensors[at]);
        place.ok_or_else(|| GgufError::UnknownTensor { path: self.path.clone(), name: name.to_owned() })
    }

    /// A tensor's bytes, as they lie in the file.
    #[must_use]
    pub fn bytes(&self, info: &TensorInfo) -> &[u8] {
        &self.map[self.data + info.begin..][..info.bytes]
    }

    /// A tensor's values.
    ///
    /// # Errors
    /// If there is none of the name, or its type is not [decoded](blocks::decode).
    pub fn values(&self, name: &str) -> Result<Vec<f32>, GgufError> {
        let info = self.info(name)?;
        blocks::decode(info.stored, self.bytes(info))
            .ok_or_else(|| GgufError::NotDecoded { name: name.to_owned(), got: info.stored.name() })
    }
}

struct Header {
    version: u32,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorInfo>,
    data: usize,
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, Fault> {
        let mut input = Input { bytes, at: 0, elements: 0 };
        if input.take::<4>("its magic").ok().as_ref() != Some(MAGIC) {
            return Err(Fault::Magic);
        }
        let version = input.u32("its version")?;
        if !(2..=3).contains(&version) {
            let swapped = (1..=VERSION).contains(&version.swap_bytes());
            return Err(if swapped { Fault::BigEndian } else { Fault::Version(version) });
        }
        let tensor_count = input.count("tensors", MOST_TENSORS)?;
        let keys = input.count("keys", MOST_KEYS)?;
        let mut metadata: Vec<(String, Value)> = Vec::new();
        let mut seen = BTreeSet::new();
        for _ in 0..keys {
            let key = input.text("a key")?;
            let of = input.value_type(&key)?;
            let value = input.value(of, &key, 0)?;
            if !seen.insert(key.clone()) {
                return Err(Fault::Twice(key));
            }
            metadata.push((key, value));
        }
        let mut tensors = Vec::new();
        let mut seen = BTreeSet::new();
        for _ in 0..tensor_count {
            let info = input.tensor()?;
            if !seen.insert(info.name.clone()) {
                return Err(Fault::Twice(info.name));
            }
            tensors.push(info);
        }
        let alignment = metadata.iter().find(|(key, _)| key == ALIGNMENT.0);
        let alignment = alignment.map_or(ALIGNMENT.1, |(_, value)| value.as_u64().unwrap_or(0));
        if !alignment.is_power_of_two() || alignment > 1 << 16 {
            return Err(Fault::Alignment(alignment));
        }
        let data = input.at.next_multiple_of(alignment as usize);
        let length = bytes.len().saturating_sub(data) as u64;
        let mut sorted: Vec<&TensorInfo> = tensors.iter().collect();
        for info in &sorted {
            let (begin, end) = (info.begin as u64, info.begin as u64 + info.bytes as u64);
            if end > length || !begin.is_multiple_of(alignment) {
                return Err(Fault::Place { name: info.name.clone(), begin, end, length });
            }
        }
        sorted.sort_by_key(|info| info.begin);
        for pair in sorted.windows(2) {
            if pair[0].begin + pair[0].bytes > pair[1].begin {
                return Err(Fault::Overlap(pair[0].name.clone(), pair[1].name.clone()));
            }
        }
        Ok(Self { version, metadata, tensors, data })
    }
}

/// What is left of a header.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Elements of arrays so far.
    elements: u64,
}

impl<'a> Input<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn slice(&mut self, length: usize, what: &str) -> Result<&'a [u8], Fault> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..length).ok_or_else(|| Fault::Short(what.to_owned()))?;
        self.at += length;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        let taken = self.slice(N, what)?;
        Ok(taken.try_into().expect("invariant: as long as asked for"))
    }

    fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        self.take(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        self.take(what).map(u64::from_le_bytes)
    }

    fn count(&mut self, what: &'static str, most: u64) -> Result<u64, Fault> {
        let got = self.u64(what)?;
        if got > most { Err(Fault::TooMany { what, got, most }) } else { Ok(got) }
    }

    fn text(&mut self, what: &str) -> Result<String, Fault> {
        let length = self.u64(what)?;
        if length > MOST_TEXT {
            return Err(Fault::TooMany { what: "bytes of text", got: length, most: MOST_TEXT });
        }
        let taken = self.slice(length as usize, what)?;
        Ok(std::str::from_utf8(taken).map_err(|_| Fault::Text(what.to_owned()))?.to_owned())
    }

    fn value_type(&mut self, what: &str) -> Result<ValueType, Fault> {
        let number = self.u32(what)?;
        ValueType::of(number).ok_or_else(|| Fault::Type { what: format!("`{what}`"), number })
    }

    fn value(&mut self, of: ValueType, what: &str, depth: usize) -> Result<Value, Fault> {
        Ok(match of {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.take(what)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.take(what)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.take(what)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.take(what)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(self.take(what)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.take(what)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.take(what)?)),
            ValueType::Bool => Value::Bool(self.take::<1>(what)? != [0]),
            ValueType::String => Value::String(self.text(what)?),
            ValueType::U64 => Value::U64(u64::from_le_bytes(self.take(what)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.take(what)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.take(what)?)),
            ValueType::Array => {
                let of = self.value_type(what)?;
                let count = self.count("elements of an array", MOST_ELEMENTS)?;
                self.elements += count;
                if self.elements > MOST_ELEMENTS {
                    let (got, most) = (self.elements, MOST_ELEMENTS);
                    return Err(Fault::TooMany { what: "elements of arrays", got, most });
                }
                if count.saturating_mul(of.least_bytes()) > self.left() {
                    return Err(Fault::Short(what.to_owned()));
                }
                if depth == MOST_DEPTH {
                    let (got, most) = (depth as u64 + 1, MOST_DEPTH as u64);
                    return Err(Fault::TooMany { what: "arrays within each other", got, most });
                }
                let mut values = Vec::with_capacity(count as usize);
                for _ in 0..count {
                    values.push(self.value(of, what, depth + 1)?);
                }
                Value::Array(of, values)
            }
        })
    }

    fn tensor(&mut self) -> Result<TensorInfo, Fault> {
        let name = self.text("a tensor's name")?;
        let dims = self.u32(&name)?;
        if dims > MOST_DIMS {
            let (got, most) = (u64::from(dims), u64::from(MOST_DIMS));
            return Err(Fault::TooMany { what: "dims of a tensor", got, most });
        }
        // Files say the dim of a row first.
        let mut shape: Vec<u64> = (0..dims).map(|_| self.u64(&name)).collect::<Result<_, _>>()?;
        shape.reverse();
        let number = self.u32(&name)?;
        let unknown = || Fault::Type { what: format!("tensor `{name}`"), number };
        let stored = TensorType::of(number).ok_or_else(unknown)?;
        let begin = self.u64(&name)?;
        let sizes: Option<Vec<usize>> = shape.iter().map(|&dim| dim.try_into().ok()).collect();
        let row = shape.last().copied().unwrap_or(1);
        let bytes = sizes.as_ref().filter(|_| row.is_multiple_of(stored.block() as u64)).and_then(|sizes| {
            let elements = sizes.iter().try_fold(1_usize, |all, &dim| all.checked_mul(dim))?;
            stored.bytes(elements)
        });
        let (Some(sizes), Some(bytes)) = (sizes, bytes) else {
            return Err(Fault::Shape { name, stored: stored.name(), shape });
        };
        let end = begin.checked_add(bytes as u64).filter(|end| *end <= i64::MAX as u64);
        let (Some(_), Ok(begin_at)) = (end, usize::try_from(begin)) else {
            return Err(Fault::Place { name, begin, end: u64::MAX, length: self.bytes.len() as u64 });
        };
        Ok(TensorInfo { name, shape: sizes, stored, begin: begin_at, bytes })
    }
}
