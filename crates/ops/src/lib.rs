//! Autodiff building blocks on Burn: segment, low-rank linears, attention, norms, embedding, log-probability head
