//! Factors whose parts are mixed of the vectors of a bank: what VB-LoRA adds.

use super::matrix::Matrix;

/// The change `[out, input]`: see [`Change::Banked`](super::Change::Banked).
pub(super) fn banked(parts: &[Matrix], rank: usize, chosen: usize) -> Option<Matrix> {
    let [of_a, of_b, bank] = parts else { return None };
    let (count, length) = (bank.rows, bank.columns);
    let mixed = |logits: &[f32]| {
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(chosen);
        let most = order.first().map_or(0.0, |&at| logits[at]);
        let weights: Vec<f32> = order.iter().map(|&at| (logits[at] - most).exp()).collect();
        let sum: f32 = weights.iter().sum();
        let mut out = vec![0.0_f32; length];
        for (&at, weight) in order.iter().zip(&weights) {
            let vector = &bank.values[at * length..(at + 1) * length];
            out.iter_mut().zip(vector).for_each(|(y, x)| *y += weight / sum * x);
        }
        out
    };
    let all = |logits: &Matrix| logits.values.chunks_exact(count).map(mixed).collect::<Vec<_>>();
    let a: Vec<f32> = all(of_a).concat();
    let a = Matrix { rows: rank, columns: a.len() / rank, values: a };
    // Of outputs the parts lie across: those of a rank are a column.
    let of_b = all(of_b);
    let rows = of_b.len() / rank * length;
    let at = |i: usize| of_b[i / rank / length * rank + i % rank][i / rank % length];
    let b = Matrix { rows, columns: rank, values: (0..rows * rank).map(at).collect() };
    Some(b.times(&a))
}
