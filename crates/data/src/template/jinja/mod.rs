//! An engine for jinja2's language, with Python's values, as Transformers sets it up for chat templates.
//!
//! Blocks are trimmed, loops have `break` and `continue`, nothing is escaped unless asked for, and values that a
//! template gets do not change. What Python refuses is refused: iterating over none, ordering unlike types, adding
//! text and numbers. Work and memory are metered ([`Bounds`](super::Bounds)).

mod ast;
mod attributes;
mod call;
pub(super) mod fault;
mod filters;
mod formatting;
mod functions;
mod iterators;
mod json;
mod lexer;
mod loops;
mod machine;
mod numbers;
mod operators;
mod parser;
mod predicates;
mod printing;
mod scopes;
mod strings;
mod text;
mod value;
mod wrapping;

pub(super) use ast::Program;
pub(super) use json::value as from_json;
pub(super) use machine::Machine;
pub(super) use parser::parse;
pub(super) use value::Value;
