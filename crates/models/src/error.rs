//! Errors of model folders.

use std::path::PathBuf;

use burnish_core::{Coded, Dtype, ErrorCode, LayoutError, RegistryError};
use burnish_gguf::GgufError;
use burnish_ops::OpsError;
use burnish_peft::PeftError;
use burnish_tp::TpError;
use burnish_weight_files::WeightFileError;

use crate::packed_fault::PackedFault;

/// A model that cannot be read, built, run or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A weight that is not a number.
    #[error("`{name}` holds {value} at element {at}: it is not a number, and is not written")]
    NotFinite {
        /// The parameter, or the slot of the optimizer's and its parameter.
        name: String,
        /// The value.
        value: f64,
        /// Where, among the elements of this rank.
        at: usize,
    },
    /// What a model computes is not a number.
    #[error(
        "{what}: the model computes {value}, which is not a number: its weights are damaged, or have grown too large for their precision; try `--dtype float32`, or an earlier checkpoint"
    )]
    ResultNotFinite {
        /// What was computed, of which row.
        what: String,
        /// The value.
        value: f64,
    },
    /// A file of the folder is not there.
    #[error(
        "{path}: not found; a Hugging Face model folder holds config.json, model*.safetensors and tokenizer.json"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// config.json is not JSON.
    #[error("{path}: not valid JSON: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A key of a settings file is missing or of the wrong kind.
    #[error("{file}: `{key}` is {got}, expected {expected}")]
    Key {
        /// The file's name.
        file: &'static str,
        /// The key.
        key: String,
        /// What it holds.
        got: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A model family, or an option of one, that burnish does not compute.
    #[error("config.json: `{key}` = {got} is not supported; supported: {supported}")]
    Unsupported {
        /// The key.
        key: String,
        /// What it holds.
        got: String,
        /// What would work.
        supported: &'static str,
    },
    /// A model family that burnish does not compute.
    #[error("config.json: `model_type` = {got} is not supported; supported: {supported}")]
    Family {
        /// What it says.
        got: String,
        /// Every family.
        supported: String,
    },
    /// The weights do not fit the configuration.
    #[error("{path}: {}", list(.faults))]
    Weights {
        /// The folder.
        path: PathBuf,
        /// Every difference.
        faults: Vec<WeightFault>,
    },
    /// A matrix of a folder that is quantised already.
    #[error("{path}: the quantised matrix `{name}`: {fault}")]
    Packed {
        /// The folder.
        path: PathBuf,
        /// The matrix.
        name: String,
        /// What is wrong with it.
        fault: Box<PackedFault>,
    },
    /// A folder that is quantised already, where that cannot be.
    #[error("{path} is quantised already ({how}), and {what} {mend}")]
    Quantized {
        /// The folder.
        path: PathBuf,
        /// How.
        how: String,
        /// What cannot be.
        what: &'static str,
        /// The mend.
        mend: &'static str,
    },
    /// A parameter name that the model does not have.
    #[error("the model has no parameter `{name}`")]
    UnknownParameter {
        /// The name.
        name: String,
    },
    /// A sequence longer than the model can place.
    #[error("sequence of {got} tokens exceeds {key} {limit}; shorten max_length or the prompt")]
    TooLong {
        /// Tokens.
        got: usize,
        /// What says so.
        key: &'static str,
        /// The model's limit.
        limit: usize,
    },
    /// Nothing to continue.
    #[error(
        "prompt {row} is empty; give it at least one token, or set `bos` to the token that begins a text"
    )]
    EmptyPrompt {
        /// The prompt's index.
        row: usize,
    },
    /// A pass over several adapters that does not say which document has which.
    #[error(
        "a pass with adapters of {got} documents runs over {documents}: `Decoder::adapted_pass` takes one for each, or none"
    )]
    AdaptersOfDocuments {
        /// Documents whose adapters the pass has.
        got: usize,
        /// Those that it runs over.
        documents: usize,
    },
    /// Not one of a decoder's adapters.
    #[error("prompt {row} names adapter {got} of {adapters}, which are counted from 0")]
    NoAdapter {
        /// The prompt's index.
        row: usize,
        /// What it names.
        got: usize,
        /// How many there are.
        adapters: usize,
    },
    /// A text without a token has no score.
    #[error("document {row} is empty; a text needs at least one token to be scored")]
    EmptyDocument {
        /// The document's index.
        row: usize,
    },
    /// Tokens wanted of a model that scores.
    #[error(
        "the model gives a score (`score.weight`), expected a head over the vocabulary; use the folder of a *ForCausalLM \
         model"
    )]
    NoVocabulary,
    /// A score wanted of a language model.
    #[error(
        "the model gives logits over its vocabulary, expected a score; use the folder of a *ForSequenceClassification \
         model, or train one with `burnish reward`"
    )]
    NoScore,
    /// Not one entry per sequence.
    #[error("got new tokens for {got} sequences, expected {expected}, one entry each")]
    Sequences {
        /// Entries that came.
        got: usize,
        /// Sequences in progress.
        expected: usize,
    },
    /// A sampling setting out of range.
    #[error("`{name}` is {got}, expected {expected}")]
    Sampling {
        /// The setting.
        name: &'static str,
        /// What it holds.
        got: f32,
        /// What it should hold.
        expected: &'static str,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Ops(#[from] OpsError),
    /// A file of weights failed.
    #[error(transparent)]
    Store(#[from] WeightFileError),
    /// An adapter failed.
    #[error(transparent)]
    Peft(#[from] PeftError),
    /// A GGUF file failed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A family that is not written as GGUF.
    #[error("model_type {got} is not written as GGUF; supported: {supported}")]
    GgufFamily {
        /// The family.
        got: String,
        /// Those that are.
        supported: String,
    },
    /// A model that llama.cpp would compute otherwise.
    #[error(
        "the model has {what}; llama.cpp computes its architecture `{arch}` without that, so the file would be another model"
    )]
    GgufComputes {
        /// llama.cpp's architecture.
        arch: &'static str,
        /// What it has not.
        what: String,
    },
    /// An adapter that is not written as GGUF.
    #[error("{what} cannot be a GGUF adapter; {mend}")]
    GgufAdapter {
        /// What it has.
        what: String,
        /// What helps.
        mend: &'static str,
    },
    /// An adapter that cannot be given factors of each expert.
    #[error("{what} cannot be written with factors of each expert; {mend}")]
    ByExpert {
        /// What it has.
        what: String,
        /// What helps.
        mend: &'static str,
    },
    /// A weight that half precision does not hold.
    #[error(
        "tensor `{name}` has {value} at element {at}, which float16 cannot hold: take --outtype bf16, f32 or q8_0"
    )]
    GgufHalf {
        /// The tensor.
        name: String,
        /// The value.
        value: f32,
        /// Where.
        at: usize,
    },
    /// A file that is not what was exported.
    #[error(
        "`{what}` of the written file differs from its source by {relative:.1e} of its size, expected at most {bound:.0e}; the file is not kept"
    )]
    GgufDiffers {
        /// The parameter, or tensor.
        what: String,
        /// The relative error.
        relative: f64,
        /// Its bound.
        bound: f64,
    },
    /// More tensor-parallel ranks than there is to divide.
    #[error("tp_size {ranks}: {what} is {size}; use at most as many ranks")]
    TooManyRanks {
        /// The key of config.json.
        what: &'static str,
        /// Its value.
        size: usize,
        /// The ranks.
        ranks: usize,
    },
    /// Experts over ranks, of a model that has none.
    #[error("ep_size {ranks}: the model has no experts; leave ep_size out, or divide layers by tp_size")]
    NoExperts {
        /// The ranks.
        ranks: usize,
    },
    /// More ranks than experts.
    #[error(
        "ep_size: {experts} experts cannot be given to {ranks} ranks (ep_size times tp_size), each needs one; use at most {experts}"
    )]
    TooFewExperts {
        /// Experts of a mixture.
        experts: usize,
        /// The ranks.
        ranks: usize,
    },
    /// Queries, keys and values in one matrix, whose key and value rows several ranks would share, at different places.
    #[error(
        "tp_size {ranks}: qkv_proj packs {heads} query heads with {kv_heads} key and value heads; with more ranks than \
         those, every rank needs as many query heads as the others: use at most {kv_heads}, or a multiple of {kv_heads} \
         that divides {heads}"
    )]
    UnevenPacked {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
        /// The ranks.
        ranks: usize,
    },
    /// A parameter of an adapter of which ranks that share layers would have no parts of their own: blocks of inputs of more
    /// than one rank, or what layers that they share have in common with one that each runs whole.
    #[error(
        "tp_size: `{name}` cannot be divided among ranks as its layer is: use tp_size 1 (with zero_stage 3, if memory is \
         short), blocks of another size, or merge the adapter into its base first"
    )]
    Undivided {
        /// The parameter.
        name: String,
    },
    /// Queries, keys and values in one matrix, by quarters of the heads, which ranks would share.
    #[error(
        "tp_size {ranks}: qkv_proj packs the heads in four quarters, of which each rank needs whole ones: use 2 or 4"
    )]
    Quartered {
        /// The ranks.
        ranks: usize,
    },
    /// `modules_to_save` on a matrix that files keep turned.
    #[error(
        "modules_to_save: `{name}` is kept as [in, out] in files, and an adapter's copy of it is not supported; adapt the \
         module (target_modules), or train the whole model"
    )]
    SavedTurned {
        /// The parameter.
        name: String,
    },
    /// QK-Clip on a model whose queries and keys are normed.
    #[error(
        "qk_clip: queries and keys of this model are normed per head (`{norm}`), so scaling their projections changes no \
         logit, and the norms' gains bound the logits; leave qk_clip out"
    )]
    QkClipNormed {
        /// The first such norm.
        norm: String,
    },
    /// QK-Clip on a weight beside which an adapter runs.
    #[error(
        "qk_clip: an adapter on the layer of `{name}` adds to the logits without being scaled; leave query and key \
         projections out of target_modules, or leave qk_clip out"
    )]
    QkClipAdapted {
        /// The parameter.
        name: String,
    },
    /// QK-Clip on a weight that is not trained.
    #[error(
        "qk_clip: `{name}` is not trained, and clipping scales its rows; train all weights (or name the layer in \
         modules_to_save), or leave qk_clip out"
    )]
    QkClipFrozen {
        /// The parameter.
        name: String,
    },
    /// A threshold that bounds nothing.
    #[error("qk_clip: the threshold is {got}, expected a positive number (Kimi K2 used 100)")]
    QkClipThreshold {
        /// The threshold.
        got: f32,
    },
    /// Not one largest logit per head.
    #[error(
        "qk_clip: got {got} largest logits, expected {expected}: one per layer and query head of the whole model"
    )]
    QkClipPeaks {
        /// How many came.
        got: usize,
        /// How many there are.
        expected: usize,
    },
    /// Attention logits without a maximum.
    #[error(
        "qk_clip: a logit of head {head} of `{layer}` is not finite ({got}), so there is no factor; a step whose gradients \
         are not finite is to be skipped before clipping"
    )]
    QkClipNotFinite {
        /// The block.
        layer: String,
        /// The query head.
        head: usize,
        /// What was found.
        got: f32,
    },
    /// A layout that cannot be built.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The model cannot be divided so.
    #[error(transparent)]
    Tp(#[from] TpError),
    /// Two parameters share a name.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// One difference between weights and configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightFault {
    /// No such tensor in the files.
    #[error("tensor `{name}` is missing")]
    Missing {
        /// The tensor.
        name: String,
    },
    /// Another shape.
    #[error("tensor `{name}` has shape {got:?}, expected {expected:?} from config.json")]
    Shape {
        /// The tensor.
        name: String,
        /// In the file.
        got: Vec<usize>,
        /// By the configuration.
        expected: Vec<usize>,
    },
    /// Not a floating-point tensor.
    #[error(
        "tensor `{name}` is {got}, expected float32, bfloat16 or float16 (quantised matrices are read where config.json \
         has a `quantization_config`)"
    )]
    Dtype {
        /// The tensor.
        name: String,
        /// In the file.
        got: Dtype,
    },
    /// A tensor that the configuration does not account for.
    #[error("tensor `{name}` belongs to no parameter of this configuration")]
    Unexpected {
        /// The tensor.
        name: String,
    },
}

