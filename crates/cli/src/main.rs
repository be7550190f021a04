//! The burnish program: fine-tune, generate, score, evaluate and merge language models
fn main() {}
