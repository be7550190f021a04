//! An OpenAI-compatible HTTP server for a language model and adapters over it.
//!
//! * [`Engine`]: models by name, each a [`Decoder`](burnish_models::Decoder) whose sequences join and leave between steps,
//!   with a bounded queue.
//! * [`App`]: the routes; [`AppOptions`] says what clients may ask for.
//! * [`serve()`]: connections over a [`std::net::TcpListener`], bounded in number, time and size, until it is told to stop.
//!
//! ```no_run
//! use std::net::TcpListener;
//! use std::path::Path;
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use burn::tensor::Device;
//! use burnish_data::{Options, Templates, Tokenizer};
//! use burnish_models::{Generation, load};
//! use burnish_serve::{App, AppOptions, Connections, Engine, EngineOptions, serve};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = Path::new("path/to/model");
//! let engine = Arc::new(Engine::new(EngineOptions::default()));
//! engine.add("mine", load(folder, &Device::flex())?.decoder)?;
//! let tokenizer = Tokenizer::from_folder(folder)?;
//! let templates = Templates::from_folder(folder, &tokenizer)?;
//! let options = AppOptions {
//!     max_model_len: 4096,
//!     generation: Generation { stop: tokenizer.eos_id().into_iter().collect(), ..Generation::default() },
//!     api_key: None,
//!     max_body_bytes: 1 << 20,
//!     load_adapter: None,
//! };
//! let app = App::new(engine, (tokenizer, templates, Options::default()), options);
//! let listener = TcpListener::bind("127.0.0.1:8000")?;
//! serve(listener, app, Connections::default(), Duration::from_millis(50), || false)?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod app;
mod choice;
mod connections;
mod engine;
mod error;
mod refusal;
mod request;
mod response;
mod stop_text;
mod turns;
mod worker;

pub use app::{App, AppOptions, LoadAdapter};
pub use connections::{Connections, serve};
pub use engine::{Engine, EngineOptions, Load};
pub use error::ServeError;
