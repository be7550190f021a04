//! Decoder-only language models in Hugging Face's layout, on one generic decoder.
//!
//! A family is data: [`Spec`] says what differs (biases, per-head norms, windows, rotary scaling, tying),
//! [`Blueprint`] names the parameters before storage exists, [`Decoder`] runs them. Weights keep Hugging Face's
//! `[out, in]` layout and stored dtype; sequences are flattened, never padded.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use burnish_models::{Mode, Tokens, load};
//!
//! let model = load("path/to/model", &Device::flex()).unwrap().decoder;
//! let tokens = Tokens::from_sequences(&[vec![1, 2, 3]]);
//! let pass = model.pass(Mode::Score);
//! let hidden = model.final_norm(&model.hidden(&tokens, &pass).unwrap(), &pass).unwrap();
//! let logits = burnish_ops::head_logits(&hidden, &model.head(&pass, &tokens.rows).unwrap(), model.head_options(1.0)).unwrap();
//! assert_eq!(logits.len(), 3 * model.spec().vocab);
//! ```
//!
//! Text is generated in batches over a cache of keys and values ([`Decoder::generate`], [`Decoding`]):
//!
//! ```no_run
//! use burn::tensor::Device;
//! use burnish_models::{ConfigFile, GenerationConfig, load};
//!
//! let folder = std::path::Path::new("path/to/model");
//! let model = load(folder, &Device::flex()).unwrap().decoder;
//! let settings = GenerationConfig::read(folder, &ConfigFile::read(folder).unwrap()).unwrap().generation(0);
//! for completion in model.generate(&[vec![1, 2], vec![3]], &settings, &mut |_row, _token| true).unwrap() {
//!     println!("{:?} ({})", completion.token_ids, completion.finish_reason);
//! }
//! ```

mod adapter;
mod apart;
mod blueprint;
mod collectives;
mod config;
mod decoder;
mod decoding;
mod error;
mod export;
mod folder;
mod footprint;
mod generate;
mod generation_config;
mod layers;
mod load;
mod logit_peaks;
mod parallel;
mod pass;
mod qk_clip;
mod resident;
mod rope;
mod sample;
mod score;
mod spec;

pub use adapter::SCORING_TASK;
pub use blueprint::{Blueprint, EMBED, HEAD, SCORE};
pub use burnish_ops::Parameters;
pub use collectives::{PassSize, ScoreSize};
pub use config::ConfigFile;
pub use decoder::{Decoder, Tokens};
pub use decoding::Decoding;
pub use error::{ModelError, WeightFault};
pub use export::{Exporter, RowSource};
pub use folder::{ModelFolder, copy_companions, to_device, to_host};
pub use generate::{Completion, FinishReason, Generation};
pub use generation_config::GenerationConfig;
pub use layers::DropoutStep;
pub use load::{Model, Planned, Reloaded, Tuning, load};
pub use logit_peaks::LogitPeaks;
pub use parallel::{Parallel, plan};
pub use pass::{Mode, Pass};
pub use qk_clip::{Clip, HeadFactors, QkClip, RowFactors};
pub use resident::Resident;
pub use rope::{Rope, RopeKind};
pub use sample::{Sampling, first_maximum};
pub use spec::{Family, Output, Spec};
