//! CPU kernels for transformer training on plain slices: packed GEMM with low-rank columns, attention, norms, log-probability head, AdamW
