//! Rows to batches: TRL's data formats, chat templates, tokenisation, loss masks, packing, sampling.
//!
//! A [`Source`] streams rows from JSON, CSV, Parquet or Arrow files; [`Row`] types them as TRL does; a [`Preparer`] renders conversations
//! with the folder's chat [`Templates`], tokenises with its [`Tokenizer`], masks, truncates and packs; a [`Sampler`]
//! says which rows make which step; a [`Collator`] lays them out as a [`Batch`] without padding.
//! Results equal those of TRL 1.16 with Transformers 5.23, token for token.
//!
//! ```
//! use burnish_data::{Collator, Cursor, Options, Order, Preparer, Sampler, Source, Templates, Tokenizer};
//! use std::path::Path;
//!
//! # fn main() -> Result<(), burnish_data::DataError> {
//! let folder = Path::new("tests/golden/model");
//! let tokenizer = Tokenizer::from_folder(folder)?;
//! let templates = Templates::from_folder(folder, &tokenizer)?;
//! let options = Options { max_length: Some(512), ..Options::default() };
//! let preparer = Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options: &options };
//! let source = Source::train("tests/golden/rows/lm.jsonl", "train")?;
//! let data = preparer.prepare(&source.name(), source.records())?;
//!
//! let collator = Collator { padding_free: options.is_padding_free(), ..Collator::default() };
//! let sampler = Sampler::new(data.examples.len(), Order::Random, 42).per_device(8).accumulation(2);
//! for step in sampler.steps(Cursor::default())?.take(sampler.total_steps(3.0, -1)) {
//!     for micro_step in 0..step.micro_steps() {
//!         let slice = step.slice(0, micro_step);
//!         let examples: Vec<_> = step.rows[slice.clone()].iter().map(|&i| &data.examples[i]).collect();
//!         let batch = collator.batch(&examples, slice.start);
//!         assert_eq!(batch.labels.len(), batch.input_ids.len());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Pairs ([`Preparer::preferences`], [`Preparer::reward_pairs`]), answers that are good or bad on their own
//! ([`Preparer::unpaired`]) and prompts to sample from ([`Preparer::prompts`]) are prepared alike; a
//! [`CompletionCollator`] lays prompts with their completions out and says where each completion is scored.
//!
//! ```
//! use burnish_data::{CompletionCollator, Options, Preparer, Source, Tokenizer};
//! use std::path::Path;
//!
//! # fn main() -> Result<(), burnish_data::DataError> {
//! let tokenizer = Tokenizer::from_folder(Path::new("tests/golden/model"))?;
//! let options = Options { max_length: Some(64), ..Options::default() };
//! let preparer = Preparer { tokenizer: &tokenizer, templates: None, options: &options };
//! let source = Source::train("tests/golden/rows/pairs.jsonl", "train")?;
//! let pairs = preparer.preferences(&source.name(), source.records())?;
//!
//! let collator = CompletionCollator { max_length: options.max_length, truncation: options.truncation, ..CompletionCollator::default() };
//! let batch = collator.preferences(&pairs.examples.iter().take(2).collect::<Vec<_>>(), 0);
//! // Two pairs: a prompt and two answers that go on from it, each.
//! assert_eq!((batch.completions.batch.documents.len(), batch.completions.spans.len()), (6, 4));
//! let (chosen, rejected) = batch.sides();
//! assert_eq!(chosen[0].tokens, pairs.examples[0].chosen.len());
//! assert_eq!(rejected[1].tokens, pairs.examples[1].rejected.len());
//! # Ok(())
//! # }
//! ```

mod assistant_turns;
mod batch;
mod completions;
mod content_key;
mod error;
mod example;
mod extract_prompt;
mod invocation_check;
mod pack;
mod preference;
pub mod preflight;
mod prepare;
mod prompts;
mod row;
mod row_cache;
mod row_origin;
mod row_view;
mod sampler;
mod source;
mod split;
mod split_prompt;
mod statistics;
mod template;
mod token_checks;
mod tokenize;
mod tokenizer;
mod tokenizer_parts;
mod unpaired;
mod valid_json;

pub use batch::{Batch, Collator, Padded};
pub use completions::{
    Answered, CompletionCollator, Completions, PreferenceBatch, RewardBatch, Side, Span, UnpairedBatch,
};
pub use content_key::ContentKey;
pub use error::DataError;
pub use example::{Example, IGNORED};
pub use extract_prompt::extract_prompt;
pub use invocation_check::InvocationCheck;
pub use pack::{Strategy, WINDOW, pack};
pub use preference::{PreferenceExample, Prepared, RewardExample};
pub use preflight::{Concern, Finding, preflight, preflight_prepared, preflight_weights};
pub use prepare::{Dataset, Options, Preparer, Truncation};
pub use prompts::PromptExample;
pub use row::{Content, Message, Row, RowKind, Text};
pub use row_cache::RowCache;
pub use row_origin::{RowOrigin, RowUnit};
pub use row_view::{RowUse, RowView, TextView};
pub use sampler::{Cursor, GroupBatch, GroupBatches, GroupSampler, Order, Sampler, Step, Steps};
pub use source::{Listing, Mixture, Record, Records, Source, SourceSpec, SplitFiles};
pub use split::HeldOut;
pub use statistics::Statistics;
pub use template::{Bounds, Clock, Render, Rendered, Template, Templates};
pub use token_checks::{Texts, TokenChecks};
pub use tokenizer::{TextStream, Tokenizer};
pub use unpaired::{UnpairedExample, partner};