fn list(faults: &[WeightFault]) -> String {
    let shown: Vec<String> = faults.iter().take(8).map(ToString::to_string).collect();
    let more = faults.len().saturating_sub(8);
    let tail = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("the weights do not fit config.json: {}{tail}", shown.join("; "))
}

impl Coded for ModelError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NotFinite { .. } | Self::ResultNotFinite { .. } | Self::QkClipNotFinite { .. } => {
                ErrorCode::NotFinite
            }
            Self::Missing { .. } => ErrorCode::NotAModel,
            Self::Json { .. } | Self::Key { .. } => ErrorCode::BadModelConfig,
            Self::Unsupported { .. } | Self::Family { .. } => ErrorCode::UnsupportedModel,
            Self::Weights { .. } => ErrorCode::WeightsMismatch,
            Self::Quantized { .. } => ErrorCode::QuantizedModel,
            Self::UnknownParameter { .. }
            | Self::Sequences { .. }
            | Self::AdaptersOfDocuments { .. }
            | Self::QkClipPeaks { .. } => ErrorCode::Internal,
            Self::TooLong { .. } => ErrorCode::TooLong,
            Self::EmptyPrompt { .. } | Self::EmptyDocument { .. } => ErrorCode::EmptyText,
            Self::NoVocabulary | Self::NoScore => ErrorCode::WrongHead,
            Self::NoAdapter { .. } | Self::Sampling { .. } | Self::QkClipThreshold { .. } => {
                ErrorCode::BadValue
            }
            Self::GgufFamily { .. }
            | Self::GgufComputes { .. }
            | Self::GgufAdapter { .. }
            | Self::ByExpert { .. }
            | Self::GgufHalf { .. } => ErrorCode::CannotExport,
            Self::GgufDiffers { .. } => ErrorCode::ExportDiffers,
            Self::TooManyRanks { .. }
            | Self::NoExperts { .. }
            | Self::TooFewExperts { .. }
            | Self::UnevenPacked { .. }
            | Self::Undivided { .. }
            | Self::Quartered { .. } => ErrorCode::CannotDivide,
            Self::SavedTurned { .. } => ErrorCode::UnsupportedAdapter,
            Self::QkClipNormed { .. } | Self::QkClipAdapted { .. } | Self::QkClipFrozen { .. } => {
                ErrorCode::Conflict
            }
            Self::Ops(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Peft(error) => error.code(),
            Self::Gguf(error) => error.code(),
            Self::Layout(error) => error.code(),
            Self::Tp(error) => error.code(),
            Self::Registry(error) => error.code(),
            Self::Read { source, .. } => source.code(),
            Self::Packed { fault, .. } => fault.code(),
        }
    }
}

impl Coded for WeightFault {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Missing { .. } | Self::Shape { .. } | Self::Dtype { .. } | Self::Unexpected { .. } => {
                ErrorCode::WeightsMismatch
            }
        }
    }
}
