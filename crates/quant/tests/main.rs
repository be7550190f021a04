//! Against bitsandbytes' numbers, and what no numbers say.

mod bitsandbytes;
mod rows;
