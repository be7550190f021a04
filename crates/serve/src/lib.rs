//! An OpenAI-compatible HTTP server for a language model and adapters over it.
//!
//! * [`Engine`]: models by name, each a [`Decoder`](burnish_models::Decoder) whose sequences join and leave between steps,
//!   with a bounded queue.
//! * [`App`]: the routes; [`AppOptions`] says what clients may ask for.
//! * [`serve`]: connections over a [`std::net::TcpListener`], bounded in number, time and size, until it is told to stop.

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
