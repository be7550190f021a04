//! Sizes of attention's kernels on GPUs, also for those who plan without them.

/// Elements that a head may have; attention of wider ones is computed by blocks of queries, by Burn's operations.
pub const FLASH_HEAD: usize = 256;
/// Queries, and keys, that are held against each other at a time: of these nothing is computed where no pair is visible.
pub const FLASH_TILE: usize = 64;

/// Tokens of a chunk of linear attention, where keys have at most 128 elements.
pub const LINEAR_ATTENTION_CHUNK: usize = 32;
