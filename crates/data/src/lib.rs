//! Rows to batches: TRL's data formats, chat templates, tokenisation, loss masks, packing, sampling
