//! Tensor files at rest: safetensors folders read slice-wise through mmap, written by temp file, fsync and rename
