//! Optimizers with declared state dtypes and a typed step pipeline: Adam, AdamW, clipping, schedules
