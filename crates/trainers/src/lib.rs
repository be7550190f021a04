//! Trainers for post-training: the loop, SFT, evaluation, generation and metrics
