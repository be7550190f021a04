mod parse;
mod parse_enum;
mod parse_struct;

pub(crate) use parse::*;
pub(crate) use parse_enum::*;
pub(crate) use parse_struct::*;
