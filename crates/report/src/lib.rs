//! What a run leaves behind for people: metrics.jsonl, TensorBoard events, loss.svg, a model card, progress lines.
