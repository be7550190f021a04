//! GGUF files, as llama.cpp reads them.
//!
//! * [`GgufFile`]: a file's metadata and tensors, where they lie in the mapped file; what a damaged or hostile file claims is
//!   bounded before anything is allocated for it.
//! * [`GgufWriter`]: a file written tensor by tensor, which gets its name when it is done.
//! * [`blocks`]: values to `Q8_0`, `Q4_0`, `Q5_0`, `Q4_K`, `Q5_K` and `Q6_K` in the bits of ggml's reference code, and back.
//! * [`OutType`], [`Mix`]: which type each tensor of a file gets, as `llama-quantize` chooses.
//! * [`vocabulary`]: a tokenizer's metadata, from Hugging Face's and SentencePiece's files.
//!
//! ```
//! use burnish_gguf::{GgufFile, GgufWriter, TensorSpec, TensorType, Value, blocks};
//!
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("m.gguf");
//! let values: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
//! let spec = TensorSpec { name: "w".to_owned(), shape: vec![2, 32], stored: TensorType::Q8_0 };
//! let metadata = [("general.architecture".to_owned(), Value::from("llama"))];
//! let mut writer = GgufWriter::create(&path, &metadata, vec![spec]).unwrap();
//! writer.write(&blocks::encode(TensorType::Q8_0, &values).unwrap()).unwrap();
//! writer.commit().unwrap();
//!
//! let file = GgufFile::open(&path).unwrap();
//! assert_eq!(file.get("general.architecture").and_then(Value::as_str), Some("llama"));
//! let read = file.values("w").unwrap();
//! assert!(values.iter().zip(&read).all(|(a, b)| (a - b).abs() < 0.005));
//! ```

pub mod blocks;
mod error;
mod out_type;
mod reader;
mod tensor_type;
mod value;
pub mod vocabulary;
mod writer;

pub use error::{Fault, GgufError};
pub use out_type::{Mix, OutType};
pub use reader::{GgufFile, TensorInfo};
pub use tensor_type::TensorType;
pub use value::{Value, ValueType};
pub use writer::{GgufWriter, TensorSpec};
