//! Decoder-only language models in Hugging Face's layout, on one generic decoder.
//!
//! A family is data: [`Spec`] says what differs (norms and where they stand, biases, windows, ropes, multipliers, names),
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

mod decoder;
mod error;
mod files;
mod generation;
mod packed_fault;
mod spec;

pub use burnish_ops::{Parameters, RouterBalance};
pub use decoder::adapter::SCORING_TASK;
pub use decoder::blueprint::Blueprint;
pub use decoder::embedding_noise::EmbeddingNoise;
pub use decoder::forward_context::{ForwardContext, Mode};
pub use decoder::input_tap::InputTap;
pub use decoder::layers::DropoutStep;
pub use decoder::local_params::LocalParams;
pub use decoder::logit_peaks::LogitPeaks;
pub use decoder::orthogonality::Orthogonality;
pub use decoder::tp_plan::{ExpertSharding, ModelAxes, Parallel};
pub use decoder::{Decoder, Tokens};
pub use error::{ModelError, WeightFault};
pub use files::adapter_by_expert::AdapterByExpert;
pub use files::export::{Exporter, RowSource};
pub use files::folder::{ModelFolder, copy_companions, to_device, to_host};
pub use files::gguf::{GgufAdapterExport, GgufExport, ReadBack, TensorError};
pub use files::load::{Model, ModelPlan, Reloaded, Tuning, load};
pub use files::mixed_adapters::MixedAdapters;
pub use files::pass_work::{Operands, Operation, PassKind, PassWork, Phase, Piece, Routed, Texts};
pub use files::qk_clip::{Clip, HeadFactors, QkClip, RowFactors};
pub use files::start_from_rows::{BatchLoss, RowStart, RowsToStart, TokenRow};
pub use files::tp_traffic::{DecodingSize, PassSize, ScoreSize};
pub use generation::continuous_batch::{ContinuousBatch, OnToken, Sequence, Token};
pub use generation::conversation::Conversation;
pub use generation::decoding::{AdaptedPrompt, Decoding};
pub use generation::generate::{Completion, FinishReason, Generation};
pub use generation::generation_config::GenerationConfig;
pub use generation::int8::{INT8, int8_for_generation, rests_in_int8};
pub use generation::sample::{Sampling, first_maximum};
pub use packed_fault::PackedFault;
pub use spec::config::ConfigFile;
pub use spec::names::{DeltaNames, ExpertFiles, ExpertNames, Names, QkvNames, SsdNames, UpNames};
pub use spec::rope::{Rope, RopeKind};
pub use spec::{
    AltUp, BlockLayout, BlockSizes, ChannelDecay, ExpertsSpec, Family, GatedDelta, Grows, HeadGates,
    KeysValues, LatentAttention, LayerSpec, LearnedPositions, NormKind, Output, Pairs, PerLayerInputs,
    QkNorm, QueryGrowth, SelectiveScanSpec, SharedExpert, ShortConv, Spec, SsdSpec,
};
pub use spec::{EMBED, HEAD, SCORE};
